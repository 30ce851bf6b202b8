"""A table of texts in a compacted topic: everybody reads all of it, and what is written is seen by all.

A thread of its own reads. `put` returns when the brokers have stored it and this reader has come past it, so that who
writes sees what it wrote.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

from kavka.client.admin import Admin
from kavka.client.admin.base import AdminError
from kavka.client.admin.types import NewTopic
from kavka.client.consumer.consumer import Consumer
from kavka.client.producer.producer import Producer
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.pipeline.connect.errors import ConnectError
from kavka.pipeline.spark.cluster import admin_settings

log = logging.getLogger(__name__)

_TIMEOUT = 30.0
_POLL = 0.5


class TopicTable:
    def __init__(
        self,
        client: Mapping[str, str],
        topic: str,
        partitions: int,
        replicas: int,
        changed: Callable[[str, str | None], None] = lambda key, value: None,
    ) -> None:
        self.topic = topic
        self._values: dict[str, str] = {}
        self._changed = changed
        self._seen: dict[TopicPartition, int] = {}
        self._moved = threading.Condition()
        self._closing = False
        self._create(client, partitions, replicas)
        common = dict(client)
        self._producer = Producer({**common, "acks": "all", "linger.ms": "0"})
        self._consumer = Consumer({**common, "auto.offset.reset": "earliest", "enable.auto.commit": "false"})
        numbers = [one.partition for one in self._consumer.partitions_for(topic)]
        self._partitions = [TopicPartition(topic, number) for number in numbers]
        self._consumer.assign(self._partitions)
        ends = self._consumer.end_offsets(self._partitions)
        self._thread = threading.Thread(target=self._read, name=f"connect-{topic}", daemon=True)
        self._thread.start()
        self._wait_for(ends, 600.0)

    def close(self) -> None:
        self._closing = True
        self._consumer.wakeup()
        self._thread.join(10.0)
        self._producer.close(5.0)

    def get(self, key: str) -> str | None:
        return self._values.get(key)

    def items(self) -> list[tuple[str, str]]:
        with self._moved:
            return list(self._values.items())

    def put(self, values: Mapping[str, str | None]) -> None:
        futures = [self._producer.send(self.topic, value=value, key=key) for key, value in values.items()]
        wanted: dict[TopicPartition, int] = {}
        for future in futures:
            try:
                stored = future.get(_TIMEOUT)
            except KafkaError as error:
                raise ConnectError(f"the topic {self.topic} could not be written to: {error}") from error
            tp = TopicPartition(stored.topic, stored.partition)
            wanted[tp] = max(wanted.get(tp, 0), stored.offset + 1)
        self._wait_for(wanted, _TIMEOUT)

    # --- inside

    def _create(self, client: Mapping[str, str], partitions: int, replicas: int) -> None:
        factor = None if replicas < 0 else replicas
        new = NewTopic(self.topic, partitions, factor, configs={"cleanup.policy": "compact"})
        with Admin(admin_settings(client)) as admin:
            try:
                admin.create_topics([new])
            except AdminError as error:
                if any(why.code != ErrorCode.TOPIC_ALREADY_EXISTS for why in error.errors.values()):
                    raise ConnectError(f"the topic {self.topic} cannot be made: {error}") from None

    def _read(self) -> None:
        while not self._closing:
            try:
                records = self._consumer.poll(_POLL)
            except KafkaError as error:
                if not self._closing:
                    log.warning("Reading %s: %s", self.topic, error)
                    time.sleep(_POLL)
                continue
            except Exception as error:
                if not self._closing:
                    log.warning("Reading %s: %s", self.topic, error)
                continue
            heard = []
            with self._moved:
                for record in records:
                    key = bytes(record.key or b"").decode(errors="replace")
                    value = None if record.value is None else bytes(record.value).decode(errors="replace")
                    if value is None:
                        self._values.pop(key, None)
                    else:
                        self._values[key] = value
                    heard.append((key, value))
                for tp in self._partitions:
                    self._seen[tp] = self._consumer.position(tp)
            # What hears of a change sees it; who waits for one knows that it was heard.
            for key, value in heard:
                self._changed(key, value)
            with self._moved:
                self._moved.notify_all()
        self._consumer.close(5.0)

    def _wait_for(self, wanted: Mapping[TopicPartition, int], timeout: float) -> None:
        deadline = time.monotonic() + timeout
        with self._moved:
            while any(self._seen.get(tp, 0) < offset for tp, offset in wanted.items()):
                if self._closing or time.monotonic() >= deadline:
                    raise ConnectError(f"the topic {self.topic} could not be read within {timeout:.0f} s")
                self._moved.wait(1.0)
