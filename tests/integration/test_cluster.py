"""Three brokers on a real ZooKeeper, used through the clients that people have, while brokers come
and go."""

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
def all_alive(cluster: KavkaCluster) -> Iterator[None]:
    yield
    stopped = [number for number in cluster.brokers if number not in cluster.alive()]
    if stopped:
        cluster.start(*stopped)


def make_topic(cluster: KavkaCluster, name: str, partitions: int = 3, replicas: int = 3) -> None:
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name, partitions, replicas, configs=MIN_ISR if replicas > 2 else {})])


def describe(cluster: KavkaCluster, topic: str) -> dict[int, tuple[int, set[int]]]:
    """Leader and ISR of each partition."""
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        topics = admin.describe_topics([topic])[topic]
    return {p.partition: (-1 if p.leader is None else p.leader.id, {n.id for n in p.isr}) for p in topics.partitions}


def wait_for_full_isr(cluster: KavkaCluster, topic: str, replicas: int = 3) -> None:
    def is_full() -> bool:
        try:
            return all(len(isr) == replicas for _, isr in describe(cluster, topic).values())
        except KafkaError:
            return False  # the broker that was asked has no metadata of the topic yet

    wait_until(
        is_full,
        timeout=60,
        what=f"all replicas of {topic} in sync",
        interval=0.2,
    )


def read_all(cluster: KavkaCluster, topic: str, count: int, isolation: str = "read_uncommitted") -> list[bytes]:
    with Consumer(
        bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest", isolation_level=isolation
    ) as consumer:
        consumer.assign([TopicPartition(topic, p) for p in range(3)])
        consumer.seek_to_beginning()
        values: list[bytes] = []
        end = time.monotonic() + 60
        while len(values) < count and time.monotonic() < end:
            values += [record.value for record in consumer.poll(0.5)]
        values += [record.value for record in consumer.poll(0.5)]
    return values


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_killing_a_leader_loses_and_duplicates_no_record(cluster: KavkaCluster, how: str) -> None:
    topic = f"leader-{how}"
    make_topic(cluster, topic)
    wait_for_full_isr(cluster, topic)
    with Producer(bootstrap_servers=cluster.bootstrap_servers, acks="all", enable_idempotence=True) as producer:
        sent = [producer.send(topic, value=b"%d" % n, partition=n % 3) for n in range(300)]
        for future in sent:
            future.get(30)
        leader = describe(cluster, topic)[0][0]
        getattr(cluster, how)(leader)
        more = [producer.send(topic, value=b"%d" % n, partition=n % 3) for n in range(300, 600)]
        for future in more:
            future.get(60)
    now = describe(cluster, topic)
    assert all(new_leader != leader and leader not in isr for new_leader, isr in now.values())
    values = read_all(cluster, topic, 600)
    assert sorted(map(int, values)) == list(range(600))
    cluster.start(leader)
    wait_for_full_isr(cluster, topic)


def test_a_clean_stop_hands_over_before_anybody_notices(cluster: KavkaCluster) -> None:
    """Every record is acknowledged while the leader stops, without a single error to wait for."""
    topic = "handed-over"
    make_topic(cluster, topic)
    wait_for_full_isr(cluster, topic)
    leader = describe(cluster, topic)[0][0]
    cluster.stop(leader)
    tail = cluster.log_file(leader).read_text()
    assert "take over" not in tail, "the controller was asked in vain"
    new_leader, isr = describe(cluster, topic)[0]
    assert new_leader not in (-1, leader)
    assert leader not in isr


def test_transactions_span_brokers_and_survive_the_loss_of_the_coordinator(cluster: KavkaCluster) -> None:
    topic = "transactions"
    make_topic(cluster, topic)
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
    for number in range(6):
        producer.begin_transaction()
        for n in range(30):
            producer.produce(topic, b"%d" % (number * 30 + n), partition=n % 3)
        producer.flush(60)
        if number == 3:
            with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
                description = admin.describe_transactions(["spanning"])["spanning"]
            cluster.kill(description.coordinator.id)
        if number % 2:
            producer.commit_transaction(60)
            expected += range(number * 30, number * 30 + 30)
        else:
            producer.abort_transaction(60)
    values = read_all(cluster, topic, len(expected), "read_committed")
    assert sorted(map(int, values)) == expected


def test_a_group_continues_when_its_coordinator_is_killed(cluster: KavkaCluster) -> None:
    topic = "grouped"
    make_topic(cluster, topic)
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
    seen = [_next(consumer) for _ in range(30)]
    consumer.commit(asynchronous=False)
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        coordinator = admin.describe_consumer_groups(["survivors"])["survivors"].coordinator
    cluster.kill(coordinator.id)
    for n in range(30, 60):
        producer.produce(topic, b"%d" % n, partition=n % 3)
    assert producer.flush(60) == 0
    seen += [_next(consumer) for _ in range(30)]
    consumer.commit(asynchronous=False)
    consumer.close()
    assert sorted(seen) == list(range(60))
    again = ck.Consumer(settings)
    again.subscribe([topic])
    end = time.monotonic() + 10
    while not again.assignment() and time.monotonic() < end:
        assert again.poll(0.5) is None
    assert again.poll(2) is None, "everything was read and committed"
    again.close()


def _next(consumer: ck.Consumer) -> int:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            value = message.value()
            assert value is not None
            return int(value)
    raise AssertionError("no record within a minute")


def test_a_groups_settings_hold_wherever_its_coordinator_is(cluster: KavkaCluster) -> None:
    topic = "paced"
    make_topic(cluster, topic)

    def coordinator() -> int | None:
        with Messages(cluster.addresses[cluster.alive()[0]]) as any_broker:
            coordinator = any_broker.call(FindCoordinatorRequest(coordinator_keys=["paced"]), 4).coordinators[0]
        return (
            None if coordinator.error_code or coordinator.node_id not in cluster.alive() else int(coordinator.node_id)
        )

    def interval() -> int | None:
        number = coordinator()
        if number is None:
            return None
        joining = ConsumerGroupHeartbeatRequest(
            group_id="paced",
            member_id="member",
            member_epoch=0,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=[topic],
            topic_partitions=[],
        )
        with Messages(cluster.addresses[number]) as connection:
            answer = connection.call(joining, 1)
        return None if answer.error_code else int(answer.heartbeat_interval_ms)

    wait_until(lambda: interval() == 5000, timeout=60, what="the broker's interval")
    first = coordinator()
    other = next(number for number in cluster.alive() if number != first)
    config = AlterableConfig(name="consumer.heartbeat.interval.ms", config_operation=0, value="7000")
    change = AlterConfigsResource(resource_type=32, resource_name="paced", configs=[config])
    with Messages(cluster.addresses[other]) as connection:
        answer = connection.call(IncrementalAlterConfigsRequest(resources=[change]), 1)
    assert answer.responses[0].error_code == 0
    wait_until(lambda: interval() == 7000, timeout=60, what="the group's own interval")
    assert first is not None
    cluster.stop(first)
    coordinators: list[int] = []
    wait_until(
        lambda: coordinators.extend(filter(None, (interval(),))) or bool(coordinators),
        timeout=60, what="another coordinator", interval=0.2,
    )  # fmt: skip
    assert coordinators == [7000]


def test_any_broker_makes_topics_that_are_asked_for(cluster: KavkaCluster) -> None:
    for number, broker in cluster.brokers.items():
        with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
            assert producer.send(f"by-itself-{number}", value=b"x").get(30).offset == 0


def test_a_broker_with_the_logs_of_one_cluster_does_not_join_another(cluster: KavkaCluster) -> None:
    cluster.stop(2)
    logs = cluster.log_dirs[2]
    wrong = {"zookeeper.connect": f"{cluster.zookeeper.connect}/elsewhere"}
    with KavkaProcess(cluster.folder / "lost", overrides=wrong, log_dirs=logs, broker_id=2, start=False) as lost:
        lost.launch()
        wait_until(lambda: not lost.process.running(), timeout=60, what="the end of a broker in the wrong cluster")
        assert lost.process.returncode == 1
        assert "belongs to cluster.id" in lost.process.log_tail()


def test_the_last_broker_of_a_cluster_does_not_wait_for_others_to_take_over(tmp_path: Path) -> None:
    with ZooKeeper(tmp_path / "zookeeper") as zookeeper, KavkaCluster(tmp_path, zookeeper, brokers=2) as pair:
        make_topic(pair, "left", 1, 2)
        wait_for_full_isr(pair, "left", 2)
        pair.stop(0)
        pair.wait_until_known()
        pair.stop(1)
        said = pair.log_file(1).read_text()
        assert "The last broker of the cluster stops" in said
        assert "Stopping without a completed controlled shutdown" not in said
