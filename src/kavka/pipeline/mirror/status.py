"""The status of a mirror as text, as JSON, and for Prometheus.

The states of a flow:

    UNASSIGNED  another process of the group runs the flow, or none does
    STARTING    the topics are created, and the query starts
    RUNNING     the query runs
    DEGRADED    the query runs, and a job of the housekeeping fails: `error` names it
    RETRYING    the query failed and is started again
    FAILED      the flow has ended: a retry would not help
    STOPPED     the flow was stopped
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kavka.common.metrics import CONTENT_TYPE, Registry
from kavka.common.types import TopicPartition
from kavka.web.listener import Listener

UNASSIGNED, STARTING, RUNNING, DEGRADED = "UNASSIGNED", "STARTING", "RUNNING", "DEGRADED"
RETRYING, FAILED, STOPPED = "RETRYING", "FAILED", "STOPPED"


@dataclass
class FlowStatus:
    """The status of a flow. The thread of the flow writes it, and other threads read it, so every
    field is replaced, never modified."""

    flow: str
    state: str = STARTING
    batch: int = -1
    records: int = 0
    """The number of offsets mirrored since the start."""
    records_per_second: float = 0.0
    next_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    """The next offset of the source to mirror, by partition."""
    lag: dict[TopicPartition, int] = field(default_factory=dict)
    restarts: int = 0
    error: str | None = None
    refused_topics: list[str] = field(default_factory=list)
    """The topics that are not mirrored because their records would loop forever."""

    def begin(self) -> None:
        """The flow starts. Its batches are numbered from 0 again, and its progress is unknown."""
        self.state, self.error = STARTING, None
        self.batch, self.records_per_second = -1, 0.0
        self.next_offsets, self.lag = {}, {}

    @property
    def total_lag(self) -> int:
        return sum(self.lag.values())

    def line(self) -> str:
        line = f"{self.flow}: {self.state}, {self.records:,} records, {self.records_per_second:,.0f}/s, "
        line += f"lag {self.total_lag:,}"
        return f"{line} ({self.error})" if self.error else line

    def to_json(self) -> dict[str, Any]:
        lag: dict[str, dict[str, int]] = {}
        for tp, records in sorted(self.lag.items()):
            lag.setdefault(tp.topic, {})[str(tp.partition)] = records
        return {
            "flow": self.flow,
            "state": self.state,
            "batch": self.batch,
            "records": self.records,
            "records_per_second": round(self.records_per_second, 1),
            "lag": self.total_lag,
            "lag_by_partition": lag,
            "restarts": self.restarts,
            "error": self.error,
            "refused_topics": self.refused_topics,
        }


def registry_of(flows: Callable[[], list[FlowStatus]]) -> Registry:
    registry = Registry()
    label = ("flow",)
    registry.gauge(
        "kavka_mirror_lag", "Records of the source that are not yet in the target.", ("flow", "topic", "partition"),
        lambda: [((f.flow, tp.topic, str(tp.partition)), n) for f in flows() for tp, n in f.lag.items()],
    )  # fmt: skip
    registry.gauge(
        "kavka_mirror_records", "Offsets mirrored since the start.", label,
        lambda: [((f.flow,), f.records) for f in flows()],
    )  # fmt: skip
    registry.gauge(
        "kavka_mirror_records_per_second", "Records per second in the last batch.", label,
        lambda: [((f.flow,), f.records_per_second) for f in flows()],
    )  # fmt: skip
    registry.gauge(
        "kavka_mirror_restarts", "Restarts of the query after an error.", label,
        lambda: [((f.flow,), f.restarts) for f in flows()],
    )  # fmt: skip
    registry.gauge(
        "kavka_mirror_up", "1 while the flow runs in this process.", label,
        lambda: [((f.flow,), float(f.state in (RUNNING, DEGRADED))) for f in flows()],
    )  # fmt: skip
    registry.gauge(
        "kavka_mirror_degraded", "1 while a job of the flow's housekeeping fails.", label,
        lambda: [((f.flow,), float(f.state == DEGRADED)) for f in flows()],
    )  # fmt: skip
    return registry


class StatusListener(Listener):
    """Serves `/status` as JSON and `/metrics` for Prometheus. Raises OSError if the address cannot
    be bound."""

    def __init__(self, host: str, port: int, flows: Callable[[], list[FlowStatus]]) -> None:
        registry = registry_of(flows)

        def status() -> tuple[str, bytes]:
            return "application/json", json.dumps([flow.to_json() for flow in flows()]).encode()

        def metrics() -> tuple[str, bytes]:
            return CONTENT_TYPE, registry.render()

        super().__init__(host, port, {"/": status, "/status": status, "/metrics": metrics})
