"""[pure] The subscription of a consumer, and the state of its assigned partitions."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from kavka.client.errors import IllegalState
from kavka.common.types import TopicPartition

NO_OFFSET = -1


@dataclass(slots=True, eq=False)
class PartitionState:
    """An assigned partition.

    `position` is the offset of the next record to return (-1 while it is unknown), and `epoch` is
    the leader epoch of the previous record. `next_offset` and `next_epoch` are the corresponding
    values for the next fetch. `version` increases whenever the position changes other than by
    reading; data that was fetched for another version is discarded. The buffer contains
    `fetched_bytes - drained_bytes` bytes of the partition. Fetches increase only `fetched_bytes`,
    and polls increase only `drained_bytes`, so no lock is needed.
    """

    tp: TopicPartition
    topic: str = field(init=False)
    partition: int = field(init=False)
    assigned: bool = True
    position: int = NO_OFFSET
    epoch: int = -1
    next_offset: int = NO_OFFSET
    next_epoch: int = -1
    version: int = 0
    reset: int | None = None
    """The timestamp (or LATEST, EARLIEST) to look up. If None, the committed offset is used."""
    paused: bool = False
    held: bool = False
    """Whether polls return no records, because the partition is being given up or other members may
    own it, or because its log was truncated."""
    validating: bool = False
    """Whether the position must be compared with the log of a new leader before fetching."""
    leader_epoch: int = -1
    preferred: int = -1
    """The broker id of the preferred read replica until `preferred_until`; -1 if there is none."""
    preferred_until: float = 0.0
    retry_at: float = 0.0
    fetch_bytes: int = 0
    """The maximum size of the next fetch; 0 for max.partition.fetch.bytes."""
    fetched_bytes: int = 0
    drained_bytes: int = 0
    high_watermark: int = NO_OFFSET
    last_stable_offset: int = NO_OFFSET
    log_start: int = NO_OFFSET

    def __post_init__(self) -> None:
        self.topic, self.partition = self.tp

    def seek(self, offset: int, epoch: int = -1) -> None:
        self.version += 1
        self.position = self.next_offset = offset
        self.epoch = self.next_epoch = epoch
        self.reset = None
        self.validating = False
        self._discard_fetched()

    def seek_to_time(self, timestamp: int | None) -> None:
        """Look up the position by timestamp. With None, use the committed offset or the reset
        policy."""
        self.version += 1
        self.position = self.next_offset = NO_OFFSET
        self.epoch = self.next_epoch = -1
        self.reset = timestamp
        self.validating = False
        self._discard_fetched()

    def fetch_again(self) -> None:
        """Discard fetched records and keep the position."""
        self.version += 1
        self.next_offset, self.next_epoch = self.position, self.epoch
        self._discard_fetched()

    def _discard_fetched(self) -> None:
        self.drained_bytes = self.fetched_bytes
        self.retry_at = 0.0

    def lag(self, read_committed: bool) -> int | None:
        """Return the lag according to the last fetch, or None if it is unknown."""
        end = self.last_stable_offset if read_committed else self.high_watermark
        if end < 0 or self.position < 0:
            return None
        return max(0, end - self.position)


class Mode(Enum):
    NONE = "nothing"
    TOPICS = "topics"
    PATTERN = "a pattern"
    SERVER_PATTERN = "a pattern matched by the broker"
    ASSIGNED = "manually assigned partitions"


class Subscriptions:
    """Owns the subscription (`mode`, `topics`, `pattern`) and the assignment (`partitions`). Only
    the loop changes them."""

    def __init__(self) -> None:
        self.mode = Mode.NONE
        self.topics: frozenset[str] = frozenset()
        self.pattern: Any = None
        self.matched = False
        """Whether the pattern was matched against the metadata of all topics."""
        self.listener: Any = None
        self.partitions: dict[TopicPartition, PartitionState] = {}
        self.group_topics: frozenset[str] = frozenset()
        """The topics of all members of the group, if this member is its leader."""

    @property
    def uses_group(self) -> bool:
        return self.mode not in (Mode.NONE, Mode.ASSIGNED)

    def subscribe(self, topics: Iterable[str], listener: Any) -> None:
        self._change_to(Mode.TOPICS)
        self.topics = frozenset(topics)
        self.listener = listener

    def subscribe_pattern(self, pattern: re.Pattern[str] | str, listener: Any, *, on_server: bool) -> None:
        self._change_to(Mode.SERVER_PATTERN if on_server else Mode.PATTERN)
        self.pattern = pattern
        self.matched = False
        self.topics = frozenset()
        self.listener = listener

    def match(self, names: Iterable[str]) -> bool:
        """Subscribe to the topics that match the pattern. Returns whether the topics changed."""
        assert self.mode is Mode.PATTERN
        topics = frozenset(name for name in names if self.pattern.fullmatch(name) is not None)
        has_changed = topics != self.topics
        self.topics, self.matched = topics, True
        return has_changed

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Assign partitions manually. Partitions that stay assigned keep their position."""
        self._change_to(Mode.ASSIGNED)
        self.listener = None
        self.set_partitions(partitions)

    def set_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        assigned = dict.fromkeys(partitions)
        for tp, state in self.partitions.items():
            if tp not in assigned:
                drop(state)
        self.partitions = {tp: self.partitions.get(tp) or PartitionState(tp) for tp in assigned}

    def unsubscribe(self) -> None:
        self.set_partitions(())
        self.mode = Mode.NONE
        self.topics = self.group_topics = frozenset()
        self.pattern = self.listener = None

    def _change_to(self, mode: Mode) -> None:
        if self.mode not in (Mode.NONE, mode):
            raise IllegalState(f"the consumer reads {self.mode.value}; unsubscribe before it reads {mode.value}")
        self.mode = mode

    def state(self, tp: TopicPartition) -> PartitionState:
        state = self.partitions.get(tp)
        if state is None:
            raise IllegalState(f"{TopicPartition(*tp)} is not assigned to this consumer")
        return state


def drop(state: PartitionState) -> None:
    """Mark the partition as unassigned and discard its fetched records."""
    state.assigned = False
    state.version += 1
