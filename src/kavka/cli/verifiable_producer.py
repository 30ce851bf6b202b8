"""`kavka verifiable-producer` (`kafka-verifiable-producer`): send increasing numbers and print each outcome as JSON."""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

from kavka.cli.clients import (
    client_settings,
    ended_by_signals,
    exit_code,
    file_option,
    quiet_logging,
    say_when_nobody_answers,
)
from kavka.cli.connecting import BOOTSTRAP, BROKER_LIST, ZOOKEEPER, bootstrap_servers
from kavka.cli.options import Arguments, Command, Option
from kavka.cli.perf_stats import Throttle, now_ms
from kavka.cli.tool import reason, run

COMMAND = Command(
    "verifiable-producer",
    "Send increasing numbers to a topic, and print as JSON what became of each: for tests of clusters.",
    (
        BOOTSTRAP,
        Option("topic", "The topic to send to.", "topic", required=True, completes="topic"),
        Option("max-messages", "How many records to send; -1: until the tool is ended.", "number", int, -1),
        Option("throughput", "About so many records a second; -1: as many as can be.", "records/s", int, -1),
        Option("acks", "Who must have a record before it counts: 0, 1, or -1 for all in sync.", "acks", int, -1),
        Option("value-prefix", "Values are this number, a dot, and the record's number.", "number", int),
        Option("repeating-keys", "Keys are the numbers from 0 on, below this one, again and again.", "number", int),
        Option(
            "message-create-time",
            "The time of the first record, in milliseconds since 1970; the others follow at once.",
            "milliseconds",
            int,
            -1,
        ),
        file_option("command-config", "A file with settings of the producer."),
        file_option("producer.config", "As --command-config.", older=True),
        BROKER_LIST,
        ZOOKEEPER,
    ),
    examples=("kavka verifiable-producer --bootstrap-server localhost:9092 --topic numbers --max-messages 100",),
)


def main(argv: list[str]) -> int:
    return run(COMMAND, argv, produce)


class Events:
    """JSON objects on standard output, a line each; from any thread. `gone`: nobody reads them any more."""

    def __init__(self) -> None:
        self.gone = False
        self._lock = threading.Lock()

    def say(self, name: str, **fields: Any) -> None:
        line = json.dumps({"timestamp": now_ms(), "name": name, **fields}, separators=(",", ":"), ensure_ascii=False)
        with self._lock:
            try:
                sys.stdout.write(line + "\n")
                sys.stdout.flush()
            except BrokenPipeError:
                self.gone = True

    def check(self) -> None:
        """From the main thread: BrokenPipeError where nobody reads."""
        if self.gone:
            raise BrokenPipeError


def produce(args: Arguments) -> int:
    quiet_logging()
    settings = client_settings(args, ("producer.config", "command-config"), ())
    settings["bootstrap.servers"] = bootstrap_servers(args)
    settings["acks"] = str(args["acks"])
    settings["retries"] = 0
    for name in ("key.serializer", "value.serializer"):
        settings.pop(name, None)
    from kavka.client.producer.producer import Producer

    test = Sending(args)
    code = 0
    start = time.time()
    test.events.say("startup_complete")
    try:
        with ended_by_signals():
            producer = Producer(settings)
            try:
                say_when_nobody_answers(producer, COMMAND.name, settings["bootstrap.servers"])
                test.run(producer)
            finally:
                producer.close()
    except KeyboardInterrupt as error:
        code = exit_code(error)
    test.events.say("shutdown_complete")
    elapsed = max(1, int((time.time() - start) * 1000))
    test.events.say(
        "tool_data",
        sent=test.sent,
        acked=test.acked,
        target_throughput=args["throughput"],
        avg_throughput=1000.0 * test.acked / elapsed,
    )
    return code


class Sending:
    def __init__(self, args: Arguments) -> None:
        self.events = Events()
        self.sent = self.acked = 0
        self._topic: str = args["topic"]
        self._wanted: int = args["max-messages"]
        self._prefix: int | None = args["value-prefix"]
        self._keys: int | None = args["repeating-keys"]
        self._time: int = args["message-create-time"]
        self._throttle = Throttle(args["throughput"])

    def run(self, producer: Any) -> None:
        start = now_ms()
        while self._wanted < 0 or self.sent < self._wanted:
            self.events.check()
            number = self.sent
            value = str(number) if self._prefix is None else f"{self._prefix}.{number}"
            key = None if not self._keys else str(number % self._keys)
            created = None if self._time < 0 else self._time + now_ms() - start
            self.sent += 1
            producer.send(self._topic, value, key, None, created, None, _Outcome(self, key, value))
            self._throttle.after(number)

    def done(self, key: str | None, value: str, metadata: Any, error: Any) -> None:
        if error is None:
            self.acked += 1
            self.events.say(
                "producer_send_success",
                key=key,
                value=value,
                offset=metadata.offset,
                topic=metadata.topic,
                partition=metadata.partition,
            )
        else:
            self.events.say(
                "producer_send_error",
                topic=self._topic,
                key=key,
                value=value,
                exception=f"class {type(error).__module__}.{type(error).__name__}",
                message=reason(error),
            )


class _Outcome:
    """The callback of one record."""

    __slots__ = ("key", "test", "value")

    def __init__(self, test: Sending, key: str | None, value: str) -> None:
        self.test, self.key, self.value = test, key, value

    def __call__(self, metadata: Any, error: Any) -> None:
        self.test.done(self.key, self.value, metadata, error)
