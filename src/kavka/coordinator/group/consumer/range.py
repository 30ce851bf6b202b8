"""[pure] The assignor `range`: each subscriber of a topic gets a contiguous range of partitions.

The subscribers of a topic are sorted, and each gets one range. If the partitions do not divide
evenly, the first ranges have one extra partition each. Topics with the same number of partitions
and the same subscribers have the same ranges. So one member gets the same partition numbers of all
these topics, as joins require.

Members are sorted by their lowest previous partition, so that they keep their ranges. New members
follow: static members by instance id, then dynamic members by member id.
"""

from __future__ import annotations

from uuid import UUID

from kavka.coordinator.group.consumer.assignors import (
    AssignmentBuilder,
    Members,
    TopicsById,
    sorted_by_name,
    subscribers_by_topic,
)
from kavka.coordinator.group.consumer.records import Partitions

# Sorts after every partition.
NO_PARTITION = 1 << 31


def assign_ranges(members: Members, topics: TopicsById) -> dict[str, Partitions]:
    builder = AssignmentBuilder(members)
    subscribers = subscribers_by_topic(members)
    # Topics by number of partitions and subscribers.
    co_partitioned: dict[tuple[int, tuple[str, ...]], list[UUID]] = {}
    for topic_id in sorted_by_name({topic_id: topics[topic_id] for topic_id in subscribers}):
        key = (topics[topic_id].partitions, tuple(subscribers[topic_id]))
        co_partitioned.setdefault(key, []).append(topic_id)
    for (count, member_ids), topic_ids in co_partitioned.items():
        length, remainder = divmod(count, len(member_ids))
        start = 0
        sorted_members = sorted(member_ids, key=lambda member_id: _sort_key(members, member_id, topic_ids))
        for index, member_id in enumerate(sorted_members):
            end = start + length + (index < remainder)
            for topic_id in topic_ids:
                for partition in range(start, end):
                    builder.assign(member_id, topic_id, partition)
            start = end
    return builder.result()


def _sort_key(members: Members, member_id: str, topic_ids: list[UUID]) -> tuple[int, bool, str]:
    spec = members[member_id]
    lowest = min((min(spec.assigned[t]) for t in topic_ids if spec.assigned.get(t)), default=NO_PARTITION)
    return (lowest, spec.instance_id is None, spec.instance_id or member_id)
