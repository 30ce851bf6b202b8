"""A shard with its partition: appends the records of operations, and completes the callers when
the records are committed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from kavka.common.backoff import Backoff
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.turns import in_turns
from kavka.coordinator.commit_queue import CommitQueue, Waiter, complete, fail
from kavka.coordinator.loader import Shard, ShardLoader
from kavka.coordinator.operations import OnAppend, Outcome
from kavka.coordinator.timers import LoopTimers
from kavka.records.batch import HEADER_SIZE
from kavka.records.builder import BatchBuilder, plain_batch
from kavka.records.control import end_marker
from kavka.records.record import Record
from kavka.replication.partition import Partition

if TYPE_CHECKING:
    from kavka.coordinator.runtime import Runtime

logger = logging.getLogger(__name__)

# Maximum bytes of a record besides key and value: length, attributes, two deltas, two lengths and a
# header count.
MAX_RECORD_OVERHEAD = 24

LOAD_BACKOFF = Backoff(100, 30_000, jitter=0)

S = TypeVar("S", bound=Shard)


class HostState(Enum):
    LOADING = "loading"
    ACTIVE = "active"
    FAILED = "failed"
    CLOSED = "closed"


class ShardHost(Generic[S]):
    """Owns one shard, its open batch, its uncommitted batches and its timers.

    All methods run on the event loop. The runtime creates a host when this broker becomes the
    leader of the partition and closes it when the leadership ends. A closed host is not used again.
    """

    def __init__(self, runtime: Runtime[S], partition: Partition, load_attempt: int = 1) -> None:
        self._runtime = runtime
        self._loop = runtime.loop
        self.partition = partition
        self.index = partition.topic_partition.partition
        self.state = HostState.LOADING
        self.timers = LoopTimers(runtime.loop, self.submit_background, lambda: self.state is HostState.LOADING)
        self.shard: S = runtime.make_shard(self.timers)
        # The open batch and its callers.
        self._records: list[tuple[bytes, bytes | None]] = []
        self._size = 0
        self._waiters: list[Waiter] = []
        # Number of journal entries that belong to the open batch.
        self._batch_entries = 0
        self._uncommitted = CommitQueue(partition, runtime.loop, runtime.commit_timeout_ms / 1000)
        self._loader = ShardLoader(partition, self.shard, runtime.run_in_worker, runtime.load_bytes, self._on_load)
        self.load_attempt = load_attempt
        self._retry: asyncio.TimerHandle | None = None

    # ---- operations

    def submit(self, outcome: Outcome) -> Any:
        """Return the response if the outcome has no records, else a future of the response."""
        return self.append(*outcome)

    def append(
        self,
        records: Sequence[Any],
        response: Any,
        on_append: OnAppend | None = None,
        replay: bool = True,
        atomic: bool = True,
    ) -> Any:
        """Submit an outcome that is passed as its fields. Return as `submit` does."""
        if not records:
            if on_append is not None:
                on_append(None)
            return response
        future = self._loop.create_future()
        waiter: Waiter = (future, response, on_append)
        if atomic:
            self._append(records, replay, waiter)
        else:
            self._append_in_parts(records, replay, waiter)
        return future

    def submit_background(self, outcome: Outcome) -> None:
        """Submit an outcome whose response no caller waits for. Do nothing if the host is not
        active."""
        if self.state is not HostState.ACTIVE:
            return
        if outcome.records:
            append = self._append if outcome.atomic else self._append_in_parts
            append(outcome.records, outcome.replay, (None, None, outcome.on_append))
        elif outcome.on_append is not None:
            outcome.on_append(None)

    def _append_in_parts(self, records: Sequence[Any], replay: bool, waiter: Waiter) -> None:
        """Append records that may be in several batches. The waiter completes when the last record
        is committed, or fails with the first error."""
        remaining = len(records)
        failure: KafkaError | None = None

        def on_record(error: KafkaError | None) -> None:
            nonlocal remaining, failure
            remaining -= 1
            failure = failure or error
            if remaining:
                return
            if failure is None:
                complete([waiter])
            else:
                fail([waiter], failure)

        for record in records:
            self._append((record,), replay, (None, None, on_record))

    def check_size(self, count: int, min_record_bytes: int) -> None:
        """Raise MESSAGE_TOO_LARGE if `count` records of at least this size cannot fit into one
        batch, before the records are created."""
        if count * (min_record_bytes + MAX_RECORD_OVERHEAD) > self._max_batch_bytes():
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"{count} records do not fit into one batch.")

    def _max_batch_bytes(self) -> int:
        log = self.partition.log
        return (log.config.max_message_bytes if log is not None else 0x7FFFFFFF) - HEADER_SIZE

    def _append(self, records: Sequence[Any], replay: bool, waiter: Waiter) -> None:
        shard = self.shard
        encoded = [shard.encode(record) for record in records]
        size = 0
        for key, value in encoded:
            size += len(key) + MAX_RECORD_OVERHEAD if value is None else len(key) + len(value) + MAX_RECORD_OVERHEAD
        limit = self._max_batch_bytes()
        if self._size + size > limit:
            if self._records:
                # The changes of this operation are not part of the batch that is written now.
                changes = shard.journal.changes_after(self._batch_entries)
                failure = self._write()
                if failure is not None:
                    # The failed write has undone the state that this operation is based on.
                    fail([waiter], failure)
                    return
                shard.journal.restore(changes)
            if size > limit:
                shard.journal.undo()
                fail(
                    [waiter],
                    KafkaError(
                        ErrorCode.MESSAGE_TOO_LARGE,
                        f"The records of the operation have {size} bytes and do not fit into one batch.",
                    ),
                )
                return
        if replay:
            for record in records:
                shard.replay(record)
        self._batch_entries = len(shard.journal)
        self._records += encoded
        self._size += size
        self._waiters.append(waiter)
        self._runtime.mark_dirty(self)

    def read(self, query: Callable[..., Any], *args: Any) -> Any:
        """Return the result of `query(shard, …)`, or a future of the result if the state is not
        committed yet."""
        response = query(self.shard, *args)
        if not self._records and not self._uncommitted:
            return response
        future = self._loop.create_future()
        waiter: Waiter = (future, response, None)
        if self._records:
            self._waiters.append(waiter)
        else:
            self._uncommitted.wait_for_last(waiter)
        return future

    def append_in_transaction(
        self,
        records: Sequence[Any],
        response: Any,
        producer_id: int,
        producer_epoch: int,
    ) -> Any:
        """Append a separate batch that belongs to the producer's transaction. Return `response` if
        there are no records, else a future of `response`."""
        if not records:
            return response
        self.write_open_batch()
        builder = BatchBuilder(
            codec=self._runtime.codec,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=0,
            transactional=True,
        )
        now = self._runtime.clock.now_ms()
        for record in records:
            key, value = self.shard.encode(record)
            builder.append(Record(timestamp=now, key=key, value=value))
        future = self._loop.create_future()
        for record in records:
            self.shard.replay(record, producer_id)
        self._write_batch(builder.build(), [(future, response, None)])
        return future

    def end_transaction(
        self, producer_id: int, producer_epoch: int, coordinator_epoch: int, commit: bool
    ) -> asyncio.Future[None]:
        """Write the marker that ends the producer's transaction in this partition. The pending
        records of the transaction take effect or are discarded. Return a future that completes when
        the marker is committed."""
        self.write_open_batch()
        batch = end_marker(commit, producer_id, producer_epoch, coordinator_epoch, self._runtime.clock.now_ms())
        future = self._loop.create_future()
        self.shard.replay_end_of_transaction(producer_id, commit)
        self._write_batch(batch, [(future, None, None)])
        return future

    # ---- writing

    def write_open_batch(self) -> None:
        """Write the open batch now instead of at the end of the event loop iteration."""
        if self._records:
            self._write()

    def _write(self) -> KafkaError | None:
        records, waiters = self._records, self._waiters
        self._records, self._size, self._waiters = [], 0, []
        runtime = self._runtime
        return self._write_batch(plain_batch(records, runtime.clock.now_ms(), runtime.codec), waiters)

    def _write_batch(self, batch: bytearray, waiters: list[Waiter]) -> KafkaError | None:
        """Write the batch. If the write fails, undo the changes, fail the waiters with the error
        and return it."""
        partition = self.partition
        journal = self.shard.journal
        try:
            if self.state is not HostState.ACTIVE or not partition.is_leader or partition.log is None:
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            info = partition.append(batch)
        except KafkaError as error:
            journal.undo()
            fail(waiters, error)
            partition.report_storage_failure(error)
            return error
        journal.clear()
        end = info.last_offset + 1
        partition.advance()
        if not self._uncommitted and partition.log.high_watermark >= end:
            complete(waiters)
            return None
        self._uncommitted.add(end, waiters)
        self._uncommitted.check(partition)
        return None

    # ---- loading and closing

    def load(self) -> None:
        self._loader.start()

    def _on_load(self, error: BaseException | None) -> None:
        """Activate the shard, or schedule another attempt if the load failed.

        The last records of the log may be uncommitted: this broker may be the only replica that has
        them. Reads and callbacks wait until the high watermark has passed the loaded records.
        """
        if error is not None:
            delay_s = LOAD_BACKOFF.delay(self.load_attempt)
            logger.error("Cannot load %s, retrying in %g s: %r", self.partition.topic_partition, delay_s, error)
            self.state = HostState.FAILED
            self._retry = self._loop.call_later(delay_s, self._runtime.retry_load, self)
            return
        in_turns(self._loop.call_soon, self._activate([]))

    def _activate(self, outcomes: list[Outcome]) -> Iterator[None]:
        try:
            for outcome in self.shard.on_loaded():
                outcomes.append(outcome)
                yield
                if self.state is HostState.CLOSED:
                    return
        except Exception as error:
            self._on_load(error)
            return
        self.state = HostState.ACTIVE
        callbacks: list[Waiter] = [(None, None, outcome.on_append) for outcome in outcomes if not outcome.records]
        self._uncommitted.loaded_end = self._loader.position
        self._uncommitted.add(self._loader.position, callbacks)
        self._uncommitted.check(self.partition)
        for outcome in outcomes:
            if outcome.records:
                self.submit_background(outcome)

    def close(self) -> None:
        if self.state is HostState.CLOSED:
            return
        was_active = self.state is HostState.ACTIVE
        self.state = HostState.CLOSED
        self._loader.cancel()
        self.timers.cancel_all()
        self._uncommitted.cancel_timeout()
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        waiters, self._waiters, self._records = self._waiters, [], []
        self.shard.journal.undo()
        fail(waiters, KafkaError(ErrorCode.NOT_COORDINATOR))
        self._uncommitted.fail(self.partition, ErrorCode.NOT_COORDINATOR)
        if was_active:
            in_turns(self._loop.call_soon, self.shard.on_unloaded(ErrorCode.NOT_COORDINATOR))
