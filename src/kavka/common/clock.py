"""The clock. Every layer gets it as an argument, so that tests can use a fake clock."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall-clock time in milliseconds since the epoch, for record timestamps and file ages."""
        ...

    def monotonic(self) -> float:
        """Monotonic time in seconds, for timeouts."""
        ...


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()
