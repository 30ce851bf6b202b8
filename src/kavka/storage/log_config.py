"""The parsed topic configuration of a log."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

MAX_LONG = 2**63 - 1

CREATE_TIME = "CreateTime"
LOG_APPEND_TIME = "LogAppendTime"


@dataclass(frozen=True, slots=True)
class LogConfig:
    """One field per topic setting. The names are Kafka's with underscores, and the defaults are
    those of Kafka 3.9. Immutable: a change of the configuration creates a new LogConfig
    (`Log.update_config`)."""

    segment_bytes: int = 1024 * 1024 * 1024
    segment_ms: int = 7 * 24 * 3600 * 1000
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 * 1024 * 1024
    index_interval_bytes: int = 4096
    retention_ms: int = 7 * 24 * 3600 * 1000
    retention_bytes: int = -1
    max_message_bytes: int = 1024 * 1024 + 12
    cleanup_policy: tuple[str, ...] = ("delete",)
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = MAX_LONG
    delete_retention_ms: int = 24 * 3600 * 1000
    file_delete_delay_ms: int = 60_000
    flush_messages: int = MAX_LONG
    flush_ms: int = MAX_LONG
    flush_before_visible: bool = False
    preallocate: bool = False
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    message_timestamp_type: str = CREATE_TIME
    message_timestamp_before_max_ms: int = MAX_LONG
    message_timestamp_after_max_ms: int = MAX_LONG
    message_downconversion_enable: bool = True
    min_insync_replicas: int = 1
    unclean_leader_election_enable: bool = False
    leader_replication_throttled_replicas: tuple[str, ...] = ()
    follower_replication_throttled_replicas: tuple[str, ...] = ()

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> LogConfig:
        """Create the configuration from parsed topic settings, keyed by Kafka's names
        (`segment.bytes`). Missing settings have their defaults. Settings that a log does not use
        are ignored."""
        options: dict[str, Any] = {}
        for name in _FIELD_NAMES:
            value = values.get(name.replace("_", "."))
            if value is not None:
                options[name] = value
        for name in _LIST_FIELDS:
            if name in options:
                options[name] = _items(options[name])
        return cls(**options)

    @property
    def compact(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def delete(self) -> bool:
        return "delete" in self.cleanup_policy

    @property
    def max_segment_ms(self) -> int:
        """The maximum time that a segment is active. A compacted topic must also meet its maximum
        compaction lag."""
        if self.compact and self.max_compaction_lag_ms > 0:
            return min(self.max_compaction_lag_ms, self.segment_ms)
        return self.segment_ms

    @property
    def compression_level(self) -> int | None:
        """The level for `compression_type`; None if the type has no level or is `producer`."""
        level: int | None = {
            "gzip": self.compression_gzip_level,
            "lz4": self.compression_lz4_level,
            "zstd": self.compression_zstd_level,
        }.get(self.compression_type)
        return level

    def random_segment_jitter(self) -> int:
        """Return a random time (ms) by which a segment rolls earlier than after `segment.ms`, so
        that many partitions do not roll at the same time."""
        if self.segment_jitter_ms == 0:
            return 0
        return random.randrange(max(1, min(self.segment_jitter_ms, self.segment_ms)))


_FIELD_NAMES = tuple(field.name for field in fields(LogConfig))
_LIST_FIELDS = ("cleanup_policy", "leader_replication_throttled_replicas", "follower_replication_throttled_replicas")


def _items(value: str | Iterable[str]) -> tuple[str, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    return tuple(part.strip() for part in parts if part.strip())
