"""Settings, throttles, counters and services that all partitions of a broker share."""

from __future__ import annotations

from collections.abc import Callable, Collection
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from kavka.common.metrics import Counter
from kavka.replication.settings import UNLIMITED, ReplicationSettings
from kavka.replication.staged_appends import StagedAppends
from kavka.replication.throttle import Throttle

if TYPE_CHECKING:
    from kavka.replication.partition import Partition
    from kavka.replication.partition_state import PendingIsr


class IsrSubmitter(Protocol):
    def submit(self, partition: Partition, change: PendingIsr) -> None: ...


class Shared:
    """`ReplicaManager` owns the one instance of a broker. Partitions and fetchers read it."""

    __slots__ = (
        "alive",
        "bytes_in",
        "bytes_out",
        "follower_throttle",
        "isr_changes",
        "isr_expands",
        "isr_shrinks",
        "leader_throttle",
        "monotonic",
        "settings",
        "staged_appends",
    )

    def __init__(self, settings: ReplicationSettings | None = None) -> None:
        self.monotonic: Callable[[], float] = monotonic
        self.alive: Callable[[], Collection[int]] = tuple
        """The ids of the live brokers in the metadata cache."""
        self.isr_changes: IsrSubmitter | None = None
        self.isr_expands = Counter()
        self.isr_shrinks = Counter()
        self.bytes_in = Counter()
        self.bytes_out = Counter()
        self.leader_throttle = Throttle(UNLIMITED)
        self.follower_throttle = Throttle(UNLIMITED)
        self.staged_appends = StagedAppends()
        self.use_settings(settings or ReplicationSettings())

    def use_settings(self, settings: ReplicationSettings) -> None:
        self.settings = settings
        for throttle, rate in (
            (self.leader_throttle, settings.leader_throttled_rate),
            (self.follower_throttle, settings.follower_throttled_rate),
        ):
            throttle.rate = rate
            throttle.count = settings.quota_samples
            throttle.window_s = settings.quota_sample_s
