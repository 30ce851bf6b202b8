"""Replication between three brokers: the acknowledged records of every client are on all
brokers."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, KafkaException
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import Producer as ConfluentProducer
from confluent_kafka import TopicPartition as ConfluentPartition

from kavka import Admin, Consumer, ErrorCode, KafkaError, NewTopic, OffsetSpec, Producer, TopicPartition
from tests.support.cluster import Broker, KavkaCluster
from tests.support.java_client import JavaClient, JavaError
from tests.support.processes import wait_until
from tests.support.reading import read_values
from tests.support.zookeeper import ZooKeeper

pytestmark = [pytest.mark.java, pytest.mark.timeout(300), pytest.mark.records]

BROKERS = (0, 1, 2)
LAG_MS = 2000


class RackedCluster(KavkaCluster):
    """A cluster in which each broker has its own rack."""

    def _make(self, number: int, folder: Path, settings: Mapping[str, object], log_dirs: tuple[Path, ...]) -> Broker:
        return super()._make(number, folder, {**settings, "broker.rack": f"rack-{number}"}, log_dirs)


@pytest.fixture(scope="module")
def cluster(java_parts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KavkaCluster]:
    folder = tmp_path_factory.mktemp("replication")
    zookeeper = ZooKeeper(folder / "zookeeper")
    overrides: dict[str, object] = {
        "replica.lag.time.max.ms": LAG_MS,
        "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    }
    try:
        with RackedCluster(folder, zookeeper, overrides=overrides) as cluster:
            yield cluster
    finally:
        zookeeper.kill()


@pytest.fixture
def admin(cluster: KavkaCluster) -> Iterator[Admin]:
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        yield admin


@pytest.fixture
def topic(request: pytest.FixtureRequest, admin: Admin) -> str:
    """A topic with three partitions, three replicas and min.insync.replicas=2."""
    name = f"t{abs(hash(request.node.name)) % 10**9}"
    admin.create_topics([NewTopic(name, 3, 3, configs={"min.insync.replicas": "2"})])
    wait_until(lambda: isr_of(admin, name) == [list(BROKERS)] * 3, timeout=60, what=f"{name} in sync")
    return name


def isr_of(admin: Admin, topic: str) -> list[list[int]]:
    try:
        return [sorted(node.id for node in p.isr) for p in admin.describe_topics([topic])[topic].partitions]
    except KafkaError:
        return []


def leader_of(admin: Admin, topic: str, partition: int = 0) -> int:
    try:
        leader = admin.describe_topics([topic])[topic].partitions[partition].leader
    except KafkaError:
        return -1
    return -1 if leader is None else leader.id


def contents(cluster: KavkaCluster, number: int, topic: str, partition: int) -> bytes:
    [folder] = cluster.log_dirs[number]
    return b"".join(path.read_bytes() for path in sorted((folder / f"{topic}-{partition}").glob("*.log")))


def wait_until_identical(cluster: KavkaCluster, topic: str) -> None:
    for partition in range(3):
        wait_until(
            lambda p=partition: len({contents(cluster, b, topic, p) for b in BROKERS}) == 1,  # type: ignore[misc]
            timeout=60,
            what=f"the same bytes of {topic}-{partition} everywhere",
        )


# ---- producing with every client

Send = Callable[[KavkaCluster, str, list[tuple[int, str]]], None]


def send_with_kavka(cluster: KavkaCluster, topic: str, values: list[tuple[int, str]]) -> None:
    with Producer(bootstrap_servers=cluster.bootstrap_servers, acks="all") as producer:
        for future in [producer.send(topic, value, partition=partition) for partition, value in values]:
            future.get(60)


def send_with_librdkafka(cluster: KavkaCluster, topic: str, values: list[tuple[int, str]]) -> None:
    producer = ConfluentProducer({"bootstrap.servers": cluster.bootstrap_servers, "enable.idempotence": True})
    failed: list[Any] = []
    for partition, value in values:
        producer.produce(topic, value, partition=partition, on_delivery=lambda error, _: error and failed.append(error))
    assert producer.flush(60) == 0
    assert not failed


def send_with_java(version: str) -> Send:
    def send(cluster: KavkaCluster, topic: str, values: list[tuple[int, str]]) -> None:
        with JavaClient(version, cluster.bootstrap_servers) as java:
            java.produce(topic, [{"partition": partition, "value": value} for partition, value in values], acks="all")

    return send


CLIENTS = {
    "kavka": send_with_kavka,
    "librdkafka": send_with_librdkafka,
    "java-3.9.1": send_with_java("3.9.1"),
    "java-4.3.0": send_with_java("4.3.0"),
}


@pytest.mark.parametrize("client", CLIENTS)
def test_the_logs_of_all_brokers_are_identical_for_every_client(cluster: KavkaCluster, topic: str, client: str) -> None:
    values = [f"{client} {n}" for n in range(300)]
    CLIENTS[client](cluster, topic, [(partition, value) for value in values for partition in range(3)])
    wait_until_identical(cluster, topic)
    for partition in range(3):
        assert read_values(cluster.bootstrap_servers, topic, partition) == [value.encode() for value in values]


@pytest.mark.parametrize("client", ["kavka", "librdkafka"])
def test_no_acknowledged_record_is_lost_or_duplicated_when_the_leader_is_killed(
    cluster: KavkaCluster, admin: Admin, topic: str, client: str
) -> None:
    """The restarted broker truncates records that only it had, and joins the ISR again."""
    acknowledged: list[str] = []
    stop = threading.Event()

    def produce_kavka() -> None:
        with Producer(
            bootstrap_servers=cluster.bootstrap_servers, acks="all", delivery_timeout_ms=120_000, linger_ms=2
        ) as producer:

            def sent(metadata: Any, error: Any, value: str) -> None:
                if error is None:
                    acknowledged.append(value)

            n = 0
            while not stop.is_set():
                value = str(n)
                producer.send(topic, value, partition=0, callback=lambda m, e, v=value: sent(m, e, v))
                n += 1
                time.sleep(0.001)

    def produce_librdkafka() -> None:
        producer = ConfluentProducer({"bootstrap.servers": cluster.bootstrap_servers, "enable.idempotence": True})
        n = 0
        while not stop.is_set():
            value = str(n)
            producer.produce(topic, value, partition=0, on_delivery=lambda e, _, v=value: e or acknowledged.append(v))
            producer.poll(0)
            n += 1
            time.sleep(0.001)
        assert producer.flush(120) == 0

    thread = threading.Thread(target=produce_kavka if client == "kavka" else produce_librdkafka)
    thread.start()
    try:
        wait_until(lambda: len(acknowledged) > 200, timeout=60, what="acknowledged records")
        leader = leader_of(admin, topic)
        cluster.kill(leader)
        count = len(acknowledged)
        wait_until(lambda: leader_of(admin, topic) not in (leader, -1), timeout=60, what="another leader")
        wait_until(lambda: len(acknowledged) > count + 200, timeout=60, what="acknowledged by the new leader")
        cluster.start(leader)
        wait_until(lambda: isr_of(admin, topic) == [list(BROKERS)] * 3, timeout=60, what="back in the ISR")
    finally:
        stop.set()
        thread.join(120)
    values = [int(value or b"") for value in read_values(cluster.bootstrap_servers, topic, 0)]
    assert len(values) == len(set(values))
    assert values == sorted(values)
    assert not set(map(int, acknowledged)) - set(values)
    wait_until_identical(cluster, topic)


def test_a_paused_follower_leaves_the_isr_and_rejoins(cluster: KavkaCluster, admin: Admin, topic: str) -> None:
    leader = leader_of(admin, topic)
    others = [number for number in BROKERS if number != leader]
    controller = admin.describe_cluster().controller
    assert controller is not None
    # The controller continues, so that only the leader can detect the paused follower.
    paused = next(number for number in others if number != controller.id)
    cluster.pause(paused)
    try:
        wait_until(lambda: paused not in (isr_of(admin, topic) or [[paused]])[0], timeout=60, what="out of the ISR")
        send_with_kavka(cluster, topic, [(0, "two replicas")])
    finally:
        cluster.resume(paused)
    wait_until(lambda: isr_of(admin, topic) == [list(BROKERS)] * 3, timeout=60, what="back in the ISR")
    wait_until_identical(cluster, topic)


@pytest.mark.parametrize("client", ["kavka", "librdkafka", "java-4.3.0"])
def test_too_few_in_sync_replicas_fail_acks_all(cluster: KavkaCluster, admin: Admin, client: str) -> None:
    name = f"few{abs(hash(client)) % 10**9}"
    admin.create_topics([NewTopic(name, replica_assignments={0: [0]}, configs={"min.insync.replicas": "1"})])
    admin.create_topics([NewTopic(f"{name}-2", replica_assignments={0: [0, 1]}, configs={"min.insync.replicas": "2"})])
    wait_until(lambda: isr_of(admin, f"{name}-2") == [[0, 1]], timeout=60, what="in sync")
    cluster.stop(1)
    try:
        wait_until(lambda: isr_of(admin, f"{name}-2") == [[0]], timeout=60, what="alone")
        send_with_kavka(cluster, name, [(0, "one replica")])
        with pytest.raises((KafkaError, KafkaException, JavaError, AssertionError)) as raised:
            if client == "kavka":
                with Producer(
                    bootstrap_servers=cluster.bootstrap_servers, acks="all", retries=0, enable_idempotence=False
                ) as producer:
                    producer.send(f"{name}-2", "x").get(30)
            elif client == "librdkafka":
                outcomes: list[Any] = []
                confluent = ConfluentProducer(
                    {"bootstrap.servers": cluster.bootstrap_servers, "acks": "all", "retries": 0}
                )
                confluent.produce(f"{name}-2", "x", on_delivery=lambda error, _: outcomes.append(error))
                confluent.flush(30)
                raise KafkaException(outcomes[0])
            else:
                with JavaClient("4.3.0", cluster.bootstrap_servers) as java:
                    java.produce(
                        f"{name}-2", [{"partition": 0, "value": "x"}], acks="all", retries="0",
                        enable_idempotence="false",
                    )  # fmt: skip
        if client == "kavka":
            assert raised.value.code == ErrorCode.NOT_ENOUGH_REPLICAS  # type: ignore[union-attr]
        elif client == "librdkafka":
            assert raised.value.args[0].code() == int(ErrorCode.NOT_ENOUGH_REPLICAS)
        else:
            assert raised.value.name == "NotEnoughReplicasException"  # type: ignore[union-attr]
    finally:
        cluster.start(1)


def test_consumers_read_from_the_replica_in_their_rack(cluster: KavkaCluster, admin: Admin, topic: str) -> None:
    values = [f"value {n}" for n in range(100)]
    send_with_kavka(cluster, topic, [(0, value) for value in values])
    leader = leader_of(admin, topic)
    near = next(number for number in BROKERS if number != leader)
    wait_until_identical(cluster, topic)

    fetched_from: list[int] = []

    def statistics(text: str) -> None:
        partition = json.loads(text)["topics"].get(topic, {}).get("partitions", {}).get("0")
        if partition is not None:
            fetched_from.append(int(partition["broker"]))

    consumer = ConfluentConsumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "near",
            "client.rack": f"rack-{near}",
            "statistics.interval.ms": 100,
            "stats_cb": statistics,
        }
    )
    try:
        consumer.assign([ConfluentPartition(topic, 0, OFFSET_BEGINNING)])
        consumed: list[bytes] = []
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and (len(consumed) < 100 or near not in fetched_from):
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                consumed.append(message.value() or b"")
    finally:
        consumer.close()
    assert consumed == [value.encode() for value in values]
    assert near in fetched_from

    with Consumer(
        bootstrap_servers=cluster.bootstrap_servers, client_rack=f"rack-{near}", auto_offset_reset="earliest"
    ) as kavka_consumer:
        kavka_consumer.assign([TopicPartition(topic, 0)])
        consumed_values: list[Any] = []
        deadline = time.monotonic() + 60
        while len(consumed_values) < 100 and time.monotonic() < deadline:
            consumed_values += [record.value for record in kavka_consumer.poll(1.0)]
    assert consumed_values == [value.encode() for value in values]


def test_delete_records_completes_when_all_replicas_have_deleted_them(
    cluster: KavkaCluster, admin: Admin, topic: str
) -> None:
    send_with_kavka(cluster, topic, [(0, str(n)) for n in range(50)])
    tp = TopicPartition(topic, 0)
    deleted = admin.delete_records({tp: 20})
    assert getattr(deleted[tp], "low_watermark", deleted[tp]) == 20
    assert admin.list_offsets({tp: OffsetSpec.earliest()})[tp].offset == 20
    leader = leader_of(admin, topic)
    cluster.stop(leader)
    try:
        wait_until(lambda: leader_of(admin, topic) not in (-1, leader), timeout=60, what="another leader")
        wait_until(
            lambda: admin.list_offsets({tp: OffsetSpec.earliest()})[tp].offset == 20,
            timeout=60,
            what="the same start offset at the new leader",
        )
    finally:
        cluster.start(leader)
