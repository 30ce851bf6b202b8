"""The status of Streams jobs in a topic, so that `status` also reports jobs of other machines.

The topic is in the cluster that the jobs use. It is compacted and has one partition. The key of a
record is the application.id. The value is the job's status as JSON, with the host and pid of the
driver and the time of the write. A job writes its status when it changes, at most every 5 s, and
otherwise about every 15 s. A job that ends normally writes a tombstone. A failed job leaves its
error. A killed job leaves its last status, and is reported with the state GONE after a minute.

The status is only displayed. A job continues if its status cannot be written.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kavka import jobs
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition

if TYPE_CHECKING:
    from kavka.client.producer.producer import Producer

logger = logging.getLogger(__name__)

TOPIC = "__kavka_pipeline_status"
INTERVAL_S = 5.0
HEARTBEAT_S = 15.0
GONE_AFTER_S = 60.0
READ_TIMEOUT_S = 30.0
MAX_STATUS_BYTES = 200_000
_CLOSE_TIMEOUT_S = 5.0
_TOPIC_SETTINGS = {"cleanup.policy": "compact", "segment.bytes": str(1024 * 1024), "min.cleanable.dirty.ratio": "0.01"}
# The writer must not delay the end of the job.
_PRODUCER_OVERRIDES = {
    "max.block.ms": "5000",
    "delivery.timeout.ms": "10000",
    "request.timeout.ms": "5000",
    "linger.ms": "0",
}


class StatusWriter:
    """Writes the status of one job in a background thread. Any thread may call the methods."""

    def __init__(self, client_settings: Mapping[str, str], application_id: str, topic: str = TOPIC) -> None:
        self._client_settings, self._application_id, self._topic = dict(client_settings), application_id, topic
        self._condition = threading.Condition()
        self._status: dict[str, Any] | None = None
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name=f"{application_id}-status", daemon=True)
        self._thread.start()

    def update(self, status: Mapping[str, Any]) -> None:
        with self._condition:
            self._status = dict(status)

    def close(self, status: Mapping[str, Any] | None) -> None:
        """Write the last status, or a tombstone if it is None. Waits for at most five seconds."""
        with self._condition:
            self._status = None if status is None else dict(status)
            self._is_closed = True
            self._condition.notify()
        self._thread.join(_CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        from kavka.client.producer.producer import Producer

        producer: Producer | None = None
        written: dict[str, Any] | None = None
        last_write, has_failed, is_closed = 0.0, False, False
        while not is_closed:
            with self._condition:
                self._condition.wait_for(lambda: self._is_closed, INTERVAL_S if written is not None else 0.5)
                status, is_closed = self._status, self._is_closed
            if not is_closed and (status is None or not self._is_due(status, written, last_write)):
                continue
            try:
                if producer is None:
                    self._create_topic()
                    producer = Producer({**_producer_settings(self._client_settings), **_PRODUCER_OVERRIDES})
                self._write(producer, status)
                written, last_write = status, time.monotonic()
            except KafkaError as error:
                if not has_failed:
                    logger.warning(
                        "the status of %s cannot be written to %s: %s", self._application_id, self._topic, error
                    )
                has_failed = True
        if producer is not None:
            producer.close(1.0)

    @staticmethod
    def _is_due(status: dict[str, Any], written: dict[str, Any] | None, last_write: float) -> bool:
        return status != written or time.monotonic() - last_write >= HEARTBEAT_S

    def _write(self, producer: Producer, status: dict[str, Any] | None) -> None:
        value = None
        if status is not None:
            origin = {"host": socket.gethostname(), "pid": os.getpid(), "updated": int(time.time() * 1000)}
            value = json.dumps({**status, **origin}).encode()
            if len(value) > MAX_STATUS_BYTES:
                # Only the lists can be long, for example `partitions`.
                without_lists = {name: item for name, item in status.items() if not isinstance(item, list)}
                value = json.dumps({**without_lists, **origin}).encode()
        producer.send(self._topic, value, self._application_id.encode(), 0).get(10.0)

    def _create_topic(self) -> None:
        from kavka.client.admin import Admin, AdminError
        from kavka.client.admin.types import NewTopic

        with Admin(_admin_settings(self._client_settings)) as admin:
            if self._topic in admin.list_topics(list_internal=True):
                return
            replicas = min(3, len(admin.describe_cluster().nodes))
            try:
                admin.create_topics([NewTopic(self._topic, 1, replicas, configs=_TOPIC_SETTINGS)])
            except AdminError as error:
                if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise


def read_statuses(client_settings: Mapping[str, str], topic: str = TOPIC) -> list[dict[str, Any]]:
    """Return the last status of every job, in the order of the application.id. Skips records that
    are not a status. Reads for at most `READ_TIMEOUT_S` seconds; the result may then be outdated.
    Raises KafkaError."""
    from kavka.client.admin import Admin, AdminError
    from kavka.client.admin.types import OffsetSpec
    from kavka.client.consumer.consumer import Consumer

    tp = TopicPartition(topic, 0)
    with Admin(_admin_settings(client_settings)) as admin:
        try:
            end = admin.list_offsets({tp: OffsetSpec.latest()})[tp].offset
        except AdminError as error:
            if error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                return []
            raise
    statuses: dict[str, dict[str, Any]] = {}
    settings = {**_consumer_settings(client_settings), "auto.offset.reset": "earliest", "enable.auto.commit": "false"}
    with Consumer(settings) as consumer:
        consumer.assign([tp])
        consumer.seek_to_beginning([tp])
        deadline = time.monotonic() + READ_TIMEOUT_S
        while consumer.position(tp) < end and time.monotonic() < deadline:
            for record in consumer.poll(0.2):
                _apply(statuses, record.key, record.value)
    return [statuses[name] for name in sorted(statuses)]


def _apply(statuses: dict[str, dict[str, Any]], key: bytes | None, value: bytes | None) -> None:
    name = (key or b"").decode(errors="replace")
    if value is None:
        statuses.pop(name, None)
        return
    try:
        status = json.loads(value)
        age = time.time() - float(status["updated"]) / 1000
    except (ValueError, KeyError, TypeError):
        return
    is_running = status.get("state") != jobs.FAILED and age < GONE_AFTER_S
    if status.get("state") != jobs.FAILED and not is_running:
        status["state"] = jobs.GONE
    statuses[name] = {**status, "application.id": name, "running": is_running}


def _admin_settings(client_settings: Mapping[str, str]) -> dict[str, str]:
    from kavka.client.admin_config import ADMIN_CONFIGS

    return {name: value for name, value in client_settings.items() if ADMIN_CONFIGS.get(name) is not None}


def _producer_settings(client_settings: Mapping[str, str]) -> dict[str, str]:
    from kavka.client.producer_config import PRODUCER_CONFIGS

    return {name: value for name, value in client_settings.items() if PRODUCER_CONFIGS.get(name) is not None}


def _consumer_settings(client_settings: Mapping[str, str]) -> dict[str, str]:
    from kavka.client.consumer_config import CONSUMER_CONFIGS

    return {name: value for name, value in client_settings.items() if CONSUMER_CONFIGS.get(name) is not None}
