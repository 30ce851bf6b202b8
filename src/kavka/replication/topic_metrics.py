"""Counters of bytes, messages and failed requests per topic."""

from __future__ import annotations

from dataclasses import dataclass

from kavka.common.metrics import Counter, Registry


@dataclass(slots=True, eq=False)
class TopicCounters:
    """The counters of one topic, shared by all its partitions."""

    bytes_in: Counter
    bytes_out: Counter
    messages_in: Counter
    messages_out: Counter
    failed_produces: Counter
    failed_fetches: Counter


class TopicMetrics:
    """Owns the counters of all topics."""

    def __init__(self, registry: Registry) -> None:
        label = ("topic",)
        self._families = (
            registry.counter("kavka_topic_bytes_in_total", "Bytes of record batches appended by producers", label),
            registry.counter("kavka_topic_bytes_out_total", "Bytes of record batches sent to consumers", label),
            registry.counter("kavka_topic_messages_in_total", "Records appended by producers", label),
            registry.counter(
                "kavka_topic_messages_out_total",
                "Records sent to consumers, counted by offsets; estimated for partial reads far from the log end",
                label,
            ),
            registry.counter("kavka_topic_failed_produce_requests_total", "Failed appends, one per partition", label),
            registry.counter("kavka_topic_failed_fetch_requests_total", "Failed reads, one per partition", label),
        )
        self._topics: dict[str, TopicCounters] = {}

    def of_topic(self, topic: str) -> TopicCounters:
        counters = self._topics.get(topic)
        if counters is None:
            counters = self._topics[topic] = TopicCounters(*(family.labels(topic) for family in self._families))
        return counters

    def remove(self, topic: str) -> None:
        if self._topics.pop(topic, None) is not None:
            for family in self._families:
                family.remove(topic)
