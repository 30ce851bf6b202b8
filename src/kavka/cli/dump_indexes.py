"""Printing and checking the index and snapshot files of a segment for dump-log.

An entry of .index has 4 bytes of relative offset and 4 bytes of position. An entry of .timeindex
has 8 bytes of timestamp and 4 bytes of relative offset. The files of an active segment are
preallocated: zeroes follow the entries.
"""

from __future__ import annotations

import os
import sys
from bisect import bisect_right
from struct import Struct

from kavka.cli.dump_files import Mismatches, base_offset_of, mapped
from kavka.cli.options import Arguments
from kavka.cli.tool import ToolError
from kavka.records.batch import Batch, Buffer, batches
from kavka.records.reader import batch_records
from kavka.storage.index_file import CorruptIndexError, IndexFile
from kavka.storage.offset_index import OffsetIndex
from kavka.storage.producer_snapshot import CorruptSnapshotError, decode_snapshot
from kavka.storage.time_index import TimeIndex
from kavka.storage.transaction_index import TransactionIndex

_OFFSET_ENTRY = Struct(">ii")
_TIME_ENTRY = Struct(">qi")
_MAX_INT = (1 << 31) - 1


def dump_offset_index(path: str, args: Arguments, mismatches: Mismatches) -> None:
    base_offset = base_offset_of(path)
    entries = [(base_offset + relative, position) for relative, position in _entries(path, _OFFSET_ENTRY)]
    if not entries:
        print(f"{path} is empty.")
        return
    if args["index-sanity-check"]:
        _check_index(OffsetIndex(path, base_offset, _MAX_INT, os.path.getsize(path)))
        print(f"{path} passed sanity check.")
        return
    lines = []
    with mapped(_sibling(path, ".log")) as log:
        for number, (offset, position) in enumerate(entries):
            if offset == base_offset and number:
                break
            batch = _first_batch(log, position, position + args["max-message-size"])
            log_offset = -1 if batch is None else batch.last_offset
            if batch is not None:
                batch.buf = b""
            if log_offset != offset:
                mismatches.add("Mismatches in :", path, f"  Index offset: {offset}, log offset: {log_offset}")
            if not args["verify-index-only"]:
                lines.append(f"offset: {offset} position: {position}\n")
    sys.stdout.write("".join(lines))


def dump_time_index(path: str, args: Arguments, mismatches: Mismatches) -> None:
    base_offset = base_offset_of(path)
    if args["index-sanity-check"]:
        _check_index(TimeIndex(path, base_offset, _MAX_INT, os.path.getsize(path)))
        print(f"{path} passed sanity check.")
        return
    positions = [
        (base_offset + relative, position) for relative, position in _entries(_sibling(path, ".index"), _OFFSET_ENTRY)
    ]
    positions = positions[: _entry_count(positions, base_offset)]
    lines = []
    previous_timestamp = -1
    with mapped(_sibling(path, ".log")) as log:
        for number, (timestamp, relative) in enumerate(_entries(path, _TIME_ENTRY)):
            offset = base_offset + relative
            if offset == base_offset and number:
                break
            index = bisect_right(positions, (offset, _MAX_INT))
            batch = _batch_with(log, positions[index - 1][1] if index else 0, offset)
            if batch is None or batch.last_offset != offset:
                log_offset = -1 if batch is None else batch.last_offset
                mismatches.add(
                    "The following indexed offsets are not found in the log.",
                    path,
                    f"Indexed offset: {offset}, found log offset: {log_offset}",
                )
            else:
                max_timestamp = max((record.timestamp for record in batch_records(batch, verify_crc=False)), default=-1)
                if max_timestamp != timestamp:
                    mismatches.add(
                        "Found timestamp mismatch in :",
                        path,
                        f"  Index timestamp: {timestamp}, log timestamp: {max_timestamp}",
                    )
                if previous_timestamp >= timestamp:
                    mismatches.add(
                        "Found out of order timestamp in :",
                        path,
                        f"  Index timestamp: {timestamp}, Previously indexed timestamp: {previous_timestamp}",
                    )
            if batch is not None:
                batch.buf = b""
            if not args["verify-index-only"]:
                lines.append(f"timestamp: {timestamp} offset: {offset}\n")
            previous_timestamp = timestamp
    sys.stdout.write("".join(lines))


def dump_transaction_index(path: str) -> None:
    try:
        for txn in TransactionIndex(path, base_offset_of(path), exists=True).entries:
            print(
                f"version: 0 producerId: {txn.producer_id} firstOffset: {txn.first_offset} "
                f"lastOffset: {txn.last_offset} lastStableOffset: {txn.last_stable_offset}"
            )
    except CorruptIndexError as error:
        raise ToolError(str(error)) from None


def dump_snapshot(path: str) -> None:
    with open(path, "rb") as file:
        data = file.read()
    try:
        entries = decode_snapshot(data)
    except CorruptSnapshotError as error:
        print(f"{path}: {error}", file=sys.stderr)
        return
    for entry in entries:
        open_txn = "OptionalLong.empty" if entry.txn_first_offset < 0 else f"OptionalLong[{entry.txn_first_offset}]"
        line = (
            f"producerId: {entry.producer_id} producerEpoch: {entry.epoch} "
            f"coordinatorEpoch: {entry.coordinator_epoch} currentTxnFirstOffset: {open_txn} "
            f"lastTimestamp: {entry.last_timestamp} "
        )
        if entry.batches:
            first = entry.batches[0]
            line += (
                f"firstSequence: {first.first_sequence} lastSequence: {first.last_sequence} "
                f"lastOffset: {first.last_offset} offsetDelta: {first.offset_delta} timestamp: {first.timestamp}"
            )
        print(line)


def _entries(path: str, layout: Struct) -> list[tuple[int, int]]:
    """Read the entries up to and including the first zero entry of the preallocated part."""
    entries: list[tuple[int, int]] = []
    with open(path, "rb") as file:
        while piece := file.read(layout.size * 4096):
            for entry in layout.iter_unpack(piece[: len(piece) // layout.size * layout.size]):
                entries.append((entry[0], entry[1]))
                if not any(entry) and len(entries) > 1:
                    return entries
    return entries


def _entry_count(positions: list[tuple[int, int]], base_offset: int) -> int:
    """Return the number of entries before the preallocated part."""
    return next((number for number, position in enumerate(positions) if position == (base_offset, 0)), len(positions))


def _first_batch(log: Buffer, position: int, end: int) -> Batch | None:
    return next(batches(log, position, min(end, len(log))), None)


def _batch_with(log: Buffer, position: int, offset: int) -> Batch | None:
    """Return the first batch from `position` on whose last offset is at least `offset`."""
    for batch in batches(log, position):
        if batch.last_offset >= offset:
            return batch
        batch.buf = b""
    return None


def _check_index(index: IndexFile) -> None:
    """Raise ToolError if the index is corrupt. Close the index."""
    try:
        index.check()
    except CorruptIndexError as error:
        raise ToolError(str(error)) from None
    finally:
        index.close()


def _sibling(path: str, suffix: str) -> str:
    """Return the path of another file of the same segment."""
    folder, name = os.path.split(path)
    return os.path.join(folder, name.partition(".")[0] + suffix)
