"""The offsets of a log."""

from __future__ import annotations


class LogOffsets:
    """The six offsets of one log, which its parts share. They satisfy

    start_offset <= last_stable_offset <= high_watermark <= written_end <= end_offset, and
    flushed_offset <= written_end.

    - `start_offset`: the first offset that may be read. Retention and delete-records move it up.
    - `high_watermark`: every in-sync replica has all records before it.
    - `last_stable_offset`: every transaction before it is also decided.
    - `flushed_offset`: the recovery point. All records before it are on disk.
    - `written_end`: the end of the data in the files, and of the data that readers see.
    - `end_offset`: the offset of the next record, past `written_end` while batches are staged.

    The appender moves `end_offset` and `written_end`, the flusher `flushed_offset`, and Log the
    others. Truncation (in Log) may move all of them. Only the thread that owns the log may change
    them.

    Log inherits this class, so that its callers read the offsets as plain attributes, and passes
    itself to its parts as a LogOffsets.
    """

    __slots__ = ("end_offset", "flushed_offset", "high_watermark", "last_stable_offset", "start_offset", "written_end")

    def __init__(self, start_offset: int, end_offset: int, flushed_offset: int) -> None:
        self.start_offset = start_offset
        self.high_watermark = start_offset
        self.last_stable_offset = start_offset
        self.flushed_offset = flushed_offset
        self.written_end = end_offset
        self.end_offset = end_offset
