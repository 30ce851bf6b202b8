"""Completes batches: sets their outcome, runs callbacks and frees memory. Also splits batches that
are too large."""

from __future__ import annotations

import logging
import threading
from typing import Any

from kavka.client.producer._append import HEADER_SIZE, RECORD_OVERHEAD, Accumulator, Batch, call_back
from kavka.client.producer.encoding import encoded_headers, records_of

logger = logging.getLogger(__name__)

# Threads that wait for room are woken when 1/32 of the buffer is free, not after each batch.
MIN_ROOM_DIVISOR = 32


class Completion:
    """Sets the outcome of batches and runs callbacks of the application in order. Logs exceptions
    that callbacks raise. May be called only on the event loop."""

    def __init__(self, accumulator: Accumulator) -> None:
        self._accumulator = accumulator
        self._enough_room = max(1, accumulator.buffer_limit // MIN_ROOM_DIVISOR)

    def finish(
        self,
        batch: Batch,
        base_offset: int,
        log_append_time: int,
        error: Any,
        record_errors: Any = None,
        reuse: bool = False,
    ) -> None:
        """Set the outcome. `reuse` returns the batch's buffer to the pool; the caller must ensure
        that no view of the buffer exists."""
        accumulator = self._accumulator
        batch.data = None
        with accumulator.lock:
            batch.base_offset = base_offset
            batch.log_append_time = log_append_time
            batch.error = error
            batch.record_errors = record_errors
            batch.done = True
            accumulator.incomplete.pop(batch, None)
            accumulator.used -= batch.charged
            accumulator.records -= batch.count
            batch.queue.last_batch_size = batch.size
            if reuse and batch.body is not None:
                accumulator.pool.put(batch.body)
            batch.body = None
            entries, batch.entries = batch.entries, None
            waiters, batch.waiters = batch.waiters, None
            waiters = (waiters or []) + self._take_room_waiters()
        for waiter in waiters:
            waiter()
        if entries is not None:
            call_back(entries, _on_callback_error)

    def shrink(self, batch: Batch, size: int) -> None:
        """Free the uncompressed records after compression, and adapt the queue's target size."""
        accumulator = self._accumulator
        queue = batch.queue
        with accumulator.lock:
            ratio = (size - HEADER_SIZE) / max(1, batch.size - HEADER_SIZE)
            # The target is the uncompressed size that compresses to about the configured
            # batch.size.
            estimate = accumulator.batch_size / max(ratio, 0.01) * 0.95
            target = (3 * queue.target + estimate) / 4
            queue.target = int(max(accumulator.batch_size, min(target, accumulator.grow_to)))
            accumulator.used += size - batch.charged
            batch.charged = size
            accumulator.pool.put(batch.body)
            batch.body = None
            waiters = self._take_room_waiters()
        for waiter in waiters:
            waiter()

    def _take_room_waiters(self) -> list[Any]:
        """Remove and return the waiters for room if enough room is free. The caller holds the
        lock."""
        accumulator = self._accumulator
        accumulator.releases += 1
        free = accumulator.buffer_limit - accumulator.used
        if not accumulator.room_waiters or (free < self._enough_room and accumulator.incomplete):
            return []
        waiters, accumulator.room_waiters = accumulator.room_waiters, []
        return waiters

    def split(self, batch: Batch) -> list[Batch]:
        """Split a batch into parts. A part has at most the configured batch.size, or half the
        uncompressed size of the batch if that is less, but at least one record. Futures move to the
        parts with their records."""
        accumulator = self._accumulator
        records = records_of(batch)
        uncompressed = sum(len(r.key or b"") + len(r.value or b"") + RECORD_OVERHEAD for r in records) + HEADER_SIZE
        limit = min(accumulator.batch_size or uncompressed, uncompressed // 2)
        parts: list[tuple[int, Batch]] = []
        with accumulator.lock:
            for index, record in enumerate(records):
                headers = encoded_headers(record.headers)
                size = RECORD_OVERHEAD + len(record.key or b"") + len(record.value or b"") + len(headers)
                if not parts or parts[-1][1].size + size > limit:
                    new_part = accumulator.new_batch(batch.queue, HEADER_SIZE + size, True)
                    assert new_part is not None
                    part = new_part
                    part.created = batch.created
                    parts.append((index, part))
                part = parts[-1][1]
                if part.size + size > len(part.body):
                    accumulator.make_room(part, part.size + size, True)
                part.append(record.timestamp, record.key, record.value, headers)
            accumulator.used -= batch.charged
            # Insert the parts at the position of the batch, so that the oldest batches stay first.
            previous = accumulator.incomplete
            accumulator.incomplete = {}
            for other in previous:
                if other is batch:
                    accumulator.incomplete.update((part, None) for _, part in parts)
                elif not any(other is part for _, part in parts):
                    accumulator.incomplete[other] = None
            for index, part in parts:
                part.number, part.first = batch.number, batch.first + index
            batch.parts = parts
            batch.data = batch.body = None
            batch.charged = 0
            entries, batch.entries = batch.entries, None
            waiters, batch.waiters = batch.waiters, None
            for i in range(0, len(entries or ()), 2):
                part = entries[i]._current_batch()
                if part.entries is None:
                    part.entries = []
                part.entries += entries[i : i + 2]
        for waiter in waiters or ():
            waiter()
        return [part for _, part in parts]


def _on_callback_error(error: BaseException) -> None:
    if not isinstance(error, Exception) and threading.current_thread() is threading.main_thread():
        # Exceptions such as KeyboardInterrupt end a program that runs the event loop in its main
        # thread. They must not end the I/O thread, because the program would wait forever.
        raise error
    logger.error("A producer callback raised an exception", exc_info=error)
