"""The metrics of a consumer. All names follow the pattern of Kafka's fetch metrics
(`fetch-latency-avg`). Kafka has other names for a few of them: `join-time-avg`, `sync-time-avg`,
`heartbeat-response-time-max` and `rebalance-rate-per-hour`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(slots=True)
class MeanAndMax:
    """The mean and the maximum of all values."""

    count: int = 0
    total: float = 0.0
    maximum: float = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        self.total += value
        if value > self.maximum:
            self.maximum = value

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0


class ConsumerMetrics:
    """Owns the counters of a consumer. The application's thread updates `polls` and `last_poll`,
    the event loop updates the others. The buffer counts consumed records and bytes."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.fetch_latency = MeanAndMax()
        self.fetch_size = MeanAndMax()
        self.commit_latency = MeanAndMax()
        self.join_latency = MeanAndMax()
        self.sync_latency = MeanAndMax()
        self.heartbeat_latency = MeanAndMax()
        self.rebalance_latency = MeanAndMax()
        self.failed_rebalances = 0
        self.last_heartbeat = 0.0
        self.polls = 0
        self.last_poll = 0.0

    def record_heartbeat(self, seconds: float) -> None:
        self.heartbeat_latency.add(seconds)
        # When it was sent: the group's coordinator received it later.
        self.last_heartbeat = time.monotonic() - seconds

    def items(self) -> Iterator[tuple[str, float]]:
        now = time.monotonic()
        latencies = {
            "fetch": self.fetch_latency,
            "commit": self.commit_latency,
            "join": self.join_latency,
            "sync": self.sync_latency,
            "heartbeat": self.heartbeat_latency,
            "rebalance": self.rebalance_latency,
        }
        for name, values in latencies.items():
            yield f"{name}-total", values.count
            yield f"{name}-rate", values.count / max(now - self.started, 0.001)
            yield f"{name}-latency-avg", values.mean * 1000
            yield f"{name}-latency-max", values.maximum * 1000
        yield "fetch-size-avg", self.fetch_size.mean
        yield "fetch-size-max", self.fetch_size.maximum
        yield "failed-rebalance-total", self.failed_rebalances
        yield "last-heartbeat-seconds-ago", now - self.last_heartbeat if self.last_heartbeat else -1.0
        yield "last-poll-seconds-ago", now - self.last_poll if self.last_poll else -1.0
