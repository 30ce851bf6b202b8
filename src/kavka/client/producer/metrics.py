"""The producer's metrics, with the names of Kafka's producer."""

from __future__ import annotations

import time


class ProducerMetrics:
    """Counters since the start. Only the loop writes them."""

    __slots__ = (
        "batch_bytes",
        "batch_splits",
        "batches",
        "compressed_bytes",
        "latency",
        "latency_max",
        "queue_time",
        "record_errors",
        "record_retries",
        "records",
        "requests",
        "responses",
        "since",
        "throttle",
    )

    def __init__(self) -> None:
        self.since = time.monotonic()
        self.records = self.record_errors = self.record_retries = 0
        self.requests = self.responses = self.batches = self.batch_splits = 0
        self.batch_bytes = self.compressed_bytes = 0
        self.latency = self.latency_max = self.queue_time = self.throttle = 0.0

    def snapshot(self) -> dict[str, float]:
        """By Kafka's names. Averages and rates cover the lifetime of the producer."""
        seconds = max(time.monotonic() - self.since, 1e-9)
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
