"""Sends rows of Spark as records: finds the columns of key, value, topic …, and sends the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from kavka.client.producer._append import RecordFuture
from kavka.client.producer.producer import Producer
from kavka.client.producer.record import ProducerRecord
from kavka.common.errors import KafkaError
from kavka.pipeline.spark.errors import OptionError, PipelineError

TYPES = {
    "value": ("string", "binary"),
    "key": ("string", "binary"),
    "topic": ("string",),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
}


@dataclass(frozen=True)
class Layout:
    """The column numbers of the parts of a record, -1 for a missing column. `topic_name` takes
    precedence over the column `topic`."""

    topic_name: str | None
    value: int
    key: int = -1
    topic: int = -1
    partition: int = -1
    headers: int = -1
    timestamp: int = -1


class Future(Protocol):
    """The outcome of a sent record or batch."""

    def done(self) -> bool: ...

    def get(self, timeout: float | None = None) -> Any:
        """Return the RecordMetadata of the first record, or None if there are no records."""


Send = Callable[[Producer, pa.RecordBatch, Layout], Sequence[Future]]
"""Sends rows and returns their futures. `send` is the function for rows that are records."""


def find_layout(columns: Sequence[tuple[str, str]], topic: str | None, timestamp: str | None = None) -> Layout:
    """Return the layout of rows. `columns` are names and Spark's short names of types. The case
    of names is ignored, as in Spark. `timestamp` is the name of the column with the timestamps in
    ms, if there is one."""
    parts: dict[str, int] = {}
    for index, (name, kind) in enumerate(columns):
        part = name.lower()
        if part not in TYPES:
            continue
        # The names of a header's fields are ignored.
        if kind not in TYPES[part] and not (part == "headers" and _is_headers(kind)):
            raise OptionError(f"column {name} must be {' or '.join(TYPES[part])}, not {kind}")
        parts[part] = index
    if "value" not in parts:
        raise OptionError(f"there is no column value in {', '.join(name for name, _ in columns)}")
    if topic is None and "topic" not in parts:
        raise OptionError("set the option topic, or add a column topic")
    if timestamp is not None:
        kinds = {name.lower(): (index, kind) for index, (name, kind) in enumerate(columns)}
        index, kind = kinds.get(timestamp.lower(), (-1, "missing"))
        if kind != "bigint":
            raise OptionError(f"timestampColumn {timestamp} must be bigint (milliseconds), but is {kind}")
        parts["timestamp"] = index
    return Layout(topic, **parts)


def _is_headers(kind: str) -> bool:
    return kind.startswith("array<struct<") and kind.endswith(">>") and kind[13:-2].split(",")[1:] == ["value:binary"]


def size_of(rows: pa.RecordBatch, layout: Layout) -> int:
    """Return the number of bytes of all keys and values."""
    total = 0
    for index in (layout.key, layout.value):
        if index >= 0:
            total += pc.sum(pc.binary_length(rows.column(index))).as_py() or 0
    return total


def send(producer: Producer, rows: pa.RecordBatch, layout: Layout) -> list[RecordFuture]:
    """Send all rows. Returns their futures."""
    values = _bytes(rows.column(layout.value))
    send = producer.send
    name = layout.topic_name
    if name is not None and layout.partition < 0 and layout.headers < 0 and layout.timestamp < 0:
        if layout.key < 0:
            return [send(name, value) for value in values]
        return [send(name, value, key) for value, key in zip(values, _bytes(rows.column(layout.key)), strict=True)]
    count = rows.num_rows
    topics: Any = repeat(name, count) if name is not None else rows.column(layout.topic).to_pylist()
    keys: Any = _bytes(rows.column(layout.key)) if layout.key >= 0 else repeat(None, count)
    partitions: Any = rows.column(layout.partition).to_pylist() if layout.partition >= 0 else repeat(None, count)
    headers: Any = _headers(rows.column(layout.headers)) if layout.headers >= 0 else repeat(None, count)
    stamps: Any = rows.column(layout.timestamp).to_pylist() if layout.timestamp >= 0 else repeat(None, count)
    futures: list[RecordFuture] = []
    for topic, value, key, partition, stamp, row_headers in zip(
        topics, values, keys, partitions, stamps, headers, strict=True
    ):
        if topic is None:
            raise PipelineError("a row has no topic: the column is null, and the option topic is not set")
        if partition is not None and partition < 0:
            raise PipelineError(f"a row has the partition {partition}")
        futures.append(send(topic, value, key, partition, stamp, row_headers))
    return futures


class Failed:
    """The future of a record that the producer did not accept."""

    def __init__(self, error: KafkaError) -> None:
        self.error = error

    def done(self) -> bool:
        return True

    def get(self, timeout: float | None = None) -> Any:
        raise self.error


class _Accepting:
    """A producer whose `send` does not raise KafkaError."""

    def __init__(self, producer: Producer) -> None:
        self._send = producer.send

    def send(self, *arguments: Any) -> Any:
        try:
            return self._send(*arguments)
        except KafkaError as error:
            return Failed(error)


def send_each(producer: Producer, rows: pa.RecordBatch, layout: Layout) -> list[RecordFuture]:
    """Send all rows. A row that the producer does not accept has a future with the error."""
    accepting: Any = _Accepting(producer)
    return send(accepting, rows, layout)


def record_of(rows: pa.RecordBatch, layout: Layout, index: int) -> ProducerRecord[bytes, bytes]:
    """The record of a row."""
    row = rows.slice(index, 1)

    def value(column: int) -> Any:
        return row.column(column)[0].as_py() if column >= 0 else None

    key, data = (_bytes(row.column(column))[0] if column >= 0 else None for column in (layout.key, layout.value))
    headers = _headers(row.column(layout.headers))[0] if layout.headers >= 0 else None
    topic = layout.topic_name if layout.topic_name is not None else value(layout.topic)
    return ProducerRecord(topic, data, key, value(layout.partition), value(layout.timestamp), headers)


def _bytes(column: pa.Array) -> list[bytes | None]:
    if pa.types.is_large_string(column.type):
        column = column.cast(pa.large_binary())
    elif pa.types.is_string(column.type):
        column = column.cast(pa.binary())
    values: list[bytes | None] = column.to_pylist()
    return values


def _headers(column: pa.Array) -> list[list[tuple[str, bytes | None]] | None]:
    return [
        None if not headers else [(name, value) for name, value in (tuple(header.values()) for header in headers)]
        for headers in column.to_pylist()
    ]
