"""Statistics of the perf tests. The printed lines are those of Kafka's tools."""

from __future__ import annotations

import time
from collections.abc import Mapping

from kavka.cli.java_text import fixed, ratio

MB = 1024 * 1024
TARGET_SAMPLES = 500_000
PERCENTILES = (0.5, 0.95, 0.99, 0.999)


def now_ms() -> int:
    return int(time.time() * 1000)


class ProducerStats:
    """Latencies of records, from the call of `send` to the acknowledgement.

    Only the producer's thread calls `record`. Percentiles are computed from a sample of every n-th
    record. As in Kafka's tool, the sample has less than twice TARGET_SAMPLES records.
    """

    def __init__(self, records: int, interval_ms: int, *, steady: bool = False) -> None:
        self.count = 0
        self.bytes = 0
        self._steady = steady
        self._interval_ms = interval_ms
        self._sampling = max(1, records // min(records, TARGET_SAMPLES))
        self._latencies: list[int] = []
        self._total_latency = 0
        self._max_latency = 0
        self._start = self._window_start = now_ms()
        self._window_count = self._window_bytes = self._window_latency = self._window_max_latency = 0

    def record(self, latency: int, size: int, now: int) -> bool:
        """Count a record. Return whether the interval has ended."""
        if self.count % self._sampling == 0:
            self._latencies.append(latency)
        self.count += 1
        self.bytes += size
        self._total_latency += latency
        self._window_count += 1
        self._window_bytes += size
        self._window_latency += latency
        if latency > self._window_max_latency:
            self._window_max_latency = latency
            if latency > self._max_latency:
                self._max_latency = latency
        return now - self._window_start >= self._interval_ms

    def window_line(self) -> str:
        """Return the statistics since the last call, and start a new interval."""
        now = now_ms()
        elapsed = now - self._window_start
        line = (
            f"{self._window_count} records sent, {fixed(ratio(1000.0 * self._window_count, elapsed), 1)} records/sec "
            f"({fixed(ratio(1000.0 * self._window_bytes, elapsed) / MB, 2)} MB/sec), "
            f"{fixed(ratio(self._window_latency, self._window_count), 1)} ms avg latency, "
            f"{self._window_max_latency:.1f} ms max latency."
        )
        self._window_start = now
        self._window_count = self._window_bytes = self._window_latency = self._window_max_latency = 0
        return line

    def total_line(self) -> str:
        """Return the statistics of all records."""
        elapsed = now_ms() - self._start
        samples = sorted(self._latencies)
        p50, p95, p99, p999 = (samples[int(p * len(samples))] if samples else 0 for p in PERCENTILES)
        return (
            f"{self.count}{' steady state' if self._steady else ''} records sent, "
            f"{fixed(ratio(1000.0 * self.count, elapsed), 6)} records/sec "
            f"({fixed(ratio(1000.0 * self.bytes, elapsed) / MB, 2)} MB/sec), "
            f"{fixed(ratio(self._total_latency, self.count), 2)} ms avg latency, "
            f"{self._max_latency:.2f} ms max latency, "
            f"{p50} ms 50th, {p95} ms 95th, {p99} ms 99th, {p999} ms 99.9th."
        )

    def live_line(self, target: int) -> str:
        """Return the progress, and the rate since the last `window_line`."""
        elapsed = now_ms() - self._window_start
        count, size, total = self._window_count, self._window_bytes, self._window_latency
        return (
            f"{self.count:,} of {target:,} records, {ratio(1000.0 * count, elapsed or 1):,.0f} records/s, "
            f"{ratio(1000.0 * size, elapsed or 1) / MB:.1f} MB/s, {total / (count or 1):.1f} ms"
        )


class Throttle:
    """Sleeps in the sending loop to limit its rate. A negative rate means no limit."""

    MIN_SLEEP_S = 0.002

    def __init__(self, per_second: float) -> None:
        self._rate = per_second
        self._start = time.monotonic()
        self._deficit = 0.0

    def wait_after(self, count: int) -> None:
        """Sleep if `count` records in total are too many for the elapsed time."""
        if self._rate < 0:
            return
        if self._rate == 0:
            while True:
                time.sleep(3600)
        elapsed = time.monotonic() - self._start
        if elapsed <= 0 or count / elapsed <= self._rate:
            return
        self._deficit += 1.0 / self._rate
        if self._deficit >= self.MIN_SLEEP_S:
            sleep_start = time.monotonic()
            time.sleep(self._deficit)
            self._deficit -= time.monotonic() - sleep_start


def metrics_text(group: str, client_id: str, metrics: Mapping[str, float]) -> str:
    """Format the metrics for `--print-metrics`."""
    values = {f"{group}:{name}:{{client-id={client_id}}}": value for name, value in sorted(metrics.items())}
    width = max(map(len, values), default=0)
    lines = [f"\n{'Metric Name':<{width}}   Value"]
    for name, value in values.items():
        text = fixed(value, 3) if isinstance(value, (int, float)) else str(value)
        lines.append(f"{name:<{width}} : {text}")
    return "\n".join(lines)
