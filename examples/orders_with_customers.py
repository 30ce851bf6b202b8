"""Join the stream orders with the table customers, and write the result to orders-named.

    kavka pipeline run examples/orders_with_customers.py

The key of an order is the customer's id, which is also the key of the table.
"""

from __future__ import annotations

import os

from kavka.streams import Consumed, Joined, KafkaStreams, Produced, Serdes, StreamsBuilder, Topology

CONFIG = {
    "bootstrap.servers": os.environ.get("BOOTSTRAP_SERVERS", "localhost:9092"),
    "application.id": "orders-with-customers",
}


def build() -> Topology:
    builder = StreamsBuilder()
    json = Consumed.with_(Serdes.String(), Serdes.Json())
    customers = builder.table("customers", json)
    (
        builder.stream("orders", json)
        .join(
            customers,
            lambda order, customer: {**order, "customer": customer["name"]},
            Joined.with_(Serdes.String(), Serdes.Json(), Serdes.Json()),
        )
        .to("orders-named", Produced.with_(Serdes.String(), Serdes.Json()))
    )
    return builder.build()


def streams() -> KafkaStreams:
    return KafkaStreams(build(), CONFIG)


if __name__ == "__main__":
    with streams() as running:
        running.wait()
