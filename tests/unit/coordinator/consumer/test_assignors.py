"""Properties of every assignment, for any members and topics."""

from __future__ import annotations

import time
from collections import Counter
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kavka.coordinator.group.consumer.assignors import Assignor, MemberSpec
from kavka.coordinator.group.consumer.range import assign_ranges
from kavka.coordinator.group.consumer.records import Partitions
from kavka.coordinator.group.consumer.topics import Topic
from kavka.coordinator.group.consumer.uniform import assign_uniformly
from tests.unit.coordinator.consumer.harness import topic_id

ASSIGNORS = {"uniform": assign_uniformly, "range": assign_ranges}
RACKS = ("r1", "r2", "r3")

TopicsById = dict[UUID, Topic]
Specs = dict[str, MemberSpec]


def topics_of(counts: dict[str, int], racks: tuple[tuple[str, ...], ...] = ()) -> TopicsById:
    topics = {}
    for name, count in counts.items():
        of_partitions = tuple(frozenset(racks[i % len(racks)]) for i in range(count)) if racks else ()
        topics[topic_id(name)] = Topic(name, topic_id(name), count, of_partitions)
    return topics


counts = st.dictionaries(st.sampled_from("abcde"), st.integers(1, 12), min_size=1, max_size=5)
names = st.lists(st.sampled_from([f"m{i}" for i in range(8)]), min_size=1, max_size=8, unique=True)


@st.composite
def groups(draw: st.DrawFn, same_topics: bool | None = None) -> tuple[Specs, TopicsById]:
    racks = draw(st.sampled_from([(), (("r1",), ("r2",), ("r1", "r3"))]))
    topics = topics_of(draw(counts), racks)
    ids = sorted(topics, key=lambda topic: topics[topic].name)
    same = draw(st.booleans()) if same_topics is None else same_topics
    everything = frozenset(ids)
    members = {}
    for name in draw(names):
        subscribed = everything if same else frozenset(draw(st.lists(st.sampled_from(ids), unique=True)))
        rack = draw(st.sampled_from((None, *RACKS)))
        members[name] = MemberSpec(subscribed, {}, draw(st.sampled_from([None, None, f"i-{name}"])), rack)
    return members, topics


def with_target(members: Specs, target: dict[str, Partitions]) -> Specs:
    return {name: spec._replace(assigned=target.get(name, {})) for name, spec in members.items()}


def partition_set(partitions: Partitions) -> set[tuple[UUID, int]]:
    return {(topic, index) for topic, indexes in partitions.items() for index in indexes}


def moved(previous: dict[str, Partitions], target: dict[str, Partitions]) -> int:
    """Return the number of partitions whose owner changed."""
    owner = {partition: name for name, partitions in previous.items() for partition in partition_set(partitions)}
    return sum(
        owner.get(partition, name) != name for name, assigned in target.items() for partition in partition_set(assigned)
    )


def check_complete(members: Specs, topics: TopicsById, target: dict[str, Partitions]) -> None:
    assert set(target) == set(members)
    assigned = Counter(partition for partitions in target.values() for partition in partition_set(partitions))
    subscribed = {topic for spec in members.values() for topic in spec.topics}
    assert assigned == Counter((topic, index) for topic in subscribed for index in range(topics[topic].partitions))
    for name, partitions in target.items():
        assert set(partitions) <= members[name].topics
        assert all(partitions.values()), "there is no topic without partitions"


@pytest.mark.parametrize("assignor", ASSIGNORS.values(), ids=ASSIGNORS)
@settings(max_examples=150, deadline=None)
@given(group=groups(), changed_group=groups())
def test_every_partition_of_a_subscribed_topic_has_exactly_one_owner(
    assignor: Assignor, group: tuple[Specs, TopicsById], changed_group: tuple[Specs, TopicsById]
) -> None:
    members, topics = group
    target = assignor(members, topics)
    check_complete(members, topics, target)
    # Other members and topics, with the previous target of the first group.
    changed_members, changed_topics = changed_group
    changed_members = with_target(changed_members, target)
    check_complete(changed_members, changed_topics, assignor(changed_members, changed_topics))


@pytest.mark.parametrize("assignor", ASSIGNORS.values(), ids=ASSIGNORS)
@settings(max_examples=60, deadline=None)
@given(group=groups(), data=st.data())
def test_the_assignment_does_not_depend_on_the_order_of_the_input(
    assignor: Assignor, group: tuple[Specs, TopicsById], data: st.DataObject
) -> None:
    members, topics = group
    shuffled = dict(data.draw(st.permutations(sorted(members.items()))))
    other = dict(data.draw(st.permutations(sorted(topics.items()))))
    assert assignor(members, topics) == assignor(shuffled, other)


@pytest.mark.parametrize("assignor", ASSIGNORS.values(), ids=ASSIGNORS)
@settings(max_examples=100, deadline=None)
@given(group=groups())
def test_no_partition_moves_without_a_change(assignor: Assignor, group: tuple[Specs, TopicsById]) -> None:
    members, topics = group
    target = assignor(members, topics)
    assert assignor(with_target(members, target), topics) == target


# ---- uniform


@settings(max_examples=150, deadline=None)
@given(group=groups(same_topics=True), new_names=names, new_counts=counts)
def test_uniform_loads_differ_by_at_most_one_if_all_subscriptions_are_equal(
    group: tuple[Specs, TopicsById], new_names: list[str], new_counts: dict[str, int]
) -> None:
    members, topics = group
    target = assign_uniformly(members, topics)
    check_even(target)
    new_topics = topics_of(new_counts)
    subscribed = frozenset(new_topics)
    new_members = with_target({name: MemberSpec(subscribed) for name in new_names}, target)
    check_even(assign_uniformly(new_members, new_topics))


def check_even(target: dict[str, Partitions]) -> None:
    shares = [len(partition_set(partitions)) for partitions in target.values()]
    assert max(shares) - min(shares) <= 1, shares


@settings(max_examples=150, deadline=None)
@given(group=groups(same_topics=True), new_names=names)
def test_uniform_moves_as_few_partitions_as_possible(group: tuple[Specs, TopicsById], new_names: list[str]) -> None:
    members, topics = group
    members = {name: spec._replace(rack_id=None) for name, spec in members.items()}
    target = assign_uniformly(members, topics)
    subscribed = frozenset(topics)
    new_members = with_target({name: MemberSpec(subscribed) for name in new_names}, target)
    new_target = assign_uniformly(new_members, topics)
    total = sum(topic.partitions for topic in topics.values())
    share, extras = divmod(total, len(new_members))
    sizes = [len(partition_set(target.get(name, {}))) for name in new_members]
    # The maximum: each member keeps its share, and `extras` members keep one partition new_names.
    could_stay = sum(min(count, share) for count in sizes) + min(extras, sum(count > share for count in sizes))
    stayed = sum(len(partition_set(target.get(name, {})) & partition_set(new_target[name])) for name in new_members)
    assert stayed == could_stay


@settings(max_examples=150, deadline=None)
@given(group=groups(same_topics=False), data=st.data())
def test_no_single_move_makes_uniform_loads_more_even(group: tuple[Specs, TopicsById], data: st.DataObject) -> None:
    members, topics = group
    target = assign_uniformly(members, topics)
    check_locally_even(members, target)
    staying = data.draw(st.lists(st.sampled_from(sorted(members)), min_size=1, unique=True))
    new_members = with_target({name: members[name] for name in staying}, target)
    new_target = assign_uniformly(new_members, topics)
    check_locally_even(new_members, new_target)
    # Without a change of the members no partition moves.
    if set(staying) == set(members):
        assert moved(target, new_target) == 0


def check_locally_even(members: Specs, target: dict[str, Partitions]) -> None:
    loads = {name: len(partition_set(partitions)) for name, partitions in target.items()}
    for name, partitions in target.items():
        for partition in partitions:
            for other, spec in members.items():
                if partition in spec.topics:
                    assert loads[name] - loads[other] <= 1, (loads, name, other)


def test_uniform_prefers_members_in_the_racks_of_the_replicas() -> None:
    topics = topics_of({"a": 6}, (("r1",), ("r2",), ("r3",)))
    members = {
        name: MemberSpec(frozenset(topics), rack_id=rack) for name, rack in (("m1", "r3"), ("m2", "r1"), ("m3", "r2"))
    }
    target = assign_uniformly(members, topics)
    topic_uuid = topic_id("a")
    assert {name: set(partitions[topic_uuid]) for name, partitions in target.items()} == {
        "m1": {2, 5},
        "m2": {0, 3},
        "m3": {1, 4},
    }


def test_uniform_prefers_members_in_the_racks_of_the_replicas_if_subscriptions_differ() -> None:
    topics = topics_of({"a": 3, "b": 1}, (("r1",), ("r2",), ("r3",)))
    a, b = topic_id("a"), topic_id("b")
    members = {
        "m1": MemberSpec(frozenset([a]), rack_id="r3"),
        "m2": MemberSpec(frozenset([a]), rack_id="r1"),
        "m3": MemberSpec(frozenset([a]), rack_id="r2"),
        "m4": MemberSpec(frozenset([b])),
    }
    target = assign_uniformly(members, topics)
    assert [sorted(target[name][a]) for name in ("m1", "m2", "m3")] == [[2], [0], [1]]


@pytest.mark.parametrize("same_topics", [True, False])
def test_a_large_group_is_assigned_within_two_seconds(same_topics: bool) -> None:
    topics = topics_of({f"t{i}": 20 for i in range(50)})
    everything = frozenset(topics)
    some = frozenset(sorted(topics)[:40])
    members = {f"m{i}": MemberSpec(everything if same_topics or i % 2 else some) for i in range(200)}
    start = time.process_time()
    target = assign_uniformly(members, topics)
    del members["m7"]
    assign_uniformly(with_target(members, target), topics)
    assert time.process_time() - start < 2.0


# ---- range


@settings(max_examples=150, deadline=None)
@given(group=groups(), new_names=names)
def test_range_co_partitions_topics_with_equal_subscribers_and_partition_counts(
    group: tuple[Specs, TopicsById], new_names: list[str]
) -> None:
    members, topics = group
    target = assign_ranges(members, topics)
    check_ranges(members, topics, target)
    subscribed = frozenset(topics)
    new_members = with_target({name: MemberSpec(subscribed) for name in new_names}, target)
    check_ranges(new_members, topics, assign_ranges(new_members, topics))


def check_ranges(members: Specs, topics: TopicsById, target: dict[str, Partitions]) -> None:
    subscribers = {topic: frozenset(n for n, spec in members.items() if topic in spec.topics) for topic in topics}
    for topic in topics:
        runs = [sorted(partitions.get(topic, ())) for partitions in target.values()]
        for run in runs:
            assert run == list(range(run[0], run[-1] + 1)) if run else True
        if subscribers[topic]:
            lengths = [len(target[name].get(topic, ())) for name in subscribers[topic]]
            assert max(lengths) - min(lengths) <= 1
        for other in topics:
            same_topics = (
                topics[topic].partitions == topics[other].partitions and subscribers[topic] == subscribers[other]
            )
            if same_topics:
                assert all(assigned.get(topic) == assigned.get(other) for assigned in target.values())


def test_range_keeps_the_order_of_members_when_a_member_is_replaced() -> None:
    topics = topics_of({"a": 6})
    subscribed, topic_uuid = frozenset(topics), topic_id("a")
    target = assign_ranges({name: MemberSpec(subscribed) for name in ("m1", "m2", "m3")}, topics)
    new_members = with_target({name: MemberSpec(subscribed) for name in ("a0", "m2", "m3")}, target)
    new_target = assign_ranges(new_members, topics)
    assert [sorted(new_target[name][topic_uuid]) for name in ("m2", "m3", "a0")] == [[0, 1], [2, 3], [4, 5]]


def test_range_sorts_new_static_members_by_instance_id() -> None:
    topics = topics_of({"a": 3})
    subscribed, topic_uuid = frozenset(topics), topic_id("a")
    members = {
        "x": MemberSpec(subscribed, {}, "i2"),
        "y": MemberSpec(subscribed, {}, "i1"),
        "b": MemberSpec(subscribed),
    }
    target = assign_ranges(members, topics)
    assert [sorted(target[name][topic_uuid]) for name in ("y", "x", "b")] == [[0], [1], [2]]
