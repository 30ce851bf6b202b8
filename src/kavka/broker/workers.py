"""Worker threads for what blocks: fsync, recovery, cleaning, deleting, decompression, reads from the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any


class Workers:
    """A pool that posts results back to the loop it was made on."""

    def __init__(self, threads: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._threads = threads
        self._pool = _pool(threads)
        self._retired: list[ThreadPoolExecutor] = []

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        return await self._loop.run_in_executor(self._pool, function, *args)

    def post(self, function: Callable[[], Any], done: Callable[[BaseException | None], None]) -> None:
        """Run `function` in a worker, then `done(its error or None)` on the loop: no task, no coroutine.

        What had not begun when the pool was closed is told so with a CancelledError.
        """

        def finished(future: Future[Any]) -> None:
            error = CancelledError() if future.cancelled() else future.exception()
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(done, error)

        self._pool.submit(function).add_done_callback(finished)

    def resize(self, threads: int) -> None:
        """What is under way, or waits, is still done by the threads there were."""
        if threads != self._threads:
            self._threads = threads
            self._pool.shutdown(wait=False)
            self._retired.append(self._pool)
            self._pool = _pool(threads)

    def close(self) -> None:
        """Waits for what is under way. Blocks."""
        for pool in (self._pool, *self._retired):
            pool.shutdown(wait=True, cancel_futures=True)


def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="kavka-worker")
