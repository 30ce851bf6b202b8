"""Adapters of a RecordFuture: callbacks with other signatures, and awaiting."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kavka.client.producer._append import RecordFuture
    from kavka.client.producer.record import RecordMetadata
    from kavka.common.errors import KafkaError


@dataclass(slots=True, eq=False)
class OnSuccess:
    callback: Callable[[RecordMetadata], object]

    def __call__(self, metadata: RecordMetadata | None, error: KafkaError | None) -> None:
        if metadata is not None:
            self.callback(metadata)


@dataclass(slots=True, eq=False)
class OnError:
    callback: Callable[[KafkaError], object]

    def __call__(self, metadata: RecordMetadata | None, error: KafkaError | None) -> None:
        if error is not None:
            self.callback(error)


@dataclass(slots=True, eq=False)
class OnEither:
    callback: Callable[[RecordFuture], object]
    future: RecordFuture

    def __call__(self, metadata: RecordMetadata | None, error: KafkaError | None) -> None:
        self.callback(self.future)


async def outcome_of(future: RecordFuture) -> RecordMetadata:
    """Wait in the running event loop for the outcome of a record. Returns its metadata or raises
    its error."""
    loop = asyncio.get_running_loop()
    while True:
        batch = future._current_batch()
        if batch.done:
            return future.get()
        waiter: asyncio.Future[None] = loop.create_future()
        notify = _Notify(loop, waiter)
        with batch.queue.owner.lock:
            is_registered = batch.add_waiter(notify)
        if is_registered:
            await waiter


@dataclass(slots=True, eq=False)
class _Notify:
    """Wakes a coroutine. Any thread may call it."""

    loop: asyncio.AbstractEventLoop
    waiter: asyncio.Future[None]

    def __call__(self) -> None:
        # If the event loop is closed, no coroutine waits on it. The caller must still call the
        # other waiters of the batch.
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._set)

    def _set(self) -> None:
        if not self.waiter.done():
            self.waiter.set_result(None)
