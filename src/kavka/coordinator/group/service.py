"""The group coordinator of one broker: runs the operation of a request on the group's shard."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kavka.common.clock import Clock
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.metrics import Registry
from kavka.common.topics import CONSUMER_OFFSETS
from kavka.coordinator.group.config import GroupConfig
from kavka.coordinator.group.consumer.config import GroupValues
from kavka.coordinator.group.consumer.patterns import TopicFilter
from kavka.coordinator.group.consumer.topics import CachedTopics
from kavka.coordinator.group.group import CommitItem, OffsetCommit
from kavka.coordinator.group.shard import GroupShard, check_group_id
from kavka.coordinator.internal_topic import CreateTopic, InternalTopic
from kavka.coordinator.operations import Outcome, Timers
from kavka.coordinator.runtime import Runtime
from kavka.coordinator.shard_host import ShardHost
from kavka.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kavka.protocol.messages.describe_groups import DescribedGroup
from kavka.protocol.messages.heartbeat import HeartbeatRequest
from kavka.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from kavka.protocol.messages.leave_group import LeaveGroupRequest
from kavka.protocol.messages.list_groups import ListedGroup
from kavka.protocol.messages.offset_commit import OffsetCommitRequest
from kavka.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from kavka.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from kavka.replication.metadata_cache import MetadataCache
from kavka.replication.partition import Partition, RunInWorker

logger = logging.getLogger(__name__)

# The version of OffsetCommit whose rules apply to commits in transactions.
_TXN_COMMIT_VERSION = 8
# The smallest offset record without the name of the group: version, two lengths and partition in
# the key; version, offset, leader epoch, length of the metadata and timestamp in the value.
MIN_OFFSET_RECORD_BYTES = 10 + 24


class GroupCoordinator:
    """Owns the shards of `__consumer_offsets` that this broker leads.

    All methods run on the event loop. The methods for requests return the response or a future of
    the response, and raise KafkaError.
    """

    def __init__(
        self,
        settings: Any,
        *,
        clock: Clock,
        metadata_cache: MetadataCache,
        run_in_worker: RunInWorker,
        create_topic: CreateTopic,
        group_values: GroupValues,
        metrics: Registry | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._loop = loop or asyncio.get_running_loop()
        self.config = GroupConfig.of(settings, group_values)
        self.topic = InternalTopic(
            CONSUMER_OFFSETS,
            settings.offsets_topic_num_partitions,
            # A single node can have only one replica.
            settings.offsets_topic_replication_factor if settings.zookeeper_connect else 1,
            {
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": str(settings.offsets_topic_segment_bytes),
            },
            metadata_cache,
            create_topic,
        )
        self.runtime: Runtime[GroupShard] = Runtime(
            CONSUMER_OFFSETS,
            self._make_shard,
            loop=self._loop,
            clock=clock,
            run_in_worker=run_in_worker,
            codec=settings.offsets_topic_compression_codec,
            load_bytes=settings.offsets_load_buffer_size,
            commit_timeout_ms=settings.offsets_commit_timeout_ms,
        )
        self._clock = clock
        self._topics = CachedTopics(metadata_cache)
        self._expiry: asyncio.TimerHandle | None = None
        self._commits = None
        if metrics is not None:
            self._commits = metrics.counter("kavka_offset_commits_total", "Offsets that groups have committed").labels()
            metrics.gauge("kavka_groups", "Groups that this broker coordinates", read=self._count_groups)
            metrics.gauge("kavka_group_offsets", "Committed offsets that this broker keeps", read=self._count_offsets)

    def _make_shard(self, timers: Timers) -> GroupShard:
        return GroupShard(self._clock, timers, self.config, self._topics)

    # ---- start and stop

    def start(self) -> None:
        self._expiry = self._loop.call_later(self.config.offsets_retention_check_interval_ms / 1000, self._expire)

    def stop(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        self.runtime.close()

    def _expire(self) -> None:
        for host in self.runtime.active_hosts():
            host.submit_background(host.shard.expire())
        self.start()

    # ---- notifications

    def on_leadership(self, partition: Partition, is_leader: bool) -> None:
        self.runtime.on_leadership(partition, is_leader)

    def on_topics_deleted(self, topics: Iterable[str]) -> None:
        deleted = frozenset(topics)
        if deleted:
            for host in self.runtime.active_hosts():
                host.submit_background(host.shard.delete_offsets_of_topics(deleted))

    def on_group_settings(self, group_id: str) -> None:
        """Apply changed settings of the group. Do nothing if the group is not loaded: it reads its
        settings later."""
        with contextlib.suppress(KafkaError):
            self.host(group_id).shard.consumer.on_settings(group_id)

    # ---- shards

    def host(self, group_id: str) -> ShardHost[GroupShard]:
        """Return the host of the group's shard. Raises NOT_COORDINATOR or
        COORDINATOR_LOAD_IN_PROGRESS if this broker cannot serve the group."""
        return self.runtime.host(self.topic.partition_of(group_id))

    def run(self, group_id: str, operation: Callable[..., Outcome], *args: Any) -> Any:
        host = self.host(group_id)
        return host.submit(operation(host.shard, *args))

    def read(self, group_id: str, query: Callable[..., Any], *args: Any) -> Any:
        return self.host(group_id).read(query, *args)

    # ---- members

    def join(
        self, request: JoinGroupRequest, version: int, client_id: str, client_host: str
    ) -> asyncio.Future[JoinGroupResponse]:
        check_group_id(request.group_id)
        host = self.host(request.group_id)
        future: asyncio.Future[JoinGroupResponse] = self._loop.create_future()
        host.submit_background(host.shard.join(request, version, client_id, client_host, _set_result(future)))
        return future

    def sync(self, request: SyncGroupRequest, version: int) -> asyncio.Future[SyncGroupResponse]:
        check_group_id(request.group_id)
        try:
            host = self.host(request.group_id)
        except KafkaError as error:
            if error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                # Old clients do not expect this error. They must rejoin, because the rebalance is
                # lost.
                raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS) from None
            raise
        future: asyncio.Future[SyncGroupResponse] = self._loop.create_future()
        host.submit_background(host.shard.sync(request, version, _set_result(future)))
        return future

    def heartbeat(self, request: HeartbeatRequest) -> None:
        try:
            host = self.host(request.group_id)
        except KafkaError as error:
            if error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and request.group_id:
                return
            raise
        host.shard.heartbeat(request)

    def leave(self, request: LeaveGroupRequest, version: int) -> Any:
        check_group_id(request.group_id)
        return self.run(request.group_id, GroupShard.leave, request, version)

    def consumer_heartbeat(
        self,
        request: ConsumerGroupHeartbeatRequest,
        version: int,
        client_id: str,
        client_host: str,
        visible: TopicFilter | None = None,
    ) -> Any:
        """Handle a heartbeat. A regular expression matches only the topics that `visible`
        returns."""
        host = self.host(request.group_id)
        outcome = host.shard.consumer_heartbeat(request, version, client_id, client_host, visible)
        if outcome.records:
            return host.submit(outcome)
        # The response may contain uncommitted changes of other members.
        return host.read(lambda _: outcome.response)

    # ---- offsets

    def commit_offsets(
        self, request: OffsetCommitRequest, version: int, items: Sequence[CommitItem], response: Any
    ) -> Any:
        host = self.host(request.group_id)
        host.check_size(len(items), MIN_OFFSET_RECORD_BYTES + len(request.group_id))
        commit = OffsetCommit(
            request.group_id,
            request.member_id,
            request.group_instance_id,
            request.generation_id_or_member_epoch,
            version,
            items,
            request.retention_time_ms,
        )
        records = host.shard.commit_offsets(commit)
        if self._commits is not None:
            self._commits.value += len(records)
        return host.append(records, response)

    def commit_in_transaction(self, request: TxnOffsetCommitRequest, items: Sequence[CommitItem], response: Any) -> Any:
        """Write pending offsets. They take effect when the commit marker of the transaction is
        written."""
        host = self.host(request.group_id)
        host.check_size(len(items), MIN_OFFSET_RECORD_BYTES + len(request.group_id))
        commit = OffsetCommit(
            request.group_id,
            request.member_id,
            request.group_instance_id,
            request.generation_id,
            _TXN_COMMIT_VERSION,
            items,
            is_transactional=True,
        )
        records = host.shard.commit_offsets(commit)
        return host.append_in_transaction(records, response, request.producer_id, request.producer_epoch)

    def producer_entry(self, group_id: str, producer_id: int) -> Any:
        """Return the state of a producer in the group's partition, or None if the partition has no
        state of this producer."""
        log = self.host(group_id).partition.log
        return None if log is None else log.producer_states.entries.get(producer_id)

    # ---- groups

    def describe(self, group_id: str) -> DescribedGroup:
        return self.host(group_id).shard.describe(group_id)

    def describe_consumer(self, group_id: str) -> Any:
        return self.read(group_id, GroupShard.describe_consumer, group_id)

    def delete(self, group_id: str) -> Any:
        return self.run(group_id, GroupShard.delete_group, group_id)

    @property
    def is_loading(self) -> bool:
        return self.runtime.is_loading

    def list_groups(self, states: Iterable[str], types: Iterable[str]) -> list[ListedGroup]:
        state_filter = frozenset(state.lower() for state in states)
        type_filter = frozenset(group_type.lower() for group_type in types)
        groups: list[ListedGroup] = []
        for host in self.runtime.active_hosts():
            groups += host.shard.list(state_filter, type_filter)
        return groups

    def _count_groups(self) -> float:
        return float(sum(len(host.shard.groups) for host in self.runtime.active_hosts()))

    def _count_offsets(self) -> float:
        return float(sum(host.shard.offsets.count() for host in self.runtime.active_hosts()))


def _set_result(future: asyncio.Future[Any]) -> Callable[[Any], None]:
    def set_result(response: Any) -> None:
        if not future.done():
            future.set_result(response)

    return set_result
