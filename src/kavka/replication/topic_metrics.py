"""Bytes and messages in and out per topic: the counters that the hot path adds to."""

from __future__ import annotations

from kavka.common.metrics import Counter, Registry


class OfTopic:
    """One topic's counters, held by each of its partitions."""

    __slots__ = ("bytes_in", "bytes_out", "failed_fetches", "failed_produces", "messages_in", "messages_out")

    def __init__(
        self,
        bytes_in: Counter,
        bytes_out: Counter,
        messages_in: Counter,
        messages_out: Counter,
        failed_produces: Counter,
        failed_fetches: Counter,
    ) -> None:
        self.bytes_in = bytes_in
        self.bytes_out = bytes_out
        self.messages_in = messages_in
        self.messages_out = messages_out
        self.failed_produces = failed_produces
        self.failed_fetches = failed_fetches


class TopicMetrics:
    def __init__(self, registry: Registry) -> None:
        label = ("topic",)
        self._families = (
            registry.counter("kavka_topic_bytes_in_total", "Bytes of record batches appended by producers", label),
            registry.counter("kavka_topic_bytes_out_total", "Bytes of record batches sent to consumers", label),
            registry.counter("kavka_topic_messages_in_total", "Records appended by producers", label),
            registry.counter(
                "kavka_topic_messages_out_total",
                "Records sent to consumers, by their offsets: about, where a cut was made far from the end of the log",
                label,
            ),
            registry.counter("kavka_topic_failed_produce_requests_total", "Appends that were refused", label),
            registry.counter("kavka_topic_failed_fetch_requests_total", "Reads that were refused", label),
        )
        self._topics: dict[str, OfTopic] = {}

    def of_topic(self, topic: str) -> OfTopic:
        found = self._topics.get(topic)
        if found is None:
            found = self._topics[topic] = OfTopic(*(family.labels(topic) for family in self._families))
        return found

    def forget(self, topic: str) -> None:
        if self._topics.pop(topic, None) is not None:
            for family in self._families:
                family.remove(topic)
