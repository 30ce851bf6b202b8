"""Decoding and filtering in worker threads, in slices: the event loop stays free however expensive a message is.

Python runs one thread at a time, and gives way to the event loop every few milliseconds. A slice ends after `SLICE_S`,
so a search that its reader has left holds a thread for one slice and at most one message more.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

SLICE_S = 0.05

_threads = ThreadPoolExecutor(2, "console-decode")


async def mapped(function: Callable[[T], R], items: Sequence[T]) -> AsyncIterator[list[R]]:
    """The results of the items, in order, a slice at a time."""
    loop = asyncio.get_running_loop()
    start = 0
    while start < len(items):
        results = await loop.run_in_executor(_threads, _slice, function, items, start)
        start += len(results)
        yield results


def _slice(function: Callable[[T], R], items: Sequence[T], start: int) -> list[R]:
    until = time.monotonic() + SLICE_S
    results: list[R] = []
    for at in range(start, len(items)):
        results.append(function(items[at]))
        if time.monotonic() > until:
            break
    return results
