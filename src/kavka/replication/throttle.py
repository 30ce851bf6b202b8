"""[pure] The rate of throttled replication: `leader.` and `follower.replication.throttled.rate`.

Bytes are counted in samples of a second; the last few are kept (replication.quota.window.*). The
rate is their sum divided by their time span, but at least by that of all samples but one. So a
burst is allowed after a quiet time.
"""

from __future__ import annotations

from collections import deque


class Throttle:
    """Owns the samples of one direction."""

    __slots__ = ("_samples", "count", "rate", "window_s")

    def __init__(self, rate: int, count: int = 11, window_s: float = 1.0) -> None:
        self.rate = rate
        self.count = count
        self.window_s = window_s
        self._samples: deque[list[float]] = deque()  # [begin, bytes]

    def record(self, size: int, now: float) -> None:
        samples = self._samples
        if samples and now - samples[-1][0] < self.window_s:
            samples[-1][1] += size
        else:
            samples.append([now, size])
            while len(samples) > self.count:
                samples.popleft()

    def is_exceeded(self, now: float) -> bool:
        return self.measure(now) > self.rate

    def measure(self, now: float) -> float:
        """Bytes per second."""
        samples = self._samples
        oldest = now - self.count * self.window_s
        while samples and samples[0][0] <= oldest:
            samples.popleft()
        if not samples:
            return 0.0
        elapsed = max(now - samples[0][0], (self.count - 1) * self.window_s, self.window_s)
        return sum(size for _, size in samples) / elapsed


def is_throttled(replicas: tuple[str, ...], partition: int, broker_id: int) -> bool:
    """Whether a topic's `….replication.throttled.replicas` (`partition:broker`, …, or `*`) has the
    replica."""
    return bool(replicas) and ("*" in replicas or f"{partition}:{broker_id}" in replicas)
