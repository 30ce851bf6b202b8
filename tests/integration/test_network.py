"""A broker's connections: limits, idle and slow connections, metrics, and the stop of the
broker."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from tests.support import wire
from tests.support.kavka_process import KavkaProcess
from tests.support.processes import free_port, wait_until
from tests.support.wire import API_VERSIONS, FETCH, PRODUCE, Wire

pytestmark = pytest.mark.timeout(120)

TOPIC = "t"


def produce(connection: Wire, value: bytes, topic: str = TOPIC, acks: int = 1) -> tuple[int, int]:
    body = wire.produce_request(topic, 0, wire.batch([value]), version=7, acks=acks)
    return wire.produce_error(connection.call(PRODUCE, 7, body), 7)


def send_long_poll(connection: Wire, offset: int, max_wait_ms: int, topic: str = TOPIC) -> None:
    body = wire.fetch_request(topic, 0, offset, version=4, max_wait_ms=max_wait_ms)
    connection.send_request(FETCH, 4, body)


def is_served(connection: Wire, timeout: float = 0.5) -> bool:
    """Whether the broker responds on this connection within the timeout."""
    connection.socket.settimeout(timeout)
    try:
        connection.call(API_VERSIONS, 0, b"")
    except (TimeoutError, OSError):
        return False
    return True


def connect_from(address: str, broker: KavkaProcess) -> Wire:
    connection = Wire.__new__(Wire)
    connection.socket = socket.create_connection(broker.address, 5, source_address=(address, 0))
    connection._correlation = 0
    return connection


@contextlib.contextmanager
def closing(*connections: Wire) -> Iterator[None]:
    try:
        yield
    finally:
        for connection in connections:
            connection.close()


# --- limits


def test_a_connection_beyond_max_connections_waits_until_another_closes(tmp_path: Path) -> None:
    with KavkaProcess(tmp_path, overrides={"max.connections": 2}) as broker:
        first, second, third = (Wire(broker.address) for _ in range(3))
        with closing(first, second, third):
            assert is_served(first) and is_served(second)
            assert not is_served(third, 0.3)
            first.close()
            assert third.receive()


def test_connections_are_limited_per_address(tmp_path: Path) -> None:
    limits = {"max.connections.per.ip": 2, "max.connections.per.ip.overrides": "127.0.0.2:1,127.0.0.3:3"}
    with KavkaProcess(tmp_path, overrides=limits) as broker:
        for address, limit in (("127.0.0.1", 2), ("127.0.0.2", 1), ("127.0.0.3", 3)):
            connections = [connect_from(address, broker) for _ in range(limit)]
            with closing(*connections):
                assert all(is_served(connection) for connection in connections)
                extra = connect_from(address, broker)
                with closing(extra):
                    assert extra.closed_within(5)
                    connections[0].close()
                wait_until(lambda a=address: is_served_from(a, broker), timeout=5, what="another connection")


def is_served_from(address: str, broker: KavkaProcess) -> bool:
    connection = connect_from(address, broker)
    with closing(connection):
        return is_served(connection)


def test_the_limits_change_while_the_broker_runs_and_survive_a_restart(tmp_path: Path) -> None:
    with KavkaProcess(tmp_path) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        change = ConfigEntry(
            "max.connections.per.ip.overrides", "127.0.0.2:1", incremental_operation=AlterConfigOpType.SET
        )
        resource = ConfigResource(ResourceType.BROKER, "0", incremental_configs=[change])
        for future in admin.incremental_alter_configs([resource]).values():
            future.result(10)
        for _ in range(2):
            first, second = connect_from("127.0.0.2", broker), connect_from("127.0.0.2", broker)
            with closing(first, second):
                assert is_served(first)
                assert second.closed_within(5)
            broker.stop()
            broker.start()


# --- idle connections


def test_an_idle_connection_is_closed_unless_a_fetch_is_pending(tmp_path: Path) -> None:
    with KavkaProcess(tmp_path, overrides={"connections.max.idle.ms": 1000}) as broker:
        assert wire.create_topic(broker.address, TOPIC) == 0
        idle, waiting = Wire(broker.address), Wire(broker.address)
        with closing(idle, waiting):
            send_long_poll(waiting, 0, 2500)
            start_time = time.monotonic()
            assert is_served(idle)
            assert idle.closed_within(30)
            assert time.monotonic() - start_time > 0.9
            assert wire.fetched(waiting.receive(), 4)[:2] == (0, 0)
            assert time.monotonic() - start_time > 2.3
            assert is_served(waiting)


def test_a_thousand_idle_connections_do_not_slow_the_broker(tmp_path: Path) -> None:
    with KavkaProcess(tmp_path) as broker:
        assert wire.create_topic(broker.address, TOPIC) == 0
        initial_rss = broker.process.rss_bytes()
        idle = [Wire(broker.address) for _ in range(1000)]
        with closing(*idle):
            assert is_served(idle[0]) and is_served(idle[-1], 5)
            with Wire(broker.address) as busy:
                times = []
                for number in range(300):
                    start_time = time.monotonic()
                    assert produce(busy, b"x") == (0, number)
                    times.append(time.monotonic() - start_time)
            assert sorted(times)[len(times) // 2] < 0.02
            assert broker.process.rss_bytes() - initial_rss < 30_000_000
        assert is_served(Wire(broker.address), 5)


# --- slow clients


def test_a_slow_reader_of_a_large_fetch_delays_no_other_client(tmp_path: Path) -> None:
    with KavkaProcess(tmp_path) as broker:
        assert wire.create_topic(broker.address, TOPIC) == 0
        assert wire.create_topic(broker.address, "other") == 0
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 5})
        for _ in range(30_000):
            producer.produce(TOPIC, b"x" * 1000, partition=0)
            producer.poll(0)
        assert producer.flush(30) == 0

        slow = Wire(broker.address, 30)
        with closing(slow), Wire(broker.address) as busy:
            slow.send_request(FETCH, 4, wire.fetch_request(TOPIC, 0, 0, version=4, max_bytes=30_000_000))
            time.sleep(0.3)
            slowest = 0.0
            for number in range(200):
                start_time = time.monotonic()
                assert produce(busy, b"y", "other") == (0, number)
                slowest = max(slowest, time.monotonic() - start_time)
            assert slowest < 0.5
            code, high_watermark, records = wire.fetched(slow.receive(), 4)
            assert (code, high_watermark) == (0, 30_000)
            assert len(records) > 29_000_000


def test_requests_without_reading_the_responses_take_bounded_memory(tmp_path: Path) -> None:
    with KavkaProcess(tmp_path) as broker:
        initial_rss = broker.process.rss_bytes()
        flood = Wire(broker.address, 30)
        with closing(flood):
            flood.socket.setblocking(False)
            requests = b"".join(wire.request(API_VERSIONS, 0, b"", n) for n in range(1000))
            sent = 0
            deadline = time.monotonic() + 3
            while time.monotonic() < deadline and sent < 100_000_000:
                try:
                    sent += flood.socket.send(requests[sent % len(requests) :])
                except BlockingIOError:
                    time.sleep(0.01)
            assert sent < 100_000_000
            assert broker.process.rss_bytes() - initial_rss < 60_000_000
            with Wire(broker.address) as other:
                assert is_served(other, 5)


# --- metrics


class Metrics:
    """The metrics of the broker. `value(name, label=…)` returns the value of a metric."""

    def __init__(self, port: int) -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
            self.text = response.read().decode()
        self._values: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for name, labels, number in re.findall(r"^(\w+)(?:\{(.*)\})? (\S+)$", self.text, re.MULTILINE):
            pairs = frozenset(re.findall(r'(\w+)="([^"]*)"', labels))
            self._values[name, pairs] = float(number)

    def value(self, name: str, **labels: str) -> float:
        return self._values[name, frozenset(labels.items())]


def test_metrics_count_records_requests_connections_and_partitions(tmp_path: Path) -> None:
    port = free_port()
    with KavkaProcess(tmp_path, overrides={"metrics.listener": f"http://127.0.0.1:{port}"}) as broker:
        assert wire.create_topic(broker.address, TOPIC) == 0
        assert wire.create_topic(broker.address, "other", partitions=3) == 0
        batch = wire.batch([b"a", b"b", b"c"])
        with Wire(broker.address) as connection:
            for _ in range(4):
                body = wire.produce_request(TOPIC, 0, batch, version=7)
                assert wire.produce_error(connection.call(PRODUCE, 7, body), 7)[0] == 0
            assert wire.produce_error(
                connection.call(PRODUCE, 7, wire.produce_request(TOPIC, 0, batch[:-1] + b"!", version=7)), 7
            )[0]
            for offset in (0, 6):
                body = wire.fetch_request(TOPIC, 0, offset, version=4)
                assert wire.fetched(connection.call(FETCH, 4, body), 4)[0] == 0
            # The time of a pending request includes its wait.
            body = wire.fetch_request(TOPIC, 0, 12, version=4, max_wait_ms=300)
            assert wire.fetched(connection.call(FETCH, 4, body), 4)[2] == b""

            metrics = Metrics(port)
            assert metrics.value("kavka_topic_messages_in_total", topic=TOPIC) == 12
            assert metrics.value("kavka_topic_bytes_in_total", topic=TOPIC) == 4 * len(batch)
            assert metrics.value("kavka_topic_messages_out_total", topic=TOPIC) == 12 + 6
            assert metrics.value("kavka_topic_bytes_out_total", topic=TOPIC) == (4 + 2) * len(batch)
            assert metrics.value("kavka_topic_failed_produce_requests_total", topic=TOPIC) == 1
            assert metrics.value("kavka_request_seconds_count", api="Produce") == 5
            assert metrics.value("kavka_request_seconds_count", api="Fetch") == 3
            assert 0.3 <= metrics.value("kavka_request_seconds_sum", api="Fetch") < 20
            assert 0 < metrics.value("kavka_request_seconds_sum", api="Produce") < 10
            # The pending fetch is in a higher bucket.
            assert metrics.value("kavka_request_seconds_bucket", api="Fetch", le="0.25") <= 2
            assert metrics.value("kavka_request_seconds_bucket", api="Fetch", le="+Inf") == 3
            assert metrics.value("kavka_event_loop_lag_seconds_count") > 0
            assert metrics.value("kavka_connections") == 1
            assert metrics.value("kavka_partitions") == 4
            assert metrics.value("kavka_offline_partitions") == 0
            assert metrics.value("kavka_offline_log_directories") == 0
            assert metrics.value("kavka_controller_active") == 1
            assert metrics.value("kavka_controller_partitions") == 4
            assert metrics.value("kavka_controller_offline_partitions") == 0
            assert metrics.value("kavka_controller_preferred_replica_imbalance") == 0
            assert metrics.value("kavka_log_size_bytes", topic=TOPIC, partition="0") == 4 * len(batch)
            assert metrics.value("kavka_log_size_bytes", topic="other", partition="2") == 0
            assert metrics.value("kavka_log_end_offset", topic=TOPIC, partition="0") == 12
        wait_until(lambda: Metrics(port).value("kavka_connections") == 0, timeout=5, what="no connection")
        assert wire.delete_topic(broker.address, TOPIC) == 0
        wait_until(
            lambda: f'topic="{TOPIC}"' not in Metrics(port).text, timeout=5, what="no metrics of the deleted topic"
        )
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/elsewhere", timeout=5)
        assert broker.stop() == 0


# --- the stop of the broker


def test_a_stop_does_not_wait_for_pending_fetches(tmp_path: Path) -> None:
    with KavkaProcess(tmp_path, overrides={"group.initial.rebalance.delay.ms": 60_000}) as broker:
        assert wire.create_topic(broker.address, TOPIC) == 0
        waiting = [Wire(broker.address) for _ in range(20)]
        with closing(*waiting):
            for connection in waiting:
                send_long_poll(connection, 0, 60_000)
            time.sleep(0.2)
            start_time = time.monotonic()
            assert broker.stop() == 0
            assert time.monotonic() - start_time < 20
            assert all(connection.closed_within(5) for connection in waiting)
        assert (broker.log_dirs[0] / ".kafka_cleanshutdown").exists()
        assert "Traceback" not in broker.process.log_tail()


def test_a_stop_loses_no_acknowledged_record_of_active_producers(tmp_path: Path) -> None:
    with KavkaProcess(tmp_path) as broker:
        assert wire.create_topic(broker.address, TOPIC) == 0
        acknowledged = 0
        stopped = threading.Event()

        def write() -> None:
            nonlocal acknowledged
            with contextlib.suppress(OSError), Wire(broker.address, 30) as connection:
                while not stopped.is_set():
                    assert produce(connection, b"x") == (0, acknowledged)
                    acknowledged += 1

        writer = threading.Thread(target=write)
        writer.start()
        time.sleep(0.5)
        assert broker.stop() == 0
        stopped.set()
        writer.join()
        assert acknowledged > 10
        broker.start()
        with Wire(broker.address) as connection:
            code, end = wire.end_offset(connection, TOPIC, 0)
        assert code == 0
        # The last record may have been written without a response.
        assert end in (acknowledged, acknowledged + 1)
        assert "Traceback" not in broker.process.log_tail()
