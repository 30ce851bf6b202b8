"""Leaders and replicas: elections, and moving partitions between brokers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kavka.client.admin.base import AdminBase, Outcome, by_partition, milliseconds
from kavka.client.admin.types import ElectionType, PartitionReassignment
from kavka.client.errors import error_of
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition, by_topic
from kavka.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from kavka.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from kavka.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)


class Replicas(AdminBase):
    async def elect_leaders(
        self,
        election_type: ElectionType = ElectionType.PREFERRED,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        timeout: float | None = None,
    ) -> dict[TopicPartition, KafkaError | None]:
        """Elect leaders of these partitions, or of all partitions if `partitions` is None.
        PREFERRED elects the preferred replica. UNCLEAN elects any live replica if a partition has
        no leader. Returns, for each partition, None or the error if no leader was elected."""
        requested = None if partitions is None else by_topic(partitions)
        limit = self._timeout if timeout is None else timeout

        async def attempt() -> dict[TopicPartition, KafkaError | None]:
            request = ElectLeadersRequest(election_type=int(election_type), timeout_ms=milliseconds(limit))
            request.topic_partitions = (
                None
                if requested is None
                else [TopicPartitions(topic=topic, partitions=ids) for topic, ids in requested.items()]
            )
            response = await self._request(await self._controller(), request, timeout=max(limit, self._request_timeout))
            if response.error_code:
                raise error_of(response.error_code)
            return {
                TopicPartition(t.topic, p.partition_id): (
                    error_of(p.error_code, p.error_message) if p.error_code else None
                )
                for t in response.replica_election_results
                for p in t.partition_result
                # If all partitions were requested, omit those that needed no election.
                if requested is not None or p.error_code != ErrorCode.ELECTION_NOT_NEEDED
            }

        return await self._once("elect_leaders", attempt, timeout)

    async def alter_partition_reassignments(
        self,
        reassignments: Mapping[TopicPartition, Sequence[int] | None],
        *,
        timeout: float | None = None,
    ) -> None:
        """Start to move partitions to other brokers. The first replica is the preferred leader;
        None cancels a reassignment."""
        requested = {TopicPartition(*tp): replicas for tp, replicas in reassignments.items()}
        limit = self._timeout if timeout is None else timeout

        async def attempt(remaining: list[TopicPartition]) -> Outcome[TopicPartition, None]:
            topics: dict[str, ReassignableTopic] = {}
            for tp in remaining:
                replicas = requested[tp]
                topics.setdefault(tp.topic, ReassignableTopic(name=tp.topic)).partitions.append(
                    ReassignablePartition(
                        partition_index=tp.partition, replicas=None if replicas is None else list(replicas)
                    )
                )
            request = AlterPartitionReassignmentsRequest(topics=list(topics.values()), timeout_ms=milliseconds(limit))
            response = await self._request(await self._controller(), request, timeout=max(limit, self._request_timeout))
            if response.error_code:
                raise error_of(response.error_code, response.error_message)
            return by_partition(response.responses, lambda p: None)

        await self._each(requested, attempt, timeout)

    async def list_partition_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None, *, timeout: float | None = None
    ) -> dict[TopicPartition, PartitionReassignment]:
        """Return the reassignments in progress of these partitions, or of all partitions if
        `partitions` is None."""
        requested = None if partitions is None else by_topic(partitions)
        limit = self._timeout if timeout is None else timeout

        async def attempt() -> dict[TopicPartition, PartitionReassignment]:
            request = ListPartitionReassignmentsRequest(timeout_ms=milliseconds(limit))
            if requested is not None:
                request.topics = [
                    ListPartitionReassignmentsTopics(name=name, partition_indexes=ids)
                    for name, ids in requested.items()
                ]
            response = await self._request(await self._controller(), request, timeout=max(limit, self._request_timeout))
            if response.error_code:
                raise error_of(response.error_code, response.error_message)
            return {
                TopicPartition(t.name, p.partition_index): PartitionReassignment(
                    tuple(p.replicas), tuple(p.adding_replicas), tuple(p.removing_replicas)
                )
                for t in response.topics
                for p in t.partitions
            }

        return await self._once("list_partition_reassignments", attempt, timeout)
