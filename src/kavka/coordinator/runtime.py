"""State machines on the partitions of an internal topic: what a shard decides is appended, replayed, then answered.

    submit(outcome)   the records are encoded, replayed into the shard, and wait in its open batch; nobody is answered
    end of the turn   one batch for all that waits in a shard is written to its partition
        written       every caller is answered as soon as the high watermark has passed the batch
        failed        the replay is undone, every caller gets the error: as if nothing had been asked

So a shard decides each time on a state that includes all decisions before, and nobody hears of a state that could still
be lost. A read that comes while something is not committed yet waits for it.

A shard lives while this broker leads its partition. When it becomes the leader, the log is read from its start to its
end in a worker thread, which alone has the shard until then (COORDINATOR_LOAD_IN_PROGRESS). What was found there is as
good as what is written from then on: not before the high watermark has passed it. A load that fails is begun again
with a new shard, after a delay that doubles up to half a minute (NOT_COORDINATOR meanwhile, as in Kafka, which does not
try again by itself). When it no longer is the leader, whoever waits is told NOT_COORDINATOR. A newer epoch of a
partition that it goes on leading changes nothing.

Everything but the loading happens on the loop thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from enum import Enum
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from kavka.common.clock import Clock
from kavka.common.errors import ErrorCode, KafkaError
from kavka.coordinator.operations import Journal, OnAppend, Outcome, TimerOperation, Timers
from kavka.protocol.primitives import ProtocolError
from kavka.records.batch import HEADER_SIZE, batches
from kavka.records.builder import BatchBuilder, plain_batch
from kavka.records.control import end_marker, parse_end_marker
from kavka.records.reader import batch_records
from kavka.records.record import Record
from kavka.replication.partition import Partition, RunInWorker
from kavka.storage.file_slice import FileSlice
from kavka.storage.log_append import AppendOrigin

log = logging.getLogger(__name__)

# What a caller is told of an append that failed: look for the coordinator again, or try again.
COORDINATOR_ERRORS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}

# Beyond key and value a record takes its length, attributes, two deltas, two lengths and a header count.
RECORD_OVERHEAD = 24

FIRST_LOAD_RETRY_S = 0.1
LAST_LOAD_RETRY_S = 30.0


class Shard(Protocol):
    """A state machine as the runtime needs it."""

    journal: Journal

    def encode(self, record: Any) -> tuple[bytes, bytes | None]: ...

    def decode(self, key: Any, value: Any) -> Any | None: ...

    def replay(self, record: Any, producer_id: int = -1) -> None: ...

    def replay_end_of_transaction(self, producer_id: int, commit: bool) -> None: ...

    def on_loaded(self) -> list[Outcome]: ...

    def on_unloaded(self, code: ErrorCode) -> None: ...


S = TypeVar("S", bound=Shard)
Waiter = tuple["asyncio.Future[Any] | None", Any, "OnAppend | None"]


class HostState(Enum):
    LOADING = "loading"
    ACTIVE = "active"
    FAILED = "failed"
    CLOSED = "closed"


class LoopTimers:
    """A shard's timers on the event loop. What an operation decides is submitted to the shard's host."""

    __slots__ = ("_handles", "_loop", "_submit")

    def __init__(self, loop: asyncio.AbstractEventLoop, submit: Callable[[Outcome], Any]) -> None:
        self._loop = loop
        self._submit = submit
        self._handles: dict[Hashable, asyncio.TimerHandle] = {}

    def schedule(self, key: Hashable, delay_ms: float, operation: TimerOperation) -> None:
        old = self._handles.get(key)
        if old is not None:
            old.cancel()
        self._handles[key] = self._loop.call_later(max(delay_ms, 0) / 1000, self._fire, key, operation)

    def cancel(self, key: Hashable) -> None:
        handle = self._handles.pop(key, None)
        if handle is not None:
            handle.cancel()

    def cancel_all(self) -> None:
        for handle in self._handles.values():
            handle.cancel()
        self._handles.clear()

    def _fire(self, key: Hashable, operation: TimerOperation) -> None:
        self._handles.pop(key, None)
        try:
            self._submit(operation())
        except Exception:
            log.exception("The timer %s failed", key)


class ShardHost(Generic[S]):
    """One shard with its partition: its open batch, what is written and not yet committed, its timers."""

    def __init__(self, runtime: Runtime[S], partition: Partition, retry_s: float = FIRST_LOAD_RETRY_S) -> None:
        self._runtime = runtime
        self._loop = runtime.loop
        self.partition = partition
        self.index = partition.topic_partition.partition
        self.state = HostState.LOADING
        self.timers = LoopTimers(runtime.loop, self.follow_up)
        self.shard: S = runtime.make_shard(self.timers)
        # The open batch, and who waits for it.
        self._records: list[tuple[bytes, bytes | None]] = []
        self._size = 0
        self._waiters: list[Waiter] = []
        # How much of the shard's journal is of the open batch.
        self._in_batch = 0
        # Written, in order: the offset that the high watermark has to reach, who waits, when that took too long.
        self._uncommitted: deque[tuple[int, list[Waiter], float]] = deque()
        self._timeout: asyncio.TimerHandle | None = None
        self._load_position = 0
        # How long to wait before the next attempt to load, should this one fail.
        self.retry_s = retry_s
        self._retry: asyncio.TimerHandle | None = None

    # ---- operations

    def submit(self, outcome: Outcome) -> Any:
        """The response at once where nothing has to be written, else a future of it."""
        return self.append(*outcome)

    def append(
        self,
        records: Sequence[Any],
        response: Any,
        on_append: OnAppend | None = None,
        replay: bool = True,
        atomic: bool = True,
    ) -> Any:
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

    def follow_up(self, outcome: Outcome) -> None:
        """As `submit`, where nobody waits for the response."""
        if self.state is not HostState.ACTIVE:
            return
        if outcome.records:
            append = self._append if outcome.atomic else self._append_in_parts
            append(outcome.records, outcome.replay, (None, None, outcome.on_append))
        elif outcome.on_append is not None:
            outcome.on_append(None)

    def _append_in_parts(self, records: Sequence[Any], replay: bool, waiter: Waiter) -> None:
        """As `_append`, of records that need not be in one batch: the waiter is told when the last is committed, or of
        the first that failed."""
        left = len(records)
        failure: KafkaError | None = None

        def one_done(error: KafkaError | None) -> None:
            nonlocal left, failure
            left -= 1
            failure = failure or error
            if left == 0 and failure is None:
                self._complete([waiter])
            elif left == 0 and failure is not None:
                self._fail([waiter], failure)

        for record in records:
            self._append((record,), replay, (None, None, one_done))

    def _append(self, records: Sequence[Any], replay: bool, waiter: Waiter) -> None:
        shard = self.shard
        encoded = [shard.encode(record) for record in records]
        size = 0
        for key, value in encoded:
            size += len(key) + RECORD_OVERHEAD if value is None else len(key) + len(value) + RECORD_OVERHEAD
        log_ = self.partition.log
        limit = (log_.config.max_message_bytes if log_ is not None else 0x7FFFFFFF) - HEADER_SIZE
        if self._size + size > limit and log_ is not None:
            if self._records:
                # What this operation has done to the state by itself is not in the batch that is written now.
                own = shard.journal.since(self._in_batch)
                failure = self._write()
                if failure is not None:
                    # The state is what it was before both, and this was decided on another one.
                    self._fail([waiter], failure)
                    return
                shard.journal.keep(own)
            if size > limit:
                shard.journal.undo()
                self._fail([waiter], KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"{size} bytes of records are too many."))
                return
        if replay:
            for record in records:
                shard.replay(record)
        self._in_batch = len(shard.journal)
        self._records += encoded
        self._size += size
        self._waiters.append(waiter)
        self._runtime.note_dirty(self)

    def read(self, query: Callable[..., Any], *args: Any) -> Any:
        """What `query(shard, …)` gives, or a future of it while something that it may have seen is not committed."""
        response = query(self.shard, *args)
        if not self._records and not self._uncommitted:
            return response
        future = self._loop.create_future()
        waiter: Waiter = (future, response, None)
        if self._records:
            self._waiters.append(waiter)
        elif self._timeout is None:
            # All that is not committed has taken too long already.
            self._wait_for(self._uncommitted[-1][0], [waiter])
        else:
            self._uncommitted[-1][1].append(waiter)
        return future

    def append_in_transaction(
        self,
        records: Sequence[Any],
        response: Any,
        producer_id: int,
        producer_epoch: int,
        on_append: OnAppend | None = None,
    ) -> Any:
        """As `append`, in a batch of its own that belongs to the producer's transaction."""
        if not records:
            return response
        self.write_open()
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
        self._write_batch(builder.build(), [(future, response, on_append)])
        return future

    def end_transaction(
        self, producer_id: int, producer_epoch: int, coordinator_epoch: int, commit: bool, response: Any = None
    ) -> asyncio.Future[Any]:
        """Write the marker that ends the producer's transaction here; what was pending counts, or is forgotten."""
        self.write_open()
        batch = end_marker(commit, producer_id, producer_epoch, coordinator_epoch, self._runtime.clock.now_ms())
        future = self._loop.create_future()
        self.shard.replay_end_of_transaction(producer_id, commit)
        self._write_batch(batch, [(future, response, None)])
        return future

    # ---- writing

    def write_open(self) -> None:
        """Write the open batch now, instead of at the end of the turn."""
        if self._records:
            self._write()

    def _write(self) -> KafkaError | None:
        records, waiters = self._records, self._waiters
        self._records, self._size, self._waiters = [], 0, []
        runtime = self._runtime
        return self._write_batch(plain_batch(records, runtime.clock.now_ms(), runtime.codec), waiters)

    def _write_batch(self, batch: bytearray, waiters: list[Waiter]) -> KafkaError | None:
        """The error that kept it from being written; the waiters know it."""
        partition = self.partition
        journal = self.shard.journal
        try:
            if self.state is not HostState.ACTIVE or not partition.is_leader or partition.log is None:
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            info = partition.stage(memoryview(batch), -1, None, AppendOrigin.COORDINATOR)
            partition.write_staged()
        except KafkaError as error:
            journal.undo()
            self._fail(waiters, error)
            if error.code is ErrorCode.KAFKA_STORAGE_ERROR and partition.on_storage_failure is not None:
                partition.on_storage_failure(partition, error.__cause__ or error)
            return error
        journal.forget()
        end = info.last_offset + 1
        partition.advance()
        if not self._uncommitted and partition.log.high_watermark >= end:
            self._complete(waiters)
            return None
        self._wait_for(end, waiters)
        self.check(partition)
        return None

    def _wait_for(self, end: int, waiters: list[Waiter]) -> None:
        """Until the high watermark is at `end`."""
        deadline = self._loop.time() + self._runtime.commit_timeout_ms / 1000
        self._uncommitted.append((end, waiters, deadline))
        self.partition.produce_waiters.add(self)
        if self._timeout is None:
            self._timeout = self._loop.call_at(deadline, self._on_timeout)

    def _complete(self, waiters: list[Waiter]) -> None:
        for future, response, on_append in waiters:
            if on_append is not None:
                self._call(on_append, None)
            if future is not None and not future.done():
                future.set_result(response)

    def _fail(self, waiters: list[Waiter], error: KafkaError) -> None:
        code = COORDINATOR_ERRORS.get(error.code, error.code)
        mapped = error if code is error.code else KafkaError(code, error.message)
        for future, _, on_append in waiters:
            if on_append is not None:
                self._call(on_append, mapped)
            if future is not None and not future.done():
                future.set_exception(mapped)

    def _call(self, on_append: OnAppend, error: KafkaError | None) -> None:
        try:
            on_append(error)
        except Exception:
            log.exception("What follows a write to %s failed", self.partition.topic_partition)

    # ---- as one that waits for the partition's high watermark (see replication/waiting.py)

    def check(self, partition: Partition) -> None:
        log_ = partition.log
        uncommitted = self._uncommitted
        if log_ is None:
            return
        safe = log_.high_watermark
        if len(partition.maximal_isr) == 1 and safe < self._load_position:
            # Nobody else can lead next without having copied what was found here. With min.insync.replicas above one
            # the high watermark does not say so.
            safe = self._load_position
        while uncommitted and uncommitted[0][0] <= safe:
            self._complete(uncommitted.popleft()[1])
        if not uncommitted:
            partition.produce_waiters.discard(self)
            if self._timeout is not None:
                self._timeout.cancel()
                self._timeout = None

    def fail(self, partition: Partition, code: ErrorCode) -> None:
        partition.produce_waiters.discard(self)
        error = KafkaError(code)
        while self._uncommitted:
            self._fail(self._uncommitted.popleft()[1], error)

    def _on_timeout(self) -> None:
        """The replicas took too long. The records may yet be committed: who asked has to ask again."""
        self._timeout = None
        now = self._loop.time()
        late = []
        for _, waiters, deadline in self._uncommitted:
            if deadline > now:
                self._timeout = self._loop.call_at(deadline, self._on_timeout)
                break
            late += waiters
            waiters.clear()
        self._fail(late, KafkaError(ErrorCode.REQUEST_TIMED_OUT))

    # ---- loading

    def load(self) -> None:
        log_ = self.partition.log
        if log_ is None:
            self._load_failed(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR))
            return
        self._load_position = log_.start_offset
        if log_.end_offset > log_.start_offset:
            log.info(
                "Loading %s from offset %d to %d", self.partition.topic_partition, log_.start_offset, log_.end_offset
            )
        self._load_next()

    def _load_next(self) -> None:
        if self.state is not HostState.LOADING:
            return
        log_ = self.partition.log
        if log_ is None:
            self._load_failed(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR))
            return
        position = max(self._load_position, log_.start_offset)
        try:
            read = log_.read(position, self._runtime.load_bytes, limit=log_.end_offset, min_one_batch=True)
        except Exception as error:
            self._load_failed(error)
            return
        if read is None:
            self._loaded()
            return
        self._runtime.run_in_worker(partial(self._replay_slice, read.slice, position), self._chunk_loaded)

    def _chunk_loaded(self, error: BaseException | None) -> None:
        if self.state is not HostState.LOADING:
            return
        if error is not None:
            self._load_failed(error)
            return
        self._load_next()

    def _replay_slice(self, piece: FileSlice, position: int) -> None:
        """In a worker thread."""
        shard = self.shard
        for batch in batches(piece.read()):
            if batch.last_offset < position:
                continue
            position = batch.last_offset + 1
            if batch.is_control:
                marker = parse_end_marker(batch)
                if marker is not None:
                    shard.replay_end_of_transaction(batch.producer_id, marker.commit)
                continue
            producer_id = batch.producer_id if batch.is_transactional else -1
            for record in batch_records(batch):
                if record.key is None:
                    continue
                try:
                    decoded = shard.decode(record.key, record.value)
                except ProtocolError as error:
                    log.warning("%s offset %d is skipped: %s", self.partition.topic_partition, record.offset, error)
                    continue
                if decoded is not None:
                    shard.replay(decoded, producer_id)
        shard.journal.forget()
        if position <= self._load_position:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"There is no whole batch at offset {position}.")
        self._load_position = position

    def _loaded(self) -> None:
        """The end of the log may be what only this broker has, and lost if it does not lead for long. So nothing that
        was found is shown, or acted on (the markers of a transaction), before it is committed."""
        self.state = HostState.ACTIVE
        outcomes = self.shard.on_loaded()
        self._wait_for(
            self._load_position,
            [(None, None, one.on_append) for one in outcomes if one.on_append is not None and not one.records],
        )
        self.check(self.partition)
        for outcome in outcomes:
            if outcome.records:
                self.follow_up(outcome)

    def _load_failed(self, error: BaseException) -> None:
        log.error("Cannot load %s, trying again in %g s: %r", self.partition.topic_partition, self.retry_s, error)
        self.state = HostState.FAILED
        self._retry = self._loop.call_later(self.retry_s, self._runtime.load_again, self)

    # ---- the end

    def close(self) -> None:
        if self.state is HostState.CLOSED:
            return
        was_active = self.state is HostState.ACTIVE
        self.state = HostState.CLOSED
        self.timers.cancel_all()
        for handle in (self._timeout, self._retry):
            if handle is not None:
                handle.cancel()
        self._timeout = self._retry = None
        error = KafkaError(ErrorCode.NOT_COORDINATOR)
        waiters, self._waiters, self._records = self._waiters, [], []
        self.shard.journal.undo()
        self._fail(waiters, error)
        self.fail(self.partition, ErrorCode.NOT_COORDINATOR)
        if was_active:
            self.shard.on_unloaded(ErrorCode.NOT_COORDINATOR)


class Runtime(Generic[S]):
    """All shards of one internal topic on this broker."""

    def __init__(
        self,
        topic: str,
        make_shard: Callable[[Timers], S],
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        run_in_worker: RunInWorker,
        codec: int = 0,
        load_bytes: int = 5 * 1024 * 1024,
        commit_timeout_ms: int = 5_000,
    ) -> None:
        self.topic = topic
        self.make_shard = make_shard
        self.loop = loop
        self.clock = clock
        self.run_in_worker = run_in_worker
        self.codec = codec
        self.load_bytes = load_bytes
        self.commit_timeout_ms = commit_timeout_ms
        self._hosts: dict[int, ShardHost[S]] = {}
        self._dirty: list[ShardHost[S]] = []

    # ---- leadership

    def on_leadership(self, partition: Partition, is_leader: bool) -> None:
        """This broker became the leader of a partition (or its epoch changed), or no longer is."""
        topic, index = partition.topic_partition
        if topic != self.topic:
            return
        host = self._hosts.get(index)
        if not is_leader:
            if host is not None:
                del self._hosts[index]
                host.close()
            return
        if host is not None and host.partition is partition and host.state in (HostState.LOADING, HostState.ACTIVE):
            return
        if host is not None:
            host.close()
        host = self._hosts[index] = ShardHost(self, partition)
        host.load()

    def load_again(self, failed: ShardHost[S]) -> None:
        """With a new shard: what the failed attempt had replayed is not complete."""
        if self._hosts.get(failed.index) is not failed or failed.state is not HostState.FAILED:
            return
        failed.close()
        retry_s = min(failed.retry_s * 2, LAST_LOAD_RETRY_S)
        host = self._hosts[failed.index] = ShardHost(self, failed.partition, retry_s)
        host.load()

    def close(self) -> None:
        self.write_open()
        for host in self._hosts.values():
            host.close()
        self._hosts.clear()

    # ---- shards

    def host(self, index: int) -> ShardHost[S]:
        """The host of a shard that is ready; else NOT_COORDINATOR or COORDINATOR_LOAD_IN_PROGRESS."""
        host = self._hosts.get(index)
        if host is not None:
            if host.state is HostState.ACTIVE:
                return host
            if host.state is HostState.LOADING:
                raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        raise KafkaError(ErrorCode.NOT_COORDINATOR)

    def active(self) -> Iterator[ShardHost[S]]:
        return (host for host in list(self._hosts.values()) if host.state is HostState.ACTIVE)

    @property
    def is_loading(self) -> bool:
        return any(host.state is HostState.LOADING for host in self._hosts.values())

    def run(self, index: int, operation: Callable[..., Outcome], *args: Any) -> Any:
        """`operation(shard, …)`, its records appended; the response, or a future of it."""
        host = self.host(index)
        return host.submit(operation(host.shard, *args))

    def read(self, index: int, query: Callable[..., Any], *args: Any) -> Any:
        return self.host(index).read(query, *args)

    # ---- one batch for all that a shard is asked in one turn of the loop

    def note_dirty(self, host: ShardHost[S]) -> None:
        dirty = self._dirty
        if not dirty:
            self.loop.call_soon(self.write_open)
        dirty.append(host)

    def write_open(self) -> None:
        dirty, self._dirty = self._dirty, []
        for host in dirty:
            host.write_open()
