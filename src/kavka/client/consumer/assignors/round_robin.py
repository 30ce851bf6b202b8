"""[pure] Assigns the partitions of all topics, in order, to the members in turn. Skips members that
do not subscribe to the topic."""

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
        members_in_turn = cycle(members_in_order(members))
        topics = {topic for subscription in members.values() for topic in subscription.topics}
        for topic in sorted(topics & partitions.keys()):
            for partition in range(partitions[topic]):
                member = next(members_in_turn)
                while topic not in members[member].topics:
                    member = next(members_in_turn)
                result[member].append(TopicPartition(topic, partition))
        return result
