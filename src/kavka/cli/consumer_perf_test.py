"""`kavka consumer-perf-test` (`kafka-consumer-perf-test`): measure the throughput of a consumer.

It does the same work as Kafka's tool: it fetches batches, decompresses them and reads every record.
As in Kafka's tool, it verifies checksums only with `check.crcs=true`. It counts records and the
bytes of keys and values, and creates no Python object per record.
"""

from __future__ import annotations

import random
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
from kavka.cli.java_text import date_text, fixed, ratio
from kavka.cli.options import Arguments, Command, Option, UsageError
from kavka.cli.output import Progress
from kavka.cli.perf_stats import MB, metrics_text, now_ms
from kavka.cli.tool import note, run

if TYPE_CHECKING:
    from kavka.client.consumer.consumer import Consumer

DATE_FORMAT = "yyyy-MM-dd HH:mm:ss:SSS"
_POLL_TIMEOUT_S = 0.1
_EXTENDED_HEADINGS = ", rebalance.time.ms, fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec"
_TOTAL_HEADINGS = "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec"
_INTERVAL_HEADINGS = "time, threadId, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec"

COMMAND = Command(
    "consumer-perf-test",
    "Read records as fast as possible and print the throughput.",
    (
        BOOTSTRAP,
        Option("topic", "The topic to read.", "topic", completes="topic"),
        Option("include", "Read all topics whose whole name matches.", "regular expression"),
        Option("num-records", "Number of records to read.", "number", int, aliases=("messages",)),
        Option("group", "The consumer group.", "group", default_text="perf-consumer-<number>", completes="group"),
        Option("from-latest", "Start with new records if the group has no committed offsets."),
        Option("fetch-size", "Maximum bytes per partition in a fetch.", "bytes", int, 1024 * 1024),
        Option("socket-buffer-size", "Receive buffer of the socket.", "bytes", int, 2 * 1024 * 1024),
        Option("timeout", "Exit if no record arrives for this time.", "milliseconds", int, 10_000, optional=True),
        Option("show-detailed-stats", "Print a line for every interval."),
        Option("reporting-interval", "Length of an interval.", "milliseconds", int, 5000),
        Option("date-format", "Format of times, as in Java's SimpleDateFormat.", "format", str, DATE_FORMAT),
        Option("hide-header", "Do not print the line with the column names."),
        Option("print-metrics", "Print the consumer's metrics at the end."),
        property_option("command-property", "A consumer setting."),
        file_option("command-config", "A file with consumer settings. --command-property takes precedence."),
        file_option("consumer.config", "Same as --command-config.", deprecated=True),
        Option("threads", "Has no effect.", "number", int, 10, deprecated=True),
        Option("num-fetch-threads", "Has no effect.", "number", int, 1, deprecated=True),
        BROKER_LIST,
        ZOOKEEPER,
    ),
    examples=("kavka consumer-perf-test --bootstrap-server localhost:9092 --topic benchmark --messages 5000000",),
)


def main(argv: list[str]) -> int:
    return run(COMMAND, argv, measure)


def measure(args: Arguments) -> int:
    log_only_errors()
    _check(args)
    settings = consumer_settings(args)
    if not args["hide-header"]:
        print((_INTERVAL_HEADINGS if args["show-detailed-stats"] else _TOTAL_HEADINGS) + _EXTENDED_HEADINGS, flush=True)
    from kavka.client.consumer.consumer import Consumer

    with sigterm_as_interrupt(), Consumer(settings) as consumer, Progress() as progress:
        warn_if_unreachable(consumer, COMMAND.name, settings["bootstrap.servers"])
        test = PerfTest(consumer, args, progress)
        try:
            test.run()
        except KeyboardInterrupt as error:
            return exit_code(error)
        finally:
            progress.clear()
        end = now_ms()
        if not args["show-detailed-stats"]:
            print(test.total_line(end), flush=True)
        if args["print-metrics"]:
            print(metrics_text("consumer-metrics", settings["client.id"], consumer.metrics()))
        if not is_compiled():
            note(COMMAND.name, PLAIN_FORM)
    return 0


class PerfTest:
    """Reads records and counts them, in total and per interval. Not thread-safe."""

    def __init__(self, consumer: Consumer, args: Arguments, progress: Progress) -> None:
        self._consumer = consumer
        self._progress = progress
        self._target: int = args["num-records"]
        self._timeout_ms: int = args["timeout"] if args["timeout"] != "" else 10_000
        self._interval_ms: int = args["reporting-interval"]
        self._detailed: bool = args["show-detailed-stats"]
        self._date_format: str = args["date-format"]
        self.records = 0
        self.bytes = 0
        self._start = now_ms()
        self._join_start: int | None = self._start
        self._join_ms = self._interval_join_ms = 0
        # The time, and the number of records and bytes, at the start of the interval.
        self._interval_start = (self._start, 0, 0)
        self._subscribe(args)

    def _subscribe(self, args: Arguments) -> None:
        pattern = None
        if "include" in args:
            from kavka.cli.names import TopicFilter

            pattern = TopicFilter(args["include"]).pattern
        topics = [args["topic"]] if "topic" in args else None
        self._consumer.subscribe(topics, pattern=pattern, on_assigned=self._on_assigned, on_revoked=self._on_revoked)

    def _on_revoked(self, partitions: Any) -> None:
        self._join_start = now_ms()

    def _on_assigned(self, partitions: Any) -> None:
        # An assignment without a revocation did not interrupt reading.
        elapsed = 0 if self._join_start is None else now_ms() - self._join_start
        self._join_start = None
        self._join_ms += elapsed
        self._interval_join_ms += elapsed

    def run(self) -> None:
        poll, target, is_live = self._consumer.poll_columns, self._target, self._progress.is_shown
        now = last_consumed = now_ms()
        while self.records < target and now - last_consumed <= self._timeout_ms:
            columns = poll(_POLL_TIMEOUT_S, target - self.records)
            now = now_ms()
            if columns is not None:
                last_consumed = now
                self.records += columns.rows
                self.bytes += columns.key_used + columns.value_used
                if now - self._interval_start[0] >= self._interval_ms:
                    self._end_interval(now)
            if is_live:
                self._progress.show(self._live_line(now))
        if self.records < target:
            self._progress.clear()
            print(
                "WARNING: Exiting before consuming the expected number of messages: timeout "
                f"({self._timeout_ms} ms) exceeded. You can use the --timeout option to increase the timeout.",
                flush=True,
            )

    def _end_interval(self, now: int) -> None:
        """Print a line about this interval with --show-detailed-stats, and start the next
        interval."""
        if self._detailed:
            self._progress.clear()
            print(self._interval_line(now), flush=True)
        self._interval_join_ms = 0
        self._interval_start = (now, self.records, self.bytes)

    def _interval_line(self, now: int) -> str:
        start, start_records, start_bytes = self._interval_start
        elapsed, count, megabytes = now - start, self.records - start_records, (self.bytes - start_bytes) / MB
        fetch_ms = elapsed - self._interval_join_ms
        return (
            f"{date_text(self._date_format, now)}, 0, {fixed(self.bytes / MB, 4)}, "
            f"{fixed(ratio(1000.0 * megabytes, elapsed), 4)}, {self.records}, "
            f"{fixed(ratio(count, elapsed) * 1000, 4)}, {self._interval_join_ms}, {fetch_ms}, "
            f"{fixed(1000.0 * megabytes / fetch_ms if fetch_ms > 0 else 0.0, 4)}, "
            f"{fixed(1000.0 * count / fetch_ms if fetch_ms > 0 else 0.0, 4)}"
        )

    def total_line(self, end: int) -> str:
        elapsed = (end - self._start) / 1000
        fetch_ms = end - self._start - self._join_ms
        megabytes = self.bytes / MB
        times = f"{date_text(self._date_format, self._start)}, {date_text(self._date_format, end)}"
        return (
            f"{times}, {fixed(megabytes, 4)}, {fixed(ratio(megabytes, elapsed), 4)}, {self.records}, "
            f"{fixed(ratio(self.records, elapsed), 4)}, {self._join_ms}, {fetch_ms}, "
            f"{fixed(ratio(megabytes, fetch_ms / 1000), 4)}, {fixed(ratio(self.records, fetch_ms / 1000), 4)}"
        )

    def _live_line(self, now: int) -> str:
        start, start_records, start_bytes = self._interval_start
        elapsed = max(1, now - start - self._interval_join_ms) / 1000
        return (
            f"{self.records:,} of {self._target:,} records, {(self.records - start_records) / elapsed:,.0f} records/s, "
            f"{(self.bytes - start_bytes) / elapsed / MB:.1f} MB/s"
        )


def _check(args: Arguments) -> None:
    if ("topic" in args) == ("include" in args):
        raise UsageError("Exactly one of --topic/--include is required.")
    args.require("num-records")
    try:
        date_text(args["date-format"], 0)
    except ValueError as error:
        raise UsageError(f"--date-format: {error}") from None


def consumer_settings(args: Arguments) -> dict[str, Any]:
    settings = client_settings(args, ("consumer.config", "command-config"), ("command-property",))
    settings["bootstrap.servers"] = bootstrap_servers(args)
    settings["group.id"] = args["group"] or settings.get("group.id") or f"perf-consumer-{random.randrange(100_000)}"
    settings["receive.buffer.bytes"] = args["socket-buffer-size"]
    settings["max.partition.fetch.bytes"] = args["fetch-size"]
    settings["auto.offset.reset"] = "latest" if args["from-latest"] else "earliest"
    settings.setdefault("check.crcs", "false")
    settings.setdefault("client.id", "perf-consumer-client")
    return settings
