"""An event loop with a virtual clock, for tests of timeouts, backoffs and lag.

When all tasks wait, the clock jumps to the next timer, so a test that sleeps for an hour takes no
time. Tasks of the loop may use sockets to each other: the clock does not move while a socket is
ready. No other thread or process may post to the loop: `InlineWorkers` replaces the broker's worker
threads.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

START_S = 1000.0

T = TypeVar("T")


class _Selector(selectors.DefaultSelector):
    """Advances the clock instead of waiting."""

    now = START_S

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise AssertionError("all tasks wait, and there is no timer")
            self.now += max(0.0, timeout)
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._virtual_selector = _Selector()
        super().__init__(self._virtual_selector)

    def time(self) -> float:
        return self._virtual_selector.now


class InlineWorkers:
    """Has the interface of `Workers`, but runs every function on the loop."""

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        await asyncio.sleep(0)
        return function(*args)

    def post(self, function: Callable[[], Any], done: Callable[[BaseException | None], None]) -> None:
        loop = asyncio.get_running_loop()
        try:
            function()
        except Exception as error:
            loop.call_soon(done, error)
        else:
            loop.call_soon(done, None)

    def close(self) -> None:
        pass


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Like `asyncio.run`, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(coroutine)
