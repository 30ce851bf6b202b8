"""A word count in a separate process: `python -m tests.support.streams_job SERVERS IN OUT FOLDER
[name=value …]`."""

from __future__ import annotations

import sys

from kavka.streams import KafkaStreams, Produced, Serdes, StreamsBuilder


def main(servers: str, source: str, output: str, folder: str, *settings: str) -> None:
    builder = StreamsBuilder()
    (
        builder.stream(source)
        .flat_map_values(lambda line: line.split(" "))
        .group_by(lambda key, word: word)
        .count()
        .to_stream()
        .to(output, Produced.with_(Serdes.String(), Serdes.Long()))
    )
    config = {
        "bootstrap.servers": servers,
        "application.id": f"job-{source}",
        "state.dir": folder,
        "processing.guarantee": "exactly_once_v2",
        "cache.max.bytes.buffering": 0,
        "max.records.per.batch": 40,
        "spark.master": "local[2]",
        "spark.driver.memory": "512m",
        "spark.ui.enabled": "false",
        **dict(setting.split("=", 1) for setting in settings),
    }
    with KafkaStreams(builder.build(), config) as streams:
        print("RUNNING", flush=True)
        streams.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
