"""Converts columns of records to Arrow."""

from __future__ import annotations

from array import array
from typing import Any

try:
    import pyarrow as pa
except ImportError as error:
    raise ImportError("poll_arrow needs pyarrow: pip install 'kavka[arrow]'") from error

from kavka.client.consumer._decode import Columns, parse_headers
from kavka.records.batch import Buffer

HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))

SCHEMA = pa.schema(
    [
        pa.field("topic", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("ms", "UTC"), nullable=False),
        pa.field("timestamp_type", pa.int8(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS),
    ]
)

VIEWS_SCHEMA = pa.schema(
    [field.with_type(pa.binary_view()) if field.name in ("key", "value") else field for field in SCHEMA]
)


def record_batch(columns: Columns) -> pa.RecordBatch:
    """Return the columns as an Arrow batch. The batch shares most of the memory: do not change
    `columns` afterwards."""
    rows = columns.rows
    topics = {topic: index for index, topic in enumerate(dict.fromkeys(run[0] for run in columns.runs))}
    return pa.RecordBatch.from_arrays(
        [
            pa.DictionaryArray.from_arrays(
                _repeated("i", [(topics[run[0]], run[2]) for run in columns.runs], pa.int32()),
                pa.array(list(topics), pa.string()),
            ),
            _repeated("i", [(run[1], run[2]) for run in columns.runs], pa.int32()),
            _numbers(columns.offsets, rows, pa.int64()),
            _numbers(columns.timestamps, rows, pa.timestamp("ms", "UTC")),
            _repeated("b", columns.types, pa.int8()),
            *(_views(columns) if columns.has_views else _copies(columns)),
            _headers(columns.headers, rows),
        ],
        schema=VIEWS_SCHEMA if columns.has_views else SCHEMA,
    )


def _repeated(type_code: str, runs: Any, data_type: pa.DataType) -> pa.Array:
    values = array(type_code)
    for value, count in runs:
        values += array(type_code, (value,)) * count
    return pa.Array.from_buffers(data_type, len(values), [None, pa.py_buffer(values)])


def _numbers(values: Any, rows: int, data_type: pa.DataType) -> pa.Array:
    buffer = array("q", values) if isinstance(values, list) else values
    return pa.Array.from_buffers(data_type, rows, [None, pa.py_buffer(buffer)])


def _copies(columns: Columns) -> tuple[pa.Array, pa.Array]:
    """Return the columns of keys and values as contiguous bytes."""
    rows = columns.rows
    return (
        _binary(columns.keys, columns.key_flags, rows, pa.binary(), columns.key_ends, columns.key_data),
        _binary(columns.values, columns.value_flags, rows, pa.binary(), columns.value_ends, columns.value_data),
    )


def _views(columns: Columns) -> tuple[pa.Array, pa.Array]:
    """Return the columns of keys and values as references to the received data."""
    rows, buffers = columns.rows, columns.buffers
    return (
        _binary(columns.keys, columns.key_flags, rows, pa.binary_view(), columns.key_views, *buffers),
        _binary(columns.values, columns.value_flags, rows, pa.binary_view(), columns.value_views, *buffers),
    )


def _binary(
    items: list[bytes | None] | None, flags: bytearray, rows: int, data_type: pa.DataType, *buffers: Buffer
) -> pa.Array:
    if items is not None:
        return pa.array(items, data_type)
    non_null = flags.count(1, 0, rows)
    if non_null == 0:
        return pa.nulls(rows, data_type)
    validity = None
    if non_null < rows:
        bytes_array = pa.Array.from_buffers(pa.uint8(), rows, [None, pa.py_buffer(flags)])
        validity = bytes_array.cast(pa.bool_()).buffers()[1]
    return pa.Array.from_buffers(data_type, rows, [validity, *map(pa.py_buffer, buffers)], null_count=rows - non_null)


def _headers(headers: list[tuple[int, bytes]], rows: int) -> pa.Array:
    """Return the column of headers, which is null for records without headers."""
    if not headers:
        return pa.nulls(rows, HEADERS)
    column: list[Any] = [None] * rows
    for row, data in headers:
        column[row] = [{"key": key, "value": value} for key, value in parse_headers(data)]
    return pa.array(column, HEADERS)
