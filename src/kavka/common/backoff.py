"""[pure] Delays between retries."""

from __future__ import annotations

import random


class Backoff:
    """A delay that doubles with each failure up to a limit. The jitter spreads the retries of many
    clients."""

    __slots__ = ("_first", "_jitter", "_last")

    def __init__(self, first_ms: float, last_ms: float, jitter: float = 0.2) -> None:
        self._first = first_ms / 1000
        self._last = max(first_ms, last_ms) / 1000
        self._jitter = jitter

    def delay(self, failures: int) -> float:
        """Seconds to wait after this many consecutive failures; 0 after none."""
        if failures <= 0:
            return 0.0
        delay = min(self._first * float(1 << min(failures - 1, 30)), self._last)
        return delay * random.uniform(1 - self._jitter, 1 + self._jitter) if self._jitter else delay
