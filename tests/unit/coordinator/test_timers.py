"""The timers of a coordinator shard."""

from __future__ import annotations

import asyncio

import pytest

from kavka.coordinator import timers
from kavka.coordinator.operations import Outcome


def test_timers_that_fire_while_the_shard_is_loading_run_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timers, "LOADING_RETRY_MS", 1)

    async def body() -> None:
        is_loading = True
        submitted: asyncio.Queue[Outcome] = asyncio.Queue()
        loop_timers = timers.LoopTimers(asyncio.get_running_loop(), submitted.put_nowait, lambda: is_loading)
        loop_timers.schedule("session", 0, Outcome)
        await asyncio.sleep(0.05)
        assert submitted.empty()
        is_loading = False
        await asyncio.wait_for(submitted.get(), 10)

    asyncio.run(body())
