"""Read card-payments, and report cards that are used more than three times per minute to
fraud-alerts.

    kavka pipeline run examples/fraud_alert.py

The key of a payment is the card number, the value is JSON: {"amount": 12.5}. An alert contains the
number of payments and the total amount.
"""

from __future__ import annotations

import os

from kavka.streams import Consumed, KafkaStreams, Materialized, Produced, Serdes, StreamsBuilder, TimeWindows, Topology

CONFIG = {
    "bootstrap.servers": os.environ.get("BOOTSTRAP_SERVERS", "localhost:9092"),
    "application.id": "fraud-alert",
    "processing.guarantee": "exactly_once_v2",
}
MAX_PAYMENTS = 3


def build() -> Topology:
    builder = StreamsBuilder()
    (
        builder.stream("card-payments", Consumed.with_(Serdes.String(), Serdes.Json()))
        .group_by_key()
        .windowed_by(TimeWindows.of_size_and_grace(60_000, 10_000))
        .aggregate(
            lambda: {"count": 0, "total": 0.0},
            lambda card, payment, stats: {"count": stats["count"] + 1, "total": stats["total"] + payment["amount"]},
            Materialized.with_(Serdes.String(), Serdes.Json()),
        )
        .to_stream(lambda card, stats: card.key)
        .filter(lambda card, stats: stats["count"] > MAX_PAYMENTS)
        .to("fraud-alerts", Produced.with_(Serdes.String(), Serdes.Json()))
    )
    return builder.build()


def streams() -> KafkaStreams:
    return KafkaStreams(build(), CONFIG)


if __name__ == "__main__":
    with streams() as running:
        running.wait()
