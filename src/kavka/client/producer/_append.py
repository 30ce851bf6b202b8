"""The hot path of the producer: from `send` to the bytes of a batch.

This module is plain Python. If a compiler is available at install time, Cython compiles it;
`_append.pxd` has the C types. It uses only features that behave identically in both forms: no
closures, no generators, no keyword-only arguments.

The module is long because its classes use each other's C types. A compiled module that uses the C
types of another cannot be imported if the other is not compiled, and the compilation of each module
is optional. Code without C types is in `callbacks.py` and `copying.py`.

`Accumulator.lock` guards the queues, their batches until the sender drains them, and `used`. User
threads append; the sender drains and completes batches and frees their memory. Only the sender uses
a drained batch, until its outcome is set under the lock.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator
from threading import Event, Lock, get_ident
from typing import TYPE_CHECKING, Any

from kavka.client.errors import IllegalState, KafkaTimeout
from kavka.client.producer.callbacks import OnEither, OnError, OnSuccess, outcome_of
from kavka.client.producer.copying import copied_records
from kavka.client.producer.record import Callback, Headers, RecordMetadata
from kavka.common.errors import KafkaError
from kavka.records.varint import SMALL_VARINTS, encode_varint

if TYPE_CHECKING:
    from kavka.common import plain_cython as cython
else:
    try:
        import cython
    except ImportError:
        from kavka.common import plain_cython as cython

HEADER_SIZE = 61
# The sizes of pooled buffers: MIN_BUFFER_SIZE, doubled up to SIZE_CLASSES - 1 times.
MIN_BUFFER_SIZE = 1024
SIZE_CLASSES = 15
MAX_INITIAL_BUFFER_SIZE = 16 * 1024
MAX_POOL_SIZE = 16 * 1024 * 1024
# The maximum size of a record without its key, value and headers.
RECORD_OVERHEAD = 36
# The maximum growth of a record when its deltas and its length are rewritten.
MAX_RECORD_GROWTH = 20
SMALL_VARINT_LIMIT = 2048

# Constructs a named tuple faster than the tuple's constructor.
make_tuple = tuple.__new__
monotonic = time.monotonic
wall_clock = time.time


def is_compiled() -> bool:
    return bool(cython.compiled)


class BufferPool:
    """Owns the buffers of completed batches until new batches reuse them. Allocating a buffer costs
    more than filling it.

    Pooled buffers have 1, 2, 4, 8 … KB. `cached` is their total size, at most `limit`. Call it only
    under the accumulator's lock.
    """

    __slots__ = ("cached", "classes", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.cached = 0
        self.classes: list[list[bytearray]] = [[] for _ in range(SIZE_CLASSES)]

    def capacity(self, size: int) -> int:
        """Return the smallest pooled size of at least `size` bytes, or `size` if no pooled size is
        large enough."""
        index = 0
        room = MIN_BUFFER_SIZE
        while room < size and index < SIZE_CLASSES:
            room <<= 1
            index += 1
        return room if index < SIZE_CLASSES else size

    def take(self, size: int) -> bytearray:
        """Return a buffer of `size` bytes with arbitrary content."""
        index = 0
        room = MIN_BUFFER_SIZE
        while room < size and index < SIZE_CLASSES:
            room <<= 1
            index += 1
        if index < SIZE_CLASSES and room == size:
            free = self.classes[index]
            if free:
                self.cached -= size
                return free.pop()
        return bytearray(size)

    def trim(self, excess: int) -> None:
        """Free buffers, the largest first, until `excess` bytes are freed or the pool is empty."""
        index = SIZE_CLASSES
        while index > 0 and excess > 0:
            index -= 1
            free = self.classes[index]
            while free and excess > 0:
                size = len(free.pop())
                self.cached -= size
                excess -= size

    def put(self, buffer: bytearray) -> None:
        """Return a buffer to the pool. No batch and no view may refer to it."""
        size = len(buffer)
        if self.cached + size > self.limit:
            return
        index = 0
        room = MIN_BUFFER_SIZE
        while room < size and index < SIZE_CLASSES:
            room <<= 1
            index += 1
        if room == size and index < SIZE_CLASSES:
            self.cached += size
            self.classes[index].append(buffer)


class Batch:
    """Records for one partition. The first `size` bytes of `body` are used, of which 61 bytes are
    reserved for the header.

    A batch accepts records until it is full or drained. It is sent one or several times, and is
    done when it has offsets or an error. If the broker rejects the batch as too large, it is split:
    `parts` is a list of (index of the first record, batch), and each record has the outcome of its
    part.
    """

    __slots__ = (
        "attempts", "base_offset", "base_sequence", "base_timestamp", "body", "charged", "codec",
        "count", "created", "data", "done", "encoded_identity", "entries", "error", "first",
        "in_flight", "log_append_time", "max_timestamp", "number", "parts", "producer_epoch",
        "producer_id", "queue", "record_errors", "reported_failures", "size", "waiters",
    )  # fmt: skip

    def __init__(self, queue: PartitionQueue, number: int, body: Any) -> None:
        self.queue = queue
        # Batches are ordered by `number`, and the parts of a batch by `first`, the index of their
        # first record.
        self.number = number
        self.first = 0
        self.created = monotonic()
        self.body: Any = body
        self.size = HEADER_SIZE
        self.charged = 0
        # The codec of a batch that `send_batch` copied unchanged; otherwise -1.
        self.codec = -1
        self.count = 0
        self.base_timestamp = 0
        self.max_timestamp = -1
        self.attempts = 0
        self.in_flight = False
        # The encoded batch, and the producer id, epoch and sequence in its header.
        self.data: Any = None
        self.encoded_identity: Any = None
        self.producer_id = -1
        self.producer_epoch = -1
        self.base_sequence = -1
        self.done = False
        self.base_offset = -1
        self.log_append_time = -1
        self.error: KafkaError | None = None
        self.record_errors: dict[int, KafkaError] | None = None
        # The number of records whose error was passed to a callback or read from a future.
        self.reported_failures = 0
        # Alternating futures and callbacks.
        self.entries: Any = None
        self.waiters: Any = None
        self.parts: Any = None

    def __del__(self) -> None:
        # No future refers to the batch any more, so the program cannot read the errors.
        if self.error is not None and self.reported_failures < self.count:
            queue = self.queue
            queue.owner.unreported_failures.append(
                (queue.topic, queue.partition, self.error, self.count - self.reported_failures)
            )

    def append(self, timestamp: int, key: Any, value: Any, headers: bytes) -> int:
        """Append a record and return its size. Key and value are bytes or None. `headers` contains
        the count and the encoded headers. The caller must ensure that `body` has room."""
        index = self.count
        if index == 0:
            self.base_timestamp = timestamp
        delta = timestamp - self.base_timestamp
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        start = self.size
        if cython.compiled:
            self.size = write_record(self.body, start, delta, index, key, value, headers)  # type: ignore[name-defined]  # noqa: F821
        else:
            parts = [
                b"\x00",
                SMALL_VARINTS[delta] if 0 <= delta < SMALL_VARINT_LIMIT else encode_varint(delta),
                SMALL_VARINTS[index] if index < SMALL_VARINT_LIMIT else encode_varint(index),
            ]
            if key is None:
                parts.append(b"\x01")
            else:
                length = len(key)
                parts.append(SMALL_VARINTS[length] if length < SMALL_VARINT_LIMIT else encode_varint(length))
                parts.append(key)
            if value is None:
                parts.append(b"\x01")
            else:
                length = len(value)
                parts.append(SMALL_VARINTS[length] if length < SMALL_VARINT_LIMIT else encode_varint(length))
                parts.append(value)
            parts.append(headers)
            length = sum(map(len, parts))
            parts.insert(0, SMALL_VARINTS[length] if length < SMALL_VARINT_LIMIT else encode_varint(length))
            data = b"".join(parts)
            self.size = end = start + len(data)
            self.body[start:end] = data
        self.count = index + 1
        return self.size - start

    def append_records(
        self, body: Any, count: int, base_offset: int, first: int, end: int, base_timestamp: int, append_time: int
    ) -> int:
        """Append records of another batch with new deltas. `body` has `count` records. Records with
        offsets from `first` up to, but not including, `end` are copied. If `append_time` is not -1,
        it replaces the timestamps. Returns the number of copied records. Raises ValueError and
        appends nothing if `body` is invalid. The caller must ensure that there is room.
        """
        if cython.compiled:
            return write_records(self, body, count, base_offset, first, end, base_timestamp, append_time)  # type: ignore[name-defined,no-any-return]  # noqa: F821
        else:
            data, copied, self.base_timestamp, self.max_timestamp = copied_records(
                bytes(body), count, base_offset, first, end, base_timestamp, append_time,
                self.count, self.base_timestamp, self.max_timestamp,
            )  # fmt: skip
            start = self.size
            self.size = end_position = start + len(data)
            self.body[start:end_position] = data
            self.count += copied
            return copied

    def add_waiter(self, waiter: Callable[[], object]) -> bool:
        """Call `waiter()` when the batch is done or split. Returns False, without a call, if the
        batch is already done or split. Call this method only under the lock."""
        if self.done or self.parts is not None:
            return False
        if self.waiters is None:
            self.waiters = []
        self.waiters.append(waiter)
        return True


# The garbage collector does not need to track futures: a future refers only to its batch, and the
# batch drops its futures when it is done.
@cython.no_gc
@cython.freelist(256)
@cython.cclass
class RecordFuture:
    """The outcome of one `send`. Refers to the batch, which has the outcome, and to the index of
    the record in the batch.

    `get(timeout)` waits and returns RecordMetadata, or raises an error. Callbacks run in the
    producer's I/O thread, or immediately if the outcome is known. The future can be awaited in any
    event loop.
    """

    __slots__ = ("batch", "index", "key_size", "timestamp", "value_size")

    def __init__(self, batch: Batch, index: int, timestamp: int, key_size: int, value_size: int) -> None:
        self.batch = batch
        self.index = index
        self.timestamp = timestamp
        self.key_size = key_size
        self.value_size = value_size

    def _current_batch(self) -> Batch:
        """Return the batch that contains the record after all splits."""
        batch = self.batch
        while batch.parts is not None:
            for first, part in reversed(batch.parts):
                if self.index >= first:
                    self.index -= first
                    self.batch = batch = part
                    break
        return batch

    def done(self) -> bool:
        return bool(self._current_batch().done)

    def metadata(self) -> RecordMetadata:
        """Return the metadata of the stored record. Valid only if the record is done without an
        error."""
        batch = self._current_batch()
        queue = batch.queue
        return make_tuple(
            RecordMetadata,
            (
                queue.topic,
                queue.partition,
                batch.base_offset + self.index if batch.base_offset >= 0 else -1,
                batch.log_append_time if batch.log_append_time >= 0 else self.timestamp,
                self.key_size,
                self.value_size,
            ),
        )

    def outcome(self) -> tuple[RecordMetadata, None] | tuple[None, KafkaError]:
        """Return (metadata, None) or (None, exception). Valid only if the record is done."""
        error = self._error()
        return (self.metadata(), None) if error is None else (None, error)

    def _error(self) -> KafkaError | None:
        """Return the error of a record that is done, or None. Counts the error as reported."""
        batch = self._current_batch()
        if batch.error is None:
            return None
        batch.reported_failures += 1
        if batch.record_errors is not None:
            return batch.record_errors.get(self.index, batch.error)
        return batch.error

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the record is done. Returns False after `timeout` seconds. Raises IllegalState
        in the I/O thread."""
        deadline = None if timeout is None else monotonic() + timeout
        while True:
            batch = self._current_batch()
            if batch.done:
                return True
            if get_ident() == batch.queue.owner.loop_thread:
                raise IllegalState(
                    "the I/O thread delivers the outcome and must not wait for it; await it, or use callbacks"
                )
            event = Event()
            with batch.queue.owner.lock:
                is_registered = batch.add_waiter(event.set)
            if is_registered and not event.wait(None if deadline is None else max(0.0, deadline - monotonic())):
                return False

    def get(self, timeout: float | None = None) -> RecordMetadata:
        """Wait for the outcome. Raises the record's error, or KafkaTimeout after `timeout`
        seconds."""
        if not self.wait(timeout):
            raise KafkaTimeout(f"the record was not acknowledged within {timeout} s")
        error = self._error()
        if error is not None:
            # All records of the batch share the exception: its traceback must not grow.
            raise error.with_traceback(None)
        return self.metadata()

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Same as `get`. The name is that of `concurrent.futures`."""
        return self.get(timeout)

    def exception(self, timeout: float | None = None) -> KafkaError | None:
        """Wait for the outcome and return its error, or None. Raises KafkaTimeout after `timeout`
        seconds."""
        if not self.wait(timeout):
            raise KafkaTimeout(f"the record was not acknowledged within {timeout} s")
        return self._error()

    def succeeded(self) -> bool:
        return self.done() and not self.failed()

    def failed(self) -> bool:
        batch = self._current_batch()
        if not batch.done or batch.error is None:
            return False
        batch.reported_failures += 1
        return True

    def on_done(self, callback: Callback) -> RecordFuture:
        """Call `callback(metadata, exception)` when the record is done. One of the two is None."""
        batch = self._current_batch()
        if not batch.done:
            with batch.queue.owner.lock:
                batch = self._current_batch()
                if not batch.done:
                    if batch.entries is None:
                        batch.entries = []
                    batch.entries.append(self)
                    batch.entries.append(callback)
                    return self
        metadata, error = self.outcome()
        callback(metadata, error)
        return self

    def add_callback(self, callback: Callable[[RecordMetadata], object]) -> RecordFuture:
        """Call `callback(metadata)` when the record is stored."""
        return self.on_done(OnSuccess(callback))

    def add_errback(self, callback: Callable[[KafkaError], object]) -> RecordFuture:
        """Call `callback(exception)` when the record fails."""
        return self.on_done(OnError(callback))

    def add_done_callback(self, callback: Callable[[RecordFuture], object]) -> RecordFuture:
        """Call `callback(future)` when the record is done."""
        return self.on_done(OnEither(callback, self))

    def __await__(self) -> Generator[Any, Any, RecordMetadata]:
        return outcome_of(self).__await__()


def call_back(entries: list[Any], on_error: Any) -> None:
    """Run the callbacks of a completed batch. `entries` alternates futures and callbacks, in the
    order of the records. If a callback raises an exception, `on_error` is called with it, and the
    next callback runs."""
    i = 0
    count = len(entries)
    while i < count:
        future: RecordFuture = entries[i]
        callback = entries[i + 1]
        i += 2
        try:
            batch = future._current_batch()
            if batch.error is None:
                callback(future.metadata(), None)
            else:
                callback(None, future._error())
        except BaseException as error:
            on_error(error)


class PartitionQueue:
    """Owns the pending batches of one partition, the oldest first. The last batch may be open
    (`tail`).

    The fields from `leader` on belong to the sender; `sequences.py` describes them.
    """

    __slots__ = (
        "batches", "codec", "in_flight", "in_transaction", "last_acked_offset",
        "last_acked_sequence", "last_batch_size", "leader", "level", "next_sequence", "owner", "partition",
        "producer_epoch", "producer_id", "retry_at", "tail", "target", "topic", "unresolved",
    )  # fmt: skip

    def __init__(self, owner: Accumulator, topic: str, partition: int) -> None:
        self.owner = owner
        self.topic = topic
        self.partition = partition
        self.batches: deque[Batch] = deque()
        self.tail: Any = None
        # The size of the last completed batch, from which the initial buffer size of the next batch
        # is derived.
        self.last_batch_size = 0
        self.target = owner.batch_size
        self.in_transaction = 0
        self.leader = -1
        self.retry_at = 0.0
        self.codec = 0
        self.level: int | None = None
        self.in_flight: list[Batch] = []
        self.next_sequence = 0
        self.last_acked_sequence = -1
        self.last_acked_offset = -1
        self.producer_id = -1
        self.producer_epoch = -1
        self.unresolved = False


class TopicQueues:
    """The queues of a topic, and the current partition of records without a key (`sticky`)."""

    __slots__ = ("available", "count", "name", "queues", "sticky", "sticky_bytes")

    def __init__(self, name: str) -> None:
        self.name = name
        self.queues: list[PartitionQueue] = []
        self.count = 0
        self.available: tuple[int, ...] = ()
        self.sticky = 0
        self.sticky_bytes = 0


class Accumulator:
    """Owns all batches without an outcome (`incomplete`), and their memory.

    An append calls `wake`, from any thread, when the sender has work and was not woken yet; `awake`
    is set from then until the sender runs. `pending` has the queues with batches to send.
    `choose(topic)` returns the next sticky partition.

    `transaction` is the number of the open transaction, -1 while a transactional producer has no
    open transaction, and 0 for other producers. It changes under the lock. Every append passes the
    transaction of its record, so no record is added to a transaction that began after the call of
    `send`. `topics` has the topics that `SendPath` may use without further checks; the dict is
    replaced, never modified.

    `used` is the memory of the batches' buffers, filled or not. Together with the pool it does not
    exceed `buffer_limit`, except for a single batch that is larger than the limit and the parts of
    a split batch. A batch starts with a small buffer that doubles when it is full, so that many
    partitions with one record each need little memory.
    """

    __slots__ = (
        "awake", "batch_size", "buffer_limit", "choose", "closed", "flushing", "grow_to",
        "incomplete", "lock", "loop_thread", "max_count", "max_record", "next_number", "pending",
        "pool", "record_limit", "records", "releases", "room_waiters", "topics", "transaction",
        "unreported_failures", "used", "wake",
    )  # fmt: skip

    def __init__(
        self,
        batch_size: int,
        grow_to: int,
        buffer_limit: int,
        max_record: int,
        max_count: int,
        record_limit: int,
        wake: Callable[[], object],
        choose: Callable[[TopicQueues], int],
    ) -> None:
        self.lock = Lock()
        self.batch_size = batch_size
        self.grow_to = max(batch_size, min(grow_to, max_record))
        self.buffer_limit = buffer_limit
        self.pool = BufferPool(min(buffer_limit // 2, MAX_POOL_SIZE))
        self.max_record = max_record
        self.max_count = max_count
        self.record_limit = record_limit
        self.wake = wake
        self.choose = choose
        # The thread of the event loop, which must not wait for an outcome.
        self.loop_thread = 0
        self.awake = False
        self.closed = False
        self.transaction = 0
        self.topics: dict[str, TopicQueues] = {}
        # Failures that were not reported to the program; see `failures.py`.
        self.unreported_failures: deque[Any] = deque()
        self.used = 0
        # Counts the events after which a waiter for room must try again.
        self.releases = 0
        self.records = 0
        self.next_number = 0
        self.flushing = 0
        self.pending: dict[PartitionQueue, None] = {}
        self.incomplete: dict[Batch, None] = {}
        self.room_waiters: list[Callable[[], object]] = []

    def append(
        self,
        queue: PartitionQueue,
        transaction: int,
        timestamp: int,
        key: Any,
        value: Any,
        headers: bytes,
        callback: Callback | None,
    ) -> RecordFuture | None:
        """Append to the partition's batch. Returns None and does nothing if the buffer is full, the
        accumulator is closed, or `transaction` is not the open transaction.

        The caller must ensure that the record is not larger than `max_record`.
        """
        key_size = -1 if key is None else len(key)
        value_size = -1 if value is None else len(value)
        estimate = RECORD_OVERHEAD + len(headers)
        if key_size > 0:
            estimate += key_size
        if value_size > 0:
            estimate += value_size
        wake = False
        lock = self.lock
        lock.acquire()
        try:
            if self.closed or transaction != self.transaction or self.records >= self.record_limit:
                return None
            batch = queue.tail
            if batch is None or batch.size + estimate > queue.target or batch.count >= self.max_count:
                batch = self._next_batch(queue, batch, estimate)
                if batch is None:
                    return None
                if batch.count == 0:
                    wake = True
            if batch.size + estimate > len(batch.body) and not self.make_room(batch, batch.size + estimate, False):
                return None
            index = batch.count
            batch.append(timestamp, key, value, headers)
            self.records += 1
            future = RecordFuture(batch, index, timestamp, key_size, value_size)
            if callback is not None:
                if batch.entries is None:
                    batch.entries = []
                batch.entries.append(future)
                batch.entries.append(callback)
            if self.awake:
                wake = False
            elif wake or batch.size >= queue.target:
                self.awake = True
                wake = True
        finally:
            lock.release()
        if wake:
            self.wake()
        return future

    def append_records(
        self,
        queue: PartitionQueue,
        transaction: int,
        body: Any,
        count: int,
        base_offset: int,
        first: int,
        end: int,
        base_timestamp: int,
        append_time: int,
    ) -> tuple[Batch, int, int] | None:
        """Like `append`, for records of another batch (`Batch.append_records`). All of them are
        appended to the same batch, even if they exceed `buffer_limit`. Returns (batch, index of the
        first record, record count)."""
        estimate = len(body) + MAX_RECORD_GROWTH * count
        wake = False
        lock = self.lock
        lock.acquire()
        try:
            if (
                self.closed
                or transaction != self.transaction
                or (self.used and self.records + count > self.record_limit)
            ):
                return None
            batch = queue.tail
            if batch is None or batch.size + estimate > queue.target or batch.count + count > self.max_count:
                if batch is not None and batch.count + count > self.max_count:
                    batch = None
                batch = self._next_batch(queue, batch, estimate)
                if batch is None:
                    return None
            if batch.size + estimate > len(batch.body) and not self.make_room(batch, batch.size + estimate, False):
                return None
            index = batch.count
            try:
                copied = batch.append_records(body, count, base_offset, first, end, base_timestamp, append_time)
            finally:
                if batch.count == 0:
                    # The batch is new and empty: `body` is invalid or has no record in the range.
                    queue.batches.remove(batch)
                    queue.tail = None
                    self.incomplete.pop(batch, None)
                    self.used -= batch.charged
                    if not queue.batches:
                        self.pending.pop(queue, None)
            self.records += copied
            wake = copied > 0 and not self.awake
            if wake:
                self.awake = True
        finally:
            lock.release()
        if wake:
            self.wake()
        return batch, index, copied

    def append_batch(
        self,
        queue: PartitionQueue,
        transaction: int,
        body: bytearray,
        count: int,
        codec: int,
        base_timestamp: int,
        max_timestamp: int,
    ) -> Batch | None:
        """Queue a complete batch, to which no more records are appended. `body` starts with room
        for the header. Returns None in the same cases as `append`. A batch larger than
        `buffer_limit` is accepted if there is no other batch."""
        size = len(body)
        wake = False
        lock = self.lock
        lock.acquire()
        try:
            if self.closed or transaction != self.transaction or (self.used and self.used + size > self.buffer_limit):
                return None
            batch = Batch(queue, self.next_number, body)
            self.next_number += 1
            self.incomplete[batch] = None
            batch.size = batch.charged = size
            batch.count = count
            batch.codec = codec
            batch.base_timestamp = base_timestamp
            batch.max_timestamp = max_timestamp
            batch.data = memoryview(body)
            self.used += size
            self.records += count
            if not queue.batches:
                self.pending[queue] = None
            queue.batches.append(batch)
            queue.tail = None
            wake = not self.awake
            self.awake = True
        finally:
            lock.release()
        if wake:
            self.wake()
        return batch

    def _next_batch(self, queue: PartitionQueue, batch: Batch | None, estimate: int) -> Batch | None:
        """Return the open batch if it may grow, otherwise a new batch with room for `estimate`
        bytes, or None if the buffer is full. A batch may grow beyond its target while earlier
        batches are pending, because one large batch costs less than many small batches."""
        if (
            batch is not None
            and batch.count < self.max_count
            and len(queue.batches) > 1
            and batch.size + estimate <= self.grow_to
        ):
            return batch
        room = min(queue.last_batch_size, queue.target, MAX_INITIAL_BUFFER_SIZE)
        batch = self.new_batch(queue, max(HEADER_SIZE + estimate, room), False)
        if batch is None:
            return None
        if not queue.batches:
            self.pending[queue] = None
        queue.batches.append(batch)
        queue.tail = batch
        return batch

    def new_batch(self, queue: PartitionQueue, room: int, force: bool) -> Batch | None:
        """Create a batch. Returns None if the buffer is full and `force` is not set."""
        body = self._allocate(room, 0, force)
        if body is None:
            return None
        batch = Batch(queue, self.next_number, body)
        batch.charged = len(body)
        self.next_number += 1
        self.incomplete[batch] = None
        return batch

    def _allocate(self, size: int, charged: int, force: bool) -> bytearray | None:
        """Return a buffer of at least `size` bytes that replaces a buffer of `charged` bytes.
        Returns None if the new buffer would exceed `buffer_limit`, unless `force` is set or there
        is no other batch."""
        is_only_batch = self.used == 0
        used = self.used - charged
        available = self.buffer_limit - used
        room = self.pool.capacity(size)
        if room > available:
            if available >= size:
                # Take all available memory: growing record by record would copy the batch each
                # time.
                room = available
            elif is_only_batch or force:
                room = size
            else:
                return None
        body = self.pool.take(room)
        self.used = used + room
        if self.used + self.pool.cached > self.buffer_limit:
            self.pool.trim(self.used + self.pool.cached - self.buffer_limit)
        return body

    def make_room(self, batch: Batch, size: int, force: bool) -> bool:
        """Move the batch to a larger buffer. Returns False if the buffer is full and `force` is not
        set."""
        previous_body = batch.body
        body = self._allocate(size, batch.charged, force)
        if body is None:
            return False
        filled = batch.size
        if cython.compiled:
            copy_bytes(body, previous_body, filled)  # type: ignore[name-defined]  # noqa: F821
        else:
            body[:filled] = memoryview(previous_body)[:filled]
        batch.body = body
        batch.charged = len(body)
        if self.used + self.pool.cached + len(previous_body) <= self.buffer_limit:
            self.pool.put(previous_body)
        return True


class SendPath:
    """The fast path of `send`: the topic has metadata, the buffer has room, and key and value are
    bytes or strings.

    `_send_slow_path`, which the producer defines, handles everything else. `Accumulator.topics` has
    the topics of the fast path. It is empty with interceptors, a custom partitioner or custom
    serializers, when the producer is closed, and while a transactional producer has no open
    transaction.
    """

    def __init__(self, accumulator: Accumulator) -> None:
        self._accumulator = accumulator
        self._accepts_text_keys = True
        self._accepts_text_values = True
        self._ignore_keys = False

    def send(
        self,
        topic: Any,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: Headers | None = None,
        callback: Callback | None = None,
    ) -> RecordFuture:
        """Send a record. Blocks only while metadata is missing or the buffer is full.

        `callback(metadata, exception)` runs in the producer's I/O thread, in the order of the
        records of a partition. `topic` may be a ProducerRecord, which replaces all other arguments
        except `callback`.
        """
        accumulator = self._accumulator
        # The record belongs to the transaction that is open now, even if this call blocks.
        transaction = accumulator.transaction
        queues = accumulator.topics.get(topic) if type(topic) is str else None
        if queues is not None and headers is None:
            future = self._try_fast_path(queues, transaction, value, key, partition, timestamp, callback)
            if future is not None:
                return future
        return self._send_slow_path(transaction, topic, value, key, partition, timestamp, headers, callback)

    def _send_slow_path(
        self,
        transaction: int,
        topic: Any,
        value: Any,
        key: Any,
        partition: Any,
        timestamp: Any,
        headers: Any,
        callback: Any,
    ) -> RecordFuture:
        raise NotImplementedError

    def try_send(
        self, topic: Any, value: Any, key: Any, partition: Any, timestamp: Any, headers: Any, callback: Any
    ) -> RecordFuture | None:
        """Send a record on the fast path. Returns None, without sending, if the record requires the
        slow path."""
        accumulator = self._accumulator
        transaction = accumulator.transaction
        queues = accumulator.topics.get(topic) if type(topic) is str else None
        if queues is None or headers is not None:
            return None
        return self._try_fast_path(queues, transaction, value, key, partition, timestamp, callback)

    def _try_fast_path(
        self,
        queues: TopicQueues,
        transaction: int,
        value: Any,
        key: Any,
        partition: Any,
        timestamp: Any,
        callback: Any,
    ) -> RecordFuture | None:
        if value is None or type(value) is bytes:
            pass
        elif type(value) is str and self._accepts_text_values:
            value = value.encode()
        else:
            return None
        if key is None or type(key) is bytes:
            pass
        elif type(key) is str and self._accepts_text_keys:
            key = key.encode()
        else:
            return None
        accumulator = self._accumulator
        size = RECORD_OVERHEAD
        if key is not None:
            size += len(key)
        if value is not None:
            size += len(value)
        if size > accumulator.max_record or size > accumulator.buffer_limit:
            return None
        is_sticky = False
        if partition is None:
            if key is None or self._ignore_keys:
                index = queues.sticky
                is_sticky = True
            else:
                index = (murmur2(key) & 0x7FFFFFFF) % queues.count
        elif type(partition) is int and 0 <= partition < queues.count:
            index = partition
        else:
            return None
        queue = queues.queues[index]
        if queue.in_transaction != transaction:
            # The slow path adds the partition to the transaction first.
            return None
        if timestamp is None:
            now = int(wall_clock() * 1000)
        elif type(timestamp) is int and 0 <= timestamp < 0x7FFFFFFFFFFFFFFF:
            now = timestamp
        else:
            return None
        future = accumulator.append(queue, transaction, now, key, value, b"\x00", callback)
        if is_sticky and future is not None and queues.count > 1:
            queues.sticky_bytes += size
            if queues.sticky_bytes >= accumulator.batch_size:
                queues.sticky_bytes = 0
                queues.sticky = accumulator.choose(queues)
        return future


def murmur2(data: bytes) -> int:
    """Return Kafka's 32-bit hash of a key. The result is unsigned; in Java it is signed."""
    length = len(data)
    mask = 0xFFFFFFFF
    m = 0x5BD1E995
    h = (0x9747B28C ^ length) & mask
    aligned = length & ~3
    i = 0
    while i < aligned:
        k = data[i] | data[i + 1] << 8 | data[i + 2] << 16 | data[i + 3] << 24
        k = k * m & mask
        k ^= k >> 24
        k = k * m & mask
        h = h * m & mask
        h ^= k
        i += 4
    tail = length - aligned
    if tail == 3:
        h ^= data[aligned + 2] << 16
    if tail >= 2:
        h ^= data[aligned + 1] << 8
    if tail >= 1:
        h ^= data[aligned]
        h = h * m & mask
    h ^= h >> 13
    h = h * m & mask
    h ^= h >> 15
    return h
