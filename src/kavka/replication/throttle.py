"""[pure] The rate of throttled replication: `leader.` and `follower.replication.throttled.rate`.

Bytes are counted in samples of `replication.quota.window.size.seconds`. The last
`replication.quota.window.num` samples are kept. The rate is their sum divided by the time since the
oldest sample, but at least by the length of all samples but one. So a burst is allowed after a
quiet time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Throttle:
    """Owns the samples of the leader's or the follower's throttle. Rates are in bytes per
    second."""

    max_rate: int = 0
    max_samples: int = 11
    sample_s: float = 1.0
    _samples: deque[list[float]] = field(default_factory=deque, init=False)  # [start, bytes]

    def record(self, size: int, now: float) -> None:
        samples = self._samples
        if samples and now - samples[-1][0] < self.sample_s:
            samples[-1][1] += size
        else:
            samples.append([now, size])
            while len(samples) > self.max_samples:
                samples.popleft()

    def is_exceeded(self, now: float) -> bool:
        return self.measure(now) > self.max_rate

    def measure(self, now: float) -> float:
        """Return the current rate. Drops expired samples."""
        samples = self._samples
        expired_before = now - self.max_samples * self.sample_s
        while samples and samples[0][0] <= expired_before:
            samples.popleft()
        if not samples:
            return 0.0
        elapsed = max(now - samples[0][0], (self.max_samples - 1) * self.sample_s, self.sample_s)
        return sum(size for _, size in samples) / elapsed


def is_throttled(replicas: tuple[str, ...], partition: int, broker_id: int) -> bool:
    """Whether a topic's `….replication.throttled.replicas` (`partition:broker`, …, or `*`) contains
    the replica."""
    return bool(replicas) and ("*" in replicas or f"{partition}:{broker_id}" in replicas)
