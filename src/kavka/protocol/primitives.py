"""The primitive types of Kafka's wire format, and the base classes of the generated messages.

The generated codecs (protocol/messages) inline the common cases. They call this module for rare
cases: varints of more than one byte, unknown tagged fields, errors. For any input a decoder returns
a message or raises `ProtocolError`. It never allocates more than a fixed multiple of the input,
because it compares every length and count with the remaining bytes before it allocates memory.

An element needs a few bytes on the wire and about a hundred bytes in memory. `decode_bounded`
therefore counts the array elements and tagged fields during decoding, and fails at a limit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from struct import Struct
from struct import error as StructError
from typing import Any, ClassVar, NoReturn, Self, TypeAlias, TypeVar
from uuid import UUID, SafeUUID

Buffer: TypeAlias = bytes | bytearray | memoryview
Decoder: TypeAlias = Callable[[Buffer, int], tuple[Any, int]]
Encoder: TypeAlias = Callable[[Any, list[Any]], None]

MAX_STRING_LENGTH = 0x7FFF
# The maximum length of an error message in characters. Error messages can contain client input, so
# longer messages are truncated when they are encoded.
MAX_ERROR_MESSAGE_LENGTH = 1000

ZERO_UUID = UUID(int=0)
# The default of list arguments in generated constructors, replaced by a new empty list.
EMPTY: Any = ()
# Unsigned varints of one byte, by value.
UVARINTS = tuple(bytes((n,)) for n in range(128))


class ProtocolError(ValueError):
    """Bytes that violate the schema, a value that the version cannot encode, or an unknown
    version."""


class TooManyElementsError(ProtocolError):
    """A message with more elements than the limit."""


class Message:
    """The base of the generated classes. The slots are the fields. Messages are equal if all their
    fields are equal."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, type(self)) and not isinstance(self, type(other)):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self._field_names())

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={_brief(getattr(self, name))}" for name in self._field_names())
        return f"{type(self).__name__}({fields})"

    @classmethod
    def _field_names(cls) -> Sequence[str]:
        return cls.__slots__


class TopMessage(Message):
    """A message that is encoded by itself: a request, a response, or data embedded in records."""

    __slots__ = ()

    API_KEY: ClassVar[int | None]
    MIN_VERSION: ClassVar[int]
    MAX_VERSION: ClassVar[int]
    FLEXIBLE_FROM: ClassVar[int | None]
    _DECODERS: ClassVar[dict[int, Decoder]]
    _ENCODERS: ClassVar[dict[int, Encoder]]

    @classmethod
    def decode(cls, buf: Buffer, pos: int, version: int) -> tuple[Self, int]:
        """Return the message at `pos`, and the position after the message. Further bytes are
        ignored. Raises ProtocolError."""
        return cls.decoder(version)(buf, pos)

    @classmethod
    def decoder(cls, version: int) -> Callable[[Buffer, int], tuple[Self, int]]:
        try:
            return cls._DECODERS[version]
        except KeyError:
            raise ProtocolError(f"{cls.__name__} has no version {version}") from None

    def encode(self, out: list[Any], version: int) -> None:
        """Append the encoded message in pieces. A value of type records is appended without a copy.

        After a ProtocolError, `out` may contain an incomplete message.
        """
        self.encoder(version)(self, out)

    @classmethod
    def encoder(cls, version: int) -> Encoder:
        try:
            return cls._ENCODERS[version]
        except KeyError:
            raise ProtocolError(f"{cls.__name__} has no version {version}") from None

    def to_bytes(self, version: int) -> bytes:
        out: list[Any] = []
        self.encode(out, version)
        return b"".join(out)


_M = TypeVar("_M", bound=Message)


def _brief(value: object) -> str:
    """Return a short form for logs, without the content of records."""
    if isinstance(value, (bytes, memoryview)) and len(value) > 32:
        return f"<{len(value)} bytes>"
    return repr(value)


def shared_default(cls: type[_M]) -> _M:
    """Return a read-only object that is the default of all fields of this struct type."""
    names = cls.__slots__
    frozen = type(
        cls.__name__,
        (cls,),
        {"__slots__": (), "__setattr__": _refuse_to_set, "_field_names": classmethod(lambda _cls: names)},
    )
    default = cls()
    default.__class__ = frozen
    return default


def _refuse_to_set(_self: object, name: str, _value: object) -> NoReturn:
    raise AttributeError(f"cannot set {name} of a shared default: assign a new object to the field instead")


# --- errors, created here to keep the generated code short

DECODE_ERRORS = (StructError, IndexError, UnicodeDecodeError, ProtocolError)
ENCODE_ERRORS = (StructError, AttributeError, TypeError, UnicodeEncodeError, ProtocolError)


def malformed(message: str, error: Exception) -> ProtocolError:
    return ProtocolError(f"malformed {message}: {error}")


def not_encodable(message: str, error: Exception) -> ProtocolError:
    return ProtocolError(f"cannot encode {message}: {error}")


def truncated(field: str, needed: int, remaining: int) -> ProtocolError:
    return ProtocolError(f"{field} needs {needed} bytes, {max(remaining, 0)} remain")


def null_field(field: str) -> ProtocolError:
    return ProtocolError(f"{field} is null, which this version does not allow")


def bad_tag(field: str) -> ProtocolError:
    return ProtocolError(f"tagged field {field} does not have the announced size")


def not_in_version(field: str) -> ProtocolError:
    return ProtocolError(f"{field} is set, but is not part of this version")


# --- the elements of a message

UNLIMITED = 1 << 62
EXHAUSTED = -1
_R = TypeVar("_R")


# The number of elements that the current call of `decode_bounded` may still decode. Clients decode
# without a limit.
_remaining: ContextVar[int] = ContextVar("remaining_elements", default=UNLIMITED)


def take_elements(count: int) -> None:
    """Count array elements or tagged fields. The caller does not count an array of one element, but
    counts the arrays inside the element. Raises ProtocolError at the limit of `decode_bounded`."""
    remaining = _remaining.get() - count
    if remaining < 0:
        _remaining.set(EXHAUSTED)
        raise ProtocolError("too many elements")
    _remaining.set(remaining)


def decode_bounded(max_elements: int, decode: Callable[..., _R], *args: Any) -> _R:
    """Return the result of `decode`. Raises TooManyElementsError if the message has more than
    `max_elements` elements."""
    _remaining.set(max_elements)
    try:
        return decode(*args)
    except ProtocolError:
        if _remaining.get() == EXHAUSTED:
            raise TooManyElementsError(f"the message has more than {max_elements} elements") from None
        raise
    finally:
        _remaining.set(UNLIMITED)


# --- varints


def read_uvarint(buf: Buffer, pos: int) -> tuple[int, int]:
    value = buf[pos]
    if value < 128:
        return value, pos + 1
    return long_uvarint(buf, pos + 1, value)


def long_uvarint(buf: Buffer, pos: int, first: int) -> tuple[int, int]:
    """Return the value of an unsigned varint and the position after it. Its `first` byte is 128 or
    more, and `pos` is the position after that byte."""
    value = first & 0x7F
    for shift in (7, 14, 21, 28):
        byte = buf[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 128:
            return value, pos
    raise ProtocolError("a varint is longer than 5 bytes")


def uvarint(value: int) -> bytes:
    if value < 128:
        return UVARINTS[value]
    out = bytearray()
    while value >= 128:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def long_string_length(buf: Buffer, pos: int, first: int) -> tuple[int, int]:
    """Return as `long_uvarint` the length of a compact string plus one. Raises ProtocolError if the
    string is too long."""
    value, pos = long_uvarint(buf, pos, first)
    if value > MAX_STRING_LENGTH + 1:
        raise ProtocolError(f"a string has {value - 1} bytes, the maximum is {MAX_STRING_LENGTH}")
    return value, pos


def long_string_prefix(length_plus_one: int) -> bytes:
    if length_plus_one > MAX_STRING_LENGTH + 1:
        raise ProtocolError(f"a string has {length_plus_one - 1} bytes, the maximum is {MAX_STRING_LENGTH}")
    return uvarint(length_plus_one)


# --- strings: int16 length, -1 for null; compact: varint of the length plus one, 0 for null

_unpack_int16 = Struct(">h").unpack_from
_pack_int16 = Struct(">h").pack
_unpack_int32 = Struct(">i").unpack_from
_pack_int32 = Struct(">i").pack
_NULL_16 = b"\xff\xff"
_NULL_32 = b"\xff\xff\xff\xff"
_COMPACT_NULL = b"\x00"


def read_nullable_string(buf: Buffer, pos: int) -> tuple[str | None, int]:
    (length,) = _unpack_int16(buf, pos)
    pos += 2
    if length < 0:
        return None, pos
    end = pos + length
    if end > len(buf):
        raise truncated("a string", length, len(buf) - pos)
    return str(buf[pos:end], "utf-8"), end


def read_string(buf: Buffer, pos: int) -> tuple[str, int]:
    (length,) = _unpack_int16(buf, pos)
    pos += 2
    if length < 0:
        raise null_field("a string")
    end = pos + length
    if end > len(buf):
        raise truncated("a string", length, len(buf) - pos)
    return str(buf[pos:end], "utf-8"), end


def read_compact_nullable_string(buf: Buffer, pos: int) -> tuple[str | None, int]:
    length = buf[pos]
    pos += 1
    if length > 127:
        length, pos = long_string_length(buf, pos, length)
    if length == 0:
        return None, pos
    end = pos + length - 1
    if end > len(buf):
        raise truncated("a string", length - 1, len(buf) - pos)
    return str(buf[pos:end], "utf-8"), end


def read_compact_string(buf: Buffer, pos: int) -> tuple[str, int]:
    length = buf[pos]
    pos += 1
    if length > 127:
        length, pos = long_string_length(buf, pos, length)
    if length == 0:
        raise null_field("a string")
    end = pos + length - 1
    if end > len(buf):
        raise truncated("a string", length - 1, len(buf) - pos)
    return str(buf[pos:end], "utf-8"), end


def pack_string(value: str) -> bytes:
    data = value.encode()
    return _pack_int16(len(data)) + data


def pack_nullable_string(value: str | None) -> bytes:
    return _NULL_16 if value is None else pack_string(value)


def pack_compact_string(value: str) -> bytes:
    data = value.encode()
    length = len(data) + 1
    return (UVARINTS[length] if length < 128 else long_string_prefix(length)) + data


def pack_compact_nullable_string(value: str | None) -> bytes:
    return _COMPACT_NULL if value is None else pack_compact_string(value)


def shortened(message: Any) -> Any:
    """Return the error message, truncated to the maximum length, or None."""
    if message is None or len(message) <= MAX_ERROR_MESSAGE_LENGTH:
        return message
    return message[: MAX_ERROR_MESSAGE_LENGTH - 3] + "..."


# --- bytes: as strings, but with an int32


def read_nullable_bytes(buf: Buffer, pos: int) -> tuple[bytes | None, int]:
    (length,) = _unpack_int32(buf, pos)
    pos += 4
    if length < 0:
        return None, pos
    end = pos + length
    if end > len(buf):
        raise truncated("a bytes field", length, len(buf) - pos)
    return bytes(buf[pos:end]), end


def read_bytes(buf: Buffer, pos: int) -> tuple[bytes, int]:
    value, pos = read_nullable_bytes(buf, pos)
    if value is None:
        raise null_field("a bytes field")
    return value, pos


def read_compact_nullable_bytes(buf: Buffer, pos: int) -> tuple[bytes | None, int]:
    length, pos = read_uvarint(buf, pos)
    if length == 0:
        return None, pos
    end = pos + length - 1
    if end > len(buf):
        raise truncated("a bytes field", length - 1, len(buf) - pos)
    return bytes(buf[pos:end]), end


def read_compact_bytes(buf: Buffer, pos: int) -> tuple[bytes, int]:
    value, pos = read_compact_nullable_bytes(buf, pos)
    if value is None:
        raise null_field("a bytes field")
    return value, pos


def pack_bytes(value: Buffer) -> bytes:
    return _pack_int32(len(value)) + value


def pack_nullable_bytes(value: Buffer | None) -> bytes:
    return _NULL_32 if value is None else pack_bytes(value)


def pack_compact_bytes(value: Buffer) -> bytes:
    return uvarint(len(value) + 1) + value


def pack_compact_nullable_bytes(value: Buffer | None) -> bytes:
    return _COMPACT_NULL if value is None else pack_compact_bytes(value)


# --- arrays: a count, then the elements. A count of elements that cannot fit into the remaining
# bytes is rejected before anything is allocated.


def _count(buf: Buffer, pos: int, min_element_size: int) -> tuple[int, int]:
    (count,) = _unpack_int32(buf, pos)
    pos += 4
    if min_element_size * count > len(buf) - pos:
        raise truncated("an array", min_element_size * count, len(buf) - pos)
    if count > 1:
        take_elements(count)
    return count, pos


def _compact_count(buf: Buffer, pos: int, min_element_size: int) -> tuple[int, int]:
    count = buf[pos]
    pos += 1
    if count > 127:
        count, pos = long_uvarint(buf, pos, count)
    count -= 1
    if min_element_size * count > len(buf) - pos:
        raise truncated("an array", min_element_size * count, len(buf) - pos)
    if count > 1:
        take_elements(count)
    return count, pos


def read_nullable_array(buf: Buffer, pos: int, min_element_size: int, read: Decoder) -> tuple[list[Any] | None, int]:
    count, pos = _count(buf, pos, min_element_size)
    return _elements(buf, pos, count, read) if count >= 0 else (None, pos)


def read_array(buf: Buffer, pos: int, min_element_size: int, read: Decoder) -> tuple[list[Any], int]:
    count, pos = _count(buf, pos, min_element_size)
    return _elements(buf, pos, count, read)


def read_compact_nullable_array(
    buf: Buffer, pos: int, min_element_size: int, read: Decoder
) -> tuple[list[Any] | None, int]:
    count, pos = _compact_count(buf, pos, min_element_size)
    return _elements(buf, pos, count, read) if count >= 0 else (None, pos)


def read_compact_array(buf: Buffer, pos: int, min_element_size: int, read: Decoder) -> tuple[list[Any], int]:
    count, pos = _compact_count(buf, pos, min_element_size)
    if count == 1:
        item, pos = read(buf, pos)
        return [item], pos
    return _elements(buf, pos, count, read)


def _elements(buf: Buffer, pos: int, count: int, read: Decoder) -> tuple[list[Any], int]:
    if count < 0:
        raise null_field("an array")
    items = []
    for _ in range(count):
        item, pos = read(buf, pos)
        items.append(item)
    return items, pos


def pack_count(values: Sequence[Any]) -> bytes:
    return _pack_int32(len(values))


def pack_nullable_count(values: Sequence[Any] | None) -> bytes:
    return _NULL_32 if values is None else _pack_int32(len(values))


def pack_compact_count(values: Sequence[Any]) -> bytes:
    return uvarint(len(values) + 1)


def pack_compact_nullable_count(values: Sequence[Any] | None) -> bytes:
    return _COMPACT_NULL if values is None else uvarint(len(values) + 1)


# --- arrays of numbers, by struct's format character

_MAX_PREPARED = 16
_PREPARED = {char: tuple(Struct(f">{n}{char}") for n in range(_MAX_PREPARED)) for char in "bhiq"}


def unpack_numbers(char: str, buf: Buffer, pos: int, count: int) -> list[int]:
    """Return `count` numbers. The caller must first check that the buffer has enough bytes."""
    codec = _PREPARED[char][count] if count < _MAX_PREPARED else Struct(f">{count}{char}")
    return list(codec.unpack_from(buf, pos))


def read_nullable_numbers(buf: Buffer, pos: int, size: int, char: str) -> tuple[list[int] | None, int]:
    count, pos = _count(buf, pos, size)
    return (unpack_numbers(char, buf, pos, count), pos + size * count) if count >= 0 else (None, pos)


def read_numbers(buf: Buffer, pos: int, size: int, char: str) -> tuple[list[int], int]:
    count, pos = _count(buf, pos, size)
    if count < 0:
        raise null_field("an array")
    return unpack_numbers(char, buf, pos, count), pos + size * count


def read_compact_nullable_numbers(buf: Buffer, pos: int, size: int, char: str) -> tuple[list[int] | None, int]:
    count, pos = _compact_count(buf, pos, size)
    return (unpack_numbers(char, buf, pos, count), pos + size * count) if count >= 0 else (None, pos)


def read_compact_numbers(buf: Buffer, pos: int, size: int, char: str) -> tuple[list[int], int]:
    count, pos = _compact_count(buf, pos, size)
    if count < 0:
        raise null_field("an array")
    return unpack_numbers(char, buf, pos, count), pos + size * count


def _pack_all(char: str, values: Sequence[int]) -> bytes:
    count = len(values)
    codec = _PREPARED[char][count] if count < _MAX_PREPARED else Struct(f">{count}{char}")
    return codec.pack(*values)


def pack_numbers(char: str, values: Sequence[int]) -> bytes:
    return _pack_int32(len(values)) + _pack_all(char, values)


def pack_nullable_numbers(char: str, values: Sequence[int] | None) -> bytes:
    return _NULL_32 if values is None else pack_numbers(char, values)


def pack_compact_numbers(char: str, values: Sequence[int]) -> bytes:
    return uvarint(len(values) + 1) + _pack_all(char, values)


def pack_compact_nullable_numbers(char: str, values: Sequence[int] | None) -> bytes:
    return _COMPACT_NULL if values is None else pack_compact_numbers(char, values)


# --- tagged fields: their number, then the tag, the size and the bytes of each field


def read_tag(buf: Buffer, pos: int) -> tuple[int, int, int]:
    """Return the tag, and the end and start positions of the bytes of its field."""
    tag, pos = read_uvarint(buf, pos)
    length, pos = read_uvarint(buf, pos)
    end = pos + length
    if end > len(buf):
        raise truncated("a tagged field", length, len(buf) - pos)
    return tag, end, pos


def skip_tags(buf: Buffer, pos: int) -> int:
    """Return the position after the tagged fields of a struct that has no known tagged fields in
    this version."""
    count = buf[pos]
    if count == 0:
        return pos + 1
    count, pos = read_uvarint(buf, pos)
    take_elements(count)
    for _ in range(count):
        _tag, pos, _start = read_tag(buf, pos)
    return pos


def tagged_field(tag: int, pieces: list[bytes]) -> bytes:
    data = b"".join(pieces)
    return uvarint(tag) + uvarint(len(data)) + data


def join_tagged_fields(fields: list[bytes]) -> bytes:
    return uvarint(len(fields)) + b"".join(fields)


# --- uuids

_new = object.__new__
_set_int = UUID.int.__set__  # type: ignore[attr-defined, misc]
_set_is_safe = UUID.is_safe.__set__  # type: ignore[attr-defined, misc]


def to_uuid(data: bytes) -> UUID:
    """Return UUID(bytes=data), in a third of the time: the checks of the constructor are
    omitted."""
    result = _new(UUID)
    _set_int(result, int.from_bytes(data, "big"))
    _set_is_safe(result, SafeUUID.unknown)
    return result
