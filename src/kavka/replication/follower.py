"""The follower's side of a partition: truncation, appends, and the leader's offsets."""

from __future__ import annotations

import logging
from asyncio import TimerHandle
from typing import TYPE_CHECKING

from kavka.replication.fetcher_states import COPY_TRANSITIONS, CopyState
from kavka.storage.log_append import UnexpectedOffset

if TYPE_CHECKING:
    from kavka.replication.partition import Partition
    from kavka.storage.log import Log
    from kavka.storage.log_manager import LogManager
    from kavka.storage.producer_replay import PastProducers

logger = logging.getLogger(__name__)


class FollowerRole:
    """Exists while this broker copies the partition from its leader, in one leader epoch.

    The fetcher of the leader's broker owns it and calls it, on the loop thread. Truncation goes
    through the log manager, which stops the cleaner of the log.
    """

    def __init__(self, partition: Partition, log_manager: LogManager) -> None:
        self.partition = partition
        self.topic, self.index = partition.topic_partition
        self.topic_id = partition.topic_id
        self.leader_epoch = partition.leader_epoch
        self.state = CopyState.FETCHING
        # The end and the start of this log in the last fetch.
        self.fetch_offset = -1
        self.sent_start_offset = -1
        self.attempts = 0
        self.lag = -1
        # Whether a request that the leader holds is abandoned to fetch this partition.
        self.is_urgent = True
        self.timer: TimerHandle | None = None
        # The truncation that waits for a worker thread.
        self.pending_truncation: PastProducers | None = None
        self._log_manager = log_manager

    @property
    def is_active(self) -> bool:
        return self.state in (CopyState.FETCHING, CopyState.DELAYED)

    def move_to(self, state: CopyState) -> None:
        """Change the state, and cancel the timer of the previous state. Raises ValueError if the
        table does not have the transition."""
        if (self.state, state) not in COPY_TRANSITIONS:
            raise ValueError(f"no transition from {self.state.name} to {state.name}")
        self.state = state
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def prepare(self, log: Log) -> int | None:
        """Prepare the log for the first fetch from a leader. Returns the offset to truncate the log
        to, or None. Records without leader epochs cannot be compared with the leader's records, so
        a log that has only such records is truncated to its high watermark."""
        log.roll_back()
        return log.high_watermark if log.epochs.latest < 0 and log.end_offset > log.high_watermark else None

    def truncate_to(self, log: Log, offset: int, past: PastProducers | None = None) -> None:
        """Truncate the log to `offset`. `past` is that of `Log.truncate_to`."""
        tp = self.partition.topic_partition
        if offset < log.high_watermark:
            logger.warning(
                "Truncating %s to offset %d, below its high watermark %d: the leader lacks committed records",
                tp,
                offset,
                log.high_watermark,
            )
        elif offset < log.end_offset:
            logger.info("Truncating %s from offset %d to %d", tp, log.end_offset, offset)
        try:
            self._log_manager.truncate_to(tp, offset, past)
        finally:
            # A full disk may raise an error after the truncation. The pending produces of the
            # removed records must fail: later records may get the same offsets.
            self.partition.on_truncate(offset)

    def move_into_range(self, log: Log, leader_start: int, leader_end: int) -> int | None:
        """Move the end of this log into the range of the leader's log. After an unclean election
        the leader's log may be shorter: then returns the offset to truncate this log to. If this
        log ends before the leader's log starts, all records of this log are deleted."""
        if leader_end < log.end_offset:
            return leader_end
        if leader_start > log.end_offset:
            logger.warning(
                "Deleting all records of %s and continuing at offset %d: the leader's log has no earlier records",
                self.partition.topic_partition,
                leader_start,
            )
            self._restart_at(leader_start)
        return None

    def _restart_at(self, offset: int) -> None:
        try:
            self._log_manager.truncate_fully_and_start_at(self.partition.topic_partition, offset)
        finally:
            self.partition.on_truncate(0)

    def append(self, log: Log, records: memoryview) -> None:
        try:
            log.append_as_follower(records, self.leader_epoch)
        except UnexpectedOffset as error:
            end = log.end_offset
            if not (end == log.start_offset and error.first_offset < end <= error.last_offset):
                raise
            # The leader's log starts in the middle of this batch, because DeleteRecords removed its
            # first records. This log has to start at the same offset.
            self._restart_at(error.first_offset)
            log.append_as_follower(records, self.leader_epoch)
            log.advance_start_offset(end)

    def update_offsets(self, log: Log, high_watermark: int, start_offset: int) -> None:
        """Apply the leader's start offset, and its high watermark up to the end of this log. The
        high watermark never moves back, although that of a new leader may be lower at first."""
        committed = min(high_watermark, log.end_offset)
        has_moved = committed > log.high_watermark
        if has_moved:
            log.set_high_watermark(committed)
        if start_offset > log.start_offset:
            log.advance_start_offset(start_offset)
        if has_moved:
            self.partition.check_pending()
