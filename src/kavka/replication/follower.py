"""The follower's side of a partition: truncation, appends, and the leader's offsets."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kavka.replication.divergence import truncation_offset
from kavka.replication.throttle import is_throttled
from kavka.storage.log_append import UnexpectedOffset

if TYPE_CHECKING:
    from kavka.replication.partition import Partition
    from kavka.storage.log import Log
    from kavka.storage.log_manager import LogManager

logger = logging.getLogger(__name__)


class FollowerRole:
    """Exists while another broker leads the partition. The fetcher of that broker calls it, on the
    loop thread. Truncation goes through the log manager, which stops the cleaner of the log."""

    __slots__ = ("_partition",)

    def __init__(self, partition: Partition) -> None:
        self._partition = partition

    @property
    def _log(self) -> Log:
        log = self._partition.log
        assert log is not None
        return log

    @property
    def is_throttled(self) -> bool:
        partition = self._partition
        log = partition.log
        return log is not None and is_throttled(
            log.config.follower_replication_throttled_replicas, partition.topic_partition.partition, partition.broker_id
        )

    def prepare(self, log_manager: LogManager) -> None:
        """Before the first fetch from a leader. Records without leader epochs cannot be compared
        with the leader's, so a log that has only such records is truncated to its high
        watermark."""
        log = self._log
        log.roll_back()
        if log.epochs.latest < 0 and log.end_offset > log.high_watermark:
            self._truncate_to(log_manager, log.high_watermark)

    def truncate(self, log_manager: LogManager, leader_epoch: int, leader_end: int) -> None:
        """The leader responded that the logs diverge: its log has `leader_epoch` up to
        `leader_end`. A further truncation may be needed after the next fetch."""
        log = self._log
        offset = truncation_offset(
            log.end_offset_for_epoch, log.end_offset, log.high_watermark, leader_epoch, leader_end
        )
        self._truncate_to(log_manager, offset)

    def _truncate_to(self, log_manager: LogManager, offset: int) -> None:
        partition, log = self._partition, self._log
        if offset < log.high_watermark:
            logger.warning(
                "Truncating %s to offset %d, below its high watermark %d: the leader lacks committed records",
                partition.topic_partition,
                offset,
                log.high_watermark,
            )
        elif offset < log.end_offset:
            logger.info("Truncating %s from offset %d to %d", partition.topic_partition, log.end_offset, offset)
        try:
            log_manager.truncate_to(partition.topic_partition, offset)
        finally:
            # A full disk may raise after the truncation. Pending produces must not take later
            # records for their own.
            partition.on_truncate(offset)

    def move_into_range(self, log_manager: LogManager, leader_start: int, leader_end: int) -> None:
        """The end of this log is outside the leader's log. After an unclean election the leader's
        log may be shorter; then this one is truncated. If all records here are older than the
        leader's first, they are dropped."""
        log = self._log
        if leader_end < log.end_offset:
            self._truncate_to(log_manager, leader_end)
        elif leader_start > log.end_offset:
            logger.warning(
                "Restarting %s at offset %d: the leader's log has no records before it",
                self._partition.topic_partition,
                leader_start,
            )
            self._restart_at(log_manager, leader_start)

    def _restart_at(self, log_manager: LogManager, offset: int) -> None:
        try:
            log_manager.truncate_fully_and_start_at(self._partition.topic_partition, offset)
        finally:
            self._partition.on_truncate(0)

    def append(self, log_manager: LogManager, records: memoryview) -> None:
        log = self._log
        leader_epoch = self._partition.leader_epoch
        try:
            log.append_as_follower(records, leader_epoch)
        except UnexpectedOffset as unexpected:
            end = log.end_offset
            if not (end == log.start_offset and unexpected.first_offset < end <= unexpected.last_offset):
                raise
            # The leader's log starts in the middle of this batch, because records were deleted up
            # to there. So does this log, then.
            self._restart_at(log_manager, unexpected.first_offset)
            log.append_as_follower(records, leader_epoch)
            log.advance_start_offset(end)

    def update_offsets(self, high_watermark: int, start_offset: int) -> None:
        """Take the leader's start offset, and its high watermark up to the end of this log. The
        high watermark never moves back: a new leader may know a lower one than its predecessor."""
        log = self._log
        committed = min(high_watermark, log.end_offset)
        has_moved = committed > log.high_watermark
        if has_moved:
            log.set_high_watermark(committed)
        if start_offset > log.start_offset:
            log.advance_start_offset(start_offset)
        if has_moved:
            self._partition.check_pending()
