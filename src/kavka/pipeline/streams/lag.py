"""Lag in seconds: the age of the oldest record that is not processed yet."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from kavka.client.consumer.consumer import Consumer
from kavka.common.errors import KafkaError
from kavka.common.types import TopicPartition
from kavka.pipeline.spark.cluster import consumer_settings

logger = logging.getLogger(__name__)

_TIMEOUT = 1.0
# A fetch returns the first batch of a partition, however large it is, and not much more.
_SETTINGS = {
    "auto.offset.reset": "earliest",
    "enable.auto.commit": "false",
    "allow.auto.create.topics": "false",
    "max.partition.fetch.bytes": "1",
    "default.api.timeout.ms": "2000",
}


def lag_seconds(client: Mapping[str, str], next_offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, float]:
    """By partition: the age of the record at this offset, or of the first after it. Partitions
    whose record does not arrive within a second are left out."""
    if not next_offsets:
        return {}
    times: dict[TopicPartition, int] = {}
    deadline = time.monotonic() + _TIMEOUT
    try:
        with Consumer({**consumer_settings(client), **_SETTINGS}) as consumer:
            consumer.assign(list(next_offsets))
            for tp, offset in next_offsets.items():
                consumer.seek(tp, offset)
            while len(times) < len(next_offsets) and time.monotonic() < deadline:
                for record in consumer.poll(0.1):
                    times.setdefault(TopicPartition(record.topic, record.partition), record.timestamp)
                consumer.pause([tp for tp in times if tp in next_offsets])
    except KafkaError as error:
        logger.debug("the lag in seconds is unknown: %s", error)
    now = time.time() * 1000
    return {tp: max(0.0, (now - timestamp) / 1000) for tp, timestamp in times.items() if timestamp >= 0}
