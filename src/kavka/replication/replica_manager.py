"""All partitions of this broker: appends and reads go through here, and the controller's orders are carried out here.

The loop thread owns it. Making and deleting logs touches the disk, so the two orders (`LeaderAndIsr`, `StopReplica`)
are coroutines that let others have their turn after every partition; everything else answers at once. Orders are
carried out one after the other, in the order they came.

In a cluster `start` is called before the first order: from then on partitions that others lead are copied from them
(fetcher.py), and the ISRs of those that are led here are watched.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.protocol.messages.leader_and_isr import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
)
from kavka.protocol.messages.stop_replica import StopReplicaPartitionError, StopReplicaRequest, StopReplicaResponse
from kavka.protocol.primitives import ZERO_UUID
from kavka.replication.fetcher import ReplicaFetcher
from kavka.replication.isr_changes import IsrChanges
from kavka.replication.metadata_cache import MetadataCache
from kavka.replication.partition import Partition, RunInWorker
from kavka.replication.peers import Peers
from kavka.replication.settings import ReplicationSettings
from kavka.replication.shared import Shared
from kavka.replication.topic_metrics import TopicMetrics
from kavka.storage.log import Log
from kavka.storage.log_dir import LogDir
from kavka.storage.log_manager import LogManager

log = logging.getLogger(__name__)

# Leader epochs in a StopReplica that say nothing of the order of things.
NO_EPOCH = -1
EPOCH_DURING_DELETE = -2


class ReplicaManager:
    def __init__(
        self,
        broker_id: int,
        log_manager: LogManager,
        metadata_cache: MetadataCache,
        run_in_worker: RunInWorker,
        metrics: TopicMetrics,
        settings: ReplicationSettings | None = None,
    ) -> None:
        self.broker_id = broker_id
        self.partitions: dict[tuple[str, int], Partition] = {}
        self.controller_epoch = -1
        self.metrics = metrics
        self._log_manager = log_manager
        self._metadata_cache = metadata_cache
        self._run_in_worker = run_in_worker
        self._staged: list[tuple[Partition, Any]] = []
        # Batches that are opened in worker threads at the same time: bounds their memory.
        self.opening = asyncio.Semaphore(2)
        self.shared = Shared(settings)
        self.shared.alive = lambda: metadata_cache.brokers
        self.fetchers: dict[int, ReplicaFetcher] = {}
        self._peers: Peers | None = None
        self._broker_epoch: Callable[[], int] = lambda: -1
        self._orders = asyncio.Lock()
        self._watch: asyncio.TimerHandle | None = None
        # Called with a partition and whether this broker leads it, after each order about it and when its disk fails.
        self.on_leadership: list[Callable[[Partition, bool], None]] = []

    # ---- in a cluster

    def start(self, peers: Peers, isr_changes: IsrChanges, broker_epoch: Callable[[], int]) -> None:
        """From now on copy from other leaders, and watch the ISRs of what is led here."""
        self._peers = peers
        self._broker_epoch = broker_epoch
        self.shared.isr_changes = isr_changes
        self._watch_isrs()

    async def stop(self) -> None:
        """Copy nothing more, and leave the ISRs as they are."""
        if self._watch is not None:
            self._watch.cancel()
        self.shared.isr_changes = None
        self._peers = None
        fetchers, self.fetchers = self.fetchers, {}
        for fetcher in fetchers.values():
            await fetcher.close()

    def use_settings(self, settings: ReplicationSettings) -> None:
        self.shared.use_settings(settings)

    def _watch_isrs(self) -> None:
        now = self.shared.monotonic()
        for partition in list(self.partitions.values()):
            try:
                partition.shrink_isr(now)
                partition.reconsider()
            except Exception:
                log.exception("The ISR of %s cannot be looked after", partition.topic_partition)
        period = max(0.01, self.shared.settings.lag_time_max_s / 2)
        self._watch = asyncio.get_running_loop().call_later(period, self._watch_isrs)

    def brokers_gone(self) -> None:
        """The metadata cache has fewer brokers than before."""
        for partition in list(self.partitions.values()):
            partition.reconsider()

    def _follow(self, partition: Partition) -> None:
        """Copy it from its leader, and from nobody else."""
        self._stop_following(partition.topic_partition, but=partition.leader_id)
        if self._peers is None or partition.leader_id < 0:
            self._stop_following(partition.topic_partition)
            return
        fetcher = self.fetchers.get(partition.leader_id)
        if fetcher is None:
            fetcher = self.fetchers[partition.leader_id] = ReplicaFetcher(
                self.broker_id,
                partition.leader_id,
                self._peers,
                self._log_manager,
                self.shared,
                lambda: self._broker_epoch(),
                self._on_storage_failure,
            )
        fetcher.add(partition)

    def _stop_following(self, tp: TopicPartition, but: int = -1) -> None:
        for fetcher in self.fetchers.values():
            if fetcher.source != but:
                fetcher.remove(tp)

    def _drop_idle_fetchers(self) -> None:
        for source in [source for source, fetcher in self.fetchers.items() if not fetcher]:
            self.fetchers.pop(source).shut()

    # ---- finding a partition

    def leader(self, topic: str, partition: int) -> Partition:
        """The partition, when this broker leads it and its disk is well; else the error that a client is owed."""
        found = self.partitions.get((topic, partition))
        if found is None:
            raise self._not_here(topic, partition)
        if found.log is None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
        if found.leader_id != self.broker_id:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return found

    def replica(self, topic: str, partition: int) -> Partition:
        """As `leader`, but a follower will do."""
        found = self.partitions.get((topic, partition))
        if found is None:
            raise self._not_here(topic, partition)
        if found.log is None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
        return found

    def _not_here(self, topic: str, partition: int) -> KafkaError:
        if self._metadata_cache.partition_state(topic, partition) is not None:
            return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def topic_name(self, topic_id: UUID) -> str:
        name = self._metadata_cache.topic_name(topic_id)
        if name is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        return name

    # ---- appends: staged by the requests of one turn of the loop, written together

    def note_staged(self, partition: Partition, answer: Any) -> None:
        """`answer` (a partition's part of a Produce response) gets an error code if the write fails."""
        self._staged.append((partition, answer))

    def write_staged(self) -> None:
        """Write what this turn's requests staged: one writev for each log. Called before any answer is encoded."""
        staged = self._staged
        if not staged:
            return
        # Whatever fails, every log must have let go of the views it was given: they are of the receive buffer.
        self._staged = []
        partitions = dict.fromkeys(p for p, _ in staged) if len(staged) > 1 else (staged[0][0],)
        failed: dict[Partition, KafkaError] | None = None
        for partition in partitions:
            try:
                partition.write_staged()
            except Exception as error:
                if failed is None:
                    failed = {}
                failed[partition] = _write_failed(partition, error)
        if failed:
            self._tell_of_failure(failed, staged)
        for partition in partitions:
            if not failed or partition not in failed:
                try:
                    partition.advance()
                except Exception:
                    log.exception("What follows an append to %s failed", partition.topic_partition)

    def _tell_of_failure(self, failed: dict[Partition, KafkaError], staged: list[tuple[Partition, Any]]) -> None:
        for partition, answer in staged:
            error = failed.get(partition)
            if error is not None:
                answer.error_code = int(error.code)
                answer.error_message = error.message
                answer.base_offset = answer.log_append_time_ms = answer.log_start_offset = -1
                partition.metrics.failed_produces.value += 1
        for partition, error in failed.items():
            self._on_storage_failure(partition, error.__cause__ or error)

    # ---- the controller's orders

    async def become_leader_or_follower(self, request: LeaderAndIsrRequest) -> LeaderAndIsrResponse:
        async with self._orders:
            if request.controller_epoch < self.controller_epoch:
                return LeaderAndIsrResponse(error_code=int(ErrorCode.STALE_CONTROLLER_EPOCH))
            self.controller_epoch = request.controller_epoch
            await self._make_folders(request)
            topics = []
            for topic in request.topic_states:
                errors = []
                for state in topic.partition_states:
                    tp = TopicPartition(topic.topic_name, state.partition_index)
                    known = tp in self.partitions
                    code = self._take_partition(tp, topic.topic_id, state)
                    if not known:
                        await asyncio.sleep(0)
                    errors.append(
                        LeaderAndIsrPartitionError(
                            topic_name=tp.topic, partition_index=tp.partition, error_code=int(code)
                        )
                    )
                topics.append(LeaderAndIsrTopicError(topic_id=topic.topic_id, partition_errors=errors))
            self._drop_idle_fetchers()
            return LeaderAndIsrResponse(topics=topics)

    async def _make_folders(self, request: LeaderAndIsrRequest) -> None:
        """For all new partitions together, in a worker thread. What fails there is met again when a log is made."""
        make = self._log_manager.place_new(
            (tp, topic.topic_id, state.is_new)
            for topic in request.topic_states
            for state in topic.partition_states
            if self.broker_id in state.replicas
            and (tp := TopicPartition(topic.topic_name, state.partition_index)) not in self.partitions
        )
        if make is not None:
            made: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._run_in_worker(make, lambda _error: None if made.done() else made.set_result(None))
            await made

    def _take_partition(self, tp: TopicPartition, topic_id: UUID, state: Any) -> ErrorCode:
        partition = self.partitions.get(tp)
        if self.broker_id not in state.replicas:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if partition is None:
            partition = Partition(
                tp, topic_id, self.broker_id, self._run_in_worker, self.metrics.of_topic(tp.topic), self.shared
            )
            partition.on_storage_failure = self._on_storage_failure
        elif topic_id not in (partition.topic_id, ZERO_UUID) and partition.topic_id != ZERO_UUID:
            return ErrorCode.INCONSISTENT_TOPIC_ID
        elif state.leader_epoch < partition.leader_epoch:
            return ErrorCode.STALE_CONTROLLER_EPOCH
        elif state.leader_epoch == partition.leader_epoch and state.partition_epoch < partition.partition_epoch:
            return ErrorCode.NONE  # an answer about the ISR has come before this order, and knows more
        self.partitions[tp] = partition
        the_log: Log | None = None
        try:
            the_log = self._log_manager.get_or_create(tp, None, topic_id, is_new=state.is_new)
            if state.leader == self.broker_id:
                self._stop_following(tp)
                partition.make_leader(state, the_log)
            elif partition.make_follower(state, the_log):
                self._follow(partition)
            code = ErrorCode.NONE
        except (KafkaError, OSError) as error:
            log.error("Cannot take over %s: %s", tp, error)
            self._stop_following(tp)
            if the_log is not None:
                self._log_manager.note_failure(the_log, error)
            partition.go_offline()
            code = ErrorCode.KAFKA_STORAGE_ERROR
        self._tell_leadership(partition)
        return code

    def _tell_leadership(self, partition: Partition) -> None:
        for listener in self.on_leadership:
            listener(partition, partition.is_leader and partition.log is not None)

    async def stop_replicas(self, request: StopReplicaRequest) -> StopReplicaResponse:
        async with self._orders:
            if request.controller_epoch < self.controller_epoch:
                return StopReplicaResponse(error_code=int(ErrorCode.STALE_CONTROLLER_EPOCH))
            self.controller_epoch = request.controller_epoch
            errors = []
            for topic in request.topic_states:
                for state in topic.partition_states:
                    tp = TopicPartition(topic.topic_name, state.partition_index)
                    code = self._stop_partition(tp, state.leader_epoch, state.delete_partition)
                    await asyncio.sleep(0)
                    errors.append(
                        StopReplicaPartitionError(
                            topic_name=tp.topic, partition_index=tp.partition, error_code=int(code)
                        )
                    )
                if not any(name == topic.topic_name for name, _ in self.partitions):
                    self.metrics.forget(topic.topic_name)
            self._drop_idle_fetchers()
            return StopReplicaResponse(partition_errors=errors)

    def _stop_partition(self, tp: TopicPartition, leader_epoch: int, delete: bool) -> ErrorCode:
        if self._log_manager.is_in_failed_dir(tp):
            return ErrorCode.KAFKA_STORAGE_ERROR  # which is also what its clients are told until the next start
        partition = self.partitions.get(tp)
        if partition is not None:
            if leader_epoch not in (NO_EPOCH, EPOCH_DURING_DELETE) and leader_epoch < partition.leader_epoch:
                return ErrorCode.FENCED_LEADER_EPOCH
            del self.partitions[tp]
            self._stop_following(tp)
            partition.leader_id = -1
            partition.fail_waiters(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            self._tell_leadership(partition)
        if delete:
            try:
                self._log_manager.delete(tp)
            except (KafkaError, OSError) as error:
                log.error("Cannot delete the log of %s: %s", tp, error)
                return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NONE

    # ---- failing disks, moved logs

    def note_disk_failure(self, topic: str, index: int, error: OSError) -> KafkaError:
        """For a request that met the error, other than in an append: what it is to answer."""
        partition = self.partitions.get((topic, index))
        if partition is not None:
            log.error("The disk of %s does not answer: %s", partition.topic_partition, error)
            self._on_storage_failure(partition, error)
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)

    def _on_storage_failure(self, partition: Partition, error: BaseException) -> None:
        if partition.log is not None:
            self._log_manager.note_failure(partition.log, error.__cause__ or error)

    def on_dir_failure(self, _directory: LogDir, gone: list[TopicPartition]) -> None:
        """Called by the log manager: these partitions' logs are no longer there."""
        for tp in gone:
            partition = self.partitions.get(tp)
            if partition is not None:
                self._stop_following(tp)
                partition.go_offline()
                self._tell_leadership(partition)

    def on_moved(self, tp: TopicPartition, moved: Log) -> None:
        """Called by the log manager: the partition's log is now another one, with the same contents."""
        partition = self.partitions.get(tp)
        if partition is not None and partition.log is not None:
            moved.producer_states.admitted = partition.log.producer_states.admitted
            partition.log = moved
            partition.advance()

    def online(self) -> Iterable[Partition]:
        return (p for p in self.partitions.values() if p.log is not None)

    def settings_changed(self, topic: str) -> None:
        """What a topic's flushing held back may be visible now."""
        for (name, _), partition in list(self.partitions.items()):
            if name == topic:
                partition.advance()


def _write_failed(partition: Partition, error: Exception) -> KafkaError:
    if isinstance(error, KafkaError):
        return error
    log.error("The write to %s failed", partition.topic_partition, exc_info=error)
    if partition.log is not None:
        partition.log.roll_back()
    answer = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"The write to {partition.topic_partition} failed.")
    answer.__cause__ = error
    return answer
