"""A broker's connections from outside: how many, how long, how slow, how they are counted, and how
they end."""

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


def ask_to_wait(connection: Wire, offset: int, max_wait_ms: int, topic: str = TOPIC) -> None:
    body = wire.fetch_request(topic, 0, offset, version=4, max_wait_ms=max_wait_ms)
    connection.send_request(FETCH, 4, body)


def served(connection: Wire, timeout: float = 0.5) -> bool:
    """Whether the broker responds on this connection in that time."""
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


# --- how many


def test_with_max_connections_open_a_new_one_waits_until_one_goes(tmp_path: Path) -> None:
    with KavkaProcess(tmp_path, overrides={"max.connections": 2}) as broker:
        first, second, three = (Wire(broker.address) for _ in range(3))
        with closing(first, second, three):
            assert served(first) and served(second)
            assert not served(three, 0.3)
            first.close()
            assert three.receive()


def test_connections_are_limited_per_address(
    tmp_path: Path,
) -> None:
    limits = {"max.connections.per.ip": 2, "max.connections.per.ip.overrides": "127.0.0.2:1,127.0.0.3:3"}
    with KavkaProcess(tmp_path, overrides=limits) as broker:
        for address, limit in (("127.0.0.1", 2), ("127.0.0.2", 1), ("127.0.0.3", 3)):
            connections = [connect_from(address, broker) for _ in range(limit)]
            with closing(*connections):
                assert all(served(connection) for connection in connections)
                one_more = connect_from(address, broker)
                with closing(one_more):
                    assert one_more.closed_within(5)
                    connections[0].close()
                wait_until(lambda a=address: _is_served_from(a, broker), timeout=5, what="room for another")


def _is_served_from(address: str, broker: KavkaProcess) -> bool:
    connection = connect_from(address, broker)
    with closing(connection):
        return served(connection)


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
                assert served(first)
                assert second.closed_within(5)
            broker.stop()
            broker.start()


# --- how long


def test_a_silent_connection_is_closed_after_its_time_but_not_one_whose_fetch_waits(tmp_path: Path) -> None:
    with KavkaProcess(tmp_path, overrides={"connections.max.idle.ms": 1000}) as broker:
        assert wire.create_topic(broker.address, TOPIC) == 0
        silent, waiting = Wire(broker.address), Wire(broker.address)
        with closing(silent, waiting):
            ask_to_wait(waiting, 0, 2500)
            began = time.monotonic()
            assert served(silent)
            assert silent.closed_within(30)
            assert time.monotonic() - began > 0.9
            assert wire.fetched(waiting.receive(), 4)[:2] == (0, 0)
            assert time.monotonic() - began > 2.3
            assert served(waiting)


def test_a_thousand_idle_connections_are_in_nobodys_way(tmp_path: Path) -> None:
    with KavkaProcess(tmp_path) as broker:
        assert wire.create_topic(broker.address, TOPIC) == 0
        before = broker.process.rss_bytes()
        idle = [Wire(broker.address) for _ in range(1000)]
        with closing(*idle):
            assert served(idle[0]) and served(idle[-1], 5)
            with Wire(broker.address) as busy:
                times = []
                for number in range(300):
                    began = time.monotonic()
                    assert produce(busy, b"x") == (0, number)
                    times.append(time.monotonic() - began)
            assert sorted(times)[len(times) // 2] < 0.02
            assert broker.process.rss_bytes() - before < 30_000_000
        assert served(Wire(broker.address), 5)


# --- how slow


def test_a_slow_reader_of_a_large_fetch_delays_no_other_client_and_gets_it_all(tmp_path: Path) -> None:
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
                began = time.monotonic()
                assert produce(busy, b"y", "other") == (0, number)
                slowest = max(slowest, time.monotonic() - began)
            assert slowest < 0.5
            code, high_watermark, records = wire.fetched(slow.receive(), 4)
            assert (code, high_watermark) == (0, 30_000)
            assert len(records) > 29_000_000


def test_requests_without_reading_the_responses_take_bounded_memory(tmp_path: Path) -> None:
    with KavkaProcess(tmp_path) as broker:
        before = broker.process.rss_bytes()
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
            assert broker.process.rss_bytes() - before < 60_000_000
            with Wire(broker.address) as other:
                assert served(other, 5)


# --- how they are counted


class Scraped:
    """What /metrics says: `value(name, label=…)`."""

    def __init__(self, port: int) -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            self.text = answer.read().decode()
        self._values: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for name, labels, number in re.findall(r"^(\w+)(?:\{(.*)\})? (\S+)$", self.text, re.MULTILINE):
            pairs = frozenset(re.findall(r'(\w+)="([^"]*)"', labels))
            self._values[name, pairs] = float(number)

    def value(self, name: str, **labels: str) -> float:
        return self._values[name, frozenset(labels.items())]


def test_the_metrics_say_what_went_in_and_out_what_was_asked_and_what_there_is(tmp_path: Path) -> None:
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
            # A request that waits: its time ends with its response.
            body = wire.fetch_request(TOPIC, 0, 12, version=4, max_wait_ms=300)
            assert wire.fetched(connection.call(FETCH, 4, body), 4)[2] == b""

            seen = Scraped(port)
            assert seen.value("kavka_topic_messages_in_total", topic=TOPIC) == 12
            assert seen.value("kavka_topic_bytes_in_total", topic=TOPIC) == 4 * len(batch)
            assert seen.value("kavka_topic_messages_out_total", topic=TOPIC) == 12 + 6
            assert seen.value("kavka_topic_bytes_out_total", topic=TOPIC) == (4 + 2) * len(batch)
            assert seen.value("kavka_topic_failed_produce_requests_total", topic=TOPIC) == 1
            assert seen.value("kavka_requests_total", api="Produce") == 5
            assert seen.value("kavka_requests_total", api="Fetch") == 3
            assert 0.3 <= seen.value("kavka_request_seconds_total", api="Fetch") < 20
            assert 0 < seen.value("kavka_request_seconds_total", api="Produce") < 10
            assert seen.value("kavka_connections") == 1
            assert seen.value("kavka_partitions") == 4
            assert seen.value("kavka_offline_partitions") == 0
            assert seen.value("kavka_offline_log_directories") == 0
            assert seen.value("kavka_controller_active") == 1
            assert seen.value("kavka_controller_partitions") == 4
            assert seen.value("kavka_controller_offline_partitions") == 0
            assert seen.value("kavka_controller_preferred_replica_imbalance") == 0
            assert seen.value("kavka_log_size_bytes", topic=TOPIC, partition="0") == 4 * len(batch)
            assert seen.value("kavka_log_size_bytes", topic="other", partition="2") == 0
            assert seen.value("kavka_log_end_offset", topic=TOPIC, partition="0") == 12
        wait_until(lambda: Scraped(port).value("kavka_connections") == 0, timeout=5, what="no connection")
        assert wire.delete_topic(broker.address, TOPIC) == 0
        wait_until(lambda: f'topic="{TOPIC}"' not in Scraped(port).text, timeout=5, what="a topic forgotten")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/elsewhere", timeout=5)
        assert broker.stop() == 0


# --- how they end


def test_a_stop_does_not_wait_for_pending_fetches(tmp_path: Path) -> None:
    with KavkaProcess(tmp_path, overrides={"group.initial.rebalance.delay.ms": 60_000}) as broker:
        assert wire.create_topic(broker.address, TOPIC) == 0
        waiting = [Wire(broker.address) for _ in range(20)]
        with closing(*waiting):
            for connection in waiting:
                ask_to_wait(connection, 0, 60_000)
            time.sleep(0.2)
            began = time.monotonic()
            assert broker.stop() == 0
            assert time.monotonic() - began < 20
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
        # The last one may have been written, and its response lost by the stop.
        assert end in (acknowledged, acknowledged + 1)
        assert "Traceback" not in broker.process.log_tail()
