"""Adapters of a RecordFuture: callbacks with other signatures, and awaiting."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kavka.client.producer._append import RecordFuture
    from kavka.client.producer.record import RecordMetadata
    from kavka.common.errors import KafkaError


class OnSuccess:
    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[RecordMetadata], object]) -> None:
        self.callback = callback

    def __call__(self, metadata: RecordMetadata | None, error: KafkaError | None) -> None:
        if metadata is not None:
            self.callback(metadata)


class OnError:
    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[KafkaError], object]) -> None:
        self.callback = callback

    def __call__(self, metadata: RecordMetadata | None, error: KafkaError | None) -> None:
        if error is not None:
            self.callback(error)


class OnEither:
    __slots__ = ("callback", "future")

    def __init__(self, callback: Callable[[RecordFuture], object], future: RecordFuture) -> None:
        self.callback = callback
        self.future = future

    def __call__(self, metadata: RecordMetadata | None, error: KafkaError | None) -> None:
        self.callback(self.future)


async def outcome_of(future: RecordFuture) -> RecordMetadata:
    loop = asyncio.get_running_loop()
    while True:
        batch = future._current_batch()
        if batch.done:
            return future.get()
        waiter: asyncio.Future[None] = loop.create_future()
        notify = _Notify(loop, waiter)
        with batch.queue.owner.lock:
            waiting = batch.add_waiter(notify)
        if waiting:
            await waiter


class _Notify:
    """Wakes a coroutine. Any thread may call it."""

    __slots__ = ("loop", "waiter")

    def __init__(self, loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[None]) -> None:
        self.loop = loop
        self.waiter = waiter

    def __call__(self) -> None:
        # The loop may have ended. Then no coroutine waits on it, and the other waiters of the batch
        # still have to be called.
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._set)

    def _set(self) -> None:
        if not self.waiter.done():
            self.waiter.set_result(None)
