"""One partition as this broker holds it: its log, who leads it, and how far its records are committed.

Only the loop thread touches a Partition. The order in which a produce moves it:

    stage(records)      offsets are assigned, nothing is on disk, nobody can read it yet
    write_staged()      in the file; or failed, and as if it had never been staged
    advance()           the high watermark follows (the ISR and, where asked for, the flush permitting),
                        waiting requests are looked at again

A crash before `write_staged` returns loses only what nobody was told of.

A leader knows the other replicas by their fetches (`note_fetch`). Members of the ISR come and go through the
controller: a change is proposed, and until its answer is there no other one is. Meanwhile the high watermark waits for
everyone who is in the ISR by either state of things. A follower appends what its leader sends (replication/fetcher.py)
and takes the high watermark over from it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any
from uuid import UUID

from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import NO_LEADER_EPOCH, TopicPartition
from kavka.protocol.messages.leader_and_isr import LeaderAndIsrPartitionState
from kavka.records.rules import ValidatedBatch
from kavka.replication.follower_session import FollowerSession
from kavka.replication.in_sync import FollowerState, high_watermark, may_join, out_of_sync
from kavka.replication.read_replica import Candidate, choose
from kavka.replication.shared import IsrChange, Shared
from kavka.replication.throttle import is_throttled
from kavka.replication.waiting import AppendWaiter, FetchWaiter, ProduceWaiter
from kavka.storage.file_slice import FileClosed
from kavka.storage.log import Log
from kavka.storage.log_append import AppendInfo, AppendOrigin
from kavka.storage.log_read import LogRead
from kavka.storage.producer_state import NOBODY

log = logging.getLogger(__name__)

READ_UNCOMMITTED = 0
READ_COMMITTED = 1
# How followers read: up to the end of the log.
READ_ALL = 2

# Runs a function in a worker thread, then gives its error (or None) to the second on the loop.
RunInWorker = Callable[[Callable[[], Any], Callable[[BaseException | None], None]], None]


class Partition:
    __slots__ = (
        "_flush_running",
        "_run_in_worker",
        "_shared",
        "adding_replicas",
        "broker_id",
        "controller_epoch",
        "epoch_start",
        "fetch_waiters",
        "follower_sessions",
        "follower_waiters",
        "followers",
        "isr",
        "leader_epoch",
        "leader_id",
        "log",
        "maximal_isr",
        "metrics",
        "on_storage_failure",
        "partition_epoch",
        "pending_isr",
        "produce_waiters",
        "removing_replicas",
        "replicas",
        "topic_id",
        "topic_partition",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic_id: UUID,
        broker_id: int,
        run_in_worker: RunInWorker,
        metrics: Any,
        shared: Shared | None = None,
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
        self.adding_replicas: list[int] = []
        self.removing_replicas: list[int] = []
        self.isr: frozenset[int] = frozenset()
        # The ISR with everyone who may be in it by the time the controller has answered.
        self.maximal_isr: frozenset[int] = frozenset()
        self.pending_isr: IsrChange | None = None
        # The other replicas, where this broker leads.
        self.followers: dict[int, FollowerState] = {}
        self.epoch_start = 0
        # Who is told of what happens here: followers by their sessions, and those that wait without one.
        self.follower_sessions: dict[FollowerSession, Any] = {}
        self.follower_waiters: set[FetchWaiter] = set()
        self.fetch_waiters: set[FetchWaiter] = set()
        self.produce_waiters: set[AppendWaiter] = set()
        self.on_storage_failure: Callable[[Partition, BaseException], None] | None = None
        self._run_in_worker = run_in_worker
        self._shared = shared or Shared()
        self._flush_running = False

    # ---- who leads

    @property
    def is_leader(self) -> bool:
        return self.leader_id == self.broker_id

    def make_leader(self, state: LeaderAndIsrPartitionState, log: Log) -> None:
        """Raises OSError or KafkaError where the disk does not take the new epoch."""
        is_new_epoch = state.leader_epoch != self.leader_epoch or self.log is None
        is_new_leader = not self.is_leader or self.log is None
        self._take_state(state)
        self.log = log
        log.producer_states.admitted = NOBODY
        if is_new_epoch:
            log.start_epoch(state.leader_epoch)
            self.epoch_start = log.written_end
        now = self._shared.monotonic()
        known, self.followers = self.followers, {}
        for broker_id in self.replicas:
            if broker_id != self.broker_id:
                follower = known.get(broker_id) or FollowerState(broker_id)
                self.followers[broker_id] = follower
                if is_new_epoch or broker_id not in known:
                    follower.begin_epoch(now, log.written_end, broker_id in self.isr, is_new_leader)
        self.advance(appended=False)
        if is_new_epoch:
            self.abandon_fetches()  # whoever named the old epoch is fenced

    def make_follower(self, state: LeaderAndIsrPartitionState, log: Log) -> bool:
        """True where it is about another leader, or another epoch, than before."""
        is_new = state.leader_epoch != self.leader_epoch or state.leader != self.leader_id or self.log is None
        self._take_state(state)
        self.log = log
        self.followers = {}
        if is_new:
            for waiter in list(self.produce_waiters):
                if isinstance(waiter, ProduceWaiter) and self.leader_id >= 0:
                    waiter.leader_lost(self)
                else:
                    waiter.fail(self, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            self.abandon_fetches()
        return is_new

    def _take_state(self, state: LeaderAndIsrPartitionState) -> None:
        pending = self.pending_isr
        # An order that says what we know already (a new controller gives it to everyone) may have been written before
        # the controller took the change that is under way: the answer to that still counts.
        says_nothing_new = (
            pending is not None
            and not pending.given_up
            and (state.leader, state.leader_epoch, state.partition_epoch)
            == (self.leader_id, self.leader_epoch, self.partition_epoch)
        )
        self.leader_id = state.leader
        self.leader_epoch = state.leader_epoch
        self.partition_epoch = state.partition_epoch
        self.controller_epoch = state.controller_epoch
        self.replicas = list(state.replicas)
        self.adding_replicas = list(state.adding_replicas)
        self.removing_replicas = list(state.removing_replicas)
        if not says_nothing_new:
            self._set_isr(frozenset(state.isr))

    def _set_isr(self, isr: frozenset[int]) -> None:
        self.isr = self.maximal_isr = isr
        self.pending_isr = None
        for session, asked in self.follower_sessions.items():
            if session.replica_id not in isr:
                session.outside[asked] = None

    def go_offline(self) -> None:
        """Its log directory failed: nothing is served until the partition is made anew."""
        self.log = None
        self.fail_waiters(ErrorCode.KAFKA_STORAGE_ERROR)

    def was_cut(self, offset: int) -> None:
        """Nothing from `offset` on is in the log any more, for who leads now does not have it."""
        for waiter in list(self.produce_waiters):
            if isinstance(waiter, ProduceWaiter):
                waiter.was_cut(self, offset)
        self.abandon_fetches()

    def fail_waiters(self, code: ErrorCode) -> None:
        for produce in list(self.produce_waiters):
            produce.fail(self, code)
        self.abandon_fetches()

    def abandon_fetches(self) -> None:
        """Who waits to read asks again: it is not what it was."""
        for fetch in list(self.fetch_waiters):
            fetch.abandon()
        self.abandon_follower_fetches()

    def abandon_follower_fetches(self) -> None:
        for fetch in list(self.follower_waiters):
            fetch.abandon()
        for session, asked in list(self.follower_sessions.items()):
            session.changed(asked)

    def check_epoch(self, current_leader_epoch: int) -> None:
        """A client that names the leader epoch it knows is fenced when it is behind, asked to wait when ahead."""
        if current_leader_epoch == NO_LEADER_EPOCH or current_leader_epoch == self.leader_epoch:
            return
        if current_leader_epoch < self.leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    # ---- append

    def stage(
        self,
        records: memoryview | ValidatedBatch,
        acks: int,
        api_version: int | None,
        origin: AppendOrigin = AppendOrigin.CLIENT,
    ) -> AppendInfo:
        log = self.log
        assert log is not None
        if acks == -1 and len(self.isr) < log.config.min_insync_replicas and self.is_under_min_isr:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{self.topic_partition} has {len(self.isr)} replicas in sync, "
                f"min.insync.replicas asks for {log.config.min_insync_replicas}.",
            )
        return log.stage_as_leader(
            records,
            self.leader_epoch,
            origin=origin,
            api_version=api_version,
            on_loop=origin is AppendOrigin.CLIENT,
        )

    def write_staged(self) -> None:
        if self.log is None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"The log directory of {self.topic_partition} has failed.")
        self.log.write_staged()

    def advance(self, *, appended: bool = True) -> None:
        """After anything was appended, flushed, or the ISR changed: move the high watermark, wake who waits for it.

        Followers wait for what is `appended`. With thousands of partitions in each of their requests, looking at all of
        them for every partition whose ISR has changed would take minutes.
        """
        log = self.log
        if log is None:
            return
        config = log.config
        held_by_flush = config.flush_before_visible or config.flush_messages == 1
        unflushed = log.unflushed_messages
        if unflushed >= config.flush_messages or (unflushed and held_by_flush):
            self._start_flush()
        if self.leader_id == self.broker_id:
            end = log.flushed_offset if held_by_flush else log.written_end
            if self.followers:
                end = self._committed_end(end)
                if appended:
                    for session, asked in list(self.follower_sessions.items()):
                        session.appended(asked, self)
                if appended and self.follower_waiters:
                    for fetch in list(self.follower_waiters):
                        fetch.check()
            if end > log.high_watermark:
                self._commit(end)
        self.wake()

    def reconsider(self) -> None:
        """Who holds the high watermark back may not do so any more: it has died, or was late for too long. No fetch and
        no append need come to show it, as producers may all be waiting."""
        log = self.log
        if log is not None and self.is_leader and self.followers and log.high_watermark < log.written_end:
            self.advance(appended=False)

    def _commit(self, end: int) -> None:
        """Move the high watermark; followers hear of it with their next answers."""
        log = self.log
        assert log is not None
        log.set_high_watermark(end)
        for session, asked in self.follower_sessions.items():
            session.touched[asked] = None

    def wake(self) -> None:
        """The high watermark, or what is flushed, has moved."""
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

    # ---- replicas, where this broker leads

    @property
    def min_isr(self) -> int:
        """What min.insync.replicas can ask for: no more than there are replicas."""
        log = self.log
        assert log is not None
        return min(log.config.min_insync_replicas, len(self.followers) + 1)

    @property
    def is_under_min_isr(self) -> bool:
        return self.log is not None and self.is_leader and len(self.isr) < self.min_isr

    @property
    def is_under_replicated(self) -> bool:
        """Replicas that a reassignment is only adding do not count."""
        return self.is_leader and len(self.isr) < sum(one not in self.adding_replicas for one in self.replicas)

    def _committed_end(self, leader_end: int) -> int:
        """What the high watermark may be. With fewer in sync than min.insync.replicas nothing more is committed."""
        log = self.log
        assert log is not None
        if len(self.isr) < log.config.min_insync_replicas and self.is_under_min_isr:
            return log.high_watermark
        shared = self._shared
        return high_watermark(
            log.high_watermark,
            leader_end,
            self.followers.values(),
            self.maximal_isr,
            shared.monotonic(),
            shared.settings.lag_time_max_s,
            shared.alive(),
        )

    def follower(self, broker_id: int) -> FollowerState:
        """UNKNOWN_LEADER_EPOCH for a broker that has no replica by what is known here: it knows more than we do."""
        found = self.followers.get(broker_id)
        if found is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_LEADER_EPOCH, f"Broker {broker_id} has no replica of {self.topic_partition}."
            )
        return found

    def holds_back(self, follower: FollowerState, now: float) -> bool:
        """Whether a follower is to get nothing just now: it is not in sync, throttled, and enough was sent."""
        log = self.log
        assert log is not None
        return (
            bool(log.config.leader_replication_throttled_replicas)
            and self.is_throttled_leader
            and follower.broker_id not in self.isr
            and self._shared.leader_throttle.is_exceeded(now)
        )

    @property
    def is_throttled_leader(self) -> bool:
        log = self.log
        return log is not None and is_throttled(
            log.config.leader_replication_throttled_replicas, self.topic_partition.partition, self.broker_id
        )

    @property
    def is_throttled_follower(self) -> bool:
        log = self.log
        return log is not None and is_throttled(
            log.config.follower_replication_throttled_replicas, self.topic_partition.partition, self.broker_id
        )

    def preferred_replica(self, rack: str, offset: int, racks: Callable[[int], str | None]) -> int:
        """Who a consumer in `rack` is to read from when it asks the leader for `offset`; -1 where that is the
        leader."""
        log = self.log
        if log is None or not self.is_leader:
            return -1
        leader = Candidate(log.written_end, self._shared.monotonic(), self.broker_id, racks(self.broker_id))
        followers = [
            Candidate(one.end_offset, one.caught_up_at, one.broker_id, racks(one.broker_id))
            for one in self.followers.values()
            if one.broker_id in self.isr and one.start_offset <= offset <= one.end_offset
        ]
        chosen = choose(rack, leader, followers)
        return -1 if chosen == self.broker_id else chosen

    @property
    def low_watermark(self) -> int:
        """What all replicas that live have deleted up to."""
        log = self.log
        assert log is not None
        alive = self._shared.alive()
        lowest = log.start_offset
        for one in self.followers.values():
            if one.start_offset < lowest and one.broker_id in alive:
                lowest = one.start_offset
        return max(lowest, 0)

    def note_fetch(self, follower: FollowerState, offset: int, start_offset: int, now: float, epoch: int) -> None:
        """A follower asks from `offset` on: it has all before. Moves the high watermark, and may bring it into the
        ISR."""
        if 0 <= epoch < follower.broker_epoch:
            return  # it was on the way since before that broker started again
        log = self.log
        assert log is not None
        before = follower.end_offset
        started = follower.start_offset
        follower.fetched(offset, start_offset, now, log.written_end, epoch)
        if follower.broker_id not in self.maximal_isr:
            self._maybe_expand(follower)
        if offset != before and offset > log.high_watermark:
            config = log.config
            held_by_flush = config.flush_before_visible or config.flush_messages == 1
            end = self._committed_end(log.flushed_offset if held_by_flush else log.written_end)
            if end > log.high_watermark:
                self._commit(end)
                self.wake()
        if started != start_offset and self.produce_waiters:
            self.wake()

    def _maybe_expand(self, follower: FollowerState) -> None:
        log = self.log
        shared = self._shared
        assert log is not None
        if (
            self.pending_isr is None
            and shared.isr_changes is not None
            and follower.broker_id in shared.alive()
            and may_join(follower, log.high_watermark, self.epoch_start)
        ):
            self._propose(self.isr | {follower.broker_id}, True)

    def shrink_isr(self, now: float) -> None:
        """From time to time: propose an ISR without those that lag."""
        log_ = self.log
        shared = self._shared
        if log_ is None or not self.is_leader or self.pending_isr is not None or shared.isr_changes is None:
            return
        members = [one for one in self.followers.values() if one.broker_id in self.isr]
        late = out_of_sync(members, log_.written_end, now, shared.settings.lag_time_max_s)
        late += [one for one in self.isr if one != self.broker_id and one not in self.followers]
        if late:
            log.info(
                "%s: %s are out of sync. High watermark %d, end %d, they have %s",
                self.topic_partition,
                late,
                log_.high_watermark,
                log_.written_end,
                {one.broker_id: one.end_offset for one in members},
            )
            self._propose(self.isr - frozenset(late), False)

    def _propose(self, isr: frozenset[int], expands: bool) -> None:
        changes = self._shared.isr_changes
        assert changes is not None
        change = self.pending_isr = IsrChange(self, isr, expands)
        self.maximal_isr = self.isr | isr
        changes.submit(change)

    def isr_accepted(self, change: IsrChange, leader_epoch: int, partition_epoch: int, isr: frozenset[int]) -> None:
        """The controller's answer to a change."""
        if change is not self.pending_isr or leader_epoch != self.leader_epoch:
            return  # another order has come meanwhile, and says all
        if partition_epoch < self.partition_epoch:
            return
        if change.expands:
            self._shared.isr_expands.value += 1
        else:
            self._shared.isr_shrinks.value += 1
        log.info(
            "%s: the ISR is now %s (was %s), partition epoch %d",
            self.topic_partition,
            sorted(isr),
            sorted(self.isr),
            partition_epoch,
        )
        self.partition_epoch = partition_epoch
        for broker_id in isr & self.followers.keys():
            self.followers[broker_id].admit()
        self._set_isr(isr)
        self.advance(appended=False)

    def isr_refused(self, change: IsrChange, code: ErrorCode) -> bool:
        """The controller did not take a change: True where it is to be asked again."""
        if change is not self.pending_isr:
            return False
        if code in _ISR_REVERTS:
            # It was not done, and the state of things is what it was: go on from there.
            joining = [self.followers[one] for one in change.isr - self.isr if one in self.followers]
            # Followers that wait to be let in are proposed again and again: only the first refusal is worth a line.
            level = logging.DEBUG if joining and all(one.refusals for one in joining) else logging.INFO
            log.log(level, "%s: the ISR %s was refused (%s)", self.topic_partition, sorted(change.isr), code.name)
            now = self._shared.monotonic()
            for follower in joining:
                follower.refuse(now, ineligible=code is ErrorCode.INELIGIBLE_REPLICA)
            self._set_isr(self.isr)
            self.advance()
            return False
        if code in _ISR_GIVES_UP:
            # What we know is not up to date, so it cannot be said which ISR counts: the larger one until we are told.
            change.given_up = True
            log.info("%s: the ISR %s was refused (%s)", self.topic_partition, sorted(change.isr), code.name)
            return False
        return True

    # ---- group commit: all that waits for a flush shares the next fsync

    def _start_flush(self) -> None:
        if self._flush_running or self.log is None:
            return
        try:
            flush = self.log.prepare_flush()
        except (OSError, FileClosed) as error:
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
        if isolation_level == READ_ALL:
            return log.written_end
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


_ISR_REVERTS = frozenset((ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA))
_ISR_GIVES_UP = frozenset(
    (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
    )
)
