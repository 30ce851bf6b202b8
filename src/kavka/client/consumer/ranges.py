"""Reads a range of offsets of one partition for a task of a data pipeline, as Arrow batches or as
undecoded batches."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import TypeVar

import pyarrow as pa

from kavka.client.consumer._decode import Columns
from kavka.client.consumer.arrow import record_batch
from kavka.client.consumer.buffer import MAX_COLUMNS_SIZE, FetchBuffer, WholeBatch
from kavka.client.consumer.consumer import Consumer
from kavka.client.errors import KafkaTimeout
from kavka.common.types import TopicPartition

T = TypeVar("T")


def read_range(
    consumer: Consumer, partition: TopicPartition, start: int, end: int, timeout: float
) -> Iterator[pa.RecordBatch]:
    """Yield all records from `start` up to, but not including, `end`, as `Consumer.poll_arrow`
    returns them. See `_take_range` for the assignment of the consumer, and for errors."""

    def take(buffer: FetchBuffer, position: int) -> Columns | None:
        return buffer.take_columns(end - position)

    for columns in _take_range(consumer, partition, start, end, timeout, take):
        batch = _truncate_at(record_batch(columns), end)
        if batch.num_rows:
            yield batch


def batch_range(
    consumer: Consumer, partition: TopicPartition, start: int, end: int, timeout: float
) -> Iterator[list[WholeBatch]]:
    """Like `read_range`, but yield undecoded batches. The first and the last batch may have records
    outside the range."""

    def take(buffer: FetchBuffer, position: int) -> list[WholeBatch] | None:
        return buffer.take_batches(end, MAX_COLUMNS_SIZE)

    return _take_range(consumer, partition, start, end, timeout, take)


def _take_range(
    consumer: Consumer,
    partition: TopicPartition,
    start: int,
    end: int,
    timeout: float,
    take: Callable[[FetchBuffer, int], T | None],
) -> Iterator[T]:
    """Yield the results of `take` until the position reaches `end`.

    Assigns the partition to the consumer, and unassigns it at the end of the iteration, so that the
    consumer can read another range. Skips offsets without records: compacted records, transaction
    markers and, with isolation.level=read_committed, aborted records. Raises KafkaTimeout if the
    position does not advance for `timeout` seconds. With auto.offset.reset=none, raises
    OffsetOutOfRange if the position is not in the log."""
    consumer.assign([partition])
    try:
        consumer.seek(partition, start)
        state = consumer._core.subscriptions.partitions[partition]
        buffer = consumer._core.buffer

        def take_available() -> list[T] | None:
            taken = take(buffer, state.position)
            return [taken] if taken is not None else ([] if state.position >= end else None)

        while state.position < end:
            previous_position = state.position
            deadline = time.monotonic() + timeout
            with consumer._acquire():
                taken = consumer._wait_for(timeout, take_available)
            if taken is not None:
                yield from taken
            elif state.position == previous_position and time.monotonic() >= deadline:
                raise KafkaTimeout(f"no data of {partition} at offset {previous_position} arrived within {timeout:g} s")
    finally:
        consumer.unsubscribe()


def _truncate_at(batch: pa.RecordBatch, end: int) -> pa.RecordBatch:
    offsets = batch.column("offset")
    if not batch.num_rows or offsets[-1].as_py() < end:
        return batch
    rows = bisect_left(range(batch.num_rows), end, key=lambda row: offsets[row].as_py())
    return batch.slice(0, rows)
