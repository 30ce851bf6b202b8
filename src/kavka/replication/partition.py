"""One partition on this broker: its log, its role and its pending requests.

Only the loop thread uses a Partition. A produce calls these methods in this order:

    stage(records)    assigns offsets; nothing is on disk, and no reader sees the records
    write_staged()    writes the records, or restores the log to its state before the first stage
    advance()         moves the high watermark as far as the ISR and the flush permit, and checks
                      the pending requests

A crash before `write_staged` returns loses only records that were not acknowledged.

A partition has one of two roles. The leader (`leader.py`) learns the followers' end offsets from
their fetches, and changes the ISR through the controller. A follower (`follower.py`) appends the
records that its leader sends, and takes the high watermark from the leader. The fetcher of the
leader's broker owns the follower role.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import NO_LEADER_EPOCH, TopicPartition
from kavka.records.rules import ValidatedBatch
from kavka.replication.follower_session import FollowerSession
from kavka.replication.leader import LeaderRole
from kavka.replication.partition_state import NO_ISR, CommittedIsr, IsrState, LeaderAndIsr, PendingIsr
from kavka.replication.purgatory import DelayedAppend, DelayedFetch, DelayedProduce
from kavka.replication.shared import Shared
from kavka.replication.throttle import is_throttled
from kavka.replication.topic_metrics import TopicCounters
from kavka.storage.file_slice import FileClosed
from kavka.storage.log import Log
from kavka.storage.log_append import AppendInfo, AppendOrigin
from kavka.storage.log_read import LogRead
from kavka.storage.producer_state import NO_PRODUCER

READ_COMMITTED = 1
# The isolation level of followers, which read up to the log end offset.
READ_ALL = 2

# Runs the first function in a worker thread, then calls the second function on the loop with the
# error, or with None.
RunInWorker = Callable[[Callable[[], Any], Callable[[BaseException | None], None]], None]


@dataclass(slots=True, eq=False, repr=False)
class Partition:
    """Owns the replica's state: the log, the role, the ISR and the pending requests.

    `leader_role` is set while this broker leads. `log` is None before the first order and while the
    log directory is offline. `ReplicaManager` applies the controller's orders; handlers read and
    append.
    """

    topic_partition: TopicPartition
    topic_id: UUID
    broker_id: int
    run_in_worker: RunInWorker
    metrics: TopicCounters
    shared: Shared = field(default_factory=Shared)
    on_storage_failure: Callable[[Partition, BaseException], None] | None = None
    log: Log | None = None
    leader_role: LeaderRole | None = None
    leader_id: int = -1
    leader_epoch: int = NO_LEADER_EPOCH
    partition_epoch: int = -1
    replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    isr_state: IsrState = NO_ISR
    # A follower is notified through its fetch session, or else through its pending fetch.
    follower_sessions: dict[FollowerSession, Any] = field(default_factory=dict)
    pending_follower_fetches: set[DelayedFetch] = field(default_factory=set)
    pending_fetches: set[DelayedFetch] = field(default_factory=set)
    pending_appends: set[DelayedAppend] = field(default_factory=set)
    _is_flush_running: bool = False

    # ---- roles

    @property
    def is_leader(self) -> bool:
        return self.leader_role is not None

    def make_leader(self, state: LeaderAndIsr, log: Log) -> None:
        """Apply an order that makes this broker the leader. Raises OSError or KafkaError if the new
        leader epoch cannot be written."""
        is_new_epoch = state.leader_epoch != self.leader_epoch or self.log is None
        role = self.leader_role
        is_new_leader = role is None or self.log is None
        if role is None or is_new_leader:
            role = self.leader_role = LeaderRole(self, self.shared)
        self._apply(state)
        self.log = log
        log.producer_states.admitted_producer_id = NO_PRODUCER
        if is_new_epoch:
            log.start_epoch(state.leader_epoch)
        role.update_followers(log, is_new_epoch=is_new_epoch, is_new_leader=is_new_leader)
        self.advance(appended=False)
        if is_new_epoch:
            self.complete_fetches()  # a fetch with the previous epoch is fenced

    def make_follower(self, state: LeaderAndIsr, log: Log) -> bool:
        """Apply an order that makes this broker a follower. Returns whether the fetcher must start
        again: the leader or its epoch has changed, or the log was offline."""
        must_restart = state.leader_epoch != self.leader_epoch or state.leader != self.leader_id or self.log is None
        self._apply(state)
        self.leader_role = None
        self.log = log
        if must_restart:
            for append in list(self.pending_appends):
                if isinstance(append, DelayedProduce) and self.leader_id >= 0:
                    append.on_leader_lost(self)
                else:
                    append.fail(self, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            self.complete_fetches()
        return must_restart

    def stop(self) -> None:
        """Fail the pending requests: this broker no longer has a replica of the partition."""
        self.leader_id = -1
        self.leader_role = None
        self.fail_pending(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def go_offline(self) -> None:
        """Fail the pending requests, because the log directory failed. The partition serves no
        request until the next order."""
        self.log = None
        self.fail_pending(ErrorCode.KAFKA_STORAGE_ERROR)

    def _apply(self, state: LeaderAndIsr) -> None:
        # A new controller sends the current state to every broker. Its order may be older than an
        # ISR change in flight, so the change stays pending until its response arrives.
        repeats_state = isinstance(self.isr_state, PendingIsr) and (
            (state.leader, state.leader_epoch, state.partition_epoch)
            == (self.leader_id, self.leader_epoch, self.partition_epoch)
        )
        self.leader_id = state.leader
        self.leader_epoch = state.leader_epoch
        self.partition_epoch = state.partition_epoch
        self.replicas = state.replicas
        self.adding_replicas = state.adding_replicas
        if not repeats_state:
            self.commit_isr(state.isr)

    def check_epoch(self, current_leader_epoch: int) -> None:
        """Raises FENCED_LEADER_EPOCH for a client with an older leader epoch, and
        UNKNOWN_LEADER_EPOCH for a client with a newer epoch."""
        if current_leader_epoch == NO_LEADER_EPOCH or current_leader_epoch == self.leader_epoch:
            return
        if current_leader_epoch < self.leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    # ---- the ISR

    @property
    def isr(self) -> frozenset[int]:
        return self.isr_state.isr

    @property
    def maximal_isr(self) -> frozenset[int]:
        return self.isr_state.maximal_isr

    def commit_isr(self, isr: frozenset[int]) -> None:
        """Set the ISR that the controller has committed. A change in flight becomes obsolete."""
        self.isr_state = CommittedIsr(isr, isr)
        for session, entry in self.follower_sessions.items():
            if session.replica_id not in isr:
                session.outside_isr[entry] = None

    @property
    def min_isr(self) -> int:
        """min.insync.replicas, but at most the number of replicas."""
        log, role = self.log, self.leader_role
        assert log is not None
        return min(log.config.min_insync_replicas, len(role.followers) + 1 if role is not None else 1)

    @property
    def is_under_min_isr(self) -> bool:
        return self.log is not None and self.leader_role is not None and len(self.isr) < self.min_isr

    @property
    def is_under_replicated(self) -> bool:
        """Whether the ISR lacks a replica, other than those that a reassignment is adding."""
        return self.is_leader and len(self.isr) < sum(id_ not in self.adding_replicas for id_ in self.replicas)

    @property
    def is_high_watermark_current(self) -> bool:
        """False on a new leader until its high watermark reaches the start of its epoch. Until then
        records above the high watermark may be committed."""
        log, role = self.log, self.leader_role
        return log is not None and (role is None or role.epoch_start <= log.high_watermark)

    def is_throttled(self, replicas: tuple[str, ...]) -> bool:
        """Whether the setting `….replication.throttled.replicas` contains this replica."""
        return is_throttled(replicas, self.topic_partition.partition, self.broker_id)

    @property
    def low_watermark(self) -> int:
        """The lowest start offset of all live replicas. On a follower, the start offset of its
        log."""
        log, role = self.log, self.leader_role
        assert log is not None
        return role.low_watermark(log) if role is not None else max(log.start_offset, 0)

    # ---- append

    def stage(
        self,
        records: memoryview | ValidatedBatch,
        acks: int,
        api_version: int | None,
        origin: AppendOrigin = AppendOrigin.CLIENT,
    ) -> AppendInfo:
        """Assign offsets to the records. Raises NOT_ENOUGH_REPLICAS if `acks` is -1 and the ISR is
        smaller than min.insync.replicas, and KafkaError if the records are invalid."""
        log = self.log
        assert log is not None
        if acks == -1 and len(self.isr_state.isr) < log.config.min_insync_replicas and self.is_under_min_isr:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{self.topic_partition} has {len(self.isr)} in-sync replicas; "
                f"min.insync.replicas requires {log.config.min_insync_replicas}.",
            )
        on_loop = origin is AppendOrigin.CLIENT
        return log.stage_as_leader(records, self.leader_epoch, origin=origin, api_version=api_version, on_loop=on_loop)

    def write_staged(self) -> None:
        """Write the staged records. Only `StagedAppends` may call it."""
        if self.log is None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"The log directory of {self.topic_partition} has failed.")
        self.log.write_staged()

    def append(self, batch: bytearray) -> AppendInfo:
        """Append a batch that this broker has created, for example as a coordinator, and write it
        now. The caller must then call `advance` or, after a KafkaError,
        `report_storage_failure`."""
        return self.shared.staged_appends.append(self, batch)

    def admit_producer(self, producer_id: int) -> None:
        """Allow the producer to begin a transaction here, until `revoke_admission`."""
        assert self.log is not None
        self.log.producer_states.admitted_producer_id = producer_id

    def revoke_admission(self) -> None:
        if self.log is not None:
            self.log.producer_states.admitted_producer_id = NO_PRODUCER

    def advance(self, *, appended: bool = True) -> None:
        """Move the high watermark and check the pending requests, after an append, a flush or a
        change of the ISR.

        Followers are notified of appends only. A follower's request may include thousands of
        partitions; a check for every partition whose ISR has changed would take minutes.
        """
        log = self.log
        if log is None:
            return
        config = log.config
        flush_limits_reads = config.flush_before_visible or config.flush_messages == 1
        unflushed = log.unflushed_messages
        if unflushed >= config.flush_messages or (unflushed and flush_limits_reads):
            self._start_flush()
        role = self.leader_role
        if role is not None:
            end = log.flushed_offset if flush_limits_reads else log.written_end
            if role.followers:
                end = role.committed_end(log, end)
                if appended:
                    for session, entry in list(self.follower_sessions.items()):
                        session.on_append(entry, role.followers)
                    if self.pending_follower_fetches:
                        for fetch in list(self.pending_follower_fetches):
                            fetch.check(self)
            if end > log.high_watermark:
                self.commit(end)
        self.check_pending()

    def recheck_high_watermark(self) -> None:
        """Advance the high watermark if the replica that held it back has died or lags for too
        long. While all producers wait, no fetch or append would detect this."""
        log, role = self.log, self.leader_role
        if log is not None and role is not None and role.followers and log.high_watermark < log.written_end:
            self.advance(appended=False)

    def commit(self, end: int) -> None:
        """Set the high watermark to `end`. Followers receive it in their next fetch responses."""
        log = self.log
        assert log is not None
        log.set_high_watermark(end)
        for session, entry in self.follower_sessions.items():
            session.touched[entry] = None

    @property
    def waits_for_flush(self) -> bool:
        """Whether every append is acknowledged only after it is flushed."""
        log = self.log
        assert log is not None
        return log.config.flush_messages == 1

    def must_wait(self, end_offset: int, acks: int) -> bool:
        """Whether an append that ended at `end_offset` cannot be acknowledged yet."""
        log = self.log
        assert log is not None
        if acks == -1:
            return log.high_watermark < end_offset
        return log.config.flush_messages == 1 and log.flushed_offset < end_offset

    def has_reached(self, end_offset: int, acks_all: bool) -> bool:
        """Whether all records before `end_offset` are committed (acks=all) or flushed."""
        log = self.log
        if log is None:
            return False
        return (log.high_watermark if acks_all else log.flushed_offset) >= end_offset

    # ---- pending requests

    def check_pending(self) -> None:
        """Check the pending requests: the high watermark, the low watermark or the flushed offset
        has moved."""
        if self.pending_appends:
            for append in list(self.pending_appends):
                append.check(self)
        if self.pending_fetches:
            for fetch in list(self.pending_fetches):
                fetch.check(self)

    def on_truncate(self, offset: int) -> None:
        """Fail the pending produces whose records were removed by a truncation to `offset`, and
        complete the pending fetches."""
        for append in list(self.pending_appends):
            if isinstance(append, DelayedProduce):
                append.on_truncate(self, offset)
        self.complete_fetches()

    def on_start_offset_moved(self) -> None:
        """Check the pending fetches after records were deleted. Followers get the new start offset
        now."""
        for fetch in list(self.pending_fetches):
            fetch.check(self)
        self._complete_follower_fetches()

    def fail_pending(self, code: ErrorCode) -> None:
        """Fail the pending appends with `code`, and complete the pending fetches."""
        for append in list(self.pending_appends):
            append.fail(self, code)
        self.complete_fetches()

    def complete_fetches(self) -> None:
        """Complete pending fetches now: the partition's state changed."""
        for fetch in list(self.pending_fetches):
            fetch.complete()
        self._complete_follower_fetches()

    def _complete_follower_fetches(self) -> None:
        for fetch in list(self.pending_follower_fetches):
            fetch.complete()
        for session, entry in list(self.follower_sessions.items()):
            session.on_change(entry)

    # ---- group commit: all appends that wait for a flush share the next fsync

    def _start_flush(self) -> None:
        if self._is_flush_running or self.log is None:
            return
        try:
            flush = self.log.prepare_flush()
        except (OSError, FileClosed) as error:
            self._on_flush_failure(error)
            return
        self._is_flush_running = True

        def on_flushed(error: BaseException | None) -> None:
            self._is_flush_running = False
            if error is not None:
                flush.cancel()
                self._on_flush_failure(error)
                return
            flush.complete()
            self.advance()  # starts the next flush if there were appends meanwhile

        self.run_in_worker(flush.run, on_flushed)

    def _on_flush_failure(self, error: BaseException) -> None:
        self.fail_pending(ErrorCode.KAFKA_STORAGE_ERROR)
        if self.on_storage_failure is not None:
            self.on_storage_failure(self, error)

    def report_storage_failure(self, error: KafkaError) -> None:
        """Report a failed write to the log manager, which decides whether the directory goes
        offline."""
        if error.code is ErrorCode.KAFKA_STORAGE_ERROR and self.on_storage_failure is not None:
            self.on_storage_failure(self, error.__cause__ or error)

    # ---- read

    def read_limit(self, isolation_level: int) -> int:
        """The offset before which records are visible at this isolation level."""
        log = self.log
        assert log is not None
        if isolation_level == READ_ALL:
            return log.written_end
        return log.last_stable_offset if isolation_level == READ_COMMITTED else log.high_watermark

    def read(self, offset: int, max_bytes: int, isolation_level: int, min_one_batch: bool) -> LogRead | None:
        """Return at most `max_bytes` of batches from `offset` on, or None if there are none. Raises
        OFFSET_OUT_OF_RANGE, and PageCacheMiss if the read would have to wait for the disk."""
        log = self.log
        assert log is not None
        limit = self.read_limit(isolation_level)
        return log.read(offset, max_bytes, limit=limit, min_one_batch=min_one_batch, nowait=True)

    def readable_bytes(self, offset: int, isolation_level: int) -> int:
        """How many bytes a fetch from `offset` could return now."""
        log = self.log
        if log is None:
            return 0
        return log.bytes_between(offset, self.read_limit(isolation_level))
