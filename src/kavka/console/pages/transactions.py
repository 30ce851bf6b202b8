"""Transactions and producers: open and hanging transactions, and their termination."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Annotated

from starlette.responses import Response

from kavka.client.admin.base import AdminError
from kavka.client.admin.types import TransactionDescription
from kavka.common.types import TopicPartition
from kavka.console.auth import Role
from kavka.console.context import Context, check_confirmation, fingerprint
from kavka.console.errors import Refused, reason
from kavka.console.registry import Bounds, Done, action, query
from kavka.console.views import Pager, View, page

OPEN = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")
DEFAULT_MINUTES = 15
"""The default of transaction.max.timeout.ms: an older open transaction may hang."""
MINUTE_MS = 60_000
TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class TransactionRow:
    """A transaction as its coordinator reports it."""

    transactional_id: str
    producer_id: int
    producer_epoch: int | None
    state: str
    coordinator: int
    started: float | None
    """The start of an open transaction, in seconds since the epoch."""
    seconds: float | None
    timeout_seconds: float | None
    partitions: list[str]

    @property
    def open(self) -> bool:
        return self.state in OPEN


@dataclass(frozen=True, slots=True)
class OpenRow:
    """An open transaction in a partition. `hangs`: no coordinator will end it."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    start_offset: int
    last_written: float
    seconds: float
    hangs: bool


@dataclass(frozen=True, slots=True)
class ProducerRow:
    """A producer as a partition leader reports it."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_written: float
    coordinator_epoch: int | None
    open_since_offset: int | None


@dataclass(frozen=True, slots=True)
class TransactionsFound:
    """Transactions. `problems` has a line per coordinator that did not respond."""

    rows: list[TransactionRow]
    problems: list[str]


@dataclass(frozen=True, slots=True)
class Search:
    """The open transactions of the searched partitions."""

    rows: list[OpenRow]
    partitions: int
    problems: list[str]


@query("/transactions", "The transactions that coordinators know")
async def list_transactions(
    context: Context,
    search: Annotated[str, "Part of a transactional id"] = "",
    only_open: Annotated[bool, "Only those that are open"] = False,
) -> TransactionsFound:
    pattern = search.strip().lower()
    problems: list[str] = []
    try:
        everything = await context.admin.list_transactions(timeout=TIMEOUT_S)
    except AdminError as error:
        everything = [listing for some in error.results.values() for listing in some]
        problems = [
            f"broker {broker} did not list its transactions: {reason(why)}" for broker, why in error.errors.items()
        ]
    listed = [t for t in everything if pattern in t.transactional_id.lower()]
    described: dict[str, TransactionDescription] = {}
    running = [t.transactional_id for t in listed if t.state in OPEN]
    if running:
        try:
            described = await context.admin.describe_transactions(running, timeout=TIMEOUT_S)
        except AdminError as error:
            described = error.results
    now = time.time()
    rows = []
    for listing in listed:
        description = described.get(listing.transactional_id)
        if only_open and listing.state not in OPEN:
            continue
        began = (
            description.start_time_ms / 1000
            if description is not None and description.start_time_ms is not None
            else None
        )
        rows.append(
            TransactionRow(
                listing.transactional_id,
                listing.producer_id,
                description.producer_epoch if description else None,
                listing.state,
                listing.coordinator,
                began,
                None if began is None else max(0.0, now - began),
                description.timeout_ms / 1000 if description else None,
                [str(tp) for tp in sorted(description.partitions)] if description else [],
            )
        )
    rows.sort(key=lambda row: (not row.open, -(row.seconds or 0), row.transactional_id))
    return TransactionsFound(rows, problems)


@query("/transactions/open", "What is open in partitions, and which of it hangs")
async def find_open_transactions(
    context: Context,
    topic: Annotated[str, "Of this topic alone"] = "",
    minutes: Annotated[float, "With nothing written for so long", Bounds(0)] = DEFAULT_MINUTES,
) -> Search:
    """Queries the leader of every partition."""
    sample = await context.cluster.state()
    if topic and topic not in sample.topics:
        raise Refused(f"there is no topic '{topic}'", 404, "topic")
    partitions, problems = [], []
    for partition in sample.partitions:
        if topic and partition.topic != topic:
            continue
        tp = TopicPartition(partition.topic, partition.id)
        if partition.offline:
            problems.append(f"{tp} has no leader that could be asked")
        else:
            partitions.append(tp)
    transactions = []
    try:
        transactions = await context.admin.find_open_transactions(partitions, older_than_ms=int(minutes * MINUTE_MS))
    except AdminError as error:
        problems.append(f"not all could be asked: {reason(error)}")
    now = time.time()
    return Search(
        [
            OpenRow(
                transaction.partition.topic,
                transaction.partition.partition,
                transaction.producer.producer_id,
                transaction.producer.producer_epoch,
                transaction.producer.current_transaction_start_offset or 0,
                transaction.producer.last_timestamp / 1000,
                max(0.0, now - transaction.producer.last_timestamp / 1000),
                transaction.hangs,
            )
            for transaction in transactions
        ],
        len(partitions),
        problems[:20],
    )


@query("/producers", "The producers that a partition's leader knows")
async def list_producers(context: Context, topic: str, partition: Annotated[int, Bounds(0)] = 0) -> list[ProducerRow]:
    described = await context.cluster.topic(topic)
    if partition >= len(described.partitions):
        raise Refused(f"{topic} has {len(described.partitions)} partitions, from 0 on", 404, "partition")
    tp = TopicPartition(topic, partition)
    states = (await context.admin.describe_producers([tp]))[tp]
    return [
        ProducerRow(
            p.producer_id,
            p.producer_epoch,
            p.last_sequence,
            p.last_timestamp / 1000,
            p.coordinator_epoch,
            p.current_transaction_start_offset,
        )
        for p in sorted(states)
    ]


@action("/transactions/abort", "End a transaction that hangs in a partition", role=Role.ADMIN)
async def abort_transaction(
    context: Context,
    topic: str,
    partition: Annotated[int, Bounds(0)],
    start_offset: Annotated[int, Bounds(0)],
    confirm: Annotated[str, "The topic and partition, as topic-0"],
    producer_id: Annotated[int | None, "As it was shown: another one is not ended"] = None,
) -> Done:
    """Bypasses the coordinator: only for a transaction that no coordinator will end."""
    tp = TopicPartition(topic, partition)
    check_confirmation(typed=confirm, name=str(tp), seen="", now="")
    spec = await context.admin.find_transaction(tp, start_offset)
    if spec is None or (producer_id is not None and spec.producer_id != producer_id):
        raise Refused(f"no transaction is open in {tp} from offset {start_offset} on (any more); nothing was done", 409)
    open_ones = await context.admin.find_open_transactions([tp])
    if not any(transaction.hangs for transaction in open_ones if transaction.producer.producer_id == spec.producer_id):
        raise Refused(f"a coordinator looks after this transaction in {tp}: it does not hang; nothing was done", 409)
    await context.admin.abort_transaction(spec)
    return Done(f"the transaction of producer {spec.producer_id} in {tp} is aborted")


@action("/transactions/terminate", "Abort the transaction of a transactional id, and shut its producer out",
        role=Role.ADMIN)  # fmt: skip
async def terminate_transaction(context: Context, transactional_id: str, confirm: str, seen: str = "") -> Done:
    description = (await context.admin.describe_transactions([transactional_id]))[transactional_id]
    check_confirmation(
        typed=confirm,
        name=transactional_id,
        seen=seen,
        now=fingerprint(transactional_id, description.producer_id, description.start_time_ms),
    )
    await context.admin.fence_producers([transactional_id])
    return Done(f"the producer of {transactional_id} is shut out, its transaction aborted")


@page("/transactions", "Transactions", nav="Transactions")
async def transactions_page(view: View) -> Response:
    context = view.context
    await context.cluster.state()
    result = await list_transactions(context, view.text("search"), view.flag("only_open"))
    rows = result.rows
    hanging = None
    if view.flag("hanging"):
        hanging = await find_open_transactions(context, view.text("topic"), view.number("minutes", DEFAULT_MINUTES))
    producers = None
    of_topic, of_partition = view.text("of_topic"), view.number("of_partition")
    if of_topic:
        producers = await list_producers(context, of_topic, of_partition)
    return view.render(
        "transactions.html",
        pager=Pager(view, rows),
        problems=result.problems,
        open_ones=sum(row.open for row in rows),
        hanging=hanging,
        minutes=view.number("minutes", DEFAULT_MINUTES),
        producers=producers,
        of_topic=of_topic,
        of_partition=of_partition,
        may_abort=context.user.role >= Role.ADMIN,
        fingerprint=_seen,
    )


def _seen(row: TransactionRow) -> str:
    started = None if row.started is None else round(row.started * 1000)
    return fingerprint(row.transactional_id, row.producer_id, started)
