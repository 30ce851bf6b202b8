"""Assignors: every partition to one reader of its topic, shares even, as few moves as that takes."""

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
alike = st.builds(
    lambda members, topics: dict.fromkeys(members, topics),
    st.sets(names, min_size=1),
    st.frozensets(st.sampled_from(TOPICS), min_size=1),
)


def members_of(group: Mapping[str, frozenset[str]]) -> dict[str, Subscription]:
    return {member: Subscription(topics) for member, topics in group.items()}


def owners(assignment: Mapping[str, Any]) -> dict[TP, str]:
    found = [(tp, member) for member, tps in assignment.items() for tp in tps]
    assert len({tp for tp, _ in found}) == len(found), "a partition has two owners"
    return dict(found)


def readable(partitions: Mapping[str, int], group: Mapping[str, frozenset[str]]) -> set[TP]:
    wanted = {topic for topics in group.values() for topic in topics}
    return {TP(topic, p) for topic, count in partitions.items() if topic in wanted for p in range(count)}


@pytest.mark.parametrize("kind", ALL)
@given(partitions=counts, group=groups)
@settings(max_examples=60)
def test_every_partition_goes_to_one_member_that_reads_its_topic(kind, partitions, group):
    found = kind().assign(partitions, members_of(group))
    assert found.keys() == group.keys()
    assert owners(found).keys() == readable(partitions, group)
    assert all(tp.topic in group[member] for tp, member in owners(found).items())


def test_range_gives_neighbours_and_the_first_members_one_more():
    members = members_of({"m2": frozenset("a"), "m1": frozenset("a"), "m3": frozenset("a")})
    found = RangeAssignor().assign({"a": 8}, members)
    assert [[tp.partition for tp in found[m]] for m in ("m1", "m2", "m3")] == [[0, 1, 2], [3, 4, 5], [6, 7]]


def test_range_gives_the_same_partitions_of_two_topics_to_the_same_member():
    found = RangeAssignor().assign({"a": 3, "b": 3}, members_of(dict.fromkeys(("x", "y", "z"), frozenset("ab"))))
    assert all(sorted(tp.partition for tp in tps) == [i, i] for i, tps in enumerate(found[m] for m in "xyz"))


def test_round_robin_deals_in_turn_over_all_topics():
    found = RoundRobinAssignor().assign({"a": 3, "b": 3}, members_of(dict.fromkeys(("x", "y"), frozenset("ab"))))
    assert found == {"x": [TP("a", 0), TP("a", 2), TP("b", 1)], "y": [TP("a", 1), TP("b", 0), TP("b", 2)]}


def test_static_members_come_first_in_the_order_of_their_names():
    members = {"z": Subscription(frozenset("a"), instance_id="1"), "b": Subscription(frozenset("a"))}
    members["a"] = Subscription(frozenset("a"), instance_id="2")
    assert assignors.members_in_order(members) == ["z", "a", "b"]


# --- sticky


def again(assignment: Mapping[str, Any], group: Mapping[str, frozenset[str]], generation: int = 5):
    return {
        member: Subscription(topics, owned=tuple(assignment.get(member, ())), generation=generation)
        for member, topics in group.items()
    }


def loads(found: Mapping[str, Any]) -> list[int]:
    return sorted(len(tps) for tps in found.values())


@given(partitions=counts, group=alike)
def test_sticky_shares_differ_by_one_at_most(partitions, group):
    found = loads(StickyAssignor().assign(partitions, members_of(group)))
    assert found[-1] - found[0] <= 1


@given(partitions=counts, group=groups)
def test_nothing_moves_when_nothing_changed(partitions, group):
    first = StickyAssignor().assign(partitions, members_of(group))
    assert StickyAssignor().assign(partitions, again(first, group)) == first


@given(partitions=counts, group=alike, newcomer=st.sampled_from(("n1", "n2")))
def test_a_new_member_gets_its_share_and_nobody_else_gets_anything_new(partitions, group, newcomer):
    first = StickyAssignor().assign(partitions, members_of(group))
    larger = {**group, newcomer: next(iter(group.values()))}
    second = StickyAssignor().assign(partitions, again(first, larger))
    for member in group:
        assert set(second[member]) <= set(first[member])
    assert loads(second)[-1] - loads(second)[0] <= 1


@given(partitions=counts, group=alike, data=st.data())
def test_who_stays_keeps_everything_when_others_leave(partitions, group, data):
    first = StickyAssignor().assign(partitions, members_of(group))
    stay = data.draw(st.sets(st.sampled_from(sorted(group)), min_size=1))
    second = StickyAssignor().assign(partitions, again(first, {m: group[m] for m in stay}))
    assert all(set(first[m]) <= set(second[m]) for m in stay)


@given(partitions=counts, group=groups, before=groups)
def test_no_chain_of_moves_would_make_shares_more_even(partitions, group, before):
    first = StickyAssignor().assign(partitions, members_of(before))
    found = StickyAssignor().assign(partitions, again(first, group))
    owner = owners(found)
    for taker in group:
        reached, queue = {taker}, [taker]
        while queue:
            member = queue.pop()
            for tp, other in owner.items():
                if tp.topic in group[member] and other not in reached:
                    reached.add(other)
                    queue.append(other)
        assert all(len(found[other]) < len(found[taker]) + 2 for other in reached)


def test_a_claim_of_an_older_generation_loses_and_equal_ones_cancel_out():
    members = {
        "old": Subscription(frozenset("a"), owned=(TP("a", 0), TP("a", 1)), generation=3),
        "new": Subscription(frozenset("a"), owned=(TP("a", 0),), generation=4),
    }
    found = StickyAssignor().assign({"a": 2}, members)
    assert found == {"old": [TP("a", 1)], "new": [TP("a", 0)]}
    twice = {m: Subscription(frozenset("a"), owned=(TP("a", 0),), generation=4) for m in ("x", "y")}
    assert loads(StickyAssignor().assign({"a": 4}, twice)) == [2, 2]


def test_sticky_tells_in_its_user_data_what_it_had():
    assignor = StickyAssignor()
    assert assignor.user_data(frozenset("a")) is None
    assignor.on_assignment(Assignment((TP("a", 1), TP("b", 0), TP("a", 0))), 7)
    data = assignor.user_data(frozenset("a"))
    # Kafka's layout: two topics; "a" with 0 and 1; "b" with 0; generation 7.
    assert data.hex() == ("00000002000161000000020000000000000001000162000000010000000000000007")
    assert read_user_data(data) == ((TP("a", 0), TP("a", 1), TP("b", 0)), 7)
    assert CooperativeStickyAssignor().user_data(frozenset()) == b"\xff\xff\xff\xff"


@given(st.binary(max_size=40))
def test_user_data_that_is_none_counts_as_nothing(data):
    had, generation = read_user_data(data)
    assert isinstance(had, tuple) and isinstance(generation, int)


def test_user_data_cut_anywhere_is_not_believed_beyond_its_end():
    whole = write_user_data((TP("topic", 1), TP("topic", 2)), 3)
    for end in range(len(whole)):
        read_user_data(whole[:end])


@given(partitions=counts, group=alike, newcomer=st.sampled_from(("n1", "n2")))
def test_cooperative_takes_away_first_and_gives_in_the_second_round(partitions, group, newcomer):
    assignor = CooperativeStickyAssignor()
    first = assignor.assign(partitions, members_of(group))
    larger = {**group, newcomer: next(iter(group.values()))}
    members = again(first, larger)
    second = assignor.assign(partitions, members)
    whole = {m: Assignment(tuple(tps)) for m, tps in second.items()}
    assert assignors.check_cooperative(members, whole) is None
    third = assignor.assign(partitions, again(second, larger, 6))
    assert owners(third).keys() == readable(partitions, larger)
    assert loads(third)[-1] - loads(third)[0] <= 1
    moved = Counter(third[newcomer])
    assert all(tp in third[m] for m in group for tp in first[m] if tp not in moved)


def test_a_cooperative_assignment_that_gives_what_another_has_is_told():
    members = {"x": Subscription(frozenset("a"), owned=(TP("a", 0),)), "y": Subscription(frozenset("a"))}
    wrong = {"x": Assignment(), "y": Assignment((TP("a", 0),))}
    assert "a-0" in str(assignors.check_cooperative(members, wrong))


# --- the setting


class Own:
    name = "own"

    def assign(self, partitions, members):
        return {}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("range", ["range"]),
        (("range", "cooperative-sticky"), ["range", "cooperative-sticky"]),
        (["org.apache.kafka.clients.consumer.StickyAssignor"], ["sticky"]),
        ((Own,), ["own"]),
        ((Own(), "roundrobin"), ["own", "roundrobin"]),
        (f"{__name__}.Own", ["own"]),
    ],
)
def test_the_setting_takes_names_classes_and_objects(value, expected):
    assert [assignor.name for assignor in assignors.load(value, {})] == expected


@pytest.mark.parametrize("value", ["rnage", (), ("range", "range"), (object(),), "no.such.Thing"])
def test_what_is_no_assignor_is_refused_with_the_name_of_the_setting(value):
    with pytest.raises(ConfigError, match=r"partition\.assignment\.strategy"):
        assignors.load(value, {})


def test_members_that_an_assignor_leaves_out_get_nothing():
    found = assignors.as_assignments({"x": [("a", 1)], "z": Assignment((TP("a", 2),), b"note")}, ("x", "y", "z"))
    assert found == {"x": Assignment((TP("a", 1),)), "y": Assignment(), "z": Assignment((TP("a", 2),), b"note")}


@pytest.mark.parametrize("group", [None, "g"])
@pytest.mark.parametrize("wrong", ["unfair", "", [], "range,unfair", [object()], "range,range"])
def test_a_wrong_strategy_is_told_when_the_consumer_is_made_with_and_without_a_group(wrong: Any, group: Any) -> None:
    with pytest.raises(ConfigError, match=r"partition\.assignment\.strategy: "):
        Consumer(bootstrap_servers="localhost:1", group_id=group, partition_assignment_strategy=wrong)


def test_what_assignors_there_are_is_told_with_a_wrong_one() -> None:
    with pytest.raises(ConfigError, match=r"known are .*cooperative-sticky, range, roundrobin, sticky"):
        Consumer(bootstrap_servers="localhost:1", partition_assignment_strategy="unfair")
