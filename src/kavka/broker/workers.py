"""Worker threads for what blocks: fsync, recovery, cleaning, deleting, decompression, reads from the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class Workers:
    """A pool that posts results back to the loop it was made on."""

    def __init__(self, threads: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="kavka-worker")

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        return await self._loop.run_in_executor(self._pool, function, *args)

    def post(self, function: Callable[[], Any], done: Callable[[BaseException | None], None]) -> None:
        """Run `function` in a worker, then `done(its error or None)` on the loop: no task, no coroutine."""

        def finished(future: Future[Any]) -> None:
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(done, future.exception())

        self._pool.submit(function).add_done_callback(finished)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
