"""The settings that groups of the new protocol go by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

CLASSIC, CONSUMER = "classic", "consumer"


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    enabled: bool = True
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    max_size: int = 0x7FFFFFFF
    assignors: tuple[str, ...] = ("uniform", "range")
    upgrade: bool = True
    downgrade: bool = True
    # The only ones that may change while the broker runs.
    assignment_interval_ms: Callable[[], int] = field(default=lambda: 1_000)

    @classmethod
    def of(cls, settings: Any) -> ConsumerConfig:
        policy = settings.group_consumer_migration_policy.lower()
        return cls(
            enabled=CONSUMER in settings.group_coordinator_rebalance_protocols,
            session_timeout_ms=settings.group_consumer_session_timeout_ms,
            heartbeat_interval_ms=settings.group_consumer_heartbeat_interval_ms,
            max_size=settings.group_consumer_max_size,
            assignors=tuple(_short_name(name) for name in settings.group_consumer_assignors),
            upgrade=policy in ("upgrade", "bidirectional"),
            downgrade=policy in ("downgrade", "bidirectional"),
            assignment_interval_ms=lambda: settings.group_consumer_assignment_interval_ms,
        )


def _short_name(name: str) -> str:
    """Kafka also takes the names of its classes."""
    return {
        "org.apache.kafka.coordinator.group.assignor.UniformAssignor": "uniform",
        "org.apache.kafka.coordinator.group.assignor.RangeAssignor": "range",
    }.get(name, name)
