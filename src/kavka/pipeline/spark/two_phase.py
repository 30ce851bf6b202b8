"""The exactly-once sink: every task writes in a transaction of its own, and the driver commits them all or none.

First phase, in the tasks: write, have everything stored, leave the transaction open (`Producer.prepare_transaction`).
Second phase, in the driver: look whether all transactions are still open, record the decision (`decisions.py`), commit
each by its producer id and epoch (`Admin.end_transactions`), which may be repeated as often as one likes.

What a crash leaves:
- before the decision: open transactions that nobody will commit. The batch is run again; a task that takes up the
  transactional id aborts what was open under it, the rest is aborted by the driver's first commit.
- after the decision: some transactions are committed, others not yet, others perhaps aborted by the coordinator since
  `transaction.timeout.ms` is over. The batch is run again; each task finds the decision, and commits its transaction of
  then. If that is (or was) done, the task throws its rows away, having counted that they are as many and as large as
  then; if the transaction was aborted, the task writes again, and the driver makes a new decision in place of the old.

So a task's rows count on a batch being cut into tasks in the same way when it is run again, which Spark sees to: the
offsets of a batch are in the checkpoint, and `offsets.plan` depends on nothing else. Where it is not so, the counts
differ, and the query fails rather than writing twice.

Transactional ids: `<prefix><id of the query>-<task>-<attempt>`, the same for every batch, so that there are few.
Each attempt begins with InitProducerId: producer id and epoch together name one transaction and no other.
"""

from __future__ import annotations

import atexit
import logging
import os
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from kavka.client.admin import Admin
from kavka.client.admin.base import AdminError
from kavka.client.consumer.consumer import Consumer
from kavka.client.consumer.errors import OffsetOutOfRange
from kavka.client.errors import KafkaTimeout
from kavka.client.producer.producer import Producer
from kavka.client.producer.whole import BatchFuture
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.pipeline.spark.cluster import admin_settings, consumer_settings
from kavka.pipeline.spark.decisions import Decision, Decisions, DecisionWriter, TaskEntry
from kavka.pipeline.spark.errors import PipelineError
from kavka.pipeline.spark.options import SinkOptions
from kavka.pipeline.spark.rows import Future, Layout, Send, send, size_of

log = logging.getLogger(__name__)

# What the broker allows at most, by default: a transaction is open for as long as the slowest task of its batch takes.
TRANSACTION_TIMEOUT_MS = 900_000
# Records that cannot be stored fail after delivery.timeout.ms, so that this is never reached.
_PREPARE = 3600.0
_WITNESS_TIMEOUT = 60.0

# The coordinator's way to say that a transaction is not open any more, or that its id was used again or forgotten.
_NOT_OPEN = frozenset(
    {
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
    }
)
_FENCED = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})


@dataclass(frozen=True)
class Attempt:
    """Which attempt at which task of which batch. `run` is Spark's id of this run of the query."""

    query: str
    run: str
    batch: int
    task: int
    attempt: int
    speculation: bool = False

    def transactional_id(self, attempt: int) -> str:
        return f"{self.query}-{self.task}-{attempt}"


@dataclass(frozen=True)
class Report:
    """What a task tells the driver. `seen` is the decision about this batch that it found, `kept` whether what that
    says of this task is committed, so that nothing was written now."""

    attempt: Attempt
    entry: TaskEntry
    seen: str | None = None
    kept: bool = False


# --- in the tasks


def write_stream(
    options: SinkOptions, where: Layout, batches: Iterable[pa.RecordBatch], attempt: Attempt, send: Send = send
) -> Report:
    decision = _decision_for(options, attempt)
    if decision is None:
        return Report(attempt, write(options, where, batches, attempt, send=send))
    entry = decision.tasks.get(attempt.task)
    if entry is None:
        raise PipelineError(_plan_changed(attempt.batch, f"it had no task {attempt.task}"))
    if entry.transaction is not None:
        with Admin(admin_settings(options.client)) as admin:
            committed = commit_again(admin, options, entry)
        if committed:
            rows = size = 0
            for batch in batches:
                rows += batch.num_rows
                size += size_of(batch, where)
            _check_same(attempt, entry, rows, size)
            return Report(attempt, entry, decision.id, kept=True)
    return Report(attempt, write(options, where, batches, attempt, entry, send), decision.id)


def write(
    options: SinkOptions,
    where: Layout,
    batches: Iterable[pa.RecordBatch],
    attempt: Attempt,
    before: TaskEntry | None = None,
    send: Send = send,
) -> TaskEntry:
    """Write in a transaction, and leave it prepared. Whatever goes wrong, it is aborted. `before`: what the task wrote
    when the batch was run before, which was lost."""
    producer: Producer | None = None
    first: Future | None = None
    rows = size = 0
    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            if producer is None:
                producer = _producer(options, attempt)
            futures = send(producer, batch, where)
            first = first or next((one for one in futures if not isinstance(one, BatchFuture) or one.count), None)
            rows += batch.num_rows
            size += size_of(batch, where)
        if before is not None:
            _check_same(attempt, before, rows, size)
        if producer is None or first is None:
            return TaskEntry(attempt.task, rows, size)
        prepared = producer.prepare_transaction(_PREPARE)
        stored = first.get(0)
        return TaskEntry(attempt.task, rows, size, prepared, (stored.topic, stored.partition, stored.offset))
    finally:
        if producer is not None:
            # Aborts unless it was prepared.
            producer.close(10.0)


def _producer(options: SinkOptions, attempt: Attempt) -> Producer:
    if attempt.attempt:
        # What attempts before this one have left open would hold up every reader of committed records.
        before = [attempt.transactional_id(number) for number in range(attempt.attempt)]
        with Admin(admin_settings(options.client)) as admin:
            admin.fence_producers(before)
    settings = {"transaction.timeout.ms": str(TRANSACTION_TIMEOUT_MS), **options.client}
    producer = Producer({**settings, "transactional.id": attempt.transactional_id(attempt.attempt), "acks": "all"})
    try:
        producer.init_transactions()
        producer.begin_transaction()
    except BaseException:
        producer.close(0)
        raise
    return producer


# By query: (process, run, the batch it was asked for, the query's last decision then).
_found: dict[str, tuple[int, str, int, Decision | None]] = {}


def _decision_for(options: SinkOptions, attempt: Attempt) -> Decision | None:
    """The decision about this very batch, if there is one. Only the first batch of a run can have been decided before:
    a process asks once for each run."""
    known = _found.get(attempt.query)
    if known is None or known[:2] != (os.getpid(), attempt.run) or known[2] > attempt.batch:
        known = os.getpid(), attempt.run, attempt.batch, Decisions(options).last(attempt.query)
        _found[attempt.query] = known
    decision = known[3]
    if decision is None or decision.batch < attempt.batch:
        return None
    if decision.batch > attempt.batch:
        raise PipelineError(
            f"batch {decision.batch} of this query was written, and now batch {attempt.batch} is run: "
            "the checkpoint is older than what is in the topics"
        )
    return decision


def _check_same(attempt: Attempt, entry: TaskEntry, rows: int, size: int) -> None:
    if (rows, size) != (entry.rows, entry.size):
        then = f"task {attempt.task} had {entry.rows} rows of {entry.size} bytes, and has {rows} of {size} now"
        raise PipelineError(_plan_changed(attempt.batch, then))


def _plan_changed(batch: int, what: str) -> str:
    return f"batch {batch} was decided before a crash, and is not the same now that it is run again: {what}"


# --- the end of a transaction


def commit_again(admin: Admin, options: SinkOptions, entry: TaskEntry) -> bool:
    """Commit a transaction that was decided on, whether that was done before or not. False if it was aborted."""
    assert entry.transaction is not None
    try:
        admin.end_transactions([entry.transaction])
        return True
    except AdminError as error:
        if error.code not in _NOT_OPEN:
            raise
    return _is_in_the_log(options, entry)


def _is_in_the_log(options: SinkOptions, entry: TaskEntry) -> bool:
    """Whether readers of committed records are given the first record of a transaction that is over."""
    assert entry.witness is not None
    topic, partition, offset = entry.witness
    tp = TopicPartition(topic, partition)
    settings = consumer_settings(options.client)
    with Consumer(
        {**settings, "isolation.level": "read_committed", "auto.offset.reset": "none", "enable.auto.commit": "false"}
    ) as consumer:
        consumer.assign([tp])
        consumer.seek(tp, offset)
        deadline = time.monotonic() + _WITNESS_TIMEOUT
        try:
            while consumer.position(tp) == offset:
                for record in consumer.poll(0.05, 1):
                    return record.offset == offset
                if time.monotonic() > deadline:
                    raise KafkaTimeout(f"whether the transaction at offset {offset} of {tp} was committed is not known")
        except OffsetOutOfRange:
            raise PipelineError(
                f"whether the transaction at offset {offset} of {tp} was committed cannot be told: the record is gone"
            ) from None
    return False


# --- in the driver


class Driver:
    """Commits the batches of one run of a query."""

    def __init__(self, options: SinkOptions, query: str, run: str) -> None:
        self.run = run
        self._options = options
        self._query = query
        self._admin = Admin(admin_settings(options.client))
        decisions = Decisions(options, self._admin)
        decisions.create()
        # From here on no other driver can decide; what was decided before is what is read now.
        self._writer = DecisionWriter(options, query)
        self._last = decisions.last(query)
        self._is_first = True

    def close(self) -> None:
        self._writer.close()
        self._admin.close()

    def commit(self, batch: int, reports: Sequence[Report]) -> None:
        new = [one for one in reports if one.entry.transaction is not None and not one.kept]
        try:
            self._check(batch, reports)
            self._check_open(batch, new)
        except PipelineError:
            abort(self._admin, new)
            raise
        if new:
            decision = Decision(
                self._query, self.run, batch, uuid.uuid4().hex, {one.entry.task: one.entry for one in reports}
            )
            self._writer.write(decision)
            self._last = decision
            self._end(batch, new)
        if self._is_first or any(one.attempt.speculation for one in reports):
            self._is_first = False
            abort_all_of(self._admin, self._query)

    def _check(self, batch: int, reports: Sequence[Report]) -> None:
        """What the tasks knew when they wrote is still so."""
        last = self._last if self._last is not None and self._last.batch >= batch else None
        if last is not None and last.batch > batch:
            raise PipelineError(f"batch {last.batch} of this query was decided by another driver: this one is late")
        if any(one.seen != (last and last.id) for one in reports):
            raise PipelineError(
                f"another driver decided on batch {batch} while this one ran it; start the query again, once"
            )
        if last is not None and set(last.tasks) != {one.entry.task for one in reports}:
            raise PipelineError(_plan_changed(batch, f"it had {len(last.tasks)} tasks, and has {len(reports)} now"))

    def _check_open(self, batch: int, new: Sequence[Report]) -> None:
        """Nothing is decided before every transaction is known to be open."""
        wanted = {one.entry.transaction.transactional_id: one for one in new if one.entry.transaction is not None}
        if not wanted:
            return
        try:
            found = self._admin.describe_transactions(wanted)
        except AdminError as error:
            if any(why.code not in _NOT_OPEN for why in error.errors.values()):
                raise
            found = error.results
        for name, one in wanted.items():
            description = found.get(name)
            prepared = one.entry.transaction
            assert prepared is not None
            if (
                description is None
                or description.state != "Ongoing"
                or (description.producer_id, description.producer_epoch) != prepared[1:3]
            ):
                raise PipelineError(
                    f"batch {batch}: the transaction of task {one.entry.task} was aborted before it could be "
                    f"committed; a batch has to be done within kafka.transaction.timeout.ms "
                    f"({self._options.client.get('transaction.timeout.ms', TRANSACTION_TIMEOUT_MS)})"
                )

    def _end(self, batch: int, new: Sequence[Report]) -> None:
        transactions = {one.entry.transaction.transactional_id: one for one in new if one.entry.transaction is not None}
        try:
            self._admin.end_transactions(
                [one.entry.transaction for one in transactions.values() if one.entry.transaction is not None]
            )
            return
        except AdminError as error:
            if any(why.code not in _NOT_OPEN for why in error.errors.values()):
                raise
            doubtful = [transactions[name] for name in error.errors]
        lost = [one.entry.task for one in doubtful if not commit_again(self._admin, self._options, one.entry)]
        if lost:
            tasks = ", ".join(map(str, lost))
            raise PipelineError(
                f"batch {batch}: the transactions of tasks {tasks} were aborted by the coordinator after the batch was "
                "decided; start the query again: what is missing is written then, and nothing else"
            )


_drivers: dict[tuple[int, str, tuple[tuple[str, str], ...]], Driver] = {}


def commit_stream(options: SinkOptions, batch: int, reports: Sequence[Report]) -> None:
    """Spark keeps the processes that commit: the next batch finds connections and producer there. With several queries
    it has several such processes, and gives the next batch to any of them: the one that has it then fences the one that
    had the last, whose producer is of no use afterwards."""
    if not reports:
        return
    attempt = reports[0].attempt
    key = os.getpid(), attempt.query, tuple(sorted(options.client.items()))
    driver = _drivers.get(key)
    if driver is not None and driver.run == attempt.run:
        try:
            driver.commit(batch, reports)
            return
        except KafkaError as error:
            _forget(key, driver)
            last = Decisions(options).last(attempt.query) if error.code in _FENCED else None
            if last is None or last.run != attempt.run:
                raise
        except BaseException:
            _forget(key, driver)
            raise
    elif driver is not None:
        _forget(key, driver)
    driver = _drivers[key] = Driver(options, attempt.query, attempt.run)
    try:
        driver.commit(batch, reports)
    except BaseException:
        _forget(key, driver)
        raise


def _forget(key: tuple[int, str, tuple[tuple[str, str], ...]], driver: Driver) -> None:
    _drivers.pop(key, None)
    driver.close()


def commit_batch(options: SinkOptions, reports: Sequence[Report]) -> None:
    """A batch that no checkpoint knows: it is not run again, so that there is no decision to be found again."""
    prepared = [one.entry.transaction for one in reports if one.entry.transaction is not None]
    if not prepared:
        return
    with Admin(admin_settings(options.client)) as admin:
        try:
            admin.end_transactions(prepared)
        except AdminError as error:
            if any(why.code not in _NOT_OPEN for why in error.errors.values()):
                raise
            raise PipelineError(
                f"{len(error.errors)} of {len(prepared)} transactions were aborted before they could be committed "
                f"(kafka.transaction.timeout.ms); the others are committed: {error}"
            ) from None


def abort_reports(options: SinkOptions, reports: Sequence[Report]) -> None:
    """The job failed: what its tasks have left open is aborted."""
    if not reports:
        return
    with Admin(admin_settings(options.client)) as admin:
        abort(admin, [one for one in reports if not one.kept])
        abort_all_of(admin, reports[0].attempt.query)


def abort(admin: Admin, reports: Sequence[Report]) -> None:
    prepared = [one.entry.transaction for one in reports if one.entry.transaction is not None]
    try:
        admin.end_transactions(prepared, commit=False)
    except KafkaError as error:
        log.warning("Transactions that will not be committed are left to their timeout: %s", error)


def abort_all_of(admin: Admin, query: str) -> None:
    """What attempts that failed, or drivers that were killed, have left open. Only while nothing is decided and not
    committed."""
    try:
        names = [one.transactional_id for one in admin.list_transactions(states=["Ongoing"])]
        left = [name for name in names if name.startswith(f"{query}-") and name != f"{query}-driver"]
        if left:
            log.info("Aborting what was left open: %s", ", ".join(left))
            admin.fence_producers(left)
    except KafkaError as error:
        log.warning("Transactions that are left open are left to their timeout: %s", error)


@atexit.register
def _close_all() -> None:
    for key, driver in list(_drivers.items()):
        if key[0] == os.getpid():
            driver.close()
