"""Three brokers and a ZooKeeper server: clients continue while brokers stop and restart."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka as ck
import pytest

from kavka import Admin, Consumer, NewTopic, Producer, TopicPartition
from kavka.common.errors import KafkaError
from kavka.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kavka.protocol.messages.find_coordinator import FindCoordinatorRequest
from kavka.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.support.cluster import KavkaCluster
from tests.support.kavka_process import KavkaProcess
from tests.support.messages import Messages
from tests.support.processes import wait_until
from tests.support.zookeeper import ZooKeeper

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.records]

MIN_ISR = {"min.insync.replicas": "2"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KavkaCluster]:
    folder: Path = tmp_path_factory.mktemp("cluster")
    with ZooKeeper(folder / "zookeeper") as zookeeper, KavkaCluster(folder, zookeeper) as brokers:
        yield brokers


@pytest.fixture(autouse=True)
def restart_stopped_brokers(cluster: KavkaCluster) -> Iterator[None]:
    """Start the brokers that the test stopped."""
    yield
    stopped = [broker_id for broker_id in cluster.brokers if broker_id not in cluster.alive()]
    if stopped:
        cluster.start(*stopped)


def create_topic(cluster: KavkaCluster, name: str, partitions: int = 3, replicas: int = 3) -> None:
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name, partitions, replicas, configs=MIN_ISR if replicas > 2 else {})])


def describe(cluster: KavkaCluster, topic: str) -> dict[int, tuple[int, set[int]]]:
    """Return the leader and the ISR of each partition."""
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        description = admin.describe_topics([topic])[topic]
    return {
        p.partition: (-1 if p.leader is None else p.leader.id, {node.id for node in p.isr})
        for p in description.partitions
    }


def wait_for_full_isr(cluster: KavkaCluster, topic: str, replicas: int = 3) -> None:
    def is_full() -> bool:
        try:
            return all(len(isr) == replicas for _, isr in describe(cluster, topic).values())
        except KafkaError:
            return False  # the broker has no metadata of the topic yet

    wait_until(is_full, timeout=60, what=f"all replicas of {topic} in sync", interval=0.2)


def read_all(cluster: KavkaCluster, topic: str, count: int, isolation: str = "read_uncommitted") -> list[bytes]:
    with Consumer(
        bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest", isolation_level=isolation
    ) as consumer:
        consumer.assign([TopicPartition(topic, p) for p in range(3)])
        consumer.seek_to_beginning()
        values: list[bytes] = []
        deadline = time.monotonic() + 60
        while len(values) < count and time.monotonic() < deadline:
            values += [record.value for record in consumer.poll(0.5)]
        values += [record.value for record in consumer.poll(0.5)]
    return values


@pytest.mark.parametrize("action", ["kill", "stop"])
def test_no_record_is_lost_or_duplicated_when_a_leader_stops(cluster: KavkaCluster, action: str) -> None:
    topic = f"leader-{action}"
    create_topic(cluster, topic)
    wait_for_full_isr(cluster, topic)
    with Producer(bootstrap_servers=cluster.bootstrap_servers, acks="all", enable_idempotence=True) as producer:
        futures = [producer.send(topic, value=b"%d" % n, partition=n % 3) for n in range(300)]
        for future in futures:
            future.get(30)
        leader = describe(cluster, topic)[0][0]
        getattr(cluster, action)(leader)
        futures = [producer.send(topic, value=b"%d" % n, partition=n % 3) for n in range(300, 600)]
        for future in futures:
            future.get(60)
    partitions = describe(cluster, topic)
    assert all(new_leader != leader and leader not in isr for new_leader, isr in partitions.values())
    values = read_all(cluster, topic, 600)
    assert sorted(map(int, values)) == list(range(600))
    cluster.start(leader)
    wait_for_full_isr(cluster, topic)


def test_a_clean_stop_moves_leadership_before_the_broker_stops(cluster: KavkaCluster) -> None:
    """Another replica leads the partition and the stopped broker is not in the ISR."""
    topic = "clean-stop"
    create_topic(cluster, topic)
    wait_for_full_isr(cluster, topic)
    leader = describe(cluster, topic)[0][0]
    cluster.stop(leader)
    log_text = cluster.log_file(leader).read_text()
    assert "without a completed controlled shutdown" not in log_text
    new_leader, isr = describe(cluster, topic)[0]
    assert new_leader not in (-1, leader)
    assert leader not in isr


def test_transactions_span_brokers_and_survive_the_loss_of_the_coordinator(cluster: KavkaCluster) -> None:
    topic = "transactions"
    create_topic(cluster, topic)
    wait_for_full_isr(cluster, topic)
    producer = ck.Producer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "transactional.id": "spanning",
            "transaction.timeout.ms": 60000,
        }
    )
    producer.init_transactions(60)
    expected: list[int] = []
    for transaction in range(6):
        producer.begin_transaction()
        for n in range(30):
            producer.produce(topic, b"%d" % (transaction * 30 + n), partition=n % 3)
        producer.flush(60)
        if transaction == 3:
            with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
                description = admin.describe_transactions(["spanning"])["spanning"]
            cluster.kill(description.coordinator.id)
        if transaction % 2:
            producer.commit_transaction(60)
            expected += range(transaction * 30, transaction * 30 + 30)
        else:
            producer.abort_transaction(60)
    values = read_all(cluster, topic, len(expected), "read_committed")
    assert sorted(map(int, values)) == expected


def test_a_group_continues_when_its_coordinator_is_killed(cluster: KavkaCluster) -> None:
    topic = "grouped"
    create_topic(cluster, topic)
    settings = {
        "bootstrap.servers": cluster.bootstrap_servers,
        "group.id": "survivors",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "session.timeout.ms": 10000,
    }
    producer = ck.Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all"})
    for n in range(30):
        producer.produce(topic, b"%d" % n, partition=n % 3)
    assert producer.flush(60) == 0
    consumer = ck.Consumer(settings)
    consumer.subscribe([topic])
    values = [_next(consumer) for _ in range(30)]
    consumer.commit(asynchronous=False)
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        coordinator = admin.describe_consumer_groups(["survivors"])["survivors"].coordinator
    cluster.kill(coordinator.id)
    for n in range(30, 60):
        producer.produce(topic, b"%d" % n, partition=n % 3)
    assert producer.flush(60) == 0
    values += [_next(consumer) for _ in range(30)]
    consumer.commit(asynchronous=False)
    consumer.close()
    assert sorted(values) == list(range(60))
    restarted = ck.Consumer(settings)
    restarted.subscribe([topic])
    deadline = time.monotonic() + 10
    while not restarted.assignment() and time.monotonic() < deadline:
        assert restarted.poll(0.5) is None
    assert restarted.poll(2) is None, "a committed record was read again"
    restarted.close()


def _next(consumer: ck.Consumer) -> int:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            value = message.value()
            assert value is not None
            return int(value)
    raise AssertionError("no record within a minute")


def test_a_groups_settings_apply_on_every_coordinator(cluster: KavkaCluster) -> None:
    topic = "paced"
    create_topic(cluster, topic)

    def find_coordinator() -> int | None:
        with Messages(cluster.addresses[cluster.alive()[0]]) as any_broker:
            result = any_broker.call(FindCoordinatorRequest(coordinator_keys=["paced"]), 4).coordinators[0]
        return None if result.error_code or result.node_id not in cluster.alive() else int(result.node_id)

    def heartbeat_interval_ms() -> int | None:
        broker_id = find_coordinator()
        if broker_id is None:
            return None
        heartbeat = ConsumerGroupHeartbeatRequest(
            group_id="paced",
            member_id="member",
            member_epoch=0,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=[topic],
            topic_partitions=[],
        )
        with Messages(cluster.addresses[broker_id]) as connection:
            response = connection.call(heartbeat, 1)
        return None if response.error_code else int(response.heartbeat_interval_ms)

    wait_until(lambda: heartbeat_interval_ms() == 5000, timeout=60, what="the broker's heartbeat interval")
    first_coordinator = find_coordinator()
    other_broker = next(broker_id for broker_id in cluster.alive() if broker_id != first_coordinator)
    config = AlterableConfig(name="consumer.heartbeat.interval.ms", config_operation=0, value="7000")
    change = AlterConfigsResource(resource_type=32, resource_name="paced", configs=[config])
    with Messages(cluster.addresses[other_broker]) as connection:
        response = connection.call(IncrementalAlterConfigsRequest(resources=[change]), 1)
    assert response.responses[0].error_code == 0
    wait_until(lambda: heartbeat_interval_ms() == 7000, timeout=60, what="the group's heartbeat interval")
    assert first_coordinator is not None
    cluster.stop(first_coordinator)
    intervals: list[int] = []
    wait_until(
        lambda: intervals.extend(filter(None, (heartbeat_interval_ms(),))) or bool(intervals),
        timeout=60, what="another coordinator", interval=0.2,
    )  # fmt: skip
    assert intervals == [7000]


def test_every_broker_auto_creates_topics(cluster: KavkaCluster) -> None:
    for broker_id, broker in cluster.brokers.items():
        with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
            assert producer.send(f"auto-created-{broker_id}", value=b"x").get(30).offset == 0


def test_a_broker_with_the_logs_of_one_cluster_does_not_join_another(cluster: KavkaCluster) -> None:
    cluster.stop(2)
    logs = cluster.log_dirs[2]
    other_cluster = {"zookeeper.connect": f"{cluster.zookeeper.connect}/elsewhere"}
    with KavkaProcess(
        cluster.folder / "other-cluster", overrides=other_cluster, log_dirs=logs, broker_id=2, start=False
    ) as broker:
        broker.launch()
        wait_until(lambda: not broker.process.running(), timeout=60, what="the broker of another cluster exits")
        assert broker.process.returncode == 1
        assert "belongs to cluster.id" in broker.process.log_tail()


def test_the_last_broker_of_a_cluster_stops_without_moving_leadership(tmp_path: Path) -> None:
    with ZooKeeper(tmp_path / "zookeeper") as zookeeper, KavkaCluster(tmp_path, zookeeper, brokers=2) as cluster:
        create_topic(cluster, "two-replicas", 1, 2)
        wait_for_full_isr(cluster, "two-replicas", 2)
        cluster.stop(0)
        cluster.wait_for_metadata()
        cluster.stop(1)
        log_text = cluster.log_file(1).read_text()
        assert "The last broker of the cluster stops" in log_text
        assert "Stopping without a completed controlled shutdown" not in log_text
