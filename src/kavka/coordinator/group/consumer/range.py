"""[pure] The assignor `range`: each subscriber of a topic gets a contiguous range of partitions.

The subscribers of a topic are ordered, and its partitions are split into as many ranges; the first
ranges are longer by one if the division has a remainder. Topics with the same number of partitions
and the same subscribers are split the same way, so that joins find partition n of all topics on one
member.

Members with lower partitions come first, so that they keep their ranges. New members follow: static
members by instance id, the others by member id.
"""

from __future__ import annotations

from uuid import UUID

from kavka.coordinator.group.consumer.assignors import AssignmentBuilder, Members, TopicsById, in_order
from kavka.coordinator.group.consumer.records import Partitions

NOWHERE = 1 << 31


def assign_ranges(members: Members, topics: TopicsById) -> dict[str, Partitions]:
    builder = AssignmentBuilder(members)
    subscribers: dict[UUID, list[str]] = {}
    for member_id in sorted(members):
        for topic_id in members[member_id].topics:
            subscribers.setdefault(topic_id, []).append(member_id)
    alike: dict[tuple[int, tuple[str, ...]], list[UUID]] = {}
    for topic_id in in_order({topic_id: topics[topic_id] for topic_id in subscribers}):
        key = (topics[topic_id].partitions, tuple(subscribers[topic_id]))
        alike.setdefault(key, []).append(topic_id)
    for (count, row), same in alike.items():
        places = sorted(row, key=lambda member_id: _place(members, member_id, same))
        length, longer = divmod(count, len(places))
        start = 0
        for index, member_id in enumerate(places):
            end = start + length + (index < longer)
            for topic_id in same:
                for partition in range(start, end):
                    builder.assign(member_id, topic_id, partition)
            start = end
    return builder.result()


def _place(members: Members, member_id: str, topics: list[UUID]) -> tuple[int, bool, str]:
    spec = members[member_id]
    held = [min(spec.assigned[topic_id]) for topic_id in topics if spec.assigned.get(topic_id)]
    lowest = min(held) if held else NOWHERE
    return (lowest, spec.instance_id is None, spec.instance_id or member_id)
