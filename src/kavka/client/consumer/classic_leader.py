"""The leader of a classic group: assigns the partitions of all topics that members subscribe to."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

from kavka.client.cluster import Cluster
from kavka.client.consumer import assignors, embedded
from kavka.client.consumer.assignors import Subscription
from kavka.client.consumer.subscription import Subscriptions
from kavka.client.errors import KafkaTimeout
from kavka.common.errors import ErrorCode, KafkaError
from kavka.protocol.messages.join_group import JoinGroupResponse
from kavka.protocol.messages.sync_group import SyncGroupRequestAssignment
from kavka.protocol.primitives import ProtocolError

logger = logging.getLogger(__name__)


class GroupLeader:
    """Owns `partition_counts`, the partition count of each topic in the last assignment of this
    leader. `partition_counts` is None while another member is the leader. Runs on the event
    loop."""

    def __init__(
        self, group_id: str, loaded: Sequence[Any], cluster: Cluster, subscriptions: Subscriptions, timeout: float
    ) -> None:
        self._group_id = group_id
        self._assignors = loaded
        self._cluster = cluster
        self._subscriptions = subscriptions
        self._timeout = timeout
        self.partition_counts: dict[str, int] | None = None

    def is_assignment_outdated(self) -> bool:
        """Whether a partition count has changed since the last assignment of this leader."""
        counts = self.partition_counts
        return counts is not None and counts != self._current_counts(counts)

    def _current_counts(self, topics: Iterable[str]) -> dict[str, int]:
        by_name = self._cluster.topics
        return {topic: len(by_name[topic].partitions) if topic in by_name else 0 for topic in topics}

    async def assign(
        self, response: JoinGroupResponse, protocol: str, *, cooperative: bool
    ) -> list[SyncGroupRequestAssignment]:
        """Return the assignments of all members, or an empty list if all members keep their
        assignments. Raises KafkaError if a subscription is invalid or the assignor is not
        usable."""
        members: dict[str, Subscription] = {}
        for member in response.members:
            try:
                members[member.member_id] = embedded.read_subscription(member.metadata, member.group_instance_id)
            except ProtocolError as error:
                raise KafkaError(
                    ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                    f"the subscription of {member.member_id} cannot be decoded: {error}",
                ) from None
        topics = frozenset(topic for subscription in members.values() for topic in subscription.topics)
        await self._load_metadata(topics)
        if response.skip_assignment:
            # This leader is a static member that rejoined: all members keep their assignments.
            self.partition_counts = self._current_counts(topics)
            return []
        assignor = next((assignor for assignor in self._assignors if assignor.name == protocol), None)
        if assignor is None:
            raise KafkaError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"the group uses the assignor {protocol}, which is not configured",
            )
        counts = self._current_counts(topics)
        partitions = assignor.assign({topic: count for topic, count in counts.items() if count}, members)
        assignments = assignors.as_assignments(partitions, members)
        if cooperative:
            violation = assignors.check_cooperative(members, assignments)
            if violation is not None:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, f"assignor {protocol} claims to be cooperative, but {violation}"
                )
        self.partition_counts = counts
        return [
            SyncGroupRequestAssignment(member_id=member_id, assignment=embedded.write_assignment(assignment))
            for member_id, assignment in assignments.items()
        ]

    async def _load_metadata(self, topics: frozenset[str]) -> None:
        """Wait for metadata of the topics of all members. Topics that do not exist are ignored."""
        cluster = self._cluster
        subscriptions = self._subscriptions
        subscriptions.group_topics = topics
        missing = [topic for topic in topics if topic not in cluster.topics]
        if not cluster.all_topics:
            cluster.set_topics(subscriptions.topics | topics)
        if missing:
            try:
                await cluster.wait_for_update(cluster.request_update(), self._timeout)
            except KafkaTimeout as error:
                logger.warning(
                    "The leader of group %s assigns partitions without metadata of %s: %s",
                    self._group_id, missing, error,
                )  # fmt: skip
