"""Long work on the event loop, divided so that other requests are served in between."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator
from time import perf_counter
from types import coroutine
from typing import Any, TypeVar

# How long divided work may hold the loop at a time.
MAX_STEP_S = 0.005

T = TypeVar("T")


def in_turns(call_soon: Callable[..., Any], steps: Iterator[Any]) -> None:
    """Run `steps` to its end, for `MAX_STEP_S` now and for as long in each of the next turns.
    `call_soon` is that of the event loop."""
    deadline = perf_counter() + MAX_STEP_S
    for _ in steps:
        if perf_counter() >= deadline:
            call_soon(in_turns, call_soon, steps)
            return


async def over_turns(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield the items, and let other work of the loop run every `MAX_STEP_S`."""
    deadline = perf_counter() + MAX_STEP_S
    for item in items:
        yield item
        if perf_counter() >= deadline:
            await _next_turn()
            deadline = perf_counter() + MAX_STEP_S


@coroutine
def _next_turn() -> Generator[None, None, None]:
    """`asyncio.sleep(0)`, without I/O in this layer."""
    yield
