"""What a RecordFuture is asked for beside its outcome: callbacks of other shapes, and to be awaited."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kavka.client.producer._append import RecordFuture


class OnSuccess:
    __slots__ = ("callback",)

    def __init__(self, callback: Any) -> None:
        self.callback = callback

    def __call__(self, metadata: Any, error: Any) -> None:
        if error is None:
            self.callback(metadata)


class OnError:
    __slots__ = ("callback",)

    def __init__(self, callback: Any) -> None:
        self.callback = callback

    def __call__(self, metadata: Any, error: Any) -> None:
        if error is not None:
            self.callback(error)


class OnEither:
    __slots__ = ("callback", "future")

    def __init__(self, callback: Any, future: RecordFuture) -> None:
        self.callback = callback
        self.future = future

    def __call__(self, metadata: Any, error: Any) -> None:
        self.callback(self.future)


async def outcome_of(future: RecordFuture) -> Any:
    loop = asyncio.get_running_loop()
    while True:
        batch = future._settle()
        if batch.done:
            return future.get()
        waiter = loop.create_future()
        notify = _Notify(loop, waiter)
        with batch.queue.owner.lock:
            waiting = batch.add_waiter(notify)
        if waiting:
            await waiter


class _Notify:
    """Wakes a coroutine, from whatever thread the outcome is known in."""

    __slots__ = ("loop", "waiter")

    def __init__(self, loop: Any, waiter: Any) -> None:
        self.loop = loop
        self.waiter = waiter

    def __call__(self) -> None:
        # Its loop may have ended: then nobody waits any more, and others want to hear of the same batch.
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._set)

    def _set(self) -> None:
        if not self.waiter.done():
            self.waiter.set_result(None)
