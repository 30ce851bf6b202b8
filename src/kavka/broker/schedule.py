"""Runs the storage layer's periodic jobs (storage/jobs.py)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from kavka.broker.workers import Workers
from kavka.storage.jobs import Job

logger = logging.getLogger(__name__)

# A job with this or a longer period never runs. `call_later` does not accept Kafka's LONG_MAX.
_MAX_PERIOD_S = 10 * 365 * 24 * 3600.0
# A period of 0 must not starve the event loop.
_MIN_PERIOD_S = 0.01


class Schedule:
    """Owns the timers of the jobs. The blocking part of a job runs in a worker thread. A job never
    runs twice at the same time."""

    def __init__(self, jobs: Iterable[Job], workers: Workers) -> None:
        self._loop = asyncio.get_running_loop()
        self._jobs = list(jobs)
        self._workers = workers
        self._timers: dict[Job, asyncio.TimerHandle] = {}
        self._running_jobs = 0
        self._stopped = False
        self._all_jobs_done = asyncio.Event()

    def start(self) -> None:
        for job in self._jobs:
            self._schedule(job)

    def _schedule(self, job: Job) -> None:
        period = max(job.period_ms / 1000, _MIN_PERIOD_S)
        if not self._stopped and period < _MAX_PERIOD_S:
            self._timers[job] = self._loop.call_later(period, self._start_job, job)

    def _start_job(self, job: Job) -> None:
        try:
            has_work = job.prepare()
        except Exception:
            logger.exception("The job %s failed", job.name)
            has_work = False
        if not has_work:
            self._schedule(job)
            return
        self._running_jobs += 1

        def on_done(error: BaseException | None) -> None:
            self._running_jobs -= 1
            must_repeat = False
            try:
                must_repeat = job.finish(error)
            except Exception:
                logger.exception("The job %s failed", job.name)
            if must_repeat and not self._stopped:
                self._start_job(job)
            else:
                self._schedule(job)
            if self._stopped and not self._running_jobs:
                self._all_jobs_done.set()

        try:
            self._workers.post(job.run, on_done)
        except RuntimeError as error:  # the pool is closed: the broker is stopping
            on_done(error)

    async def stop(self) -> None:
        """Cancel the timers, and wait for the running jobs."""
        self._stopped = True
        for timer in self._timers.values():
            timer.cancel()
        if self._running_jobs:
            await self._all_jobs_done.wait()
