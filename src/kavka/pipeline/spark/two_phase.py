"""The exactly-once sink: every task writes in its own transaction, and the driver commits all of
them or none.

First phase, in the tasks: write the records, wait until they are stored, and leave the transaction
open (`Producer.prepare_transaction`). Second phase, in the driver: check that all transactions are
still open, store the decision (`decisions.py`), and commit each transaction by its producer id and
epoch (`Admin.end_transactions`). A commit can be repeated.

After a crash:
- before the decision: there are open transactions that will not be committed. The batch runs again.
  A task that reuses the transactional id aborts the open transaction. The driver's first commit
  aborts the other open transactions.
- after the decision: some transactions are committed, and some are open. The coordinator may have
  aborted some after `transaction.timeout.ms`. The batch runs again. Each task finds the decision
  and commits its earlier transaction. If that succeeds, the task checks that its rows have the same
  number and size, and discards them. If the transaction was aborted, the task writes again, and the
  driver stores a new decision, which replaces the previous one.

A batch must have the same tasks when it runs again. Spark ensures this: the offsets of a batch are
in the checkpoint, and `offsets.plan` depends on nothing else. If the tasks differ, the query fails
instead of writing records twice.

Transactional ids are `<prefix><id of the query>-<task>-<attempt>`. All batches use the same ids, so
that there are few. Each attempt starts with InitProducerId, so producer id and epoch together
identify one transaction.
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
from kavka.client.producer.send_batch import BatchFuture
from kavka.client.types import PreparedTransaction
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.pipeline.spark.cluster import admin_settings, consumer_settings
from kavka.pipeline.spark.decisions import Decision, Decisions, DecisionWriter, TaskEntry
from kavka.pipeline.spark.errors import PipelineError
from kavka.pipeline.spark.options import SinkOptions
from kavka.pipeline.spark.rows import Future, Layout, Send, send, size_of
from kavka.pipeline.spark.writing import SinkErrors

logger = logging.getLogger(__name__)

# The broker's default maximum. A transaction stays open until the slowest task of its batch ends.
TRANSACTION_TIMEOUT_MS = 900_000
# Records that cannot be stored fail after delivery.timeout.ms, which is shorter by default.
_PREPARE_TIMEOUT = 3600.0
_WITNESS_TIMEOUT = 60.0

# Error codes of the coordinator for a transaction that is no longer open, or whose transactional id
# was reused or has expired.
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
    """An attempt of a task of a batch. `run` is Spark's id of this run of the query."""

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
    """The report of a task to the driver. `decision_id` is the id of the existing decision about
    this batch. `is_committed` means that the task's transaction of that decision is committed, and
    that the task has not written again."""

    attempt: Attempt
    entry: TaskEntry
    decision_id: str | None = None
    is_committed: bool = False


# --- in the tasks


def write_stream(
    options: SinkOptions,
    layout: Layout,
    batches: Iterable[pa.RecordBatch],
    attempt: Attempt,
    send: Send = send,
    errors: SinkErrors | None = None,
) -> Report:
    decision = _decision_for(options, attempt)
    if decision is None:
        return Report(attempt, write(options, layout, batches, attempt, send=send, errors=errors))
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
                size += size_of(batch, layout)
            _check_same(attempt, entry, rows, size)
            return Report(attempt, entry, decision.id, is_committed=True)
    return Report(attempt, write(options, layout, batches, attempt, entry, send, errors), decision.id)


def write(
    options: SinkOptions,
    layout: Layout,
    batches: Iterable[pa.RecordBatch],
    attempt: Attempt,
    previous: TaskEntry | None = None,
    send: Send = send,
    errors: SinkErrors | None = None,
) -> TaskEntry:
    """Write in a transaction, and leave the transaction prepared. Returns the output of the task.
    Every error aborts the transaction. `previous` is the output of the task in an earlier run of
    the batch, whose transaction was aborted."""
    producer: Producer | None = None
    first: Future | None = None
    rows = size = 0
    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            if producer is None:
                producer = _producer(options, attempt)
            futures = send(producer, batch, layout)
            first = first or next(
                (future for future in futures if not isinstance(future, BatchFuture) or future.count), None
            )
            rows += batch.num_rows
            size += size_of(batch, layout)
        if previous is not None:
            _check_same(attempt, previous, rows, size)
        if producer is None or first is None:
            return TaskEntry(attempt.task, rows, size)
        prepared = producer.prepare_transaction(_PREPARE_TIMEOUT)
        stored = first.get(0)
        return TaskEntry(attempt.task, rows, size, prepared, (stored.topic, stored.partition, stored.offset))
    except KafkaError as error:
        # The transaction cannot be committed without the record that failed.
        if errors is not None:
            errors.end(error)
        raise
    finally:
        if producer is not None:
            # Closing aborts a transaction that is not prepared.
            producer.close(10.0)


def _producer(options: SinkOptions, attempt: Attempt) -> Producer:
    if attempt.attempt:
        # Open transactions of earlier attempts would block every read_committed consumer.
        previous = [attempt.transactional_id(number) for number in range(attempt.attempt)]
        with Admin(admin_settings(options.client)) as admin:
            admin.fence_producers(previous)
    settings = {"transaction.timeout.ms": str(TRANSACTION_TIMEOUT_MS), **options.client}
    producer = Producer({**settings, "transactional.id": attempt.transactional_id(attempt.attempt), "acks": "all"})
    try:
        producer.init_transactions()
        producer.begin_transaction()
    except BaseException:
        producer.close(0)
        raise
    return producer


# By query: (process id, run, batch at the time of the lookup, the query's last decision then).
_decisions_by_query: dict[str, tuple[int, str, int, Decision | None]] = {}


def _decision_for(options: SinkOptions, attempt: Attempt) -> Decision | None:
    """Return the decision about this batch, or None. Only the first batch of a run can have a
    decision of an earlier run, so a process reads the decisions once per run. Raises PipelineError
    if there is a decision about a later batch."""
    cached = _decisions_by_query.get(attempt.query)
    if cached is None or cached[:2] != (os.getpid(), attempt.run) or cached[2] > attempt.batch:
        cached = os.getpid(), attempt.run, attempt.batch, Decisions(options).last(attempt.query)
        _decisions_by_query[attempt.query] = cached
    decision = cached[3]
    if decision is None or decision.batch < attempt.batch:
        return None
    if decision.batch > attempt.batch:
        raise PipelineError(
            f"batch {decision.batch} of this query was written, but now batch {attempt.batch} runs: "
            "the checkpoint is older than the data in the topics"
        )
    return decision


def _check_same(attempt: Attempt, entry: TaskEntry, rows: int, size: int) -> None:
    if (rows, size) != (entry.rows, entry.size):
        difference = f"task {attempt.task} had {entry.rows} rows of {entry.size} bytes, and now has {rows} of {size}"
        raise PipelineError(_plan_changed(attempt.batch, difference))


def _plan_changed(batch: int, difference: str) -> str:
    return f"batch {batch} was decided before a crash and differs now that it runs again: {difference}"


# --- the end of a transaction


def commit_again(admin: Admin, options: SinkOptions, entry: TaskEntry) -> bool:
    """Commit the transaction of a decision. Returns False if the transaction was aborted, and True
    if it is committed, also if it was committed before."""
    assert entry.transaction is not None
    try:
        admin.end_transactions([entry.transaction])
        return True
    except AdminError as error:
        if error.code not in _NOT_OPEN:
            raise
    return _is_committed_in_log(options, entry)


def _is_committed_in_log(options: SinkOptions, entry: TaskEntry) -> bool:
    """Whether read_committed consumers receive the first record of a completed transaction."""
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
                    raise KafkaTimeout(
                        f"cannot determine whether the transaction at offset {offset} of {tp} is committed"
                    )
        except OffsetOutOfRange:
            raise PipelineError(
                f"cannot determine whether the transaction at offset {offset} of {tp} is committed: "
                "the record no longer exists"
            ) from None
    return False


# --- in the driver


class Driver:
    """Commits the batches of one run of a query. Owns the decision writer and the last decision."""

    def __init__(self, options: SinkOptions, query: str, run: str) -> None:
        self.run = run
        self._options = options
        self._query = query
        self._admin = Admin(admin_settings(options.client))
        decisions = Decisions(options, self._admin)
        decisions.create()
        # No other driver can decide after this. Only then read the last decision.
        self._writer = DecisionWriter(options, query)
        self._last = decisions.last(query)
        self._is_first = True

    def close(self) -> None:
        self._writer.close()
        self._admin.close()

    def commit(self, batch: int, reports: Sequence[Report]) -> None:
        uncommitted = [r for r in reports if r.entry.transaction is not None and not r.is_committed]
        try:
            self._check(batch, reports)
            self._check_open(batch, uncommitted)
        except PipelineError:
            abort(self._admin, uncommitted)
            raise
        if uncommitted:
            decision = Decision(
                self._query, self.run, batch, uuid.uuid4().hex, {report.entry.task: report.entry for report in reports}
            )
            self._writer.write(decision)
            self._last = decision
            self._commit_transactions(batch, uncommitted)
        if self._is_first or any(report.attempt.speculation for report in reports):
            self._is_first = False
            abort_all_of(self._admin, self._query)

    def _check(self, batch: int, reports: Sequence[Report]) -> None:
        """Raise PipelineError unless the decision that the tasks have read is still the last one
        and has the same tasks."""
        last = self._last if self._last is not None and self._last.batch >= batch else None
        if last is not None and last.batch > batch:
            raise PipelineError(f"another driver has decided on batch {last.batch} of this query: this driver is stale")
        if any(report.decision_id != (last and last.id) for report in reports):
            raise PipelineError(
                f"another driver decided on batch {batch} while this one ran it; restart the query once"
            )
        if last is not None and set(last.tasks) != {report.entry.task for report in reports}:
            raise PipelineError(_plan_changed(batch, f"it had {len(last.tasks)} tasks, and now has {len(reports)}"))

    def _check_open(self, batch: int, uncommitted: Sequence[Report]) -> None:
        """Raise PipelineError unless every transaction is still open before the decision."""
        reports_by_id = _by_transactional_id(uncommitted)
        if not reports_by_id:
            return
        try:
            described = self._admin.describe_transactions(reports_by_id)
        except AdminError as error:
            if any(cause.code not in _NOT_OPEN for cause in error.errors.values()):
                raise
            described = error.results
        for name, report in reports_by_id.items():
            description = described.get(name)
            prepared = report.entry.transaction
            assert prepared is not None
            if (
                description is None
                or description.state != "Ongoing"
                or (description.producer_id, description.producer_epoch) != prepared[1:3]
            ):
                raise PipelineError(
                    f"batch {batch}: the transaction of task {report.entry.task} was aborted before it could be "
                    f"committed; a batch must complete within kafka.transaction.timeout.ms "
                    f"({self._options.client.get('transaction.timeout.ms', TRANSACTION_TIMEOUT_MS)})"
                )

    def _commit_transactions(self, batch: int, uncommitted: Sequence[Report]) -> None:
        try:
            self._admin.end_transactions(_transactions(uncommitted))
            return
        except AdminError as error:
            if any(cause.code not in _NOT_OPEN for cause in error.errors.values()):
                raise
            reports_by_id = _by_transactional_id(uncommitted)
            failed = [reports_by_id[name] for name in error.errors]
        aborted = [r.entry.task for r in failed if not commit_again(self._admin, self._options, r.entry)]
        if aborted:
            tasks = ", ".join(map(str, aborted))
            raise PipelineError(
                f"batch {batch}: the transactions of tasks {tasks} were aborted by the coordinator after the batch was "
                "decided; restart the query: it writes the missing records and nothing else"
            )


def _transactions(reports: Sequence[Report]) -> list[PreparedTransaction]:
    return [report.entry.transaction for report in reports if report.entry.transaction is not None]


def _by_transactional_id(reports: Sequence[Report]) -> dict[str, Report]:
    return {r.entry.transaction.transactional_id: r for r in reports if r.entry.transaction is not None}


_drivers: dict[tuple[int, str, tuple[tuple[str, str], ...]], Driver] = {}


def commit_stream(options: SinkOptions, batch: int, reports: Sequence[Report]) -> None:
    """Commit a batch of a query. Spark reuses the processes that commit, so a driver is kept for
    the next batch. With several queries Spark has several such processes, and any of them may
    commit the next batch. The driver in that process then fences the driver in this process, which
    cannot be used any more."""
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
    """Commit a batch without a checkpoint. It never runs again, so it needs no decision."""
    prepared = _transactions(reports)
    if not prepared:
        return
    with Admin(admin_settings(options.client)) as admin:
        try:
            admin.end_transactions(prepared)
        except AdminError as error:
            if any(cause.code not in _NOT_OPEN for cause in error.errors.values()):
                raise
            raise PipelineError(
                f"{len(error.errors)} of {len(prepared)} transactions were aborted before they could be committed "
                f"(kafka.transaction.timeout.ms); the others are committed: {error}"
            ) from None


def abort_reports(options: SinkOptions, reports: Sequence[Report]) -> None:
    """Abort the open transactions of a failed job."""
    if not reports:
        return
    with Admin(admin_settings(options.client)) as admin:
        abort(admin, [report for report in reports if not report.is_committed])
        abort_all_of(admin, reports[0].attempt.query)


def abort(admin: Admin, reports: Sequence[Report]) -> None:
    try:
        admin.end_transactions(_transactions(reports), commit=False)
    except KafkaError as error:
        logger.warning("Cannot abort transactions; the coordinator aborts them after their timeout: %s", error)


def abort_all_of(admin: Admin, query: str) -> None:
    """Abort the open transactions of failed attempts and killed drivers. This is only allowed while
    no decision is partly committed."""
    try:
        names = [listing.transactional_id for listing in admin.list_transactions(states=["Ongoing"])]
        open_ids = [name for name in names if name.startswith(f"{query}-") and name != f"{query}-driver"]
        if open_ids:
            logger.info("Aborting open transactions: %s", ", ".join(open_ids))
            admin.fence_producers(open_ids)
    except KafkaError as error:
        logger.warning("Cannot abort open transactions; the coordinator aborts them after their timeout: %s", error)


@atexit.register
def _close_drivers() -> None:
    for key, driver in list(_drivers.items()):
        if key[0] == os.getpid():
            driver.close()
