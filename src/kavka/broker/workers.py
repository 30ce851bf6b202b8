"""Worker threads for blocking work: fsync, recovery, compaction, file deletion, decompression,
disk reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any


class Workers:
    """Owns a thread pool that posts results to the event loop on which it was created."""

    def __init__(self, threads: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._threads = threads
        self._pool = _pool(threads)
        self._retired_pools: list[ThreadPoolExecutor] = []

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        return await self._loop.run_in_executor(self._pool, function, *args)

    def post(self, function: Callable[[], Any], on_done: Callable[[BaseException | None], None]) -> None:
        """Run `function` in a worker thread, then call `on_done(error or None)` on the event loop.
        Unlike `run`, this creates no coroutine.

        A function that has not started when the pool closes completes with a CancelledError.
        """

        def on_finished(future: Future[Any]) -> None:
            error = CancelledError() if future.cancelled() else future.exception()
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(on_done, error)

        self._pool.submit(function).add_done_callback(on_finished)

    def resize(self, threads: int) -> None:
        """Replace the pool. The previous pool completes its running and queued functions."""
        if threads != self._threads:
            self._threads = threads
            self._pool.shutdown(wait=False)
            self._retired_pools.append(self._pool)
            self._pool = _pool(threads)

    def close(self) -> None:
        """Block until the running functions complete; cancel the queued functions."""
        for pool in (self._pool, *self._retired_pools):
            pool.shutdown(wait=True, cancel_futures=True)


def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="kavka-worker")
