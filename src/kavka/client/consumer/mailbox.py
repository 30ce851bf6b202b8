"""What the loop of a blocking consumer has for the program's thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
import queue
from collections.abc import Callable
from typing import Any

from kavka.client.consumer.core import ConsumerCore
from kavka.client.errors import ClientClosed


class Mailbox:
    """Calls of the program's functions, results, and news for a poll that waits.

    The core refers to this, and not to the consumer: a consumer that the program drops can be collected."""

    def __init__(self) -> None:
        self.inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.is_waiting = False
        """Whether a poll waits for news."""
        self.is_abandoned = False
        """Whether the program dropped the consumer: nobody reads the inbox."""
        self.on_room: Callable[[], object] = lambda: None
        """Called by a poll that made room in the buffer."""

    # On the loop.

    def signal(self) -> None:
        if self.is_waiting:
            self.is_waiting = False
            self.inbox.put(None)

    async def call_user(self, function: Callable[..., Any], *args: Any) -> Any:
        if self.is_abandoned:
            raise ClientClosed("the program dropped the consumer")
        call = Call(function, args, asyncio.get_running_loop())
        self.inbox.put(call)
        return await call.outcome

    async def abandon(self, core: ConsumerCore, timeout: float | None) -> None:
        self.is_abandoned = True
        await core.abandon(timeout)


class Call:
    """A function of the program's, to be called in its thread; the outcome goes back to the loop."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], loop: asyncio.AbstractEventLoop) -> None:
        self._function = function
        self._args = args
        self._loop = loop
        self.outcome: asyncio.Future[Any] = loop.create_future()

    def run(self) -> None:
        try:
            result = self._function(*self._args)
        except BaseException as error:
            self._loop.call_soon_threadsafe(_set, self.outcome, None, error)
            if not isinstance(error, Exception):
                raise
        else:
            self._loop.call_soon_threadsafe(_set, self.outcome, result, None)


def _set(outcome: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if outcome.done():
        return
    if error is None:
        outcome.set_result(result)
    elif isinstance(error, (StopIteration, asyncio.CancelledError, concurrent.futures.CancelledError)):
        outcome.set_exception(RuntimeError(f"a function of the program's raised {error!r}"))
    else:
        outcome.set_exception(error)
