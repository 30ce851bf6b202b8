"""[pure] The server-side assignors.

An assignor gets the topics, and the members with their subscriptions and previous targets. It
assigns each partition of a subscribed topic to exactly one subscriber. The result does not depend
on the order of the input.

- `uniform`  spreads the partitions evenly and moves few of them (`uniform.py`)
- `range`    assigns the same partition numbers of several topics to the same member (`range.py`)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple
from uuid import UUID

from kavka.coordinator.group.consumer.records import Partitions
from kavka.coordinator.group.consumer.topics import Topic


class MemberSpec(NamedTuple):
    """A member as input of an assignor. `topics` are the existing topics that the member subscribes
    to, `assigned` is its previous target."""

    topics: frozenset[UUID]
    assigned: Partitions = {}
    instance_id: str | None = None
    rack_id: str | None = None


Members = Mapping[str, MemberSpec]
TopicsById = Mapping[UUID, Topic]
Assignor = Callable[[Members, TopicsById], dict[str, Partitions]]


class AssignmentBuilder:
    """An assignment under construction: `partitions` by member and topic, and the number of
    partitions (`loads`) by member."""

    __slots__ = ("loads", "partitions")

    def __init__(self, members: Members) -> None:
        self.partitions: dict[str, dict[UUID, set[int]]] = {member_id: {} for member_id in members}
        self.loads: dict[str, int] = dict.fromkeys(members, 0)

    def assign(self, member_id: str, topic_id: UUID, partition: int) -> None:
        self.partitions[member_id].setdefault(topic_id, set()).add(partition)
        self.loads[member_id] += 1

    def unassign(self, member_id: str, topic_id: UUID, partition: int) -> None:
        self.partitions[member_id][topic_id].discard(partition)
        self.loads[member_id] -= 1

    def result(self) -> dict[str, Partitions]:
        return {
            member_id: {topic_id: frozenset(partitions) for topic_id, partitions in topics.items() if partitions}
            for member_id, topics in self.partitions.items()
        }


def sorted_by_name(topics: TopicsById) -> list[UUID]:
    return sorted(topics, key=lambda topic_id: (topics[topic_id].name, topic_id))


def subscribers_by_topic(members: Members) -> dict[UUID, list[str]]:
    """Return the sorted ids of the members that subscribe to each topic."""
    subscribers: dict[UUID, list[str]] = {}
    for member_id in sorted(members):
        for topic_id in members[member_id].topics:
            subscribers.setdefault(topic_id, []).append(member_id)
    return subscribers
