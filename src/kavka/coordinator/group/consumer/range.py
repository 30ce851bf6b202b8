"""[pure] The assignor `range`: of each topic, every subscriber gets a run of partitions.

The members that subscribe to a topic stand in a row, and its partitions are cut into as many runs, the first ones
longer by one where that does not come out even. Topics with the same number of partitions and the same subscribers are
cut alike for the same row: whoever has partition 3 of one has partition 3 of all, which is what joins need.

Members keep their places in the row: those that have lower partitions come first. New ones come after them, static
members by their instance ids, the others by their member ids.
"""

from __future__ import annotations

from uuid import UUID

from kavka.coordinator.group.consumer.assignors import Hands, Members, TopicsById, in_order
from kavka.coordinator.group.consumer.records import Partitions

NOWHERE = 1 << 31


def assign_ranges(members: Members, topics: TopicsById) -> dict[str, Partitions]:
    hands = Hands(members)
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
                    hands.give(member_id, topic_id, partition)
            start = end
    return hands.result()


def _place(members: Members, member_id: str, topics: list[UUID]) -> tuple[int, bool, str]:
    spec = members[member_id]
    held = [min(spec.assigned[topic_id]) for topic_id in topics if spec.assigned.get(topic_id)]
    lowest = min(held) if held else NOWHERE
    return (lowest, spec.instance_id is None, spec.instance_id or member_id)
