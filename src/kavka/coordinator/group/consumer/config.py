"""The settings of consumer groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kavka.common.group_config import ASSIGNMENT_INTERVAL, HEARTBEAT_INTERVAL, SESSION_TIMEOUT

# Returns the current settings of the group with this id, by the names in `common.group_config`.
GroupValues = Callable[[str], Mapping[str, int]]


class Timing(NamedTuple):
    """Settings that can be overridden per group."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 1_000


def _timing(values: Mapping[str, int]) -> Timing:
    return Timing(values[SESSION_TIMEOUT], values[HEARTBEAT_INTERVAL], values[ASSIGNMENT_INTERVAL])


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    enabled: bool = True
    max_size: int = 0x7FFFFFFF
    assignors: tuple[str, ...] = ("uniform", "range")
    allows_upgrade: bool = True
    allows_downgrade: bool = True
    # Returns the settings of the group with this id. They may change while the broker runs.
    timing: Callable[[str], Timing] = field(default=lambda group_id: Timing())

    @classmethod
    def of(cls, settings: Any, group_values: GroupValues) -> ConsumerConfig:
        policy = settings.group_consumer_migration_policy.lower()
        return cls(
            enabled="consumer" in settings.group_coordinator_rebalance_protocols,
            max_size=settings.group_consumer_max_size,
            assignors=tuple(_short_name(name) for name in settings.group_consumer_assignors),
            allows_upgrade=policy in ("upgrade", "bidirectional"),
            allows_downgrade=policy in ("downgrade", "bidirectional"),
            timing=lambda group_id: _timing(group_values(group_id)),
        )


def _short_name(name: str) -> str:
    """Return the short name of an assignor. Kafka also accepts the class names."""
    return {
        "org.apache.kafka.coordinator.group.assignor.UniformAssignor": "uniform",
        "org.apache.kafka.coordinator.group.assignor.RangeAssignor": "range",
    }.get(name, name)
