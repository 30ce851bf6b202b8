"""From Spark's columns to records: which columns there are, and what is sent of a batch of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from kavka.client.producer._append import RecordFuture
from kavka.client.producer.producer import Producer
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
    """Where in the rows the parts of a record are; -1 for what is not there. `topic_name` wins over the column."""

    topic_name: str | None
    value: int
    key: int = -1
    topic: int = -1
    partition: int = -1
    headers: int = -1
    timestamp: int = -1


class Future(Protocol):
    """The outcome of what was sent."""

    def done(self) -> bool: ...

    def get(self, timeout: float | None = None) -> Any:
        """RecordMetadata of the first record; None where there is none."""


Send = Callable[[Producer, pa.RecordBatch, Layout], Sequence[Future]]
"""How rows are sent: what `send` is where they are records."""


def layout(columns: Sequence[tuple[str, str]], topic: str | None, timestamp: str | None = None) -> Layout:
    """`columns` are names and Spark's short names of types. Names count as Spark's do, without case. `timestamp` names
    the column with the records' times in ms, where there is one."""
    found: dict[str, int] = {}
    for index, (name, kind) in enumerate(columns):
        part = name.lower()
        if part not in TYPES:
            continue
        # Nullability and the names of a header's fields do not matter.
        if kind not in TYPES[part] and not (part == "headers" and _is_headers(kind)):
            raise OptionError(f"column {name} must be {' or '.join(TYPES[part])}, not {kind}")
        found[part] = index
    if "value" not in found:
        raise OptionError(f"there is no column value among {', '.join(name for name, _ in columns)}")
    if topic is None and "topic" not in found:
        raise OptionError("there is neither an option topic nor a column topic: where shall the rows go?")
    if timestamp is not None:
        kinds = {name.lower(): (index, kind) for index, (name, kind) in enumerate(columns)}
        index, kind = kinds.get(timestamp.lower(), (-1, "missing"))
        if kind != "bigint":
            raise OptionError(f"timestampColumn {timestamp} must be bigint, milliseconds, and is {kind}")
        found["timestamp"] = index
    return Layout(topic, **found)


def _is_headers(kind: str) -> bool:
    return kind.startswith("array<struct<") and kind.endswith(">>") and kind[13:-2].split(",")[1:] == ["value:binary"]


def size_of(rows: pa.RecordBatch, where: Layout) -> int:
    """Bytes of keys and values."""
    total = 0
    for index in (where.key, where.value):
        if index >= 0:
            total += pc.sum(pc.binary_length(rows.column(index))).as_py() or 0
    return total


def send(producer: Producer, rows: pa.RecordBatch, where: Layout) -> list[RecordFuture]:
    """Send all rows; their outcomes are in the futures."""
    values = rows.column(where.value)
    values = _bytes(values)
    send = producer.send
    name = where.topic_name
    if name is not None and where.partition < 0 and where.headers < 0 and where.timestamp < 0:
        if where.key < 0:
            return [send(name, value) for value in values]
        return [send(name, value, key) for value, key in zip(values, _bytes(rows.column(where.key)), strict=True)]
    count = rows.num_rows
    topics: Any = repeat(name, count) if name is not None else rows.column(where.topic).to_pylist()
    keys: Any = _bytes(rows.column(where.key)) if where.key >= 0 else repeat(None, count)
    partitions: Any = rows.column(where.partition).to_pylist() if where.partition >= 0 else repeat(None, count)
    headers: Any = _headers(rows.column(where.headers)) if where.headers >= 0 else repeat(None, count)
    stamps: Any = rows.column(where.timestamp).to_pylist() if where.timestamp >= 0 else repeat(None, count)
    futures: list[RecordFuture] = []
    for topic, value, key, partition, stamp, some in zip(
        topics, values, keys, partitions, stamps, headers, strict=True
    ):
        if topic is None:
            raise PipelineError("a row has no topic: the column is null, and there is no option topic")
        if partition is not None and partition < 0:
            raise PipelineError(f"a row has the partition {partition}")
        futures.append(send(topic, value, key, partition, stamp, some))
    return futures


def _bytes(column: pa.Array) -> list[bytes | None]:
    if pa.types.is_large_string(column.type):
        column = column.cast(pa.large_binary())
    elif pa.types.is_string(column.type):
        column = column.cast(pa.binary())
    found: list[bytes | None] = column.to_pylist()
    return found


def _headers(column: pa.Array) -> list[list[tuple[str, bytes | None]] | None]:
    return [
        None if not some else [(name, value) for name, value in (tuple(one.values()) for one in some)]
        for some in column.to_pylist()
    ]
