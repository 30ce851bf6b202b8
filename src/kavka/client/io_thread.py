"""The thread that runs the event loop of a blocking client, and closes a client that the
application does not close."""

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

EXIT_TIMEOUT_S = 5.0
"""Timeout in seconds for closing all open clients when the interpreter exits."""


def new_event_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class IoThread:
    """Owns the event loop and the thread of one blocking client. The thread is a daemon, so that an
    application that ends without `close()` does not hang.

    `close(timeout)` is the coroutine function that closes the client. If it is passed, a client
    that is dropped (`abandon`) is closed in the background, and a client that is open when the
    interpreter exits is closed within `EXIT_TIMEOUT_S` seconds. This object must not refer to the
    blocking client, because the client could then not be garbage collected.

    Calls are queued under the lock, and no call is queued after `stop`. The event loop therefore
    runs or cancels every queued call before it closes.

    A forked child has the object but not the thread. Using the object there raises an error.
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
                loop.run_until_complete(_cancel_all_tasks())
                loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()
            _open.discard(self)

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in this thread, where a blocking call would deadlock."""
        return threading.current_thread() is self._thread

    @property
    def forked(self) -> bool:
        """Whether this process is a forked child of the process that created the thread."""
        return self._pid != os.getpid()

    @property
    def alive(self) -> bool:
        return not self._closed and not self.forked and self._thread.is_alive()

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        """Run `callback(*args)` on the event loop, without waiting for it. Raises ClientClosed."""
        self.check()
        with self._lock:
            self.check()
            self.loop.call_soon_threadsafe(callback, *args)

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start a coroutine on the event loop and return a future for its result. Any other thread
        may wait for the future. Raises ClientClosed."""
        try:
            # In a forked child, a thread that does not exist there may hold the lock.
            self.check()
            with self._lock:
                self.check()
                return asyncio.run_coroutine_threadsafe(work, self.loop)
        except BaseException:
            work.close()
            raise

    def run(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine on the event loop and return its result. On a timeout (KafkaTimeout) or
        Ctrl-C the coroutine is cancelled."""
        if self.is_current:
            work.close()
            raise RuntimeError(
                "a callback cannot make a blocking call: the call would wait for the I/O thread, which it blocks"
            )
        future = self.submit(work)
        try:
            return future.result(timeout)
        except concurrent.futures.TimeoutError:
            if future.done() and not future.cancelled():
                # The work itself raised a TimeoutError (KafkaTimeout is one).
                return future.result()
            future.cancel()
            raise KafkaTimeout(f"the call did not complete within {timeout:g} s") from None
        except concurrent.futures.CancelledError:
            self.check()
            raise
        except BaseException:
            future.cancel()
            raise

    def stop(self, timeout: float = 10.0) -> None:
        """Cancel all tasks, stop the thread, and wait up to `timeout` seconds for its end. May be
        called more than once."""
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
            raise ClientClosed("the client was created before a fork; create a client in each process")

    # --- clients that the application does not close

    def abandon(self, timeout: float | None = None) -> None:
        """Close a client that was dropped or is open at exit, then stop the thread. Runs in the
        background, so that a finalizer may call it."""
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


async def _cancel_all_tasks() -> None:
    """Cancel every task of the event loop, including tasks that start during the cancellation."""
    current_task = asyncio.current_task()
    # Let every task start: a task that is cancelled before its start never runs its `finally`.
    await asyncio.sleep(0)
    while tasks := asyncio.all_tasks() - {current_task}:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def warn_unclosed(client: object, name: str) -> None:
    """Warn that a client was dropped without `close()`. A finalizer calls this function last,
    because it raises an exception if warnings are errors."""
    message = f"unclosed {type(client).__name__} {name}: call close(), or use `with`"
    warnings.warn(message, ResourceWarning, stacklevel=3, source=client)


_open: set[IoThread] = set()
"""Threads of clients to close when the interpreter exits."""


def _close_at_exit() -> None:
    threads = [thread for thread in list(_open) if thread.alive]
    unclosed_names = [thread.name for thread in threads if not thread._closing]
    deadline = monotonic() + EXIT_TIMEOUT_S
    for thread in threads:
        # The rest of the timeout is for closing the connections.
        thread.abandon(EXIT_TIMEOUT_S * 0.8)
    for thread in threads:
        thread.join(max(0.0, deadline - monotonic()))
    for thread in threads:
        # Cancel clients that exceed the timeout. They log the records that were not sent.
        thread.stop(timeout=0.5)
    for name in unclosed_names:
        # This raises an exception if warnings are errors.
        message = f"client {name} is still open at exit: call close(), or use `with`"
        warnings.warn(message, ResourceWarning, stacklevel=1)


atexit.register(_close_at_exit)
