"""Runs decoding and filtering in worker threads, so that expensive messages do not block the event
loop.

The threads share the GIL with the event loop, which gets it every few milliseconds. A slice ends
with the first message after `MAX_SLICE_S`, so that a search soon frees its thread after its client
disconnects.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

MAX_SLICE_S = 0.05

_threads = ThreadPoolExecutor(2, "console-decode")


async def mapped(function: Callable[[T], R], items: Sequence[T]) -> AsyncIterator[list[R]]:
    """Apply `function` to the items in order. Yields the results in slices."""
    loop = asyncio.get_running_loop()
    start = 0
    while start < len(items):
        results = await loop.run_in_executor(_threads, _slice, function, items, start)
        start += len(results)
        yield results


def _slice(function: Callable[[T], R], items: Sequence[T], start: int) -> list[R]:
    deadline = time.monotonic() + MAX_SLICE_S
    results: list[R] = []
    for index in range(start, len(items)):
        results.append(function(items[index]))
        if time.monotonic() > deadline:
            break
    return results
