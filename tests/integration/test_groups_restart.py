"""A killed broker loses no group and no offset: members keep their assignment, and all commits
are stored."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.members import PYTHON_CLIENTS, Member, wait_for_records, wait_for_split
from tests.support.processes import wait_until
from tests.support.targets import Target, start_target

pytestmark = [pytest.mark.timeout(240), pytest.mark.slow, pytest.mark.records]

PARTITIONS = 6
GROUP = "survivors"


@pytest.fixture
def broker(target_name: str, tmp_path: Path) -> Iterator[Target]:
    overrides = {"group.initial.rebalance.delay.ms": 0, "group.min.session.timeout.ms": 1_000}
    target = start_target(target_name, tmp_path / "broker", overrides)
    try:
        yield target
    finally:
        target.close()


def create_topic(broker: Target, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(20)


def produce(broker: Target, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number in range(count):
        producer.produce(topic, str(number).encode(), partition=number % PARTITIONS)
    assert producer.flush(30) == 0


@pytest.mark.parametrize("client", PYTHON_CLIENTS)
def test_members_keep_their_partitions_after_the_broker_was_killed(
    client: str, broker: Target, topic: str, tmp_path: Path
) -> None:
    create_topic(broker, topic)
    produce(broker, topic, 60)
    members = [Member(client, tmp_path, broker.bootstrap_servers, GROUP, topic, session_ms=120_000) for _ in range(2)]
    try:
        wait_for_split(members, PARTITIONS)
        wait_for_records(members, dict.fromkeys(range(PARTITIONS), 10))
        time.sleep(1)
        assignments = [member.read_events().partitions for member in members]
        broker.kill()
        broker.start()
        produce(broker, topic, 60)
        wait_for_records(members, dict.fromkeys(range(PARTITIONS), 20), timeout=90)
        assert [member.read_events().partitions for member in members] == assignments
        time.sleep(1)
    finally:
        for member in members:
            member.process.kill()
    broker.kill()
    broker.start()
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": GROUP})
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    offsets = [p.offset for p in consumer.committed(partitions, timeout=30)]
    consumer.close()
    assert offsets == [20] * PARTITIONS


def test_static_members_keep_their_partitions_after_the_broker_was_killed(
    broker: Target, topic: str, tmp_path: Path
) -> None:
    create_topic(broker, topic)

    def start(instance_id: str) -> Member:
        return Member(
            "confluent", tmp_path, broker.bootstrap_servers, GROUP, topic, instance_id=instance_id, session_ms=60_000
        )

    members = [start("one"), start("two")]
    restarted = None
    try:
        wait_for_split(members, PARTITIONS)
        time.sleep(1)
        partitions = members[1].partitions
        members[1].crash()
        broker.kill()
        broker.start()
        restarted = start("two")
        wait_until(lambda: restarted.read_events().partitions == partitions, timeout=60, what="the same partitions")
    finally:
        for member in (*members, *([restarted] if restarted else [])):
            member.process.kill()


def test_no_acknowledged_commit_is_lost_when_the_broker_is_killed(broker: Target, topic: str) -> None:
    create_topic(broker, topic)
    rng = random.Random(7)
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    config = {"bootstrap.servers": broker.bootstrap_servers, "group.id": GROUP, "enable.auto.commit": False}
    consumer = Consumer(config)
    # By partition: the last acknowledged offset, and later offsets that may or may not be stored.
    acknowledged = [-1001] * PARTITIONS
    attempted: list[set[int]] = [set() for _ in range(PARTITIONS)]
    offset = 0

    def commit_until(stop_event: threading.Event) -> None:
        nonlocal offset
        while not stop_event.is_set():
            offset += 1
            partition = rng.randrange(PARTITIONS)
            attempted[partition].add(offset)
            try:
                consumer.commit(offsets=[TopicPartition(topic, partition, offset)], asynchronous=False)
            except KafkaException:
                continue
            acknowledged[partition] = offset
            attempted[partition].clear()

    for _ in range(5):
        stop_event = threading.Event()
        committer = threading.Thread(target=commit_until, args=(stop_event,))
        committer.start()
        time.sleep(0.5)
        broker.kill()
        # The broker is killed when the thread that started it ends, so only this thread starts it.
        broker.start()
        time.sleep(0.5)
        stop_event.set()
        committer.join()
        reader = Consumer(config)
        for committed in reader.committed(partitions, timeout=60):
            assert committed.offset in attempted[committed.partition] | {acknowledged[committed.partition]}
        reader.close()
    consumer.close()
    assert offset > 100
