"""Kavka's consumer, to objects, to Arrow and to views of Arrow, compared with confluent-kafka (C),
kafka-python and aiokafka.

    python -m bench --only python-consumers [--pairs 5]

For each record size there is a topic with one partition and batches of 16 KB. All clients read it
from the beginning with their default settings. `confluent-tuned` is confluent-kafka with larger
queues, since by default it pauses for a second when 100,000 records are queued. The rate is
measured from the first records to the last, including access to the value of each record (for
Arrow: all columns). `receive-only` is an upper bound: it sends the same fetches as Kavka's consumer
and discards the responses.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from bench.measure import Options, Row
from bench.python_clients import (
    SIZES,
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

OTHERS = ("confluent", "confluent-tuned", "aiokafka", "kafka-python")
CLIENTS = (
    "kavka", "confluent-tuned", "kavka-arrow", "kavka-arrow-views", "confluent", "aiokafka", "kafka-python",
    "receive-only",
)  # fmt: skip
# By form: its client, and its bars for 100 and 1000 bytes.
FORMS: dict[str, tuple[str, dict[int, float | None]]] = {
    "objects": ("kavka", {100: 2.0, 1000: 1.1}),
    "Arrow": ("kavka-arrow", {100: 2.0, 1000: None}),
    "Arrow views": ("kavka-arrow-views", {100: 2.0, 1000: 1.3}),
}
TUNED = {"queued.min.messages": 10_000_000, "queued.max.messages.kbytes": 1024 * 1024, "fetch.queue.backoff.ms": 1}
RECORDS = {100: 3_000_000, 1000: 600_000}
# For the slow client, so that a round does not take minutes.
FEW_RECORDS = 200_000
# Records per call. A larger number makes no client faster.
RECORDS_PER_POLL = 1000


def run(options: Options) -> list[Row]:
    from kavka.testing import Broker

    rows: list[Row] = []
    with Broker() as broker:
        for size in SIZES:
            fill(broker.bootstrap_servers, size, RECORDS[size])

            def read(client: str, size: int = size) -> Figures:
                count = FEW_RECORDS if client == "kafka-python" else RECORDS[size]
                return in_process("bench.python_consumers", client, broker.bootstrap_servers, size, count)

            figures = in_rounds(f"{size} B", CLIENTS, options.pairs, read)
            unit = "records/s"
            for form, (client, bars) in FORMS.items():
                what = f"consume to {form}, {size} B"
                rows.append(compared_with_best(what, unit, "rate", figures, client, OTHERS, bars[size]))
                rows += [
                    compared_with_best(what, unit, "rate", figures, client, [other])
                    for other in (*OTHERS, "receive-only")
                ]
    return rows


def fill(servers: str, size: int, count: int, ca_file: str = "") -> None:
    from kavka import Producer

    value = os.urandom(size)
    with Producer(bootstrap_servers=servers, batch_max_bytes=0, linger_ms=50, **kavka_tls(ca_file)) as producer:
        for _ in range(count):
            producer.send(f"t{size}", value)


def run_client(client: str, servers: str, size: str, count: str, *ca_file: str) -> int:
    """Run a client in this process and report the figures. With `ca_file` it uses TLS."""
    use_form(client)
    return report(lambda: RUNS[client](servers, f"t{size}", int(count), int(size), *ca_file))


def kavka(servers: str, topic: str, count: int, size: int, ca_file: str = "") -> Run:
    from kavka import Consumer, TopicPartition

    settings = {"auto_offset_reset": "earliest", "max_poll_records": RECORDS_PER_POLL, **kavka_tls(ca_file)}
    with Consumer(bootstrap_servers=servers, **settings) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        first = total = sum(len(record.value) for record in consumer.poll(30))
        watch = Stopwatch()
        while total < count * size:
            for record in consumer.poll(30):
                total += len(record.value)
        return watch.read((total - first) // size)


def kavka_to_arrow(servers: str, topic: str, count: int, size: int, views: bool = False) -> Run:
    from kavka import Consumer, TopicPartition

    with Consumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        batch = consumer.poll_arrow(30, views=views)
        assert batch is not None
        first = total = batch.num_rows
        watch = Stopwatch()
        while total < count:
            batch = consumer.poll_arrow(30, views=views)
            assert batch is not None
            total += batch.num_rows
        result = watch.read(total - first)
        assert len(batch["value"][0].as_py()) == size
        return result


def confluent(
    servers: str, topic: str, count: int, size: int, ca_file: str = "", overrides: Mapping[str, int] | None = None
) -> Run:
    from confluent_kafka import Consumer, TopicPartition

    settings = {"bootstrap.servers": servers, "group.id": "none", "enable.auto.commit": False, **(overrides or {})}
    consumer = Consumer({**settings, **confluent_tls(ca_file)})
    consumer.assign([TopicPartition(topic, 0, 0)])
    first = total = sum(len(message.value()) for message in consumer.consume(1, 30))
    watch = Stopwatch()
    while total < count * size:
        # `consume` waits until it has the requested number of records.
        for message in consumer.consume(min(RECORDS_PER_POLL, count - total // size), 30):
            total += len(message.value())
    result = watch.read((total - first) // size)
    consumer.close()
    return result


def receive_only(servers: str, topic: str, count: int, size: int) -> Run:
    from kavka.client.consumer._decode import end_of_batches
    from kavka.client.consumer.fetcher import MAX_PARTITION_FETCH_BYTES
    from tests.support import wire

    host, _, port = servers.rpartition(":")
    offset = first = 0
    # The size of a version 4 response with one partition, without the records.
    start = 4 + 4 + 4 + 2 + len(topic) + 4 + 4 + 2 + 8 + 8 + 4 + 4
    with wire.Wire((host, int(port)), timeout=30) as connection:
        buffer = memoryview(bytearray(MAX_PARTITION_FETCH_BYTES + 1024 * 1024))
        watch = None
        while offset < count:
            connection.send_request(
                1, 4, wire.fetch_request(topic, 0, offset, version=4, max_bytes=MAX_PARTITION_FETCH_BYTES)
            )
            end = 4 + int.from_bytes(_receive(connection, buffer[:4]), "big")
            _receive(connection, buffer[4:end])
            offset = end_of_batches(buffer[4 + start : end])[0]
            if watch is None:
                first, watch = offset, Stopwatch()
        assert watch is not None
        return watch.read(offset - first)


def _receive(connection: Any, buffer: memoryview) -> memoryview:
    total = 0
    while total < len(buffer):
        total += connection.socket.recv_into(buffer[total:])
    return buffer


def kafka_python(servers: str, topic: str, count: int, size: int) -> Run:
    from kafka import KafkaConsumer, TopicPartition

    settings: dict[str, Any] = {"auto_offset_reset": "earliest", "max_poll_records": RECORDS_PER_POLL}
    consumer = KafkaConsumer(bootstrap_servers=servers, enable_auto_commit=False, **settings)
    tp = TopicPartition(topic, 0)
    consumer.assign([tp])
    first = total = sum(len(record.value) for record in consumer.poll(30_000).get(tp, ()))
    watch = Stopwatch()
    while total < count * size:
        for record in consumer.poll(30_000).get(tp, ()):
            total += len(record.value)
    result = watch.read((total - first) // size)
    consumer.close()
    return result


def aiokafka(servers: str, topic: str, count: int, size: int) -> Run:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    async def work() -> Run:
        consumer = AIOKafkaConsumer(bootstrap_servers=servers, auto_offset_reset="earliest", enable_auto_commit=False)
        await consumer.start()
        tp = TopicPartition(topic, 0)
        consumer.assign([tp])
        records = await consumer.getmany(timeout_ms=30_000, max_records=RECORDS_PER_POLL)
        first = total = sum(len(record.value) for record in records.get(tp, ()))
        watch = Stopwatch()
        while total < count * size:
            records = await consumer.getmany(timeout_ms=30_000, max_records=RECORDS_PER_POLL)
            for record in records.get(tp, ()):
                total += len(record.value)
        result = watch.read((total - first) // size)
        await consumer.stop()
        return result

    return asyncio.run(work())


RUNS: dict[str, Callable[..., Run]] = {
    "kavka": kavka,
    "kavka-plain": kavka,
    "kavka-arrow": kavka_to_arrow,
    "kavka-arrow-views": partial(kavka_to_arrow, views=True),
    "receive-only": receive_only,
    "confluent": confluent,
    "confluent-tuned": partial(confluent, overrides=TUNED),
    "kafka-python": kafka_python,
    "aiokafka": aiokafka,
}


if __name__ == "__main__":
    sys.exit(run_client(*sys.argv[2:]))
