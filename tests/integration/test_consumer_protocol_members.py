"""Real consumers in groups of the consumer protocol (KIP-848): the broker computes the assignment,
and members revoke only the partitions that move."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from tests.support.java_client import JavaError
from tests.support.java_groups import JavaGroups, JavaMember
from tests.support.members import Member, committed_offsets, wait_for_records, wait_for_split
from tests.support.processes import wait_until
from tests.support.targets import Target, start_target

pytestmark = [pytest.mark.timeout(180), pytest.mark.slow]

PARTITIONS = 6
# Longer than a JVM takes to start on a busy machine.
SESSION_S = 9.0
SETTINGS = {
    "group.consumer.min.heartbeat.interval.ms": 500,
    "group.consumer.heartbeat.interval.ms": 500,
    "group.consumer.min.session.timeout.ms": 1_000,
    "group.consumer.session.timeout.ms": int(SESSION_S * 1000),
}
CLIENTS = ["confluent", pytest.param("java-4.3.0", marks=pytest.mark.java)]

Join = Callable[..., Member]


@pytest.fixture(scope="module")
def broker(target_name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    target = start_target(target_name, tmp_path_factory.mktemp("groups"), SETTINGS)
    try:
        yield target
        assert target.process.running(), target.process.log_tail()
    finally:
        target.close()


@pytest.fixture(scope="module")
def groups(java_parts: None, broker: Target) -> Iterator[JavaGroups]:
    with JavaGroups(broker.bootstrap_servers) as probe:
        yield probe


@pytest.fixture
def group(topic: str) -> str:
    return f"group-of-{topic}"


@pytest.fixture
def six_partition_topic(broker: Target, topic: str) -> str:
    create_topic(broker, topic, PARTITIONS)
    return topic


def create_topic(broker: Target, topic: str, partitions: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(20)


@pytest.fixture
def join(
    broker: Target, six_partition_topic: str, group: str, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Join]:
    members: list[Member] = []

    def start(client: str = "confluent", topic: str = six_partition_topic, **options: object) -> Member:
        if client.startswith("java-"):
            request.getfixturevalue("java_parts")
        settings: dict[str, object] = {"protocol": "consumer", **options}
        member = Member(client, tmp_path, broker.bootstrap_servers, group, topic, **settings)  # type: ignore[arg-type]
        members.append(member)
        return member

    yield start
    for member in members:
        member.process.kill()


def produce(broker: Target, topic: str, count: int, partitions: int = PARTITIONS) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number in range(count):
        producer.produce(topic, f"{topic}:{number}".encode(), partition=number % partitions)
    assert producer.flush(20) == 0


def committed(broker: Target, group: str, topic: str) -> list[int]:
    return committed_offsets(broker.bootstrap_servers, group, topic, PARTITIONS)


@pytest.mark.parametrize("client", CLIENTS)
def test_members_share_the_partitions_and_a_leaving_member_returns_its_partitions(
    client: str, broker: Target, six_partition_topic: str, group: str, join: Join
) -> None:
    first = join(client)
    wait_for_split([first], PARTITIONS)
    second = join(client)
    wait_for_split([first, second], PARTITIONS)
    assert [len(first.partitions), len(second.partitions)] == [3, 3]
    revoked = {p["partition"] for event in first.named("partitions_revoked") for p in event["partitions"]}
    assert revoked == second.partitions, "a partition that did not move was revoked"
    produce(broker, six_partition_topic, 60)
    wait_for_records([first, second], dict.fromkeys(range(PARTITIONS), 10))
    assert sum(len(offsets) for member in (first, second) for offsets in member.offsets().values()) == 60
    second.leave()
    wait_for_split([first], PARTITIONS, timeout=SESSION_S - 1)
    wait_until(
        lambda: committed(broker, group, six_partition_topic) == [10] * PARTITIONS,
        timeout=20,
        what="all records committed",
        interval=0.2,
    )


@pytest.mark.parametrize("client", CLIENTS)
def test_partitions_of_a_crashed_member_are_reassigned_after_its_session_timeout(client: str, join: Join) -> None:
    first, second = join(client), join(client)
    wait_for_split([first, second], PARTITIONS)
    second.crash()
    crash_time = time.monotonic()
    wait_for_split([first], PARTITIONS, timeout=SESSION_S * 4)
    assert time.monotonic() - crash_time > SESSION_S * 0.8, "the session timeout had not expired"


@pytest.mark.parametrize("client", CLIENTS)
def test_a_static_member_that_restarts_keeps_its_partitions_without_a_rebalance(client: str, join: Join) -> None:
    first = join(client, instance_id="one")
    second = join(client, instance_id="two")
    wait_for_split([first, second], PARTITIONS)
    partitions = second.partitions
    time.sleep(1)
    changes = first.changes
    second.leave()
    restarted = join(client, instance_id="two")
    wait_until(lambda: restarted.read_events().partitions == partitions, timeout=30, what="the same partitions")
    time.sleep(SESSION_S + 1)
    assert first.changes == changes, "the other member was rebalanced"
    restarted.leave()
    wait_for_split([first], PARTITIONS, timeout=SESSION_S * 3)


def test_a_second_member_with_the_same_instance_id_is_rejected(join: Join) -> None:
    first = join("confluent", instance_id="one")
    wait_for_split([first], PARTITIONS)
    second = join("confluent", instance_id="one")
    time.sleep(3)
    assert not second.read_events().partitions
    assert len(first.read_events().partitions) == PARTITIONS


def test_new_partitions_of_a_topic_are_assigned(broker: Target, six_partition_topic: str, join: Join) -> None:
    members = [join(), join()]
    wait_for_split(members, PARTITIONS)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_partitions([NewPartitions(six_partition_topic, PARTITIONS + 4)])[six_partition_topic].result(20)
    wait_for_split(members, PARTITIONS + 4, timeout=30)
    assert [len(member.partitions) for member in members] == [5, 5]


def test_a_rebalance_with_many_members_completes(join: Join) -> None:
    members = [join() for _ in range(PARTITIONS)]
    wait_for_split(members, PARTITIONS, timeout=30)


@pytest.mark.java
@pytest.mark.usefixtures("java_parts")
def test_members_with_different_clients_share_one_group(broker: Target, six_partition_topic: str, join: Join) -> None:
    members = [join("confluent"), join("java-4.3.0"), join("confluent")]
    wait_for_split(members, PARTITIONS, timeout=60)
    produce(broker, six_partition_topic, 60)
    wait_for_records(members, dict.fromkeys(range(PARTITIONS), 10))
    for member in members[:-1]:
        member.leave()
    wait_for_split(members[-1:], PARTITIONS)


# ---- patterns


def test_librdkafka_subscribes_to_a_pattern_that_the_broker_resolves(broker: Target, join: Join) -> None:
    prefix = f"p-{uuid.uuid4().hex[:8]}"
    create_topic(broker, f"{prefix}-a")
    produce(broker, f"{prefix}-a", 5, 1)
    member = join(topic=f"^{prefix}-.*")
    wait_until(lambda: topics_of(member) == {f"{prefix}-a"}, timeout=30, what="the existing topic")
    create_topic(broker, f"{prefix}-b")
    wait_until(lambda: topics_of(member) == {f"{prefix}-a", f"{prefix}-b"}, timeout=30, what="the new topic")


def topics_of(member: Member) -> set[str]:
    return {p["topic"] for event in member.named("partitions_assigned") for p in event["partitions"]}


@pytest.mark.java
def test_a_java_subscription_pattern_matches_existing_and_new_topics(
    broker: Target, groups: JavaGroups, group: str
) -> None:
    prefix = f"p-{uuid.uuid4().hex[:8]}"
    for name in ("a", "b"):
        create_topic(broker, f"{prefix}-{name}")
        produce(broker, f"{prefix}-{name}", 3, 1)
    create_topic(broker, f"other-{prefix}")
    member = groups.consumer("pattern", group, pattern=f"{prefix}-.*")
    try:
        wait_until(lambda: len(member.poll().values) >= 6, timeout=30, what="all records of both topics")
        assert member.assigned == {f"{prefix}-a-0", f"{prefix}-b-0"}
        create_topic(broker, f"{prefix}-c", 2)
        produce(broker, f"{prefix}-c", 4, 2)
        wait_until(lambda: len(member.poll().values) >= 10, timeout=30, what="the records of the new topic")
        assert len(member.assigned) == 4
    finally:
        member.close()


@pytest.mark.java
def test_an_invalid_java_subscription_pattern_is_an_error(groups: JavaGroups, group: str) -> None:
    member = groups.consumer("bad", group, pattern="(")
    try:
        with pytest.raises(JavaError) as raised:
            poll_for(member, 60)
        assert raised.value.name == "InvalidRegularExpression"
    finally:
        member.close()


def poll_for(member: JavaMember, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        member.poll()


# ---- administration


@pytest.mark.java
def test_a_group_description_has_members_epochs_and_assignments(
    broker: Target, groups: JavaGroups, six_partition_topic: str, group: str
) -> None:
    first = groups.consumer("one", group, six_partition_topic, client_id="c-one", group_remote_assignor="range")
    second = groups.consumer("two", group, six_partition_topic, client_id="c-two", group_instance_id="i-two")
    try:
        wait_until(
            lambda: [len(c.poll(50).assigned) for c in (first, second)] == [3, 3],
            timeout=40,
            what="three partitions for each member",
        )
        description = groups.describe(group)
        assert (description["type"], description["state"], description["assignor"]) == ("Consumer", "Stable", "range")
        assert description["epoch"] == description["targetEpoch"]
        members = {member["client"]: member for member in description["members"]}
        assert set(members) == {"c-one", "c-two"}
        assert members["c-two"]["instance"] == "i-two"
        for member, consumer in ((members["c-one"], first), (members["c-two"], second)):
            assert set(member["assigned"]) == set(member["target"]) == consumer.assigned
            assert (member["epoch"], member["upgraded"]) == (description["epoch"], True)
        assert groups.groups()[group] == {"type": "Consumer", "state": "Stable"}
        with pytest.raises(JavaError) as raised:
            groups.delete(group)
        assert raised.value.name == "GroupNotEmptyException"
    finally:
        first.close()
        second.close()
    wait_until(lambda: groups.groups()[group]["state"] == "Empty", timeout=30, what="an empty group", interval=0.5)
    groups.delete(group)
    assert group not in groups.groups()
