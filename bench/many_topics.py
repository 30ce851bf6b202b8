"""Two thousand topics with three partitions: the tail latency of metadata and produce requests, and
the memory."""

from __future__ import annotations

import time
from collections.abc import Callable

from bench.measure import Options, Row, in_pairs, paired
from bench.sides import Side
from tests.support import wire
from tests.support.wire import METADATA, Wire

TOPICS = 2000
PARTITIONS = 3
REQUESTS = 1000


def run(sides: dict[str, Side], options: Options) -> list[Row]:
    metadata_p99: dict[tuple[str, int], float] = {}
    memory: dict[tuple[str, int], float] = {}
    for side in sides.values():
        for index in range(TOPICS):
            side.new_topic(f"many-{index}", PARTITIONS)

    def once(side: Side, index: int) -> float:
        with Wire(side.broker.address, 60.0) as connection:
            metadata_p99[side.name, index] = _p99(
                lambda index: connection.call(METADATA, 4, wire.metadata_request(None)), REQUESTS // 10
            )
            produce_p99 = _p99(lambda index: _produce(connection, index), REQUESTS)
        memory[side.name, index] = side.rss_mib()
        return produce_p99

    for side in sides.values():
        once(side, -1)
    produce_p99 = in_pairs(sides, options.pairs, once, title="p99 of a produce request, ms")
    what = f"{TOPICS:,} topics × {PARTITIONS} partitions"
    return [
        Row(f"{what}: produce request, p99", "ms", produce_p99, "≤ 0.5 ×", at_most=0.5),
        Row(f"{what}: metadata of all topics, p99", "ms", paired(metadata_p99, options.pairs), "≤ 0.5 ×", at_most=0.5),
        Row(f"{what}: memory (RSS)", "MiB", paired(memory, options.pairs)),
    ]


def _produce(connection: Wire, index: int) -> None:
    topic, partition = f"many-{index % TOPICS}", index % PARTITIONS
    body = wire.produce_request(topic, partition, wire.batch([b"x" * 100]), version=7)
    code, _offset = wire.produce_error(connection.call(wire.PRODUCE, 7, body), 7)
    if code:
        raise RuntimeError(f"Cannot produce to {topic}-{partition}: error {code}")


def _p99(request: Callable[[int], object], count: int) -> float:
    """Return the 99th percentile of the times of `count` requests, in milliseconds."""
    times = []
    for index in range(count):
        started = time.perf_counter()
        request(index)
        times.append(time.perf_counter() - started)
    return sorted(times)[int(count * 0.99)] * 1000
