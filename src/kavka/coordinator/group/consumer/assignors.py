"""[pure] The server-side assignors.

The input of an assignor is the members, with their subscriptions and their previous targets, and
the topics. It assigns each partition of a subscribed topic to exactly one subscriber. The result
does not depend on the order of the input.

- `uniform`  as evenly as the subscriptions allow, with as few moves as possible (`uniform.py`)
- `range`    co-partitioned: partitions with the same number to the same member (`range.py`)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple
from uuid import UUID

from kavka.coordinator.group.consumer.records import Partitions
from kavka.coordinator.group.consumer.topics import Topic


class MemberSpec(NamedTuple):
    """`topics`: the existing topics that the member subscribes to. `assigned`: its previous
    target."""

    topics: frozenset[UUID]
    assigned: Partitions = {}
    instance_id: str | None = None
    rack_id: str | None = None


Members = Mapping[str, MemberSpec]
TopicsById = Mapping[UUID, Topic]
Assignor = Callable[[Members, TopicsById], dict[str, Partitions]]


def by_name() -> dict[str, Assignor]:
    from kavka.coordinator.group.consumer.range import assign_ranges
    from kavka.coordinator.group.consumer.uniform import assign_uniformly

    return {"uniform": assign_uniformly, "range": assign_ranges}


class AssignmentBuilder:
    """A partial assignment: partitions by member and topic."""

    __slots__ = ("held", "loads")

    def __init__(self, members: Members) -> None:
        self.held: dict[str, dict[UUID, set[int]]] = {member_id: {} for member_id in members}
        self.loads: dict[str, int] = dict.fromkeys(members, 0)

    def assign(self, member_id: str, topic_id: UUID, partition: int) -> None:
        topics = self.held[member_id]
        partitions = topics.get(topic_id)
        if partitions is None:
            topics[topic_id] = {partition}
        else:
            partitions.add(partition)
        self.loads[member_id] += 1

    def unassign(self, member_id: str, topic_id: UUID, partition: int) -> None:
        self.held[member_id][topic_id].discard(partition)
        self.loads[member_id] -= 1

    def result(self) -> dict[str, Partitions]:
        return {
            member_id: {topic_id: frozenset(partitions) for topic_id, partitions in topics.items() if partitions}
            for member_id, topics in self.held.items()
        }


def in_order(topics: TopicsById) -> list[UUID]:
    return sorted(topics, key=lambda topic_id: (topics[topic_id].name, topic_id))
