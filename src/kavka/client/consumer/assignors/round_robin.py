"""[pure] All partitions of all topics in order, dealt to the members in turn; one that does not read the topic is
passed over."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle

from kavka.client.consumer.assignors import Assignor, Subscription, members_in_order
from kavka.common.types import TopicPartition


class RoundRobinAssignor(Assignor):
    name = "roundrobin"

    def assign(
        self, partitions: Mapping[str, int], members: Mapping[str, Subscription]
    ) -> dict[str, list[TopicPartition]]:
        result: dict[str, list[TopicPartition]] = {member: [] for member in members}
        turns = cycle(members_in_order(members))
        wanted = {topic for one in members.values() for topic in one.topics}
        for topic in sorted(wanted & partitions.keys()):
            for partition in range(partitions[topic]):
                member = next(turns)
                while topic not in members[member].topics:
                    member = next(turns)
                result[member].append(TopicPartition(topic, partition))
        return result
