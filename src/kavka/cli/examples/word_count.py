"""Count the words in streams-plaintext-input, and write the counts to streams-plaintext-output.

kavka pipeline run examples/word_count.py
"""

from __future__ import annotations

import os

from kavka.streams import KafkaStreams, Produced, Serdes, StreamsBuilder, Topology

CONFIG = {
    "bootstrap.servers": os.environ.get("BOOTSTRAP_SERVERS", "localhost:9092"),
    "application.id": "wordCountApp",
    "auto.offset.reset": "earliest",
}


def build() -> Topology:
    builder = StreamsBuilder()
    (
        builder.stream("streams-plaintext-input")
        .flat_map_values(lambda line: line.lower().split(" "))
        .group_by(lambda key, word: word)
        .count()
        .to_stream()
        .to("streams-plaintext-output", Produced.with_(Serdes.String(), Serdes.Long()))
    )
    return builder.build()


def streams() -> KafkaStreams:
    return KafkaStreams(build(), CONFIG)


if __name__ == "__main__":
    with streams() as running:
        running.wait()
