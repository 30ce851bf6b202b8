"""`kavka verifiable-consumer` (`kafka-verifiable-consumer`): print what a member of a group sees and does as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

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
from kavka.cli.tool import reason, run
from kavka.cli.verifiable_producer import Events

if TYPE_CHECKING:
    from kavka.client.consumer.consumer import Consumer

RANGE = "org.apache.kafka.clients.consumer.RangeAssignor"
SESSION_TIMEOUT_MS = 30_000

COMMAND = Command(
    "verifiable-consumer",
    "Read a topic as a member of a group, and print as JSON every rebalance, what was read and what was committed: "
    "for tests of clusters.",
    (
        BOOTSTRAP,
        Option("topic", "The topic to read.", "topic", required=True, completes="topic"),
        Option("group-id", "The consumer group.", "group", required=True, completes="group"),
        Option("group-instance-id", "The member's lasting name in the group.", "name"),
        Option(
            "group-protocol",
            "How the group works.",
            "protocol",
            default="classic",
            choices=("classic", "consumer"),
            ignore_case=True,
        ),
        Option("group-remote-assignor", "The broker's assignor, with --group-protocol consumer.", "name"),
        Option("assignment-strategy", "The assignor's class, with --group-protocol classic.", "class", default=RANGE),
        Option("session-timeout", "The session timeout of a classic member.", "milliseconds", int, SESSION_TIMEOUT_MS),
        Option("max-messages", "How many records to read; -1: until the tool is ended.", "number", int, -1),
        Option(
            "reset-policy",
            "Where to begin without a committed offset.",
            "policy",
            default="earliest",
            choices=("earliest", "latest", "none"),
        ),
        Option("enable-autocommit", "The consumer commits by itself, rather than after every poll."),
        Option("verbose", "Print every record."),
        file_option("command-config", "A file with settings of the consumer."),
        file_option("consumer.config", "As --command-config.", older=True),
        BROKER_LIST,
        ZOOKEEPER,
    ),
    examples=("kavka verifiable-consumer --bootstrap-server localhost:9092 --topic numbers --group-id g --verbose",),
)


def main(argv: list[str]) -> int:
    return run(COMMAND, argv, consume)


def consume(args: Arguments) -> int:
    quiet_logging()
    settings = consumer_settings(args)
    from kavka.client.consumer.consumer import Consumer

    events = Events()
    code = 0
    events.say("startup_complete")
    try:
        with ended_by_signals(), Consumer(settings) as consumer:
            say_when_nobody_answers(consumer, COMMAND.name, settings["bootstrap.servers"])
            try:
                Reading(consumer, events, args).run()
            except KeyboardInterrupt as error:
                events.say("shutdown_requested")
                code = exit_code(error)
    except KeyboardInterrupt as error:
        code = exit_code(error)
    events.say("shutdown_complete")
    return code


class Reading:
    def __init__(self, consumer: Consumer, events: Events, args: Arguments) -> None:
        self._consumer = consumer
        self._events = events
        self._args = args
        self._wanted: int = args["max-messages"]
        self._read = 0

    def run(self) -> None:
        self._consumer.subscribe(
            [self._args["topic"]],
            on_assigned=lambda found: self._partitions("partitions_assigned", found),
            on_revoked=lambda found: self._partitions("partitions_revoked", found),
        )
        while self._wanted < 0 or self._read < self._wanted:
            self._events.check()
            most = None if self._wanted < 0 else self._wanted - self._read
            records = list(self._consumer.poll(1.0, max_records=None if most is None else min(500, most)))
            if not records:
                continue
            self._read += len(records)
            self._received(records)
            if not self._args["enable-autocommit"]:
                self._commit(records)

    def _partitions(self, name: str, partitions: Iterable[Any]) -> None:
        shown = [{"topic": tp.topic, "partition": tp.partition} for tp in sorted(partitions)]
        self._events.say(name, partitions=shown)

    def _received(self, records: list[Any]) -> None:
        by_partition: dict[tuple[str, int], list[int]] = {}
        for record in records:
            by_partition.setdefault((record.topic, record.partition), []).append(record.offset)
            if self._args["verbose"]:
                self._events.say(
                    "record_data",
                    key=_text(record.key),
                    value=_text(record.value),
                    topic=record.topic,
                    partition=record.partition,
                    offset=record.offset,
                )
        self._events.say(
            "records_consumed",
            count=len(records),
            partitions=[
                {
                    "topic": topic,
                    "partition": partition,
                    "count": len(offsets),
                    "minOffset": offsets[0],
                    "maxOffset": offsets[-1],
                }
                for (topic, partition), offsets in by_partition.items()
            ],
        )

    def _commit(self, records: list[Any]) -> None:
        from kavka.common.errors import KafkaError

        offsets = {(record.topic, record.partition): record.offset + 1 for record in records}
        shown = [{"topic": tp[0], "partition": tp[1], "offset": offset} for tp, offset in offsets.items()]
        try:
            self._consumer.commit_sync(offsets)
        except KafkaError as error:
            self._events.say("offsets_committed", offsets=shown, success=False, error=reason(error))
        else:
            self._events.say("offsets_committed", offsets=shown, success=True)


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode(errors="replace")


def consumer_settings(args: Arguments) -> dict[str, Any]:
    settings = client_settings(args, ("consumer.config", "command-config"), ())
    settings["bootstrap.servers"] = bootstrap_servers(args)
    settings["group.id"] = args["group-id"]
    settings["enable.auto.commit"] = "true" if args["enable-autocommit"] else "false"
    settings["auto.offset.reset"] = args["reset-policy"]
    settings["group.protocol"] = args["group-protocol"]
    if args["group-instance-id"] is not None:
        settings["group.instance.id"] = args["group-instance-id"]
    if args["group-protocol"] == "consumer":
        for name in ("session.timeout.ms", "partition.assignment.strategy", "heartbeat.interval.ms"):
            settings.pop(name, None)
        if args["group-remote-assignor"] is not None:
            settings["group.remote.assignor"] = args["group-remote-assignor"]
    else:
        settings["session.timeout.ms"] = args["session-timeout"]
        settings["partition.assignment.strategy"] = args["assignment-strategy"]
    for name in ("key.deserializer", "value.deserializer"):
        settings.pop(name, None)
    return settings
