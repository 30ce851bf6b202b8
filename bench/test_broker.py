"""`kavka.testing.Broker`: the time from the start of the process to the first record read back."""

from __future__ import annotations

import time

from bench.measure import Options, Row
from bench.python_clients import ClientRow
from kavka import Consumer, Producer, TopicPartition
from kavka.testing import Broker


def run(options: Options) -> list[Row]:
    _seconds()
    pairs = [(_seconds(), 0.5) for _ in range(options.pairs)]
    what = "broker in a test: process start to the first record read back"
    return [ClientRow(what, "s", pairs, "≤ 0.5 s", at_most=1)]


def _seconds() -> float:
    started = time.perf_counter()
    with Broker() as broker:
        with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
            producer.send("first", b"value").get(30)
        with Consumer(bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition("first", 0)])
            while not consumer.poll(1.0):
                pass
        return time.perf_counter() - started
