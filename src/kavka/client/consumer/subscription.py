"""[pure] What the consumer reads, and how far it is."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum
from typing import Any

from kavka.client.errors import IllegalState
from kavka.common.types import TopicPartition

NO_OFFSET = -1


class PartitionState:
    """One assigned partition.

    `position` is the offset of the next record that the program gets, -1 while that is not known; `epoch` is the leader
    epoch of the record before it. `next_offset` and `next_epoch` are the same for what is fetched, which runs ahead.
    `version` changes with every change of the position other than reading on: what was fetched for another one is not
    used. Bytes that wait in the buffer are `fetched_bytes - drained_bytes`; the first is counted by the loop, the
    second by who polls, so that neither needs a lock.
    """

    __slots__ = (
        "assigned",
        "drained_bytes",
        "epoch",
        "fetch_bytes",
        "fetched_bytes",
        "held",
        "high_watermark",
        "last_stable_offset",
        "leader_epoch",
        "log_start",
        "next_epoch",
        "next_offset",
        "partition",
        "paused",
        "position",
        "preferred",
        "preferred_until",
        "reset",
        "retry_at",
        "topic",
        "tp",
        "validating",
        "version",
    )

    def __init__(self, tp: TopicPartition) -> None:
        self.tp = tp
        self.topic = tp.topic
        self.partition = tp.partition
        self.assigned = True
        self.position = NO_OFFSET
        self.epoch = -1
        self.next_offset = NO_OFFSET
        self.next_epoch = -1
        self.version = 0
        self.reset: int | None = None
        """The timestamp (or -1, -2) to look up for the position; None: the committed offset is asked for first."""
        self.paused = False
        self.held = False
        """To be given up: nothing more is handed out."""
        self.validating = False
        self.leader_epoch = -1
        self.preferred = -1
        self.preferred_until = 0.0
        self.retry_at = 0.0
        self.fetch_bytes = 0
        """How much to ask for at a time; 0: what the setting says."""
        self.fetched_bytes = 0
        self.drained_bytes = 0
        self.high_watermark = NO_OFFSET
        self.last_stable_offset = NO_OFFSET
        self.log_start = NO_OFFSET

    @property
    def buffered(self) -> int:
        return self.fetched_bytes - self.drained_bytes

    def seek(self, offset: int, epoch: int = -1) -> None:
        self.version += 1
        self.position = self.next_offset = offset
        self.epoch = self.next_epoch = epoch
        self.reset = None
        self.validating = False
        self._forget_fetched()

    def seek_to_time(self, timestamp: int | None) -> None:
        """The position is to be looked up; None: it is the committed one, or what the reset policy says."""
        self.version += 1
        self.position = self.next_offset = NO_OFFSET
        self.epoch = self.next_epoch = -1
        self.reset = timestamp
        self.validating = False
        self._forget_fetched()

    def fetch_again(self) -> None:
        """What was fetched is not used; the position stays."""
        self.version += 1
        self.next_offset, self.next_epoch = self.position, self.epoch
        self._forget_fetched()

    def _forget_fetched(self) -> None:
        self.drained_bytes = self.fetched_bytes
        self.retry_at = 0.0

    def lag(self, read_committed: bool) -> int | None:
        end = self.last_stable_offset if read_committed else self.high_watermark
        if end < 0 or self.position < 0:
            return None
        return max(0, end - self.position)


class Mode(Enum):
    NONE = "nothing"
    TOPICS = "topics"
    PATTERN = "a pattern"
    SERVER_PATTERN = "a pattern that the broker matches"
    ASSIGNED = "partitions of its own choice"


class Subscriptions:
    """What was asked for (`mode`, `topics`, `pattern`) and what is assigned (`partitions`)."""

    def __init__(self) -> None:
        self.mode = Mode.NONE
        self.topics: frozenset[str] = frozenset()
        self.pattern: Any = None
        self.matched = False
        """Whether `topics` are what the pattern stands for, by an answer that had all topics."""
        self.listener: Any = None
        self.partitions: dict[TopicPartition, PartitionState] = {}
        self.group_topics: frozenset[str] = frozenset()
        """Of all members of the group, where this one is the leader."""

    @property
    def by_group(self) -> bool:
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
        """Take the topics that the pattern matches of these; whether that changed anything."""
        assert self.mode is Mode.PATTERN
        found = frozenset(name for name in names if self.pattern.fullmatch(name) is not None)
        changed = found != self.topics
        self.topics, self.matched = found, True
        return changed

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """By the program. Partitions that were assigned before keep their position."""
        self._change_to(Mode.ASSIGNED)
        self.listener = None
        self.set_partitions(partitions)

    def set_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        wanted = dict.fromkeys(partitions)
        for tp, state in self.partitions.items():
            if tp not in wanted:
                drop(state)
        self.partitions = {tp: self.partitions.get(tp) or PartitionState(tp) for tp in wanted}

    def unsubscribe(self) -> None:
        self.set_partitions(())
        self.mode = Mode.NONE
        self.topics = self.group_topics = frozenset()
        self.pattern = self.listener = None

    def _change_to(self, mode: Mode) -> None:
        if self.mode not in (Mode.NONE, mode):
            raise IllegalState(f"the consumer reads {self.mode.value}; unsubscribe before it is to read {mode.value}")
        self.mode = mode

    def state(self, tp: TopicPartition) -> PartitionState:
        found = self.partitions.get(tp)
        if found is None:
            raise IllegalState(f"{TopicPartition(*tp)} is not assigned to this consumer")
        return found


def drop(state: PartitionState) -> None:
    """It is not assigned any more: nothing that was fetched of it is used."""
    state.assigned = False
    state.version += 1
