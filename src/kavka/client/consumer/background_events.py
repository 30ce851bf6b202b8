"""Events that the I/O thread of a blocking consumer sends to the application's thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
import queue
from collections.abc import Callable
from typing import Any

from kavka.client.consumer.core import ConsumerCore
from kavka.client.errors import ClientClosed


class BackgroundEvents:
    """The queue between the two threads. An item is a `Callback` to run, a completed future, or
    None, which wakes a waiting poll.

    The core refers to this object and not to the consumer, so that a consumer that the application
    drops can be garbage collected."""

    def __init__(self) -> None:
        self.queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.is_waiting = False
        """Whether a poll waits for an event."""
        self.is_abandoned = False
        """Whether the application dropped the consumer: no thread reads the queue."""
        self.on_room: Callable[[], object] = lambda: None
        """Called by a poll that freed space in the buffer."""

    # The event loop calls these methods.

    def wake_poll(self) -> None:
        if self.is_waiting:
            self.is_waiting = False
            self.queue.put(None)

    async def call_user(self, function: Callable[..., Any], *args: Any) -> Any:
        if self.is_abandoned:
            raise ClientClosed("the application dropped the consumer")
        callback = Callback(function, args, asyncio.get_running_loop())
        self.queue.put(callback)
        return await callback.outcome

    async def abandon(self, core: ConsumerCore, timeout: float | None) -> None:
        self.is_abandoned = True
        await core.abandon(timeout)


class Callback:
    """A function that runs in the application's thread. The event loop awaits its outcome."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], loop: asyncio.AbstractEventLoop) -> None:
        self._function = function
        self._args = args
        self._loop = loop
        self.outcome: asyncio.Future[Any] = loop.create_future()

    def run(self) -> None:
        try:
            result = self._function(*self._args)
        except BaseException as error:
            self._loop.call_soon_threadsafe(_set_outcome, self.outcome, None, error)
            if not isinstance(error, Exception):
                raise
        else:
            self._loop.call_soon_threadsafe(_set_outcome, self.outcome, result, None)


def _set_outcome(outcome: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if outcome.done():
        return
    if error is None:
        outcome.set_result(result)
    elif isinstance(error, (StopIteration, asyncio.CancelledError, concurrent.futures.CancelledError)):
        outcome.set_exception(RuntimeError(f"a function of the application raised {error!r}"))
    else:
        outcome.set_exception(error)
