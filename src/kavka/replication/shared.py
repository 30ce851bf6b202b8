"""What all partitions of a broker share: settings, throttles, counters, and the way to change an ISR."""

from __future__ import annotations

from collections.abc import Callable, Collection
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from kavka.common.metrics import Counter
from kavka.replication.settings import UNLIMITED, ReplicationSettings
from kavka.replication.throttle import Throttle

if TYPE_CHECKING:
    from kavka.replication.partition import Partition


class IsrChange:
    """A change of the ISR that the controller is asked for: one more member, or fewer."""

    __slots__ = ("expands", "given_up", "isr", "leader_epoch", "partition", "partition_epoch")

    def __init__(self, partition: Partition, isr: frozenset[int], expands: bool) -> None:
        self.given_up = False
        self.partition = partition
        self.isr = isr
        self.expands = expands
        self.leader_epoch = partition.leader_epoch
        self.partition_epoch = partition.partition_epoch

    def __repr__(self) -> str:
        return f"IsrChange({self.partition.topic_partition}, {sorted(self.isr)}, epoch {self.leader_epoch})"


class IsrSubmitter(Protocol):
    def submit(self, change: IsrChange) -> None: ...


class Shared:
    """What all partitions of a broker have in common."""

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
    )

    def __init__(self, settings: ReplicationSettings | None = None) -> None:
        self.monotonic: Callable[[], float] = monotonic
        self.alive: Callable[[], Collection[int]] = tuple
        """The ids of the brokers that are alive, as far as this one knows."""
        self.isr_changes: IsrSubmitter | None = None
        self.isr_expands = Counter()
        self.isr_shrinks = Counter()
        self.bytes_in = Counter()
        self.bytes_out = Counter()
        self.leader_throttle = Throttle(UNLIMITED)
        self.follower_throttle = Throttle(UNLIMITED)
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
