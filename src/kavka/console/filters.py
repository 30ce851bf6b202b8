"""Which messages are wanted, and a message with what its bytes mean.

Tests that need only the bytes run first: most messages of a search are passed over without being decoded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kavka.client.consumer._decode import ConsumerRecord
from kavka.console.decoders import INTERNAL, NULL, Decoded, Decoder, decode_auto, decode_internal, make_decoder
from kavka.console.expressions import BadExpression, compile_expression

# What these decoders show is the bytes themselves, as UTF-8: there a text can be looked for without decoding.
PLAIN = frozenset({"auto", "text", "json"})


class Filter:
    """`key` and `text` are parts of what is shown of the key, or of key, value and headers; `header` is a name, or
    name=part of its value; `path` a JSON path into the value, alone or compared (`$.user.id == 42`); `expression` see
    expressions.py. All that are given must fit. Raises BadExpression, BadSchema."""

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
                wanted = key.encode("utf-8", "surrogatepass")
                self._raw.append(lambda r: r.key is not None and wanted in r.key)
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

    def match(self, record: ConsumerRecord) -> Message | None:
        for test in self._raw:
            if not test(record):
                return None
        message = Message(record, self)
        for wanted in self._tests:
            if not wanted(message):
                return None
        return message


class Message:
    """A record, decoded when somebody asks."""

    __slots__ = ("_filter", "_headers", "_key", "_value", "record")

    def __init__(self, record: ConsumerRecord, filter: Filter) -> None:
        self.record = record
        self._filter = filter
        self._key: Decoded | None = None
        self._value: Decoded | None = None
        self._headers: list[tuple[str, Decoded]] | None = None

    @property
    def key(self) -> Decoded:
        found = self._key
        if found is None:
            if self._filter.internal and self._filter.key_is_auto:
                found = decode_internal(self.record.topic, self.record.key, self.record.value)[0]
            else:
                found = NULL if self.record.key is None else self._filter.decode_key(self.record.key)
            self._key = found
        return found

    @property
    def value(self) -> Decoded:
        found = self._value
        if found is None:
            if self._filter.internal and self._filter.value_is_auto:
                found = decode_internal(self.record.topic, self.record.key, self.record.value)[1]
            else:
                found = NULL if self.record.value is None else self._filter.decode_value(self.record.value)
            self._value = found
        return found

    @property
    def headers(self) -> list[tuple[str, Decoded]]:
        found = self._headers
        if found is None:
            found = self._headers = [
                (
                    name.encode("utf-8", "surrogateescape").decode("utf-8", "replace"),
                    NULL if v is None else decode_auto(v),
                )
                for name, v in self.record.headers
            ]
        return found

    @property
    def size(self) -> int:
        return max(0, self.record.serialized_key_size) + max(0, self.record.serialized_value_size)

    # --- for expressions

    def text_of(self, name: str) -> str | None:
        found = self.key if name == "key" else self.value
        return None if found is NULL else found.text

    def data_of(self, name: str) -> Any:
        match name:
            case "key":
                return self.key.data
            case "value":
                return self.value.data
            case "headers":
                return {header: None if found is NULL else found.text for header, found in self.headers}
            case "size":
                return self.size
        return getattr(self.record, name)


def clean(name: str) -> str:
    """The name of a header, which may not be UTF-8."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _any_part(wanted: bytes) -> Callable[[ConsumerRecord], bool]:
    def test(record: ConsumerRecord) -> bool:
        value, key = record.value, record.key
        if value is not None and wanted in value:
            return True
        if key is not None and wanted in key:
            return True
        return any(found is not None and wanted in found for _, found in record.headers)

    return test


def _in_headers(text: str, message: Message) -> bool:
    return any(text in found.text for _, found in message.headers if found is not NULL)


def _header_test(text: str) -> Callable[[ConsumerRecord], bool]:
    name, equals, part = (piece.strip() for piece in text.partition("="))
    if not name:
        raise BadExpression("the name of a header is expected, or name=value")
    if not equals:
        return lambda record: any(found == name for found, _ in record.headers)
    wanted = part.encode("utf-8", "surrogatepass")
    return lambda record: any(
        found == name and value is not None and wanted in value for found, value in record.headers
    )


def _value_path(text: str) -> str:
    """`$.a.b` and what follows, as an expression."""
    shown = text.strip()
    if shown.startswith("$"):
        return "value" + shown[1:]
    return f"value{shown}" if shown.startswith("[") else f"value.{shown}"
