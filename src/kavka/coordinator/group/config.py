"""The settings of groups and of their offsets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kavka.coordinator.group.consumer.config import ConsumerConfig, GroupValues


@dataclass(frozen=True, slots=True)
class GroupConfig:
    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    max_size: int = 0x7FFFFFFF
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_ms: int = 7 * 24 * 3_600_000
    offsets_retention_check_interval_ms: int = 600_000
    consumer: ConsumerConfig = field(default_factory=ConsumerConfig)

    @classmethod
    def of(cls, settings: Any, group_values: GroupValues) -> GroupConfig:
        return cls(
            min_session_timeout_ms=settings.group_min_session_timeout_ms,
            max_session_timeout_ms=settings.group_max_session_timeout_ms,
            initial_rebalance_delay_ms=settings.group_initial_rebalance_delay_ms,
            max_size=settings.group_max_size,
            offset_metadata_max_bytes=settings.offset_metadata_max_bytes,
            offsets_retention_ms=settings.offsets_retention_minutes * 60_000,
            offsets_retention_check_interval_ms=settings.offsets_retention_check_interval_ms,
            consumer=ConsumerConfig.of(settings, group_values),
        )
