"""Filters of a message search, and messages that are decoded on demand.

Tests that need only the bytes run first, so most messages of a search are never decoded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from kavka.client.consumer.records import ConsumerRecord
from kavka.common.errors import KafkaError
from kavka.console.decoders import INTERNAL, NULL, Decoded, Decoder, decode_hex, decode_internal, make_decoder
from kavka.console.expressions import BadExpression, compile_expression
from kavka.console.limits import Budget, TooLarge

# These decoders show the bytes as UTF-8, so a text can be searched for without decoding.
PLAIN = frozenset({"auto", "text", "json"})
MAX_HEADERS = 1000
"""The maximum number of headers that are decoded and shown."""
decode_header = make_decoder("auto")


class Filter:
    """The tests of a search; a message must pass all of them. Raises BadExpression, BadSchema.

    `key` is a part of the displayed key, `text` a part of the displayed key, value or headers.
    `header` is a name, or name=part of its value. `path` is a JSON path into the value, alone or
    compared (`$.user.id == 42`). `expression`: see expressions.py.
    """

    def __init__(
        self,
        topic: str,
        *,
        key: str = "",
        text: str = "",
        header: str = "",
        path: str = "",
        expression: str = "",
        key_decoder: str = "auto",
        value_decoder: str = "auto",
        key_schema: str = "",
        value_schema: str = "",
    ) -> None:
        self.topic = topic
        self.internal = topic in INTERNAL and "auto" in (key_decoder, value_decoder)
        self.key_is_auto = key_decoder == "auto"
        self.value_is_auto = value_decoder == "auto"
        self.decode_key: Decoder = make_decoder(key_decoder, key_schema)
        self.decode_value: Decoder = make_decoder(value_decoder, value_schema)
        self._raw: list[Callable[[ConsumerRecord], bool]] = []
        self._tests: list[Callable[[Message], bool]] = []
        plain_key = key_decoder in PLAIN and not self.internal
        plain = plain_key and value_decoder in PLAIN
        if key:
            if plain_key:
                part = key.encode("utf-8", "surrogatepass")
                self._raw.append(lambda r: r.key is not None and part in r.key)
            else:
                self._tests.append(lambda m: m.record.key is not None and key in m.key.text)
        if text:
            if plain:
                self._raw.append(_any_part(text.encode("utf-8", "surrogatepass")))
            else:
                self._tests.append(lambda m: text in m.key.text or text in m.value.text or _in_headers(text, m))
        if header:
            self._raw.append(_header_test(header))
        if path:
            self._tests.append(compile_expression(_value_path(path)))
        if expression:
            self._tests.append(compile_expression(expression))
        self.takes_all = not self._raw and not self._tests
        self.undecided = 0
        """The number of messages that exceeded their budget, so that it is unknown whether they
        match."""
        self.first_undecided = ""

    def match(self, record: ConsumerRecord) -> Message | None:
        """The message, if it matches. Its decoded parts are dropped, because a search holds many
        messages."""
        try:
            for fits_raw in self._raw:
                if not fits_raw(record):
                    return None
            message = Message(record, self)
            for fits in self._tests:
                if not fits(message):
                    return None
        except (TooLarge, KafkaError) as error:
            # TooLarge: the filters exceeded the budget. KafkaError: the headers are malformed.
            self.undecided += 1
            if not self.first_undecided:
                self.first_undecided = f"partition {record.partition}, offset {record.offset}: {error}"
            return None
        if self._tests:
            message.forget()
        return message


class Header(NamedTuple):
    """A header with its decoded value and its bytes."""

    name: str
    value: Decoded
    data: bytes | None


class Message:
    """A record, decoded on demand. All parts share one budget. `forget` drops the decoded parts,
    which can be much larger than the record."""

    __slots__ = ("_filter", "_headers", "_key", "_value", "budget", "record")

    def __init__(self, record: ConsumerRecord, filter: Filter) -> None:
        self.record = record
        self._filter = filter
        self.forget()

    def forget(self) -> None:
        self.budget = Budget()
        self._key: Decoded | None = None
        self._value: Decoded | None = None
        self._headers: list[Header] | None = None

    @property
    def key(self) -> Decoded:
        if self._key is None:
            self._key = self._decoded(0, self.record.key, self._filter.key_is_auto, self._filter.decode_key)
        return self._key

    @property
    def value(self) -> Decoded:
        if self._value is None:
            self._value = self._decoded(1, self.record.value, self._filter.value_is_auto, self._filter.decode_value)
        return self._value

    def _decoded(self, part: int, data: bytes | None, is_auto: bool, decoder: Decoder) -> Decoded:
        if self._filter.internal and is_auto:
            return decode_internal(self.record.topic, self.record.key, self.record.value, self.budget)[part]
        return NULL if data is None else decoder(data, self.budget)

    @property
    def headers(self) -> list[Header]:
        """At most MAX_HEADERS. Malformed headers are one header without a name, with their
        bytes."""
        if self._headers is None:
            try:
                headers = self.record.headers
            except KafkaError as error:
                raw = bytes(self.record._headers)
                self._headers = [Header("", decode_hex(raw, f"the headers cannot be read: {error.message}"), raw)]
                return self._headers
            self._headers = [
                Header(clean(name), NULL if data is None else decode_header(data, self.budget), data)
                for name, data in headers[:MAX_HEADERS]
            ]
            if len(headers) > MAX_HEADERS:
                problem = f"{len(headers) - MAX_HEADERS} more headers are not shown"
                self._headers.append(Header("…", decode_hex(b"", problem), b""))
        return self._headers

    @property
    def size(self) -> int:
        return max(0, self.record.serialized_key_size) + max(0, self.record.serialized_value_size)

    # --- for expressions

    def text_of(self, name: str) -> str | None:
        part = self.key if name == "key" else self.value
        return None if part is NULL else part.text

    def data_of(self, name: str) -> Any:
        match name:
            case "key":
                return self.key.data
            case "value":
                return self.value.data
            case "headers":
                return {h.name: None if h.value is NULL else h.value.text for h in self.headers}
            case "size":
                return self.size
        return getattr(self.record, name)


def clean(name: str) -> str:
    """The displayed name of a header, which may not be valid UTF-8."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _any_part(part: bytes) -> Callable[[ConsumerRecord], bool]:
    def test(record: ConsumerRecord) -> bool:
        value, key = record.value, record.key
        if value is not None and part in value:
            return True
        if key is not None and part in key:
            return True
        return any(data is not None and part in data for _, data in record.headers)

    return test


def _in_headers(text: str, message: Message) -> bool:
    return any(text in header.value.text for header in message.headers if header.value is not NULL)


def _header_test(text: str) -> Callable[[ConsumerRecord], bool]:
    name, equals, part = (piece.strip() for piece in text.partition("="))
    if not name:
        raise BadExpression("the name of a header is expected, or name=value")
    if not equals:
        return lambda record: any(header == name for header, _ in record.headers)
    value_part = part.encode("utf-8", "surrogatepass")
    return lambda record: any(
        header == name and value is not None and value_part in value for header, value in record.headers
    )


def _value_path(text: str) -> str:
    """The expression of a JSON path and its comparison, such as `$.a.b == 1`."""
    shown = text.strip()
    if shown.startswith("$"):
        return "value" + shown[1:]
    return f"value{shown}" if shown.startswith("[") else f"value.{shown}"
