"""Periodic work of the storage layer, split between the loop thread and worker threads.

The broker's loop schedules jobs; this module does not depend on asyncio. Every `period_ms`, unless
the same job is running, the loop

1. calls `prepare()` on the loop thread, which collects the work and returns False if there is none;
2. calls `run()` in a worker thread, which does the blocking part (fsync, unlink, copying) and uses
   no state of a Log;
3. calls `finish(error)` on the loop thread with the exception of `run` or None, which applies the
   results. If it returns True, the next round follows at once.
"""

from __future__ import annotations

import logging

logger = logging.getLogger(__name__)


class Job:
    """A periodic task. The module docstring says which thread calls which method."""

    name: str = "job"
    period_ms: int = 60_000

    def prepare(self) -> bool:
        """Runs on the loop thread and must not block."""
        raise NotImplementedError

    def run(self) -> None:
        """Runs in a worker thread and may block."""

    def finish(self, error: BaseException | None) -> bool:
        """Runs on the loop thread and must not block."""
        if error is not None:
            logger.error("%s failed: %s", self.name, error, exc_info=error)
        return False
