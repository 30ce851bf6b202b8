"""What a follower does with its log: cut it where it parts from the leader's, append what comes, take over marks."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from kavka.replication.divergence import truncation_offset
from kavka.replication.partition import Partition
from kavka.storage.log_append import UnexpectedOffset

if TYPE_CHECKING:
    from kavka.storage.log_manager import LogManager

log = logging.getLogger(__name__)


def prepare(partition: Partition, log_manager: LogManager) -> None:
    """Before the first fetch from a leader. A log whose records have no epochs cannot be compared: what is not
    committed of it goes."""
    the_log = partition.log
    assert the_log is not None
    the_log.roll_back()
    if the_log.latest_epoch < 0 and the_log.end_offset > the_log.high_watermark:
        _cut(partition, log_manager, the_log.high_watermark)


def truncate(partition: Partition, log_manager: LogManager, diverging: Any) -> None:
    """The leader said where its log parts from ours (or that it has to be looked for further down)."""
    the_log = partition.log
    assert the_log is not None
    offset = truncation_offset(
        the_log.end_offset_for_epoch,
        the_log.end_offset,
        the_log.high_watermark,
        diverging.epoch,
        diverging.end_offset,
    )
    _cut(partition, log_manager, offset)


def _cut(partition: Partition, log_manager: LogManager, offset: int) -> None:
    the_log = partition.log
    assert the_log is not None
    if offset < the_log.high_watermark:
        log.warning(
            "%s is cut to offset %d, below its high watermark %d: its leader lacks what was committed",
            partition.topic_partition,
            offset,
            the_log.high_watermark,
        )
    elif offset < the_log.end_offset:
        log.info("%s is cut from offset %d to %d", partition.topic_partition, the_log.end_offset, offset)
    try:
        log_manager.truncate_to(partition.topic_partition, offset)
    finally:
        # A disk that is full may say so when the log is cut already: what waits must not take what comes instead for
        # its own.
        partition.was_cut(offset)


def move_into_range(partition: Partition, log_manager: LogManager, leader_start: int, leader_end: int) -> None:
    """Our log's end is not within the leader's. Longer than it: the leader lost records (an unclean election), and so
    do we. Older than its beginning: nothing of ours is of use."""
    the_log = partition.log
    assert the_log is not None
    tp = partition.topic_partition
    if leader_end < the_log.end_offset:
        _cut(partition, log_manager, leader_end)
    elif leader_start > the_log.end_offset:
        log.warning("%s begins anew at %d: the leader has nothing before that", tp, leader_start)
        _begin_anew(partition, log_manager, leader_start)


def _begin_anew(partition: Partition, log_manager: LogManager, offset: int) -> None:
    try:
        log_manager.truncate_fully_and_start_at(partition.topic_partition, offset)
    finally:
        partition.was_cut(0)


def append(partition: Partition, log_manager: LogManager, records: Any) -> None:
    the_log = partition.log
    assert the_log is not None
    try:
        the_log.append_as_follower(records, partition.leader_epoch)
    except UnexpectedOffset as unexpected:
        end = the_log.end_offset
        if not (end == the_log.start_offset and unexpected.first_offset < end <= unexpected.last_offset):
            raise
        # The leader's log begins in the middle of this batch (records were deleted up to there): so does ours, then.
        _begin_anew(partition, log_manager, unexpected.first_offset)
        the_log.append_as_follower(records, partition.leader_epoch)
        the_log.advance_start_offset(end)


def take_marks(partition: Partition, high_watermark: int, start_offset: int) -> None:
    """The leader's high watermark, as far as our log goes, and its start. What was committed stays committed: a new
    leader may know less than its predecessor told."""
    the_log = partition.log
    assert the_log is not None
    committed = min(high_watermark, the_log.end_offset)
    moved = committed > the_log.high_watermark
    if moved:
        the_log.set_high_watermark(committed)
    if start_offset > the_log.start_offset:
        the_log.advance_start_offset(start_offset)
    if moved:
        partition.wake()
