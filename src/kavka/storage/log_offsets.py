"""The offsets of a log: its start, its end, the high watermark and others."""

from __future__ import annotations


class LogOffsets:
    """The six offsets of one log. The parts of the log share them. These invariants hold:

    start_offset <= last_stable_offset <= high_watermark <= written_end <= end_offset, and
    flushed_offset <= written_end.

    - `start_offset`: the first offset that may be read. Retention and delete-records move it up.
    - `high_watermark`: every in-sync replica has all records before it.
    - `last_stable_offset`: no record before it belongs to an open transaction.
    - `flushed_offset`: the recovery point. All records before it are on disk.
    - `written_end`: the offset after the last record in the files. Readers see the records before
      it.
    - `end_offset`: the offset of the next record. It is past `written_end` while batches are
      staged.

    The appender moves `end_offset` and `written_end`, the flusher `flushed_offset`, and Log the
    others. Truncation (in Log) may move all of them. Only the thread that owns the log may change
    the offsets.

    Log inherits this class, so that the offsets are plain attributes of a Log. A Log passes itself
    to its parts as their LogOffsets.
    """

    __slots__ = ("end_offset", "flushed_offset", "high_watermark", "last_stable_offset", "start_offset", "written_end")

    def __init__(self, start_offset: int, end_offset: int, flushed_offset: int) -> None:
        self.start_offset = start_offset
        self.high_watermark = start_offset
        self.last_stable_offset = start_offset
        self.flushed_offset = flushed_offset
        self.written_end = end_offset
        self.end_offset = end_offset
