"""The producer's metrics, with the names of Kafka's producer."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass(slots=True)
class ProducerMetrics:
    """Counters started the start. Only the event loop writes them. `latency` and `queue_time` are
    totals in seconds, `throttle` is a total in milliseconds."""

    started: float = field(default_factory=time.monotonic)
    records: int = 0
    record_errors: int = 0
    record_retries: int = 0
    requests: int = 0
    responses: int = 0
    batches: int = 0
    batch_splits: int = 0
    batch_bytes: int = 0
    compressed_bytes: int = 0
    latency: float = 0.0
    latency_max: float = 0.0
    queue_time: float = 0.0
    throttle: float = 0.0

    def snapshot(self) -> dict[str, float]:
        """Return the metrics by Kafka's names. Averages and rates cover the lifetime of the
        producer."""
        seconds = max(time.monotonic() - self.started, 1e-9)
        return {
            "record-send-total": self.records,
            "record-send-rate": self.records / seconds,
            "record-error-total": self.record_errors,
            "record-retry-total": self.record_retries,
            "request-total": self.requests,
            "request-rate": self.requests / seconds,
            "request-latency-avg": _average(self.latency * 1000, self.responses),
            "request-latency-max": self.latency_max * 1000,
            "batch-size-avg": _average(self.batch_bytes, self.batches),
            "batch-split-total": self.batch_splits,
            "records-per-request-avg": _average(self.records, self.requests),
            "record-queue-time-avg": _average(self.queue_time * 1000, self.batches),
            "compression-rate-avg": _average(self.compressed_bytes, self.batch_bytes),
            "produce-throttle-time-avg": _average(self.throttle, self.responses),
        }


def _average(total: float, count: float) -> float:
    return total / count if count else 0.0
