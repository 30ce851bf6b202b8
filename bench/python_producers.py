"""Kavka's producer, compared with confluent-kafka (C), kafka-python and aiokafka.

    python -m bench --only python-producers [--pairs 5]

Each run has a new broker, acks=1 and a buffer of 64 MB. The values are the records per second from
the first send to the last acknowledgement, and the CPU time and maximum memory of the client.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from bench.measure import Options, Row
from bench.python_clients import (
    SIZES,
    ClientRow,
    Figures,
    Run,
    Stopwatch,
    compared_with_best,
    confluent_tls,
    in_process,
    in_rounds,
    kavka_tls,
    report,
    use_form,
)

CLIENTS = ("kavka", "confluent", "kafka-python", "aiokafka")
BUFFER = 64 * 1024 * 1024
# Slow clients send only FEW_RECORDS, so that a round does not take minutes.
RECORDS = {100: 1_000_000, 1000: 400_000}
# By record size: the bars of the rate compared with confluent-kafka.
BARS = {100: 1.5, 1000: 1.2}
FEW_RECORDS = 100_000


def run(options: Options) -> list[Row]:
    rows: list[Row] = []
    for size in SIZES:
        figures = in_rounds(f"{size} B", CLIENTS, options.pairs, partial(_run, size, ""))
        what, unit = f"produce, {size} B", "records/s"
        rows += [
            compared_with_best(what, unit, "rate", figures, "kavka", ["confluent"], BARS[size]),
            compared_with_best(what, unit, "rate", figures, "kavka", ["kafka-python"], 5),
            compared_with_best(what, unit, "rate", figures, "kavka", ["aiokafka"]),
            _at_most(f"client CPU time per record, {size} B", "µs", "cpu", figures),
            _at_most(f"maximum memory of the client, {size} B", "MB", "memory", figures, 1.0),
        ]
        figures = in_rounds(
            f"{size} B with callbacks", ("kavka", "confluent"), options.pairs, partial(_run, size, "callbacks")
        )
        what = f"produce with a callback per record, {size} B"
        rows.append(compared_with_best(what, unit, "rate", figures, "kavka", ["confluent"], 0.7))
    return rows


def _at_most(what: str, unit: str, figure: str, figures: dict[str, list[Figures]], bar: float | None = None) -> Row:
    pairs = [
        (kavka_run[figure], peer_run[figure])
        for kavka_run, peer_run in zip(figures["kavka"], figures["confluent"], strict=True)
    ]
    return ClientRow(
        f"{what}, compared with confluent-kafka", unit, pairs, "" if bar is None else f"≤ {bar:g} ×", at_most=bar
    )


def _run(size: int, mode: str, client: str) -> Figures:
    from kavka.testing import Broker

    count = RECORDS[size] if client in ("kavka", "confluent") else FEW_RECORDS
    with Broker() as broker:
        return in_process("bench.python_producers", client, broker.bootstrap_servers, size, count, mode)


def run_client(client: str, servers: str, size: str, count: str, mode: str, *ca_file: str) -> int:
    """Run a client in this process and report the figures. With `ca_file` it uses TLS."""
    use_form(client)
    value = os.urandom(int(size))
    return report(lambda: RUNS[client](servers, value, int(count), mode == "callbacks", *ca_file))


def kavka(servers: str, value: bytes, count: int, callbacks: bool, ca_file: str = "") -> Run:
    from kavka import Producer

    acknowledged = 0

    def count_acknowledgement(metadata: Any, error: Any) -> None:
        nonlocal acknowledged
        acknowledged += 1

    with Producer(bootstrap_servers=servers, acks="1", buffer_memory=BUFFER, **kavka_tls(ca_file)) as producer:
        producer.send("t", value).get(30)
        watch = Stopwatch()
        send = producer.send
        if callbacks:
            for _ in range(count):
                send("t", value, callback=count_acknowledgement)
        else:
            for _ in range(count):
                send("t", value)
        producer.flush()
        result = watch.read(count)
    assert not callbacks or acknowledged == count
    return result


def confluent(servers: str, value: bytes, count: int, callbacks: bool, ca_file: str = "") -> Run:
    from confluent_kafka import Producer

    acknowledged = 0

    def count_acknowledgement(error: Any, message: Any) -> None:
        nonlocal acknowledged
        acknowledged += 1

    producer = Producer(
        {
            "bootstrap.servers": servers,
            "acks": "1",
            "queue.buffering.max.messages": 10_000_000,
            "queue.buffering.max.kbytes": BUFFER // 1024,
            **confluent_tls(ca_file),
        }
    )
    options = {"on_delivery": count_acknowledgement} if callbacks else {}
    producer.produce("t", value)
    producer.flush()
    watch = Stopwatch()
    for number in range(count):
        while True:
            try:
                producer.produce("t", value, **options)
                break
            except BufferError:
                producer.poll(0.01)
        if callbacks and not number & 1023:
            producer.poll(0)
    producer.flush()
    result = watch.read(count)
    assert not callbacks or acknowledged == count
    return result


def kafka_python(servers: str, value: bytes, count: int, callbacks: bool) -> Run:
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=servers, acks=1, enable_idempotence=False)
    producer.send("t", value).get(30)
    watch = Stopwatch()
    for _ in range(count):
        future = producer.send("t", value)
        if callbacks:
            future.add_callback(lambda metadata: None)
    producer.flush()
    return watch.read(count)


def aiokafka(servers: str, value: bytes, count: int, callbacks: bool) -> Run:
    from aiokafka import AIOKafkaProducer

    async def work() -> Run:
        producer = AIOKafkaProducer(bootstrap_servers=servers, acks=1)
        await producer.start()
        await producer.send_and_wait("t", value)
        watch = Stopwatch()
        for _ in range(count):
            future = await producer.send("t", value)
            if callbacks:
                future.add_done_callback(lambda result: None)
        await producer.flush()
        result = watch.read(count)
        await producer.stop()
        return result

    return asyncio.run(work())


RUNS: dict[str, Callable[..., Run]] = {
    "kavka": kavka,
    "kavka-plain": kavka,
    "confluent": confluent,
    "kafka-python": kafka_python,
    "aiokafka": aiokafka,
}


if __name__ == "__main__":
    sys.exit(run_client(*sys.argv[2:]))
