"""Watches the event loop: measures its lag, and logs what blocks it."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from time import monotonic

from kavka.common.metrics import Registry

logger = logging.getLogger(__name__)

BEAT_INTERVAL_S = 0.02
# A warning has the stack of the loop's thread, because the loop cannot log while it is blocked.
MAX_LAG_S = 0.1
MIN_WARNING_INTERVAL_S = 1.0


class Watchdog:
    """Owns a timer of the loop and a thread. The timer measures how late the loop runs it. The
    thread sleeps until the timer is `MAX_LAG_S` late. Created, started and stopped on the loop."""

    def __init__(self, metrics: Registry) -> None:
        self._loop = asyncio.get_running_loop()
        self._lag = metrics.histogram(
            "kavka_event_loop_lag_seconds", "How late the event loop runs its timers"
        ).labels()
        self._loop_thread = threading.get_ident()
        self._due = monotonic()
        self._timer: asyncio.TimerHandle | None = None
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="kavka-watchdog", daemon=True)

    def start(self) -> None:
        self._schedule()
        self._thread.start()

    def stop(self) -> None:
        self._is_stopped.set()
        if self._timer is not None:
            self._timer.cancel()
        self._thread.join()

    def _schedule(self) -> None:
        self._due = monotonic() + BEAT_INTERVAL_S
        self._timer = self._loop.call_later(BEAT_INTERVAL_S, self._beat)

    def _beat(self) -> None:
        # uvloop rounds the time of a timer to milliseconds, so the timer may be early.
        self._lag.observe(max(0.0, monotonic() - self._due))
        self._schedule()

    def _watch(self) -> None:
        """Log the stack of the loop's thread once per blocked turn. Runs in the thread."""
        while not self._is_stopped.wait(max(self._due + MAX_LAG_S - monotonic(), BEAT_INTERVAL_S)):
            due = self._due
            lag = monotonic() - due
            if lag < MAX_LAG_S:
                continue
            frame = sys._current_frames().get(self._loop_thread)
            stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
            del frame
            logger.warning("The event loop has not responded for %d ms. It runs:\n%s", lag * 1000, stack)
            while due == self._due and not self._is_stopped.wait(BEAT_INTERVAL_S):
                pass
            self._is_stopped.wait(MIN_WARNING_INTERVAL_S)
