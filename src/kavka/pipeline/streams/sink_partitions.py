"""The partitions of the topics that sinks write to, for partitioners.

A function may choose the topic of each record. So a worker looks up the number with the first
record of a topic, and again after `metadata.max.age.ms`. As with Kafka's producer, brokers may
create a missing topic.
"""

from __future__ import annotations

import atexit
import os
import time

from kavka.client.producer.producer import Producer
from kavka.common.errors import KafkaError
from kavka.pipeline.spark.cluster import admin_settings
from kavka.pipeline.streams.errors import StreamsException
from kavka.pipeline.streams.settings import Settings


class SinkPartitions:
    """Looks up partitions of a cluster. It connects with the first lookup."""

    def __init__(self, settings: Settings) -> None:
        self._age = settings.metadata_age / 1000
        clients = settings.producer
        self._config = admin_settings(clients)
        if "max.block.ms" in clients:
            self._config["max.block.ms"] = clients["max.block.ms"]
        self._counts: dict[str, tuple[int, float]] = {}
        self._producer: Producer | None = None

    def of(self, topic: str) -> int:
        count, until = self._counts.get(topic, (0, 0.0))
        if time.monotonic() >= until:
            count = self._look_up(topic)
            self._counts[topic] = count, time.monotonic() + self._age
        return count

    def close(self) -> None:
        if self._producer is not None:
            self._producer.close(0.0)
            self._producer = None

    def _look_up(self, topic: str) -> int:
        if self._producer is None:
            self._producer = Producer(self._config)
        try:
            return len(self._producer.partitions_for(topic))
        except KafkaError as error:
            raise StreamsException(
                f"Could not get partition information for topic {topic}: {error}. This can happen if the topic does "
                "not exist"
            ) from None


_of_process: dict[tuple[int, str], SinkPartitions] = {}


def sink_partitions(settings: Settings) -> SinkPartitions:
    """Shared by the tasks of this process, which are recreated with every micro-batch."""
    key = os.getpid(), repr(sorted(settings.producer.items()))
    if key not in _of_process:
        _of_process[key] = SinkPartitions(settings)
    return _of_process[key]


@atexit.register
def _close_all() -> None:
    for (process, _), partitions in list(_of_process.items()):
        if process == os.getpid():
            partitions.close()
