"""Decodes Avro from untrusted data in bounded time and memory.

The data is a single value of a known schema, or an object container, which contains its schema. The
decoded values are those of JSON: bytes and fixed as hex, decimals and times as text.

Every value is charged to the message's budget (`limits.py`). A parent charges its children before
it decodes them: a record charges its fields and their names, an array its items, a map its entries,
a union its branch.
"""

from __future__ import annotations

import decimal
import json
import struct
import zlib
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any

from kavka.console.limits import Budget, TooLarge

CONTAINER = b"Obj\x01"
MAX_DEPTH = 100
MAX_SCHEMA_LENGTH = 200_000
MAX_DECIMAL_BYTES = 1700
"""The maximum number of bytes of a decimal: about 4100 digits, which take milliseconds to convert.
The time grows faster than the length."""
MAX_SCALE = 1000
MAX_RECORDS = 100
"""The maximum number of values that are decoded from a container."""

# Decodes a value at the position of the source. The number is the nesting depth of the value.
Read = Callable[["Source", int], Any]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Precise enough for every accepted decimal: nothing is rounded.
_EXACT = decimal.Context(
    prec=3 * MAX_DECIMAL_BYTES, Emin=-(10**6), Emax=10**6, traps=[decimal.Inexact, decimal.Rounded]
)


class BadSchema(ValueError):
    """An invalid schema; `str()` is the reason."""


class BadData(ValueError):
    """The bytes do not match the schema; `str()` is the reason."""


class Source:
    """Bytes, the position in them, and the budget of their message."""

    __slots__ = ("budget", "data", "position")

    def __init__(self, data: bytes, position: int = 0, budget: Budget | None = None) -> None:
        self.data = data
        self.position = position
        self.budget = Budget() if budget is None else budget

    def take(self, count: int) -> bytes:
        """Read the bytes of a value."""
        value = self.take_block(count)
        self.budget.spend_characters(count)
        return value

    def take_block(self, count: int) -> bytes:
        """Read a block without charging it: its values are charged when they are decoded."""
        end = self.position + count
        if count < 0 or end > len(self.data):
            raise BadData(f"expected {count} bytes, but only {len(self.data) - self.position} remain")
        block = self.data[self.position : end]
        self.position = end
        return block

    def number(self) -> int:
        """Read a zigzag varint of at most ten bytes."""
        number = shift = 0
        while True:
            if self.position >= len(self.data) or shift > 63:
                raise BadData("a number does not end")
            byte = self.data[self.position]
            self.position += 1
            number |= (byte & 127) << shift
            if byte < 128:
                return number >> 1 ^ -(number & 1)
            shift += 7


class Schema:
    """A schema in JSON, compiled to closures."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_SCHEMA_LENGTH:
            raise BadSchema(f"the schema has {len(text)} characters, the limit is {MAX_SCHEMA_LENGTH}")
        self._named: dict[str, Read] = {}
        try:
            self._read = self._compile(json.loads(text), "", 0)
        except RecursionError:
            raise BadSchema("the schema is too deep") from None
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise BadSchema(f"not an Avro schema: {type(error).__name__} at {str(error)[:100]}") from None
        except BadSchema:
            raise
        except ValueError as error:
            raise BadSchema(f"not an Avro schema: {str(error)[:200]}") from None

    def read(self, source: Source) -> Any:
        return self._read(source, 0)

    def _compile(self, schema: Any, namespace: str, depth: int) -> Read:
        if depth > MAX_DEPTH:
            raise BadSchema("the schema is too deep")
        if isinstance(schema, list):
            return _union([self._compile(branch, namespace, depth + 1) for branch in schema])
        if isinstance(schema, str):
            if schema in _PRIMITIVE:
                return _PRIMITIVE[schema]
            return self._reference(schema if "." in schema or not namespace else f"{namespace}.{schema}", schema)
        if not isinstance(schema, dict):
            raise BadSchema(f"not an Avro schema: {str(schema)[:60]}")
        schema_type = schema["type"]
        if schema_type in ("record", "error"):
            return self._record(schema, namespace, depth)
        if schema_type == "enum":
            return self._define(schema, namespace, _enum([str(symbol) for symbol in schema["symbols"]]))
        if schema_type == "fixed":
            size = int(schema["size"])
            if size < 0:
                raise BadSchema(f"the size of a fixed is {size}")
            return self._define(schema, namespace, _logical(schema, lambda source, _: source.take(size)))
        if schema_type == "array":
            return _blocks(self._compile(schema["items"], namespace, depth + 1), is_map=False)
        if schema_type == "map":
            return _blocks(self._compile(schema["values"], namespace, depth + 1), is_map=True)
        inner = self._compile(schema_type, namespace, depth + 1)
        # A logical type of a nested schema is ignored: nested wrappers would cost time without
        # being charged.
        return _logical(schema, inner) if isinstance(schema_type, str) else inner

    def _full_name(self, schema: dict[str, Any], namespace: str) -> tuple[str, str]:
        """The full name of a type, and the namespace of the types in it."""
        name = str(schema["name"])
        inner = name.rpartition(".")[0] if "." in name else str(schema.get("namespace") or namespace)
        return (name if "." in name or not inner else f"{inner}.{name}"), inner

    def _define(self, schema: dict[str, Any], namespace: str, read: Read) -> Read:
        full_name, _ = self._full_name(schema, namespace)
        if full_name in self._named:
            raise BadSchema(f"{full_name} is defined twice")
        self._named[full_name] = read
        return read

    def _reference(self, full_name: str, short_name: str) -> Read:
        name = full_name if full_name in self._named else short_name
        if name not in self._named:
            raise BadSchema(f"there is no type '{short_name[:60]}'")
        return lambda source, depth: self._named[name](source, depth)

    def _record(self, schema: dict[str, Any], namespace: str, depth: int) -> Read:
        fields: list[tuple[str, Read]] = []
        name_characters = 0

        def read(source: Source, level: int) -> Any:
            if level > MAX_DEPTH:
                raise BadData("records are nested too deep")
            source.budget.spend_values(len(fields))
            source.budget.spend_characters(name_characters)
            return {name: read_field(source, level + 1) for name, read_field in fields}

        # Define the record before its fields, which may refer to it.
        self._define(schema, namespace, read)
        _, inner = self._full_name(schema, namespace)
        fields += [(str(f["name"]), self._compile(f["type"], inner, depth + 1)) for f in schema["fields"]]
        name_characters = sum(len(name) for name, _ in fields)
        return read


def read_value(data: bytes, schema: Schema, position: int = 0, budget: Budget | None = None) -> Any:
    """Decode all bytes from `position` as one value. Raises BadData and TooLarge."""
    source = Source(data, position, budget)
    source.budget.spend_values()
    value = schema.read(source)
    if source.position != len(data):
        raise BadData(f"{len(data) - source.position} bytes remain after the value")
    return _plain(value)


def read_container(data: bytes, budget: Budget | None = None) -> tuple[list[Any], bool]:
    """Return the first MAX_RECORDS values of an object container, and whether these are all values.
    Raises BadSchema, BadData and TooLarge."""
    source = Source(data, len(CONTAINER), budget)
    metadata = _blocks(_PRIMITIVE["bytes"], is_map=True)(source, 0)
    schema = Schema(metadata.get("avro.schema", b"").decode("utf-8", "replace"))
    codec = metadata.get("avro.codec", b"null")
    sync_marker = source.take(16)
    values: list[Any] = []
    while source.position < len(data):
        count, size = source.number(), source.number()
        block = source.take_block(size)
        if source.take_block(16) != sync_marker:
            raise BadData("a block does not end with the sync marker")
        block_source = Source(_decompressed(codec, block, source.budget), 0, source.budget)
        for _ in range(max(0, count)):
            if len(values) == MAX_RECORDS:
                return values, False
            source.budget.spend_values()
            values.append(_plain(schema.read(block_source)))
    return values, True


def _decompressed(codec: bytes, block: bytes, budget: Budget) -> bytes:
    if codec == b"null":
        return block
    if codec != b"deflate":
        raise BadData(f"the codec {codec[:20].decode('ascii', 'replace')} is not supported")
    decompressor = zlib.decompressobj(-15)
    try:
        # One byte more than the budget shows that the block exceeds it.
        decompressed = decompressor.decompress(block, budget.unpacked + 1)
    except zlib.error as error:
        raise BadData(f"not deflate: {error}") from None
    budget.spend_unpacked(len(decompressed))
    if not decompressor.eof:
        raise BadData("a compressed block is incomplete")
    return decompressed


# --- types


def _boolean(source: Source, depth: int) -> bool:
    return source.take(1) != b"\0"


def _string(source: Source, depth: int) -> str:
    return source.take(source.number()).decode("utf-8", "replace")


_PRIMITIVE: dict[str, Read] = {
    "null": lambda source, _: None,
    "boolean": _boolean,
    "int": lambda source, _: source.number(),
    "long": lambda source, _: source.number(),
    "float": lambda source, _: struct.unpack("<f", source.take(4))[0],
    "double": lambda source, _: struct.unpack("<d", source.take(8))[0],
    "bytes": lambda source, _: source.take(source.number()),
    "string": _string,
}


def _item(items: list[Any], index: int) -> Any:
    if not 0 <= index < len(items):
        raise BadData(f"index {index} is out of range: there are {len(items)} symbols or branches")
    return items[index]


def _enum(symbols: list[str]) -> Read:
    def read(source: Source, depth: int) -> str:
        symbol: str = _item(symbols, source.number())
        source.budget.spend_characters(len(symbol))
        return symbol

    return read


def _union(branches: list[Read]) -> Read:
    def read(source: Source, depth: int) -> Any:
        source.budget.spend_values()
        return _item(branches, source.number())(source, depth)

    return read


def _blocks(read_item: Read, is_map: bool) -> Read:
    """Return a reader of an array or map. An array or map consists of blocks, which start with the
    number of items. A negative number is followed by the size of the block. The number 0 is the
    end."""

    def read(source: Source, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise BadData("arrays and maps are nested too deep")
        entries: dict[str, Any] = {}
        items: list[Any] = []
        spend = source.budget.spend_values
        while count := source.number():
            if count < 0:
                count = -count
                source.number()
            for _ in range(count):
                if is_map:
                    spend(2)
                    name = _string(source, depth)
                    entries[name] = read_item(source, depth + 1)
                else:
                    spend()
                    items.append(read_item(source, depth + 1))
        return entries if is_map else items

    return read


def _logical(schema: dict[str, Any], read: Read) -> Read:
    """Return a reader that applies the `logicalType` of a schema. An unknown type is ignored."""
    logical_type = schema.get("logicalType")
    if logical_type == "decimal":
        scale = int(schema.get("scale", 0))
        if not 0 <= scale <= MAX_SCALE:
            raise BadSchema(f"the scale of a decimal is {scale}, the limit is {MAX_SCALE}")
        return lambda source, depth: _decimal(read(source, depth), scale, source.budget)
    text_of = _TIMES.get(str(logical_type))
    return read if text_of is None else lambda source, depth: _time(read(source, depth), text_of)


def _decimal(unscaled: Any, scale: int, budget: Budget) -> Any:
    """Return the exact decimal as text. A value other than bytes or fixed is returned unchanged:
    Avro ignores the logical type there."""
    if not isinstance(unscaled, bytes):
        return unscaled
    if len(unscaled) > MAX_DECIMAL_BYTES:
        raise TooLarge(f"a decimal has {len(unscaled)} bytes, the limit is {MAX_DECIMAL_BYTES}")
    number = decimal.Decimal(int.from_bytes(unscaled, "big", signed=True))
    text = str(number.scaleb(-scale, context=_EXACT))
    budget.spend_characters(len(text))
    return text


def _time(number: Any, text_of: Callable[[int], str]) -> Any:
    """Return the time as text, or the number if the year is not in 1 to 9999."""
    try:
        return text_of(number) if isinstance(number, int) else number
    except (OverflowError, ValueError):
        return number


_TIMES: dict[str, Callable[[int], str]] = {
    "date": lambda days: (date(1970, 1, 1) + timedelta(days=days)).isoformat(),
    "timestamp-millis": lambda ms: (_EPOCH + timedelta(milliseconds=ms)).isoformat(),
    "timestamp-micros": lambda us: (_EPOCH + timedelta(microseconds=us)).isoformat(),
}


def _plain(value: Any) -> Any:
    """Return the value with bytes as hex and non-finite floats as text."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    return value
