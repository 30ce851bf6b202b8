"""[pure] Delays between retries."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """A delay that doubles with each failure, from `initial_ms` up to `max_ms`. `jitter` is the
    maximum random deviation, as a fraction of the delay. It spreads the retries of many clients."""

    initial_ms: float
    max_ms: float
    jitter: float = 0.2

    def delay(self, failures: int) -> float:
        """Return the seconds to wait after this number of consecutive failures, 0 without a
        failure."""
        if failures <= 0:
            return 0.0
        max_ms = max(self.initial_ms, self.max_ms)
        delay = min(self.initial_ms * float(1 << min(failures - 1, 30)), max_ms) / 1000
        return delay * random.uniform(1 - self.jitter, 1 + self.jitter) if self.jitter else delay
