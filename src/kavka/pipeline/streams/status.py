"""The status of an application: plain data for JSON, and metrics for Prometheus."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from kavka.client.consumer.consumer import Consumer
from kavka.common.errors import KafkaError
from kavka.common.metrics import CONTENT_TYPE, Registry
from kavka.common.types import TopicPartition
from kavka.jobs import offsets_between
from kavka.pipeline.spark.cluster import consumer_settings
from kavka.pipeline.spark.errors import PipelineError
from kavka.pipeline.spark.offsets import from_checkpoint
from kavka.pipeline.streams.errors import StreamsException
from kavka.pipeline.streams.settings import Settings
from kavka.pipeline.streams.task_reports import TaskReports
from kavka.web.listener import Listener

logger = logging.getLogger(__name__)

_LAG_INTERVAL = 5.0
_LAG_TIMEOUT = 1.0
# A fetch returns the first batch of a partition, however large it is, and not much more.
_LAG_SETTINGS = {
    "auto.offset.reset": "earliest",
    "enable.auto.commit": "false",
    "allow.auto.create.topics": "false",
    "max.partition.fetch.bytes": "1",
    "default.api.timeout.ms": "2000",
}

# The fields of a status: the metric, and its help.
_METRICS = {
    "records": ("records", "Records processed since the start."),
    "batches": ("micro_batches", "Micro-batches completed since the start."),
    "rows_per_second": ("records_per_second", "Records per second in the last micro-batch."),
    "batch_seconds": ("micro_batch_seconds", "Duration of the last micro-batch."),
    "batch_seconds_avg": ("micro_batch_seconds_avg", "Mean duration of the last 100 micro-batches."),
    "batch_seconds_max": ("micro_batch_seconds_max", "Longest of the last 100 micro-batches."),
    "state_rows": ("state_rows", "Rows in the state store of Spark."),
    "state_bytes": ("state_bytes", "Keys and values in the stores of all tasks."),
    "restores": ("restores", "How often tasks restored their state since the start."),
    "failures": ("failures", "How often the query failed since the start."),
}
_TASK_METRICS = {
    "records": ("task_records", "Records processed by the task since the start."),
    "state_bytes": ("task_state_bytes", "Keys and values in the stores of the task."),
    "restores": ("task_restores", "How often the task restored its state since the start."),
}


class Status:
    """Of one KafkaStreams. Any thread may call it."""

    def __init__(self, settings: Settings, reports: TaskReports) -> None:
        self._settings, self._reports = settings, reports
        self._lock = threading.Lock()
        self._lag: dict[TopicPartition, float] = {}
        self._lag_expires = 0.0
        self._metrics: tuple[Any, dict[str, float]] = (None, {})

    def snapshot(self, query: Any, state: str, read_metrics: Callable[[], dict[str, float]]) -> dict[str, Any]:
        """`read_metrics` reads the checkpoint, so it is called once per micro-batch and state."""
        progress = None if query is None else query.lastProgress
        current = state, None if progress is None else (progress.runId, progress.batchId)
        if self._metrics[0] != current:
            self._metrics = current, read_metrics()
        metrics = self._metrics[1]
        sources = [] if progress is None else progress.sources
        lags: dict[tuple[str, int], int] = {}
        positions: dict[TopicPartition, int] = {}
        for source in sources:
            lags |= offsets_between(source.endOffset, source.latestOffset)
            positions |= _offsets(source.endOffset)
        seconds = self._seconds(
            {tp: positions.get(tp, 0) for tp in (TopicPartition(*at) for at, lag in lags.items() if lag)}
        )
        tasks = self._reports.all()
        operators = [] if progress is None else progress.stateOperators
        records = sum(sum(offsets_between(s.startOffset, s.endOffset).values()) for s in sources)
        duration = 0.0 if progress is None else (progress.batchDuration or 0) / 1000
        partitions: list[dict[str, Any]] = [
            {
                "topic": topic,
                "partition": partition,
                "lag": lag,
                "lag_seconds": round(seconds.get(TopicPartition(topic, partition), 0.0), 3),
            }
            for (topic, partition), lag in sorted(lags.items())
        ]
        return {
            "application.id": self._settings.application_id,
            "state": str(state),
            "batch": 0 if progress is None else progress.batchId,
            "batches": metrics.get("commit-total", 0),
            "batch_seconds": duration,
            "batch_seconds_avg": metrics.get("batch-latency-avg", 0.0) / 1000,
            "batch_seconds_max": metrics.get("batch-latency-max", 0.0) / 1000,
            "records": metrics.get("process-total", 0),
            "rows_per_second": records / max(0.001, duration),
            "failures": metrics.get("failed-stream-threads", 0),
            "lag": sum(lags.values()),
            "lag_seconds": max((part["lag_seconds"] for part in partitions), default=0.0),
            "state_rows": sum(operator.numRowsTotal for operator in operators),
            "state_bytes": sum(task.state_bytes for task in tasks),
            "restores": sum(task.restores for task in tasks),
            "partitions": partitions,
            "tasks": [
                {"task": t.task, "records": t.records, "state_bytes": t.state_bytes, "restores": t.restores}
                for t in tasks
            ],
        }  # fmt: skip

    def _seconds(self, next_offsets: dict[TopicPartition, int]) -> dict[TopicPartition, float]:
        with self._lock:
            if not next_offsets:
                self._lag = {}
            elif time.monotonic() >= self._lag_expires:
                self._lag = lag_seconds(self._settings.consumer(), next_offsets)
                self._lag_expires = time.monotonic() + _LAG_INTERVAL
            return {tp: seconds for tp, seconds in self._lag.items() if tp in next_offsets}


def _offsets(text: Any) -> dict[TopicPartition, int]:
    try:
        return from_checkpoint(json.loads(text))
    except (TypeError, ValueError, PipelineError):
        return {}


def lag_seconds(client: Mapping[str, str], next_offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, float]:
    """By partition, the lag in seconds: the age of the record at this offset, or of the first after
    it. Partitions whose record does not arrive within a second are missing."""
    if not next_offsets:
        return {}
    times: dict[TopicPartition, int] = {}
    deadline = time.monotonic() + _LAG_TIMEOUT
    try:
        with Consumer({**consumer_settings(client), **_LAG_SETTINGS}) as consumer:
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


# --- Prometheus


def registry_of(status: Callable[[], dict[str, Any]]) -> Registry:
    """The status of a scrape is read once, for the first gauge."""
    registry = Registry()
    current: dict[str, Any] = {}

    def is_up() -> Iterable[Any]:
        current.clear()
        current.update(status())
        return [((_id(current),), float(current["state"] == "RUNNING"))]

    def gauge(name: str, text: str, labels: tuple[str, ...], read: Callable[[], Iterable[Any]]) -> None:
        registry.gauge(f"kavka_streams_{name}", text, ("application_id", *labels), read)

    gauge("up", "1 while the application is RUNNING.", (), is_up)
    for field, (name, text) in _METRICS.items():
        gauge(name, text, (), lambda field=field: [((_id(current),), current[field])])  # type: ignore[misc]
    for field in ("lag", "lag_seconds"):
        name = "lag_records" if field == "lag" else field
        text = "Records not processed yet." if field == "lag" else "Age of the oldest record not processed yet."
        gauge(name, text, ("topic", "partition"), lambda field=field: _by_partition(current, field))  # type: ignore[misc]
    for field, (name, text) in _TASK_METRICS.items():
        gauge(name, text, ("task",), lambda field=field: _by_task(current, field))  # type: ignore[misc]
    return registry


def _id(status: dict[str, Any]) -> str:
    return str(status["application.id"])


def _by_partition(status: dict[str, Any], field: str) -> list[Any]:
    parts = status["partitions"]
    return [((_id(status), part["topic"], str(part["partition"])), part[field]) for part in parts]


def _by_task(status: dict[str, Any], field: str) -> list[Any]:
    return [((_id(status), task["task"]), task[field]) for task in status["tasks"]]


class _Application(Protocol):
    def status(self) -> dict[str, Any]: ...


def serve_status(application: _Application, settings: Settings) -> Listener | None:
    """Serve `/metrics` and `/status` at `metrics.listener`, if it is set."""
    address = settings.metrics_listener
    if address is None:
        return None
    host, _, port = address.removeprefix("http://").rstrip("/").rpartition(":")
    if not port.isdecimal():
        raise StreamsException(f"metrics.listener must be host:port, not {address!r}")
    registry = registry_of(application.status)
    pages = {
        "/metrics": lambda: (CONTENT_TYPE, registry.render()),
        "/status": lambda: ("application/json", json.dumps(application.status()).encode()),
    }
    try:
        return Listener(host.strip("[]"), int(port), pages)
    except OSError as error:
        raise StreamsException(f"metrics.listener={address}: {error.strerror or error}") from None
