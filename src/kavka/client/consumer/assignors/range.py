"""[pure] Topic by topic, each member a stretch of neighbouring partitions, the first members one more where it does not
come out even. So partition n of topics with the same number of partitions goes to the same member."""

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
            takers = [member for member in order if topic in members[member].topics]
            if not takers:
                continue
            share, extras = divmod(partitions[topic], len(takers))
            first = 0
            for index, member in enumerate(takers):
                after = first + share + (index < extras)
                result[member] += [TopicPartition(topic, p) for p in range(first, after)]
                first = after
        return result
