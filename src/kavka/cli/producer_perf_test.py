"""`kavka producer-perf-test` (`kafka-producer-perf-test`): measure the throughput of a producer.

It does the same work as Kafka's tool: every record has a different payload and a callback, and the
latency is the time from the call of `send` to the callback.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from kavka.cli.clients import (
    client_settings,
    exit_code,
    file_option,
    log_only_errors,
    property_option,
    sigterm_as_interrupt,
    warn_if_unreachable,
)
from kavka.cli.connecting import BOOTSTRAP, BROKER_LIST, ZOOKEEPER, bootstrap_servers
from kavka.cli.form import PLAIN_FORM, is_compiled
from kavka.cli.options import Arguments, Command, Option, UsageError
from kavka.cli.output import Progress
from kavka.cli.perf_stats import ProducerStats, Throttle, metrics_text, now_ms
from kavka.cli.tool import ToolError, note, reason, run

if TYPE_CHECKING:
    from kavka.client.producer.producer import Producer

DEFAULT_DURATION_MS = 3000
_LETTERS = bytes(65 + byte % 26 for byte in range(256))
_BLOCK_SIZE = 256 * 1024
_RECORDS_PER_PROGRESS = 1024

COMMAND = Command(
    "producer-perf-test",
    "Send records as fast as possible or at a given rate, and print throughput and latencies.",
    (
        BOOTSTRAP,
        Option("topic", "The topic to send to.", "topic", required=True, completes="topic"),
        Option("num-records", "Number of records to send.", "number", int, required=True),
        Option("record-size", "Size of a record, which consists of random letters.", "bytes", int),
        Option("payload-file", "Send random records from this file.", "file", completes="file"),
        Option("payload-delimiter", "The separator of records in --payload-file.", "text", default="\\n"),
        Option("payload-monotonic", "Send increasing numbers, starting with 0."),
        Option("throughput", "Maximum records per second; -1: no limit.", "records/s", float, required=True),
        property_option("command-property", "Producer settings, separated by spaces.", several=True),
        property_option("producer-props", "Same as --command-property.", several=True),
        file_option("command-config", "A file with producer settings. --command-property takes precedence."),
        file_option("producer.config", "Same as --command-config."),
        Option("print-metrics", "Print the producer's metrics at the end."),
        Option(
            "transactional-id",
            "Send in transactions with this id; a random id with only --transaction-duration-ms.",
            "id",
        ),
        Option(
            "transaction-duration-ms",
            "Send in transactions, and commit each after this time.",
            "milliseconds",
            int,
            default_text="3000 with a transactional id",
        ),
        Option("warmup-records", "Number of warmup records, which the steady state excludes.", "number", int, 0),
        Option("reporting-interval", "Interval of the progress lines.", "milliseconds", int, 5000),
        BROKER_LIST,
        ZOOKEEPER,
    ),
    examples=(
        "kavka producer-perf-test --topic benchmark --num-records 5000000 --record-size 1000 --throughput -1 "
        "--producer-props bootstrap.servers=localhost:9092 acks=1",
    ),
)


def main(argv: list[str]) -> int:
    return run(COMMAND, argv, measure)


def measure(args: Arguments) -> int:
    log_only_errors()
    _check(args)
    settings = producer_settings(args)
    duration = _configure_transactions(args, settings)
    payload = payloads(args)
    from kavka.client.producer.producer import Producer

    with sigterm_as_interrupt(), Producer(settings) as producer, Progress() as progress:
        warn_if_unreachable(producer, COMMAND.name, settings["bootstrap.servers"])
        test = PerfTest(producer, args, payload, duration, progress)
        try:
            test.run()
        except KeyboardInterrupt as error:
            progress.clear()
            producer.close(timeout=0)
            return exit_code(error)
        if args["print-metrics"]:
            producer.flush()
        else:
            producer.close()
        progress.clear()
        test.print_totals()
        if args["print-metrics"]:
            print(metrics_text("producer-metrics", settings["client.id"], producer.metrics()))
        if not is_compiled():
            note(COMMAND.name, PLAIN_FORM)
    return test.result()


class PerfTest:
    """Sends records in the calling thread, and counts the results in the producer's thread."""

    def __init__(
        self,
        producer: Producer,
        args: Arguments,
        payload: Callable[[int], bytes],
        duration_ms: int | None,
        progress: Progress,
    ) -> None:
        self._producer = producer
        self._topic: str = args["topic"]
        self._record_count: int = args["num-records"]
        self._warmup: int = args["warmup-records"]
        self._interval_ms: int = args["reporting-interval"]
        self._payload = payload
        self._duration_ms = duration_ms
        self._progress = progress
        self._throttle = Throttle(args["throughput"])
        self._is_throttled = args["throughput"] >= 0
        self._steady_stats: ProducerStats | None = None
        self._failures: dict[str, int] = {}
        self._output_closed = False
        self._steady_announced = False
        if self._warmup:
            print(
                f"Warmup first {self._warmup} records. Steady state results will print after the complete test summary."
            )
        self.stats = ProducerStats(self._record_count, self._interval_ms)

    def run(self) -> None:
        producer, topic, payload = self._producer, self._topic, self._payload
        send, on_result, is_throttled = producer.send, self._on_result, self._is_throttled
        if self._duration_ms is not None:
            producer.init_transactions()
        transaction_start = None
        for index in range(self._record_count):
            data = payload(index)
            if self._warmup and index == self._warmup:
                self._steady_stats = ProducerStats(self._record_count - self._warmup, self._interval_ms, steady=True)
                on_result = self._on_steady_result
            if self._duration_ms is not None and transaction_start is None:
                producer.begin_transaction()
                transaction_start = now_ms()
            start = now_ms()
            send(topic, data, None, None, None, None, partial(on_result, start, len(data)))
            if (
                transaction_start is not None
                and self._duration_ms is not None
                and self._duration_ms <= start - transaction_start
            ):
                producer.commit_transaction()
                transaction_start = None
            if is_throttled:
                self._throttle.wait_after(index)
            if not index % _RECORDS_PER_PROGRESS or self._failures or self._output_closed:
                self._check_progress()
        if transaction_start is not None:
            producer.commit_transaction()

    def _check_progress(self) -> None:
        """Show the progress. Raise BrokenPipeError if the output is closed, and ToolError if
        records have failed and none was stored."""
        if self._output_closed:
            raise BrokenPipeError
        if self._failures and not self.stats.count:
            raise ToolError(f"no record could be sent: {next(iter(self._failures))}")
        if self._progress.is_shown:
            self._progress.show(self.stats.live_line(self._record_count))

    def _on_result(self, start: int, size: int, metadata: Any, error: Any) -> None:
        """Count the result of a record. The producer's thread calls it."""
        now = now_ms()
        if error is not None:
            self._count_failure(error)
        elif self.stats.record(now - start, size, now):
            line = self.stats.window_line()
            if self._steady_stats is None:
                self._print(line)

    def _on_steady_result(self, start: int, size: int, metadata: Any, error: Any) -> None:
        """Count the result of a record that was sent after the warmup."""
        self._on_result(start, size, metadata, error)
        if error is None and self._steady_stats is not None:
            now = now_ms()
            if self._steady_stats.record(now - start, size, now):
                if not self._steady_announced:
                    self._steady_announced = True
                    self._print("In steady state.")
                self._print(self._steady_stats.window_line())

    def _count_failure(self, error: Exception) -> None:
        text = reason(error)
        self._failures[text] = self._failures.get(text, 0) + 1

    def _print(self, line: str) -> None:
        """Print a line. The producer's thread calls it. If the output is closed, the sending thread
        stops."""
        self._progress.clear()
        try:
            print(line, flush=True)
        except BrokenPipeError:
            self._output_closed = True

    def print_totals(self) -> None:
        print(self.stats.total_line())
        if self._steady_stats is not None:
            print(self._steady_stats.total_line())

    def result(self) -> int:
        """Print the failures and return the exit code."""
        for text, count in self._failures.items():
            note(COMMAND.name, f"{count} record{'s were' if count > 1 else ' was'} not stored: {text}")
        return 1 if self._failures else 0


def _check(args: Arguments) -> None:
    sources = [name for name in ("record-size", "payload-file", "payload-monotonic") if name in args]
    if len(sources) != 1:
        raise UsageError("exactly one of --record-size, --payload-file and --payload-monotonic is required")
    for name in ("num-records", "record-size", "transaction-duration-ms", "reporting-interval"):
        if name in args and args[name] <= 0:
            raise UsageError(f"--{name} should be greater than zero")
    if args["warmup-records"] < 0 or args["warmup-records"] >= args["num-records"]:
        raise UsageError("--warmup-records must be less than --num-records")


def producer_settings(args: Arguments) -> dict[str, Any]:
    settings = client_settings(args, ("producer.config", "command-config"), ("producer-props", "command-property"))
    if "bootstrap.servers" not in settings or args.first("bootstrap-server", "broker-list", "zookeeper"):
        settings["bootstrap.servers"] = bootstrap_servers(args)
    settings.setdefault("client.id", "perf-producer-client")
    return settings


def _configure_transactions(args: Arguments, settings: dict[str, Any]) -> int | None:
    """Set transactional.id if the options request transactions. Return the duration of a
    transaction in milliseconds; None without transactions."""
    if "transactional-id" in args:
        settings["transactional.id"] = args["transactional-id"]
    if "transactional.id" not in settings:
        if "transaction-duration-ms" not in args:
            return None
        import uuid

        settings["transactional.id"] = f"performance-producer-{uuid.uuid4()}"
    return args["transaction-duration-ms"] or DEFAULT_DURATION_MS


def payloads(args: Arguments) -> Callable[[int], bytes]:
    """Return a function that returns the payload of the record with a given index."""
    if "record-size" in args:
        return RandomLetters(args["record-size"]).next
    if "payload-file" in args:
        records = _from_file(args["payload-file"], args["payload-delimiter"])
        return lambda number: random.choice(records)
    return lambda number: str(number).encode()


class RandomLetters:
    """Payloads of random letters, generated in blocks."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._block = b""
        self._position = 0
        self._block_size = max(1, _BLOCK_SIZE // size) * size

    def next(self, number: int) -> bytes:
        start = self._position
        if start == len(self._block):
            self._block = os.urandom(self._block_size).translate(_LETTERS)
            start = 0
        self._position = end = start + self._size
        return self._block[start:end]


def _from_file(path: str, delimiter: str) -> list[bytes]:
    print(f"Reading payloads from: {os.path.abspath(path)}")
    with open(path, encoding="utf-8", errors="replace", newline="") as file:
        text = file.read()
    if not text:
        raise ToolError("File does not exist or empty file provided.")
    try:
        records = re.split("\n" if delimiter == "\\n" else delimiter, text)
    except re.error as error:
        raise UsageError(f"--payload-delimiter is not a valid regular expression: {error}") from None
    while records and not records[-1]:
        records.pop()
    if not records:
        raise ToolError("File does not exist or empty file provided.")
    print(f"Number of messages read: {len(records)}", flush=True)
    return [record.encode() for record in records]
