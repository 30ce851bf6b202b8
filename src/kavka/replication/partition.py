"""One partition as this broker holds it: its log, who leads it, and how far its records are committed.

Only the loop thread touches a Partition. The order in which a produce moves it:

    stage(records)      offsets are assigned, nothing is on disk, nobody can read it yet
    write_staged()      in the file; or failed, and as if it had never been staged
    advance()           the high watermark follows (the ISR and, where asked for, the flush permitting),
                        waiting requests are looked at again

A crash before `write_staged` returns loses only what nobody was told of.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import NO_LEADER_EPOCH, TopicPartition
from kavka.protocol.messages.leader_and_isr import LeaderAndIsrPartitionState
from kavka.replication.in_sync import high_watermark
from kavka.replication.waiting import AppendWaiter, FetchWaiter
from kavka.storage.log import Log
from kavka.storage.log_append import AppendInfo, AppendOrigin
from kavka.storage.log_read import LogRead
from kavka.storage.producer_state import NOBODY

READ_UNCOMMITTED = 0
READ_COMMITTED = 1

# Runs a function in a worker thread, then gives its error (or None) to the second on the loop.
RunInWorker = Callable[[Callable[[], Any], Callable[[BaseException | None], None]], None]


class Partition:
    __slots__ = (
        "_flush_running",
        "_run_in_worker",
        "broker_id",
        "controller_epoch",
        "fetch_waiters",
        "isr",
        "leader_epoch",
        "leader_id",
        "log",
        "metrics",
        "on_storage_failure",
        "partition_epoch",
        "produce_waiters",
        "replicas",
        "topic_id",
        "topic_partition",
    )

    def __init__(
        self, topic_partition: TopicPartition, topic_id: UUID, broker_id: int, run_in_worker: RunInWorker, metrics: Any
    ) -> None:
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.broker_id = broker_id
        self.metrics = metrics
        self.log: Log | None = None
        self.leader_id = -1
        self.leader_epoch = NO_LEADER_EPOCH
        self.partition_epoch = -1
        self.controller_epoch = -1
        self.replicas: list[int] = []
        self.isr: frozenset[int] = frozenset()
        self.fetch_waiters: set[FetchWaiter] = set()
        self.produce_waiters: set[AppendWaiter] = set()
        self.on_storage_failure: Callable[[Partition, BaseException], None] | None = None
        self._run_in_worker = run_in_worker
        self._flush_running = False

    # ---- who leads

    @property
    def is_leader(self) -> bool:
        return self.leader_id == self.broker_id

    def make_leader(self, state: LeaderAndIsrPartitionState, log: Log) -> None:
        """Raises OSError or KafkaError where the disk does not take the new epoch."""
        is_new_epoch = state.leader_epoch != self.leader_epoch
        self._take_state(state)
        self.log = log
        log.producer_states.admitted = NOBODY
        log.start_epoch(state.leader_epoch)
        self.advance()
        if is_new_epoch:
            for fetch in list(self.fetch_waiters):
                fetch.abandon()  # whoever named the old epoch is fenced

    def make_follower(self, state: LeaderAndIsrPartitionState, log: Log) -> None:
        self._take_state(state)
        self.log = log
        self.fail_waiters(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _take_state(self, state: LeaderAndIsrPartitionState) -> None:
        self.leader_id = state.leader
        self.leader_epoch = state.leader_epoch
        self.partition_epoch = state.partition_epoch
        self.controller_epoch = state.controller_epoch
        self.replicas = list(state.replicas)
        self.isr = frozenset(state.isr)

    def go_offline(self) -> None:
        """Its log directory failed: nothing is served until the partition is made anew."""
        self.log = None
        self.fail_waiters(ErrorCode.KAFKA_STORAGE_ERROR)

    def fail_waiters(self, code: ErrorCode) -> None:
        for produce in list(self.produce_waiters):
            produce.fail(self, code)
        for fetch in list(self.fetch_waiters):
            fetch.abandon()

    def check_epoch(self, current_leader_epoch: int) -> None:
        """A client that names the leader epoch it knows is fenced when it is behind, asked to wait when ahead."""
        if current_leader_epoch == NO_LEADER_EPOCH or current_leader_epoch == self.leader_epoch:
            return
        if current_leader_epoch < self.leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    # ---- append

    def stage(
        self, records: memoryview, acks: int, api_version: int | None, origin: AppendOrigin = AppendOrigin.CLIENT
    ) -> AppendInfo:
        log = self.log
        assert log is not None
        if acks == -1 and len(self.isr) < log.config.min_insync_replicas:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{self.topic_partition} has {len(self.isr)} replicas in sync, "
                f"min.insync.replicas asks for {log.config.min_insync_replicas}.",
            )
        return log.stage_as_leader(records, self.leader_epoch, origin=origin, api_version=api_version)

    def write_staged(self) -> None:
        if self.log is None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"The log directory of {self.topic_partition} has failed.")
        self.log.write_staged()

    def advance(self) -> None:
        """After anything was appended, flushed, or the ISR changed: move the high watermark, wake who waits for it."""
        log = self.log
        if log is None:
            return
        config = log.config
        held_by_flush = config.flush_before_visible or config.flush_messages == 1
        unflushed = log.unflushed_messages
        if unflushed >= config.flush_messages or (unflushed and held_by_flush):
            self._start_flush()
        end = log.flushed_offset if held_by_flush else log.written_end
        moved = high_watermark(log.high_watermark, end, ())
        if moved != log.high_watermark:
            log.set_high_watermark(moved)
        if self.produce_waiters:
            for produce in list(self.produce_waiters):
                produce.check(self)
        if self.fetch_waiters:
            for fetch in list(self.fetch_waiters):
                fetch.check()

    def must_wait(self, end_offset: int, acks: int) -> bool:
        """Whether an append that ended at `end_offset` may not be acknowledged yet."""
        log = self.log
        assert log is not None
        if acks == -1:
            return log.high_watermark < end_offset
        return log.config.flush_messages == 1 and log.flushed_offset < end_offset

    def has(self, end_offset: int, acks_all: bool) -> bool:
        log = self.log
        if log is None:
            return False
        return (log.high_watermark if acks_all else log.flushed_offset) >= end_offset

    # ---- group commit: all that waits for a flush shares the next fsync

    def _start_flush(self) -> None:
        if self._flush_running or self.log is None:
            return
        try:
            flush = self.log.prepare_flush()
        except OSError as error:
            self._flush_failed(error)
            return
        self._flush_running = True

        def done(error: BaseException | None) -> None:
            self._flush_running = False
            if error is not None:
                flush.cancel()
                self._flush_failed(error)
                return
            flush.complete()
            self.advance()  # which begins the next one, if more came meanwhile

        self._run_in_worker(flush.run, done)

    def _flush_failed(self, error: BaseException) -> None:
        self.fail_waiters(ErrorCode.KAFKA_STORAGE_ERROR)
        if self.on_storage_failure is not None:
            self.on_storage_failure(self, error)

    # ---- read

    def read_limit(self, isolation_level: int) -> int:
        log = self.log
        assert log is not None
        return log.last_stable_offset if isolation_level == READ_COMMITTED else log.high_watermark

    def read(self, offset: int, max_bytes: int, isolation_level: int, min_one_batch: bool) -> LogRead | None:
        """Raises ColdRead where finding the place would have to wait for the disk."""
        log = self.log
        assert log is not None
        limit = self.read_limit(isolation_level)
        return log.read(offset, max_bytes, limit=limit, min_one_batch=min_one_batch, nowait=True)

    def readable_bytes(self, offset: int, isolation_level: int) -> int:
        """How much a fetch from `offset` could be given now."""
        log = self.log
        if log is None:
            return 0
        return log.bytes_between(offset, self.read_limit(isolation_level))
