"""Avro, read from data of unknown origin: no depth, count or length in it can make this run on, or out of memory.

Data alone with a schema that is given, and object containers, which bring their schema. Values are as JSON has them:
bytes and fixed as hex, decimals and times as text.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

CONTAINER = b"Obj\x01"
MAX_DEPTH = 100
MAX_VALUES = 200_000
"""Of one message: single values in it."""
MAX_UNPACKED = 16 * 1024 * 1024
MAX_SCHEMA = 200_000
MAX_RECORDS = 100
"""Of a container."""

Read = Callable[["Source", int], Any]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class BadSchema(ValueError):
    """Not a schema; `str()` says why."""


class BadData(ValueError):
    """The bytes are not of the schema; `str()` says why."""


class Source:
    """Bytes, where we are in them, and how many values may still be made of them."""

    __slots__ = ("at", "data", "left")

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data = data
        self.at = at
        self.left = MAX_VALUES

    def take(self, count: int) -> bytes:
        end = self.at + count
        if count < 0 or end > len(self.data):
            raise BadData(f"{count} bytes where {len(self.data) - self.at} are left")
        found = self.data[self.at : end]
        self.at = end
        return found

    def number(self) -> int:
        """A zigzag number of at most ten bytes."""
        found = shift = 0
        while True:
            if self.at >= len(self.data) or shift > 63:
                raise BadData("a number that does not end")
            byte = self.data[self.at]
            self.at += 1
            found |= (byte & 127) << shift
            if byte < 128:
                return found >> 1 ^ -(found & 1)
            shift += 7

    def spend(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise BadData(f"more than {MAX_VALUES} values")


class Schema:
    """Compiled from JSON."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_SCHEMA:
            raise BadSchema(f"a schema of {len(text)} characters; more than {MAX_SCHEMA} are not taken")
        self._named: dict[str, Read] = {}
        try:
            self._read = self._compile(json.loads(text), "", 0)
        except RecursionError:
            raise BadSchema("the schema is too deep") from None
        except (KeyError, TypeError, AttributeError) as error:
            raise BadSchema(f"not an Avro schema: {type(error).__name__} at {str(error)[:100]}") from None
        except BadSchema:
            raise
        except ValueError as error:
            raise BadSchema(f"not an Avro schema: {str(error)[:200]}") from None

    def read(self, source: Source) -> Any:
        return self._read(source, 0)

    def _compile(self, schema: Any, space: str, depth: int) -> Read:
        if depth > MAX_DEPTH:
            raise BadSchema("the schema is too deep")
        if isinstance(schema, list):
            return _union([self._compile(one, space, depth + 1) for one in schema])
        if isinstance(schema, str):
            if schema in _PRIMITIVE:
                return _PRIMITIVE[schema]
            return self._reference(schema if "." in schema or not space else f"{space}.{schema}", schema)
        if not isinstance(schema, dict):
            raise BadSchema(f"not an Avro schema: {str(schema)[:60]}")
        kind = schema["type"]
        if kind in ("record", "error"):
            return self._record(schema, space, depth)
        if kind == "enum":
            symbols = [str(symbol) for symbol in schema["symbols"]]
            return self._name(schema, space, lambda source, _: _at(symbols, source.number()))
        if kind == "fixed":
            size = int(schema["size"])
            return self._name(schema, space, _logical(schema, lambda source, _: source.take(size)))
        if kind == "array":
            return _blocks(self._compile(schema["items"], space, depth + 1), keyed=False)
        if kind == "map":
            return _blocks(self._compile(schema["values"], space, depth + 1), keyed=True)
        return _logical(schema, self._compile(kind, space, depth + 1))

    def _full(self, schema: dict[str, Any], space: str) -> tuple[str, str]:
        name = str(schema["name"])
        inner = name.rpartition(".")[0] if "." in name else str(schema.get("namespace") or space)
        return (name if "." in name or not inner else f"{inner}.{name}"), inner

    def _name(self, schema: dict[str, Any], space: str, read: Read) -> Read:
        full, _ = self._full(schema, space)
        if full in self._named:
            raise BadSchema(f"{full} is defined twice")
        self._named[full] = read
        return read

    def _reference(self, full: str, short: str) -> Read:
        known = full if full in self._named else short
        if known not in self._named:
            raise BadSchema(f"there is no type '{short[:60]}'")
        return lambda source, depth: self._named[known](source, depth)

    def _record(self, schema: dict[str, Any], space: str, depth: int) -> Read:
        fields: list[tuple[str, Read]] = []

        def read(source: Source, level: int) -> Any:
            if level > MAX_DEPTH:
                raise BadData("records inside of records, too many of them")
            source.spend()
            return {name: one(source, level + 1) for name, one in fields}

        self._name(schema, space, read)
        _, inner = self._full(schema, space)
        fields += [(str(f["name"]), self._compile(f["type"], inner, depth + 1)) for f in schema["fields"]]
        return read


def read_alone(data: bytes, schema: Schema, at: int = 0) -> Any:
    """All of the bytes from `at` on as one value."""
    source = Source(data, at)
    found = schema.read(source)
    if source.at != len(data):
        raise BadData(f"{len(data) - source.at} bytes are left over")
    return _plain(found)


def read_container(data: bytes) -> tuple[list[Any], bool]:
    """The first values of an object container, and whether these are all."""
    source = Source(data, len(CONTAINER))
    about = {name: value for name, value in _blocks(_PRIMITIVE["bytes"], keyed=True)(source, 0).items()}
    schema = Schema(about.get("avro.schema", b"").decode("utf-8", "replace"))
    codec = about.get("avro.codec", b"null")
    sync = source.take(16)
    found: list[Any] = []
    while source.at < len(data):
        count, size = source.number(), source.number()
        block = source.take(size)
        if source.take(16) != sync:
            raise BadData("a block does not end where it should")
        inside = Source(_unpacked(codec, block))
        inside.left = source.left
        for _ in range(max(0, count)):
            if len(found) == MAX_RECORDS:
                return found, False
            found.append(_plain(schema.read(inside)))
        source.left = inside.left
    return found, True


def _unpacked(codec: bytes, block: bytes) -> bytes:
    if codec == b"null":
        return block
    if codec != b"deflate":
        raise BadData(f"compressed by {codec[:20].decode('ascii', 'replace')}, which is not opened here")
    unpacker = zlib.decompressobj(-15)
    try:
        found = unpacker.decompress(block, MAX_UNPACKED)
    except zlib.error as error:
        raise BadData(f"not deflate: {error}") from None
    if unpacker.unconsumed_tail:
        raise BadData(f"a block that unpacks to more than {MAX_UNPACKED} bytes")
    return found


# --- the kinds of values


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


def _at(choices: list[Any], index: int) -> Any:
    if not 0 <= index < len(choices):
        raise BadData(f"number {index} of {len(choices)}")
    return choices[index]


def _union(choices: list[Read]) -> Read:
    return lambda source, depth: _at(choices, source.number())(source, depth)


def _blocks(item: Read, keyed: bool) -> Read:
    """Lists and maps: blocks with a count in front (below zero with their size), the last of none."""

    def read(source: Source, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise BadData("lists inside of lists, too many of them")
        found: dict[str, Any] = {}
        items: list[Any] = []
        while count := source.number():
            if count < 0:
                count = -count
                source.number()
            for _ in range(count):
                source.spend()
                if keyed:
                    name = _string(source, depth)
                    found[name] = item(source, depth + 1)
                else:
                    items.append(item(source, depth + 1))
        return found if keyed else items

    return read


def _logical(schema: dict[str, Any], read: Read) -> Read:
    kind = schema.get("logicalType")
    if kind == "decimal":
        scale = int(schema.get("scale", 0))
        if not 0 <= scale <= 1000:
            raise BadSchema(f"a decimal of {scale} places")

        def decimal(source: Source, depth: int) -> Any:
            found = read(source, depth)
            return str(Decimal(int.from_bytes(found[:512], "big", signed=True)).scaleb(-scale))

        return decimal
    change = _TIMES.get(str(kind))
    if change is None:
        return read
    told = change

    def time(source: Source, depth: int) -> Any:
        found = read(source, depth)
        try:
            return told(found) if isinstance(found, int) else found
        except (OverflowError, ValueError):
            return found

    return time


_TIMES: dict[str, Callable[[int], str]] = {
    "date": lambda days: (date(1970, 1, 1) + timedelta(days=days)).isoformat(),
    "timestamp-millis": lambda ms: (_EPOCH + timedelta(milliseconds=ms)).isoformat(),
    "timestamp-micros": lambda us: (_EPOCH + timedelta(microseconds=us)).isoformat(),
}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    return value
