"""One segment of a log: the file of batches and its three indexes."""

from __future__ import annotations

from kavka.storage.file_slice import LogFile
from kavka.storage.log_config import LogConfig
from kavka.storage.offset_index import OffsetIndex
from kavka.storage.time_index import TimeIndex
from kavka.storage.transaction_index import AbortedTxn, TransactionIndex


class LogSegment:
    """SKELETON: signatures for those who build on it; bodies follow.

    Only the loop thread changes a segment that belongs to a log. A segment made by the cleaner (`suffix=".cleaned"`) belongs to
    the cleaner's thread until `Log.replace_segments` takes it. Reading a segment that is not active (`file`, `batches`)
    is safe in any thread: its bytes do not change, and its descriptor lives as long as someone holds `file`.
    """

    base_offset: int
    size: int
    """Bytes of whole batches in the .log file."""
    file: LogFile
    offset_index: OffsetIndex
    time_index: TimeIndex
    txn_index: TransactionIndex

    @classmethod
    def create(cls, dir: str, base_offset: int, config: LogConfig, now_ms: int, *, suffix: str = "") -> LogSegment:
        """New empty files (`suffix` ".cleaned" for the cleaner); files of the same name are overwritten."""
        raise NotImplementedError

    @classmethod
    def open(cls, dir: str, base_offset: int, config: LogConfig, now_ms: int, *, suffix: str = "") -> LogSegment:
        """Existing files. Reads no data; indexes are mapped when they are first asked."""
        raise NotImplementedError

    @property
    def max_timestamp(self) -> int:
        """Largest timestamp in the segment, -1 where there is none."""
        raise NotImplementedError

    @property
    def offset_of_max_timestamp(self) -> int:
        """Last offset of the batch that has it."""
        raise NotImplementedError

    @property
    def largest_timestamp(self) -> int:
        """`max_timestamp`, or the file's time of modification in ms where no record has one."""
        raise NotImplementedError

    def last_modified_ms(self) -> int:
        raise NotImplementedError

    def set_last_modified_ms(self, time_ms: int) -> None:
        raise NotImplementedError

    def first_batch_timestamp(self) -> int | None:
        """Max timestamp of the first batch (what segment.ms counts from); None for an empty segment."""
        raise NotImplementedError

    def next_offset(self) -> int:
        """The offset after the last record (reads headers after the last index entry)."""
        raise NotImplementedError

    def append_batches(self, buffer: memoryview | bytes | bytearray) -> None:
        """Write whole batches (offsets already in them) at the end and index them: for the cleaner and for followers."""
        raise NotImplementedError

    def position_at_or_after(self, offset: int, from_position: int = 0) -> tuple[int, int, int] | None:
        """(position, size, last_offset) of the first batch whose last offset is at least `offset`; None if there is none."""
        raise NotImplementedError

    def aborted_transactions(self, from_offset: int, to_offset: int) -> tuple[list[AbortedTxn], bool]:
        """Those that overlap [from_offset, to_offset), and whether later segments need not be asked."""
        raise NotImplementedError

    def become_inactive(self) -> None:
        """The last time index entry, indexes and file cut to their real size: done when a log rolls (and by the cleaner at the end)."""
        raise NotImplementedError

    def change_suffix(self, old: str, new: str) -> None:
        """Rename the files (.log, .index, .timeindex, .txnindex) from one suffix to another."""
        raise NotImplementedError

    def flush(self) -> None:
        """fsync all the segment's files. Blocks."""
        raise NotImplementedError

    def delete(self) -> None:
        """Close and remove the files at once."""
        raise NotImplementedError

    def close(self) -> None:
        """Last time index entry, indexes trimmed, descriptors closed."""
        raise NotImplementedError
