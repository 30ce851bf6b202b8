"""Real consumers in classic groups: members join, leave, crash and restart, and partitions are
reassigned."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from tests.support.members import (
    COOPERATIVE,
    JAVA_CLIENTS,
    PYTHON_CLIENTS,
    Member,
    committed_offsets,
    wait_for_records,
    wait_for_split,
)
from tests.support.processes import wait_until
from tests.support.targets import Target, start_target

pytestmark = [pytest.mark.timeout(180), pytest.mark.slow]

PARTITIONS = 6
SESSION_MS = 6_000
ALL_CLIENTS = [*PYTHON_CLIENTS, *(pytest.param(name, marks=pytest.mark.java) for name in JAVA_CLIENTS)]


@pytest.fixture(scope="module")
def broker(target_name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    overrides = {"group.initial.rebalance.delay.ms": 0, "group.min.session.timeout.ms": 1_000}
    target = start_target(target_name, tmp_path_factory.mktemp("groups"), overrides)
    try:
        yield target
    finally:
        target.close()


Join = Callable[..., Member]


@pytest.fixture
def six_partition_topic(broker: Target, topic: str) -> str:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(20)
    return topic


@pytest.fixture
def join(broker: Target, six_partition_topic: str, tmp_path: Path) -> Iterator[Join]:
    members: list[Member] = []

    def start(client: str = "confluent", **options: object) -> Member:
        member = Member(
            client,
            tmp_path,
            broker.bootstrap_servers,
            f"group-of-{six_partition_topic}",
            six_partition_topic,
            session_ms=SESSION_MS,
            **options,  # type: ignore[arg-type]
        )
        members.append(member)
        return member

    yield start
    for member in members:
        member.process.kill()


def produce(broker: Target, topic: str, count: int, partitions: int = PARTITIONS) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number in range(count):
        producer.produce(topic, str(number).encode(), partition=number % partitions)
    assert producer.flush(20) == 0


def committed(broker: Target, group: str, topic: str) -> list[int]:
    return committed_offsets(broker.bootstrap_servers, group, topic, PARTITIONS)


@pytest.mark.parametrize("client", ALL_CLIENTS)
def test_members_share_the_partitions_and_a_leaving_member_returns_its_partitions(
    client: str, broker: Target, six_partition_topic: str, join: Join, request: pytest.FixtureRequest
) -> None:
    if client.startswith("java-"):
        request.getfixturevalue("java_parts")
    first = join(client)
    wait_for_split([first], PARTITIONS)
    second = join(client)
    wait_for_split([first, second], PARTITIONS)
    produce(broker, six_partition_topic, 60)
    wait_for_records([first, second], dict.fromkeys(range(PARTITIONS), 10))
    consumed = [offset for member in (first, second) for offsets in member.offsets().values() for offset in offsets]
    assert len(consumed) == 60, "a record was consumed twice"
    second.leave()
    leave_time = time.monotonic()
    wait_for_split([first], PARTITIONS, timeout=SESSION_MS / 1000 + 2)
    assert time.monotonic() - leave_time < SESSION_MS / 1000, "the group waited for the member that left"
    wait_until(
        lambda: committed(broker, f"group-of-{six_partition_topic}", six_partition_topic) == [10] * PARTITIONS,
        timeout=20,
        what="all records committed",
        interval=0.2,
    )


@pytest.mark.parametrize("client", ALL_CLIENTS)
def test_partitions_of_a_crashed_member_are_reassigned_after_its_session_timeout(
    client: str, broker: Target, join: Join, request: pytest.FixtureRequest
) -> None:
    if client.startswith("java-"):
        request.getfixturevalue("java_parts")
    first, second = join(client), join(client)
    wait_for_split([first, second], PARTITIONS)
    second.crash()
    crash_time = time.monotonic()
    wait_for_split([first], PARTITIONS, timeout=SESSION_MS / 1000 * 4)
    assert time.monotonic() - crash_time > SESSION_MS / 1000 * 0.8, "the session timeout had not expired"


@pytest.mark.java
@pytest.mark.usefixtures("java_parts")
def test_members_of_all_clients_share_one_group(broker: Target, six_partition_topic: str, join: Join) -> None:
    members = [join(client) for client in (*PYTHON_CLIENTS, *JAVA_CLIENTS)]
    wait_for_split(members, PARTITIONS, timeout=60)
    produce(broker, six_partition_topic, 60)
    wait_for_records(members, dict.fromkeys(range(PARTITIONS), 10))
    for member in members[:-1]:
        member.leave()
    wait_for_split(members[-1:], PARTITIONS)


@pytest.mark.parametrize(
    "client", ["confluent", "kafka-python", *(pytest.param(n, marks=pytest.mark.java) for n in JAVA_CLIENTS)]
)
def test_a_static_member_that_restarts_keeps_its_partitions_without_a_rebalance(
    client: str, join: Join, request: pytest.FixtureRequest
) -> None:
    if client.startswith("java-"):
        request.getfixturevalue("java_parts")
    first = join(client, instance_id="one")
    second = join(client, instance_id="two")
    wait_for_split([first, second], PARTITIONS)
    member = second
    for _ in range(4):
        partitions = member.partitions
        time.sleep(1)
        changes = first.changes
        member.crash()
        crash_time = time.monotonic()
        member = join(client, instance_id="two")
        wait_for_split([first, member], PARTITIONS, timeout=60)
        # On a busy machine the session may expire before the new process joins. Then try again.
        if time.monotonic() - crash_time < SESSION_MS / 1000:
            break
    assert member.partitions == partitions
    time.sleep(SESSION_MS / 1000)
    assert first.changes == changes, "the other member was rebalanced"


def test_the_older_of_two_members_with_the_same_instance_id_is_fenced(join: Join) -> None:
    first = join("confluent", instance_id="one")
    wait_for_split([first], PARTITIONS)
    second = join("confluent", instance_id="one")
    wait_for_split([second], PARTITIONS)
    wait_until(
        lambda: "FENCED" in first.process.log_tail(20_000).upper() or not first.read_events().partitions,
        timeout=20,
        what="the older member is fenced",
    )


@pytest.mark.parametrize("client", ["confluent", *(pytest.param(n, marks=pytest.mark.java) for n in JAVA_CLIENTS)])
def test_cooperative_members_revoke_only_the_partitions_that_move(
    client: str, join: Join, request: pytest.FixtureRequest
) -> None:
    if client.startswith("java-"):
        request.getfixturevalue("java_parts")
    first = join(client, assignors=COOPERATIVE)
    wait_for_split([first], PARTITIONS)
    second = join(client, assignors=COOPERATIVE)
    wait_for_split([first, second], PARTITIONS)
    revoked = {p["partition"] for event in first.named("partitions_revoked") for p in event["partitions"]}
    assert revoked == second.partitions
    third = join(client, assignors=COOPERATIVE)
    wait_for_split([first, second, third], PARTITIONS)
    previous_partitions = first.partitions
    second.leave()
    wait_for_split([first, third], PARTITIONS)
    assert first.partitions >= previous_partitions


def test_new_partitions_of_a_topic_are_assigned(broker: Target, six_partition_topic: str, join: Join) -> None:
    members = [join("confluent"), join("confluent")]
    wait_for_split(members, PARTITIONS)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_partitions([NewPartitions(six_partition_topic, PARTITIONS + 4)])[six_partition_topic].result(20)
    wait_for_split(members, PARTITIONS + 4, timeout=60)


def test_a_group_changes_its_assignor_member_by_member(join: Join) -> None:
    assignors = ("roundrobin", "range")
    first, second = join("confluent"), join("confluent")
    wait_for_split([first, second], PARTITIONS)
    for _ in range(2):
        first.leave()
        first, second = second, join("confluent", assignors=assignors)
        wait_for_split([first, second], PARTITIONS)
    admin = AdminClient({"bootstrap.servers": first.process.argv[4]})
    group = first.process.argv[5]
    description = admin.describe_consumer_groups([group])[group].result(20)
    assert description.partition_assignor in assignors


def test_a_paused_member_rejoins_after_its_session_expired(join: Join) -> None:
    import signal

    first, second = join("confluent"), join("confluent")
    wait_for_split([first, second], PARTITIONS)
    second.process.signal(signal.SIGSTOP)
    wait_for_split([first], PARTITIONS, timeout=SESSION_MS / 1000 * 4)
    second.process.signal(signal.SIGCONT)
    wait_for_split([first, second], PARTITIONS)
