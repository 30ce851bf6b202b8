"""Tasks that only a poll may run: they change the assignment or call the rebalance listener."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")

# A poll waits at least this many seconds for its tasks, even with timeout 0. A task that sends no
# request completes in this time.
MIN_WAIT_S = 0.02


class PollTasks:
    """A queue of tasks; at most one runs at a time, in the order of submission.

    Background tasks submit work and wait for its result. A poll starts the next task and waits for
    it until the poll's deadline. A task that takes longer keeps running, and the next poll waits
    for it. All methods run on the event loop. `on_submit` requests a poll.
    """

    def __init__(self, on_submit: Callable[[], object]) -> None:
        self._on_submit = on_submit
        self._queue: deque[tuple[Callable[[], Awaitable[Any]], asyncio.Future[Any]]] = deque()
        self._running: asyncio.Task[None] | None = None
        self.is_in_listener = False
        """Whether the running task waits for a function of the application."""

    @property
    def is_running(self) -> bool:
        return self._running is not None

    async def submit(self, work: Callable[[], Awaitable[T]]) -> T:
        """Wait until a poll has run `work`. Returns the result of `work` or raises its error."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.append((work, future))
        self._on_submit()
        return await future

    async def call_listener(self, call: Awaitable[None]) -> None:
        """Await a call of the application's listener, from within a task or an application call."""
        self.is_in_listener = True
        try:
            await call
        finally:
            self.is_in_listener = False

    async def run(self, deadline: float, *, nested: bool = False) -> bool:
        """Run the queued tasks. Returns False if the deadline passed before the last task
        completed. `nested` is set if the caller is a poll inside a listener that another poll has
        called."""
        while self._running is not None or self._queue:
            if self._running is None:
                work, future = self._queue.popleft()
                if future.done():
                    continue
                self._running = asyncio.create_task(_resolve(work, future), name="kavka-poll-task")
            task = self._running
            await asyncio.wait({task}, timeout=max(MIN_WAIT_S, deadline - time.monotonic()))
            while self.is_in_listener and not nested:
                # Wait for the listener beyond the deadline: the assignment must be in effect when
                # the poll returns, so that it never changes between two calls.
                await asyncio.wait({task}, timeout=MIN_WAIT_S)
            if not task.done():
                return False
            if self._running is task:
                self._running = None
        return True

    async def drain(self, deadline: float) -> None:
        """Wait for the running task until the deadline, then cancel it. Called before the member
        leaves the group, because both would call the listener for the same partitions. Does not
        wait for a task that waits for the listener, because the listener may be the caller."""
        task = self._running
        if task is None or self.is_in_listener:
            return
        await asyncio.wait({task}, timeout=max(0.0, deadline - time.monotonic()))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if self._running is task:
            self._running = None


async def _resolve(work: Callable[[], Awaitable[Any]], future: asyncio.Future[Any]) -> None:
    try:
        result = await work()
    except BaseException as error:
        if not future.done():
            future.set_exception(error)
        return
    if not future.done():
        future.set_result(result)
