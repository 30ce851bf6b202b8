"""Rebuilding producer state from a snapshot and the headers of the batches after it."""

from __future__ import annotations

from collections.abc import Sequence

from kavka.records.batch import BatchHeader, batch_at
from kavka.records.control import EndMarker, parse_end_marker
from kavka.storage.producer_snapshot import SnapshotFiles
from kavka.storage.producer_state import ProducerStates
from kavka.storage.segment import LogSegment
from kavka.storage.segments import Segments
from kavka.storage.transaction_index import AbortedTxn


def reload_producers(
    states: ProducerStates,
    snapshots: SnapshotFiles,
    segments: Segments,
    start_offset: int,
    end_offset: int,
    now_ms: int,
) -> None:
    """Bring `states` to what they were when the log ended at `end_offset`, and leave a snapshot that says so.

    Snapshots of other times (before the log's start, after its end) are removed.
    """
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
        snapshots.write(end_offset, states.entries.values())


def replay(states: ProducerStates, segments: Sequence[LogSegment], begin: int, end: int) -> None:
    """Take the batches in [begin, end) into account, by their headers (and the bodies of control batches)."""
    for segment in segments:
        if segment.base_offset >= end:
            return
        found = segment.find(begin) if segment.size else None
        if found is None:
            continue
        for position, header in segment.batches(found[0]):
            if header.base_offset >= end:
                return
            if header.producer_id >= 0:
                marker = read_marker(segment, position, header) if header.is_control else None
                take_batch(states, header, marker)


def read_marker(segment: LogSegment, position: int, header: BatchHeader) -> EndMarker | None:
    """What a control batch says of its producer's transaction."""
    data = segment.file.read(position, header.size)
    batch = batch_at(data, 0, len(data))
    return parse_end_marker(batch, verify_crc=False) if batch is not None else None


def take_batch(states: ProducerStates, header: BatchHeader, marker: EndMarker | None) -> AbortedTxn | None:
    """One batch that has been in the log already: nothing is refused. Returns the transaction that it aborts, if it
    does."""
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
        _, aborted = states.append_marker(
            header.producer_id, header.producer_epoch, marker, header.base_offset, header.max_timestamp
        )
        return aborted
    return None
