"""Reads the offset range of a source task into Arrow batches with Spark's columns."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import pyarrow as pa

from kavka.client.consumer.consumer import Consumer
from kavka.client.consumer.errors import OffsetOutOfRange
from kavka.client.consumer.ranges import read_range
from kavka.client.errors import KafkaTimeout
from kavka.common.types import TopicPartition
from kavka.pipeline.spark.clients import SharedClient
from kavka.pipeline.spark.cluster import consumer_settings
from kavka.pipeline.spark.errors import DataLoss, PipelineError, no_reset
from kavka.pipeline.spark.offsets import Range
from kavka.pipeline.spark.options import SourceOptions
from kavka.pipeline.spark.text import as_text

logger = logging.getLogger(__name__)

T = TypeVar("T")

_HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
_COLUMNS = (
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("timestamp", pa.timestamp("us", "UTC")),
    pa.field("timestampType", pa.int32()),
)

NO_DECODERS: Mapping[str, Any] = MappingProxyType({})

# Seconds without data after which the first and the end offset of the partition are checked.
_CHECK_INTERVAL = 5.0


def _new_consumer(settings: dict[str, str]) -> Consumer:
    return Consumer(
        {
            **settings,
            "auto.offset.reset": "none",
            "enable.auto.commit": "false",
            "allow.auto.create.topics": "false",
        }
    )


_consumer = SharedClient(_new_consumer, 1.0)


def read(options: SourceOptions, offsets: Range) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range. Raises DataLoss if records are missing; with
    failOnDataLoss=false they are skipped with a warning."""
    for batch in read_pieces(options, offsets, read_range, lambda batch: batch.column("offset")[-1].as_py() + 1):
        yield spark_batch(batch, options.include_headers, options.text_columns, options.decoders)


def read_pieces(
    options: SourceOptions,
    offsets: Range,
    pieces: Callable[[Consumer, TopicPartition, int, int, float], Iterable[T]],
    end_of: Callable[[T], int],
) -> Iterator[T]:
    """Yield the pieces of a range. `pieces` reads them, with the arguments consumer, partition,
    start and end offset, and timeout. `end_of` returns the end offset of a piece."""
    consumer = _consumer.get(consumer_settings(options.client))
    is_complete = False
    try:
        yield from _read(consumer, options, offsets, pieces, end_of)
        is_complete = True
    finally:
        # After an error the state of the consumer is unknown.
        if not is_complete:
            _consumer.discard()


def _read(
    consumer: Consumer,
    options: SourceOptions,
    offsets: Range,
    pieces: Callable[[Consumer, TopicPartition, int, int, float], Iterable[T]],
    end_of: Callable[[T], int],
) -> Iterator[T]:
    position = offsets.start
    waited = 0.0
    while position < offsets.end:
        timeout = min(_CHECK_INTERVAL, options.poll_timeout)
        try:
            for piece in pieces(consumer, offsets.tp, position, offsets.end, timeout):
                position = end_of(piece)
                waited = 0.0
                yield piece
            return
        except OffsetOutOfRange:
            position = _after_loss(consumer, options, offsets, position)
        except KafkaTimeout:
            waited += timeout
            position = _after_loss(consumer, options, offsets, position)
            if waited >= options.poll_timeout and position < offsets.end:
                raise PipelineError(
                    f"no data from {offsets.tp} at offset {position} within {options.poll_timeout:g} s "
                    "(kafkaConsumer.pollTimeoutMs)"
                ) from None


def _after_loss(consumer: Consumer, options: SourceOptions, offsets: Range, position: int) -> int:
    """Return the offset to continue at, which is `position` if no record is missing. Raises
    DataLoss with failOnDataLoss=true."""
    tp = offsets.tp
    log_start = consumer.beginning_offsets([tp], options.poll_timeout)[tp]
    end = consumer.end_offsets([tp], options.poll_timeout)[tp]
    if log_start <= position and offsets.end <= end:
        return position
    if position < log_start:
        next_offset = min(log_start, offsets.end)
        loss = f"{tp}: offsets {position} to {next_offset - 1} no longer exist, the first is now {log_start}"
    else:
        next_offset = offsets.end
        loss = f"{tp}: offsets {max(position, end)} to {offsets.end - 1} no longer exist, it now ends at {end}"
    if options.fail_on_data_loss:
        raise DataLoss(f"{loss} (failOnDataLoss=false continues without them)")
    reset = options.reset_of(tp.topic)
    if reset == "none":
        raise DataLoss(no_reset(loss))
    if reset == "latest":
        next_offset = offsets.end
    logger.warning("%s; continuing without them", loss)
    return next_offset


def schema(headers: bool, text: Collection[str] = (), decoders: Mapping[str, Any] = NO_DECODERS) -> pa.Schema:
    types = {name: pa.string() if name in text else pa.binary() for name in ("key", "value")}
    types |= {name: decoder.arrow_type for name, decoder in decoders.items()}
    fields = [pa.field(name, kind) for name, kind in types.items()]
    return pa.schema([*fields, *_COLUMNS, pa.field("headers", _HEADERS)] if headers else [*fields, *_COLUMNS])


def spark_batch(
    batch: pa.RecordBatch, headers: bool, text: Collection[str] = (), decoders: Mapping[str, Any] = NO_DECODERS
) -> pa.RecordBatch:
    """Convert the consumer's columns to those of Spark's Kafka source. Keys and values are not
    copied, unless they are decoded or strings with invalid UTF-8."""
    names = batch.schema.names
    columns = [batch.column(names.index(name)) for name in ("key", "value", "topic", "partition", "offset")]
    columns[:2] = [
        as_text(column) if name in text else column for name, column in zip(("key", "value"), columns, strict=False)
    ]
    for index, name in enumerate(("key", "value")):
        if name in decoders:
            columns[index] = decoders[name].decode(name, columns[index], batch)
    columns[2] = columns[2].dictionary_decode()
    columns.append(batch.column(names.index("timestamp")).cast(pa.timestamp("us", "UTC")))
    columns.append(batch.column(names.index("timestamp_type")).cast(pa.int32()))
    if headers:
        columns.append(batch.column(names.index("headers")))
    return pa.RecordBatch.from_arrays(columns, schema=schema(headers, text, decoders))
