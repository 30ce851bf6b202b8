"""[pure] The committed offsets of the groups of one shard.

The rules
- An offset is what the group will read next in a partition. The last commit counts, also when it goes back.
- A commit inside a transaction is pending until the transaction ends: nobody sees it before, and who asks for stable
  offsets is told to wait. A commit outside it that comes later in the log wins over one that was pending before it.
- Offsets are forgotten `offsets.retention.minutes` after the group got empty; those of a group that nobody ever
  joined, and of topics that the group's consumers no longer subscribe to, that long after their commit. A commit of
  versions 2 to 4 may bring a time of its own. Nothing is forgotten that a transaction may still change.

All changes go through the journal (`put`, `drop`), so that they can be undone while they are not in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from kavka.coordinator.group.records import CommittedOffset, OffsetRecord
from kavka.coordinator.operations import Journal

TopicPartitionKey = tuple[str, int]
OffsetKey = tuple[str, str, int]


class PendingOffset(NamedTuple):
    """A commit in an open transaction. `order` is its place in the log among those of the shard; `value` None where it
    was overtaken by a later commit (it still makes the partition unstable)."""

    order: int
    value: CommittedOffset | None


class OffsetStore:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._groups: dict[str, dict[TopicPartitionKey, CommittedOffset]] = {}
        # By producer id, then by group, topic and partition; and the producers by the latter.
        self._pending: dict[int, dict[OffsetKey, PendingOffset]] = {}
        self._unstable: dict[OffsetKey, frozenset[int]] = {}
        self._order = 0

    # ---- reading

    def get(self, group: str, topic: str, partition: int) -> CommittedOffset | None:
        offsets = self._groups.get(group)
        return offsets.get((topic, partition)) if offsets is not None else None

    def of_group(self, group: str) -> dict[TopicPartitionKey, CommittedOffset]:
        return self._groups.get(group, {})

    def groups(self) -> Iterable[str]:
        return list(self._groups)

    def has_offsets(self, group: str) -> bool:
        return bool(self._groups.get(group))

    def is_unstable(self, group: str, topic: str, partition: int) -> bool:
        """Whether a transaction that is not over may change the offset."""
        return bool(self._unstable) and (group, topic, partition) in self._unstable

    def has_pending(self, group: str) -> bool:
        return bool(self._unstable) and any(key[0] == group for key in self._unstable)

    def pending_of(self, group: str) -> Iterator[TopicPartitionKey]:
        return ((topic, partition) for name, topic, partition in self._unstable if name == group)

    def count(self) -> int:
        return sum(map(len, self._groups.values()))

    # ---- replay

    def replay(self, record: OffsetRecord, producer_id: int = -1) -> None:
        group, topic, partition, value = record
        if producer_id >= 0:
            self._replay_pending(record, producer_id)
            return
        if self._unstable:
            self._overtake((group, topic, partition), self._order)
        offsets = self._groups.get(group)
        if offsets is None:
            if value is None:
                return
            offsets = {}
            self._journal.put(self._groups, group, offsets)
        if value is not None:
            self._journal.put(offsets, (topic, partition), value)
        else:
            self._journal.drop(offsets, (topic, partition))
            if not offsets:
                self._journal.drop(self._groups, group)

    def _replay_pending(self, record: OffsetRecord, producer_id: int) -> None:
        group, topic, partition, value = record
        key = (group, topic, partition)
        self._order += 1
        of_producer = self._pending.get(producer_id)
        if of_producer is None:
            of_producer = {}
            self._journal.put(self._pending, producer_id, of_producer)
        self._journal.put(of_producer, key, PendingOffset(self._order, value))
        self._journal.put(self._unstable, key, self._unstable.get(key, frozenset()) | {producer_id})

    def _overtake(self, key: OffsetKey, order: int) -> None:
        """Pending commits of `key` up to `order` will change nothing any more."""
        for producer_id in self._unstable.get(key, ()):
            pending = self._pending[producer_id][key]
            if pending.order <= order:
                self._journal.put(self._pending[producer_id], key, PendingOffset(pending.order, None))

    def replay_end_of_transaction(self, producer_id: int, commit: bool) -> None:
        ended = self._pending.get(producer_id)
        if ended is None:
            return
        self._journal.drop(self._pending, producer_id)
        for key, pending in ended.items():
            others = self._unstable.get(key, frozenset()) - {producer_id}
            if others:
                self._journal.put(self._unstable, key, others)
            else:
                self._journal.drop(self._unstable, key)
            if commit and pending.value is not None:
                if others:
                    self._overtake(key, pending.order)
                group, topic, partition = key
                offsets = self._groups.get(group)
                if offsets is None:
                    offsets = {}
                    self._journal.put(self._groups, group, offsets)
                self._journal.put(offsets, (topic, partition), pending.value)

    # ---- forgetting

    def tombstones(self, group: str, keys: Iterable[TopicPartitionKey]) -> list[OffsetRecord]:
        return [OffsetRecord(group, topic, partition, None) for topic, partition in keys]

    def expired(
        self,
        group: str,
        base_of: Callable[[CommittedOffset], int],
        now_ms: int,
        retention_ms: int,
        is_kept: Callable[[str], bool] | None = None,
    ) -> list[OffsetRecord]:
        """Tombstones of what may be forgotten. `base_of` says since when an offset is of no use."""
        gone = []
        for (topic, partition), value in self.of_group(group).items():
            if is_kept is not None and is_kept(topic):
                continue
            if value.expire_timestamp != -1:
                is_over = now_ms >= value.expire_timestamp
            else:
                is_over = now_ms - base_of(value) >= retention_ms
            if is_over and not self.is_unstable(group, topic, partition):
                gone.append(OffsetRecord(group, topic, partition, None))
        return gone

    def of_topics(self, topics: frozenset[str]) -> list[OffsetRecord]:
        """Tombstones of what any group has committed, or may yet have committed in a transaction, in topics that are
        gone."""
        known = {(group, *place): None for group, offsets in self._groups.items() for place in offsets}
        known.update(dict.fromkeys(self._unstable))
        return [OffsetRecord(group, topic, partition, None) for group, topic, partition in known if topic in topics]
