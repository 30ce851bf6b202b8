"""`kavka transactions` (`kafka-transactions`): show transactions, find and abort hanging ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from kavka.cli.connecting import JSON, admin_for, connection_options
from kavka.cli.options import Arguments, Command, Option, UsageError
from kavka.cli.output import at_terminal, print_json, print_table
from kavka.cli.perf_stats import now_ms
from kavka.cli.tool import ToolError, reason, run
from kavka.common.errors import KafkaError
from kavka.common.types import TopicPartition

if TYPE_CHECKING:
    from kavka.client.admin import Admin

_TOPIC = Option("topic", "The topic.", "topic", required=True, completes="topic")
_PARTITION = Option("partition", "The partition.", "partition", int, required=True)
MINUTE_MS = 60_000

COMMAND = Command(
    "transactions",
    "Show the transactions of coordinators and partitions; find and abort hanging transactions.",
    (JSON, *connection_options()),
    subcommands=(
        Command(
            "list",
            "List transactions.",
            (
                Option(
                    "duration-filter",
                    "Only transactions open for longer than this time (ms); all if negative.",
                    "ms",
                    int,
                    -1,
                ),
                Option("transactional-id-pattern", "Only ids that match this regular expression.", "pattern"),
            ),
        ),
        Command(
            "describe",
            "Describe the state of a transactional id.",
            (Option("transactional-id", "The id.", "transactional id", required=True),),
        ),
        Command(
            "describe-producers",
            "Describe the producer state of a partition.",
            (
                Option("broker-id", "Query the replica on this broker instead of the leader.", "broker id", int),
                _TOPIC,
                _PARTITION,
            ),
        ),
        Command(
            "abort",
            "Abort a hanging transaction of a partition.",
            (
                _TOPIC,
                _PARTITION,
                Option("start-offset", "The start offset of the transaction.", "start offset", int),
                Option(
                    "producer-id", "For brokers before 3.0, with the next two.", "producer id", int, deprecated=True
                ),
                Option("producer-epoch", "See --producer-id.", "producer epoch", int, deprecated=True),
                Option("coordinator-epoch", "See --producer-id.", "coordinator epoch", int, deprecated=True),
            ),
        ),
        Command(
            "find-hanging",
            "Find hanging transactions, which no coordinator will end.",
            (
                Option("broker-id", "Search this broker.", "broker id", int),
                Option(
                    "max-transaction-timeout",
                    "The maximum transaction timeout of producers (minutes). Younger transactions are excluded.",
                    "minutes",
                    int,
                    15,
                ),
                Option("topic", "Search this topic.", "topic", completes="topic"),
                Option("partition", "Search this partition of the topic.", "partition", int),
            ),
        ),
        Command(
            "forceTerminateTransaction",
            "Abort the open transaction of a transactional id and fence its producer.",
            (Option("transactionalId", "The id.", "transactional id", required=True),),
        ),
    ),
    examples=(
        "kavka transactions --bootstrap-server localhost:9092 list",
        "kavka transactions --bootstrap-server localhost:9092 find-hanging --broker-id 0",
        "kavka transactions --bootstrap-server localhost:9092 abort --topic orders --partition 0 --start-offset 42",
    ),
)

HANGING_HEADINGS = (
    "Topic",
    "Partition",
    "ProducerId",
    "ProducerEpoch",
    "CoordinatorEpoch",
    "StartOffset",
    "LastTimestamp",
    "Duration(min)",
)


def main(argv: list[str]) -> int:
    return run(COMMAND, argv, _body)


def _body(args: Arguments) -> None:
    action = {
        "list": _list,
        "describe": _describe,
        "describe-producers": _describe_producers,
        "abort": _abort,
        "find-hanging": _find_hanging,
        "forceTerminateTransaction": _terminate,
    }[args.subcommand]
    if args.subcommand == "find-hanging":
        if "topic" not in args and "broker-id" not in args:
            raise UsageError(
                "The `find-hanging` command requires either --topic or --broker-id to limit the scope of the search"
            )
        if "partition" in args and "topic" not in args:
            raise UsageError("The --partition argument requires --topic to be provided")
    with admin_for(args) as admin:
        action(admin, args)


def show(args: Arguments, headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table. In a pipe, as in Kafka, every column is padded and followed by a tab."""
    rows = list(rows)
    if args["json"]:
        names = [heading[0].lower() + heading[1:].replace("(min)", "Minutes") for heading in headings]
        print_json([dict(zip(names, row, strict=True)) for row in rows])
        return
    if at_terminal():
        print_table(headings, rows)
        return
    texts = [list(headings), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in texts) for i in range(len(headings))]
    for row in texts:
        print("".join(f"{cell:<{width}}\t" for cell, width in zip(row, widths, strict=True)))


def _list(admin: Admin, args: Arguments) -> None:
    min_duration = args["duration-filter"]
    try:
        transactions = admin.list_transactions(
            longer_than_ms=min_duration if min_duration >= 0 else None, pattern=args["transactional-id-pattern"]
        )
    except KafkaError as error:
        raise ToolError(f"Failed to list transactions: {reason(error)}") from None
    show(
        args,
        ("TransactionalId", "Coordinator", "ProducerId", "TransactionState"),
        [(t.transactional_id, t.coordinator, t.producer_id, t.state) for t in transactions],
    )


def _describe(admin: Admin, args: Arguments) -> None:
    name = args["transactional-id"]
    try:
        transaction = admin.describe_transactions(name)[name]
    except KafkaError as error:
        raise ToolError(f"Failed to describe transaction state of transactional-id `{name}`: {reason(error)}") from None
    start_time = transaction.start_time_ms
    show(
        args,
        (
            "CoordinatorId",
            "TransactionalId",
            "ProducerId",
            "ProducerEpoch",
            "TransactionState",
            "TransactionTimeoutMs",
            "CurrentTransactionStartTimeMs",
            "TransactionDurationMs",
            "TopicPartitions",
        ),
        [
            (
                transaction.coordinator.id,
                name,
                transaction.producer_id,
                transaction.producer_epoch,
                transaction.state,
                transaction.timeout_ms,
                start_time,
                None if start_time is None else now_ms() - start_time,
                ",".join(map(str, sorted(transaction.partitions))),
            )
        ],
    )


def _describe_producers(admin: Admin, args: Arguments) -> None:
    tp = TopicPartition(args["topic"], args["partition"])
    broker = args["broker-id"]
    try:
        producers = admin.describe_producers([tp], broker_id=broker)[tp]
    except KafkaError as error:
        replica = "leader" if broker is None else f"broker {broker}"
        raise ToolError(f"Failed to describe producers for partition {tp} on {replica}: {reason(error)}") from None
    show(
        args,
        (
            "ProducerId",
            "ProducerEpoch",
            "LatestCoordinatorEpoch",
            "LastSequence",
            "LastTimestamp",
            "CurrentTransactionStartOffset",
        ),
        [
            (
                p.producer_id,
                p.producer_epoch,
                -1 if p.coordinator_epoch is None else p.coordinator_epoch,
                p.last_sequence,
                p.last_timestamp,
                p.current_transaction_start_offset,
            )
            for p in producers
        ],
    )


def _abort(admin: Admin, args: Arguments) -> None:
    from kavka.client.admin.types import AbortTransactionSpec

    tp = TopicPartition(args["topic"], args["partition"])
    if "start-offset" in args:
        start_offset = args["start-offset"]
        try:
            transaction = admin.find_transaction(tp, start_offset)
        except KafkaError as error:
            raise ToolError(f"Failed to validate producer state for partition {tp}: {reason(error)}") from None
        if transaction is None:
            raise ToolError(f"Could not find any open transactions starting at offset {start_offset} on partition {tp}")
        spec = transaction
    elif "producer-id" in args:
        for name in ("producer-epoch", "coordinator-epoch"):
            if name not in args:
                raise UsageError(f"Missing required argument --{name}")
        # Before its first completed transaction, a producer has no coordinator epoch. Use the
        # lowest.
        epoch = max(0, args["coordinator-epoch"])
        spec = AbortTransactionSpec(tp, args["producer-id"], args["producer-epoch"], epoch)
    else:
        raise UsageError(
            "The transaction to abort must be identified either with --start-offset (for brokers on 3.0 or above) or "
            "with --producer-id, --producer-epoch, and --coordinator-epoch (for older brokers)"
        )
    try:
        admin.abort_transaction(spec)
    except KafkaError as error:
        raise ToolError(f"Failed to abort transaction {spec.producer_id} on {tp}: {reason(error)}") from None


def _find_hanging(admin: Admin, args: Arguments) -> None:
    transactions = admin.find_open_transactions(
        _partitions_to_search(admin, args),
        older_than_ms=args["max-transaction-timeout"] * MINUTE_MS,
        broker_id=args["broker-id"],
    )
    show(
        args,
        HANGING_HEADINGS,
        [
            (
                tp.topic,
                tp.partition,
                p.producer_id,
                p.producer_epoch,
                -1 if p.coordinator_epoch is None else p.coordinator_epoch,
                p.current_transaction_start_offset,
                p.last_timestamp,
                (now_ms() - p.last_timestamp) // MINUTE_MS,
            )
            for tp, p, is_hanging in transactions
            if is_hanging
        ],
    )


def _partitions_to_search(admin: Admin, args: Arguments) -> list[TopicPartition]:
    if "partition" in args:
        return [TopicPartition(args["topic"], args["partition"])]
    topics = [args["topic"]] if "topic" in args else sorted(admin.list_topics())
    broker = args["broker-id"]
    return sorted(
        TopicPartition(description.name, info.partition)
        for description in (admin.describe_topics(topics).values() if topics else ())
        for info in description.partitions
        if broker is None or any(node.id == broker for node in info.replicas)
    )


def _terminate(admin: Admin, args: Arguments) -> None:
    name = args["transactionalId"]
    try:
        admin.fence_producers([name])
    except KafkaError as error:
        raise ToolError(f"Failed to force terminate transactionalId `{name}`: {reason(error)}") from None
