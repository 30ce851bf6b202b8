"""Topics: creating, listing, describing and deleting them, and adding partitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

from kavka.client.admin.base import AdminBase, Outcome, as_list, by_key, milliseconds
from kavka.client.admin.types import (
    CreatedTopic,
    NewPartitions,
    NewTopic,
    TopicDescription,
    TopicListing,
    TopicPartitionInfo,
    operations,
)
from kavka.client.errors import UnsupportedVersion, error_of
from kavka.client.metadata import Node
from kavka.common.errors import KafkaError
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from kavka.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
)
from kavka.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from kavka.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
    TopicRequest,
)
from kavka.protocol.messages.metadata import (
    MetadataRequestTopic,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

MIN_BROKER_DEFAULTS_VERSION = 4
MIN_DELETE_BY_ID_VERSION = 6


class Topics(AdminBase):
    async def create_topics(
        self, topics: Iterable[NewTopic | str], *, validate_only: bool = False, timeout: float | None = None
    ) -> dict[str, CreatedTopic]:
        """Create topics and return their properties. A topic that is only a name gets the broker's
        defaults. `validate_only` validates the request without creating topics."""
        requested = {
            t.name: t for t in (NewTopic(t) if isinstance(t, str) else t for t in as_list(topics, (NewTopic, str)))
        }
        limit = self._timeout if timeout is None else timeout

        async def attempt(names: list[str]) -> Outcome[str, CreatedTopic]:
            connection = await self.cluster.connection(await self._controller(), timeout=self._request_timeout)
            version = connection.version_of(ApiKey.CREATE_TOPICS)
            request = CreateTopicsRequest(
                topics=[_creatable(requested[name], version) for name in names],
                timeout_ms=milliseconds(limit),
                validate_only=validate_only,
            )
            response = await connection.send(request, version=version, timeout=max(limit, self._request_timeout))
            return by_key(response.topics, lambda topic: topic.name, _created)

        return await self._each(requested, attempt, timeout)

    async def list_topics(
        self, list_internal: bool = False, *, timeout: float | None = None
    ) -> dict[str, TopicListing]:
        """Return all topics by name. Internal topics are included only if `list_internal` is
        set."""

        async def attempt() -> dict[str, TopicListing]:
            response = await self._metadata(None)
            listings = (TopicListing(t.name or "", t.topic_id, t.is_internal) for t in response.topics)
            return {t.name: t for t in sorted(listings) if list_internal or not t.is_internal}

        return await self._once("list_topics", attempt, timeout)

    async def describe_topics(
        self,
        topics: Iterable[str | UUID] | str | UUID,
        *,
        include_authorized_operations: bool = False,
        partitions_per_response: int = 2000,
        timeout: float | None = None,
    ) -> dict[str | UUID, TopicDescription]:
        """Describe topics by name or id; the result has the same keys. Brokers since 3.8 respond in
        pages of at most `partitions_per_response` partitions."""
        requested: list[str | UUID] = as_list(topics, (str, UUID))

        async def attempt(keys: list[str | UUID]) -> Outcome[str | UUID, TopicDescription]:
            connection = await self.cluster.any_connection(timeout=self._request_timeout)
            names = [key for key in keys if isinstance(key, str)]
            done: dict[str | UUID, TopicDescription] = {}
            errors: dict[str | UUID, KafkaError] = {}
            if names and connection.supports(ApiKey.DESCRIBE_TOPIC_PARTITIONS):
                await self._describe_by_pages(
                    names, include_authorized_operations, partitions_per_response, done, errors
                )
                keys = [key for key in keys if not isinstance(key, str)]
            if keys:
                response = await self._metadata(
                    (
                        MetadataRequestTopic(name=key)
                        if isinstance(key, str)
                        else MetadataRequestTopic(topic_id=key, name=None)
                        for key in keys
                    ),
                    include_authorized_operations,
                )
                for topic in response.topics:
                    key: str | UUID = topic.name if topic.name is not None and topic.name in keys else topic.topic_id
                    if topic.error_code:
                        errors[key] = error_of(topic.error_code)
                    else:
                        done[key] = _description(topic, self.cluster.nodes)
            return done, errors

        return await self._each(requested, attempt, timeout)

    async def _describe_by_pages(
        self,
        names: list[str],
        include_operations: bool,
        page: int,
        done: dict[str | UUID, TopicDescription],
        errors: dict[str | UUID, KafkaError],
    ) -> None:
        """Describe topics with DescribeTopicPartitions, which responds in pages. A topic may span
        several pages. Adds the results to `done` and the errors to `errors`."""
        await self._brokers()
        partitions: dict[str, list[TopicPartitionInfo]] = {}
        topics: dict[str, DescribeTopicPartitionsResponseTopic] = {}
        cursor: Cursor | None = None
        while True:
            # With a cursor, the request has only the topics from the cursor on, sorted by name.
            remaining = sorted(name for name in names if cursor is None or name >= cursor.topic_name)
            request = DescribeTopicPartitionsRequest(
                topics=[TopicRequest(name=name) for name in remaining], response_partition_limit=page, cursor=cursor
            )
            response = await self._request(None, request)
            for topic in response.topics:
                name = topic.name or ""
                if topic.error_code:
                    errors[name] = error_of(topic.error_code)
                    continue
                topics[name] = topic
                partitions.setdefault(name, []).extend(
                    _partition(p, self.cluster.nodes, p.eligible_leader_replicas, p.last_known_elr)
                    for p in topic.partitions
                )
            cursor = response.next_cursor
            if cursor is None:
                break
        for name, topic in topics.items():
            infos = sorted(partitions[name], key=lambda p: p.partition)
            bits = topic.topic_authorized_operations
            done[name] = TopicDescription(
                name,
                topic.topic_id,
                topic.is_internal,
                tuple(infos),
                operations(bits) if include_operations else None,
            )

    async def delete_topics(self, topics: Iterable[str | UUID] | str | UUID, *, timeout: float | None = None) -> None:
        """Delete topics by name or id, with all their records."""
        requested: list[str | UUID] = as_list(topics, (str, UUID))
        limit = self._timeout if timeout is None else timeout

        async def attempt(keys: list[str | UUID]) -> Outcome[str | UUID, None]:
            connection = await self.cluster.connection(await self._controller(), timeout=self._request_timeout)
            version = connection.version_of(ApiKey.DELETE_TOPICS)
            request = DeleteTopicsRequest(timeout_ms=milliseconds(limit))
            if version >= MIN_DELETE_BY_ID_VERSION:
                request.topics = [
                    DeleteTopicState(name=key) if isinstance(key, str) else DeleteTopicState(name=None, topic_id=key)
                    for key in keys
                ]
            elif all(isinstance(key, str) for key in keys):
                request.topic_names = [str(key) for key in keys]
            else:
                raise UnsupportedVersion(f"{connection.name} does not support deleting topics by id")
            response = await connection.send(request, version=version, timeout=max(limit, self._request_timeout))
            return by_key(
                response.responses,
                lambda result: result.name if result.name in keys else result.topic_id,
                lambda result: None,
            )

        await self._each(requested, attempt, timeout)

    async def create_partitions(
        self,
        partitions: Mapping[str, NewPartitions | int],
        *,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Add partitions to topics. A number is the new total, which must be higher than the
        current number of partitions."""
        requested = {name: NewPartitions(p) if isinstance(p, int) else p for name, p in partitions.items()}
        limit = self._timeout if timeout is None else timeout

        async def attempt(names: list[str]) -> Outcome[str, None]:
            request = CreatePartitionsRequest(
                topics=[_creatable_partitions(name, requested[name]) for name in names],
                timeout_ms=milliseconds(limit),
                validate_only=validate_only,
            )
            response = await self._request(await self._controller(), request, timeout=max(limit, self._request_timeout))
            return by_key(response.results, lambda result: result.name, lambda result: None)

        await self._each(requested, attempt, timeout)


def _creatable(topic: NewTopic, version: int) -> CreatableTopic:
    partitions, replicas = topic.num_partitions, topic.replication_factor
    assignments = [
        CreatableReplicaAssignment(partition_index=partition, broker_ids=list(brokers))
        for partition, brokers in (topic.replica_assignments or {}).items()
    ]
    if not assignments and version < MIN_BROKER_DEFAULTS_VERSION and (partitions is None or replicas is None):
        raise UnsupportedVersion(
            "the broker does not support defaults: set the number of partitions and the replication factor"
        )
    return CreatableTopic(
        name=topic.name,
        num_partitions=-1 if partitions is None else partitions,
        replication_factor=-1 if replicas is None else replicas,
        assignments=assignments,
        configs=[CreatableTopicConfig(name=name, value=_text(value)) for name, value in (topic.configs or {}).items()],
    )


def _text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ",".join(str(item) for item in value)
    return str(value)


def _created(result: CreatableTopicResult) -> CreatedTopic:
    configs = {config.name: config.value for config in result.configs or ()}
    return CreatedTopic(result.name, result.topic_id, result.num_partitions, result.replication_factor, configs)


def _creatable_partitions(name: str, partitions: NewPartitions) -> CreatePartitionsTopic:
    assignments = None
    if partitions.assignments is not None:
        assignments = [CreatePartitionsAssignment(broker_ids=list(brokers)) for brokers in partitions.assignments]
    return CreatePartitionsTopic(name=name, count=partitions.total, assignments=assignments)


def _description(topic: MetadataResponseTopic, nodes: Mapping[int, Node]) -> TopicDescription:
    infos = sorted((_partition(p, nodes) for p in topic.partitions), key=lambda p: p.partition)
    return TopicDescription(
        topic.name or "",
        topic.topic_id,
        topic.is_internal,
        tuple(infos),
        operations(topic.topic_authorized_operations),
    )


def _partition(
    partition: MetadataResponsePartition | DescribeTopicPartitionsResponsePartition,
    nodes: Mapping[int, Node],
    eligible: list[int] | None = None,
    last_known: list[int] | None = None,
) -> TopicPartitionInfo:
    def brokers(ids: Iterable[int]) -> tuple[Node, ...]:
        return tuple(nodes.get(broker_id) or Node(broker_id, "", -1) for broker_id in ids)

    leader = partition.leader_id
    return TopicPartitionInfo(
        partition.partition_index,
        None if leader < 0 else brokers([leader])[0],
        partition.leader_epoch,
        brokers(partition.replica_nodes),
        brokers(partition.isr_nodes),
        brokers(partition.offline_replicas),
        None if eligible is None else brokers(eligible),
        None if last_known is None else brokers(last_known),
    )
