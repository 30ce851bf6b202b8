"""`send_batch`: copies the records of a fetched batch to another partition without decoding them.

The body of a compressed batch is copied if brokers accept it unchanged. The header gets a new
offset, producer and sequence, and keeps the record count, the timestamps and the compression
(`encoding.py`). The records of every other batch are appended to the partition's open batch, so
that small batches are combined. Only the offset and timestamp deltas of these records change.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from time import monotonic
from typing import Any

from kavka.client.producer._append import Accumulator, Batch, PartitionQueue, RecordFuture
from kavka.client.producer.record import RecordMetadata
from kavka.common.errors import ErrorCode, KafkaError
from kavka.records.batch import (
    CREATE_TIME,
    DELETE_HORIZON_MASK,
    HEADER_SIZE,
    MAGIC_POSITION,
    MIN_RECORD_SIZE,
    BatchHeader,
    Buffer,
    corrupt,
    parse_header,
)
from kavka.records.builder import BatchBuilder
from kavka.records.compression import decompress
from kavka.records.reader import read_records


@dataclass(frozen=True, slots=True)
class Content:
    """The records of a batch to send. With `is_unchanged`, `body` is the complete batch. Otherwise
    `body` has the decompressed records, and only those with offsets from `first` up to, but not
    including, `end` are sent."""

    header: BatchHeader
    body: Any
    first: int
    end: int
    is_unchanged: bool

    def append(self, accumulator: Accumulator, queue: PartitionQueue, transaction: int = 0) -> BatchFuture | None:
        """Append the records. Returns None if the buffer is full, the accumulator is closed, or
        `transaction` is not the open transaction. Raises CORRUPT_MESSAGE for invalid records."""
        header = self.header
        if self.is_unchanged:
            batch = accumulator.append_batch(
                queue, transaction, self.body, header.count, header.codec, header.base_timestamp, header.max_timestamp
            )
            return None if batch is None else BatchFuture(batch, 0, header.count)
        append_time = -1 if header.timestamp_type == CREATE_TIME else header.max_timestamp
        base_timestamp = header.base_timestamp
        try:
            appended = accumulator.append_records(
                queue, transaction, self.body, header.count, header.base_offset, self.first, self.end, base_timestamp,
                append_time,
            )  # fmt: skip
        except ValueError as error:
            raise corrupt(f"the batch at offset {header.base_offset} is invalid: {error}") from None
        return None if appended is None else BatchFuture(*appended)


def content_of(data: Buffer, first: int, end: int) -> Content:
    """Parse a fetched batch. Raises CORRUPT_MESSAGE if the batch is invalid. Does not verify the
    checksum, because the consumer has verified it."""
    if len(data) > MAGIC_POSITION and data[MAGIC_POSITION] < 2:
        builder = BatchBuilder(base_offset=first)
        for record in read_records(data, verify_crc=False):
            if first <= record.offset < end:
                builder.append(record._replace(offset=first + builder.count))
        if not builder.count:
            raise KafkaError(ErrorCode.INVALID_RECORD, f"the batch has no record from offset {first} to {end}")
        data = builder.build()
    header = parse_header(data)
    if header.magic != 2 or header.is_control:
        raise corrupt(f"the batch at offset {header.base_offset} is a control batch or does not have magic 2")
    if header.codec and _is_copyable(header) and first <= header.base_offset and header.last_offset < end:
        return Content(header, bytearray(data), first, end, is_unchanged=True)
    body: Any = memoryview(data)[HEADER_SIZE:]
    if header.codec:
        body = decompress(header.codec, body)
    if header.count < 1 or header.count * MIN_RECORD_SIZE > len(body):
        raise corrupt(f"a batch has {len(body)} bytes, but its header has a count of {header.count} records")
    return Content(header, body, first, end, is_unchanged=False)


def _is_copyable(header: BatchHeader) -> bool:
    """Whether brokers accept the batch unchanged: every offset has a record, and the producer set
    the timestamps. A timestamp set by a broker is only in the header, so the records must be
    rewritten with it."""
    return (
        header.count == header.last_offset_delta + 1
        and header.count > 0
        and header.timestamp_type == CREATE_TIME
        and not header.attributes & DELETE_HORIZON_MASK
    )


class BatchFuture:
    """The outcome of one `send_batch`, which may have sent no records. The records are in several
    batches if the broker rejected the batch as too large and the producer split it."""

    __slots__ = ("_batch", "_index", "count")

    def __init__(self, batch: Batch, index: int, count: int) -> None:
        self._batch = batch
        self._index = index
        self.count = count

    def _parts(self) -> Iterator[tuple[int, int, Batch]]:
        """Yield (index of the first record in the batch, record count, batch) for the batches that
        currently contain the records."""
        pending = [(self._index, self.count, self._batch)]
        while pending:
            index, count, batch = pending.pop()
            if count <= 0:
                continue
            if batch.parts is None:
                yield index, count, batch
                continue
            ends = [first for first, _ in batch.parts[1:]] + [index + count]
            parts = [
                (max(index, first) - first, min(index + count, end) - max(index, first), part)
                for (first, part), end in zip(batch.parts, ends, strict=True)
            ]
            pending += reversed(parts)

    def done(self) -> bool:
        return all(batch.done for _, _, batch in self._parts())

    def get(self, timeout: float | None = None) -> RecordMetadata | None:
        """Wait, and return the metadata of the first record, or None if there are no records.
        Raises the first error of a record, or KafkaTimeout after `timeout` seconds."""
        deadline = None if timeout is None else monotonic() + timeout
        while True:
            try:
                results = [
                    RecordFuture(batch, index, batch.base_timestamp, -1, -1).get(
                        None if deadline is None else max(0.0, deadline - monotonic())
                    )
                    for index, _, batch in self._parts()
                ]
            except KafkaError:
                for _, count, batch in self._parts():
                    if batch.done:
                        batch.reported_failures += count
                raise
            if self.done():
                return results[0] if results else None

    def offsets(self) -> list[tuple[int, int]]:
        """Return (first offset, record count) for each batch that contains the records, in order.
        The offset is -1 if it is unknown. Valid only if `done()` is true."""
        return [
            (batch.base_offset + index if batch.base_offset >= 0 else -1, count)
            for index, count, batch in self._parts()
        ]
