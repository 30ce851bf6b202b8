"""Handlers in several threads: all records are handled in the configured order, and a crash loses
no record."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import uuid
from collections import defaultdict
from typing import Any

import pytest

from kavka import ConfigError, Consumer, ConsumerRecord, Producer, TopicPartition
from kavka.parallel import ConsumerThreads, HandlerFailed, HandlerPool
from tests.support.our_consumer import fill, make_topic, numbers

pytestmark = pytest.mark.records


@pytest.fixture
def settings(servers: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": servers,
        "group.id": f"g-{uuid.uuid4().hex[:8]}",
        "auto.offset.reset": "earliest",
        "heartbeat.interval.ms": 100,
        "session.timeout.ms": 3000,
    }


class RecordingHandler:
    """Stores the records that it handles, and sets `done` after the expected number."""

    def __init__(self, expected: int, pause: float = 0.0) -> None:
        self.records: list[ConsumerRecord] = []
        self.threads: set[int] = set()
        self.concurrent = self.max_concurrent = 0
        self.done = threading.Event()
        self._expected = expected
        self._pause = pause
        self._lock = threading.Lock()

    def __call__(self, record: ConsumerRecord) -> None:
        with self._lock:
            self.concurrent += 1
            self.max_concurrent = max(self.concurrent, self.max_concurrent)
        if self._pause:
            time.sleep(self._pause)
        with self._lock:
            self.concurrent -= 1
            self.threads.add(threading.get_ident())
            self.records.append(record)
            if len(self.records) >= self._expected:
                self.done.set()

    def offsets_by(self, attribute: str) -> dict[Any, list[int]]:
        """The offsets, in the order of handling, by partition and an attribute of the record."""
        offsets = defaultdict(list)
        for record in self.records:
            offsets[record.partition, getattr(record, attribute)].append(record.offset)
        return offsets


def fill_with_keys(servers: str, topic: str, count: int, keys: int) -> None:
    with Producer(bootstrap_servers=servers) as producer:
        for i in range(count):
            producer.send(topic, b"%d" % i, key=b"key %d" % (i % keys))


def committed(settings: dict[str, Any], topic: str, partitions: int) -> dict[int, int]:
    with Consumer(settings) as consumer:
        offsets = consumer.committed([TopicPartition(topic, p) for p in range(partitions)])
        return {tp.partition: entry.offset for tp, entry in offsets.items() if entry is not None}


def ends(settings: dict[str, Any], topic: str, partitions: int) -> dict[int, int]:
    with Consumer(settings) as consumer:
        offsets = consumer.end_offsets([TopicPartition(topic, p) for p in range(partitions)])
        return {tp.partition: offset for tp, offset in offsets.items() if offset}


def test_a_pool_keeps_the_order_of_each_key_and_commits_all_records(
    servers: str, settings: dict[str, Any], topic: str
) -> None:
    make_topic(servers, topic, 2)
    fill_with_keys(servers, topic, 1000, 20)
    handler = RecordingHandler(1000, pause=0.001)
    with HandlerPool(settings, [topic], handler, workers=8, commit_interval=0.1) as pool:
        pool.start()
        assert handler.done.wait(30)
    assert sorted(r.value for r in handler.records) == sorted(numbers(1000))
    assert all(offsets == sorted(offsets) for offsets in handler.offsets_by("key").values())
    assert handler.max_concurrent > 3
    assert committed(settings, topic, 2) == ends(settings, topic, 2)


def test_a_pool_keeps_the_order_of_each_partition_if_configured(
    servers: str, settings: dict[str, Any], topic: str
) -> None:
    make_topic(servers, topic, 3)
    fill_with_keys(servers, topic, 300, 50)
    handler = RecordingHandler(300, pause=0.001)
    with HandlerPool(settings, [topic], handler, workers=8, order="partition") as pool:
        pool.start()
        assert handler.done.wait(30)
    assert all(offsets == sorted(offsets) for offsets in handler.offsets_by("topic").values())
    assert handler.max_concurrent <= 3


def test_without_an_order_all_workers_handle_records_concurrently(
    servers: str, settings: dict[str, Any], topic: str
) -> None:
    fill(servers, topic, numbers(100))
    handler = RecordingHandler(100, pause=0.05)
    with HandlerPool(settings, [topic], handler, workers=25, order="none") as pool:
        pool.start()
        assert handler.done.wait(30)
    assert handler.max_concurrent >= 20


def test_the_committed_offset_does_not_pass_a_slow_record(servers: str, settings: dict[str, Any], topic: str) -> None:
    fill(servers, topic, numbers(100))
    release = threading.Event()
    handler = RecordingHandler(99)

    def handle(record: ConsumerRecord) -> None:
        if record.offset == 10:
            release.wait(30)
        handler(record)

    with HandlerPool(settings, [topic], handle, workers=4, order="none", commit_interval=0.05) as pool:
        pool.start()
        assert handler.done.wait(30)
        time.sleep(0.5)
        assert committed(settings, topic, 1) == {0: 10}
        release.set()
        deadline = time.monotonic() + 10
        while committed(settings, topic, 1) != {0: 100} and time.monotonic() < deadline:
            time.sleep(0.05)
        assert committed(settings, topic, 1) == {0: 100}


def test_the_number_of_waiting_records_is_limited(servers: str, settings: dict[str, Any], topic: str) -> None:
    fill(servers, topic, numbers(2000))
    release = threading.Event()
    handler = RecordingHandler(2000)

    def handle(record: ConsumerRecord) -> None:
        release.wait(30)
        handler(record)

    with HandlerPool(settings, [topic], handle, workers=2, order="none", max_waiting=100, max_poll_records=50) as pool:
        pool.start()
        deadline = time.monotonic() + 10
        while pool.waiting < 100 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.3)
        assert 100 <= pool.waiting < 150
        release.set()
        assert handler.done.wait(30)
    assert [r.offset for r in sorted(handler.records, key=lambda r: r.offset)] == list(range(2000))


@pytest.mark.parametrize("kind", [HandlerPool, ConsumerThreads])
def test_a_failed_record_stops_the_handlers_and_is_not_committed(
    servers: str, settings: dict[str, Any], topic: str, kind: Any
) -> None:
    fill(servers, topic, numbers(100))
    attempts: list[int] = []

    def handle(record: ConsumerRecord) -> None:
        if record.offset == 42:
            attempts.append(record.offset)
            raise ValueError("no")

    runner = kind(settings, [topic], handle, retries=2, backoff=0.01, commit_interval=0.05)
    with runner, pytest.raises(HandlerFailed, match="offset 42") as raised:
        runner.run()
    assert isinstance(raised.value.__cause__, ValueError) and raised.value.record.offset == 42
    assert len(attempts) == 3
    assert committed(settings, topic, 1) == {0: 42}


@pytest.mark.parametrize("kind", [HandlerPool, ConsumerThreads])
def test_on_error_may_skip_failed_records(servers: str, settings: dict[str, Any], topic: str, kind: Any) -> None:
    fill(servers, topic, [b"1", b"x", b"3", b"4"])
    handler = RecordingHandler(2)
    skipped: list[tuple[int, str]] = []

    def handle(record: ConsumerRecord) -> None:
        if record.value == 3:
            raise ValueError("three")
        handler(record)

    def on_error(record: ConsumerRecord, error: BaseException) -> bool:
        skipped.append((record.offset, type(error).__name__))
        return True

    runner = kind(settings, [topic], handle, on_error=on_error, value_deserializer=lambda data: int(data))
    with runner:
        runner.start()
        assert handler.done.wait(30)
    assert skipped == [(1, "RecordDeserializationError"), (2, "ValueError")]
    assert [r.value for r in handler.records] == [1, 4]
    assert committed(settings, topic, 1) == {0: 4}


def test_a_stop_does_not_wait_for_the_retries_of_a_record(servers: str, settings: dict[str, Any], topic: str) -> None:
    fill(servers, topic, numbers(10))
    attempted = threading.Event()

    def handle(record: ConsumerRecord) -> None:
        if record.offset == 5:
            attempted.set()
            raise ValueError("not yet")

    pool = HandlerPool(settings, [topic], handle, retries=1000, backoff=0.5, order="none").start()
    assert attempted.wait(30)
    time.sleep(0.2)
    start_time = time.monotonic()
    assert pool.stop()
    assert time.monotonic() - start_time < 5
    assert committed(settings, topic, 1) == {0: 5}


def test_threads_share_the_partitions_in_order(servers: str, settings: dict[str, Any], topic: str) -> None:
    make_topic(servers, topic, 4)
    for partition in range(4):
        fill(servers, topic, numbers(250), partition)
    handler = RecordingHandler(1000, pause=0.0005)
    with ConsumerThreads(settings, [topic], handler, threads=4, commit_interval=0.1) as threads:
        threads.start()
        assert handler.done.wait(60)
    assert all(offsets == sorted(offsets) for offsets in handler.offsets_by("topic").values())
    assert {(r.partition, r.offset) for r in handler.records} == {(p, o) for p in range(4) for o in range(250)}
    assert committed(settings, topic, 4) == {p: 250 for p in range(4)}


def test_pools_that_join_and_leave_handle_every_record_once(
    servers: str, settings: dict[str, Any], topic: str, protocol: str
) -> None:
    make_topic(servers, topic, 4)
    fill_with_keys(servers, topic, 4000, 100)
    handler = RecordingHandler(4000, pause=0.002)
    for name in ("heartbeat.interval.ms", "session.timeout.ms"):
        if protocol == "consumer":
            del settings[name]
    settings |= {"group.protocol": protocol, "max.poll.records": 50}
    if protocol == "classic":
        settings["partition.assignment.strategy"] = "cooperative-sticky"

    def start_pool() -> HandlerPool:
        return HandlerPool(settings, [topic], handler, workers=4, max_waiting=100, commit_interval=0.1).start()

    first = start_pool()
    while len(handler.records) < 300:
        time.sleep(0.01)
    second, third = start_pool(), start_pool()
    while len(handler.records) < 1500:
        time.sleep(0.01)
    second.stop()
    assert handler.done.wait(60)
    first.stop()
    third.stop()
    assert len(handler.records) == 4000
    assert {r.value for r in handler.records} == set(numbers(4000))
    assert all(offsets == sorted(offsets) for offsets in handler.offsets_by("key").values())
    assert committed(settings, topic, 4) == ends(settings, topic, 4)


CRASHING_PROGRAM = """
import os, sys, threading, time
from kavka.parallel import HandlerPool
servers, group, topic, crash_after = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
count = 0
lock = threading.Lock()
def handle(record):
    global count
    time.sleep(0.001 * (record.offset % 7))
    with lock:
        os.write(1, record.value + b"\\n")
        count += 1
        if count == crash_after:
            os.kill(os.getpid(), 9)
pool = HandlerPool({"bootstrap.servers": servers, "group.id": group, "auto.offset.reset": "earliest",
    "session.timeout.ms": 1000, "heartbeat.interval.ms": 100}, [topic], handle, workers=16, commit_interval=0.05)
pool.start()
pool.join(60 if crash_after else 8)
pool.stop()
"""


def test_a_crash_loses_no_record(servers: str, settings: dict[str, Any], topic: str) -> None:
    make_topic(servers, topic, 2)
    fill_with_keys(servers, topic, 2000, 50)
    handled: list[bytes] = []
    for crash_after in (400, 700, 0):
        command = [sys.executable, "-c", CRASHING_PROGRAM, servers, settings["group.id"], topic, str(crash_after)]
        result = subprocess.run(command, stdout=subprocess.PIPE, timeout=60, check=False)
        assert (result.returncode == -9) == bool(crash_after)
        handled += result.stdout.split()
    assert set(handled) == set(numbers(2000))
    assert len(handled) < 4000


@pytest.mark.parametrize("kind", [HandlerPool, ConsumerThreads])
def test_invalid_settings_raise_an_error(kind: Any) -> None:
    with pytest.raises(ConfigError, match=r"enable\.auto\.commit"):
        kind({"bootstrap.servers": "x:1", "group.id": "g", "enable.auto.commit": True}, ["t"], print)
    with pytest.raises(ConfigError, match=r"group\.id"):
        kind({"bootstrap.servers": "x:1"}, ["t"], print)
    with pytest.raises(ValueError):
        kind({"bootstrap.servers": "x:1", "group.id": "g"}, ["t"], print, retries=-1)


def test_a_pool_that_was_never_started_can_be_stopped(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="order"):
        HandlerPool(settings, ["t"], print, order="random")
    assert HandlerPool(settings, ["t"], print).stop()
