"""Worker threads and periodic jobs."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import CancelledError

import pytest

from kavka.broker.schedule import Schedule
from kavka.broker.workers import Workers
from kavka.storage.jobs import Job
from tests.support import virtual_time
from tests.support.virtual_time import InlineWorkers


def on_loop(body) -> None:
    async def scenario() -> None:
        workers = Workers(2)
        try:
            await asyncio.wait_for(body(workers), 10)
        finally:
            workers.close()

    asyncio.run(scenario())


# ---- workers


def test_post_runs_in_worker_and_completes_on_loop():
    async def body(workers: Workers) -> None:
        ran: list[int] = []
        completed: asyncio.Future[tuple[BaseException | None, int]] = asyncio.get_running_loop().create_future()
        workers.post(
            lambda: ran.append(threading.get_ident()),
            lambda error: completed.set_result((error, threading.get_ident())),
        )
        assert await completed == (None, threading.get_ident())
        assert ran != [threading.get_ident()]

    on_loop(body)


def test_error_of_function_is_passed_to_caller():
    async def body(workers: Workers) -> None:
        completed: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        workers.post(lambda: 1 // 0, completed.set_result)
        assert isinstance(await completed, ZeroDivisionError)
        with pytest.raises(ZeroDivisionError):
            await workers.run(lambda: 1 // 0)
        assert await workers.run(max, 1, 2) == 2

    on_loop(body)


def test_queued_functions_are_cancelled_on_close():
    async def body(workers: Workers) -> None:
        go = threading.Event()
        results: list[BaseException | None] = []
        for _ in range(2):
            workers.post(go.wait, results.append)
        for _ in range(3):
            workers.post(lambda: None, results.append)
        threading.Timer(0.05, go.set).start()
        workers.close()
        await asyncio.sleep(0)
        assert [type(error) for error in results].count(CancelledError) == 3
        assert results.count(None) == 2

    on_loop(body)


def test_resize_completes_running_functions():
    async def body(workers: Workers) -> None:
        go = threading.Event()
        slow = [asyncio.ensure_future(workers.run(go.wait)) for _ in range(2)]
        await asyncio.sleep(0.01)
        workers.resize(3)
        assert await workers.run(lambda: "new") == "new"
        go.set()
        assert await asyncio.gather(*slow) == [True, True]

    on_loop(body)


# ---- schedule


class Counting(Job):
    name = "counting"
    period_ms = 10

    def __init__(self, has_work: bool = True, again: int = 0, fails_in: str = "") -> None:
        self.steps: list[str] = []
        self.has_work = has_work
        self.again = again
        self.fails_in = fails_in
        self.block: threading.Event | None = None

    def _step(self, name: str) -> None:
        self.steps.append(name)
        if name == self.fails_in:
            raise ZeroDivisionError(name)

    def prepare(self) -> bool:
        self._step("prepare")
        return self.has_work

    def run(self) -> None:
        if self.block is not None:
            self.block.wait(5)
        self._step("run")

    def finish(self, error: BaseException | None) -> bool:
        self._step("finish" if error is None else f"finish {type(error).__name__}")
        self.again -= 1
        return self.again >= 0


async def until(condition) -> None:
    while not condition():
        await asyncio.sleep(0.002)


def in_virtual_time(body) -> None:
    """Run `body` with workers that run their functions on the loop."""
    virtual_time.run(asyncio.wait_for(body(virtual_time.InlineWorkers()), 60))


def test_job_runs_periodically():
    async def body(workers: InlineWorkers) -> None:
        job = Counting()
        schedule = Schedule([job], workers)
        schedule.start()
        await until(lambda: len(job.steps) >= 6)
        await schedule.stop()
        assert job.steps[:6] == ["prepare", "run", "finish"] * 2
        count = len(job.steps)
        await asyncio.sleep(0.03)
        assert len(job.steps) == count

    in_virtual_time(body)


def test_job_that_returns_true_runs_again_at_once():
    async def body(workers: InlineWorkers) -> None:
        job = Counting(again=3)
        job.period_ms = 2000
        schedule = Schedule([job], workers)
        started_at = asyncio.get_running_loop().time()
        schedule.start()
        await until(lambda: job.steps.count("finish") == 4)
        assert 2 <= asyncio.get_running_loop().time() - started_at < 3
        await schedule.stop()

    in_virtual_time(body)


def test_job_without_work_uses_no_worker():
    async def body(workers: InlineWorkers) -> None:
        job = Counting(has_work=False)
        schedule = Schedule([job], workers)
        schedule.start()
        await until(lambda: len(job.steps) >= 3)
        await schedule.stop()
        assert set(job.steps) == {"prepare"}

    in_virtual_time(body)


@pytest.mark.parametrize("step", ["prepare", "run", "finish"])
def test_failing_job_is_retried_and_does_not_block_others(step):
    async def body(workers: InlineWorkers) -> None:
        bad, good = Counting(fails_in=step), Counting()
        schedule = Schedule([bad, good], workers)
        schedule.start()
        await until(lambda: bad.steps.count(step) >= 2 and good.steps.count("finish") >= 2)
        await schedule.stop()

    in_virtual_time(body)


def test_stop_waits_for_running_job():
    async def body(workers: Workers) -> None:
        job = Counting(again=100)
        job.block = threading.Event()
        schedule = Schedule([job], workers)
        schedule.start()
        await until(lambda: job.steps == ["prepare"])
        stopping = asyncio.ensure_future(schedule.stop())
        await asyncio.sleep(0.03)
        assert not stopping.done()
        job.block.set()
        await stopping
        assert job.steps == ["prepare", "run", "finish"]

    on_loop(body)


@pytest.mark.parametrize(("period_ms", "rounds"), [(0, range(1, 20)), (2**63 - 1, range(1))])
def test_extreme_periods(period_ms, rounds):
    async def body(workers: InlineWorkers) -> None:
        job = Counting(has_work=False)
        job.period_ms = period_ms
        schedule = Schedule([job], workers)
        schedule.start()
        await asyncio.sleep(0.1)
        await schedule.stop()
        assert len(job.steps) in rounds

    in_virtual_time(body)
