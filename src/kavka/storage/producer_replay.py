"""Rebuilds producer states from a snapshot and the headers of the batches after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from kavka.records.batch import BatchHeader, batch_at
from kavka.records.control import EndMarker, parse_end_marker
from kavka.storage.producer_state import ProducerStates
from kavka.storage.segment import LogSegment
from kavka.storage.segments import LogSegments
from kavka.storage.transaction_index import AbortedTxn


def reload_producers(
    states: ProducerStates, segments: LogSegments, start_offset: int, end_offset: int, now_ms: int
) -> None:
    """Set `states` to the producer states at `end_offset`, and write a snapshot of them. Removes
    the snapshots before `start_offset` and after `end_offset`. Raises OSError."""
    states.snapshots.remove_outside(start_offset, end_offset)
    states.clear()
    _load_producers(states, segments, start_offset, end_offset, now_ms)
    if end_offset > start_offset:
        states.take_snapshot(end_offset)


def _load_producers(
    states: ProducerStates, segments: Sequence[LogSegment], start_offset: int, end_offset: int, now_ms: int
) -> None:
    begin = start_offset
    latest = states.snapshots.read_latest()
    if latest is not None:
        begin, entries = latest
        states.load(entries, now_ms)
    if begin < end_offset:
        replay(states, segments, begin, end_offset)


@dataclass(slots=True, eq=False)
class PastProducers:
    """Computes the producer states at an earlier offset, for a truncation of the log to that
    offset. A worker thread calls `run`, while nothing is appended to the log. The log and its
    snapshots stay unchanged."""

    states: ProducerStates
    first_offset: int
    """The first offset that `run` reads."""
    _segments: list[LogSegment]
    _position: int
    _end_offset: int
    _now_ms: int

    @classmethod
    def at(
        cls, end_offset: int, states: ProducerStates, segments: LogSegments, start_offset: int, now_ms: int
    ) -> PastProducers:
        """Only for the thread that owns the log, because this reads an index."""
        past_states = ProducerStates(states.expiration_ms, states.snapshots.between(start_offset, end_offset))
        snapshot = past_states.snapshots.latest
        first_offset = start_offset if snapshot is None else snapshot
        read_segments = segments.from_offset(first_offset)
        position = 0
        if read_segments and first_offset > read_segments[0].base_offset:
            position = read_segments[0].offset_index.lookup(first_offset)[1]
        return cls(past_states, first_offset, read_segments, position, end_offset, now_ms)

    def run(self) -> None:
        """Raises OSError, CorruptSnapshotError, and FileClosed if a segment was removed
        meanwhile."""
        snapshots, position = self.states.snapshots, self._position
        if snapshots.latest is not None:
            self.states.load(snapshots.read(snapshots.latest), self._now_ms)
        for segment in self._segments:
            if segment.base_offset >= self._end_offset:
                return
            _apply(self.states, segment, position, self.first_offset, self._end_offset)
            position = 0


def replay(states: ProducerStates, segments: Sequence[LogSegment], begin: int, end: int) -> None:
    """Apply the batches in [begin, end) to `states`. Reads only the headers, and the bodies of
    control batches."""
    for segment, next_segment in zip_longest(segments, segments[1:]):
        if segment.base_offset >= end:
            return
        if next_segment is not None and next_segment.base_offset <= begin:
            continue
        first = segment.find(begin) if segment.size else None
        if first is None:
            continue
        _apply(states, segment, first[0], begin, end)


def _apply(states: ProducerStates, segment: LogSegment, position: int, begin: int, end: int) -> None:
    """Apply the batches in [begin, end) of a segment, which are not before `position`."""
    for batch_position, header in segment.batches(position):
        if header.last_offset >= end:
            return
        if header.producer_id >= 0 and header.last_offset >= begin:
            marker = read_marker(segment, batch_position, header) if header.is_control else None
            replay_batch(states, header, marker)


def read_marker(segment: LogSegment, position: int, header: BatchHeader) -> EndMarker | None:
    """Return the end marker in a control batch, or None if it has none."""
    data = segment.file.read(position, header.size)
    batch = batch_at(data, 0, len(data))
    return parse_end_marker(batch, verify_crc=False) if batch is not None else None


def replay_batch(states: ProducerStates, header: BatchHeader, marker: EndMarker | None) -> AbortedTxn | None:
    """Update `states` for a batch that is already in the log, without checks. Returns the aborted
    transaction if the batch is an abort marker of a transaction with records, else None."""
    aborted = None
    if not header.is_control:
        states.append_batch(
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            header.last_sequence,
            header.last_offset,
            header.last_offset_delta,
            header.max_timestamp,
            header.is_transactional,
        )
    elif marker is not None:
        aborted = states.append_marker(
            header.producer_id, header.producer_epoch, marker, header.base_offset, header.max_timestamp
        )
    states.commit()
    return aborted
