"""Periodic work of the storage layer, split between the loop thread and worker threads.

The broker's loop schedules the jobs; this module does not depend on asyncio. Every `period_ms`, and
unless the job is still running, the loop

1. calls `prepare()` on the loop thread, which collects the work and returns False if there is none;
2. calls `run()` in a worker thread, which does the blocking part (fsync, unlink, copying) and uses
   no state of a Log;
3. calls `finish(error)` on the loop thread, where `error` is the exception that `run` raised, or
   None. `finish` applies the results. If it returns True, the loop calls `prepare` again at once.
"""

from __future__ import annotations

import logging

logger = logging.getLogger(__name__)


class Job:
    """A periodic task. The module docstring defines which thread calls which method."""

    name: str = "job"
    period_ms: int = 60_000

    def prepare(self) -> bool:
        """Collect the work. Returns False if there is none. Runs on the loop thread and must not
        block."""
        raise NotImplementedError

    def run(self) -> None:
        """Do the work. Runs in a worker thread and may block."""

    def finish(self, error: BaseException | None) -> bool:
        """Apply the results. Returns whether `prepare` is called again at once. Runs on the loop
        thread and must not block."""
        if error is not None:
            logger.error("Job %s failed: %s", self.name, error, exc_info=error)
        return False
