"""Serializers and deserializers, with Kafka's names and formats. No I/O."""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Callable
from typing import Any, TypeVar

from kavka.pipeline.streams.errors import StreamsException
from kavka.pipeline.streams.windows import TimeWindow, Window, Windowed

T = TypeVar("T")


class Serde:
    """A name and two functions. None stays None and never reaches them."""

    def __init__(self, name: str, serialize: Callable[[Any], bytes], deserialize: Callable[[bytes], Any]) -> None:
        self.name = name
        self._write = serialize
        self._read = deserialize

    def serialize(self, value: Any) -> bytes | None:
        if value is None:
            return None
        try:
            return self._write(value)
        except (TypeError, ValueError, AttributeError, struct.error) as error:
            what = type(value).__name__
            raise StreamsException(f"{self.name} cannot write a value of type {what} ({error}); give a serde") from None

    def deserialize(self, data: bytes | None) -> Any:
        return None if data is None else self._read(data)

    def resolved(self, default: Serde, other: Serde) -> Serde:
        """The serde to use, given the application's default. `other` is the default for values
        where this serde is for keys, and the other way round."""
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A serde of `Serdes` is the same object in every process."""
        if _STANDARD.get(self.name) is self:
            return _standard, (self.name,)
        return super().__reduce_ex__(protocol)

    def __repr__(self) -> str:
        return self.name


def _standard(name: str) -> Serde:
    return _STANDARD[name]


class AroundDefault(Serde):
    """A serde around the application's default, which is set later than the topology is built."""

    def __init__(self, wrap: Callable[[Serde], Serde], of_other: bool = False) -> None:
        super().__init__("a serde around the default", _unresolved, _unresolved)
        self._wrap, self._of_other = wrap, of_other

    def resolved(self, default: Serde, other: Serde) -> Serde:
        return self._wrap(other if self._of_other else default)


def _unresolved(value: Any) -> Any:
    raise TypeError("the application's default serde is not set yet")


def wrapped(wrap: Callable[[Serde], Serde], inner: Serde | None, of_other: bool = False) -> Serde:
    """The serde `wrap(inner)`; without `inner`, around the application's default."""
    return AroundDefault(wrap, of_other) if inner is None else wrap(inner)


def resolved(serde: Serde | None, default: Serde, other: Serde) -> Serde:
    return (serde or default).resolved(default, other)


class _Text(Serde):
    def serialize(self, value: Any) -> bytes | None:
        try:
            # Most values; the others and errors are handled in general.
            if value.__class__ is str:
                return value.encode()
        except UnicodeEncodeError:
            pass
        return super().serialize(value)

    def deserialize(self, data: bytes | None) -> Any:
        return None if data is None else data.decode()


def _text(value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError("it is not text")
    return value.encode()


def _raw(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError("it is not bytes")
    return bytes(value)


def _boolean(value: Any) -> bytes:
    if not isinstance(value, bool):
        raise TypeError("it is not a bool")
    return b"\x01" if value else b"\x00"


def _to_boolean(data: bytes) -> bool:
    if bytes(data) not in (b"\x00", b"\x01"):
        raise ValueError("a Boolean is one byte, 0 or 1")
    return bytes(data) == b"\x01"


def _void(value: Any) -> bytes:
    raise ValueError("it is not None")


def _to_void(data: bytes) -> Any:
    raise ValueError("data should be null for Serdes.Void")


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _uuid(value: Any) -> bytes:
    return str(uuid.UUID(str(value))).encode()


def _to_uuid(data: bytes) -> uuid.UUID:
    return uuid.UUID(data.decode())


class _Number(Serde):
    def __init__(self, name: str, form: str) -> None:
        number = struct.Struct(form)
        super().__init__(name, number.pack, number.unpack)
        self._size, self._unpack = number.size, number.unpack

    def deserialize(self, data: bytes | None) -> Any:
        if data is None:
            return None
        if len(data) != self._size:
            raise ValueError(f"Size of data received by {self.name} is not {self._size}")
        return self._unpack(data)[0]


def constant(value: T) -> staticmethod[[], T]:
    """A factory method, as Kafka's API has it, that always returns the same object."""
    return staticmethod(lambda: value)


class Serdes:
    """Kafka's serdes by Kafka's names, and Json for values without a schema."""

    String = constant(_Text("Serdes.String", _text, bytes.decode))
    Short = constant(_Number("Serdes.Short", ">h"))
    Integer = constant(_Number("Serdes.Integer", ">i"))
    Long = constant(_Number("Serdes.Long", ">q"))
    Float = constant(_Number("Serdes.Float", ">f"))
    Double = constant(_Number("Serdes.Double", ">d"))
    Boolean = constant(Serde("Serdes.Boolean", _boolean, _to_boolean))
    ByteArray = Bytes = constant(Serde("Serdes.ByteArray", _raw, bytes))
    UUID = constant(Serde("Serdes.UUID", _uuid, _to_uuid))
    Void = constant(Serde("Serdes.Void", _void, _to_void))
    Json = constant(Serde("Serdes.Json", _json, json.loads))

    @staticmethod
    def serde_from(serialize: Callable[[Any], bytes], deserialize: Callable[[bytes], Any], name: str = "") -> Serde:
        """A serde of two functions."""
        return Serde(name or getattr(serialize, "__qualname__", "a serde"), serialize, deserialize)


_BY_NAME: dict[str, Serde] = {name.lower(): getattr(Serdes, name)() for name in vars(Serdes) if name[0].isupper()}
_STANDARD = {serde.name: serde for serde in _BY_NAME.values()}


def serde_of(setting: Any, name: str) -> Serde:
    """The serde of a setting: a Serde, a name such as `String`, or Kafka's class name."""
    if isinstance(setting, Serde):
        return setting
    if callable(setting):
        return serde_of(setting(), name)
    short_name = str(setting).rsplit("$", 1)[-1].rsplit(".", 1)[-1].removesuffix("Serde").lower()
    serde = _BY_NAME.get(short_name)
    if serde is None:
        raise StreamsException(f"{name}={setting} is not a serde: set a serde of Serdes, or its name")
    return serde


class WindowedSerdes:
    """Windowed keys as Kafka writes them to topics: the key and the start (time windows), or the
    key, the end and the start (session windows)."""

    @staticmethod
    def time_windowed_serde_from(inner: Serde, window_size: int) -> Serde:
        def write(value: Windowed) -> bytes:
            return (inner.serialize(value.key) or b"") + struct.pack(">q", value.window.start)

        def read(data: bytes) -> Windowed:
            start = struct.unpack(">q", data[-8:])[0]
            return Windowed(inner.deserialize(data[:-8]), TimeWindow(start, start + window_size))

        return Serde(f"TimeWindowed({inner.name})", write, read)

    @staticmethod
    def session_windowed_serde_from(inner: Serde) -> Serde:
        def write(value: Windowed) -> bytes:
            return (inner.serialize(value.key) or b"") + struct.pack(">qq", value.window.end, value.window.start)

        def read(data: bytes) -> Windowed:
            end, start = struct.unpack(">qq", data[-16:])
            return Windowed(inner.deserialize(data[:-16]), Window(start, end))

        return Serde(f"SessionWindowed({inner.name})", write, read)


class Change:
    """A change of a key of a table: the new value, and the old value if a later operator needs it.
    `latest` is False if a versioned table has a newer value of the key."""

    __slots__ = ("latest", "new", "old")

    def __init__(self, new: Any, old: Any = None, latest: bool = True) -> None:
        self.new = new
        self.old = old
        self.latest = latest

    def __repr__(self) -> str:
        return f"({self.new!r}<-{self.old!r})"


def change_serde(inner: Serde) -> Serde:
    """Changes in a repartition topic: the new value and the byte 1, or the old value and the byte
    0, or the length of the new value, the new value, the old value and the byte 2."""

    def write(change: Change) -> bytes:
        new, old = inner.serialize(change.new), inner.serialize(change.old)
        if new is not None and old is not None:
            return struct.pack(">i", len(new)) + new + old + b"\x02"
        if new is not None:
            return new + b"\x01"
        if old is not None:
            return old + b"\x00"
        raise ValueError("a change needs a new or an old value")

    def read(data: bytes) -> Change:
        kind, rest = data[-1], data[:-1]
        if kind == 1:
            return Change(inner.deserialize(rest), None)
        if kind == 0:
            return Change(None, inner.deserialize(rest))
        size = struct.unpack(">i", rest[:4])[0]
        return Change(inner.deserialize(rest[4 : 4 + size]), inner.deserialize(rest[4 + size :]))

    return Serde(f"Change({inner.name})", write, read)
