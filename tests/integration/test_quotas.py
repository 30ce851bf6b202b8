"""Quotas bound real clients: bytes, requests, changes of partitions, connections. The samples of
the quotas are few, so that the initial burst is short."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from statistics import linear_regression
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from kavka import Admin, KafkaError, NewTopic, QuotaEntity
from kavka.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kavka.testing import Broker
from tests.support import wire
from tests.support.java_client import tool_command
from tests.support.processes import free_port, resident_bytes, wait_until

pytestmark = [pytest.mark.timeout(240)]

RATE = 200_000
TOLERANCE = 0.15
MEASURED_S = 5.0
LEADER_NOT_AVAILABLE, THROTTLING_QUOTA_EXCEEDED = 5, 89
METADATA, INIT_PRODUCER_ID, CREATE_TOPICS = 3, 22, 19


class Quotas:
    """A broker, its admin client and its metrics."""

    def __init__(self, broker: Broker, admin: Admin, metrics_port: int) -> None:
        self.broker = broker
        self.admin = admin
        self.servers = broker.bootstrap_servers
        self._metrics_port = metrics_port

    def set(self, entity: QuotaEntity, **bounds: float | None) -> None:
        self.admin.alter_client_quotas({entity: bounds})

    def metric(self, name: str, **labels: str) -> float:
        text = urllib.request.urlopen(f"http://127.0.0.1:{self._metrics_port}/metrics", timeout=10).read().decode()
        rows = re.findall(rf"^{name}\{{(.*)\}} (\S+)$", text, re.MULTILINE)
        label_texts = [f'{label}="{value}"' for label, value in labels.items()]
        return sum(float(value) for row, value in rows if all(label in row for label in label_texts))

    def rate_of(self, name: str, topic: str, seconds: float = MEASURED_S) -> float:
        """Return the growth per second of a counter of a topic. Throttled clients send and receive
        in bursts, so this is the slope of a line through many points."""
        times, counts = [], []
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            times.append(time.monotonic())
            counts.append(self.metric(name, topic=topic))
            time.sleep(0.02)
        return linear_regression(times, counts).slope

    def assert_rate(self, name: str, topic: str, bound: float) -> None:
        """Measure up to three times: a loaded machine delays clients."""
        rates: list[float] = []
        while not (rates and within_tolerance(rates[-1], bound)):
            assert len(rates) < 3, rates
            rates.append(self.rate_of(name, topic))

    def wire(self) -> wire.Wire:
        return wire.Wire(("127.0.0.1", self.broker.port))


@pytest.fixture(scope="module")
def quotas() -> Iterator[Quotas]:
    port = free_port()
    settings = {
        "quota.window.num": 2,
        "controller.quota.window.num": 2,
        "metrics.listener": f"http://127.0.0.1:{port}",
        "max.auto.create.topics.rate.per.connection": 1,
        "max.producer.id.rate.per.connection": 2,
        "group.initial.rebalance.delay.ms": 0,
    }
    with Broker(settings) as broker, Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        yield Quotas(broker, admin, port)


def within_tolerance(rate: float, bound: float) -> bool:
    return abs(rate - bound) <= TOLERANCE * bound


class Throttles:
    """The highest throttle time in the statistics of confluent-kafka."""

    def __init__(self) -> None:
        self.highest_ms = 0

    def __call__(self, statistics: str) -> None:
        brokers = json.loads(statistics)["brokers"].values()
        self.highest_ms = max(self.highest_ms, *(broker["throttle"]["max"] for broker in brokers))


def confluent(servers: str, throttles: Throttles, **settings: Any) -> dict[str, Any]:
    names = {name.replace("_", "."): value for name, value in settings.items()}
    return {"bootstrap.servers": servers, "statistics.interval.ms": 200, "stats_cb": throttles, **names}


def produce_until(stop: threading.Event, producer: Producer, topic: str) -> None:
    while not stop.is_set():
        if len(producer) < 100:
            producer.produce(topic, b"x" * 1000)
        producer.poll(0 if len(producer) < 100 else 0.01)


def consume_until(stop: threading.Event, consumer: Consumer) -> None:
    while not stop.is_set():
        consumer.consume(100, 0.05)


def test_bounds_of_confluent_hold_and_follow_changes(quotas: Quotas) -> None:
    quotas.admin.create_topics([NewTopic("confluent", 1)])
    quotas.set(QuotaEntity(client_id="slow"), producer_byte_rate=RATE, consumer_byte_rate=RATE)
    throttles = Throttles()
    stop = threading.Event()
    producer = Producer(confluent(quotas.servers, throttles, client_id="slow", linger_ms=5, batch_size=10_000))
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(produce_until, stop, producer, "confluent")
        try:
            time.sleep(2)
            quotas.assert_rate("kavka_topic_bytes_in_total", "confluent", RATE)
            assert throttles.highest_ms > 0
            # An open connection follows a change within a second.
            quotas.set(QuotaEntity(client_id="slow"), producer_byte_rate=2 * RATE)
            time.sleep(1.5)
            quotas.assert_rate("kavka_topic_bytes_in_total", "confluent", 2 * RATE)
            quotas.set(QuotaEntity(client_id="slow"), producer_byte_rate=None)
            wait_until(
                lambda: quotas.rate_of("kavka_topic_bytes_in_total", "confluent", 0.5) > 4 * RATE,
                timeout=10,
                what="unbounded producing",
            )
        finally:
            stop.set()
        running.result()
    producer.flush(10)
    assert quotas.metric("kavka_throttle_seconds_total", quota_type="Produce") > 0

    throttles = Throttles()
    stop.clear()
    sizes = {"fetch_max_bytes": 20_000, "max_partition_fetch_bytes": 20_000, "message_max_bytes": 20_000}
    consumer = Consumer(confluent(quotas.servers, throttles, client_id="slow", group_id="g", **sizes))
    consumer.assign([TopicPartition("confluent", 0, 0)])
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(consume_until, stop, consumer)
        try:
            time.sleep(2)
            quotas.assert_rate("kavka_topic_bytes_out_total", "confluent", RATE)
            assert throttles.highest_ms > 0
        finally:
            stop.set()
        running.result()
    consumer.close()


@pytest.mark.java
@pytest.mark.usefixtures("java_parts")
def test_bounds_of_java_hold(quotas: Quotas) -> None:
    """kafka-producer-perf-test and kafka-consumer-perf-test of 4.3, as user ANONYMOUS."""
    quotas.admin.create_topics([NewTopic("java", 1)])
    quotas.set(QuotaEntity("ANONYMOUS", "java"), producer_byte_rate=RATE, consumer_byte_rate=RATE)
    command = tool_command(
        "4.3.0", "producer-perf", "--topic", "java", "--num-records", "2000", "--record-size", "1000",
        "--throughput", "-1", "--print-metrics",
        "--producer-props", f"bootstrap.servers={quotas.servers}", "client.id=java", "batch.size=10000",
    )  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        wait_until(lambda: quotas.metric("kavka_topic_bytes_in_total", topic="java") > 0, timeout=60, what="bytes")
        time.sleep(2)
        rate = quotas.rate_of("kavka_topic_bytes_in_total", "java")
        output, _ = process.communicate(timeout=60)
    assert within_tolerance(rate, RATE)
    assert float(re.findall(r"produce-throttle-time-max.*: ([0-9.]+)", output)[0]) > 0
    command = tool_command(
        "4.3.0", "consumer-perf", "--bootstrap-server", quotas.servers, "--topic", "java", "--messages", "1900",
        "--print-metrics", "--timeout", "20000", "--fetch-size", "20000", "--command-property", "client.id=java",
    )  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        wait_until(lambda: quotas.metric("kavka_topic_bytes_out_total", topic="java") > 0, timeout=60, what="bytes")
        time.sleep(2)
        rate = quotas.rate_of("kavka_topic_bytes_out_total", "java")
        output, _ = process.communicate(timeout=60)
    assert within_tolerance(rate, RATE)
    assert float(re.findall(r"fetch-throttle-time-max.*: ([0-9.]+)", output)[0]) > 0


def test_requests_beyond_their_share_of_time_are_throttled(quotas: Quotas) -> None:
    quotas.set(QuotaEntity(client_id="busy"), request_percentage=0.1)
    with quotas.wire() as connection:
        started_at = time.monotonic()
        throttled = []
        while time.monotonic() - started_at < 3 and not any(throttled):
            response = connection.call(METADATA, 3, wire.array([]), client_id="busy")
            throttled.append(response.int32())
        # At most one sample.
        assert 0 < throttled[-1] <= 1000
        started_at = time.monotonic()
        connection.call(METADATA, 3, wire.array([]), client_id="busy")
        assert time.monotonic() - started_at > throttled[-1] / 1000 - 0.1


def test_changes_of_partitions_beyond_the_quota_are_refused(quotas: Quotas) -> None:
    entity = QuotaEntity(client_id="mutating")
    quotas.set(entity, controller_mutation_rate=1)
    with Admin(bootstrap_servers=quotas.servers, client_id="mutating", retries=0) as admin:
        # The bucket has two tokens. A request may take more if the bucket is not negative.
        admin.create_topics([NewTopic("mutations-1", 4)])
        with pytest.raises(KafkaError) as raised:
            admin.create_topics([NewTopic("mutations-2", 1)])
        assert raised.value.code == THROTTLING_QUOTA_EXCEEDED
    with Admin(bootstrap_servers=quotas.servers, client_id="mutating") as admin:
        started_at = time.monotonic()
        # The client retries until the bucket is not negative.
        admin.create_topics([NewTopic("mutations-2", 1)])
        assert time.monotonic() - started_at < 10
    assert quotas.metric("kavka_throttled_responses_total", quota_type="ControllerMutation") > 0
    with quotas.wire() as connection:
        request = CreateTopicsRequest(
            topics=[CreatableTopic(name="mutations-3", num_partitions=5, replication_factor=1)], timeout_ms=5000
        )
        body: list[bytes] = []
        request.encode(body, 4)
        response = connection.call(CREATE_TOPICS, 4, b"".join(body), client_id="mutating")
        # A request of an older version is only throttled.
        assert response.int32() > 0
    assert "mutations-3" in quotas.admin.list_topics()


def test_automatic_topics_of_a_connection_are_bounded(quotas: Quotas) -> None:
    names = [f"automatic-{n}" for n in range(30)]
    with quotas.wire() as connection:
        response = connection.call(METADATA, 4, wire.metadata_request(names, allow_auto_create=True))
        throttle_ms = response.int32()
        assert 0 < throttle_ms <= 1000
        assert len([name for name in quotas.admin.list_topics() if name.startswith("automatic-")]) == 10
        started_at = time.monotonic()
        connection.call(METADATA, 4, wire.metadata_request([]))
        assert time.monotonic() - started_at > throttle_ms / 1000 - 0.1


def test_producer_ids_of_a_connection_are_bounded(quotas: Quotas) -> None:
    with quotas.wire() as connection:
        started_at = time.monotonic()
        throttled = []
        for _ in range(24):  # a burst of 20, then 2 per second
            response = connection.call(INIT_PRODUCER_ID, 0, wire.string(None) + (60_000).to_bytes(4, "big"))
            throttled.append(response.int32())
        assert time.monotonic() - started_at > 1
        assert not any(throttled[:20])
        assert all(throttled[21:])


def test_new_connections_of_an_address_are_bounded(quotas: Quotas) -> None:
    quotas.set(QuotaEntity(ip="127.0.0.1"), connection_creation_rate=2)
    try:
        time.sleep(2.5)  # the connections of other tests leave the window
        refused = 0
        for _ in range(8):
            with socket.create_connection(("127.0.0.1", quotas.broker.port)) as sock:
                sock.settimeout(0.2)
                sock.sendall(wire.request(18, 0, b""))
                try:
                    refused += not sock.recv(100)
                except (TimeoutError, ConnectionResetError):
                    refused += 1
        assert refused >= 2
    finally:
        quotas.set(QuotaEntity(ip="127.0.0.1"), connection_creation_rate=None)
    assert quotas.metric("kavka_refused_connections", limit="connection_creation_rate") >= 2
    with quotas.wire() as connection:
        connection.call(METADATA, 3, wire.array([]))


def test_many_client_ids_do_not_grow_the_memory(quotas: Quotas) -> None:
    quotas.set(QuotaEntity(client_id=""), producer_byte_rate=1e9, consumer_byte_rate=1e9, request_percentage=1000)
    try:
        with quotas.wire() as connection:

            def send(count: int, name: str) -> None:
                for n in range(count):
                    connection.call(METADATA, 3, wire.array([]), client_id=f"{name}-{n}")

            send(12_000, "first")
            before = resident_bytes(quotas.broker.pid)
            send(12_000, "second")
            assert resident_bytes(quotas.broker.pid) - before < 4_000_000
    finally:
        quotas.set(QuotaEntity(client_id=""), producer_byte_rate=None, consumer_byte_rate=None, request_percentage=None)
