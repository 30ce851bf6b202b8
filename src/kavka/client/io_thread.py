"""The thread that runs the loop of a blocking client."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from kavka.client.errors import ClientClosed, KafkaTimeout

T = TypeVar("T")


def new_event_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class IoThread:
    """One per blocking client. A daemon: a program that ends without `close()` does not hang on it.

    A forked child has the object but not the thread; using it there raises instead of waiting for ever.
    """

    def __init__(self, name: str) -> None:
        self.loop: asyncio.AbstractEventLoop = new_event_loop()
        self._pid = os.getpid()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        loop = self.loop
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            with contextlib.suppress(Exception):
                tasks = asyncio.all_tasks(loop)
                for task in tasks:
                    task.cancel()
                loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
                loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

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
        self.loop.call_soon_threadsafe(callback, *args)

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start a coroutine on the loop; the future may be waited for from any other thread."""
        try:
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
        except BaseException:
            future.cancel()
            raise

    def stop(self, timeout: float = 10.0) -> None:
        """Cancel what still runs, end the thread and wait for its end. May be called more than once."""
        if self._closed:
            return
        self._closed = True
        if self.forked:
            return
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.loop.stop)
        if not self.is_current:
            self._thread.join(timeout)

    def check(self) -> None:
        if self._closed:
            raise ClientClosed("the client is closed")
        if self.forked:
            raise ClientClosed("the client was made before a fork; make one in each process")
