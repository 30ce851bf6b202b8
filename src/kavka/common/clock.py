"""The clock that every layer takes as an argument, so that tests can turn it by hand."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall-clock time in milliseconds since 1970: what goes into records and file ages."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back: what timeouts are measured with."""
        ...


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()
