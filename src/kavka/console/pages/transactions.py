"""Transactions and producers. Finds open and hanging transactions, and aborts them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Annotated

from starlette.responses import Response

from kavka.client.admin.base import AdminError
from kavka.client.admin.types import TransactionDescription, TransactionListing
from kavka.common.types import TopicPartition
from kavka.console.auth import Role
from kavka.console.context import Context, check_confirmation, fingerprint
from kavka.console.errors import Refused, reason
from kavka.console.registry import Bounds, Done, action, query
from kavka.console.views import Pager, View, page

OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")
DEFAULT_MINUTES = 15
"""The default of transaction.max.timeout.ms. An open transaction that is older may hang."""
MINUTE_MS = 60_000
REQUEST_TIMEOUT_S = 5.0


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
        return self.state in OPEN_STATES


@dataclass(frozen=True, slots=True)
class OpenRow:
    """An open transaction in a partition. `hangs` means that no coordinator will end it."""

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


@query("/transactions", "List the transactions of all coordinators")
async def list_transactions(
    context: Context,
    search: Annotated[str, "Part of a transactional id"] = "",
    only_open: Annotated[bool, "Only open transactions"] = False,
) -> TransactionsFound:
    pattern = search.strip().lower()
    problems: list[str] = []
    try:
        listings = await context.admin.list_transactions(timeout=REQUEST_TIMEOUT_S)
    except AdminError as error:
        listings = [listing for broker_listings in error.results.values() for listing in broker_listings]
        problems = [
            f"broker {broker} did not list its transactions: {reason(cause)}" for broker, cause in error.errors.items()
        ]
    listings = [
        listing
        for listing in listings
        if pattern in listing.transactional_id.lower() and (listing.state in OPEN_STATES or not only_open)
    ]
    descriptions: dict[str, TransactionDescription] = {}
    open_ids = [listing.transactional_id for listing in listings if listing.state in OPEN_STATES]
    if open_ids:
        try:
            descriptions = await context.admin.describe_transactions(open_ids, timeout=REQUEST_TIMEOUT_S)
        except AdminError as error:
            descriptions = error.results
    rows = [_transaction_row(listing, descriptions.get(listing.transactional_id)) for listing in listings]
    rows.sort(key=lambda row: (not row.open, -(row.seconds or 0), row.transactional_id))
    return TransactionsFound(rows, problems)


def _transaction_row(listing: TransactionListing, description: TransactionDescription | None) -> TransactionRow:
    start_ms = description.start_time_ms if description else None
    return TransactionRow(
        listing.transactional_id,
        listing.producer_id,
        description.producer_epoch if description else None,
        listing.state,
        listing.coordinator,
        None if start_ms is None else start_ms / 1000,
        None if start_ms is None else max(0.0, time.time() - start_ms / 1000),
        description.timeout_ms / 1000 if description else None,
        [str(tp) for tp in sorted(description.partitions)] if description else [],
    )


@query("/transactions/open", "List the open transactions in partitions, and which of them hang")
async def find_open_transactions(
    context: Context,
    topic: Annotated[str, "Only this topic"] = "",
    minutes: Annotated[float, "Only transactions without a write for so many minutes", Bounds(0)] = DEFAULT_MINUTES,
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
            problems.append(f"{tp} has no leader")
        else:
            partitions.append(tp)
    transactions = []
    try:
        transactions = await context.admin.find_open_transactions(partitions, older_than_ms=int(minutes * MINUTE_MS))
    except AdminError as error:
        problems.append(f"the search is incomplete: {reason(error)}")
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


@query("/producers", "List the producers of a partition")
async def list_producers(context: Context, topic: str, partition: Annotated[int, Bounds(0)] = 0) -> list[ProducerRow]:
    current_topic = await context.cluster.topic(topic)
    if partition >= len(current_topic.partitions):
        raise Refused(f"{topic} has {len(current_topic.partitions)} partitions", 404, "partition")
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


@action("/transactions/abort", "Abort a hanging transaction in a partition", role=Role.ADMIN)
async def abort_transaction(
    context: Context,
    topic: str,
    partition: Annotated[int, Bounds(0)],
    start_offset: Annotated[int, Bounds(0)],
    confirm: Annotated[str, "The partition, such as topic-0"],
    producer_id: Annotated[int | None, "Abort only a transaction of this producer"] = None,
) -> Done:
    """Bypasses the coordinator. Only for a transaction that no coordinator will end."""
    tp = TopicPartition(topic, partition)
    check_confirmation(typed=confirm, name=str(tp))
    spec = await context.admin.find_transaction(tp, start_offset)
    if spec is None or (producer_id is not None and spec.producer_id != producer_id):
        raise Refused(f"no transaction is open in {tp} at offset {start_offset}; nothing was done", 409)
    open_transactions = await context.admin.find_open_transactions([tp])
    if not any(t.hangs for t in open_transactions if t.producer.producer_id == spec.producer_id):
        raise Refused(f"the transaction in {tp} does not hang: its coordinator will end it; nothing was done", 409)
    await context.admin.abort_transaction(spec)
    return Done(f"the transaction of producer {spec.producer_id} in {tp} was aborted")


@action("/transactions/terminate", "Fence the producer of a transactional id and abort its transaction",
        role=Role.ADMIN)  # fmt: skip
async def terminate_transaction(context: Context, transactional_id: str, confirm: str, seen: str = "") -> Done:
    description = (await context.admin.describe_transactions([transactional_id]))[transactional_id]
    check_confirmation(
        typed=confirm,
        name=transactional_id,
        seen=seen,
        current=fingerprint(transactional_id, description.producer_id, description.start_time_ms),
    )
    await context.admin.fence_producers([transactional_id])
    return Done(f"the producer of {transactional_id} was fenced, and its transaction aborted")


@page("/transactions", "Transactions", nav="Transactions", icon="arrow-left-right", section="Data")
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
