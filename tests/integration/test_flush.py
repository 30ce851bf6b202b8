"""Flush policies: flush.messages=1, flush.before.visible, and no delay for other requests."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.support import wire
from tests.support.kavka_process import KavkaProcess
from tests.support.material import read_all
from tests.support.strace import tracing
from tests.support.wire import FETCH, PRODUCE, Wire

pytestmark = [pytest.mark.timeout(120), pytest.mark.records]

DELAY_S = 0.4
SLOW = f"delay_enter={int(DELAY_S * 1000)}ms"


def log_file(broker: KavkaProcess, topic: str) -> Path:
    return broker.log_dirs[0] / f"{topic}-0" / f"{0:020}.log"


def timed_produce(broker: KavkaProcess, topic: str, acks: int = 1) -> float:
    body = wire.produce_request(topic, 0, wire.batch([b"x"]), version=7, acks=acks)
    with Wire(broker.address, 30) as connection:
        start = time.monotonic()
        assert wire.produce_error(connection.call(PRODUCE, 7, body), 7)[0] == 0
        return time.monotonic() - start


def timed_fetch(broker: KavkaProcess, topic: str, offset: int) -> tuple[float, int]:
    """Return the duration and the number of bytes of a fetch that waits for records."""
    body = wire.fetch_request(topic, 0, offset, version=4, max_wait_ms=10_000)
    with Wire(broker.address, 30) as connection:
        start = time.monotonic()
        code, _, records = wire.fetched(connection.call(FETCH, 4, body), 4)
        assert code == 0
        return time.monotonic() - start, len(records)


def test_with_flush_messages_1_the_response_follows_the_fsync(tmp_path: Path) -> None:
    with KavkaProcess(tmp_path / "kavka") as broker:
        assert wire.create_topic(broker.address, "safe", flush_messages="1") == 0
        timed_produce(broker, "safe")
        with tracing(broker.pid, ("pwritev", "pwritev2", "fdatasync", "sendto"), tmp_path / "trace") as trace:
            timed_produce(broker, "safe")
        order = []
        for line in trace.read_text().splitlines():
            if "/safe-0/" in line and ".log>" in line:
                # strace splits a call that another thread interrupts. The call ends at the
                # `resumed` line.
                order.append("write" if "pwritev" in line else "flush begins" if "unfinished" in line else "flushed")
            elif "resumed" in line and "fdatasync" in line:
                order.append("flushed")
            elif re.search(r"sendto\(\d+<(socket|TCP)", line):
                order.append("response")
        order = [step for step in order if step != "flush begins"]
        assert order[0] == "write"
        assert order.index("flushed") < order.index("response")


def test_a_response_that_waits_for_an_fsync_delays_no_other_request(tmp_path: Path) -> None:
    with KavkaProcess(tmp_path / "kavka") as broker:
        assert wire.create_topic(broker.address, "safe", flush_messages="1") == 0
        assert wire.create_topic(broker.address, "quick") == 0
        timed_produce(broker, "safe")
        with tracing(broker.pid, ("fdatasync",), tmp_path / "trace", inject=SLOW, paths=[log_file(broker, "safe")]):
            durations: list[float] = []
            writer = threading.Thread(target=lambda: durations.append(timed_produce(broker, "safe")))
            writer.start()
            time.sleep(DELAY_S / 4)
            assert max(timed_produce(broker, "quick") for _ in range(5)) < DELAY_S / 2
            writer.join()
            assert durations[0] >= DELAY_S


def test_requests_that_wait_for_an_fsync_share_one_flush(tmp_path: Path) -> None:
    count = 2000
    with KavkaProcess(tmp_path / "kavka") as broker:
        assert wire.create_topic(broker.address, "safe", flush_messages="1") == 0
        with tracing(broker.pid, ("fdatasync",), tmp_path / "trace", inject="delay_enter=5ms") as trace:
            producer = Producer(
                {
                    "bootstrap.servers": broker.bootstrap_servers,
                    "acks": -1,
                    "linger.ms": 0,
                    "batch.num.messages": 10,
                    "max.in.flight": 20,
                }
            )
            for number in range(count):
                producer.produce("safe", b"%d" % number, partition=0)
            assert producer.flush(60) == 0
        flushes = sum("/safe-0/" in line and ".log>" in line for line in trace.read_text().splitlines())
        assert 0 < flushes < count / 10 / 2
        records = read_all(broker.bootstrap_servers, [("safe", 0)])["safe", 0]
        assert [value for _, _, value, _ in records] == [b"%d" % number for number in range(count)]


def test_flushed_records_are_before_the_recovery_point(tmp_path: Path) -> None:
    with KavkaProcess(tmp_path / "kavka", overrides={"log.flush.offset.checkpoint.interval.ms": 100}) as broker:
        assert wire.create_topic(broker.address, "safe", flush_messages="1") == 0
        assert wire.create_topic(broker.address, "quick") == 0
        for topic in ("safe", "quick"):
            for _ in range(5):
                timed_produce(broker, topic)
        time.sleep(0.5)
        recovery_points = (broker.log_dirs[0] / "recovery-point-offset-checkpoint").read_text()
        broker.kill()
        assert "safe 0 5" in recovery_points.splitlines()
        assert "quick 0 0" in recovery_points.splitlines()


def test_with_flush_before_visible_a_consumer_gets_only_flushed_records(tmp_path: Path) -> None:
    with KavkaProcess(tmp_path / "kavka") as broker:
        assert wire.create_topic(broker.address, "flushed", flush_before_visible="true") == 0
        timed_produce(broker, "flushed")
        assert timed_fetch(broker, "flushed", 0)[1] > 0
        with tracing(broker.pid, ("fdatasync",), tmp_path / "trace", inject=SLOW, paths=[log_file(broker, "flushed")]):
            # acks=1 does not wait for the fsync. acks=all does: acknowledged records are visible.
            assert timed_produce(broker, "flushed") < DELAY_S / 2
            seconds, size = timed_fetch(broker, "flushed", 1)
            assert seconds > DELAY_S / 2 and size > 0
            assert timed_produce(broker, "flushed", acks=-1) >= DELAY_S
