"""Limits the CPU time that a worker thread takes from the event loop.

Python runs one thread at a time. A thread that computes holds the GIL for five milliseconds, and
acquires it again whenever the event loop makes a system call. The event loop would run at a sixth
of its rate. So the worker thread works in slices of half a millisecond and sleeps after each slice:
briefly while the event loop is idle, for up to four slices while the event loop is busy
(docs/decisions/0002-compaction-map.md has the figures).
"""

from __future__ import annotations

import threading
import time

SLICE_S = 0.0005
ADAPT_INTERVAL_S = 0.02
MIN_PAUSE_S = 0.00005
MAX_PAUSE_SLICES = 4.0
# The event loop counts as idle while it uses at most this share of the CPU.
MAX_IDLE_SHARE = 0.2
# Shorter throttle times are added up.
MIN_THROTTLE_S = 0.005


class WorkAborted(Exception):
    """The work of a worker thread was aborted: by `Pace.stop`, or because its log was truncated or
    deleted."""


class Pace:
    """The pace of one worker thread. The loop thread creates it, the worker thread calls
    `pause_if_due` and `add_bytes`, and any thread may call `stop`.

    `max_bytes_per_second` limits the rate of `add_bytes`; None means no limit.
    """

    def __init__(self, max_bytes_per_second: float | None = None) -> None:
        self.max_bytes_per_second = max_bytes_per_second
        self._stop = threading.Event()
        self._loop_clock: int | None = None
        if hasattr(time, "pthread_getcpuclockid"):
            self._loop_clock = time.pthread_getcpuclockid(threading.get_ident())
        self._pause = MIN_PAUSE_S
        self._slice_end = 0.0
        self._wall_mark = self._own_mark = self._loop_mark = 0.0
        self._debt_s = 0.0

    def stop(self) -> None:
        self._stop.set()

    def check(self) -> None:
        """Raise WorkAborted after `stop`."""
        if self._stop.is_set():
            raise WorkAborted

    def pause_if_due(self) -> None:
        """Sleep at the end of a slice. The call is cheap enough to be made every few dozen
        microseconds. Raises WorkAborted after `stop`."""
        now = time.perf_counter()
        if now < self._slice_end:
            return
        self.check()
        if now - self._wall_mark > ADAPT_INTERVAL_S:
            self._adapt(now)
        time.sleep(self._pause)
        self._slice_end = time.perf_counter() + SLICE_S

    def _adapt(self, now: float) -> None:
        """Set the pause by the share of the CPU time that the event loop used while this thread did
        not run."""
        own = time.thread_time()
        try:
            loop = 0.0 if self._loop_clock is None else time.clock_gettime(self._loop_clock)
        except OSError:
            loop = 0.0
        available = (now - self._wall_mark) - (own - self._own_mark)
        if self._wall_mark and available > 0:
            busy = min(1.0, (loop - self._loop_mark) / available)
            excess = max(0.0, busy - MAX_IDLE_SHARE) / (1.0 - MAX_IDLE_SHARE)
            self._pause = MIN_PAUSE_S + SLICE_S * MAX_PAUSE_SLICES * excess
        self._wall_mark, self._own_mark, self._loop_mark = now, own, loop

    def add_bytes(self, size: int) -> None:
        """Throttle to `max_bytes_per_second`, after `size` bytes were read or written. `stop` ends
        the sleep. Raises WorkAborted after `stop`."""
        if self.max_bytes_per_second is not None:
            self._debt_s += size / self.max_bytes_per_second
            if self._debt_s > MIN_THROTTLE_S:
                self._stop.wait(self._debt_s)
                self._debt_s = 0.0
        self.check()
