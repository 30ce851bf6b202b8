"""Compaction of one batch: selects the records to retain, and rewrites the batch.

A rewritten batch has the same base offset, last offset and producer fields. The deltas of the
retained records stay valid, so the records are copied byte for byte. The exception is a batch that
gets a delete horizon. The horizon replaces the base timestamp (attribute bit 6), so the timestamp
deltas of its records are recomputed.

A batch without retained records is removed, with two exceptions: the last batch of an active
producer (a retry is compared with its sequence numbers) and the last batch of the cleaned range.
The headers of these batches are retained without records.
"""

from __future__ import annotations

import heapq
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import compress as select
from itertools import islice
from struct import Struct
from typing import NamedTuple

from kavka.records import limits
from kavka.records.batch import (
    CODEC_MASK,
    CONTROL_MASK,
    DELETE_HORIZON_MASK,
    HEADER,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    Batch,
    Buffer,
    batches,
    corrupt,
    legacy_key_value,
    rewrite_crc,
)
from kavka.records.compression import compress, decompress
from kavka.records.control import ABORT, COMMIT, control_type
from kavka.records.reader import batch_records
from kavka.records.varint import decode_varint, encode_varint
from kavka.storage.offset_map import OffsetMap
from kavka.storage.transaction_index import AbortedTxn

_PLACE = Struct(">qi")
_LENGTHS = Struct(">ii")
# Records are parsed in slices of this size, with a call of `pause_if_due` after each.
SLICE = 256


def unpacked_limit(batch: Batch) -> int:
    """The maximum decompressed size of a batch. The cleaner decompresses batches in memory, and a
    batch of a few kilobytes can decompress to gigabytes. The limit is twice that of Produce,
    because a rewritten batch may grow.

    A log with a larger batch is uncleanable, like a log with a corrupt batch. Copying such a batch
    unread would be wrong: it may have an older value of a key whose tombstone is removed later.
    That value would then be the latest value of the key again.
    """
    return 2 * limits.unpacked_limit(batch.size)


class LastRecord(NamedTuple):
    """The last offset of an active producer, or -1 if its epoch has only a marker, and the
    epoch."""

    offset: int
    epoch: int


class Entry(NamedTuple):
    """The fields of a magic 2 record that decide whether it is retained."""

    offset_delta: int
    key: bytes | None
    tombstone: bool


@dataclass(slots=True)
class CleanerStats:
    records_read: int = 0
    bytes_read: int = 0
    records_written: int = 0
    bytes_written: int = 0
    keyless: int = 0


# --- parsing the records of a batch


def entries(body: bytes, count: int) -> Iterator[list[Entry]]:
    """Yield the records of a decompressed magic 2 body in lists of SLICE records. Raises
    CORRUPT_MESSAGE if the body does not have exactly `count` records; some lists may be yielded
    before that.

    The function is long, because a call per record would be slow."""
    records: list[Entry] = []
    add = records.append
    new = tuple.__new__
    pos = 0
    size = len(body)
    try:
        for _ in range(count):
            if len(records) == SLICE:
                yield records
                records = []
                add = records.append
            # Varints of one byte, and lengths and deltas of two bytes, are decoded inline.
            start = pos
            n = body[pos]
            if n < 128:
                end = pos + 1 + (n >> 1 ^ -(n & 1))
                pos += 2
            elif (m := body[pos + 1]) < 128:
                n = n & 127 | m << 7
                end = pos + 2 + (n >> 1 ^ -(n & 1))
                pos += 3
            else:
                n, pos = decode_varint(body, pos)
                end = pos + n
                pos += 1
            while body[pos] > 127:
                pos += 1
            n = body[pos + 1]
            if n < 128:
                delta = n >> 1 ^ -(n & 1)
                pos += 2
            elif (m := body[pos + 2]) < 128:
                n = n & 127 | m << 7
                delta = n >> 1 ^ -(n & 1)
                pos += 3
            else:
                delta, pos = decode_varint(body, pos + 1)
            n = body[pos]
            if n < 128:
                pos += 1
                n = n >> 1 ^ -(n & 1)
            else:
                n, pos = decode_varint(body, pos)
            if n < 0:
                key = None
            else:
                key = body[pos : pos + n]
                pos += n
            # A null value has length -1, which is 1 in zigzag encoding.
            tombstone = body[pos] == 1
            if not pos < end <= size:
                raise corrupt(f"the record at byte {start} has an invalid length")
            add(new(Entry, (delta, key, tombstone)))
            pos = end
    except IndexError:
        raise corrupt(f"the batch ends before the last of its {count} records") from None
    if pos != size:
        raise corrupt(f"the batch has {size - pos} bytes after the last of its {count} records")
    if records:
        yield records


def body_of(batch: Batch) -> bytes:
    """Return the decompressed records of a magic 2 batch. Raises CORRUPT_MESSAGE if the CRC is
    wrong."""
    batch.ensure_crc()
    data = batch.data[HEADER_SIZE:]
    codec = batch.attributes & CODEC_MASK
    return decompress(codec, data, unpacked_limit(batch)) if codec else bytes(data)


def marker_type(batch: Batch) -> int | None:
    """Return the type of a control batch, for example COMMIT or ABORT, or None if the batch has no
    record."""
    if not batch.count:
        return None
    records = next(entries(body_of(batch), batch.count), [])
    return control_type(records[0].key if records else None)


# --- transactions


class CleanedTransactions:
    """Tracks the transactions of a cleaning. It determines which batches belong to aborted
    transactions, and which markers still have data before them. The caller passes the batches in
    the order of offsets, and calls `add` before the first batch of each segment.

    `write` is called with each aborted transaction that the transaction index of the new segment
    needs. Only the worker thread of the cleaning may call the methods.
    """

    __slots__ = ("_aborted", "_committed", "_pending", "write")

    def __init__(self, write: Callable[[AbortedTxn], None] | None = None) -> None:
        self.write = write
        self._pending: list[tuple[int, AbortedTxn]] = []
        self._aborted: dict[int, tuple[AbortedTxn, bool]] = {}
        self._committed: set[int] = set()

    def add(self, transactions: Iterable[AbortedTxn]) -> None:
        """Add the aborted transactions of the next batches."""
        for txn in transactions:
            heapq.heappush(self._pending, (txn.first_offset, txn))

    def _advance(self, offset: int) -> None:
        pending = self._pending
        while pending and pending[0][0] <= offset:
            txn = heapq.heappop(pending)[1]
            self._aborted.setdefault(txn.producer_id, (txn, False))

    def add_data_batch(self, batch: Batch) -> bool:
        """Record a data batch. Returns whether its transaction was aborted."""
        self._advance(batch.last_offset)
        if not batch.attributes & TRANSACTIONAL_MASK or batch.magic < 2:
            return False
        entry = self._aborted.get(batch.producer_id)
        if entry is None:
            self._committed.add(batch.producer_id)
            return False
        self._aborted[batch.producer_id] = (entry[0], True)
        return True

    def end_transaction(self, batch: Batch) -> bool:
        """End the transaction of a control batch. Returns whether the cleaned range has no data of
        the transaction. The marker may then be removed after its delete horizon. Calls `write` for
        an aborted transaction with data."""
        self._advance(batch.last_offset)
        marker = marker_type(batch)
        if marker is None:
            return True
        if marker == ABORT:
            txn, has_data = self._aborted.pop(batch.producer_id, (None, False))
            if txn is not None and has_data:
                if self.write is not None:
                    self.write(txn)
                return False
            return True
        if marker == COMMIT:
            if batch.producer_id in self._committed:
                self._committed.remove(batch.producer_id)
                return False
            return True
        return False


# --- the two passes


def no_pause() -> None:
    """The `pause_if_due` of callers that do not compete with the event loop."""


def index_batch(
    batch: Batch,
    start_offset: int,
    offset_map: OffsetMap,
    transactions: CleanedTransactions,
    pause_if_due: Callable[[], None] = no_pause,
) -> bool:
    """First pass: add the keys of one batch to the map. Returns False if the map is full and so
    does not cover the batch."""
    if batch.magic >= 2 and batch.attributes & CONTROL_MASK:
        transactions.end_transaction(batch)
    elif batch.magic < 2 or not transactions.add_data_batch(batch):
        for pairs in _keys(batch):
            keyed_offsets = [(key, offset) for key, offset in pairs if key is not None and offset >= start_offset]
            if not offset_map.put_all(keyed_offsets):
                return False
            pause_if_due()
    if batch.last_offset >= start_offset:
        offset_map.latest_offset = max(offset_map.latest_offset, batch.last_offset)
    return True


def _keys(batch: Batch) -> Iterator[list[tuple[bytes | None, int]]]:
    """Yield (key, offset) of all records, in lists of SLICE records."""
    if batch.magic < 2:
        records = batch_records(batch, max_decompressed=unpacked_limit(batch))
        while pairs := [(record.key, record.offset) for record in islice(records, SLICE)]:
            yield pairs
    elif batch.count:
        base = batch.base_offset
        for fields in entries(body_of(batch), batch.count):
            yield [(key, base + delta) for delta, key, _ in fields]


@dataclass(slots=True)
class BatchFilter:
    """Second pass: selects the records of each batch to retain. Each source segment has a separate
    filter, because tombstones of magic 0 and 1 are removed by the age of their segment."""

    offset_map: OffsetMap
    transactions: CleanedTransactions
    producers: Mapping[int, LastRecord]
    upper_bound: int
    now_ms: int
    delete_retention_ms: int
    keep_legacy_tombstones: bool
    stats: CleanerStats = field(default_factory=CleanerStats)
    pause_if_due: Callable[[], None] = no_pause

    def clean(self, batch: Batch) -> Buffer | None:
        """Return the batch to write: a view of the unchanged batch, a rewritten batch, or None if
        the batch is removed."""
        self.stats.bytes_read += batch.size
        result = self._clean_legacy(batch) if batch.magic < 2 else self._clean(batch)
        if result is not None:
            self.stats.bytes_written += len(result)
        return result

    def _clean(self, batch: Batch) -> Buffer | None:
        count = batch.count or 0
        self.stats.records_read += count
        horizon = batch.delete_horizon
        is_control = bool(batch.attributes & CONTROL_MASK)
        is_marker_obsolete = False
        if is_control:
            is_marker_obsolete = self.transactions.end_transaction(batch)
            drop_all = is_marker_obsolete and horizon is not None and horizon <= self.now_ms
        else:
            drop_all = self.transactions.add_data_batch(batch)
        if drop_all or not count:
            return self._empty(batch) if self._must_retain(batch) else None
        if is_control:
            self.stats.records_written += count
            if is_marker_obsolete and horizon is None:
                body = body_of(batch)
                flags = bytearray(b"\x01") * sum(map(len, entries(body, count)))
                return rebuild(batch, body, flags, self.now_ms + self.delete_retention_ms)
            return batch.data
        if batch.base_offset > self.offset_map.latest_offset:
            self.stats.records_written += count
            return batch.data

        body = body_of(batch)
        flags, has_tombstone = self._decide(batch, body, horizon is None or self.now_ms < horizon)
        retained_count = flags.count(1)
        if not retained_count:
            return self._empty(batch) if self._must_retain(batch) else None
        self.stats.records_written += retained_count
        new_horizon = None
        if horizon is None and has_tombstone:
            new_horizon = self.now_ms + self.delete_retention_ms
        if new_horizon is None and retained_count == count:
            return batch.data
        return rebuild(batch, body, flags, new_horizon, self.pause_if_due)

    def _decide(self, batch: Batch, body: bytes, keep_tombstones: bool) -> tuple[bytearray, bool]:
        """Return a flag per record, 1 if the record is retained, and whether a tombstone that the
        map covers is retained."""
        base = batch.base_offset
        latest = self.offset_map.latest_offset - base
        newest = self.offset_map.get
        flags = bytearray()
        flag = flags.append
        has_tombstone = False
        for records in entries(body, batch.count or 0):
            for delta, key, tombstone in records:
                if delta > latest:
                    flag(1)
                elif key is None:
                    self.stats.keyless += 1
                    flag(0)
                elif (keep_tombstones or not tombstone) and base + delta >= newest(key):
                    has_tombstone |= tombstone
                    flag(1)
                else:
                    flag(0)
            self.pause_if_due()
        return flags, has_tombstone

    def _must_retain(self, batch: Batch) -> bool:
        """Whether the header of the batch must be retained even without records."""
        if batch.last_offset + 1 == self.upper_bound:
            return True
        last = self.producers.get(batch.producer_id) if batch.producer_id >= 0 else None
        if last is None:
            return False
        if last.offset >= 0:
            return batch.last_offset == last.offset
        return bool(batch.attributes & CONTROL_MASK) and batch.producer_epoch == last.epoch

    def _empty(self, batch: Batch) -> bytes:
        attributes = batch.attributes & (TIMESTAMP_TYPE_MASK | TRANSACTIONAL_MASK | CONTROL_MASK)
        return _header(batch, attributes, -1, batch.max_timestamp, 0, b"")

    def _clean_legacy(self, batch: Batch) -> Buffer | None:
        latest = self.offset_map.latest_offset
        flags = bytearray()
        last_offset = -1
        for record in batch_records(batch, max_decompressed=unpacked_limit(batch)):
            if record.offset > latest:
                is_retained = True
            elif record.key is None:
                self.stats.keyless += 1
                is_retained = False
            else:
                is_retained = (
                    self.keep_legacy_tombstones or record.value is not None
                ) and record.offset >= self.offset_map.get(record.key)
            flags.append(is_retained)
            if is_retained:
                last_offset = record.offset
            if not len(flags) % SLICE:
                self.pause_if_due()
        retained_count = flags.count(1)
        self.stats.records_read += len(flags)
        self.stats.records_written += retained_count
        if retained_count == len(flags):
            return batch.data
        return rebuild_legacy(batch, flags, last_offset) if retained_count else None


# --- rewriting a batch


def rebuild(
    batch: Batch, body: bytes, flags: bytearray, new_horizon: int | None, pause_if_due: Callable[[], None] = no_pause
) -> bytes:
    """Return a magic 2 batch with the records whose flag is set, and with the delete horizon
    `new_horizon` if it is not None. `entries` must have checked `body`."""
    base_timestamp = batch.base_timestamp
    attributes = batch.attributes
    shift = 0
    if new_horizon is not None:
        shift = base_timestamp - new_horizon
        base_timestamp = new_horizon
        attributes |= DELETE_HORIZON_MASK
    max_delta: int | None = None
    out = bytearray()
    view = memoryview(body)
    end = 0
    for index, flag in enumerate(flags):
        if not index % SLICE:
            pause_if_due()
        start = end
        length, pos = decode_varint(body, start)
        end = pos + length
        if not flag:
            continue
        # The attributes of the record, one byte, precede the timestamp delta.
        delta, delta_end = decode_varint(body, pos + 1, 10)
        delta += shift
        if max_delta is None or delta > max_delta:
            max_delta = delta
        if shift:
            timestamp = encode_varint(delta)
            out += encode_varint(1 + len(timestamp) + end - delta_end)
            out += view[pos : pos + 1]
            out += timestamp
            out += view[delta_end:end]
        else:
            out += view[start:end]
    max_timestamp = batch.max_timestamp
    if batch.timestamp_type != LOG_APPEND_TIME and max_delta is not None:
        max_timestamp = base_timestamp + max_delta
    codec = attributes & CODEC_MASK
    data = compress(codec, out) if codec else out
    return _header(batch, attributes, base_timestamp, max_timestamp, flags.count(1), data)


def _header(
    batch: Batch, attributes: int, base_timestamp: int, max_timestamp: int, count: int, records: Buffer
) -> bytes:
    out = bytearray(
        HEADER.pack(
            batch.base_offset,
            HEADER_SIZE - LOG_OVERHEAD + len(records),
            batch.leader_epoch,
            2,
            0,
            attributes,
            batch.last_offset - batch.base_offset,
            base_timestamp,
            max_timestamp,
            batch.producer_id,
            batch.producer_epoch,
            batch.base_sequence,
            count,
        )
    )
    out += records
    rewrite_crc(out)
    return bytes(out)


def rebuild_legacy(wrapper: Batch, flags: bytearray, last_offset: int) -> bytes:
    """Return a compressed message of magic 0 or 1 with the inner messages whose flag is set.

    The inner messages are not changed. In magic 1 their offsets are relative to that of the
    wrapper, which is `last_offset`, the offset of the last retained message.
    """
    _, packed = legacy_key_value(wrapper.buf, wrapper)
    if packed is None:
        raise corrupt("a compressed message has no value")
    codec = wrapper.attributes & CODEC_MASK
    messages = bytearray()
    timestamp = -1
    for message in select(batches(decompress(codec, packed, unpacked_limit(wrapper))), flags):
        messages += message.data
        timestamp = max(timestamp, message.max_timestamp)
    value = compress(codec, messages, broken_lz4=wrapper.magic == 0)
    body = bytearray((wrapper.magic, wrapper.attributes))
    if wrapper.magic == 1:
        if wrapper.timestamp_type == LOG_APPEND_TIME:
            timestamp = wrapper.max_timestamp
        body += timestamp.to_bytes(8, "big", signed=True)
    body += _LENGTHS.pack(-1, len(value)) + value
    return _PLACE.pack(last_offset, len(body) + 4) + zlib.crc32(body).to_bytes(4, "big") + body
