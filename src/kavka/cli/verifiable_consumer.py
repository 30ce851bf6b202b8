"""`kavka verifiable-consumer` (`kafka-verifiable-consumer`): print the events of a group member as
JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

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
from kavka.cli.tool import reason, run
from kavka.cli.verifiable_producer import Events

if TYPE_CHECKING:
    from kavka.client.consumer.consumer import Consumer

RANGE = "org.apache.kafka.clients.consumer.RangeAssignor"
SESSION_TIMEOUT_MS = 30_000

COMMAND = Command(
    "verifiable-consumer",
    "Read a topic as a member of a group, and print rebalances, records and commits as JSON. For tests of clusters.",
    (
        BOOTSTRAP,
        Option("topic", "The topic to read.", "topic", required=True, completes="topic"),
        Option("group-id", "The consumer group.", "group", required=True, completes="group"),
        Option("group-instance-id", "The id of a static member.", "name"),
        Option(
            "group-protocol",
            "The group protocol.",
            "protocol",
            default="classic",
            choices=("classic", "consumer"),
            ignore_case=True,
        ),
        Option("group-remote-assignor", "The broker's assignor, with --group-protocol consumer.", "name"),
        Option("assignment-strategy", "The assignor's class, with --group-protocol classic.", "class", default=RANGE),
        Option("session-timeout", "The session timeout of a classic member.", "milliseconds", int, SESSION_TIMEOUT_MS),
        Option("max-messages", "Number of records to read; -1: no limit.", "number", int, -1),
        Option(
            "reset-policy",
            "The start position without a committed offset.",
            "policy",
            default="earliest",
            choices=("earliest", "latest", "none"),
        ),
        Option("enable-autocommit", "Commit periodically instead of after every poll."),
        Option("verbose", "Print every record."),
        file_option("command-config", "A file with consumer settings."),
        file_option("consumer.config", "Same as --command-config.", deprecated=True),
        BROKER_LIST,
        ZOOKEEPER,
    ),
    examples=("kavka verifiable-consumer --bootstrap-server localhost:9092 --topic numbers --group-id g --verbose",),
)


def main(argv: list[str]) -> int:
    return run(COMMAND, argv, consume)


def consume(args: Arguments) -> int:
    log_only_errors()
    settings = consumer_settings(args)
    from kavka.client.consumer.consumer import Consumer

    events = Events()
    code = 0
    events.emit("startup_complete")
    try:
        with sigterm_as_interrupt(), Consumer(settings) as consumer:
            warn_if_unreachable(consumer, COMMAND.name, settings["bootstrap.servers"])
            try:
                VerifiableConsumer(consumer, events, args).run()
            except KeyboardInterrupt as error:
                events.emit("shutdown_requested")
                code = exit_code(error)
    except KeyboardInterrupt as error:
        code = exit_code(error)
    events.emit("shutdown_complete")
    return code


class VerifiableConsumer:
    """Reads records and prints events, in one thread."""

    def __init__(self, consumer: Consumer, events: Events, args: Arguments) -> None:
        self._consumer = consumer
        self._events = events
        self._args = args
        self._max_records: int = args["max-messages"]
        self._count = 0

    def run(self) -> None:
        self._consumer.subscribe(
            [self._args["topic"]],
            on_assigned=lambda partitions: self._emit_partitions("partitions_assigned", partitions),
            on_revoked=lambda partitions: self._emit_partitions("partitions_revoked", partitions),
        )
        while self._max_records < 0 or self._count < self._max_records:
            self._events.raise_if_closed()
            remaining = None if self._max_records < 0 else self._max_records - self._count
            records = list(self._consumer.poll(1.0, max_records=None if remaining is None else min(500, remaining)))
            if not records:
                continue
            self._count += len(records)
            self._emit_records(records)
            if not self._args["enable-autocommit"]:
                self._commit(records)

    def _emit_partitions(self, event: str, partitions: Iterable[Any]) -> None:
        described = [{"topic": tp.topic, "partition": tp.partition} for tp in sorted(partitions)]
        self._events.emit(event, partitions=described)

    def _emit_records(self, records: list[Any]) -> None:
        offsets_by_partition: dict[tuple[str, int], list[int]] = {}
        for record in records:
            offsets_by_partition.setdefault((record.topic, record.partition), []).append(record.offset)
            if self._args["verbose"]:
                self._events.emit(
                    "record_data",
                    key=_text(record.key),
                    value=_text(record.value),
                    topic=record.topic,
                    partition=record.partition,
                    offset=record.offset,
                )
        self._events.emit(
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
                for (topic, partition), offsets in offsets_by_partition.items()
            ],
        )

    def _commit(self, records: list[Any]) -> None:
        from kavka.common.errors import KafkaError

        offsets = {(record.topic, record.partition): record.offset + 1 for record in records}
        described = [{"topic": tp[0], "partition": tp[1], "offset": offset} for tp, offset in offsets.items()]
        try:
            self._consumer.commit_sync(offsets)
        except KafkaError as error:
            self._events.emit("offsets_committed", offsets=described, success=False, error=reason(error))
        else:
            self._events.emit("offsets_committed", offsets=described, success=True)


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
    return settings
