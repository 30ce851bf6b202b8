"""Consumer groups against a real broker: Kavka by default, Apache Kafka with --target."""

from __future__ import annotations

import gc
import re
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from kavka import (
    Admin,
    CommitFailed,
    Consumer,
    KafkaError,
    Producer,
    RebalanceInProgress,
    TopicPartition,
)
from kavka.client.errors import IllegalState
from tests.support.our_consumer import (
    RecordingListener,
    balanced,
    fill,
    group_settings,
    make_topic,
    numbers,
    poll_until,
    read,
)

Make = Callable[..., Consumer]

STRATEGIES = ("range", "roundrobin", "sticky", "cooperative-sticky")
# Used in place of a strategy: a group of the consumer protocol, whose broker assigns partitions.
NEW = pytest.param(None, marks=pytest.mark.new_groups)


def partitions(topic: str, count: int) -> set[TopicPartition]:
    return {TopicPartition(topic, p) for p in range(count)}


# --- rebalances


@pytest.mark.parametrize("strategy", [*STRATEGIES, NEW])
def test_members_share_partitions_and_take_over_those_of_a_closed_member(
    servers: str, make: Make, topic: str, group: str, strategy: str | None
) -> None:
    make_topic(servers, topic, 5)
    settings = group_settings("consumer" if strategy is None else "classic", strategy) | {"group_id": group}
    listeners = [RecordingListener() for _ in range(3)]
    consumers = [make(**settings) for _ in range(3)]
    for consumer, listener in zip(consumers, listeners, strict=True):
        consumer.subscribe([topic], listener=listener)
    poll_until(consumers, balanced(consumers, 5))
    fill(servers, topic, numbers(100))
    values: list[bytes | None] = []
    deadline = time.monotonic() + 20
    while len(values) < 100 and time.monotonic() < deadline:
        for consumer in consumers:
            values += [r.value for r in consumer.poll(0.05)]
    assert sorted(values) == sorted(numbers(100))  # type: ignore[type-var]
    consumers[1].close()
    remaining = [consumers[0], consumers[2]]
    poll_until(remaining, balanced(remaining, 5))
    for consumer, listener in zip(consumers, listeners, strict=True):
        if consumer in remaining:
            assert listener.assignment() == consumer.assignment()
        else:
            assert listener.assignment() == set() and not listener.all("lost")


def test_no_record_is_read_twice_when_partitions_move(
    servers: str, make: Make, topic: str, group: str, protocol: str
) -> None:
    """With automatic commits, polled records are committed before their partition is revoked."""
    make_topic(servers, topic, 4)
    with Producer(bootstrap_servers=servers) as producer:
        for i in range(2000):
            producer.send(topic, b"%d" % i, partition=i % 4)
    settings = group_settings(protocol, "cooperative-sticky") | {"group_id": group, "max_poll_records": 100}
    values: list[bytes | None] = []
    first = make(**settings)
    first.subscribe([topic])
    values += [r.value for r in read(first, 300)]
    others = [make(**settings) for _ in range(2)]
    for other in others:
        other.subscribe([topic])
    deadline = time.monotonic() + 30
    while len(values) < 2000 and time.monotonic() < deadline:
        for consumer in (first, *others):
            values += [r.value for r in consumer.poll(0.05, max_records=20)]
    for consumer in (first, *others):
        values += [r.value for r in consumer.poll(0.3)]
    assert sorted(values) == sorted(numbers(2000))  # type: ignore[type-var]


@pytest.mark.parametrize("kind", ["cooperative-sticky", NEW])
def test_a_cooperative_rebalance_revokes_only_partitions_that_move(
    servers: str, make: Make, topic: str, group: str, kind: str | None
) -> None:
    make_topic(servers, topic, 6)
    settings = group_settings("consumer" if kind is None else "classic", kind) | {"group_id": group}
    listener = RecordingListener()
    first, second = make(**settings), make(**settings)
    first.subscribe([topic], listener=listener)
    poll_until([first], lambda: len(first.assignment()) == 6)
    second.subscribe([topic])
    poll_until([first, second], balanced([first, second], 6))
    revoked = listener.all("revoked")
    assert set().union(*revoked) == second.assignment()
    assert len(listener.all("assigned")[0]) == 6


def test_an_eager_rebalance_revokes_all_partitions_first(servers: str, make: Make, topic: str, group: str) -> None:
    make_topic(servers, topic, 2)
    settings = group_settings("classic", "range") | {"group_id": group}
    listener = RecordingListener()
    first, second = make(**settings), make(**settings)
    first.subscribe([topic], listener=listener)
    poll_until([first], lambda: len(first.assignment()) == 2)
    second.subscribe([topic])
    poll_until([first, second], balanced([first, second], 2))
    assert listener.events[:2] == [("assigned", partitions(topic, 2)), ("revoked", partitions(topic, 2))]


def test_a_listener_may_commit_and_seek(servers: str, make: Make, topic: str, group: str, protocol: str) -> None:
    make_topic(servers, topic, 2)
    for partition in range(2):
        fill(servers, topic, numbers(50), partition)
    settings = group_settings(protocol) | {"group_id": group, "enable_auto_commit": False}
    consumer = make(**settings)
    committed: list[Any] = []

    def on_assigned(new: set[TopicPartition]) -> None:
        for tp in new:
            consumer.seek(tp, 40)

    def on_revoked(revoked: set[TopicPartition]) -> None:
        consumer.commit_sync(revoked)
        committed.append(consumer.committed(revoked))

    consumer.subscribe([topic], on_assigned=on_assigned, on_revoked=on_revoked)
    records = read(consumer, 20)
    assert {r.offset for r in records} == set(range(40, 50))
    consumer.unsubscribe()
    assert [{tp.partition: offset.offset for tp, offset in some.items()} for some in committed] == [{0: 50, 1: 50}]


def test_a_listener_may_take_longer_than_the_poll_that_calls_it(
    servers: str, make: Make, topic: str, group: str, protocol: str
) -> None:
    fill(servers, topic, numbers(50))
    consumer = make(**group_settings(protocol), group_id=group)

    def on_assigned(new: set[TopicPartition]) -> None:
        time.sleep(0.4)
        for tp in new:
            assert consumer.committed([tp]) == {tp: None}
            consumer.seek(tp, 40)

    consumer.subscribe([topic], on_assigned=on_assigned)
    assert [r.offset for r in read(consumer, 10)] == list(range(40, 50))


def test_an_error_of_a_listener_is_raised_by_poll_and_the_group_continues(
    servers: str, make: Make, topic: str, group: str, protocol: str
) -> None:
    fill(servers, topic, numbers(5))
    consumer = make(**group_settings(protocol), group_id=group)

    def fail(_: set[TopicPartition]) -> None:
        raise ZeroDivisionError("in the listener")

    consumer.subscribe([topic], on_assigned=fail)
    with pytest.raises(ZeroDivisionError):
        for _ in range(100):
            consumer.poll(0.1)
    assert len(read(consumer, 5)) == 5


def test_a_changed_subscription_moves_to_the_other_topic(
    servers: str, make: Make, topic: str, group: str, protocol: str
) -> None:
    other = f"{topic}-2"
    make_topic(servers, topic, 2)
    make_topic(servers, other, 2)
    consumer = make(**group_settings(protocol), group_id=group)
    consumer.subscribe([topic])
    poll_until([consumer], lambda: consumer.assignment() == partitions(topic, 2))
    assert consumer.subscription() == {topic}
    consumer.subscribe([topic, other])
    poll_until([consumer], lambda: consumer.assignment() == partitions(topic, 2) | partitions(other, 2))
    consumer.subscribe([other])
    poll_until([consumer], lambda: consumer.assignment() == partitions(other, 2))
    consumer.unsubscribe()
    assert consumer.assignment() == set() and consumer.subscription() == set()
    consumer.subscribe([topic])
    poll_until([consumer], lambda: consumer.assignment() == partitions(topic, 2))


def test_each_of_two_groups_reads_all_records(servers: str, make: Make, topic: str, group: str, protocol: str) -> None:
    fill(servers, topic, numbers(100))
    for name in ("a", "b"):
        consumer = make(**group_settings(protocol), group_id=f"{group}-{name}")
        consumer.subscribe([topic])
        assert [r.value for r in read(consumer, 100)] == numbers(100)


def test_enforce_rebalance_causes_a_rebalance(servers: str, make: Make, topic: str, group: str) -> None:
    make_topic(servers, topic, 1)
    listener = RecordingListener()
    consumer = make(**group_settings("classic"), group_id=group)
    consumer.subscribe([topic], listener=listener)
    poll_until([consumer], lambda: len(consumer.assignment()) == 1)
    generation = consumer.group_metadata().generation_id
    consumer.enforce_rebalance("to see whether it works")
    poll_until([consumer], lambda: consumer.group_metadata().generation_id > generation and bool(consumer.assignment()))
    assert [event for event, _ in listener.events] == ["assigned", "revoked", "assigned"]
    alone = make(group_id=group)
    alone.assign([(topic, 0)])
    with pytest.raises(IllegalState):
        alone.enforce_rebalance()


@pytest.mark.new_groups
def test_members_of_both_protocols_may_share_a_group(servers: str, make: Make, topic: str, group: str) -> None:
    make_topic(servers, topic, 4)
    classic = make(**group_settings("classic", "range"), group_id=group)
    classic.subscribe([topic])
    poll_until([classic], lambda: len(classic.assignment()) == 4)
    modern = make(**group_settings("consumer"), group_id=group)
    modern.subscribe([topic])
    poll_until([classic, modern], balanced([classic, modern], 4))
    classic.close()
    poll_until([modern], lambda: len(modern.assignment()) == 4)


# --- removed members


def test_a_member_that_polls_too_rarely_loses_its_partitions_and_cannot_commit(
    servers: str, make: Make, topic: str, group: str, protocol: str
) -> None:
    fill(servers, topic, numbers(10))
    listener = RecordingListener()
    settings = group_settings(protocol) | {"group_id": group, "enable_auto_commit": False}
    consumer = make(**settings, max_poll_interval_ms=3100, max_poll_records=5)
    consumer.subscribe([topic], listener=listener)
    assert len(read(consumer, 5)) == 5
    other = make(**settings)
    time.sleep(3.8)
    other.subscribe([topic])
    poll_until([other], lambda: other.assignment() == partitions(topic, 1))
    with pytest.raises((CommitFailed, RebalanceInProgress)):
        consumer.commit_sync()
    poll_until([consumer, other], lambda: bool(listener.all("lost")))
    assert listener.all("lost") == [partitions(topic, 1)] and not listener.all("revoked")
    other.close()
    assert read(consumer, 1)[0].offset == 0


def test_a_long_poll_does_not_remove_the_member(
    servers: str, make: Make, topic: str, group: str, protocol: str
) -> None:
    make_topic(servers, topic)
    listener = RecordingListener()
    consumer = make(**group_settings(protocol), group_id=group, max_poll_interval_ms=3100)
    consumer.subscribe([topic], listener=listener)
    poll_until([consumer], lambda: bool(consumer.assignment()))
    consumer.poll(4.5)
    assert consumer.assignment() and not listener.all("lost")


def test_a_member_that_is_removed_joins_again(servers: str, make: Make, topic: str, group: str) -> None:
    fill(servers, topic, numbers(5))
    listener = RecordingListener()
    consumer = make(**group_settings("classic"), group_id=group)
    consumer.subscribe([topic], listener=listener)
    read(consumer, 5)
    with Admin(bootstrap_servers=servers) as admin:
        admin.remove_members_from_consumer_group(group)
    poll_until([consumer], lambda: len(listener.all("assigned")) == 2)
    assert listener.all("lost") == [partitions(topic, 1)]


# --- static members


def test_a_static_member_that_rejoins_causes_no_rebalance(
    servers: str, make: Make, topic: str, group: str, protocol: str
) -> None:
    make_topic(servers, topic, 4)
    settings = group_settings(protocol) | {"group_id": group}
    listener = RecordingListener()
    first = make(**settings, group_instance_id="one")
    second = make(**settings, group_instance_id="two")
    first.subscribe([topic], listener=listener)
    second.subscribe([topic])
    poll_until([first, second], balanced([first, second], 4))
    assignment, events = second.assignment(), len(listener.events)
    second.close()
    again = make(**settings, group_instance_id="two")
    again.subscribe([topic])
    poll_until([first, again], lambda: again.assignment() == assignment)
    poll_until([first, again], lambda: True)
    for _ in range(5):
        first.poll(0.1)
    assert len(listener.events) == events
    assert again.group_metadata().group_instance_id == "two"


def test_a_static_member_may_leave_permanently(servers: str, make: Make, topic: str, group: str, protocol: str) -> None:
    make_topic(servers, topic, 2)
    settings = group_settings(protocol) | {"group_id": group}
    first, second = make(**settings), make(**settings, group_instance_id="two")
    first.subscribe([topic])
    second.subscribe([topic])
    poll_until([first, second], balanced([first, second], 2))
    second.close(leave_group=True)
    start_time = time.monotonic()
    poll_until([first], lambda: len(first.assignment()) == 2)
    assert time.monotonic() - start_time < 2.5


def test_a_second_member_with_the_same_instance_id_replaces_the_first_or_is_rejected(
    servers: str, make: Make, topic: str, group: str, protocol: str
) -> None:
    make_topic(servers, topic, 1)
    settings = group_settings(protocol) | {"group_id": group, "group_instance_id": "same"}
    first, second = make(**settings), make(**settings)
    first.subscribe([topic])
    poll_until([first], lambda: bool(first.assignment()))
    second.subscribe([topic])
    with pytest.raises(KafkaError) as raised:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            second.poll(0.1)
            first.poll(0.1)
    assert raised.value.code.name in ("FENCED_INSTANCE_ID", "UNRELEASED_INSTANCE_ID")


# --- patterns


@pytest.mark.parametrize(
    "how", ["classic", *(pytest.param(how, marks=pytest.mark.new_groups) for how in ("here", "there"))]
)
def test_a_pattern_includes_new_topics(servers: str, make: Make, group: str, how: str) -> None:
    name = f"p{uuid.uuid4().hex[:8]}"
    make_topic(servers, f"{name}-a", 2)
    make_topic(servers, f"other-{name}-a", 1)
    consumer = make(
        **group_settings("classic" if how == "classic" else "consumer"), group_id=group, metadata_max_age_ms=200
    )
    text = f"{name}-.*"
    consumer.subscribe(pattern=text if how != "here" else re.compile(text))
    poll_until([consumer], lambda: consumer.assignment() == partitions(f"{name}-a", 2))
    make_topic(servers, f"{name}-b", 1)
    expected = partitions(f"{name}-a", 2) | partitions(f"{name}-b", 1)
    poll_until([consumer], lambda: consumer.assignment() == expected, timeout=60)
    fill(servers, f"{name}-b", [b"x"])
    assert read(consumer, 1)[0].topic == f"{name}-b"
    assert consumer.subscription() == {f"{name}-a", f"{name}-b"}


def test_a_consumer_with_a_pattern_joins_after_it_has_resolved_the_pattern(
    servers: str, make: Make, group: str
) -> None:
    name = f"p{uuid.uuid4().hex[:8]}"
    make_topic(servers, f"{name}-a", 1)
    for number in range(6):
        events: list[tuple[str, set[TopicPartition]]] = []
        consumer = make(**group_settings("classic"), group_id=f"{group}-{number}")
        consumer.subscribe(
            pattern=f"{name}-.*",
            on_assigned=lambda assigned, events=events: events.append(("assigned", assigned)),
            on_revoked=lambda revoked, events=events: events.append(("revoked", revoked)),
        )
        poll_until([consumer], lambda consumer=consumer: consumer.assignment() == partitions(f"{name}-a", 1))
        for _ in range(3):
            consumer.poll(0.05)
        assert events == [("assigned", partitions(f"{name}-a", 1))]
        assert consumer.group_metadata().generation_id == 1
        consumer.close()


@pytest.mark.new_groups
def test_a_pattern_that_the_broker_rejects_is_an_error(servers: str, make: Make, group: str) -> None:
    consumer = make(**group_settings("consumer"), group_id=group)
    consumer.subscribe(pattern="(")
    with pytest.raises(KafkaError) as raised:
        for _ in range(100):
            consumer.poll(0.1)
    assert raised.value.code.name == "INVALID_REGULAR_EXPRESSION"


# --- assignors


class MostToTheFirst:
    """A custom assignor. The first member by name gets all partitions of each topic except the
    last."""

    name = "most-to-the-first"

    def __init__(self) -> None:
        self.assignments: list[Any] = []

    def user_data(self, topics: frozenset[str]) -> bytes:
        return b"hello"

    def assign(self, partitions: Any, members: Any) -> Any:
        assert all(member.user_data == b"hello" for member in members.values())
        order = sorted(members)
        result: dict[str, list[tuple[str, int]]] = {member: [] for member in members}
        for topic, count in partitions.items():
            for p in range(count):
                result[order[0] if p < count - 1 or len(order) == 1 else order[1]].append((topic, p))
        return result

    def on_assignment(self, assignment: Any, generation: int) -> None:
        self.assignments.append((assignment.partitions, generation))


def test_a_custom_assignor_assigns_the_partitions(servers: str, make: Make, topic: str, group: str) -> None:
    make_topic(servers, topic, 5)
    own = [MostToTheFirst(), MostToTheFirst()]
    settings = group_settings("classic") | {"group_id": group}
    consumers = [make(**settings, partition_assignment_strategy=[assignor]) for assignor in own]
    for consumer in consumers:
        consumer.subscribe([topic])
    poll_until(consumers, lambda: sorted(len(c.assignment()) for c in consumers) == [1, 4])
    assert sorted(len(assignor.assignments[-1][0]) for assignor in own) == [1, 4]


def test_members_without_a_common_assignor_are_rejected(servers: str, make: Make, topic: str, group: str) -> None:
    make_topic(servers, topic, 1)
    first = make(**group_settings("classic", "range"), group_id=group)
    first.subscribe([topic])
    poll_until([first], lambda: bool(first.assignment()))
    second = make(**group_settings("classic", "roundrobin"), group_id=group)
    second.subscribe([topic])
    with pytest.raises(KafkaError) as raised:
        for _ in range(100):
            second.poll(0.1)
    assert raised.value.code.name == "INCONSISTENT_GROUP_PROTOCOL"


# --- groups with other clients


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_a_group_is_shared_with_librdkafka(servers: str, make: Make, topic: str, group: str, strategy: str) -> None:
    from confluent_kafka import Consumer as ConfluentConsumer

    make_topic(servers, topic, 4)
    confluent = ConfluentConsumer(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "partition.assignment.strategy": strategy,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 6000,
        }
    )
    try:
        confluent.subscribe([topic])
        consumer = make(**group_settings("classic", strategy), group_id=group)
        consumer.subscribe([topic])
        deadline = time.monotonic() + 30
        while not (len(consumer.assignment()) == 2 and len(confluent.assignment()) == 2):
            assert time.monotonic() < deadline, (consumer.assignment(), confluent.assignment())
            confluent.poll(0.05)
            consumer.poll(0.05)
        assert {(t.topic, t.partition) for t in confluent.assignment()} | consumer.assignment() == partitions(topic, 4)
        confluent.close()
        confluent = None  # type: ignore[assignment]
        poll_until([consumer], lambda: len(consumer.assignment()) == 4)
    finally:
        if confluent is not None:
            confluent.close()


# --- transactions


def test_read_committed_returns_only_committed_records(servers: str, make: Make, topic: str) -> None:
    make_topic(servers, topic)
    with Producer(bootstrap_servers=servers, transactional_id=f"tx-{topic}") as producer:
        producer.init_transactions()
        expected: list[bytes] = []
        for number in range(6):
            producer.begin_transaction()
            some = numbers(50, number * 50)
            for value in some:
                producer.send(topic, value)
            if number % 2:
                producer.flush()
                producer.abort_transaction()
            else:
                producer.commit_transaction()
                expected += some
        consumer = make(auto_offset_reset="earliest", isolation_level="read_committed")
        consumer.assign([(topic, 0)])
        assert [r.value for r in read(consumer, 150)] == expected
        producer.begin_transaction()
        producer.send(topic, b"open").get(30)
        assert not consumer.poll(0.7)
        everything = make(auto_offset_reset="earliest")
        everything.assign([(topic, 0)])
        assert read(everything, 301)[-1].value == b"open"
        tp = TopicPartition(topic, 0)
        assert consumer.end_offsets([tp])[tp] < everything.end_offsets([tp])[tp]
        assert consumer.lag(tp) == 0
        producer.commit_transaction()
        assert [r.value for r in read(consumer, 1)] == [b"open"]


def test_offsets_are_committed_with_a_transaction(
    servers: str, make: Make, topic: str, group: str, protocol: str
) -> None:
    fill(servers, topic, numbers(20))
    target = f"{topic}-out"
    make_topic(servers, target)
    consumer = make(
        **group_settings(protocol), group_id=group, enable_auto_commit=False, isolation_level="read_committed"
    )
    consumer.subscribe([topic])
    tp = TopicPartition(topic, 0)
    with Producer(bootstrap_servers=servers, transactional_id=f"tx-{topic}") as producer:
        producer.init_transactions()
        records = read(consumer, 20)
        for commit in (False, True):
            producer.begin_transaction()
            for record in records:
                producer.send(target, record.value)
            producer.send_offsets_to_transaction({tp: records[-1].offset + 1}, consumer.group_metadata())
            if commit:
                producer.commit_transaction()
                assert consumer.committed([tp])[tp].offset == 20  # type: ignore[union-attr]
            else:
                producer.abort_transaction()
                assert consumer.committed([tp])[tp] is None


def test_a_dropped_consumer_leaves_its_group_without_a_commit(
    servers: str, topic: str, group: str, protocol: str
) -> None:
    fill(servers, topic, numbers(10))
    settings = group_settings(protocol) | {"group_id": group, "auto_commit_interval_ms": 600_000}
    consumer = Consumer(bootstrap_servers=servers, **settings)
    consumer.subscribe([topic], listener=RecordingListener())
    read(consumer, 10)
    with Admin(bootstrap_servers=servers) as admin:
        assert len(admin.describe_consumer_groups([group])[group].members) == 1
        with pytest.warns(ResourceWarning):
            del consumer
            gc.collect()
        deadline = time.monotonic() + 60
        while admin.describe_consumer_groups([group])[group].members:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert not admin.list_consumer_group_offsets(group)
