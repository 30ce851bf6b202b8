"""Limits the CPU time that a worker thread takes from the event loop.

Python runs one thread at a time. A computing thread keeps the interpreter lock for five
milliseconds, and acquires it again whenever the loop waits for a system call. The loop would run at
a sixth of its rate. So the thread works in slices of half a millisecond and sleeps after each
slice: briefly while the loop is idle, for up to four slices while it is busy
(docs/decisions/0002-compaction-map.md has the figures).
"""

from __future__ import annotations

import threading
import time

SLICE_S = 0.0005
WINDOW_S = 0.02
SHORTEST_PAUSE_S = 0.00005
BUSY_PAUSES = 4.0
IDLE_BELOW = 0.2
SHORTEST_WAIT_S = 0.005


class Stopped(Exception):
    """Raised in the worker thread by the next call after `Pace.stop`."""


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
        self._pause = SHORTEST_PAUSE_S
        self._slice_end = 0.0
        self._wall_mark = self._own_mark = self._loop_mark = 0.0
        self._debt_s = 0.0

    def stop(self) -> None:
        self._stop.set()

    def check(self) -> None:
        if self._stop.is_set():
            raise Stopped

    def pause_if_due(self) -> None:
        """Sleep at the end of a slice. The call is cheap enough for every few dozen microseconds of
        work. Raises Stopped."""
        now = time.perf_counter()
        if now < self._slice_end:
            return
        self.check()
        if now - self._wall_mark > WINDOW_S:
            self._adapt(now)
        time.sleep(self._pause)
        self._slice_end = time.perf_counter() + SLICE_S

    def _adapt(self, now: float) -> None:
        """Set the pause by the share of the time left by this thread in which the loop was busy."""
        own = time.thread_time()
        try:
            loop = 0.0 if self._loop_clock is None else time.clock_gettime(self._loop_clock)
        except OSError:
            loop = 0.0
        available = (now - self._wall_mark) - (own - self._own_mark)
        if self._wall_mark and available > 0:
            busy = min(1.0, (loop - self._loop_mark) / available)
            excess = max(0.0, busy - IDLE_BELOW) / (1.0 - IDLE_BELOW)
            self._pause = SHORTEST_PAUSE_S + SLICE_S * BUSY_PAUSES * excess
        self._wall_mark, self._own_mark, self._loop_mark = now, own, loop

    def add_bytes(self, size: int) -> None:
        """Sleep as long as the rate requires after `size` bytes were read or written. Raises
        Stopped; `stop` also ends the sleep."""
        if self.max_bytes_per_second is not None:
            self._debt_s += size / self.max_bytes_per_second
            if self._debt_s > SHORTEST_WAIT_S:
                self._stop.wait(self._debt_s)
                self._debt_s = 0.0
        self.check()
