"""Periodic work of the storage layer, split between the loop thread and worker threads.

The broker's loop schedules jobs; this module does not depend on asyncio. Every `period_ms`, unless
the same job is running, the loop

1. calls `prepare()` on the loop thread, which collects the work; False if there is none;
2. calls `run()` in a worker thread: the blocking part (fsync, unlink, copying), which uses no state
   of a Log;
3. calls `finish(error)` on the loop thread, with the exception of `run` or None, which applies the
   results. True requests another round at once.
"""

from __future__ import annotations

import logging

logger = logging.getLogger(__name__)


class Job:
    """A periodic task. The module docstring says which thread calls which method."""

    name: str = "job"
    period_ms: int = 60_000

    def prepare(self) -> bool:
        """On the loop thread; must not block."""
        raise NotImplementedError

    def run(self) -> None:
        """In a worker thread, may block."""

    def finish(self, error: BaseException | None) -> bool:
        """On the loop thread; must not block."""
        if error is not None:
            logger.error("%s failed: %s", self.name, error, exc_info=error)
        return False


def run_now(job: Job) -> int:
    """Run all rounds of a job in the calling thread. Returns their number."""
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
