"""The leader's side of a partition: its followers, the high watermark and the ISR."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kavka.common.errors import ErrorCode, KafkaError
from kavka.replication.in_sync import FollowerState, high_watermark, may_join, out_of_sync
from kavka.replication.partition_state import (
    CommittedIsr,
    PendingExpandIsr,
    PendingIsr,
    PendingShrinkIsr,
    UnresolvedIsr,
)
from kavka.replication.read_replica import Candidate, choose

if TYPE_CHECKING:
    from kavka.replication.partition import Partition
    from kavka.replication.shared import Shared
    from kavka.storage.log import Log

logger = logging.getLogger(__name__)

# The controller made no change: the previous ISR is still in effect.
_REVERT_ERRORS = frozenset((ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA))
# This broker has a stale state of the partition.
_STALE_STATE_ERRORS = frozenset(
    (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
    )
)


@dataclass(slots=True, eq=False)
class LeaderRole:
    """Exists while this broker leads the partition. Owns the state of the other replicas
    (`followers`, by broker id), and proposes changes of the ISR to the controller.

    `Partition` owns the ISR's state; between two orders of the controller only this class changes
    it. `epoch_start` is the end of the log when the current leader epoch began. Only the loop
    thread calls it.
    """

    _partition: Partition
    _shared: Shared
    followers: dict[int, FollowerState] = field(default_factory=dict)
    epoch_start: int = 0

    def update_followers(self, log: Log, *, is_new_epoch: bool, is_new_leader: bool) -> None:
        """Apply an order of the controller: the replicas or the leader epoch may have changed."""
        partition = self._partition
        if is_new_epoch:
            self.epoch_start = log.written_end
        now = self._shared.monotonic()
        isr = partition.isr_state.isr
        previous, self.followers = self.followers, {}
        for broker_id in partition.replicas:
            if broker_id != partition.broker_id:
                follower = previous.get(broker_id) or FollowerState(broker_id)
                self.followers[broker_id] = follower
                if is_new_epoch or broker_id not in previous:
                    follower.begin_epoch(now, log.written_end, broker_id in isr, is_new_leader)

    def follower(self, broker_id: int) -> FollowerState:
        """Return the state of a follower. Raises UNKNOWN_LEADER_EPOCH for a broker without a
        replica: that broker has a newer assignment than this broker."""
        follower = self.followers.get(broker_id)
        if follower is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_LEADER_EPOCH,
                f"Broker {broker_id} has no replica of {self._partition.topic_partition}.",
            )
        return follower

    # ---- offsets

    def committed_end(self, log: Log, leader_end: int) -> int:
        """Return the new high watermark, which does not move while the ISR is smaller than
        min.insync.replicas."""
        partition, shared = self._partition, self._shared
        isr_state = partition.isr_state
        if len(isr_state.isr) < log.config.min_insync_replicas and partition.is_under_min_isr:
            return log.high_watermark
        return high_watermark(
            log.high_watermark,
            leader_end,
            self.followers.values(),
            isr_state.maximal_isr,
            shared.monotonic(),
            shared.settings.lag_time_max_s,
            shared.live_brokers(),
        )

    def low_watermark(self, log: Log) -> int:
        """The lowest start offset of all live replicas."""
        live_brokers = self._shared.live_brokers()
        lowest = log.start_offset
        for follower in self.followers.values():
            if follower.start_offset < lowest and follower.broker_id in live_brokers:
                lowest = follower.start_offset
        return max(lowest, 0)

    def record_fetch(
        self, follower: FollowerState, offset: int, start_offset: int, now: float, broker_epoch: int
    ) -> None:
        """Record a fetch from `offset`: the follower has all earlier records. Moves the high
        watermark, and may propose the follower for the ISR."""
        if 0 <= broker_epoch < follower.broker_epoch:
            return  # sent before that broker restarted
        partition = self._partition
        log = partition.log
        assert log is not None
        previous_end, previous_start = follower.end_offset, follower.start_offset
        follower.record_fetch(offset, start_offset, now, log.written_end, broker_epoch)
        if follower.broker_id not in partition.isr_state.maximal_isr:
            self._maybe_expand(follower, log)
        if offset != previous_end and offset > log.high_watermark:
            config = log.config
            flush_limits_reads = config.flush_before_visible or config.flush_messages == 1
            end = self.committed_end(log, log.flushed_offset if flush_limits_reads else log.written_end)
            if end > log.high_watermark:
                partition.commit(end)
                partition.check_pending()
        if start_offset != previous_start and partition.pending_appends:
            partition.check_pending()

    # ---- reads

    def is_throttling(self, follower: FollowerState, now: float) -> bool:
        """Whether the follower gets no records now: it is throttled, not in sync, and the quota is
        exceeded."""
        partition = self._partition
        log = partition.log
        assert log is not None
        throttled = log.config.leader_replication_throttled_replicas
        if not throttled or not partition.is_throttled(throttled):
            return False
        return follower.broker_id not in partition.isr_state.isr and self._shared.leader_throttle.is_exceeded(now)

    def record_sent(self, size: int, now: float) -> None:
        """Count the bytes of records that were sent to a follower."""
        self._shared.bytes_out.value += size
        log = self._partition.log
        throttled = log.config.leader_replication_throttled_replicas if log is not None else ()
        if throttled and self._partition.is_throttled(throttled):
            self._shared.leader_throttle.record(size, now)

    def preferred_replica(self, rack: str, offset: int, rack_of: Callable[[int], str | None]) -> int:
        """Return the id of the broker from which a consumer in `rack` should read `offset`; -1 for
        the leader."""
        partition = self._partition
        log = partition.log
        if log is None:
            return -1
        broker_id = partition.broker_id
        leader = Candidate(log.written_end, self._shared.monotonic(), broker_id, rack_of(broker_id))
        isr = partition.isr_state.isr
        candidates = [
            Candidate(follower.end_offset, follower.caught_up_at, follower.broker_id, rack_of(follower.broker_id))
            for follower in self.followers.values()
            if follower.broker_id in isr and follower.start_offset <= offset <= follower.end_offset
        ]
        chosen = choose(rack, leader, candidates)
        return -1 if chosen == broker_id else chosen

    # ---- changes of the ISR

    def _maybe_expand(self, follower: FollowerState, log: Log) -> None:
        partition, shared = self._partition, self._shared
        state = partition.isr_state
        if (
            isinstance(state, CommittedIsr)
            and shared.isr_changes is not None
            and follower.broker_id in shared.live_brokers()
            and may_join(follower, log.high_watermark, self.epoch_start)
        ):
            isr = state.isr | {follower.broker_id}
            epochs = partition.leader_epoch, partition.partition_epoch
            self._propose(PendingExpandIsr(state.isr, isr, isr, *epochs))

    def shrink_isr(self, now: float) -> None:
        """Propose an ISR without the members that lag. Called periodically."""
        partition, shared = self._partition, self._shared
        log, state = partition.log, partition.isr_state
        if log is None or not isinstance(state, CommittedIsr) or shared.isr_changes is None:
            return
        members = [follower for follower in self.followers.values() if follower.broker_id in state.isr]
        lagging = out_of_sync(members, log.written_end, now, shared.settings.lag_time_max_s)
        lagging += [
            broker_id for broker_id in state.isr if broker_id != partition.broker_id and broker_id not in self.followers
        ]
        if lagging:
            logger.info(
                "%s: replicas %s are out of sync. High watermark %d, log end offset %d, end offsets of the ISR %s",
                partition.topic_partition,
                lagging,
                log.high_watermark,
                log.written_end,
                {follower.broker_id: follower.end_offset for follower in members},
            )
            epochs = partition.leader_epoch, partition.partition_epoch
            self._propose(PendingShrinkIsr(state.isr, state.isr, state.isr - frozenset(lagging), *epochs))

    def _propose(self, pending: PendingIsr) -> None:
        changes = self._shared.isr_changes
        assert changes is not None
        self._partition.isr_state = pending
        changes.submit(self._partition, pending)

    def on_isr_accepted(
        self, pending: PendingIsr, leader_epoch: int, partition_epoch: int, isr: frozenset[int]
    ) -> None:
        """Apply a proposed change that the controller has committed."""
        partition = self._partition
        if pending is not partition.isr_state or leader_epoch != partition.leader_epoch:
            return  # a later order of the controller is already in effect
        if partition_epoch < partition.partition_epoch:
            return
        is_expand = isinstance(pending, PendingExpandIsr)
        (self._shared.isr_expands if is_expand else self._shared.isr_shrinks).value += 1
        logger.info(
            "%s: the ISR is now %s (was %s), partition epoch %d",
            partition.topic_partition,
            sorted(isr),
            sorted(pending.isr),
            partition_epoch,
        )
        partition.partition_epoch = partition_epoch
        for broker_id in isr & self.followers.keys():
            self.followers[broker_id].admit()
        partition.commit_isr(isr)
        partition.advance(appended=False)

    def on_isr_refused(self, pending: PendingIsr, code: ErrorCode) -> bool:
        """Handle the refusal of a proposed change by the controller. Returns whether to send the
        change again."""
        partition = self._partition
        if pending is not partition.isr_state:
            return False
        is_reverted = code in _REVERT_ERRORS
        if not is_reverted and code not in _STALE_STATE_ERRORS:
            return True
        joining = [self.followers[id_] for id_ in pending.proposed - pending.isr if id_ in self.followers]
        # The leader repeats the proposal for a refused follower. Only the first refusal is logged
        # as INFO.
        is_repeated = is_reverted and joining and all(follower.refusals for follower in joining)
        logger.log(
            logging.DEBUG if is_repeated else logging.INFO,
            "%s: the controller refused the ISR %s (%s)",
            partition.topic_partition,
            sorted(pending.proposed),
            code.name,
        )
        if is_reverted:
            now = self._shared.monotonic()
            for follower in joining:
                follower.refuse(now, ineligible=code is ErrorCode.INELIGIBLE_REPLICA)
            partition.commit_isr(pending.isr)
            partition.advance()
        else:
            partition.isr_state = UnresolvedIsr(pending.isr, pending.maximal_isr)
        return False
