"""A sample of a cluster, taken by `probe.py`. The objects are immutable."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any
from uuid import UUID

from kavka.client.metadata import Node
from kavka.common.types import TopicPartition


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition. `start` and `end` are the log start offset and the high watermark, `size` is the
    size of the leader's replica in bytes. Each is None if the broker did not return it."""

    topic: str
    id: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    start: int | None = None
    end: int | None = None
    size: int | None = None

    @property
    def offline(self) -> bool:
        return self.leader < 0

    @property
    def under_replicated(self) -> bool:
        return len(self.isr) < len(self.replicas)

    @property
    def preferred(self) -> bool:
        """Whether the preferred replica is the leader."""
        return bool(self.replicas) and self.leader == self.replicas[0]

    @property
    def messages(self) -> int | None:
        return None if self.start is None or self.end is None else max(0, self.end - self.start)


@dataclass(frozen=True)
class Topic:
    """A topic with its partitions."""

    name: str
    id: UUID
    internal: bool
    partitions: tuple[Partition, ...]
    disk: int | None = None
    """The size of all replicas in bytes."""

    @cached_property
    def size(self) -> int | None:
        return _sum(p.size for p in self.partitions)

    @cached_property
    def messages(self) -> int | None:
        """The number of offsets; a compacted topic has fewer messages."""
        return _sum(p.messages for p in self.partitions)

    @cached_property
    def replication(self) -> int:
        return max((len(p.replicas) for p in self.partitions), default=0)

    @cached_property
    def offline(self) -> int:
        return sum(p.offline for p in self.partitions)

    @cached_property
    def under_replicated(self) -> int:
        return sum(p.under_replicated for p in self.partitions)

    @cached_property
    def not_preferred(self) -> int:
        return sum(not p.preferred and not p.offline for p in self.partitions)

    @property
    def health(self) -> str:
        if self.offline:
            return "offline"
        return "under-replicated" if self.under_replicated else "healthy"


def _sum(values: object) -> int | None:
    """Return the sum of the values that are not None, or None if there are none."""
    present = [value for value in values if value is not None]  # type: ignore[attr-defined]
    return sum(present) if present else None


@dataclass(frozen=True, slots=True)
class LogDir:
    """A log directory. `total` and `usable` are the bytes of its disk, which Kafka reports since
    version 3.3; before that they are None."""

    path: str
    error: str
    replicas: int
    size: int
    total: int | None
    usable: int | None

    @property
    def used_share(self) -> float | None:
        if not self.total or self.usable is None:
            return None
        return 1 - self.usable / self.total


@dataclass(frozen=True, slots=True)
class Group:
    """A group. `offsets` are its committed offsets, None if the coordinator did not respond."""

    id: str
    protocol_type: str
    state: str
    type: str
    coordinator: int
    offsets: dict[TopicPartition, int] | None
    lags: dict[TopicPartition, int] | None

    @property
    def lag(self) -> int | None:
        return None if self.lags is None else sum(self.lags.values())


@dataclass(frozen=True)
class Sample:
    """The state of a cluster at the time `at`. `problems` has a line per failed request."""

    at: float
    duration: float
    cluster_id: str
    controller: int
    nodes: dict[int, Node]
    topics: dict[str, Topic]
    dirs: dict[int, tuple[LogDir, ...]]
    problems: tuple[str, ...] = ()
    groups: dict[str, Group] = field(default_factory=dict)
    groups_at: float = 0.0
    """When the groups were sampled, 0 if they have not been sampled yet. They are sampled less
    often."""
    seen_brokers: frozenset[int] = frozenset()
    """All brokers that were ever seen, except those that a user has removed from the console."""

    def compute(self) -> Sample:
        """Compute what follows from the topics. Takes about 0.1 s for 10,000 topics: call it in a
        thread."""
        for name in _OF_TOPICS:
            getattr(self, name)
        return self

    def with_changes(self, **fields: Any) -> Sample:
        """Return a sample with other fields than the topics. It keeps what was computed."""
        changed = replace(self, **fields)
        changed.__dict__.update({name: self.__dict__[name] for name in _OF_TOPICS if name in self.__dict__})
        return changed

    @property
    def weight(self) -> float:
        """The duration of the sample as a measure of the cluster's size, 0 if a request failed."""
        return 0.0 if self.problems else self.duration

    @cached_property
    def partitions(self) -> tuple[Partition, ...]:
        return tuple(p for topic in self.topics.values() for p in topic.partitions)

    @cached_property
    def offline(self) -> tuple[Partition, ...]:
        return tuple(p for p in self.partitions if p.offline)

    @cached_property
    def under_replicated(self) -> tuple[Partition, ...]:
        return tuple(p for p in self.partitions if p.under_replicated)

    @cached_property
    def missing_brokers(self) -> tuple[int, ...]:
        """Brokers that have replicas or were seen before, and are not in the cluster."""
        expected = set(self.seen_brokers)
        for p in self.partitions:
            expected.update(p.replicas)
        return tuple(sorted(expected - self.nodes.keys()))

    @cached_property
    def ends(self) -> dict[TopicPartition, int]:
        return {TopicPartition(p.topic, p.id): p.end for p in self.partitions if p.end is not None}

    def disk_of(self, broker: int) -> int | None:
        """The size of all replicas on a broker in bytes."""
        dirs = self.dirs.get(broker)
        return None if dirs is None else sum(d.size for d in dirs)


_OF_TOPICS = ("partitions", "offline", "under_replicated", "ends")
