"""How keys and values become bytes and come back: Kafka's names and Kafka's bytes. No I/O."""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Callable
from typing import Any

from kavka.pipeline.streams.errors import StreamsException
from kavka.pipeline.streams.windows import TimeWindow, Window, Windowed


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
        """The serde to use, where the application's default is this one; `other` is that of keys
        where this is of values, and of values where this is of keys."""
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Kafka's own are the same object wherever a topology is taken to."""
        if _OWN.get(self.name) is self:
            return _own, (self.name,)
        return super().__reduce_ex__(protocol)

    def __repr__(self) -> str:
        return self.name


class AroundDefault(Serde):
    """Made of the application's default, which is not known before the application is."""

    def __init__(self, wrap: Callable[[Serde], Serde], of_other: bool = False) -> None:
        super().__init__("a serde around the default", _not_yet, _not_yet)
        self._wrap, self._of_other = wrap, of_other

    def resolved(self, default: Serde, other: Serde) -> Serde:
        return self._wrap(other if self._of_other else default)


def _not_yet(value: Any) -> Any:
    raise TypeError("the default serde is not known yet")


def _text(value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError("it is no text")
    return value.encode()


def _raw(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError("it is not bytes")
    return bytes(value)


class _Number:
    """Reads and writes a number. It holds its format alone, since serdes are pickled with a
    topology."""

    def __init__(self, name: str, form: str) -> None:
        self._name, self._form, self._size = name, form, struct.calcsize(form)

    def write(self, value: Any) -> bytes:
        return struct.pack(self._form, value)

    def read(self, data: bytes) -> Any:
        if len(data) != self._size:
            raise ValueError(f"Size of data received by {self._name} is not {self._size}")
        return struct.unpack(self._form, data)[0]


def _numbers(name: str, form: str) -> Serde:
    number = _Number(name, form)
    return Serde(name, number.write, number.read)


def _void_write(value: Any) -> bytes:
    raise ValueError("it is not None")


def _void_read(data: bytes) -> Any:
    raise ValueError("data should be null for Serdes.Void")


def _json_write(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


_STRING = Serde("Serdes.String", _text, lambda data: data.decode())
_BYTES = Serde("Serdes.ByteArray", _raw, bytes)
_JSON = Serde("Serdes.Json", _json_write, json.loads)
_UUID = Serde("Serdes.UUID", lambda value: str(uuid.UUID(str(value))).encode(), lambda data: uuid.UUID(data.decode()))
_BOOLEAN = Serde(
    "Serdes.Boolean", lambda value: b"\x01" if _is_bool(value) else b"\x00", lambda data: _to_bool(bytes(data))
)
_VOID = Serde("Serdes.Void", _void_write, _void_read)
_SHORT = _numbers("Serdes.Short", ">h")
_INTEGER = _numbers("Serdes.Integer", ">i")
_LONG = _numbers("Serdes.Long", ">q")
_FLOAT = _numbers("Serdes.Float", ">f")
_DOUBLE = _numbers("Serdes.Double", ">d")


_OWN = {
    one.name: one for one in (_STRING, _BYTES, _JSON, _UUID, _BOOLEAN, _VOID, _SHORT, _INTEGER, _LONG, _FLOAT, _DOUBLE)
}


def _own(name: str) -> Serde:
    return _OWN[name]


def _is_bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError("it is no bool")
    return value


def _to_bool(data: bytes) -> bool:
    if data not in (b"\x00", b"\x01"):
        raise ValueError("a Boolean is one byte, 0 or 1")
    return data == b"\x01"


class Serdes:
    """Kafka's serdes by Kafka's names, and Json for values without a schema."""

    @staticmethod
    def String() -> Serde:
        return _STRING

    @staticmethod
    def Short() -> Serde:
        return _SHORT

    @staticmethod
    def Integer() -> Serde:
        return _INTEGER

    @staticmethod
    def Long() -> Serde:
        return _LONG

    @staticmethod
    def Float() -> Serde:
        return _FLOAT

    @staticmethod
    def Double() -> Serde:
        return _DOUBLE

    @staticmethod
    def Boolean() -> Serde:
        return _BOOLEAN

    @staticmethod
    def ByteArray() -> Serde:
        return _BYTES

    @staticmethod
    def Bytes() -> Serde:
        return _BYTES

    @staticmethod
    def UUID() -> Serde:
        return _UUID

    @staticmethod
    def Void() -> Serde:
        return _VOID

    @staticmethod
    def Json() -> Serde:
        return _JSON

    @staticmethod
    def serde_from(serialize: Callable[[Any], bytes], deserialize: Callable[[bytes], Any], name: str = "") -> Serde:
        """A serde of two functions."""
        return Serde(name or getattr(serialize, "__qualname__", "a serde"), serialize, deserialize)


_NAMES: dict[str, Callable[[], Serde]] = {
    name.lower(): getattr(Serdes, name)
    for name in (
        "String", "Short", "Integer", "Long", "Float", "Double", "Boolean", "ByteArray", "Bytes", "UUID", "Void", "Json"
    )
}  # fmt: skip


def serde_of(setting: Any, name: str) -> Serde:
    """From what a configuration holds: a Serde, a name such as `String`, or Kafka's class name."""
    if isinstance(setting, Serde):
        return setting
    if callable(setting):
        return serde_of(setting(), name)
    short = str(setting).rsplit("$", 1)[-1].rsplit(".", 1)[-1].removesuffix("Serde").lower()
    found = _NAMES.get(short)
    if found is None:
        raise StreamsException(f"{name}={setting} is no serde: give one of Serdes, or its name")
    return found()


class WindowedSerdes:
    """Windowed keys as Kafka writes them to topics: the key, then the start (time windows), or end
    and start (session windows)."""

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
    """What a table says when a key changes: its new value, and its old one where somebody
    downstream needs it. It is not the `latest` where a versioned table got a value that is older
    than the one it has."""

    __slots__ = ("latest", "new", "old")

    def __init__(self, new: Any, old: Any = None, latest: bool = True) -> None:
        self.new = new
        self.old = old
        self.latest = latest

    def __repr__(self) -> str:
        return f"({self.new!r}<-{self.old!r})"


def change_serde(inner: Serde) -> Serde:
    """Changes on their way through a repartition topic: the value and one byte, 1 for the new one,
    0 for the old; with both, 2, the length of the new one, and both."""

    def write(change: Change) -> bytes:
        new, old = inner.serialize(change.new), inner.serialize(change.old)
        if new is not None and old is not None:
            return struct.pack(">i", len(new)) + new + old + b"\x02"
        if new is not None:
            return new + b"\x01"
        if old is not None:
            return old + b"\x00"
        raise ValueError("a change with neither value")

    def read(data: bytes) -> Change:
        kind, rest = data[-1], data[:-1]
        if kind == 1:
            return Change(inner.deserialize(rest), None)
        if kind == 0:
            return Change(None, inner.deserialize(rest))
        size = struct.unpack(">i", rest[:4])[0]
        return Change(inner.deserialize(rest[4 : 4 + size]), inner.deserialize(rest[4 + size :]))

    return Serde(f"Change({inner.name})", write, read)
