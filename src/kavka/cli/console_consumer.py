"""`kavka console-consumer` (`kafka-console-consumer`): print the records of topics."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING, Any

from kavka.cli.clients import (
    client_settings,
    exit_code,
    file_option,
    log_only_errors,
    parse_property_options,
    property_option,
    reader_has_closed,
    sigterm_as_interrupt,
    warn_if_unreachable,
)
from kavka.cli.connecting import BOOTSTRAP, BROKER_LIST, ZOOKEEPER, bootstrap_servers, read_properties
from kavka.cli.formatters import DEFAULT, Formatter, current_name, make_formatter
from kavka.cli.options import Arguments, Command, Option, UsageError
from kavka.cli.output import at_terminal
from kavka.cli.tool import ToolError, note, one_line, run
from kavka.client.errors import SchemaRegistryError

if TYPE_CHECKING:
    from kavka.client.consumer.consumer import Consumer
    from kavka.client.consumer.records import ConsumerRecord

COMMAND = Command(
    "console-consumer",
    "Print the records of a topic, or of all topics that match a pattern, to standard output.",
    (
        BOOTSTRAP,
        Option("topic", "The topic to read.", "topic", completes="topic"),
        Option("include", "Read all topics whose whole name matches.", "regular expression"),
        Option("partition", "Read only this partition, by default from its end.", "number", int),
        Option(
            "offset",
            "The start offset: a number, 'earliest' or 'latest'. Requires --partition.",
            "offset",
            default="latest",
        ),
        Option("from-beginning", "Start with the oldest record if the group has no committed offsets."),
        Option("group", "The consumer group; by default a new group.", "group", completes="group"),
        Option("max-messages", "Exit after this number of records.", "number", int),
        Option("timeout-ms", "Exit if no record arrives for this time.", "milliseconds", int),
        Option(
            "isolation-level",
            "read_committed skips records of uncommitted transactions.",
            "level",
            default="read_uncommitted",
            choices=("read_uncommitted", "read_committed"),
            ignore_case=True,
        ),
        property_option(
            "formatter-property",
            "A property of the formatter: print.key, print.timestamp, print.offset, print.partition, print.epoch, "
            "print.headers (true or false), print.value, key.separator, line.separator, headers.separator, "
            "null.literal, key.deserializer, value.deserializer, headers.deserializer; with a schema registry: "
            "schema.registry.url, basic.auth.user.info, key.format.",
        ),
        property_option("property", "Same as --formatter-property."),
        file_option("formatter-config", "A file with properties of the formatter."),
        Option(
            "formatter",
            "The formatter: DefaultMessageFormatter, LoggingMessageFormatter, NoOpMessageFormatter; "
            "OffsetsMessageFormatter and GroupMetadataMessageFormatter for __consumer_offsets, "
            "TransactionLogMessageFormatter for __transaction_state; avro, json-schema and protobuf for values with "
            "schemas of a registry; or a Python class.",
            "class",
            default=DEFAULT,
            default_text="DefaultMessageFormatter",
        ),
        Option("key-deserializer", "The deserializer class of keys.", "class"),
        Option("value-deserializer", "The deserializer class of values.", "class"),
        Option("skip-message-on-error", "Skip a record that cannot be printed instead of exiting."),
        property_option("command-property", "A consumer setting."),
        file_option("command-config", "A file with consumer settings. --command-property takes precedence."),
        Option("enable-systest-events", "Print a line when the consumer has shut down."),
        property_option("consumer-property", "Same as --command-property.", deprecated=True),
        file_option("consumer.config", "Same as --command-config.", deprecated=True),
        Option("whitelist", "Same as --include.", "regular expression", deprecated=True),
        BROKER_LIST,
        ZOOKEEPER,
    ),
    examples=(
        "kavka console-consumer --bootstrap-server localhost:9092 --topic orders --from-beginning",
        "kavka console-consumer --bootstrap-server localhost:9092 --topic orders --property print.key=true",
    ),
)

_POLL_TIMEOUT_S = 1.0
_MAX_POLL_RECORDS = 5000
_UNLIMITED = float("inf")


def main(argv: list[str]) -> int:
    return run(COMMAND, argv, consume)


def consume(args: Arguments) -> int:
    log_only_errors()
    _check(args)
    formatter = _formatter(args)
    settings = consumer_settings(args)
    start = _start_position(args)
    from kavka.client.consumer.consumer import Consumer

    code = 0
    printer: RecordPrinter | None = None
    try:
        with sigterm_as_interrupt(), Consumer(settings) as consumer:
            warn_if_unreachable(consumer, COMMAND.name, settings["bootstrap.servers"])
            _subscribe(consumer, args, start)
            printer = RecordPrinter(consumer, formatter, args)
            printer.run()
    except KeyboardInterrupt as error:
        code = exit_code(error)
    finally:
        close = getattr(formatter, "close", None)
        if callable(close):
            close()
        print(f"Processed a total of {printer.count if printer else 0} messages", file=sys.stderr, flush=True)
    if args["enable-systest-events"]:
        print("shutdown_complete")
    return code


class RecordPrinter:
    """Polls and prints records. `count` is the number of records passed to the formatter."""

    def __init__(self, consumer: Consumer, formatter: Formatter, args: Arguments) -> None:
        self.count = 0
        self._consumer = consumer
        self._formatter = formatter
        limit = args["max-messages"]
        self._limit: float = _UNLIMITED if limit is None or limit == -1 else limit
        timeout = args["timeout-ms"]
        self._timeout = _UNLIMITED if timeout is None or timeout < 0 else timeout / 1000
        self._skip_errors: bool = args["skip-message-on-error"]

    def run(self) -> None:
        """Print records up to the limit or the timeout. Raise BrokenPipeError if the reader of
        standard output has closed it."""
        output = sys.stdout.buffer
        last_record_time = time.monotonic()
        while self.count < self._limit:
            remaining = last_record_time + self._timeout - time.monotonic()
            max_records = int(min(_MAX_POLL_RECORDS, self._limit - self.count))
            records = self._consumer.poll(max(0.0, min(_POLL_TIMEOUT_S, remaining)), max_records=max_records)
            if records:
                data = self._format(list(records))
                output.write(data)
                output.flush()
                last_record_time = time.monotonic()
            elif remaining <= 0:
                return
            if reader_has_closed(1):
                raise BrokenPipeError

    def _format(self, records: list[ConsumerRecord]) -> bytes:
        """Return the formatted records. Raise ToolError if a record cannot be formatted, unless
        such records are skipped."""
        with contextlib.suppress(Exception):
            data = self._formatter.write(records)
            self.count += len(records)
            return data
        # A record cannot be formatted. Format each record separately, to skip it or to print the
        # records before it.
        formatted = []
        for record in records:
            self.count += 1
            try:
                formatted.append(self._formatter.write((record,)))
            except Exception as error:
                record_location = f"{record.topic}-{record.partition} at offset {record.offset}"
                is_of_registry = isinstance(error, SchemaRegistryError)
                if not self._skip_errors or is_of_registry:
                    sys.stdout.buffer.write(b"".join(formatted))
                    message = f"Cannot format the record of {record_location}: {one_line(str(error))}"
                    hint = "" if is_of_registry else " (--skip-message-on-error continues)"
                    raise ToolError(f"{message}{hint}") from None
                note(COMMAND.name, f"skipped the record of {record_location}: {one_line(str(error))}")
        return b"".join(formatted)


def _check(args: Arguments) -> None:
    sources = [name for name in ("topic", "include", "whitelist") if name in args]
    if len(sources) != 1 and sources != ["include", "whitelist"]:
        raise UsageError("Exactly one of --include/--topic is required.")
    if "partition" in args:
        if "topic" not in args:
            raise UsageError("The topic is required when partition is specified.")
        if "group" in args:
            raise UsageError("Options group and partition cannot be specified together.")
        if args["partition"] < 0:
            raise UsageError(f"There is no partition {args['partition']}")
    if "from-beginning" in args and "offset" in args:
        raise UsageError("Options from-beginning and offset cannot be specified together.")
    if "offset" in args and "partition" not in args:
        raise UsageError("The partition is required when offset is specified.")


def _start_position(args: Arguments) -> str | int:
    """Return "earliest", "latest" or an offset. Raise UsageError if --offset is invalid."""
    if args["from-beginning"]:
        return "earliest"
    text = args["offset"]
    if text.lower() in ("earliest", "latest"):
        return str(text.lower())
    if not text.isascii() or not text.isdigit():
        raise UsageError(
            f"The provided offset value '{text}' is incorrect. Valid values are 'earliest', 'latest', or a "
            "non-negative long."
        )
    return int(text)


def consumer_settings(args: Arguments) -> dict[str, Any]:
    settings = client_settings(args, ("consumer.config", "command-config"), ("consumer-property", "command-property"))
    settings["bootstrap.servers"] = bootstrap_servers(args)
    settings.setdefault("client.id", "console-consumer")
    settings.setdefault("isolation.level", args["isolation-level"])
    reset = settings.get("auto.offset.reset")
    if args["from-beginning"] and reset not in (None, "earliest"):
        raise UsageError(
            f"Can't simultaneously specify --from-beginning and 'auto.offset.reset={reset}', please remove one option"
        )
    settings["auto.offset.reset"] = "earliest" if args["from-beginning"] else (reset or "latest")
    _set_group(args, settings)
    return settings


def _set_group(args: Arguments, settings: dict[str, Any]) -> None:
    configured = settings.get("group.id")
    group = args["group"]
    if group is not None and configured is not None and configured != group:
        raise UsageError(
            "The group ids provided in different places (directly using '--group', via '--consumer-property', or via "
            f"'--consumer.config') do not match. Detected group ids: '{group}', '{configured}'"
        )
    if group is None and configured is None:
        import random

        settings["group.id"] = f"console-consumer-{random.randrange(100_000)}"
        settings.setdefault("enable.auto.commit", "false")
    elif group is not None:
        settings["group.id"] = group


def _subscribe(consumer: Consumer, args: Arguments, start: str | int) -> None:
    if "partition" in args:
        partition = (args["topic"], args["partition"])
        consumer.assign([partition])
        if start == "earliest":
            consumer.seek_to_beginning([partition])
        elif start == "latest":
            consumer.seek_to_end([partition])
        else:
            assert isinstance(start, int)
            consumer.seek(partition, start)
    elif "topic" in args:
        consumer.subscribe([args["topic"]])
    else:
        from kavka.cli.names import TopicFilter

        consumer.subscribe(pattern=TopicFilter(args.first("include", "whitelist")).pattern)


def _formatter(args: Arguments) -> Formatter:
    properties = read_properties(args["formatter-config"]) if "formatter-config" in args else {}
    properties |= parse_property_options([*args["property"], *args["formatter-property"]])
    for field in ("key", "value"):
        if f"{field}-deserializer" in args:
            properties[f"{field}.deserializer"] = args[f"{field}-deserializer"]
    name = args["formatter"]
    if current := current_name(name):
        note(COMMAND.name, f"{name} is deprecated, use {current}")
    # Kafka prints no separator between the objects of internal topics. On a terminal, print one per
    # line.
    return make_formatter(name, properties, line_end=b"\n" if at_terminal() else b"")
