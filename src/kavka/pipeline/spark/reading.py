"""What a task of the source does: read a range of offsets into Arrow batches with Spark's columns."""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TypeVar

import pyarrow as pa

from kavka.client.consumer.consumer import Consumer
from kavka.client.consumer.errors import OffsetOutOfRange
from kavka.client.consumer.ranges import read_range
from kavka.client.errors import KafkaTimeout
from kavka.common.types import TopicPartition
from kavka.pipeline.spark.cluster import consumer_settings
from kavka.pipeline.spark.errors import DataLoss, PipelineError
from kavka.pipeline.spark.offsets import Range
from kavka.pipeline.spark.options import SourceOptions
from kavka.pipeline.spark.text import as_text

log = logging.getLogger(__name__)

T = TypeVar("T")

_HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
_COLUMNS = (
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("timestamp", pa.timestamp("us", "UTC")),
    pa.field("timestampType", pa.int32()),
)

# How long nothing may come before the partition's edges are looked at.
_LOOK_AFTER = 5.0


def read(options: SourceOptions, wanted: Range) -> Iterator[pa.RecordBatch]:
    """The records of a range. What is gone is an error that says what, or is left out with a warning."""
    for batch in in_pieces(options, wanted, read_range, lambda batch: batch.column("offset")[-1].as_py() + 1):
        yield spark_batch(batch, options.include_headers, options.text_columns)


def in_pieces(
    options: SourceOptions,
    wanted: Range,
    pieces: Callable[[Consumer, TopicPartition, int, int, float], Iterable[T]],
    end_of: Callable[[T], int],
) -> Iterator[T]:
    """What `pieces` (of a consumer, a partition, from and to which offset, a timeout) gives for a range; `end_of` is
    the offset behind one of them."""
    consumer = _consumer(options.client)
    done = False
    try:
        yield from _read(consumer, options, wanted, pieces, end_of)
        done = True
    finally:
        # Also one that was interrupted has a known state; after an error it may not.
        if not done:
            _forget(consumer)


def _read(
    consumer: Consumer,
    options: SourceOptions,
    wanted: Range,
    pieces: Callable[[Consumer, TopicPartition, int, int, float], Iterable[T]],
    end_of: Callable[[T], int],
) -> Iterator[T]:
    position = wanted.start
    waited = 0.0
    while position < wanted.end:
        patience = min(_LOOK_AFTER, options.poll_timeout)
        try:
            for piece in pieces(consumer, wanted.tp, position, wanted.end, patience):
                position = end_of(piece)
                waited = 0.0
                yield piece
            return
        except OffsetOutOfRange:
            position = _after_loss(consumer, options, wanted, position)
        except KafkaTimeout:
            waited += patience
            position = _after_loss(consumer, options, wanted, position)
            if waited >= options.poll_timeout and position < wanted.end:
                raise PipelineError(
                    f"nothing came from {wanted.tp} at offset {position} within {options.poll_timeout:g} s "
                    "(kafkaConsumer.pollTimeoutMs)"
                ) from None


def _after_loss(consumer: Consumer, options: SourceOptions, wanted: Range, position: int) -> int:
    """Where to go on. The same position if nothing is missing."""
    tp = wanted.tp
    first = consumer.beginning_offsets([tp], options.poll_timeout)[tp]
    last = consumer.end_offsets([tp], options.poll_timeout)[tp]
    if first <= position and wanted.end <= last:
        return position
    if position < first:
        following = min(first, wanted.end)
        gone = f"{tp}: offsets {position} to {following - 1} are gone, its first is {first} now"
    else:
        following = wanted.end
        gone = f"{tp}: offsets {max(position, last)} to {wanted.end - 1} are gone, it ends at {last} now"
    if options.fail_on_data_loss:
        raise DataLoss(f"{gone} (failOnDataLoss=false goes on without them)")
    log.warning("%s; going on without them", gone)
    return following


def schema(headers: bool, text: Collection[str] = ()) -> pa.Schema:
    sides = [pa.field(name, pa.string() if name in text else pa.binary()) for name in ("key", "value")]
    return pa.schema([*sides, *_COLUMNS, pa.field("headers", _HEADERS)] if headers else [*sides, *_COLUMNS])


def spark_batch(batch: pa.RecordBatch, headers: bool, text: Collection[str] = ()) -> pa.RecordBatch:
    """From the consumer's columns to those of Spark's Kafka source. Keys and values are not copied, also where they are
    to be text, unless that is no UTF-8."""
    names = batch.schema.names
    columns = [batch.column(names.index(name)) for name in ("key", "value", "topic", "partition", "offset")]
    columns[:2] = [as_text(one) if name in text else one for name, one in zip(("key", "value"), columns, strict=False)]
    columns[2] = columns[2].dictionary_decode()
    columns.append(batch.column(names.index("timestamp")).cast(pa.timestamp("us", "UTC")))
    columns.append(batch.column(names.index("timestamp_type")).cast(pa.int32()))
    if headers:
        columns.append(batch.column(names.index("headers")))
    return pa.RecordBatch.from_arrays(columns, schema=schema(headers, text))


# --- one consumer for all tasks of this process

_consumers: dict[tuple[int, tuple[tuple[str, str], ...]], Consumer] = {}


def _consumer(client: Mapping[str, str]) -> Consumer:
    """Spark's Python workers serve one task after the other: the next finds the connections open. A job that changes
    its settings, or a second one in the same worker, takes the place of the first."""
    settings = consumer_settings(client)
    key = os.getpid(), tuple(sorted(settings.items()))
    found = _consumers.get(key)
    if found is None:
        for old in list(_consumers.values()):
            _forget(old)
        found = _consumers[key] = Consumer(
            {
                **settings,
                "auto.offset.reset": "none",
                "enable.auto.commit": "false",
                "allow.auto.create.topics": "false",
            }
        )
    return found


def _forget(consumer: Consumer) -> None:
    for key, one in list(_consumers.items()):
        if one is consumer:
            del _consumers[key]
            if key[0] == os.getpid():
                one.close(1.0)


@atexit.register
def _close_all() -> None:
    for consumer in list(_consumers.values()):
        _forget(consumer)
