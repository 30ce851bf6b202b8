"""[pure] The rate of throttled replication: `leader.` and `follower.replication.throttled.rate`.

Bytes are counted in `replication.quota.window.num` samples of
`replication.quota.window.size.seconds`, as for client quotas. A burst is allowed after a quiet
time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kavka.security.rates import Rate, Window


@dataclass(slots=True, eq=False)
class Throttle:
    """Owns the samples of the leader's or the follower's throttle. Rates are in bytes per second,
    times in seconds."""

    max_rate: int = 0
    max_samples: int = 11
    sample_s: float = 1.0
    _rate: Rate = field(default_factory=Rate, init=False)

    @property
    def _window(self) -> Window:
        return Window(self.max_samples, int(1000 * self.sample_s))

    def record(self, size: int, now: float) -> None:
        self._rate.record(size, int(1000 * now), self._window)

    def is_exceeded(self, now: float) -> bool:
        return self.measure(now) > self.max_rate

    def measure(self, now: float) -> float:
        """Return the current rate. Drops expired samples."""
        return self._rate.measure(int(1000 * now), self._window)[0]


def is_throttled(replicas: tuple[str, ...], partition: int, broker_id: int) -> bool:
    """Whether a topic's `….replication.throttled.replicas` (`partition:broker`, …, or `*`) contains
    the replica."""
    return bool(replicas) and ("*" in replicas or f"{partition}:{broker_id}" in replicas)
