"""Formatters of console-consumer (`--formatter`): Kafka's classes, or a Python class.

A formatter has `write(records)`, which returns the bytes to print, and may have `close()`. A custom
class has `configure(properties)` and `write_to(record, output)`, like Kafka's MessageFormatter.
`output` is a binary file.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from kavka.cli import schema_text
from kavka.cli.line_reader import is_true
from kavka.client.consumer.records import ConsumerRecord
from kavka.common.config import ConfigError

Properties = Mapping[str, str]

TIMESTAMP_TYPES = {0: b"CreateTime", 1: b"LogAppendTime"}


class Formatter(Protocol):
    def write(self, records: Iterable[ConsumerRecord]) -> bytes: ...


class DefaultFormatter:
    """Prints the fields of a record that the `print.*` properties select."""

    def __init__(self, properties: Properties) -> None:
        self._timestamp = is_true(properties, "print.timestamp")
        self._partition = is_true(properties, "print.partition")
        self._offset = is_true(properties, "print.offset")
        self._epoch = is_true(properties, "print.epoch")
        self._headers = is_true(properties, "print.headers")
        self._key = is_true(properties, "print.key")
        self._value = is_true(properties, "print.value", "true")
        self._separator = properties.get("key.separator", "\t").encode()
        self._line_end = properties.get("line.separator", "\n").encode()
        self._header_separator = properties.get("headers.separator", ",").encode()
        self._null = properties.get("null.literal", "null").encode()
        self._key_text = conversion("key.deserializer", properties)
        self._value_text = conversion("value.deserializer", properties)
        self._header_text = conversion("headers.deserializer", properties)
        other_fields = (self._timestamp, self._partition, self._offset, self._epoch, self._headers, self._key)
        self._is_plain = self._value and not any(other_fields) and self._value_text is None

    def write(self, records: Iterable[ConsumerRecord]) -> bytes:
        null, end = self._null, self._line_end
        if self._is_plain:
            lines = [null if record.value is None else record.value for record in records]
            lines.append(b"")
            return end.join(lines)
        return b"".join([self._line(record) for record in records])

    def _line(self, record: ConsumerRecord) -> bytes:
        parts = []
        if self._timestamp:
            timestamp_type = TIMESTAMP_TYPES.get(record.timestamp_type)
            parts.append(b"NO_TIMESTAMP" if timestamp_type is None else b"%s:%d" % (timestamp_type, record.timestamp))
        if self._partition:
            parts.append(b"Partition:%d" % record.partition)
        if self._offset:
            parts.append(b"Offset:%d" % record.offset)
        if self._epoch:
            epoch = record.leader_epoch
            parts.append(b"Epoch:%d" % epoch if epoch >= 0 else b"Epoch:NOT_PRESENT")
        if self._headers:
            parts.append(self._header_line(record) or b"NO_HEADERS")
        if self._key:
            parts.append(self._text(self._key_text, record, record.key))
        if self._value:
            parts.append(self._text(self._value_text, record, record.value))
        return self._separator.join(parts) + self._line_end if parts else b""

    def _header_line(self, record: ConsumerRecord) -> bytes:
        return self._header_separator.join(
            name.encode("utf-8", "surrogateescape") + b":" + self._text(self._header_text, record, value)
            for name, value in record.headers
        )

    def _text(self, convert: Text | None, record: ConsumerRecord, data: bytes | None) -> bytes:
        if data is None:
            return self._null
        return data if convert is None else convert(record.topic, data, record.headers)


class SchemaFormatter(DefaultFormatter):
    """Prints values with schemas of a registry as JSON. Keys are text unless `key.format` is
    set."""

    def __init__(self, format: str, properties: Properties) -> None:
        super().__init__(properties)
        if "value.deserializer" not in properties:
            self._value_text = schema_conversion(format, properties, is_key=False)
        if (of_keys := schema_text.key_format(properties)) is not None:
            self._key_text = schema_conversion(of_keys, properties, is_key=True)
        self._is_plain = False


class LoggingFormatter(DefaultFormatter):
    """Prints records, and also logs each of them."""

    def write(self, records: Iterable[ConsumerRecord]) -> bytes:
        import logging

        logger = logging.getLogger("kavka.cli.LoggingMessageFormatter")
        batch = list(records)
        for record in batch:
            timestamp_type = TIMESTAMP_TYPES.get(record.timestamp_type)
            timestamp = "" if timestamp_type is None else f"{timestamp_type.decode()}:{record.timestamp}, "
            key, value = (
                "null" if part is None else part.decode(errors="replace") for part in (record.key, record.value)
            )
            logger.info("%skey:%s, value:%s", timestamp, key, value)
        return super().write(batch)


class NoOpFormatter:
    """Prints nothing."""

    def __init__(self, properties: Properties) -> None:
        pass

    def write(self, records: Iterable[ConsumerRecord]) -> bytes:
        return b""


class InternalTopicFormatter:
    """Prints the records of an internal topic with these types as JSON objects, each followed by
    `line_end`."""

    def __init__(self, topic: str, record_types: Iterable[int], line_end: bytes) -> None:
        from kavka.records import internal_topics

        self._records = internal_topics
        all_types = getattr(internal_topics, topic)
        self._record_types = {record_type: all_types[record_type] for record_type in record_types}
        self._line_end = line_end

    def write(self, records: Iterable[ConsumerRecord]) -> bytes:
        return b"".join([self._object(record) for record in records])

    def _object(self, record: ConsumerRecord) -> bytes:
        if record.key is None:
            return b""
        data = self._records.record_to_json(self._record_types, record.key, record.value)
        return b"" if data is None else self._records.dumps(data).encode() + self._line_end


class CustomFormatter:
    """Adapts a custom formatter class."""

    def __init__(self, formatter: Any) -> None:
        self._formatter = formatter

    def write(self, records: Iterable[ConsumerRecord]) -> bytes:
        output = io.BytesIO()
        for record in records:
            self._formatter.write_to(record, output)
        return output.getvalue()

    def close(self) -> None:
        close = getattr(self._formatter, "close", None)
        if callable(close):
            close()


DEFAULT = "org.apache.kafka.tools.consumer.DefaultMessageFormatter"
KAFKA_NAMES = (
    "DefaultMessageFormatter", "LoggingMessageFormatter", "NoOpMessageFormatter", "OffsetsMessageFormatter",
    "GroupMetadataMessageFormatter", "TransactionLogMessageFormatter",
)  # fmt: skip
VALID_NAMES = (*KAFKA_NAMES, "avro", "json-schema", "protobuf")
_OLD_PACKAGES = ("kafka.tools.", "kafka.coordinator.")


def make_formatter(name: str, properties: Properties, *, line_end: bytes) -> Formatter:
    """Return the formatter with this class name. Raise ConfigError if there is none.

    The formatters of internal topics print `line_end` after each object.
    """
    if name in schema_text.NAMES:
        return SchemaFormatter(schema_text.NAMES[name], properties)
    short_name = name.rpartition(".")[2].rpartition("$")[2]
    if name != short_name and not name.startswith(("org.apache.kafka.", *_OLD_PACKAGES)):
        from kavka.client import classes

        formatter = classes.make("formatter", name, {}, "a formatter", dict(properties))
        if not callable(getattr(formatter, "write_to", None)):
            raise ConfigError("formatter", f"{name} has no method write_to(record, output)")
        return CustomFormatter(formatter)
    if short_name == "OffsetsMessageFormatter":
        return InternalTopicFormatter("OFFSET_TOPIC", (0, 1), line_end)
    if short_name == "GroupMetadataMessageFormatter":
        return InternalTopicFormatter("OFFSET_TOPIC", (2,), line_end)
    if short_name == "TransactionLogMessageFormatter":
        return InternalTopicFormatter("TRANSACTION_TOPIC", (0,), line_end)
    formatters: dict[str, Callable[[Properties], Formatter]] = {
        "DefaultMessageFormatter": DefaultFormatter,
        "LoggingMessageFormatter": LoggingFormatter,
        "NoOpMessageFormatter": NoOpFormatter,
    }
    if short_name not in formatters:
        raise ConfigError("formatter", f"unknown formatter '{name}'; valid formatters are {', '.join(VALID_NAMES)}")
    return formatters[short_name](properties)


def current_name(name: str) -> str | None:
    """Return the current class name of a formatter if `name` is deprecated, else None."""
    short_name = name.rpartition(".")[2].rpartition("$")[2]
    if name.startswith(_OLD_PACKAGES) and short_name in KAFKA_NAMES:
        return f"org.apache.kafka.tools.consumer.{short_name}"
    return None


Text = Callable[[str, bytes, Any], bytes]
"""Converts (topic, data, headers) to the bytes to print."""


def conversion(name: str, properties: Properties) -> Text | None:
    """Return a function that converts data to the bytes to print; None to print the data unchanged.

    The deserializer's settings are the properties that start with `name` and a dot.
    """
    class_name = properties.get(name)
    if class_name is None:
        return None
    from kavka.cli.java_text import bytes_text, value_text
    from kavka.client.serializers import StringSerializer, make_deserializer

    if class_name.endswith(".BytesDeserializer"):
        return lambda topic, data, headers: bytes_text(data).encode()
    settings = {key.removeprefix(f"{name}."): value for key, value in properties.items() if key.startswith(f"{name}.")}
    deserializer, convert = make_deserializer(name, class_name, settings)
    if convert is None:
        return None
    if type(deserializer) is StringSerializer and deserializer.encoding.lower().replace("-", "") == "utf8":
        # As in Java, invalid UTF-8 becomes the replacement character.
        return lambda topic, data, headers: data.decode(errors="replace").encode()
    return lambda topic, data, headers: value_text(convert(topic, data, headers)).encode("utf-8", "surrogateescape")


def schema_conversion(format: str, properties: Properties, is_key: bool) -> Text:
    """Return a function that converts data with a schema of a registry to JSON."""
    serializer = schema_text.reading_serializer(format, properties, is_key)
    return lambda topic, data, headers: serializer.to_text(topic, data).encode("utf-8", "surrogateescape")
