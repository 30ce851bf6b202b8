"""A table of strings in a compacted topic. Every worker reads the whole topic.

A separate thread reads the topic. `put` returns when the brokers have stored the records and that
thread has read them, so that a worker reads its own writes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

from kavka.client.admin import Admin
from kavka.client.admin.base import AdminError
from kavka.client.admin.types import ConfigResource, NewTopic
from kavka.client.consumer.consumer import Consumer
from kavka.client.producer.producer import Producer
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.pipeline.connect.errors import ConnectError
from kavka.pipeline.spark.cluster import admin_settings

logger = logging.getLogger(__name__)

_LOAD_TIMEOUT_S = 600.0
_PUT_TIMEOUT = 30.0
_POLL_TIMEOUT = 0.5


class TopicTable:
    """Owns the current values by key, a producer and a consumer of one topic. Any thread may call
    it. `on_change` runs in the reader's thread. With `described_as`, the setting that names the
    topic and the purpose of the topic, an existing topic must be compacted, and one for
    `partitions=1` must have one partition: otherwise values are lost, or their order."""

    def __init__(
        self,
        client_settings: Mapping[str, str],
        topic: str,
        partitions: int,
        replication_factor: int,
        on_change: Callable[[str, str | None], None] = lambda key, value: None,
        described_as: tuple[str, str] | None = None,
    ) -> None:
        self.topic = topic
        self._values: dict[str, str] = {}
        self._on_change = on_change
        self._positions: dict[TopicPartition, int] = {}
        self._condition = threading.Condition()
        self._closing = False
        try:
            create_topic(client_settings, topic, partitions, replication_factor, {"cleanup.policy": "compact"})
        except AdminError as error:
            raise ConnectError(f"cannot create topic {topic}: {error}") from None
        if described_as is not None:
            _check_compacted(client_settings, topic, *described_as)
        self._producer = Producer({**client_settings, "acks": "all", "linger.ms": "0"})
        self._consumer = Consumer({**client_settings, "auto.offset.reset": "earliest", "enable.auto.commit": "false"})
        self._partitions = [TopicPartition(topic, info.partition) for info in self._consumer.partitions_for(topic)]
        if described_as is not None and partitions == 1 < len(self._partitions):
            self._consumer.close(5.0)
            self._producer.close(5.0)
            raise ConnectError(
                f"Topic '{topic}' supplied via the '{described_as[0]}' property is required to have a single partition "
                f"in order to guarantee consistency of {described_as[1]}, but found {len(self._partitions)} partitions."
            )
        self._consumer.assign(self._partitions)
        end_offsets = self._consumer.end_offsets(self._partitions)
        self._thread = threading.Thread(target=self._read, name=f"connect-{topic}", daemon=True)
        self._thread.start()
        self._wait_for(end_offsets, _LOAD_TIMEOUT_S)

    def close(self) -> None:
        self._closing = True
        self._consumer.wakeup()
        self._thread.join(10.0)
        self._producer.close(5.0)

    def get(self, key: str) -> str | None:
        return self._values.get(key)

    def items(self) -> list[tuple[str, str]]:
        with self._condition:
            return list(self._values.items())

    def put(self, values: Mapping[str, str | None]) -> None:
        futures = [self._producer.send(self.topic, value=value, key=key) for key, value in values.items()]
        end_offsets: dict[TopicPartition, int] = {}
        for future in futures:
            try:
                metadata = future.get(_PUT_TIMEOUT)
            except KafkaError as error:
                raise ConnectError(f"cannot write to topic {self.topic}: {error}") from error
            tp = TopicPartition(metadata.topic, metadata.partition)
            end_offsets[tp] = max(end_offsets.get(tp, 0), metadata.offset + 1)
        self._wait_for(end_offsets, _PUT_TIMEOUT)

    # --- the thread

    def _read(self) -> None:
        while not self._closing:
            try:
                records = self._consumer.poll(_POLL_TIMEOUT)
            except Exception as error:
                if not self._closing:
                    logger.warning("Cannot read topic %s: %s", self.topic, error)
                    time.sleep(_POLL_TIMEOUT)
                continue
            changes = []
            with self._condition:
                for record in records:
                    key = bytes(record.key or b"").decode(errors="replace")
                    value = None if record.value is None else bytes(record.value).decode(errors="replace")
                    if value is None:
                        self._values.pop(key, None)
                    else:
                        self._values[key] = value
                    changes.append((key, value))
                for tp in self._partitions:
                    self._positions[tp] = self._consumer.position(tp)
            # Call the listener after the values have changed, and before `put` returns.
            for key, value in changes:
                self._on_change(key, value)
            with self._condition:
                self._condition.notify_all()
        self._consumer.close(5.0)

    def _wait_for(self, end_offsets: Mapping[TopicPartition, int], timeout: float) -> None:
        deadline = time.monotonic() + timeout
        with self._condition:
            while any(self._positions.get(tp, 0) < offset for tp, offset in end_offsets.items()):
                if self._closing:
                    raise ConnectError(f"cannot read topic {self.topic}: the table was closed")
                if time.monotonic() >= deadline:
                    raise ConnectError(f"topic {self.topic} was not read to its end within {timeout:.0f} s")
                self._condition.wait(1.0)


def _check_compacted(client_settings: Mapping[str, str], topic: str, setting: str, purpose: str) -> None:
    """Raises ConnectError, with Kafka Connect's message, unless the cleanup policy of the topic is
    compaction alone. A client that may not read the policy continues, as in Kafka Connect."""
    resource = ConfigResource.topic(topic)
    with Admin(admin_settings(client_settings)) as admin:
        try:
            entry = admin.describe_configs(resource)[resource].get("cleanup.policy")
        except KafkaError as error:
            logger.info("Cannot read the cleanup policy of topic %s: %s", topic, error)
            return
    policies = {item.strip() for item in str(entry.value if entry is not None else "compact").split(",")}
    if policies != {"compact"}:
        raise ConnectError(
            f"Topic '{topic}' supplied via the '{setting}' property is required to have 'cleanup.policy=compact' to "
            f"guarantee consistency and durability of {purpose}, but found the topic currently has "
            f"'cleanup.policy={','.join(sorted(policies))}'. Continuing would likely result in eventually losing "
            f"{purpose} and problems restarting this Connect cluster in the future. Change the '{setting}' property in "
            "the Connect worker configurations to use a topic with 'cleanup.policy=compact'."
        )


def create_topic(
    client_settings: Mapping[str, str],
    name: str,
    partitions: int,
    replication_factor: int,
    configs: Mapping[str, str] | None = None,
) -> None:
    """Creates the topic unless it exists. A negative `replication_factor` is the broker's default.
    Raises AdminError."""
    topic = NewTopic(name, partitions, None if replication_factor < 0 else replication_factor, configs=configs)
    with Admin(admin_settings(client_settings)) as admin:
        try:
            admin.create_topics([topic])
        except AdminError as error:
            if any(cause.code != ErrorCode.TOPIC_ALREADY_EXISTS for cause in error.errors.values()):
                raise
