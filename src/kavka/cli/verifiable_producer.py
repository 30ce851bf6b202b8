"""`kavka verifiable-producer` (`kafka-verifiable-producer`): send increasing numbers and print each
result as JSON."""

from __future__ import annotations

import json
import sys
import threading
import time
from functools import partial
from typing import Any

from kavka.cli.clients import (
    client_settings,
    exit_code,
    file_option,
    log_only_errors,
    sigterm_as_interrupt,
    warn_if_unreachable,
)
from kavka.cli.connecting import BOOTSTRAP, BROKER_LIST, ZOOKEEPER, bootstrap_servers
from kavka.cli.options import Arguments, Command, Option
from kavka.cli.perf_stats import Throttle, now_ms
from kavka.cli.tool import reason, run

COMMAND = Command(
    "verifiable-producer",
    "Send increasing numbers to a topic, and print the result of each as JSON. For tests of clusters.",
    (
        BOOTSTRAP,
        Option("topic", "The topic to send to.", "topic", required=True, completes="topic"),
        Option("max-messages", "Number of records to send; -1: no limit.", "number", int, -1),
        Option("throughput", "Maximum records per second; -1: no limit.", "records/s", int, -1),
        Option("acks", "The required acknowledgements: 0, 1, or -1 for the whole ISR.", "acks", int, -1),
        Option("value-prefix", "Values are this number, a dot, and the record's number.", "number", int),
        Option("repeating-keys", "Keys repeat the numbers from 0 up to this number, exclusive.", "number", int),
        Option(
            "message-create-time",
            "The timestamp of the first record, in milliseconds since 1970. Later records add the elapsed time.",
            "milliseconds",
            int,
            -1,
        ),
        file_option("command-config", "A file with producer settings."),
        file_option("producer.config", "Same as --command-config.", deprecated=True),
        BROKER_LIST,
        ZOOKEEPER,
    ),
    examples=("kavka verifiable-producer --bootstrap-server localhost:9092 --topic numbers --max-messages 100",),
)


def main(argv: list[str]) -> int:
    return run(COMMAND, argv, produce)


class Events:
    """Prints JSON objects on standard output, one per line. Any thread may call `emit`."""

    def __init__(self) -> None:
        self._output_closed = False
        self._lock = threading.Lock()

    def emit(self, name: str, **fields: Any) -> None:
        line = json.dumps({"timestamp": now_ms(), "name": name, **fields}, separators=(",", ":"), ensure_ascii=False)
        with self._lock:
            try:
                sys.stdout.write(line + "\n")
                sys.stdout.flush()
            except BrokenPipeError:
                self._output_closed = True

    def raise_if_closed(self) -> None:
        """Raise BrokenPipeError if the reader has closed standard output. The main thread calls
        it."""
        if self._output_closed:
            raise BrokenPipeError


def produce(args: Arguments) -> int:
    log_only_errors()
    settings = client_settings(args, ("producer.config", "command-config"), ())
    settings["bootstrap.servers"] = bootstrap_servers(args)
    settings["acks"] = str(args["acks"])
    settings["retries"] = 0
    from kavka.client.producer.producer import Producer

    tool = VerifiableProducer(args)
    code = 0
    start = time.time()
    tool.events.emit("startup_complete")
    try:
        with sigterm_as_interrupt():
            producer = Producer(settings)
            try:
                warn_if_unreachable(producer, COMMAND.name, settings["bootstrap.servers"])
                tool.run(producer)
            finally:
                producer.close()
    except KeyboardInterrupt as error:
        code = exit_code(error)
    tool.events.emit("shutdown_complete")
    elapsed = max(1, int((time.time() - start) * 1000))
    tool.events.emit(
        "tool_data",
        sent=tool.sent,
        acked=tool.acked,
        target_throughput=args["throughput"],
        avg_throughput=1000.0 * tool.acked / elapsed,
    )
    return code


class VerifiableProducer:
    """Sends records in the main thread. The producer's thread calls `_on_result`."""

    def __init__(self, args: Arguments) -> None:
        self.events = Events()
        self.sent = self.acked = 0
        self._topic: str = args["topic"]
        self._max_records: int = args["max-messages"]
        self._prefix: int | None = args["value-prefix"]
        self._key_count: int | None = args["repeating-keys"]
        self._first_timestamp: int = args["message-create-time"]
        self._throttle = Throttle(args["throughput"])

    def run(self, producer: Any) -> None:
        start = now_ms()
        while self._max_records < 0 or self.sent < self._max_records:
            self.events.raise_if_closed()
            index = self.sent
            value = str(index) if self._prefix is None else f"{self._prefix}.{index}"
            key = None if not self._key_count else str(index % self._key_count)
            timestamp = None if self._first_timestamp < 0 else self._first_timestamp + now_ms() - start
            self.sent += 1
            producer.send(self._topic, value, key, None, timestamp, None, partial(self._on_result, key, value))
            self._throttle.wait_after(index)

    def _on_result(self, key: str | None, value: str, metadata: Any, error: Any) -> None:
        if error is None:
            self.acked += 1
            self.events.emit(
                "producer_send_success",
                key=key,
                value=value,
                offset=metadata.offset,
                topic=metadata.topic,
                partition=metadata.partition,
            )
        else:
            self.events.emit(
                "producer_send_error",
                topic=self._topic,
                key=key,
                value=value,
                exception=f"class {type(error).__module__}.{type(error).__name__}",
                message=reason(error),
            )
