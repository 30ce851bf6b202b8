"""The consumer under faults: killed brokers, broken connections, missing responses."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import kavka.testing
from kavka import Consumer, KafkaError, Producer, TopicPartition
from tests.support.our_consumer import (
    GROUPS,
    RecordingListener,
    fill,
    group_settings,
    make_topic,
    numbers,
    poll_until,
    read,
)
from tests.support.proxy import Proxy

pytestmark = pytest.mark.records

Broker = kavka.testing.Broker


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(GROUPS, log_dir=tmp_path / "data") as broker:
        yield broker


class Writer:
    """Produces numbers in a background thread, each once and in order, until it is stopped."""

    def __init__(self, servers: str, topic: str, pause: float = 0.0005) -> None:
        self._producer = Producer(bootstrap_servers=servers, enable_idempotence=True, delivery_timeout_ms=60_000)
        self._topic = topic
        self._pause = pause
        self._stop = threading.Event()
        self.written = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._producer.send(self._topic, b"%d" % self.written, partition=0)
            self.written += 1
            time.sleep(self._pause)

    def stop(self) -> int:
        self._stop.set()
        self._thread.join()
        self._producer.close(60)
        return self.written


def run_for(consumer: Consumer, seconds: float, records: list[bytes | None]) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        records += [r.value for r in consumer.poll(0.1)]


@pytest.mark.slow
def test_no_record_is_lost_when_the_broker_is_killed_under_load(broker: Broker, topic: str, protocol: str) -> None:
    make_topic(broker.bootstrap_servers, topic)
    records: list[bytes | None] = []
    listener = RecordingListener()
    with Consumer(
        bootstrap_servers=broker.bootstrap_servers,
        group_id="g",
        auto_commit_interval_ms=100,
        **group_settings(protocol),
    ) as consumer:
        consumer.subscribe([topic], listener=listener)
        writer = Writer(broker.bootstrap_servers, topic)
        try:
            for _ in range(3):
                run_for(consumer, 1.5, records)
                broker.kill()
                run_for(consumer, 0.3, records)
                broker.start()
                run_for(consumer, 1.0, records)
        finally:
            total = writer.stop()
        deadline = time.monotonic() + 60
        while len(records) < total and time.monotonic() < deadline:
            records += [r.value for r in consumer.poll(0.2)]
        assert consumer.assignment() == {TopicPartition(topic, 0)}
    # After a crash of the broker, a member that had to join again may fetch records again, in order
    # and without gaps.
    if not listener.all("lost"):
        assert records == numbers(total)
    assert sorted(set(records), key=int) == numbers(total)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_group_continues_after_a_restart_of_its_coordinator(broker: Broker, topic: str, protocol: str) -> None:
    make_topic(broker.bootstrap_servers, topic, 4)
    settings = {"bootstrap_servers": broker.bootstrap_servers, "group_id": "g", **group_settings(protocol)}
    with Consumer(**settings) as first, Consumer(**settings) as second:
        for consumer in (first, second):
            consumer.subscribe([topic])
        poll_until([first, second], lambda: len(first.assignment()) == len(second.assignment()) == 2)
        for partition in range(4):
            fill(broker.bootstrap_servers, topic, numbers(25, 25 * partition), partition)
        polled = poll_until([first, second], lambda: sum(first.position(tp) for tp in first.assignment()) > 0)
        broker.restart()
        for partition in range(4):
            fill(broker.bootstrap_servers, topic, numbers(25, 100 + 25 * partition), partition)
        deadline = time.monotonic() + 30
        values = [r.value for records in polled.values() for r in records]
        while len(set(values)) < 200 and time.monotonic() < deadline:
            for consumer in (first, second):
                values += [r.value for r in consumer.poll(0.1)]
        assert set(values) == set(numbers(200))
        poll_until([first, second], lambda: len(first.assignment() | second.assignment()) == 4)
        first.commit_sync()
        second.commit_sync()


@pytest.fixture
def proxied(tmp_path: Path) -> Iterator[Proxy]:
    """A proxy to a broker that advertises the address of the proxy."""
    with (
        Proxy(("127.0.0.1", 0)) as proxy,
        Broker(GROUPS, log_dir=tmp_path / "data", advertised_listeners=f"PLAINTEXT://{proxy.address}") as broker,
    ):
        proxy.target = "127.0.0.1", broker.port
        yield proxy


def test_no_record_is_lost_or_repeated_when_connections_break_within_responses(proxied: Proxy, topic: str) -> None:
    small_batches = {"batch_size": 10_000, "batch_max_bytes": 0}
    fill(proxied.address, topic, [b"%d " % i * 100 for i in range(5000)], **small_batches)
    proxied.cut_after(200_000)
    with Consumer(
        bootstrap_servers=proxied.address,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=100_000,
        reconnect_backoff_ms=1,
        retry_backoff_ms=10,
    ) as consumer:
        consumer.assign([(topic, 0)])
        records = read(consumer, 5000, timeout=60)
    assert [r.offset for r in records] == list(range(5000))
    assert proxied.cuts >= 3


def test_the_consumer_continues_after_a_stalled_broker_resumes(proxied: Proxy, topic: str) -> None:
    fill(proxied.address, topic, numbers(100))
    settings = {"auto_offset_reset": "earliest", "request_timeout_ms": 600, "fetch_max_wait_ms": 100}
    with Consumer(bootstrap_servers=proxied.address, **settings) as consumer:
        consumer.assign([(topic, 0)])
        assert len(read(consumer, 100)) == 100
        proxied.stall()
        assert not consumer.poll(2.5)
        with pytest.raises(KafkaError):
            consumer.list_topics(timeout=0.3)
        proxied.resume()
        fill(proxied.address, topic, numbers(50, 100))
        assert [r.value for r in read(consumer, 50)] == numbers(50, 100)


def test_a_group_survives_connections_that_break_often(proxied: Proxy, topic: str, protocol: str) -> None:
    make_topic(proxied.address, topic, 3)
    fill(proxied.address, topic, [b"%d" % i for i in range(3000)])
    stop = threading.Event()

    def break_connections() -> None:
        while not stop.wait(0.25):
            proxied.drop_all()

    breaking = threading.Thread(target=break_connections)
    settings = group_settings(protocol) | {"group_id": "g", "reconnect_backoff_ms": 1, "retry_backoff_ms": 10}
    with Consumer(bootstrap_servers=proxied.address, max_poll_records=100, **settings) as consumer:
        consumer.subscribe([topic])
        breaking.start()
        try:
            records: list[bytes | None] = []
            deadline = time.monotonic() + 60
            while len(set(records)) < 3000 and time.monotonic() < deadline:
                records += [r.value for r in consumer.poll(0.1)]
                time.sleep(0.02)
        finally:
            stop.set()
            breaking.join()
        assert set(records) == set(numbers(3000))


def test_poll_raises_no_error_without_a_broker(unused_address: str) -> None:
    with Consumer(bootstrap_servers=unused_address, group_id="g") as consumer:
        consumer.subscribe(["t"])
        start_time = time.monotonic()
        assert not consumer.poll(0.5)
        assert time.monotonic() - start_time < 5
        with pytest.raises(KafkaError):
            consumer.list_topics(timeout=0.5)
        start_time = time.monotonic()
        consumer.close(1.0)
        assert time.monotonic() - start_time < 6


def test_a_consumer_may_be_created_before_its_broker_starts(tmp_path: Path, topic: str) -> None:
    broker = Broker(GROUPS, log_dir=tmp_path / "data")
    broker.start()
    port = broker.port
    fill(broker.bootstrap_servers, topic, numbers(10))
    broker.stop()
    try:
        with Consumer(bootstrap_servers=f"127.0.0.1:{port}", auto_offset_reset="earliest", group_id="g") as consumer:
            consumer.subscribe([topic])
            assert not consumer.poll(0.5)
            broker.start()
            assert len(read(consumer, 10)) == 10
    finally:
        broker.close()


def test_a_consumer_can_be_used_and_closed_after_ctrl_c(broker: Broker, topic: str) -> None:
    make_topic(broker.bootstrap_servers, topic)
    with Consumer(bootstrap_servers=broker.bootstrap_servers, group_id="g") as consumer:
        consumer.subscribe([topic])
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        start_time = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(20)
        assert time.monotonic() - start_time < 10
        poll_until([consumer], lambda: bool(consumer.assignment()))


# --- helpers


@pytest.fixture
def unused_address() -> str:
    from tests.support.processes import free_port

    return f"127.0.0.1:{free_port()}"
