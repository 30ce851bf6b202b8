"""`kavka console-producer` (`kafka-console-producer`): send lines of standard input as records."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from kavka.cli import schema_text
from kavka.cli.clients import (
    client_settings,
    exit_code,
    file_option,
    log_only_errors,
    parse_property_options,
    property_option,
    sigterm_as_interrupt,
    warn_if_unreachable,
)
from kavka.cli.connecting import BOOTSTRAP, BROKER_LIST, ZOOKEEPER, bootstrap_servers, read_properties
from kavka.cli.line_reader import Line, LineFormatError, LineReader, read_lines
from kavka.cli.options import Arguments, Command, Option
from kavka.cli.tool import ToolError, reason, run
from kavka.client.errors import SchemaRegistryError, SerializationError

if TYPE_CHECKING:
    from kavka.client.producer.producer import Producer
    from kavka.client.schemas.serializers import RegistrySerializer

DEFAULT_READER = "org.apache.kafka.tools.LineMessageReader"
KAFKA_READERS = (DEFAULT_READER, "kafka.tools.ConsoleProducer$LineMessageReader", "LineMessageReader")

# Option, setting, type, default, help. The default applies if neither the option nor a file sets a
# value.
MERGED_OPTIONS: tuple[tuple[str, str, type, Any, str], ...] = (
    ("batch-size", "batch.size", int, 16384, "Maximum batch size in bytes. A full batch is sent before --timeout."),
    ("timeout", "linger.ms", int, 1000, "Maximum time a record waits for more records, in milliseconds."),
    ("request-required-acks", "acks", str, "-1", "The required acknowledgements: 0, 1 or all."),
    ("request-timeout-ms", "request.timeout.ms", int, 1500, "Maximum time to wait for a response, in milliseconds."),
    ("message-send-max-retries", "retries", int, 3, "Maximum number of retries."),
    ("retry-backoff-ms", "retry.backoff.ms", int, 100, "Time to wait before a retry, in milliseconds."),
    ("socket-buffer-size", "send.buffer.bytes", int, 102400, "Send buffer of the socket, in bytes."),
    ("max-memory-bytes", "buffer.memory", int, 33554432, "Memory for records that are not sent yet, in bytes."),
    ("metadata-expiry-ms", "metadata.max.age.ms", int, 300000, "Maximum age of metadata, in milliseconds."),
    ("max-block-ms", "max.block.ms", int, 60000, "Maximum time to wait for metadata and memory, in milliseconds."),
)

COMMAND = Command(
    "console-producer",
    "Send each line of standard input as a record, until the end of the input (Ctrl-D at a terminal).",
    (
        BOOTSTRAP,
        Option("topic", "The topic to send to.", "topic", required=True, completes="topic"),
        property_option(
            "reader-property",
            "A property of the reader: parse.key, parse.headers, ignore.error (true or false), key.separator, "
            "headers.delimiter, headers.separator, headers.key.separator, null.marker; with a schema registry: "
            "schema.registry.url, basic.auth.user.info, value.schema, value.schema.file, value.schema.id, the same for "
            "keys, and key.format.",
        ),
        property_option("property", "Same as --reader-property."),
        file_option("reader-config", "A file with properties of the reader. --reader-property takes precedence."),
        Option(
            "line-reader",
            "The reader of the input: Kafka's LineMessageReader; avro, json-schema or protobuf for lines of JSON that "
            "are written with a schema of a registry; or a Python class with configure(properties) and "
            "read_records(input), which yields ProducerRecords.",
            "class",
            default=DEFAULT_READER,
            default_text="LineMessageReader",
        ),
        Option(
            "compression-codec",
            "none, gzip, snappy, lz4 or zstd. Without a value: gzip.",
            "codec",
            optional=True,
        ),
        Option("sync", "Wait for the acknowledgement of each record before sending the next."),
        *(
            Option(name, help, setting, value_type, default)
            for name, setting, value_type, default, help in MERGED_OPTIONS
        ),
        property_option("command-property", "A producer setting."),
        file_option("command-config", "A file with producer settings. --command-property takes precedence."),
        property_option("producer-property", "Same as --command-property.", deprecated=True),
        file_option("producer.config", "Same as --command-config.", deprecated=True),
        Option(
            "max-partition-memory-bytes",
            "Same as --batch-size, and takes precedence.",
            "batch.size",
            int,
            deprecated=True,
        ),
        BROKER_LIST,
        ZOOKEEPER,
    ),
    examples=(
        "kavka console-producer --bootstrap-server localhost:9092 --topic orders",
        "kavka console-producer --bootstrap-server localhost:9092 --topic orders --property parse.key=true "
        "--property key.separator=:",
    ),
)


def main(argv: list[str]) -> int:
    return run(COMMAND, argv, produce)


def produce(args: Arguments) -> int:
    log_only_errors()
    settings = producer_settings(args)
    properties = read_properties(args["reader-config"]) if "reader-config" in args else {}
    properties |= parse_property_options([*args["property"], *args["reader-property"]])
    send_all = _make_reader(args, properties)
    from kavka.client.producer.producer import Producer

    with sigterm_as_interrupt(), Producer(settings) as producer:
        warn_if_unreachable(producer, COMMAND.name, settings["bootstrap.servers"])
        sender = RecordSender(producer, args["topic"], bool(args["sync"]))
        try:
            send_all(sender)
            producer.flush()
        except KeyboardInterrupt as error:
            producer.close()
            return exit_code(error)
        except LineFormatError as error:
            producer.close()
            raise ToolError(str(error)) from None
    return sender.result()


class RecordSender:
    """Sends records and counts the failures, which `result` reports in one ToolError."""

    def __init__(self, producer: Producer, topic: str, sync: bool) -> None:
        self._producer = producer
        self._topic = topic
        self._sync = sync
        self._has_stored = False
        self._failures: dict[str, int] = {}

    def send_values(self, lines: Iterable[bytes]) -> None:
        send, topic, on_result = self._producer.send, self._topic, self._on_result
        if self._sync:
            for line in lines:
                self._wait(send(topic, line))
            return
        for line in lines:
            send(topic, line, None, None, None, None, on_result)
        self._raise_if_unavailable()

    def send(self, value: bytes | None, key: bytes | None, headers: Any) -> None:
        if self._sync:
            self._wait(self._producer.send(self._topic, value, key, headers=headers))
        else:
            self._producer.send(self._topic, value, key, None, None, headers, self._on_result)
            if self._failures:
                self._raise_if_unavailable()

    def send_record(self, record: Any) -> None:
        """Send a ProducerRecord of a custom reader."""
        future = self._producer.send(record, callback=None if self._sync else self._on_result)
        if self._sync:
            self._wait(future)

    def _wait(self, future: Any) -> None:
        future.wait()
        self._on_result(*future.outcome())
        self._raise_if_unavailable()

    def _on_result(self, metadata: Any, error: Any) -> None:
        if error is None:
            self._has_stored = True
        else:
            text = reason(error)
            self._failures[text] = self._failures.get(text, 0) + 1

    def _raise_if_unavailable(self) -> None:
        """Raise ToolError if records have failed and none was stored. Every further record would
        wait for the same timeout."""
        if self._failures and not self._has_stored:
            raise ToolError(f"no record could be sent: {next(iter(self._failures))}")

    def result(self) -> int:
        """Return the exit code 0. Raise ToolError if records were not stored."""
        if not self._failures:
            return 0
        failures = [f"{count} record{'s' if count > 1 else ''}: {text}" for text, count in self._failures.items()]
        raise ToolError(f"some records were not stored; {'; '.join(failures)}")


class SchemaLineReader(LineReader):
    """Reads lines of JSON, which are written with a schema of a registry. Keys are text unless
    `key.format` is set."""

    def __init__(self, format: str, topic: str, properties: dict[str, str]) -> None:
        super().__init__(properties)
        self.is_plain = False
        self._topic = topic
        self._value = schema_text.writing_serializer(format, properties, is_key=False)
        of_keys = schema_text.key_format(properties)
        self._key = None if of_keys is None else schema_text.writing_serializer(of_keys, properties, is_key=True)

    def parse(self, line: bytes) -> Line:
        value, key, headers = super().parse(line)
        return Line(self._data(self._value, value), key if self._key is None else self._data(self._key, key), headers)

    def _data(self, serializer: RegistrySerializer, text: bytes | None) -> bytes | None:
        if text is None:
            return None
        try:
            return serializer.from_text(self._topic, text.decode())
        except SerializationError as error:
            raise LineFormatError(f"line {self.line_number}: {error}") from None
        except SchemaRegistryError as error:
            raise LineFormatError(str(error)) from None


def _make_reader(args: Arguments, properties: dict[str, str]) -> Callable[[RecordSender], None]:
    """Return a function that reads the input and sends its records."""
    name = args["line-reader"]
    if name in KAFKA_READERS:
        reader = LineReader(properties)
        return lambda sender: _send_lines(reader, sender)
    if name in schema_text.NAMES:
        schema_reader = SchemaLineReader(schema_text.NAMES[name], args["topic"], properties)
        return lambda sender: _send_lines(schema_reader, sender)
    from kavka.client import classes

    custom_reader = classes.make("line-reader", name, {}, "a reader", {"topic": args["topic"], **properties})

    def send_all(sender: RecordSender) -> None:
        for record in custom_reader.read_records(sys.stdin.buffer):
            sender.send_record(record)

    return send_all


def _send_lines(reader: LineReader, sender: RecordSender) -> None:
    shows_prompt = sys.stdin.isatty() and sys.stdout.isatty()
    if shows_prompt:
        print(">", end="", flush=True)
    for lines in read_lines(0):
        if reader.is_plain:
            sender.send_values(lines)
        else:
            for line in lines:
                value, key, headers = reader.parse(line)
                sender.send(value, key, headers)
        if shows_prompt:
            print(">", end="", flush=True)


def producer_settings(args: Arguments) -> dict[str, Any]:
    settings = client_settings(args, ("producer.config", "command-config"), ("producer-property", "command-property"))
    settings["bootstrap.servers"] = bootstrap_servers(args)
    if "compression-codec" in args:
        settings["compression.type"] = args["compression-codec"] or "gzip"
    settings.setdefault("compression.type", "none")
    settings.setdefault("client.id", "console-producer")
    for option, setting, _, default, _ in MERGED_OPTIONS:
        if option in args:
            settings[setting] = args[option]
        else:
            settings.setdefault(setting, default)
    if "max-partition-memory-bytes" in args:
        settings["batch.size"] = args["max-partition-memory-bytes"]
    return settings
