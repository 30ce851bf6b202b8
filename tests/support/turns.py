"""Measures the turns of an event loop in the process of the test.

async with TurnMeter() as meter:
    ...
assert meter.longest_s <= MAX_TURN_S     # the CPU time of the longest turn
"""

from __future__ import annotations

import asyncio
import gc
from time import thread_time

MAX_TURN_S = 0.05


class TurnMeter:
    def __init__(self) -> None:
        self.longest_s = 0.0
        self._is_running = True

    async def __aenter__(self) -> TurnMeter:
        # Garbage collections do not visit the objects of earlier tests in this process.
        gc.freeze()
        self._loop = asyncio.get_running_loop()
        await asyncio.sleep(0)
        self._last_call = thread_time()
        self._loop.call_soon(self._tick)
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.sleep(0)
        self._is_running = False
        gc.unfreeze()

    def _tick(self) -> None:
        if self._is_running:
            now = thread_time()
            self.longest_s = max(self.longest_s, now - self._last_call)
            self._last_call = now
            self._loop.call_later(0.001, self._tick)
