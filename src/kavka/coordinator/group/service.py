"""The group coordinator of one broker: finds the shard of a group, and runs there what a request asks for."""

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
from kavka.coordinator.group.consumer.topics import CachedTopics
from kavka.coordinator.group.shard import CommitItem, GroupShard, check_group_id
from kavka.coordinator.internal_topic import CreateTopic, InternalTopic
from kavka.coordinator.operations import Outcome, Timers
from kavka.coordinator.runtime import Runtime, ShardHost
from kavka.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kavka.protocol.messages.heartbeat import HeartbeatRequest
from kavka.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from kavka.protocol.messages.leave_group import LeaveGroupRequest
from kavka.protocol.messages.list_groups import ListedGroup
from kavka.protocol.messages.offset_commit import OffsetCommitRequest
from kavka.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from kavka.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from kavka.replication.metadata_cache import MetadataCache
from kavka.replication.partition import Partition, RunInWorker

log = logging.getLogger(__name__)

# The version of OffsetCommit whose rules hold for commits in transactions.
_NO_TIMES_IN_REQUEST = 8


class GroupCoordinator:
    """Lives on the loop. Methods that answer a request return the response, or a future of it; errors are raised."""

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
            # One node on its own can have no more replicas than one.
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
        self._expiry = self._loop.call_later(self.config.offsets_retention_check_ms / 1000, self._expire)

    def stop(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        self.runtime.close()

    def _expire(self) -> None:
        for host in self.runtime.active():
            host.follow_up(host.shard.expire())
        self.start()

    # ---- what happens elsewhere

    def on_leadership(self, partition: Partition, is_leader: bool) -> None:
        self.runtime.on_leadership(partition, is_leader)

    def on_topics_deleted(self, topics: Iterable[str]) -> None:
        gone = frozenset(topics)
        if gone:
            for host in self.runtime.active():
                host.follow_up(host.shard.forget_topics(gone))

    def on_group_settings(self, group_id: str) -> None:
        """What `group_values` gives for the group has changed."""
        # Where it is not served (yet), the settings are looked up when it is.
        with contextlib.suppress(KafkaError):
            self.host(group_id).shard.consumer.settings_changed(group_id)

    # ---- where a group is

    def host(self, group_id: str) -> ShardHost[GroupShard]:
        """NOT_COORDINATOR or COORDINATOR_LOAD_IN_PROGRESS where the group cannot be served here (now)."""
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
        host.follow_up(host.shard.join(request, version, client_id, client_host, _answer(future)))
        return future

    def sync(self, request: SyncGroupRequest, version: int) -> asyncio.Future[SyncGroupResponse]:
        check_group_id(request.group_id)
        try:
            host = self.host(request.group_id)
        except KafkaError as error:
            if error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                # Old clients do not expect that here. The rebalance is lost anyway: they have to join again.
                raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS) from None
            raise
        future: asyncio.Future[SyncGroupResponse] = self._loop.create_future()
        host.follow_up(host.shard.sync(request, version, _answer(future)))
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
        self, request: ConsumerGroupHeartbeatRequest, version: int, client_id: str, client_host: str
    ) -> Any:
        host = self.host(request.group_id)
        outcome = host.shard.consumer_heartbeat(request, version, client_id, client_host)
        if outcome.records:
            return host.submit(outcome)
        # What the member is told must not be taken back, even where others wrote it.
        return host.read(lambda _: outcome.response)

    # ---- offsets

    def commit_offsets(
        self, request: OffsetCommitRequest, version: int, items: Sequence[CommitItem], response: Any
    ) -> Any:
        host = self.host(request.group_id)
        records = host.shard.commit_offsets(
            request.group_id,
            request.member_id,
            request.group_instance_id,
            request.generation_id_or_member_epoch,
            version,
            request.retention_time_ms,
            items,
        )
        if self._commits is not None:
            self._commits.value += len(records)
        return host.append(records, response)

    def commit_in_transaction(self, request: TxnOffsetCommitRequest, items: Sequence[CommitItem], response: Any) -> Any:
        """The offsets count when the marker that commits the transaction comes."""
        host = self.host(request.group_id)
        records = host.shard.commit_offsets(
            request.group_id,
            request.member_id,
            request.group_instance_id,
            request.generation_id,
            _NO_TIMES_IN_REQUEST,
            -1,
            items,
            transactional=True,
        )
        return host.append_in_transaction(records, response, request.producer_id, request.producer_epoch)

    # ---- all groups

    def list_groups(self, states: Iterable[str], types: Iterable[str]) -> list[ListedGroup]:
        wanted_states = frozenset(state.lower() for state in states)
        wanted_types = frozenset(kind.lower() for kind in types)
        found: list[ListedGroup] = []
        for host in self.runtime.active():
            found += host.shard.list(wanted_states, wanted_types)
        return found

    def _count_groups(self) -> float:
        return float(sum(len(host.shard.groups) for host in self.runtime.active()))

    def _count_offsets(self) -> float:
        return float(sum(host.shard.offsets.count() for host in self.runtime.active()))


def _answer(future: asyncio.Future[Any]) -> Callable[[Any], None]:
    def answer(response: Any) -> None:
        if not future.done():
            future.set_result(response)

    return answer
