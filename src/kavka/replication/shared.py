"""Settings, throttles, counters and services that all partitions of a broker share."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from kavka.common.metrics import Counter
from kavka.replication.settings import ReplicationSettings
from kavka.replication.staged_appends import StagedAppends
from kavka.replication.throttle import Throttle

if TYPE_CHECKING:
    from kavka.replication.partition import Partition
    from kavka.replication.partition_state import PendingIsr


class IsrSubmitter(Protocol):
    def submit(self, partition: Partition, change: PendingIsr) -> None: ...


@dataclass(slots=True, eq=False)
class Shared:
    """State that `ReplicaManager` owns, once per broker, and that partitions and fetchers read.

    `live_brokers` returns the ids of the live brokers in the metadata cache.
    """

    settings: ReplicationSettings = field(default_factory=ReplicationSettings)
    monotonic: Callable[[], float] = monotonic
    live_brokers: Callable[[], Collection[int]] = tuple
    isr_changes: IsrSubmitter | None = None
    isr_expands: Counter = field(default_factory=Counter)
    isr_shrinks: Counter = field(default_factory=Counter)
    bytes_in: Counter = field(default_factory=Counter)
    bytes_out: Counter = field(default_factory=Counter)
    leader_throttle: Throttle = field(default_factory=Throttle)
    follower_throttle: Throttle = field(default_factory=Throttle)
    staged_appends: StagedAppends = field(default_factory=StagedAppends)

    def __post_init__(self) -> None:
        self.use_settings(self.settings)

    def use_settings(self, settings: ReplicationSettings) -> None:
        self.settings = settings
        self.leader_throttle.max_rate = settings.leader_throttled_rate
        self.follower_throttle.max_rate = settings.follower_throttled_rate
        for throttle in (self.leader_throttle, self.follower_throttle):
            throttle.max_samples = settings.quota_samples
            throttle.sample_s = settings.quota_sample_s
