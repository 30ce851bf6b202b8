"""Requests to the group's coordinator: find it, commit offsets, fetch committed offsets. Runs on
the event loop."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from uuid import UUID

from kavka.client.cluster import GROUP, Cluster
from kavka.client.config import ClientConfig
from kavka.client.connections import cause_of
from kavka.client.consumer.errors import CommitFailed, RebalanceInProgress
from kavka.client.consumer.metrics import ConsumerMetrics
from kavka.client.errors import Disconnected, IllegalState, KafkaTimeout, error_of
from kavka.client.types import OffsetAndMetadata
from kavka.common.backoff import Backoff
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kavka.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from kavka.protocol.primitives import ZERO_UUID, TopMessage

logger = logging.getLogger(__name__)

# Requests to the coordinator have a separate connection, so that they do not wait for fetches.
CHANNEL = "group"
# The first versions of OffsetFetch with `require_stable` and with a list of groups, and the first
# version of OffsetFetch and OffsetCommit with topic ids.
MIN_REQUIRE_STABLE_VERSION = 7
MIN_GROUP_LIST_VERSION = 8
MIN_TOPIC_ID_VERSION = 10

_COORDINATOR_MOVED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
_FORGET_COORDINATOR = _COORDINATOR_MOVED | {ErrorCode.REQUEST_TIMED_OUT}

Offsets = Mapping[TopicPartition, OffsetAndMetadata]


class Identity(NamedTuple):
    """The member that a request names. `generation` is the generation of a classic member, or the
    epoch of a member of the consumer protocol (KIP-848)."""

    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None
    is_consumer_protocol: bool = False


NO_MEMBER = Identity()


class Membership:
    """The interface of a group member for commits. This base class is for consumers that commit
    without being a member."""

    def identity(self) -> Identity:
        return NO_MEMBER

    def commit_identity(self) -> Identity:
        """Return the identity for a commit. Raises CommitFailed or RebalanceInProgress if the
        member may not commit now."""
        return self.identity()

    def on_request_failed(self, identity: Identity, code: ErrorCode) -> None:
        """Called after a commit or a fetch of offsets with this identity failed. The code may mean
        that the member was fenced or that the group is rebalancing."""


class Coordinator:
    """Owns the broker id of the group's coordinator. Any task on the event loop may call the
    methods."""

    def __init__(self, config: ClientConfig, cluster: Cluster, metrics: ConsumerMetrics) -> None:
        self.group_id: str | None = config["group.id"]
        self.membership: Membership = Membership()
        self.cluster = cluster
        self.node: int | None = None
        self.timeout = config.seconds("request.timeout.ms")
        self.backoff = Backoff(config["retry.backoff.ms"], config["retry.backoff.max.ms"])
        self._metrics = metrics
        self._lookup_lock = asyncio.Lock()
        self._require_stable = config["isolation.level"] == "read_committed"

    # --- discovery

    async def find(self, timeout: float | None = None) -> int:
        """Return the broker id of the coordinator. Looks it up if it is unknown. Raises
        IllegalState without a group.id, and KafkaTimeout after `timeout` seconds."""
        if self.group_id is None:
            raise IllegalState("group.id is not set: this consumer has no group")
        limit = self.timeout if timeout is None else timeout
        deadline = time.monotonic() + limit
        # A lookup that is in progress may have a longer timeout than this call.
        try:
            async with asyncio.timeout(limit):
                await self._lookup_lock.acquire()
        except TimeoutError:
            reason = cause_of(self.cluster.connect_error())
            raise KafkaTimeout(f"no coordinator for {self.group_id} within {limit:g} s{reason}") from None
        try:
            if self.node is None or self.node not in self.cluster.nodes:
                remaining = max(0.001, deadline - time.monotonic())
                self.node = (await self.cluster.find_coordinator(self.group_id, GROUP, timeout=remaining)).id
            return self.node
        finally:
            self._lookup_lock.release()

    def forget(self) -> None:
        """Make the next request look up the coordinator."""
        self.node = None

    def forget_if_moved(self, code: int) -> bool:
        """Make the next request look up the coordinator if the error code is NOT_COORDINATOR or
        COORDINATOR_NOT_AVAILABLE, and return True in this case."""
        if code in _COORDINATOR_MOVED:
            self.forget()
            return True
        return False

    async def send(self, request: TopMessage, *, timeout: float | None = None, max_version: int | None = None) -> Any:
        """Send a request without retries, and return the response. After a timeout or a lost
        connection, the next request looks up the coordinator."""
        limit = self.timeout if timeout is None else timeout
        deadline = time.monotonic() + limit
        node = await self.find(limit)
        with self._forget_on_failure(node):
            return await self.cluster.request(
                node, request, timeout=max(0.001, deadline - time.monotonic()), channel=CHANNEL, max_version=max_version
            )

    async def version_of(self, api_key: int, max_version: int | None = None, timeout: float | None = None) -> int:
        """Return the highest version of an API that this client and the coordinator support."""
        limit = self.timeout if timeout is None else timeout
        deadline = time.monotonic() + limit
        node = await self.find(limit)
        remaining = max(0.001, deadline - time.monotonic())
        with self._forget_on_failure(node):
            connection = await self.cluster.connection(node, CHANNEL, timeout=remaining)
        return connection.version_of(api_key, max_version)

    @contextmanager
    def _forget_on_failure(self, node: int) -> Iterator[None]:
        try:
            yield
        except (Disconnected, KafkaTimeout):
            if self.node == node:
                self.forget()
            raise

    async def with_retries(self, attempt: Any, deadline: float, operation: str) -> Any:
        """Return the result of `attempt(timeout)`. Retries after retriable errors. Raises
        KafkaTimeout if the next retry would start after the deadline."""
        failures = 0
        while True:
            remaining = deadline - time.monotonic()
            try:
                return await attempt(max(0.001, min(remaining, self.timeout)))
            except KafkaError as error:
                if not error.retriable or self.cluster.closed:
                    raise
                failures += 1
                wait = self.backoff.delay(failures)
                if time.monotonic() + wait >= deadline:
                    raise KafkaTimeout(f"{operation} timed out: {error}") from error
                if error.code == ErrorCode.UNKNOWN_TOPIC_ID:
                    self.cluster.request_update()
                await asyncio.sleep(wait)

    # --- commits

    async def commit(self, offsets: Offsets, deadline: float) -> None:
        """Commit with retries until the deadline."""
        if offsets:
            await self.with_retries(lambda timeout: self.commit_once(offsets, timeout), deadline, "committing offsets")

    async def commit_once(self, offsets: Offsets, timeout: float | None = None) -> None:
        if not offsets:
            return
        identity = self.membership.commit_identity()
        ids = {tp.topic: self._topic_id(tp.topic) for tp in offsets}
        uses_topic_ids = ZERO_UUID not in ids.values()
        request = OffsetCommitRequest(
            group_id=self.group_id or "",
            generation_id_or_member_epoch=identity.generation,
            member_id=identity.member_id,
            group_instance_id=identity.instance_id,
            topics=_commit_topics(offsets, ids),
        )
        started = time.monotonic()
        response = await self.send(
            request, timeout=timeout, max_version=None if uses_topic_ids else MIN_TOPIC_ID_VERSION - 1
        )
        self._metrics.commit_latency.add(time.monotonic() - started)
        names = {topic_id: name for name, topic_id in ids.items()}
        for topic in response.topics:
            name = topic.name or names.get(topic.topic_id, "")
            for partition in topic.partitions:
                if partition.error_code:
                    self._on_commit_error(name, partition.partition_index, partition.error_code, identity)

    def _on_commit_error(self, topic: str, partition: int, error_code: int, identity: Identity) -> None:
        error = error_of(error_code)
        code = error.code
        if code in _FORGET_COORDINATOR:
            self.forget()
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error))
        self.membership.on_request_failed(identity, code)
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_MEMBER_EPOCH):
            raise CommitFailed(
                "the offsets were not committed: this consumer is no longer a member of the group, and its partitions "
                "may be assigned to other members; increase max.poll.interval.ms, or process fewer records per poll "
                "(max.poll.records)",
                code,
            )
        if code == ErrorCode.STALE_MEMBER_EPOCH:
            if self.membership.identity().generation != identity.generation:
                raise _retriable_error("the member's epoch has just changed")
            raise CommitFailed(
                "the offsets were not committed: the coordinator has a newer epoch for this member", code
            )
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            raise RebalanceInProgress("the offsets were not committed: the group is rebalancing; poll and commit again")
        raise KafkaError(code, f"the offset of {topic}-{partition} was not committed: {error}")

    # --- committed offsets

    async def committed(
        self, partitions: Collection[TopicPartition], deadline: float
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        if not partitions:
            return {}
        result: dict[TopicPartition, OffsetAndMetadata | None] = await self.with_retries(
            lambda timeout: self._committed_once(partitions, timeout), deadline, "fetching committed offsets"
        )
        return result

    async def _committed_once(
        self, partitions: Collection[TopicPartition], timeout: float
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        identity = self.membership.identity()
        by_topic: dict[str, list[int]] = {}
        for tp in partitions:
            by_topic.setdefault(tp.topic, []).append(tp.partition)
        ids = {topic: self._topic_id(topic) for topic in by_topic}
        max_version = None if ZERO_UUID not in ids.values() else MIN_TOPIC_ID_VERSION - 1
        request = OffsetFetchRequest(require_stable=self._require_stable)
        api_version = await self.version_of(OffsetFetchRequest.API_KEY, max_version, timeout)
        if api_version >= MIN_GROUP_LIST_VERSION:
            group = OffsetFetchRequestGroup(
                group_id=self.group_id or "",
                topics=[
                    OffsetFetchRequestTopics(name=topic, topic_id=ids[topic], partition_indexes=indexes)
                    for topic, indexes in by_topic.items()
                ],
            )
            if identity.is_consumer_protocol:
                group.member_id, group.member_epoch = identity.member_id, identity.generation
            request.groups = [group]
        else:
            request.group_id = self.group_id or ""
            request.topics = [
                OffsetFetchRequestTopic(name=topic, partition_indexes=indexes) for topic, indexes in by_topic.items()
            ]
            if api_version < MIN_REQUIRE_STABLE_VERSION:
                request.require_stable = False
        response = await self.send(request, timeout=timeout, max_version=api_version)
        group_response = response.groups[0] if api_version >= MIN_GROUP_LIST_VERSION else response
        self._check_fetch(group_response.error_code, identity)
        names = {topic_id: name for name, topic_id in ids.items()}
        committed: dict[TopicPartition, OffsetAndMetadata | None] = dict.fromkeys(partitions)
        for topic in group_response.topics:
            name = names.get(topic.topic_id, "") if api_version >= MIN_TOPIC_ID_VERSION else topic.name
            for partition in topic.partitions:
                self._check_fetch(partition.error_code, identity)
                if partition.committed_offset >= 0:
                    epoch = partition.committed_leader_epoch
                    committed[TopicPartition(name, partition.partition_index)] = OffsetAndMetadata(
                        partition.committed_offset, partition.metadata or "", epoch if epoch >= 0 else None
                    )
        return committed

    def _check_fetch(self, error_code: int, identity: Identity) -> None:
        if not error_code:
            return
        error = error_of(error_code)
        if error.code in _FORGET_COORDINATOR:
            self.forget()
        if error.code in (ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID) and identity.is_consumer_protocol:
            self.membership.on_request_failed(identity, error.code)
            raise _retriable_error(f"the coordinator rejected the member's id or epoch: {error.code.name}")
        raise error

    def _topic_id(self, topic: str) -> UUID:
        metadata = self.cluster.topics.get(topic)
        return ZERO_UUID if metadata is None else metadata.topic_id


def _retriable_error(reason: str) -> KafkaError:
    """Return an error that makes `with_retries` retry with the member's current identity. Unlike
    other codes, COORDINATOR_LOAD_IN_PROGRESS does not start a lookup of the coordinator."""
    return KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, reason)


def _commit_topics(offsets: Offsets, ids: Mapping[str, UUID]) -> list[OffsetCommitRequestTopic]:
    topics: dict[str, OffsetCommitRequestTopic] = {}
    for tp, position in offsets.items():
        topic = topics.setdefault(tp.topic, OffsetCommitRequestTopic(name=tp.topic, topic_id=ids[tp.topic]))
        topic.partitions.append(
            OffsetCommitRequestPartition(
                partition_index=tp.partition,
                committed_offset=position.offset,
                committed_leader_epoch=-1 if position.leader_epoch is None else position.leader_epoch,
                committed_metadata=position.metadata,
            )
        )
    return list(topics.values())
