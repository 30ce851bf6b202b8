"""[pure] Assigns each member a range of the partitions of each topic.

If the partitions of a topic do not divide evenly, the first members get one extra partition each.
Partition n is assigned to the same member in all topics with equal partition counts and
subscribers.
"""

from __future__ import annotations

from collections.abc import Mapping

from kavka.client.consumer.assignors import Assignor, Subscription, members_in_order
from kavka.common.types import TopicPartition


class RangeAssignor(Assignor):
    name = "range"

    def assign(
        self, partitions: Mapping[str, int], members: Mapping[str, Subscription]
    ) -> dict[str, list[TopicPartition]]:
        result: dict[str, list[TopicPartition]] = {member: [] for member in members}
        order = members_in_order(members)
        for topic in sorted(partitions):
            subscribers = [member for member in order if topic in members[member].topics]
            if not subscribers:
                continue
            share, extras = divmod(partitions[topic], len(subscribers))
            first = 0
            for index, member in enumerate(subscribers):
                end = first + share + (index < extras)
                result[member] += [TopicPartition(topic, p) for p in range(first, end)]
                first = end
        return result
