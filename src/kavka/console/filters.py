"""The filters of a message search, and messages that are decoded on demand.

Filters that need only the bytes run first, so most messages of a search are never decoded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from kavka.client.consumer.records import ConsumerRecord
from kavka.common.errors import KafkaError
from kavka.console.decoders import INTERNAL, NULL, Decoded, Decoder, decode_hex, decode_internal, make_decoder
from kavka.console.expressions import BadExpression, compile_expression
from kavka.console.limits import Budget, TooLarge
from kavka.console.masks import MASKED, NO_MASKS, Masks

# The text of these decoders is the bytes as UTF-8, so a search for a text needs no decoding.
PLAIN_DECODERS = frozenset({"auto", "text", "json"})
MAX_HEADERS = 1000
"""The maximum number of decoded headers."""
decode_header = make_decoder("auto")


class Filter:
    """The tests of a search. A message must pass all of them. Raises BadExpression and BadSchema.

    `key` is a part of the displayed key, `text` a part of the displayed key, value or headers.
    `header` is a name, or name=part of its value. `path` is a JSON path into the value, alone or in
    a comparison (`$.user.id == 42`). `expressions.py` describes `expression`.
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
        masks: Masks = NO_MASKS,
    ) -> None:
        self.topic = topic
        self.masks = masks
        self.value_is_self_describing = not value_schema.strip() and value_decoder in ("auto", "json", "avro")
        self.is_internal = topic in INTERNAL and "auto" in (key_decoder, value_decoder)
        self.key_is_auto = key_decoder == "auto"
        self.value_is_auto = value_decoder == "auto"
        self.decode_key: Decoder = make_decoder(key_decoder, key_schema)
        self.decode_value: Decoder = make_decoder(value_decoder, value_schema)
        self._record_tests: list[Callable[[ConsumerRecord], bool]] = []
        self._message_tests: list[Callable[[Message], bool]] = []
        # The bytes of a masked message must not be searched.
        is_plain_key = key_decoder in PLAIN_DECODERS and not self.is_internal and not masks
        if key:
            if is_plain_key:
                key_bytes = key.encode("utf-8", "surrogatepass")
                self._record_tests.append(lambda r: r.key is not None and key_bytes in r.key)
            else:
                self._message_tests.append(lambda m: m.record.key is not None and key in m.key.text)
        if text:
            if is_plain_key and value_decoder in PLAIN_DECODERS:
                self._record_tests.append(_text_test(text.encode("utf-8", "surrogatepass")))
            else:
                self._message_tests.append(
                    lambda m: text in m.key.text or text in m.value.text or _is_in_headers(text, m)
                )
        if header:
            if masks.headers:
                self._message_tests.append(_masked_header_test(header))
            else:
                self._record_tests.append(_header_test(header))
        if path:
            self._message_tests.append(compile_expression(_value_path(path)))
        if expression:
            self._message_tests.append(compile_expression(expression))
        self.matches_all = not self._record_tests and not self._message_tests
        self.undecided_count = 0
        """The number of messages whose tests failed with an error."""
        self.first_undecided = ""
        """The partition, the offset and the error of the first such message."""

    def match(self, record: ConsumerRecord) -> Message | None:
        """Return the message if it matches, otherwise None. Decoded values are dropped, because a
        search holds many messages."""
        try:
            for record_test in self._record_tests:
                if not record_test(record):
                    return None
            message = Message(record, self)
            for message_test in self._message_tests:
                if not message_test(message):
                    return None
        except (TooLarge, KafkaError) as error:
            # TooLarge: the filters exceeded the budget. KafkaError: the headers are malformed.
            self.undecided_count += 1
            if not self.first_undecided:
                self.first_undecided = f"partition {record.partition}, offset {record.offset}: {error}"
            return None
        if self._message_tests:
            message.drop_decoded()
        return message


class Header(NamedTuple):
    """A header with its decoded value and its bytes."""

    name: str
    value: Decoded
    data: bytes | None


class Message:
    """A record, decoded on demand. Key, value and headers share one budget. The decoded values can
    be much larger than the record."""

    __slots__ = ("_filter", "_headers", "_key", "_value", "budget", "record")

    def __init__(self, record: ConsumerRecord, filter: Filter) -> None:
        self.record = record
        self._filter = filter
        self.drop_decoded()

    def drop_decoded(self) -> None:
        """Drop the decoded values and start a new budget."""
        self.budget = Budget()
        self._key: Decoded | None = None
        self._value: Decoded | None = None
        self._headers: list[Header] | None = None

    @property
    def key(self) -> Decoded:
        if self._key is None:
            decoded = self._decoded(0, self.record.key, self._filter.key_is_auto, self._filter.decode_key)
            self._key = self._filter.masks.mask_key(decoded)
        return self._key

    @property
    def value(self) -> Decoded:
        if self._value is None:
            decoded = self._decoded(1, self.record.value, self._filter.value_is_auto, self._filter.decode_value)
            self._value = self._filter.masks.mask_value(decoded, self._filter.value_is_self_describing)
        return self._value

    def _decoded(self, index: int, data: bytes | None, is_auto: bool, decoder: Decoder) -> Decoded:
        """Decode the key (index 0) or the value (index 1)."""
        if self._filter.is_internal and is_auto:
            return decode_internal(self.record.topic, self.record.key, self.record.value, self.budget)[index]
        return NULL if data is None else decoder(data, self.budget)

    @property
    def headers(self) -> list[Header]:
        """The first MAX_HEADERS headers. Malformed headers are one header without a name, with the
        bytes of all headers."""
        if self._headers is None:
            try:
                headers = self.record.headers
            except KafkaError as error:
                raw = bytes(self.record._headers)
                if self._filter.masks.headers:
                    raw = b""
                self._headers = [Header("", decode_hex(raw, f"the headers are malformed: {error.message}"), raw)]
                return self._headers
            self._headers = [self._header(name, data) for name, data in headers[:MAX_HEADERS]]
            if len(headers) > MAX_HEADERS:
                problem = f"{len(headers) - MAX_HEADERS} more headers are not shown"
                self._headers.append(Header("…", decode_hex(b"", problem), b""))
        return self._headers

    def _header(self, name: str, data: bytes | None) -> Header:
        decoded = NULL if data is None else decode_header(data, self.budget)
        masked = self._filter.masks.mask_header(name, decoded)
        return Header(displayed_name(name), masked, b"" if masked is MASKED else data)

    @property
    def key_data(self) -> bytes | None:
        """The bytes of the key, None if it is null, b"" if it is masked."""
        return b"" if self.key is MASKED else self.record.key

    @property
    def value_data(self) -> bytes | None:
        """The bytes of the value, None if it is null, b"" if a part of it is masked."""
        is_masked = self.record.value is not None and self._filter.masks.of_value
        return b"" if is_masked else self.record.value

    @property
    def size(self) -> int:
        return max(0, self.record.serialized_key_size) + max(0, self.record.serialized_value_size)

    # --- for expressions

    def text_of(self, name: str) -> str | None:
        decoded = self.key if name == "key" else self.value
        return None if decoded is NULL else decoded.text

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


def displayed_name(name: str) -> str:
    """Return the name of a header as it is displayed. The name may not be valid UTF-8."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _text_test(text: bytes) -> Callable[[ConsumerRecord], bool]:
    def test(record: ConsumerRecord) -> bool:
        value, key = record.value, record.key
        if value is not None and text in value:
            return True
        if key is not None and text in key:
            return True
        return any(data is not None and text in data for _, data in record.headers)

    return test


def _is_in_headers(text: str, message: Message) -> bool:
    return any(text in header.value.text for header in message.headers if header.value is not NULL)


def _header_test(text: str) -> Callable[[ConsumerRecord], bool]:
    name, equals, part = (piece.strip() for piece in text.partition("="))
    if not name:
        raise BadExpression("expected the name of a header, or name=value")
    if not equals:
        return lambda record: any(header == name for header, _ in record.headers)
    value_part = part.encode("utf-8", "surrogatepass")
    return lambda record: any(
        header == name and value is not None and value_part in value for header, value in record.headers
    )


def _masked_header_test(text: str) -> Callable[[Message], bool]:
    name, equals, part = (piece.strip() for piece in text.partition("="))
    if not name:
        raise BadExpression("expected the name of a header, or name=value")
    return lambda message: any(
        header.name == name and (not equals or (header.value is not NULL and part in header.value.text))
        for header in message.headers
    )


def _value_path(text: str) -> str:
    """Return the expression for a JSON path with an optional comparison, such as `$.a.b == 1`."""
    path = text.strip()
    if path.startswith("$"):
        return "value" + path[1:]
    return f"value{path}" if path.startswith("[") else f"value.{path}"
