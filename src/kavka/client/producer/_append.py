"""The hot part of the producer: from `send` to the bytes of a batch.

This file is plain Python and is compiled with Cython where a compiler was there at install time; `_append.pxd` has the
C types. It keeps to what both forms do alike: no closures, no generators, no keyword-only tricks.

It is long because all that is in it knows one another's C types: batches, futures, queues and the accumulator in a
ring, and `send` above them. A compiled file that uses the C types of another cannot be imported where that other one is
not compiled, and each is compiled only if it can be. What needs none of them is in `callbacks.py` and `copying.py`.

Who may touch what: `Accumulator.lock` guards the queues, their batches until they are drained, and `used`. User threads
append; the sender drains, completes and frees. A batch that was drained belongs to the sender alone, until its outcome
is set under the lock.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from threading import Event, Lock, get_ident
from typing import Any

from kavka.client.errors import IllegalState, KafkaTimeout
from kavka.client.producer.callbacks import OnEither, OnError, OnSuccess, outcome_of
from kavka.client.producer.copying import copied_records
from kavka.client.producer.record import RecordMetadata
from kavka.records.varint import SMALL_VARINTS, encode_varint

try:
    import cython
except ImportError:
    from kavka.common import plain_cython as cython

HEADER_SIZE = 61
SMALLEST = 1024
CLASSES = 15
FIRST_BUFFER = 16 * 1024
MAX_POOL = 16 * 1024 * 1024
# The most that a record takes beside its key, value and headers.
RECORD_OVERHEAD = 36
# What a record may grow by when its deltas and its length are written anew.
MOST_GROWTH = 20
SMALL = 2048

# The constructor of a named tuple, without the check of its arguments' names.
make_tuple = tuple.__new__
monotonic = time.monotonic
wall_clock = time.time


def is_compiled() -> bool:
    return bool(cython.compiled)


class BufferPool:
    """Memory of batches that are done, for the next ones: asking the system for it anew costs more than filling it.

    Buffers that are reused come in sizes of 1, 2, 4, 8 … KB; `limit` is how many bytes are kept at most. Under the
    accumulator's lock.
    """

    __slots__ = ("classes", "kept", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.kept = 0
        self.classes: list[list[bytearray]] = [[] for _ in range(CLASSES)]

    def capacity(self, size: int) -> int:
        """The size of the smallest buffer that is reused and has that many bytes; `size` where none is so large."""
        index = 0
        room = SMALLEST
        while room < size and index < CLASSES:
            room <<= 1
            index += 1
        return room if index < CLASSES else size

    def take(self, size: int) -> bytearray:
        """A buffer of that many bytes, with anything in it."""
        index = 0
        room = SMALLEST
        while room < size and index < CLASSES:
            room <<= 1
            index += 1
        if index < CLASSES and room == size:
            free = self.classes[index]
            if free:
                self.kept -= size
                return free.pop()
        return bytearray(size)

    def trim(self, excess: int) -> None:
        """Give that many bytes back to the system, the largest buffers first, or all that there are."""
        index = CLASSES
        while index > 0 and excess > 0:
            index -= 1
            free = self.classes[index]
            while free and excess > 0:
                size = len(free.pop())
                self.kept -= size
                excess -= size

    def give(self, buffer: bytearray) -> None:
        """Nobody uses it any more, and nobody has a view of it."""
        size = len(buffer)
        if self.kept + size > self.limit:
            return
        index = 0
        room = SMALLEST
        while room < size and index < CLASSES:
            room <<= 1
            index += 1
        if room == size and index < CLASSES:
            self.kept += size
            self.classes[index].append(buffer)


class Batch:
    """Records for one partition: the first `size` bytes of `body`, of which the first 61 are kept for the header.

    It is open (records may be appended) until it is closed by being full or drained; then it is sent, perhaps more than
    once; then it is done, with offsets or with an error. One that the broker found too large is split: `parts` are
    (index of the first record, batch) and its records' outcome is that of the part they went to.
    """

    __slots__ = (
        "attempts",
        "base_offset",
        "base_sequence",
        "base_timestamp",
        "body",
        "charged",
        "codec",
        "count",
        "created",
        "data",
        "done",
        "entries",
        "error",
        "first",
        "in_flight",
        "log_append_time",
        "max_timestamp",
        "number",
        "parts",
        "producer_epoch",
        "producer_id",
        "queue",
        "record_errors",
        "seen",
        "signed",
        "size",
        "waiters",
    )

    def __init__(self, queue: PartitionQueue, number: int, body: Any) -> None:
        self.queue = queue
        # The order of batches: by number, and where one was split by the index of the first record.
        self.number = number
        self.first = 0
        self.created = monotonic()
        self.body: Any = body
        self.size = HEADER_SIZE
        self.charged = 0
        # What the records are compressed with already, where the batch was given whole; -1 where it was not.
        self.codec = -1
        self.count = 0
        self.base_timestamp = 0
        self.max_timestamp = -1
        self.attempts = 0
        self.in_flight = False
        # The bytes to send, and the producer id, epoch and sequence that they were made with.
        self.data: Any = None
        self.signed: Any = None
        self.producer_id = -1
        self.producer_epoch = -1
        self.base_sequence = -1
        self.done = False
        self.base_offset = -1
        self.log_append_time = -1
        self.error: Any = None
        self.record_errors: Any = None
        # How many of its records' failures were seen, by a callback or whoever has the future.
        self.seen = 0
        # Futures and callbacks in turn.
        self.entries: Any = None
        self.waiters: Any = None
        self.parts: Any = None

    def __del__(self) -> None:
        # Nobody has a future of it any more.
        if self.error is not None and self.seen < self.count:
            queue = self.queue
            queue.owner.unseen.append((queue.topic, queue.partition, self.error, self.count - self.seen))

    def append(self, timestamp: int, key: Any, value: Any, headers: bytes) -> int:
        """Add a record (bytes or None; headers encoded, with their count in front). Returns its size. There is room."""
        index = self.count
        if index == 0:
            self.base_timestamp = timestamp
        delta = timestamp - self.base_timestamp
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        before = self.size
        if cython.compiled:
            self.size = write_record(self.body, before, delta, index, key, value, headers)  # type: ignore[name-defined]  # noqa: F821
        else:
            parts = [
                b"\x00",
                SMALL_VARINTS[delta] if 0 <= delta < SMALL else encode_varint(delta),
                SMALL_VARINTS[index] if index < SMALL else encode_varint(index),
            ]
            if key is None:
                parts.append(b"\x01")
            else:
                length = len(key)
                parts.append(SMALL_VARINTS[length] if length < SMALL else encode_varint(length))
                parts.append(key)
            if value is None:
                parts.append(b"\x01")
            else:
                length = len(value)
                parts.append(SMALL_VARINTS[length] if length < SMALL else encode_varint(length))
                parts.append(value)
            parts.append(headers)
            length = sum(map(len, parts))
            parts.insert(0, SMALL_VARINTS[length] if length < SMALL else encode_varint(length))
            data = b"".join(parts)
            self.size = after = before + len(data)
            self.body[before:after] = data
        self.count = index + 1
        return self.size - before

    def append_records(
        self, body: Any, count: int, base_offset: int, first: int, end: int, base_timestamp: int, append_time: int
    ) -> int:
        """Add records as they stand in another batch, with new deltas: `body` has `count` of them, and those with
        offsets from `first` up to `end` are taken. `append_time` is the time of all of them, unless it is -1. Returns
        how many; where they cannot be read, ValueError, and nothing is added. There is room."""
        if cython.compiled:
            return write_records(self, body, count, base_offset, first, end, base_timestamp, append_time)  # type: ignore[name-defined,no-any-return]  # noqa: F821
        else:
            data, done, self.base_timestamp, self.max_timestamp = copied_records(
                bytes(body), count, base_offset, first, end, base_timestamp, append_time,
                self.count, self.base_timestamp, self.max_timestamp,
            )  # fmt: skip
            before = self.size
            self.size = after = before + len(data)
            self.body[before:after] = data
            self.count += done
            return done

    def add_waiter(self, waiter: Callable[[], object]) -> bool:
        """`waiter()` is called when the batch is done or split. Called under the lock; False if that is so already."""
        if self.done or self.parts is not None:
            return False
        if self.waiters is None:
            self.waiters = []
        self.waiters.append(waiter)
        return True


# Not seen by the garbage collector: its one reference is to its batch, which lets go of its futures when it is done.
@cython.no_gc
@cython.freelist(256)
@cython.cclass
class RecordFuture:
    """What `send` returns. Costs nothing until it is asked: what is known is in the batch.

    `get(timeout)` waits and returns RecordMetadata or raises. Callbacks run in the producer's I/O thread (at once, if
    the outcome is there already). It may be awaited, in the producer's loop.
    """

    __slots__ = ("batch", "index", "key_size", "timestamp", "value_size")

    def __init__(self, batch: Batch, index: int, timestamp: int, key_size: int, value_size: int) -> None:
        self.batch = batch
        self.index = index
        self.timestamp = timestamp
        self.key_size = key_size
        self.value_size = value_size

    def _settle(self) -> Batch:
        """The batch that the record is in now, after splits."""
        batch = self.batch
        while batch.parts is not None:
            for first, part in reversed(batch.parts):
                if self.index >= first:
                    self.index -= first
                    self.batch = batch = part
                    break
        return batch

    def done(self) -> bool:
        return bool(self._settle().done)

    def metadata(self) -> Any:
        """RecordMetadata of one that is done without an error."""
        batch = self._settle()
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

    def outcome(self) -> Any:
        """(metadata, None) or (None, exception) of one that is done."""
        batch = self._settle()
        if batch.error is None:
            return self.metadata(), None
        batch.seen += 1
        if batch.record_errors is not None:
            return None, batch.record_errors.get(self.index, batch.error)
        return None, batch.error

    def wait(self, timeout: float | None = None) -> bool:
        """Until it is done; False if that takes longer than `timeout` seconds."""
        deadline = None if timeout is None else monotonic() + timeout
        while True:
            batch = self._settle()
            if batch.done:
                return True
            if get_ident() == batch.queue.owner.loop_thread:
                raise IllegalState(
                    "the outcome would be waited for in the thread that has to bring it; await it, or use callbacks"
                )
            event = Event()
            with batch.queue.owner.lock:
                waiting = batch.add_waiter(event.set)
            if waiting and not event.wait(None if deadline is None else max(0.0, deadline - monotonic())):
                return False

    def get(self, timeout: float | None = None) -> Any:
        """RecordMetadata, waited for; raises what went wrong, or KafkaTimeout after `timeout` seconds."""
        if not self.wait(timeout):
            raise KafkaTimeout(f"the record was not acknowledged within {timeout} s")
        metadata, error = self.outcome()
        if error is not None:
            # It is the same object for all records of the batch: their tracebacks must not pile up in it.
            raise error.with_traceback(None)
        return metadata

    def result(self, timeout: float | None = None) -> Any:
        """As `get`, under the name that concurrent.futures has for it."""
        return self.get(timeout)

    def exception(self, timeout: float | None = None) -> Any:
        """What went wrong, or None; waited for."""
        if not self.wait(timeout):
            raise KafkaTimeout(f"the record was not acknowledged within {timeout} s")
        return self.outcome()[1]

    def succeeded(self) -> bool:
        return self.done() and not self.failed()

    def failed(self) -> bool:
        batch = self._settle()
        if not batch.done or batch.error is None:
            return False
        batch.seen += 1
        return True

    def on_done(self, callback: Any) -> RecordFuture:
        """`callback(metadata, exception)`, one of them None."""
        batch = self._settle()
        if not batch.done:
            with batch.queue.owner.lock:
                batch = self._settle()
                if not batch.done:
                    if batch.entries is None:
                        batch.entries = []
                    batch.entries.append(self)
                    batch.entries.append(callback)
                    return self
        metadata, error = self.outcome()
        callback(metadata, error)
        return self

    def add_callback(self, callback: Any) -> RecordFuture:
        """`callback(metadata)` when the record was stored."""
        return self.on_done(OnSuccess(callback))

    def add_errback(self, callback: Any) -> RecordFuture:
        """`callback(exception)` when it was not."""
        return self.on_done(OnError(callback))

    def add_done_callback(self, callback: Any) -> RecordFuture:
        """`callback(future)` in either case."""
        return self.on_done(OnEither(callback, self))

    def __await__(self) -> Any:
        return outcome_of(self).__await__()


def call_back(entries: list[Any], on_error: Any) -> None:
    """The callbacks of a batch that is done: `entries` are futures and callbacks in turn, in the order of the records.
    What one raises goes to `on_error`, and the next is called."""
    i = 0
    count = len(entries)
    while i < count:
        future: RecordFuture = entries[i]
        callback = entries[i + 1]
        i += 2
        try:
            batch = future._settle()
            if batch.error is None:
                callback(future.metadata(), None)
            else:
                callback(None, future.outcome()[1])
        except BaseException as error:
            on_error(error)


class PartitionQueue:
    """The batches of one partition that wait to be sent, the oldest first; the last may be open (`tail`).

    The fields from `leader` on belong to the sender; what they mean is said there and in `sequences.py`.
    """

    __slots__ = (
        "batches",
        "codec",
        "in_flight",
        "in_transaction",
        "last_acked_offset",
        "last_acked_sequence",
        "leader",
        "level",
        "next_sequence",
        "owner",
        "partition",
        "producer_epoch",
        "producer_id",
        "retry_at",
        "room",
        "tail",
        "target",
        "topic",
        "unresolved",
    )

    def __init__(self, owner: Accumulator, topic: str, partition: int) -> None:
        self.owner = owner
        self.topic = topic
        self.partition = partition
        self.batches: deque[Batch] = deque()
        self.tail: Any = None
        # The size of the last batch that is done: the next one gets a buffer for as much.
        self.room = 0
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
    """The queues of a topic, and the partition that records without a key go to for now."""

    __slots__ = ("available", "count", "name", "queues", "sticky", "sticky_bytes")

    def __init__(self, name: str) -> None:
        self.name = name
        self.queues: list[PartitionQueue] = []
        self.count = 0
        self.available: tuple[int, ...] = ()
        self.sticky = 0
        self.sticky_bytes = 0


class Accumulator:
    """All batches that are not done.

    `wake` is called (from any thread) when the sender has something to look at and does not know it; `awake` is set
    until it looks. `pending` are the queues with batches to send. `choose(topic)` picks the next sticky partition.

    `transaction` is the number of the open transaction, -1 while a transactional producer has none open, 0 for every
    other producer. It changes under the lock, and whoever appends says which transaction its record belongs to: so no
    record gets into a transaction that was begun after `send` was called. `topics` are those that `SendPath` may take
    without further checks; the dict is replaced, never changed in place.

    `used` is the memory that batches have allocated, whether filled or not: with what the pool keeps it stays below
    `buffer_limit`. Beyond that goes only what is larger than the whole buffer, alone, and the parts of a batch that
    is split. A batch begins with a small buffer and moves to one of twice the size when it is full, so that many
    partitions with a record each take little.
    """

    __slots__ = (
        "awake",
        "batch_size",
        "buffer_limit",
        "choose",
        "closed",
        "flushing",
        "grow_to",
        "incomplete",
        "lock",
        "loop_thread",
        "max_count",
        "max_record",
        "next_number",
        "pending",
        "pool",
        "record_limit",
        "records",
        "releases",
        "room_waiters",
        "topics",
        "transaction",
        "unseen",
        "used",
        "wake",
    )

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
        self.pool = BufferPool(min(buffer_limit // 2, MAX_POOL))
        self.max_record = max_record
        self.max_count = max_count
        self.record_limit = record_limit
        self.wake = wake
        self.choose = choose
        # The thread of the loop; nobody may wait there.
        self.loop_thread = 0
        self.awake = False
        self.closed = False
        self.transaction = 0
        self.topics: dict[str, TopicQueues] = {}
        # Failures that nobody saw; see `failures.py`.
        self.unseen: deque[Any] = deque()
        self.used = 0
        # How often a waiter for room had a reason to try again.
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
        callback: Any,
    ) -> Any:
        """Append to the partition's batch. None when there is no room in the buffer, it is closed, or `transaction` is
        not the open one: nothing was done.

        The caller has made sure that the record alone is not larger than `max_record`.
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
    ) -> Any:
        """As `append`, for the records of another batch (`Batch.append_records`), all in one batch: (the batch, index
        of the first, how many). More than the whole buffer goes alone."""
        estimate = len(body) + MOST_GROWTH * count
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
                done = batch.append_records(body, count, base_offset, first, end, base_timestamp, append_time)
            finally:
                if batch.count == 0:
                    # Made for records that are none, or cannot be read: nobody shall send it.
                    queue.batches.remove(batch)
                    queue.tail = None
                    self.incomplete.pop(batch, None)
                    self.used -= batch.charged
                    if not queue.batches:
                        self.pending.pop(queue, None)
            self.records += done
            wake = done > 0 and not self.awake
            if wake:
                self.awake = True
        finally:
            lock.release()
        if wake:
            self.wake()
        return batch, index, done

    def append_batch(
        self,
        queue: PartitionQueue,
        transaction: int,
        body: bytearray,
        count: int,
        codec: int,
        base_timestamp: int,
        max_timestamp: int,
    ) -> Any:
        """Queue a batch that is made already, `body` with room for its header; nothing is appended to it. None as from
        `append`; one that is larger than the whole buffer goes alone."""
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
        """The open batch where it may grow, else a new one with room for `estimate` bytes, or None where there is no
        memory for it. While batches before it wait for the broker, a batch grows beyond its target: one large batch
        costs less than many that wait in line."""
        if (
            batch is not None
            and batch.count < self.max_count
            and len(queue.batches) > 1
            and batch.size + estimate <= self.grow_to
        ):
            return batch
        room = min(queue.room, queue.target, FIRST_BUFFER)
        batch = self.new_batch(queue, max(HEADER_SIZE + estimate, room), False)
        if batch is None:
            return None
        if not queue.batches:
            self.pending[queue] = None
        queue.batches.append(batch)
        queue.tail = batch
        return batch

    def new_batch(self, queue: PartitionQueue, room: int, force: bool) -> Batch | None:
        """None where there is no memory for it, unless `force`."""
        body = self._allocate(room, 0, force)
        if body is None:
            return None
        batch = Batch(queue, self.next_number, body)
        batch.charged = len(body)
        self.next_number += 1
        self.incomplete[batch] = None
        return batch

    def _allocate(self, size: int, charged: int, force: bool) -> bytearray | None:
        """A buffer of at least `size` bytes, in place of one of `charged` bytes. None where that is more than
        `buffer_limit` allows, unless `force` or nothing else is there."""
        alone = self.used == 0
        used = self.used - charged
        left = self.buffer_limit - used
        room = self.pool.capacity(size)
        if room > left:
            if left >= size:
                # All that is left, at once: were it by the record, each would copy the batch.
                room = left
            elif alone or force:
                room = size
            else:
                return None
        body = self.pool.take(room)
        self.used = used + room
        if self.used + self.pool.kept > self.buffer_limit:
            self.pool.trim(self.used + self.pool.kept - self.buffer_limit)
        return body

    def make_room(self, batch: Batch, size: int, force: bool) -> bool:
        """A larger buffer for the batch. False where there is no memory for it, unless `force`."""
        old = batch.body
        body = self._allocate(size, batch.charged, force)
        if body is None:
            return False
        filled = batch.size
        if cython.compiled:
            copy_bytes(body, old, filled)  # type: ignore[name-defined]  # noqa: F821
        else:
            body[:filled] = memoryview(old)[:filled]
        batch.body = body
        batch.charged = len(body)
        if self.used + self.pool.kept + len(old) <= self.buffer_limit:
            self.pool.give(old)
        return True


class SendPath:
    """`send` where nothing is out of the ordinary: the topic is known, there is room, keys and values are bytes or
    text.

    Everything else goes to `_send_slowly`, which the producer defines. `Accumulator.topics` has the topics that may go
    the short way; it is empty while there are interceptors, a partitioner or serializers of the user's, when the
    producer is closed, or while no transaction is open in a transactional one.
    """

    def __init__(self, accumulator: Accumulator) -> None:
        self._accumulator = accumulator
        self._text_keys = True
        self._text_values = True
        self._ignore_keys = False

    def send(
        self,
        topic: Any,
        value: Any = None,
        key: Any = None,
        partition: Any = None,
        timestamp: Any = None,
        headers: Any = None,
        callback: Any = None,
    ) -> Any:
        """Send a record; returns at once with a RecordFuture, unless it has to wait for metadata or for room.

        `callback(metadata, exception)` is called in the producer's I/O thread, in the order of the records of a
        partition. A record may also be given whole, as a ProducerRecord in place of the topic.
        """
        accumulator = self._accumulator
        # The record belongs to the transaction of now, however long the rest takes.
        transaction = accumulator.transaction
        queues = accumulator.topics.get(topic) if type(topic) is str else None
        if queues is not None and headers is None:
            future = self._try(queues, transaction, value, key, partition, timestamp, callback)
            if future is not None:
                return future
        return self._send_slowly(transaction, topic, value, key, partition, timestamp, headers, callback)

    def _send_slowly(
        self,
        transaction: int,
        topic: Any,
        value: Any,
        key: Any,
        partition: Any,
        timestamp: Any,
        headers: Any,
        callback: Any,
    ) -> Any:
        raise NotImplementedError

    def try_send(
        self, topic: Any, value: Any, key: Any, partition: Any, timestamp: Any, headers: Any, callback: Any
    ) -> Any:
        """The short way alone: a RecordFuture, or None where it cannot be gone."""
        accumulator = self._accumulator
        transaction = accumulator.transaction
        queues = accumulator.topics.get(topic) if type(topic) is str else None
        if queues is None or headers is not None:
            return None
        return self._try(queues, transaction, value, key, partition, timestamp, callback)

    def _try(
        self,
        queues: TopicQueues,
        transaction: int,
        value: Any,
        key: Any,
        partition: Any,
        timestamp: Any,
        callback: Any,
    ) -> Any:
        if value is None or type(value) is bytes:
            pass
        elif type(value) is str and self._text_values:
            value = value.encode()
        else:
            return None
        if key is None or type(key) is bytes:
            pass
        elif type(key) is str and self._text_keys:
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
        sticky = False
        if partition is None:
            if key is None or self._ignore_keys:
                index = queues.sticky
                sticky = True
            else:
                index = (murmur2(key) & 0x7FFFFFFF) % queues.count
        elif type(partition) is int and 0 <= partition < queues.count:
            index = partition
        else:
            return None
        queue = queues.queues[index]
        if queue.in_transaction != transaction:
            # The partition has to be added to the transaction first.
            return None
        if timestamp is None:
            now = int(wall_clock() * 1000)
        elif type(timestamp) is int and 0 <= timestamp < 0x7FFFFFFFFFFFFFFF:
            now = timestamp
        else:
            return None
        future = accumulator.append(queue, transaction, now, key, value, b"\x00", callback)
        if sticky and future is not None and queues.count > 1:
            queues.sticky_bytes += size
            if queues.sticky_bytes >= accumulator.batch_size:
                queues.sticky_bytes = 0
                queues.sticky = accumulator.choose(queues)
        return future


def murmur2(data: bytes) -> int:
    """Kafka's hash of keys (32 bits, unsigned here), as Java computes it."""
    length = len(data)
    mask = 0xFFFFFFFF
    m = 0x5BD1E995
    h = (0x9747B28C ^ length) & mask
    whole = length & ~3
    i = 0
    while i < whole:
        k = data[i] | data[i + 1] << 8 | data[i + 2] << 16 | data[i + 3] << 24
        k = k * m & mask
        k ^= k >> 24
        k = k * m & mask
        h = h * m & mask
        h ^= k
        i += 4
    rest = length - whole
    if rest == 3:
        h ^= data[whole + 2] << 16
    if rest >= 2:
        h ^= data[whole + 1] << 8
    if rest >= 1:
        h ^= data[whole]
        h = h * m & mask
    h ^= h >> 13
    h = h * m & mask
    h ^= h >> 15
    return h
