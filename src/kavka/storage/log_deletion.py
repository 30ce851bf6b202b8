"""Taking away: whole segments at the front (retention, delete-records), the tail (truncation), and cleaned ones in
between."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterable, Sequence

from kavka.common.errors import ErrorCode, KafkaError
from kavka.storage.files import CLEANED_SUFFIX, DELETED_SUFFIX, SWAP_SUFFIX, fsync_dir, remove_if_there
from kavka.storage.log_append import LogAppending
from kavka.storage.producer_replay import reload_producers
from kavka.storage.segment import LogSegment


class PendingDeletion:
    """Files out of use, renamed to .deleted, that may be removed from `due_ms` on.

    With `replaced`, others have taken their place: those must have their names on disk before these are removed.
    """

    __slots__ = ("due_ms", "paths", "replaced", "size")

    def __init__(self, due_ms: int, paths: list[str], size: int, replaced: bool) -> None:
        self.due_ms = due_ms
        self.paths = paths
        self.size = size
        self.replaced = replaced

    def run(self) -> None:
        """In any thread. A file that is gone is not missed; OSError where the disk fails."""
        if self.replaced:
            with contextlib.suppress(FileNotFoundError):
                fsync_dir(os.path.dirname(self.paths[0]))
        for path in self.paths:
            remove_if_there(path)


class LogDeletion(LogAppending):
    # --- at the front

    def delete_old_segments(self, now_ms: int | None = None) -> int:
        """Drop what retention.ms, retention.bytes (both only with cleanup.policy=delete) and the start offset allow.

        Whole segments below the high watermark, oldest first. The active one goes too when all of it is expired: a
        new one is begun first. Returns how many segments went.
        """
        self.write_staged()
        now = self.clock.now_ms() if now_ms is None else now_ms
        config = self.config
        deleted = 0
        if config.delete:
            if config.retention_ms >= 0:
                deleted += self._delete_while(lambda segment, _: now - segment.largest_timestamp > config.retention_ms)
            if config.retention_bytes >= 0:
                excess = self.size - config.retention_bytes

                def too_much(segment: LogSegment, _: int | None) -> bool:
                    nonlocal excess
                    if excess < segment.size:
                        return False
                    excess -= segment.size
                    return True

                deleted += self._delete_while(too_much)
        return deleted + self._delete_while(lambda _, after: after is not None and after <= self.start_offset)

    def _delete_while(self, expired: Callable[[LogSegment, int | None], bool]) -> int:
        """From the front as long as `expired(segment, base offset of the next one)` says so."""
        doomed: list[LogSegment] = []
        count = len(self.segments)
        for n, segment in enumerate(self.segments):
            after = self.segments[n + 1].base_offset if n + 1 < count else None
            if self.high_watermark < (self.end_offset if after is None else after):
                break
            if (after is None and not segment.size) or not expired(segment, after):
                break
            doomed.append(segment)
        if doomed:
            if len(doomed) == count:
                self.roll()
                if self.segments[-1] is doomed[-1]:
                    return 0
            self._remove_segments(doomed)
            self._move_start(max(self.start_offset, self.segments[0].base_offset))
        return len(doomed)

    def delete_records_before(self, offset: int) -> int:
        """Move the start offset up to `offset` (-1: the high watermark), never down; returns it.

        Beyond the high watermark is OFFSET_OUT_OF_RANGE. Segments that are wholly before it go with the next
        `delete_old_segments`.
        """
        self.write_staged()
        if offset == -1:
            offset = self.high_watermark
        if not 0 <= offset <= self.high_watermark:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"Cannot delete up to {offset}: the high watermark of {self.topic_partition} is {self.high_watermark}.",
            )
        if offset > self.start_offset:
            self._move_start(offset)
        return self.start_offset

    def advance_start_offset(self, offset: int) -> None:
        """A follower takes over its leader's start offset, as far as its own log goes."""
        self.write_staged()
        offset = min(offset, self.end_offset)
        if offset > self.start_offset:
            self._move_start(offset)

    def _move_start(self, offset: int) -> None:
        self.start_offset = offset
        self.epochs.truncate_from_start(offset)
        if self.flushed_offset < offset:
            self.flushed_offset = offset
        states = self.producer_states
        states.on_high_watermark(offset)
        if self.high_watermark < offset:
            self.high_watermark = offset
        self.update_stable_offset()

    def _remove_segments(self, segments: Iterable[LogSegment]) -> None:
        """Out of the log at once; the files get `.deleted` on their names and are removed later."""
        for segment in segments:
            self.segments.remove(segment)
            self._schedule_deletion(segment)
            base = segment.base_offset
            if base in self.snapshots.offsets and base != self.snapshots.latest:
                self.snapshots.remove(base)
        self.limit_found = None

    def _schedule_deletion(self, segment: LogSegment, *, replaced: bool = False) -> None:
        size = segment.size
        segment.unmap()
        segment.change_suffix("", DELETED_SUFFIX)
        due = self.clock.now_ms() + self.config.file_delete_delay_ms
        self.pending_deletions.append(PendingDeletion(due, segment.paths, size, replaced))

    def take_due_deletions(self, now_ms: int) -> list[PendingDeletion]:
        """Takes those that are due out of `pending_deletions`; `run` each in a worker thread."""
        due = [deletion for deletion in self.pending_deletions if deletion.due_ms <= now_ms]
        if due:
            self.pending_deletions = [deletion for deletion in self.pending_deletions if deletion.due_ms > now_ms]
        return due

    # --- at the end

    def truncate_to(self, offset: int) -> bool:
        """Cut the log so that it ends at `offset`; a batch that reaches it goes whole. False where it ends before
        that anyway. An OSError from a disk that is full leaves a log that is cut, and knows it."""
        self.write_staged()
        if offset < 0:
            raise ValueError(f"cannot truncate to offset {offset}")
        if offset >= self.end_offset:
            # A leader that wrote nothing has left its epoch there all the same.
            self.epochs.truncate_from_end(self.end_offset)
            return False
        if offset < self.segments[0].base_offset:
            self.truncate_fully_and_start_at(offset)
            return True
        for segment in [s for s in reversed(self.segments) if s.base_offset > offset]:
            self.segments.remove(segment)
            self.snapshots.remove(segment.base_offset)
            segment.delete()
        self.active = self.segments[-1]
        self.active.truncate_to(offset, self.clock.now_ms())
        self.files_created = True
        self._end_at(offset)
        self.epochs.truncate_from_end(offset)
        self.start_offset = min(self.start_offset, offset)
        try:
            reload_producers(
                self.producer_states, self.snapshots, self.segments, self.start_offset, offset, self.clock.now_ms()
            )
        finally:
            self.set_high_watermark(min(self.high_watermark, offset))
        return True

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything and begin anew at `offset`. A disk without room for that has failed: nothing is left."""
        self.write_staged()
        for segment in list(reversed(self.segments)):
            self.segments.remove(segment)
            segment.delete()
        for snapshot in list(self.snapshots.offsets):
            self.snapshots.remove(snapshot)
        try:
            self.new_segment(offset)
        except OSError as error:
            raise OSError(errno.EIO, f"cannot begin anew: {error.strerror}", error.filename) from error
        self.start_offset = offset
        self._end_at(offset)
        self.epochs.clear()
        self.producer_states.clear()
        self.high_watermark = offset
        self.update_stable_offset()

    def _end_at(self, offset: int) -> None:
        self.end_offset = self.written_end = offset
        self.limit_found = None
        self.flushed_offset = min(self.flushed_offset, offset)
        for job in self.flush_jobs:
            job.offset = min(job.offset, offset)

    # --- in between

    def replace_segments(self, new: Sequence[LogSegment], old: Sequence[LogSegment]) -> None:
        """Put cleaned segments (`.cleaned`, inactive, flushed) in the place of those they were made from.

        A crash leaves either of the two: until all new ones are `.swap` the old ones count, from then on opening the
        log completes what is done here. The last ones become `.swap` first, as opening takes a `.swap` after a
        `.cleaned` for the rest of an interrupted one.
        """
        ordered = sorted(new, key=lambda segment: segment.base_offset)
        for segment in reversed(ordered):
            segment.change_suffix(CLEANED_SUFFIX, SWAP_SUFFIX)
        for segment in old:
            self.segments.remove(segment)
            self._schedule_deletion(segment, replaced=True)
        for segment in ordered:
            segment.change_suffix(SWAP_SUFFIX, "")
            self.segments.add(segment)
        known = {segment.base_offset for segment in self.segments}
        for base in [segment.base_offset for segment in old if segment.base_offset not in known]:
            if base != self.snapshots.latest:
                self.snapshots.remove(base)
        self.limit_found = None
        self.files_created = True

    # --- the marks

    def set_high_watermark(self, offset: int) -> None:
        """Kept within the log; moves the last stable offset with it."""
        if offset > self.written_end:
            offset = self.written_end
        if offset < self.start_offset:
            offset = self.start_offset
        self.high_watermark = offset
        states = self.producer_states
        if states.unreplicated:
            states.on_high_watermark(offset)
        first = states.first_unstable_offset
        if first is None or first >= offset:
            self.last_stable_offset = offset
        else:
            self.last_stable_offset = first if first > self.start_offset else self.start_offset

    @property
    def size(self) -> int:
        """Bytes of all .log files."""
        return sum(segment.file.size for segment in self.segments)
