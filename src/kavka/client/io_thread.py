"""The thread that runs the loop of a blocking client, and what becomes of a client that nobody closes."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import os
import threading
import warnings
from collections.abc import Callable, Coroutine
from time import monotonic
from typing import Any, TypeVar

from kavka.client.errors import ClientClosed, KafkaTimeout

T = TypeVar("T")

EXIT_TIMEOUT = 5.0
"""Seconds that clients left open have at the end of the interpreter, all of them together."""


def new_event_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class IoThread:
    """One per blocking client. A daemon: a program that ends without `close()` does not hang on it.

    `close(timeout)` is the coroutine that closes the client. Where it is passed, a client that is dropped (`abandon`)
    is closed in the background, and one that is still open when the interpreter ends is closed within `EXIT_TIMEOUT`.
    Nothing here may refer to the blocking client itself: it could not be collected then.

    A call is queued under the lock, and after `stop` none is: the loop sees every call that was queued, and ends each
    before it closes.

    A forked child has the object but not the thread; using it there raises instead of waiting for ever.
    """

    def __init__(self, name: str, close: Callable[[float | None], Coroutine[Any, Any, object]] | None = None) -> None:
        self.name = name
        self.loop: asyncio.AbstractEventLoop = new_event_loop()
        self._pid = os.getpid()
        self._close = close
        self._closing = False
        self._closed = False
        # A finalizer may run, and abandon the client, in a thread that holds the lock.
        self._lock = threading.RLock()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        if close is not None:
            _open.add(self)

    def _run(self) -> None:
        loop = self.loop
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            with self._lock:
                self._closed = True
            with contextlib.suppress(Exception):
                loop.run_until_complete(_end_all_tasks())
                loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()
            _open.discard(self)

    @property
    def is_current(self) -> bool:
        """Whether the caller is in this thread, where waiting for it would be for ever."""
        return threading.current_thread() is self._thread

    @property
    def forked(self) -> bool:
        """Whether this is a child of the process that made it."""
        return self._pid != os.getpid()

    @property
    def alive(self) -> bool:
        return not self._closed and not self.forked and self._thread.is_alive()

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        """Run `callback(*args)` on the loop; returns at once."""
        self.check()
        with self._lock:
            self.check()
            self.loop.call_soon_threadsafe(callback, *args)

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start a coroutine on the loop; the future may be waited for from any other thread."""
        try:
            # In a forked child the lock may be held by a thread that is not there.
            self.check()
            with self._lock:
                self.check()
                return asyncio.run_coroutine_threadsafe(work, self.loop)
        except BaseException:
            work.close()
            raise

    def run(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine on the loop and wait for what it gives. On timeout, or Ctrl-C, it is cancelled."""
        if self.is_current:
            work.close()
            raise RuntimeError("a blocking call from a callback: it would wait for the thread that it runs in")
        future = self.submit(work)
        try:
            return future.result(timeout)
        except concurrent.futures.TimeoutError:
            if future.done() and not future.cancelled():
                # The work itself raised a TimeoutError (KafkaTimeout is one).
                return future.result()
            future.cancel()
            raise KafkaTimeout(f"not done within {timeout} s") from None
        except concurrent.futures.CancelledError:
            self.check()
            raise
        except BaseException:
            future.cancel()
            raise

    def stop(self, timeout: float = 10.0) -> None:
        """Cancel what still runs, end the thread and wait for its end. May be called more than once."""
        if self._closed:
            return
        if self.forked:
            self._closed = True
            return
        with self._lock:
            if not self._closed:
                self._closed = True
                self.loop.call_soon_threadsafe(self.loop.stop)
        if not self.is_current:
            self._thread.join(timeout)

    def check(self) -> None:
        if self._closed:
            raise ClientClosed("the client is closed")
        if self.forked:
            raise ClientClosed("the client was made before a fork; make one in each process")

    # --- clients that nobody closes

    def abandon(self, timeout: float | None = None) -> None:
        """The client was dropped, or the interpreter ends: close it in the background, then end the thread. Does not
        wait, so that a finalizer may call it."""
        if self._close is None or self._closing or not self.alive:
            return
        self._closing = True
        with contextlib.suppress(ClientClosed):
            self.submit(self._close_and_stop(timeout))

    async def _close_and_stop(self, timeout: float | None) -> None:
        assert self._close is not None
        try:
            await self._close(timeout)
        finally:
            self.stop()

    def join(self, timeout: float) -> None:
        self._thread.join(timeout)


async def _end_all_tasks() -> None:
    """Cancel every task of the loop, and those that begin meanwhile."""
    own = asyncio.current_task()
    # Every task gets to its first step: one that is cancelled before it never runs its `finally`.
    await asyncio.sleep(0)
    while tasks := asyncio.all_tasks() - {own}:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def warn_unclosed(client: object, name: str) -> None:
    """For the finalizer of a client: it was dropped without `close()`. Comes last: it raises where warnings are
    errors."""
    text = f"unclosed {type(client).__name__} {name}: call close(), or use `with`"
    warnings.warn(text, ResourceWarning, stacklevel=3, source=client)


_open: set[IoThread] = set()
"""Threads of clients that are to be closed at the end of the interpreter."""


def _close_at_exit() -> None:
    threads = [thread for thread in list(_open) if thread.alive]
    left_open = [thread.name for thread in threads if not thread._closing]
    deadline = monotonic() + EXIT_TIMEOUT
    for thread in threads:
        # A part of the time is left for closing the connections.
        thread.abandon(EXIT_TIMEOUT * 0.8)
    for thread in threads:
        thread.join(max(0.0, deadline - monotonic()))
    for thread in threads:
        # What did not end in time is cancelled; the client says in its log what was lost.
        thread.stop(timeout=0.5)
    for name in left_open:
        # Raises where warnings are errors.
        text = f"client {name} is still open at exit: call close(), or use `with`"
        warnings.warn(text, ResourceWarning, stacklevel=1)


atexit.register(_close_at_exit)
