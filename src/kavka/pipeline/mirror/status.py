"""How a mirror is doing: as lines, as JSON, and for Prometheus."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kavka.common.metrics import CONTENT_TYPE, Registry
from kavka.common.types import TopicPartition
from kavka.web.listener import Listener

STARTING, RUNNING, RETRYING, FAILED, STOPPED = "STARTING", "RUNNING", "RETRYING", "FAILED", "STOPPED"


@dataclass
class FlowStatus:
    """Written by the thread of its flow, read by others: every field is replaced as a whole."""

    flow: str
    state: str = STARTING
    batch: int = -1
    records: int = 0
    """Offsets that were mirrored since the start."""
    records_per_second: float = 0.0
    done: dict[TopicPartition, int] = field(default_factory=dict)
    """Where the source is mirrored up to."""
    lag: dict[TopicPartition, int] = field(default_factory=dict)
    restarts: int = 0
    error: str | None = None
    refused: list[str] = field(default_factory=list)

    @property
    def total_lag(self) -> int:
        return sum(self.lag.values())

    def line(self) -> str:
        told = f"{self.flow}: {self.state}, {self.records:,} records, {self.records_per_second:,.0f}/s, "
        told += f"lag {self.total_lag:,}"
        return f"{told} ({self.error})" if self.error else told

    def to_json(self) -> dict[str, Any]:
        lag: dict[str, dict[str, int]] = {}
        for tp, behind in sorted(self.lag.items()):
            lag.setdefault(tp.topic, {})[str(tp.partition)] = behind
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
            "refused_topics": self.refused,
        }


def registry_of(flows: Callable[[], list[FlowStatus]]) -> Registry:
    registry = Registry()
    label = ("flow",)
    registry.gauge(
        "kavka_mirror_lag", "Records of the source that are not in the target yet.", ("flow", "topic", "partition"),
        lambda: [((f.flow, tp.topic, str(tp.partition)), n) for f in flows() for tp, n in f.lag.items()],
    )  # fmt: skip
    registry.gauge(
        "kavka_mirror_records", "Offsets mirrored since the start.", label,
        lambda: [((f.flow,), f.records) for f in flows()],
    )  # fmt: skip
    registry.gauge(
        "kavka_mirror_records_per_second", "In the last batch.", label,
        lambda: [((f.flow,), f.records_per_second) for f in flows()],
    )  # fmt: skip
    registry.gauge(
        "kavka_mirror_restarts", "How often the query was started again after an error.", label,
        lambda: [((f.flow,), f.restarts) for f in flows()],
    )  # fmt: skip
    registry.gauge(
        "kavka_mirror_up", "1 while the flow runs.", label,
        lambda: [((f.flow,), float(f.state == RUNNING)) for f in flows()],
    )  # fmt: skip
    return registry


class StatusListener(Listener):
    """`/status` as JSON, `/metrics` for Prometheus. OSError where the address cannot be bound."""

    def __init__(self, host: str, port: int, flows: Callable[[], list[FlowStatus]]) -> None:
        registry = registry_of(flows)

        def status() -> tuple[str, bytes]:
            return "application/json", json.dumps([flow.to_json() for flow in flows()]).encode()

        def metrics() -> tuple[str, bytes]:
            return CONTENT_TYPE, registry.render()

        super().__init__(host, port, {"/": status, "/status": status, "/metrics": metrics})
