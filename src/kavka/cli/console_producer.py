"""`kavka console-producer` (`kafka-console-producer`): send lines of standard input as records."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from kavka.cli.clients import (
    client_settings,
    ended_by_signals,
    exit_code,
    file_option,
    pairs,
    property_option,
    quiet_logging,
    say_when_nobody_answers,
)
from kavka.cli.connecting import BOOTSTRAP, BROKER_LIST, ZOOKEEPER, bootstrap_servers, read_properties
from kavka.cli.line_reader import BadLine, LineReader, read_lines
from kavka.cli.options import Arguments, Command, Option
from kavka.cli.tool import ToolError, reason, run

if TYPE_CHECKING:
    from kavka.client.producer.producer import Producer

DEFAULT_READER = "org.apache.kafka.tools.LineMessageReader"
KAFKA_READERS = (DEFAULT_READER, "kafka.tools.ConsoleProducer$LineMessageReader", "LineMessageReader")

# Option, setting, type, default: the default counts where neither the option nor a file gives another.
MERGED: tuple[tuple[str, str, type, Any, str], ...] = (
    ("batch-size", "batch.size", int, 16384, "Bytes of a batch: it is sent when it is full, or after --timeout."),
    ("timeout", "linger.ms", int, 1000, "How long a record may wait for others, in milliseconds."),
    ("request-required-acks", "acks", str, "-1", "Who must have a record before it counts as sent: 0, 1 or all."),
    ("request-timeout-ms", "request.timeout.ms", int, 1500, "How long to wait for an answer, in milliseconds."),
    ("message-send-max-retries", "retries", int, 3, "How often to try again."),
    ("retry-backoff-ms", "retry.backoff.ms", int, 100, "How long to wait before trying again, in milliseconds."),
    ("socket-buffer-size", "send.buffer.bytes", int, 102400, "The socket's send buffer, in bytes."),
    ("max-memory-bytes", "buffer.memory", int, 33554432, "Memory for records that wait to be sent, in bytes."),
    ("metadata-expiry-ms", "metadata.max.age.ms", int, 300000, "How old metadata may become, in milliseconds."),
    ("max-block-ms", "max.block.ms", int, 60000, "How long to wait for metadata and for memory, in milliseconds."),
)

COMMAND = Command(
    "console-producer",
    "Read lines from standard input and send each as a record. Ends with the input (Ctrl-D at a terminal).",
    (
        BOOTSTRAP,
        Option("topic", "The topic to send to.", "topic", required=True, completes="topic"),
        property_option(
            "reader-property",
            "A property of the reader: parse.key, parse.headers, ignore.error (true or false), key.separator, "
            "headers.delimiter, headers.separator, headers.key.separator, null.marker.",
        ),
        property_option("property", "As --reader-property."),
        file_option("reader-config", "A file with properties of the reader; --reader-property counts more."),
        Option(
            "line-reader",
            "What makes records of the input: Kafka's LineMessageReader, or a Python class with configure(properties) "
            "and read_records(input), which yields ProducerRecords.",
            "class",
            default=DEFAULT_READER,
            default_text="LineMessageReader",
        ),
        Option(
            "compression-codec",
            "none, gzip, snappy, lz4 or zstd; gzip where it is given without a value.",
            "codec",
            optional=True,
        ),
        Option("sync", "Wait for each record before the next is sent."),
        *(Option(name, help, setting, kind, default) for name, setting, kind, default, help in MERGED),
        property_option("command-property", "A setting of the producer."),
        file_option("command-config", "A file with settings of the producer; --command-property counts more."),
        property_option("producer-property", "As --command-property.", older=True),
        file_option("producer.config", "As --command-config.", older=True),
        Option("max-partition-memory-bytes", "As --batch-size, and counts more.", "batch.size", int, older=True),
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
    quiet_logging()
    settings = producer_settings(args)
    properties = read_properties(args["reader-config"]) if "reader-config" in args else {}
    properties |= pairs([*args["property"], *args["reader-property"]])
    send_all = _reader(args, properties)
    from kavka.client.producer.producer import Producer

    with ended_by_signals(), Producer(settings) as producer:
        say_when_nobody_answers(producer, COMMAND.name, settings["bootstrap.servers"])
        sending = Sending(producer, args["topic"], bool(args["sync"]))
        try:
            send_all(sending)
            producer.flush()
        except KeyboardInterrupt as error:
            producer.close()
            return exit_code(error)
        except BadLine as error:
            producer.close()
            raise ToolError(str(error)) from None
    return sending.result()


class Sending:
    """Sends, and counts what could not be stored, which is told once at the end."""

    def __init__(self, producer: Producer, topic: str, sync: bool) -> None:
        self._producer = producer
        self._topic = topic
        self._sync = sync
        self._stored = False
        self._failures: dict[str, int] = {}

    def values(self, lines: Iterable[bytes]) -> None:
        send, topic, done = self._producer.send, self._topic, self._done
        if self._sync:
            for line in lines:
                self._wait(send(topic, line))
            return
        for line in lines:
            send(topic, line, None, None, None, None, done)
        self._give_up_where_nobody_is()

    def record(self, value: bytes | None, key: bytes | None, headers: Any) -> None:
        if self._sync:
            self._wait(self._producer.send(self._topic, value, key, headers=headers))
        else:
            self._producer.send(self._topic, value, key, None, None, headers, self._done)
            if self._failures:
                self._give_up_where_nobody_is()

    def whole(self, record: Any) -> None:
        """One that a reader of the user's has made."""
        future = self._producer.send(record, callback=None if self._sync else self._done)
        if self._sync:
            self._wait(future)

    def _wait(self, future: Any) -> None:
        future.wait()
        self._done(*future.outcome())
        self._give_up_where_nobody_is()

    def _done(self, metadata: Any, error: Any) -> None:
        if error is None:
            self._stored = True
        else:
            text = reason(error)
            self._failures[text] = self._failures.get(text, 0) + 1

    def _give_up_where_nobody_is(self) -> None:
        """Every further record would wait as long again for a cluster, or a topic, that is not there."""
        if self._failures and not self._stored:
            raise ToolError(f"nothing could be sent: {next(iter(self._failures))}")

    def result(self) -> int:
        if not self._failures:
            return 0
        said = [f"{count} record{'s' if count > 1 else ''}: {text}" for text, count in self._failures.items()]
        raise ToolError(f"not everything was stored; {'; '.join(said)}")


def _reader(args: Arguments, properties: dict[str, str]) -> Callable[[Sending], None]:
    name = args["line-reader"]
    if name in KAFKA_READERS:
        reader = LineReader(properties)
        return lambda sending: _send_lines(reader, sending)
    from kavka.client import classes

    found = classes.make("line-reader", name, {}, "a reader", {"topic": args["topic"], **properties})

    def send_all(sending: Sending) -> None:
        for record in found.read_records(sys.stdin.buffer):
            sending.whole(record)

    return send_all


def _send_lines(reader: LineReader, sending: Sending) -> None:
    prompt = sys.stdin.isatty() and sys.stdout.isatty()
    if prompt:
        print(">", end="", flush=True)
    for lines in read_lines(0):
        if reader.plain:
            sending.values(lines)
        else:
            for line in lines:
                value, key, headers = reader.parse(line)
                sending.record(value, key, headers)
        if prompt:
            print(">", end="", flush=True)


def producer_settings(args: Arguments) -> dict[str, Any]:
    settings = client_settings(args, ("producer.config", "command-config"), ("producer-property", "command-property"))
    settings["bootstrap.servers"] = bootstrap_servers(args)
    if "compression-codec" in args:
        settings["compression.type"] = args["compression-codec"] or "gzip"
    settings.setdefault("compression.type", "none")
    settings.setdefault("client.id", "console-producer")
    for name in ("key.serializer", "value.serializer"):
        settings.pop(name, None)
    for option, setting, _, default, _ in MERGED:
        if option in args:
            settings[setting] = args[option]
        else:
            settings.setdefault(setting, default)
    if "max-partition-memory-bytes" in args:
        settings["batch.size"] = args["max-partition-memory-bytes"]
    return settings
