"""How long to wait before trying again."""

from __future__ import annotations

import random


class Backoff:
    """Doubles with each failure up to a limit, and spread by a fifth so that many clients do not come back at once."""

    __slots__ = ("_first", "_last")

    JITTER = 0.2

    def __init__(self, first_ms: float, last_ms: float) -> None:
        self._first = first_ms / 1000
        self._last = max(first_ms, last_ms) / 1000

    def delay(self, failures: int) -> float:
        """Seconds to wait after that many failures in a row; 0 after none."""
        if failures <= 0:
            return 0.0
        wait = min(self._first * float(1 << min(failures - 1, 30)), self._last)
        return wait * random.uniform(1 - self.JITTER, 1 + self.JITTER)
