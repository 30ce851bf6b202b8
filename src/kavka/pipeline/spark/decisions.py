"""The decisions of exactly-once sinks, stored in a compacted topic with one partition in the target
cluster.

The key of a record is the query's name (prefix and Spark's id of the query). The value is a
decision as JSON. A decision lists the transactions, one per task, that form a batch. Once it is
stored, the batch will be committed, also after a crash. Only the last decision of a query is
needed, so compaction may remove the others.

The driver writes decisions with the transactional producer of the query (`…-driver`). A driver that
starts fences the previous one, so of two drivers of the same query only the newer can decide.
Readers accept only committed records. They read up to the high watermark at the time they start,
and wait for open transactions before it, so they never miss a decision.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kavka.client.admin import Admin
from kavka.client.admin.base import AdminError
from kavka.client.admin.types import NewTopic, OffsetSpec
from kavka.client.consumer.consumer import Consumer
from kavka.client.errors import KafkaTimeout
from kavka.client.producer.producer import Producer
from kavka.client.types import PreparedTransaction
from kavka.common.errors import ErrorCode
from kavka.common.types import TopicPartition
from kavka.pipeline.spark.cluster import admin_settings, consumer_settings
from kavka.pipeline.spark.errors import PipelineError
from kavka.pipeline.spark.options import SinkOptions

FORMAT_VERSION = 1
TOPIC_SETTINGS = {
    "cleanup.policy": "compact",
    # Small segments keep the topic short: compaction skips the active segment.
    "segment.bytes": str(4 * 1024 * 1024),
    "min.cleanable.dirty.ratio": "0.01",
}
# A transaction has one record. The transaction of a killed driver expires soon.
DECISION_TRANSACTION_TIMEOUT_MS = 10_000
# Long enough for the coordinator to abort an expired transaction.
READ_TIMEOUT = 90.0


@dataclass(frozen=True)
class TaskEntry:
    """The output of one task of a batch. `witness` is the topic, partition and offset of the first
    record of its transaction. A task without a transaction wrote nothing."""

    task: int
    rows: int
    size: int
    transaction: PreparedTransaction | None = None
    witness: tuple[str, int, int] | None = None


@dataclass(frozen=True)
class Decision:
    """The transactions that form a batch."""

    query: str
    run: str
    batch: int
    id: str
    tasks: Mapping[int, TaskEntry]

    def to_json(self) -> bytes:
        tasks = [
            [t.task, t.rows, t.size, None if t.transaction is None else list(t.transaction), t.witness]
            for t in self.tasks.values()
        ]
        value = {"version": FORMAT_VERSION, "run": self.run, "batch": self.batch, "id": self.id, "tasks": tasks}
        return json.dumps(value, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, query: str, data: bytes) -> Decision:
        try:
            value: dict[str, Any] = json.loads(data)
            if value["version"] > FORMAT_VERSION:
                raise PipelineError(f"a newer version of Kavka wrote the last decision of {query}")
            entries = [
                TaskEntry(
                    task, rows, size, transaction and PreparedTransaction(*transaction), witness and tuple(witness)
                )
                for task, rows, size, transaction, witness in value["tasks"]
            ]
            return cls(query, value["run"], value["batch"], value["id"], {entry.task: entry for entry in entries})
        except (KeyError, TypeError, ValueError):
            raise PipelineError(f"the last decision of {query} is invalid: {data[:200]!r}") from None


class Decisions:
    """Creates the topic of decisions and reads it. Only one thread may call it."""

    def __init__(self, options: SinkOptions, admin: Admin | None = None) -> None:
        self._options = options
        self._admin = admin
        self._partition = TopicPartition(options.decisions_topic, 0)

    def last(self, query: str) -> Decision | None:
        """Return the newest decision of a query, None if there is none. Raises KafkaTimeout."""
        if self._admin is not None:
            return self._last(self._admin, query)
        with Admin(admin_settings(self._options.client)) as admin:
            return self._last(admin, query)

    def _last(self, admin: Admin, query: str) -> Decision | None:
        tp = self._partition
        try:
            first = admin.list_offsets({tp: OffsetSpec.earliest()})[tp].offset
            end = admin.list_offsets({tp: OffsetSpec.latest()})[tp].offset
        except AdminError as error:
            if error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                return None
            raise
        decision: Decision | None = None
        settings = consumer_settings(self._options.client)
        with Consumer(
            {
                **settings,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": "false",
            }
        ) as consumer:
            consumer.assign([tp])
            consumer.seek(tp, first)
            deadline = time.monotonic() + READ_TIMEOUT
            key = query.encode()
            while consumer.position(tp) < end:
                for record in consumer.poll(0.05):
                    if record.key == key and record.value is not None:
                        decision = Decision.from_json(query, record.value)
                if time.monotonic() > deadline:
                    raise KafkaTimeout(
                        f"{tp} could not be read up to offset {end} within {READ_TIMEOUT:g} s: "
                        "a transaction in it does not end"
                    )
        return decision

    def create(self) -> None:
        """Create the topic if it does not exist."""
        assert self._admin is not None
        name = self._partition.topic
        if name in self._admin.list_topics(list_internal=True):
            return
        brokers = len(self._admin.describe_cluster().nodes)
        try:
            self._admin.create_topics([NewTopic(name, 1, min(3, brokers), configs=TOPIC_SETTINGS)])
        except AdminError as error:
            if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise


class DecisionWriter:
    """The producer of the driver that may decide for a query. Its constructor fences the producers
    of earlier drivers."""

    def __init__(self, options: SinkOptions, query: str) -> None:
        self._topic = options.decisions_topic
        settings = {name: value for name, value in options.client.items() if name not in _NOT_FOR_DECISIONS}
        self._producer = Producer(
            {
                **settings,
                "transactional.id": f"{query}-driver",
                "transaction.timeout.ms": str(DECISION_TRANSACTION_TIMEOUT_MS),
                "acks": "all",
                "linger.ms": "0",
            }
        )
        try:
            self._producer.init_transactions()
        except BaseException:
            self._producer.close(0)
            raise

    def write(self, decision: Decision) -> None:
        """Store the decision. After an exception the decision may or may not be stored: read the
        last decision again."""
        self._producer.begin_transaction()
        future = self._producer.send(self._topic, decision.to_json(), decision.query.encode(), 0)
        self._producer.commit_transaction()
        future.get(0)

    def close(self) -> None:
        self._producer.close(5.0)


_NOT_FOR_DECISIONS = frozenset({"transactional.id", "transaction.timeout.ms", "acks", "linger.ms", "compression.type"})
