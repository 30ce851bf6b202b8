"""Runs the storage layer's jobs (storage/jobs.py), each at its period: the blocking part in a worker, never twice at
once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from kavka.broker.workers import Workers
from kavka.storage.jobs import Job

log = logging.getLogger(__name__)

# Longer than any broker runs; call_later does not take the largest of Kafka's "never".
_NEVER_S = 10 * 365 * 24 * 3600.0
# A period of nothing must not keep the loop from everything else.
_SHORTEST_S = 0.01


class Schedule:
    def __init__(self, jobs: Iterable[Job], workers: Workers) -> None:
        self._loop = asyncio.get_running_loop()
        self._jobs = list(jobs)
        self._workers = workers
        self._timers: dict[Job, asyncio.TimerHandle] = {}
        self._running = 0
        self._stopped = False
        self._all_done = asyncio.Event()

    def start(self) -> None:
        for job in self._jobs:
            self._later(job)

    def _later(self, job: Job) -> None:
        period = max(job.period_ms / 1000, _SHORTEST_S)
        if not self._stopped and period < _NEVER_S:
            self._timers[job] = self._loop.call_later(period, self._round, job)

    def _round(self, job: Job) -> None:
        try:
            wanted = job.prepare()
        except Exception:
            log.exception("%s failed", job.name)
            wanted = False
        if not wanted:
            self._later(job)
            return
        self._running += 1

        def done(error: BaseException | None) -> None:
            self._running -= 1
            again = False
            try:
                again = job.finish(error)
            except Exception:
                log.exception("%s failed", job.name)
            if again and not self._stopped:
                self._round(job)
            else:
                self._later(job)
            if self._stopped and not self._running:
                self._all_done.set()

        try:
            self._workers.post(job.run, done)
        except RuntimeError as error:  # no more workers: the broker is being stopped
            done(error)

    async def stop(self) -> None:
        """Begin nothing new, and wait for what is under way in a worker."""
        self._stopped = True
        for timer in self._timers.values():
            timer.cancel()
        if self._running:
            await self._all_done.wait()
