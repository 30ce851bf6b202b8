"""Periodic work of the storage layer, cut at the border between the loop thread and its workers.

Nothing here knows asyncio: the broker's loop schedules jobs. Every `period_ms`, and never while the same job is under
way, it

1. calls `prepare()` on the loop: looks at the logs, collects what has to be done; False when that is nothing;
2. calls `run()` in a worker thread: the blocking part (fsync, unlink, copying), which touches no state of a Log;
3. calls `finish(error)` on the loop, with what `run` raised or None: takes the results over. True asks for another
   round at once, without waiting for the period.
"""

from __future__ import annotations

import logging

logger = logging.getLogger(__name__)


class Job:
    """A piece of periodic work; see the module's text for who calls what."""

    name: str = "job"
    period_ms: int = 60_000

    def prepare(self) -> bool:
        """On the loop thread, quick."""
        raise NotImplementedError

    def run(self) -> None:
        """In a worker thread, may block."""

    def finish(self, error: BaseException | None) -> bool:
        """On the loop thread, quick."""
        if error is not None:
            logger.error("%s failed: %s", self.name, error, exc_info=error)
        return False


def run_now(job: Job) -> int:
    """All rounds of a job in the calling thread, for tests, for tools and for the stop; returns how many there were."""
    rounds = 0
    while job.prepare():
        error: BaseException | None = None
        try:
            job.run()
        except Exception as failure:
            error = failure
        rounds += 1
        if not job.finish(error):
            break
    return rounds
