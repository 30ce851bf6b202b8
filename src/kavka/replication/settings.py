"""Replication settings, parsed for the hot paths. The suffix of a field (_s, _ms) is its unit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

UNLIMITED = 0x7FFFFFFFFFFFFFFF


@dataclass(frozen=True, slots=True)
class ReplicationSettings:
    fetch_max_bytes: int = 1024 * 1024
    fetch_response_max_bytes: int = 10 * 1024 * 1024
    fetch_min_bytes: int = 1
    fetch_wait_max_ms: int = 500
    fetch_backoff_s: float = 1.0
    socket_timeout_s: float = 30.0
    lag_time_max_s: float = 30.0
    leader_throttled_rate: int = UNLIMITED
    follower_throttled_rate: int = UNLIMITED
    quota_samples: int = 11
    quota_sample_s: float = 1.0
    rack_aware: bool = False

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> ReplicationSettings:
        """Create the settings from parsed broker settings, keyed by Kafka's names."""
        return cls(
            fetch_max_bytes=values["replica.fetch.max.bytes"],
            fetch_response_max_bytes=values["replica.fetch.response.max.bytes"],
            fetch_min_bytes=values["replica.fetch.min.bytes"],
            fetch_wait_max_ms=values["replica.fetch.wait.max.ms"],
            fetch_backoff_s=values["replica.fetch.backoff.ms"] / 1000,
            socket_timeout_s=values["replica.socket.timeout.ms"] / 1000,
            lag_time_max_s=values["replica.lag.time.max.ms"] / 1000,
            leader_throttled_rate=values["leader.replication.throttled.rate"],
            follower_throttled_rate=values["follower.replication.throttled.rate"],
            quota_samples=values["replication.quota.window.num"],
            quota_sample_s=values["replication.quota.window.size.seconds"],
            rack_aware=(values["replica.selector.class"] or "").endswith("RackAwareReplicaSelector"),
        )
