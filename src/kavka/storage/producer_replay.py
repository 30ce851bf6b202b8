"""Rebuilds producer states from a snapshot and the headers of the batches after it."""

from __future__ import annotations

from collections.abc import Sequence

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
    snapshots = states.snapshots
    snapshots.remove_outside(start_offset, end_offset)
    states.clear()
    begin = start_offset
    latest = snapshots.read_latest()
    if latest is not None:
        begin, entries = latest
        states.load(entries, now_ms)
    if begin < end_offset:
        replay(states, segments.from_offset(begin), begin, end_offset)
    if end_offset > start_offset:
        states.take_snapshot(end_offset)


def replay(states: ProducerStates, segments: Sequence[LogSegment], begin: int, end: int) -> None:
    """Apply the batches in [begin, end) to `states`. Reads only the headers, and the bodies of
    control batches."""
    for segment in segments:
        if segment.base_offset >= end:
            return
        first = segment.find(begin) if segment.size else None
        if first is None:
            continue
        for position, header in segment.batches(first[0]):
            if header.base_offset >= end:
                return
            if header.producer_id >= 0:
                marker = read_marker(segment, position, header) if header.is_control else None
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
