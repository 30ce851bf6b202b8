"""The timers of a coordinator shard."""

from __future__ import annotations

import asyncio

from kavka.coordinator import timers
from kavka.coordinator.operations import Outcome
from tests.support import virtual_time


def test_timers_that_fire_while_the_shard_is_loading_run_afterwards() -> None:
    async def body() -> None:
        is_loading = True
        submitted: asyncio.Queue[Outcome] = asyncio.Queue()
        loop_timers = timers.LoopTimers(asyncio.get_running_loop(), submitted.put_nowait, lambda: is_loading)
        loop_timers.schedule("session", 0, Outcome)
        await asyncio.sleep(60)
        assert submitted.empty()
        is_loading = False
        await asyncio.wait_for(submitted.get(), 10)

    virtual_time.run(body())
