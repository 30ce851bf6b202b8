"""Assignors assign every partition to one subscriber, balanced and with as few moves as
possible."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kavka import Consumer
from kavka.client.consumer import assignors
from kavka.client.consumer.assignors import Assignment, Subscription
from kavka.client.consumer.assignors.range import RangeAssignor
from kavka.client.consumer.assignors.round_robin import RoundRobinAssignor
from kavka.client.consumer.assignors.sticky import (
    CooperativeStickyAssignor,
    StickyAssignor,
    read_user_data,
    write_user_data,
)
from kavka.common.config import ConfigError
from kavka.common.types import TopicPartition as TP

TOPICS = ("a", "b", "c", "d")
ALL = (RangeAssignor, RoundRobinAssignor, StickyAssignor, CooperativeStickyAssignor)

counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 9), min_size=1)
names = st.sampled_from([f"m{i}" for i in range(8)])
groups = st.dictionaries(names, st.frozensets(st.sampled_from(TOPICS), min_size=1), min_size=1)
equal_groups = st.builds(
    lambda members, topics: dict.fromkeys(members, topics),
    st.sets(names, min_size=1),
    st.frozensets(st.sampled_from(TOPICS), min_size=1),
)


def members_of(group: Mapping[str, frozenset[str]]) -> dict[str, Subscription]:
    return {member: Subscription(topics) for member, topics in group.items()}


def owners(assignment: Mapping[str, Any]) -> dict[TP, str]:
    pairs = [(tp, member) for member, tps in assignment.items() for tp in tps]
    assert len({tp for tp, _ in pairs}) == len(pairs), "a partition has two owners"
    return dict(pairs)


def subscribed_partitions(partitions: Mapping[str, int], group: Mapping[str, frozenset[str]]) -> set[TP]:
    subscribed = {topic for topics in group.values() for topic in topics}
    return {TP(topic, p) for topic, count in partitions.items() if topic in subscribed for p in range(count)}


@pytest.mark.parametrize("kind", ALL)
@given(partitions=counts, group=groups)
@settings(max_examples=60)
def test_every_partition_is_assigned_to_one_subscriber(kind, partitions, group):
    assignment = kind().assign(partitions, members_of(group))
    assert assignment.keys() == group.keys()
    assert owners(assignment).keys() == subscribed_partitions(partitions, group)
    assert all(tp.topic in group[member] for tp, member in owners(assignment).items())


def test_range_assigns_ranges_and_one_more_to_the_first_members():
    members = members_of({"m2": frozenset("a"), "m1": frozenset("a"), "m3": frozenset("a")})
    assignment = RangeAssignor().assign({"a": 8}, members)
    assert [[tp.partition for tp in assignment[m]] for m in ("m1", "m2", "m3")] == [[0, 1, 2], [3, 4, 5], [6, 7]]


def test_range_assigns_equal_partitions_of_two_topics_to_the_same_member():
    assignment = RangeAssignor().assign({"a": 3, "b": 3}, members_of(dict.fromkeys(("x", "y", "z"), frozenset("ab"))))
    assert all(sorted(tp.partition for tp in tps) == [i, i] for i, tps in enumerate(assignment[m] for m in "xyz"))


def test_round_robin_assigns_in_turn_over_all_topics():
    assignment = RoundRobinAssignor().assign({"a": 3, "b": 3}, members_of(dict.fromkeys(("x", "y"), frozenset("ab"))))
    assert assignment == {"x": [TP("a", 0), TP("a", 2), TP("b", 1)], "y": [TP("a", 1), TP("b", 0), TP("b", 2)]}


def test_static_members_are_first_by_instance_id():
    members = {"z": Subscription(frozenset("a"), instance_id="1"), "b": Subscription(frozenset("a"))}
    members["a"] = Subscription(frozenset("a"), instance_id="2")
    assert assignors.members_in_order(members) == ["z", "a", "b"]


# --- sticky


def rejoining(assignment: Mapping[str, Any], group: Mapping[str, frozenset[str]], generation: int = 5):
    return {
        member: Subscription(topics, owned=tuple(assignment.get(member, ())), generation=generation)
        for member, topics in group.items()
    }


def loads(assignment: Mapping[str, Any]) -> list[int]:
    return sorted(len(tps) for tps in assignment.values())


@given(partitions=counts, group=equal_groups)
def test_sticky_assignments_differ_by_at_most_one(partitions, group):
    sizes = loads(StickyAssignor().assign(partitions, members_of(group)))
    assert sizes[-1] - sizes[0] <= 1


@given(partitions=counts, group=groups)
def test_unchanged_group_keeps_its_assignment(partitions, group):
    first = StickyAssignor().assign(partitions, members_of(group))
    assert StickyAssignor().assign(partitions, rejoining(first, group)) == first


@given(partitions=counts, group=equal_groups, newcomer=st.sampled_from(("n1", "n2")))
def test_new_member_gets_a_share_without_other_moves(partitions, group, newcomer):
    first = StickyAssignor().assign(partitions, members_of(group))
    larger = {**group, newcomer: next(iter(group.values()))}
    second = StickyAssignor().assign(partitions, rejoining(first, larger))
    for member in group:
        assert set(second[member]) <= set(first[member])
    assert loads(second)[-1] - loads(second)[0] <= 1


@given(partitions=counts, group=equal_groups, data=st.data())
def test_members_keep_their_partitions_when_others_leave(partitions, group, data):
    first = StickyAssignor().assign(partitions, members_of(group))
    remaining = data.draw(st.sets(st.sampled_from(sorted(group)), min_size=1))
    second = StickyAssignor().assign(partitions, rejoining(first, {m: group[m] for m in remaining}))
    assert all(set(first[m]) <= set(second[m]) for m in remaining)


@given(partitions=counts, group=groups, previous_group=groups)
def test_no_chain_of_moves_improves_the_balance(partitions, group, previous_group):
    first = StickyAssignor().assign(partitions, members_of(previous_group))
    assignment = StickyAssignor().assign(partitions, rejoining(first, group))
    owner = owners(assignment)
    for taker in group:
        reached, queue = {taker}, [taker]
        while queue:
            member = queue.pop()
            for tp, other in owner.items():
                if tp.topic in group[member] and other not in reached:
                    reached.add(other)
                    queue.append(other)
        assert all(len(assignment[other]) < len(assignment[taker]) + 2 for other in reached)


def test_newer_generation_keeps_a_partition_and_equal_generations_lose_it():
    members = {
        "old": Subscription(frozenset("a"), owned=(TP("a", 0), TP("a", 1)), generation=3),
        "new": Subscription(frozenset("a"), owned=(TP("a", 0),), generation=4),
    }
    assignment = StickyAssignor().assign({"a": 2}, members)
    assert assignment == {"old": [TP("a", 1)], "new": [TP("a", 0)]}
    twice = {m: Subscription(frozenset("a"), owned=(TP("a", 0),), generation=4) for m in ("x", "y")}
    assert loads(StickyAssignor().assign({"a": 4}, twice)) == [2, 2]


def test_sticky_user_data_has_the_layout_of_kafka():
    assignor = StickyAssignor()
    assert assignor.user_data(frozenset("a")) is None
    assignor.on_assignment(Assignment((TP("a", 1), TP("b", 0), TP("a", 0))), 7)
    data = assignor.user_data(frozenset("a"))
    # Kafka's layout: two topics; "a" with 0 and 1; "b" with 0; generation 7.
    assert data.hex() == ("00000002000161000000020000000000000001000162000000010000000000000007")
    assert read_user_data(data) == ((TP("a", 0), TP("a", 1), TP("b", 0)), 7)
    assert CooperativeStickyAssignor().user_data(frozenset()) == b"\xff\xff\xff\xff"


@given(st.binary(max_size=40))
def test_invalid_user_data_is_ignored(data):
    owned, generation = read_user_data(data)
    assert isinstance(owned, tuple) and isinstance(generation, int)


def test_truncated_user_data_is_ignored():
    assignments = write_user_data((TP("topic", 1), TP("topic", 2)), 3)
    for end in range(len(assignments)):
        read_user_data(assignments[:end])


@given(partitions=counts, group=equal_groups, newcomer=st.sampled_from(("n1", "n2")))
def test_cooperative_sticky_moves_partitions_in_two_rounds(partitions, group, newcomer):
    assignor = CooperativeStickyAssignor()
    first = assignor.assign(partitions, members_of(group))
    larger = {**group, newcomer: next(iter(group.values()))}
    members = rejoining(first, larger)
    second = assignor.assign(partitions, members)
    assignments = {m: Assignment(tuple(tps)) for m, tps in second.items()}
    assert assignors.check_cooperative(members, assignments) is None
    third = assignor.assign(partitions, rejoining(second, larger, 6))
    assert owners(third).keys() == subscribed_partitions(partitions, larger)
    assert loads(third)[-1] - loads(third)[0] <= 1
    moved = Counter(third[newcomer])
    assert all(tp in third[m] for m in group for tp in first[m] if tp not in moved)


def test_cooperative_check_finds_a_partition_with_another_owner():
    members = {"x": Subscription(frozenset("a"), owned=(TP("a", 0),)), "y": Subscription(frozenset("a"))}
    wrong = {"x": Assignment(), "y": Assignment((TP("a", 0),))}
    assert "a-0" in str(assignors.check_cooperative(members, wrong))


# --- the setting


class CustomAssignor:
    name = "custom"

    def assign(self, partitions, members):
        return {}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("range", ["range"]),
        (("range", "cooperative-sticky"), ["range", "cooperative-sticky"]),
        (["org.apache.kafka.clients.consumer.StickyAssignor"], ["sticky"]),
        ((CustomAssignor,), ["custom"]),
        ((CustomAssignor(), "roundrobin"), ["custom", "roundrobin"]),
        (f"{__name__}.CustomAssignor", ["custom"]),
    ],
)
def test_strategy_accepts_names_classes_and_objects(value, expected):
    assert [assignor.name for assignor in assignors.load(value, {})] == expected


@pytest.mark.parametrize("value", ["rnage", (), ("range", "range"), (object(),), "no.such.Thing"])
def test_invalid_assignor_is_a_config_error(value):
    with pytest.raises(ConfigError, match=r"partition\.assignment\.strategy"):
        assignors.load(value, {})


def test_members_without_an_assignment_get_an_empty_one():
    assignment = assignors.as_assignments({"x": [("a", 1)], "z": Assignment((TP("a", 2),), b"note")}, ("x", "y", "z"))
    assert assignment == {"x": Assignment((TP("a", 1),)), "y": Assignment(), "z": Assignment((TP("a", 2),), b"note")}


@pytest.mark.parametrize("group", [None, "g"])
@pytest.mark.parametrize("wrong", ["unfair", "", [], "range,unfair", [object()], "range,range"])
def test_invalid_strategy_is_rejected_by_the_constructor_with_and_without_a_group(wrong: Any, group: Any) -> None:
    with pytest.raises(ConfigError, match=r"partition\.assignment\.strategy: "):
        Consumer(bootstrap_servers="localhost:1", group_id=group, partition_assignment_strategy=wrong)


def test_error_for_an_unknown_assignor_lists_the_supported_ones() -> None:
    with pytest.raises(ConfigError, match=r"supported are .*cooperative-sticky, range, roundrobin, sticky"):
        Consumer(bootstrap_servers="localhost:1", partition_assignment_strategy="unfair")
