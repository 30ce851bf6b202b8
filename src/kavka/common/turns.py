"""Long work on the event loop, divided so that other requests are served in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from time import perf_counter
from typing import Any, TypeVar

# How long divided work may hold the loop at a time.
MAX_STEP_S = 0.005

T = TypeVar("T")


def in_turns(loop: asyncio.AbstractEventLoop, steps: Iterator[Any]) -> None:
    """Run `steps` to its end, for `MAX_STEP_S` now and for as long in each of the next turns."""
    deadline = perf_counter() + MAX_STEP_S
    for _ in steps:
        if perf_counter() >= deadline:
            loop.call_soon(in_turns, loop, steps)
            return


async def over_turns(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield the items, and let other work of the loop run every `MAX_STEP_S`."""
    deadline = perf_counter() + MAX_STEP_S
    for item in items:
        yield item
        if perf_counter() >= deadline:
            await asyncio.sleep(0)
            deadline = perf_counter() + MAX_STEP_S
