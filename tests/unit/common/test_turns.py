"""Work that is divided over turns of the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from kavka.common import turns
from kavka.common.turns import in_turns, over_turns


def test_other_work_runs_between_the_items(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "MAX_STEP_S", 0.0)

    async def scenario() -> None:
        order: list[int | str] = []

        async def other() -> None:
            for _ in range(3):
                order.append("other")
                await asyncio.sleep(0)

        task = asyncio.ensure_future(other())
        async for item in over_turns(range(3)):
            order.append(item)
        await task
        assert order == [0, "other", 1, "other", 2, "other"]
        order.clear()
        in_turns(asyncio.get_running_loop().call_soon, (order.append(n) for n in (10, 11)))
        assert order == [10]
        await asyncio.sleep(0)
        assert order == [10, 11]

    asyncio.run(scenario())


def test_short_work_is_not_divided() -> None:
    async def scenario() -> None:
        calls: list[object] = []
        done: list[int] = []
        in_turns(lambda *args: calls.append(args), (done.append(n) for n in range(10)))
        assert (done, calls) == (list(range(10)), [])

        def slow() -> Iterator[None]:
            for _ in range(2):
                time.sleep(turns.MAX_STEP_S)
                yield

        in_turns(lambda *args: calls.append(args), slow())
        assert len(calls) == 1

    asyncio.run(scenario())
