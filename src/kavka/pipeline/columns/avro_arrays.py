"""Arrow arrays from Avro data, without a Python object for each value.

The data must be written with the schema of the columns. `columns/avro.py` reads all other data, and
is the reference: this module refuses whatever it does not read in the same way.

This file is plain Python. If a compiler is available at install time, Cython compiles it;
`avro_arrays.pxd` has the C types.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from kavka.common import plain_cython as cython
else:
    try:
        import cython
    except ImportError:
        from kavka.common import plain_cython as cython

MAX_BYTES = 1 << 30
"""The limit on the bytes of one column, far below Arrow's of 2 GB."""
_INITIAL_VALUES = 1024
_HEADER_BYTES = 5
# The times of Python's datetime, which the reference returns.
_MICROSECONDS = (-62_135_596_800_000_000, 253_402_300_799_999_999)
_DAYS = (-719_162, 2_932_896)
_INT = (-(1 << 31), (1 << 31) - 1)
_LONG = (-(1 << 63), (1 << 63) - 1)
_SIZES = {"float": 4, "double": 8}


class Unreadable(ValueError):
    """The data is invalid, or only the reference can read it."""


@cython.cclass
class Source:
    """The data of all records, and the position in it. `end` is the end of a record."""

    __slots__ = ("data", "end", "pos")

    def __init__(self) -> None:
        self.data: Any = b""
        self.pos = 0
        self.end = 0

    def read_long(self) -> int:
        value = 0
        shift = 0
        while True:
            if self.pos >= self.end or shift > 63:
                raise Unreadable("a number has no end")
            byte: int = self.data[self.pos]
            self.pos += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
        if shift == 63 and byte > 1:
            raise Unreadable("a number with more than 64 bits")
        return (value >> 1) ^ -(value & 1)

    def skip(self, length: int) -> int:
        """Move past `length` bytes, and return their start."""
        start = self.pos
        if length < 0 or length > self.end - start:
            raise Unreadable("the data is truncated")
        self.pos = start + length
        return start


@cython.cclass
class Node:
    """The values of a column. `read` adds the value at the position of the source, `add_null` adds
    one that a null of a surrounding type hides."""

    def read(self, source: Source) -> None:
        raise NotImplementedError

    def add_null(self) -> None:
        raise NotImplementedError

    def finish(self, validity: Any) -> pa.Array:
        """Return the array. `validity` is its bitmap, or None."""
        raise NotImplementedError


@cython.cclass
class Numbers:
    """A growing array of 64-bit numbers."""

    def __init__(self) -> None:
        self.values = array("q", bytes(8 * _INITIAL_VALUES))
        self.count = 0
        self.room = _INITIAL_VALUES

    def push(self, value: int) -> None:
        if self.count == self.room:
            self.values.extend(array("q", bytes(8 * self.room)))
            self.room *= 2
        if cython.compiled:
            self.values.data.as_longlongs[self.count] = value  # type: ignore[attr-defined]
        else:
            self.values[self.count] = value
        self.count += 1

    def to_array(self, validity: Any) -> pa.Array:
        return pa.Array.from_buffers(pa.int64(), self.count, [validity, pa.py_buffer(self.values)])

    def to_offsets(self) -> pa.Buffer:
        return self.to_array(None).cast(pa.int32()).buffers()[1]


@cython.cclass
class Integer(Node):
    """int, long, boolean, and times, which are multiplied by `factor`."""

    def __init__(self, kind: pa.DataType, bounds: tuple[int, int], factor: int = 1, is_boolean: bool = False) -> None:
        self.kind = kind
        self.minimum, self.maximum = bounds
        self.factor = factor
        self.is_boolean = is_boolean
        self.numbers = Numbers()

    def read(self, source: Source) -> None:
        if self.is_boolean:
            value = source.data[source.skip(1)]
            if value > 1:
                raise Unreadable("a boolean that is neither 0 nor 1")
        else:
            value = source.read_long()
            if value < self.minimum or value > self.maximum:
                raise Unreadable("a number out of range")
        self.numbers.push(value * self.factor)

    def add_null(self) -> None:
        self.numbers.push(0)

    def finish(self, validity: Any) -> pa.Array:
        values = self.numbers.to_array(validity)
        if pa.types.is_timestamp(self.kind):
            return values.view(self.kind)
        return (values.cast(pa.int32()) if pa.types.is_date32(self.kind) else values).cast(self.kind)


@cython.cclass
class Raw(Node):
    """Numbers that Avro stores as Arrow does."""

    def __init__(self, kind: pa.DataType, size: int) -> None:
        self.kind = kind
        self.size = size
        self.data = bytearray()

    def read(self, source: Source) -> None:
        start = source.skip(self.size)
        self.data += source.data[start : source.pos]

    def add_null(self) -> None:
        self.data += bytes(self.size)

    def finish(self, validity: Any) -> pa.Array:
        return pa.Array.from_buffers(self.kind, len(self.data) // self.size, [validity, pa.py_buffer(self.data)])


@cython.cclass
class Bytes(Node):
    """string, bytes, fixed (with a size), and enum (with symbols)."""

    def __init__(self, kind: pa.DataType, size: int = -1, symbols: list[bytes] | None = None) -> None:
        self.kind = kind
        self.size = size
        self.symbols = symbols
        self.data = bytearray()
        self.ends = Numbers()
        self.ends.push(0)

    def read(self, source: Source) -> None:
        if self.symbols is not None:
            index = source.read_long()
            if index < 0 or index >= len(self.symbols):
                raise Unreadable("an unknown symbol of an enum")
            self.data += self.symbols[index]
        else:
            length = source.read_long() if self.size < 0 else self.size
            start = source.skip(length)
            self.data += source.data[start : source.pos]
        if len(self.data) > MAX_BYTES:
            raise Unreadable("a column with too many bytes")
        self.ends.push(len(self.data))

    def add_null(self) -> None:
        self.ends.push(len(self.data))

    def finish(self, validity: Any) -> pa.Array:
        buffers = [validity, self.ends.to_offsets(), pa.py_buffer(self.data)]
        values = pa.Array.from_buffers(self.kind, self.ends.count - 1, buffers)
        # Strings must be UTF-8.
        values.validate(full=True)
        return values


@cython.cclass
class Optional(Node):
    """A union of null and another type."""

    def __init__(self, inner: Node, null_index: int) -> None:
        self.inner = inner
        self.null_index = null_index
        self.flags = bytearray()

    def read(self, source: Source) -> None:
        index = source.read_long()
        if index == self.null_index:
            self.add_null()
        elif index == 1 - self.null_index:
            self.flags.append(1)
            self.inner.read(source)
        else:
            raise Unreadable("a union has no such branch")

    def add_null(self) -> None:
        self.flags.append(0)
        self.inner.add_null()

    def finish(self, validity: Any) -> pa.Array:
        # Where a surrounding type is null, so is this one: `add_null` of both was called.
        return self.inner.finish(_bitmap(self.flags))


@cython.cclass
class Record(Node):
    def __init__(self, kind: pa.DataType, fields: list[Node]) -> None:
        self.kind = kind
        self.fields = fields
        self.count = 0

    def read(self, source: Source) -> None:
        for field in self.fields:
            node: Node = field
            node.read(source)
        self.count += 1

    def add_null(self) -> None:
        for field in self.fields:
            node: Node = field
            node.add_null()
        self.count += 1

    def finish(self, validity: Any) -> pa.Array:
        children = [field.finish(None) for field in self.fields]
        return pa.Array.from_buffers(self.kind, self.count, [validity], children=children)


@cython.cclass
class Items(Node):
    def __init__(self, kind: pa.DataType, item: Node) -> None:
        self.kind = kind
        self.item = item
        self.total = 0
        self.ends = Numbers()
        self.ends.push(0)

    def read(self, source: Source) -> None:
        while True:
            count = source.read_long()
            if count == 0:
                break
            if count < 0:
                # The size of the block follows.
                count = -count
                source.read_long()
            # Every item has at least one byte.
            if count < 0 or count > source.end - source.pos:
                raise Unreadable("the data is truncated")
            for _ in range(count):
                self.item.read(source)
            self.total += count
        self.ends.push(self.total)

    def add_null(self) -> None:
        self.ends.push(self.total)

    def finish(self, validity: Any) -> pa.Array:
        buffers = [validity, self.ends.to_offsets()]
        return pa.Array.from_buffers(self.kind, self.ends.count - 1, buffers, children=[self.item.finish(None)])


def _bitmap(flags: bytearray) -> pa.Buffer:
    values = pa.Array.from_buffers(pa.uint8(), len(flags), [None, pa.py_buffer(flags)])
    return values.cast(pa.bool_()).buffers()[1]


def decode(
    column: pa.BinaryArray, definition: Any, kind: pa.DataType, is_written_with: Callable[[int], bool]
) -> pa.Array:
    """Return the array of a column of Avro data with Confluent's header. `is_written_with` returns
    whether the schema with an id is this schema. Raises Unreadable or ArrowException for data that
    the reference may read or refuse."""
    root = _node(definition, kind, {})
    _, ends, data = column.buffers()
    offsets = (
        memoryview(ends).cast("B").cast("i")[column.offset : column.offset + len(column) + 1].tolist() if ends else []
    )
    validity = column.is_valid().to_pylist() if column.null_count else None
    flags = bytearray(b"\1") * len(column)
    source = Source()
    if data is not None:
        source.data = pointer(data.address) if cython.compiled else memoryview(data).cast("B")  # type: ignore[name-defined]  # noqa: F821
    schema_id = -1
    for row in range(len(column)):
        if validity is not None and not validity[row]:
            flags[row] = 0
            root.add_null()
            continue
        source.pos, source.end = offsets[row], offsets[row + 1]
        start = source.skip(_HEADER_BYTES)
        if source.data[start] != 0:
            raise Unreadable("no magic byte")
        row_id = 0
        for index in range(1, _HEADER_BYTES):
            row_id = row_id << 8 | source.data[start + index]
        if row_id != schema_id:
            if not is_written_with(row_id):
                raise Unreadable("another schema")
            schema_id = row_id
        root.read(source)
        if source.pos != source.end:
            raise Unreadable("there are bytes after the datum")
    if validity is None:
        return root.finish(None)
    if isinstance(root, Optional):
        # Its own nulls and those of the column have the same bitmap.
        return root.finish(None)
    return root.finish(_bitmap(flags))


def _node(schema: Any, kind: pa.DataType, named: dict[str, Any]) -> Node:
    """Return the node of a schema in fastavro's form. Raises Unreadable for types that only the
    reference reads: maps and decimals."""
    if isinstance(schema, list):
        if len(schema) != 2 or "null" not in schema:
            raise Unreadable("a union of other types than null and one type")
        null_index = schema.index("null")
        return Optional(_node(schema[1 - null_index], kind, named), null_index)
    if isinstance(schema, str):
        if schema in named:
            return _node(named[schema], kind, named)
        return _simple(schema, {}, kind)
    name, avro_kind = schema.get("name"), schema["type"]
    if name is not None:
        named[name] = schema
    match avro_kind:
        case "record" | "error":
            fields = [
                _node(field["type"], kind.field(index).type, named) for index, field in enumerate(schema["fields"])
            ]
            return Record(kind, fields)
        case "array":
            return Items(kind, _node(schema["items"], kind.value_type, named))
        case "enum":
            return Bytes(kind, symbols=[symbol.encode() for symbol in schema["symbols"]])
        case str():
            return _simple(avro_kind, schema, kind)
    return _node(avro_kind, kind, named)


def _simple(avro_kind: str, schema: dict[str, Any], kind: pa.DataType) -> Node:
    logical = schema.get("logicalType")
    match avro_kind, logical:
        case "boolean", _:
            return Integer(kind, (0, 1), is_boolean=True)
        case "int", "date":
            return Integer(kind, _DAYS)
        case "long", "timestamp-millis":
            minimum, maximum = _MICROSECONDS
            return Integer(kind, (-(-minimum // 1000), maximum // 1000), factor=1000)
        case "long", "timestamp-micros":
            return Integer(kind, _MICROSECONDS)
        case "int", _:
            return Integer(kind, _INT)
        case "long", _:
            return Integer(kind, _LONG)
        case (("float" | "double"), _):
            return Raw(kind, _SIZES[avro_kind])
        case (("bytes" | "fixed"), "decimal"):
            raise Unreadable("a decimal")
        case (("string" | "bytes"), _):
            return Bytes(kind)
        case "fixed", _:
            return Bytes(kind, size=schema["size"])
    raise Unreadable(f"the type {avro_kind}")
