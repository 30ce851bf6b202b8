"""Applications of bench.streams, each in a separate process, on Spark with two cores.

    python -m bench.streams_jobs throughput TOPOLOGY SERVERS FOLDER INTERVAL OUTPUT…
    python -m bench.streams_jobs serve SERVERS FOLDER INTERVAL OUTPUT

`throughput` runs a topology once for each output topic, from its start until all input is done,
and prints RESULT and a JSON list with the seconds of each run. `serve` runs the aggregation by key
until its standard input ends; it prints READY when all input is done. The peer of the first is
java/StreamsPeer.java, that of the second plain_spark.py.
"""

from __future__ import annotations

import json
import select
import sys
import time
from collections.abc import Callable
from typing import Any

from kavka.streams import (
    Consumed,
    JoinWindows,
    KafkaStreams,
    Materialized,
    Produced,
    Serdes,
    StreamJoined,
    StreamsBuilder,
    TimeWindows,
    col,
    sum_of,
)

NUMBERS = Consumed.with_(Serdes.String(), Serdes.Long())
SUMS = Produced.with_(Serdes.String(), Serdes.Long())


def word_count(builder: StreamsBuilder, output: str) -> None:
    (
        builder.stream("lines")
        .flat_map_values(lambda line: line.lower().split(" "))
        .group_by(lambda key, word: word)
        .count()
        .to_stream()
        .to(output, SUMS)
    )


def word_count_expressions(builder: StreamsBuilder, output: str) -> None:
    words = builder.stream("lines").flat_map_values(col("value").lower().split(" "))
    words.group_by(col("value")).count().to_stream().to(output, SUMS)


def windowed_sum_expressions(builder: StreamsBuilder, output: str) -> None:
    (
        builder.stream("numbers", NUMBERS)
        .group_by_key()
        .windowed_by(TimeWindows.of_size_and_grace(10_000, 10_000))
        .aggregate(sum_of(col("value", int)))
        .to_stream(lambda key, total: f"{key.key}@{key.window.start}")
        .to(output, SUMS)
    )


def aggregate(builder: StreamsBuilder, output: str) -> None:
    (
        builder.stream("numbers", NUMBERS)
        .group_by_key()
        .aggregate(
            lambda: 0, lambda key, value, total: total + value, Materialized.with_(Serdes.String(), Serdes.Long())
        )
        .to_stream()
        .to(output, SUMS)
    )


def stream_table_join(builder: StreamsBuilder, output: str) -> None:
    table = builder.table("table", NUMBERS)
    builder.stream("stream", NUMBERS).join(table, lambda value, other: value + other).to(output, SUMS)


def stream_stream_join(builder: StreamsBuilder, output: str) -> None:
    windows = JoinWindows.of_time_difference_and_grace(10_000, 10_000)
    serdes = StreamJoined.with_(Serdes.String(), Serdes.Long(), Serdes.Long())
    left, right = builder.stream("left", NUMBERS), builder.stream("right", NUMBERS)
    left.join(right, lambda value, other: value + other, windows, serdes).to(output, SUMS)


TOPOLOGIES: dict[str, Callable[[StreamsBuilder, str], None]] = {
    "word-count": word_count,
    "word-count-expressions": word_count_expressions,
    "windowed-sum-expressions": windowed_sum_expressions,
    "aggregate": aggregate,
    "stream-table-join": stream_table_join,
    "stream-stream-join": stream_stream_join,
}


def settings(servers: str, folder: str, interval: str, output: str, guarantee: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": servers,
        "application.id": output,
        "state.dir": folder,
        "commit.interval.ms": int(interval),
        "processing.guarantee": guarantee,
        "spark.master": "local[2]",
        "spark.driver.memory": "1g",
        "spark.local.dir": folder,
    }


def throughput(topology: str, servers: str, folder: str, interval: str, *outputs: str) -> None:
    make = TOPOLOGIES[topology]
    seconds = []
    for output in outputs:
        builder = StreamsBuilder()
        make(builder, output)
        config = settings(servers, folder, interval, output, "exactly_once_v2")
        started = time.perf_counter()
        with KafkaStreams(builder.build(), config) as streams:
            streams.process_all_available()
            seconds.append(time.perf_counter() - started)
    print("RESULT " + json.dumps(seconds), flush=True)


def serve(servers: str, folder: str, interval: str, output: str) -> None:
    builder = StreamsBuilder()
    aggregate(builder, output)
    config = settings(servers, folder, interval, output, "at_least_once")
    with KafkaStreams(builder.build(), config) as streams:
        streams.process_all_available()
        print("READY", flush=True)
        while not select.select([sys.stdin], [], [], 1)[0]:
            if (error := streams.exception()) is not None:
                raise error


if __name__ == "__main__":
    {"throughput": throughput, "serve": serve}[sys.argv[1]](*sys.argv[2:])
