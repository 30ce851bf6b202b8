"""[pure] The committed offsets of the groups of one shard.

The rules
- An offset is the next one that the group reads in a partition. The last commit wins, even if its
  offset is lower.
- A commit in a transaction is pending until the transaction ends. It is not visible before; a
  request for stable offsets must retry. A later commit outside the transaction supersedes it.
- Offsets expire `offsets.retention.minutes` after the group became empty. Offsets of a group that
  never had members, and of topics that the group no longer subscribes to, expire that long after
  their commit. A commit of versions 2 to 4 may have its own retention. An offset that an open
  transaction may change does not expire.

All changes go through the journal (`put`, `drop`), so that they can be undone until they are
written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kavka.coordinator.group.group import OffsetExpiry
from kavka.coordinator.group.records import CommittedOffset, OffsetRecord
from kavka.coordinator.operations import Journal

TopicPartitionKey = tuple[str, int]
OffsetKey = tuple[str, str, int]


class PendingOffset(NamedTuple):
    """A commit in an open transaction. `order` is its position among the pending commits of the
    shard. `value` is None if a later commit has superseded it; the partition is still unstable."""

    order: int
    value: CommittedOffset | None


class OffsetStore:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._groups: dict[str, dict[TopicPartitionKey, CommittedOffset]] = {}
        # By producer id, then by group, topic and partition.
        self._pending: dict[int, dict[OffsetKey, PendingOffset]] = {}
        self._unstable: dict[OffsetKey, frozenset[int]] = {}
        self._order = 0

    # ---- reading

    def get(self, group: str, topic: str, partition: int) -> CommittedOffset | None:
        offsets = self._groups.get(group)
        return offsets.get((topic, partition)) if offsets is not None else None

    def of_group(self, group: str) -> dict[TopicPartitionKey, CommittedOffset]:
        return self._groups.get(group, {})

    def has_offsets(self, group: str) -> bool:
        return bool(self._groups.get(group))

    def is_unstable(self, group: str, topic: str, partition: int) -> bool:
        """Whether an open transaction may change the offset."""
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
            self._supersede((group, topic, partition), self._order)
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

    def _supersede(self, key: OffsetKey, order: int) -> None:
        """Pending commits of `key` up to `order` no longer take effect."""
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
                    self._supersede(key, pending.order)
                group, topic, partition = key
                offsets = self._groups.get(group)
                if offsets is None:
                    offsets = {}
                    self._journal.put(self._groups, group, offsets)
                self._journal.put(offsets, (topic, partition), pending.value)

    # ---- removal

    def tombstones(self, group: str, keys: Iterable[TopicPartitionKey]) -> list[OffsetRecord]:
        return [OffsetRecord(group, topic, partition, None) for topic, partition in keys]

    def expired(
        self,
        group: str,
        now_ms: int,
        retention_ms: int,
        expiry: OffsetExpiry,
    ) -> list[OffsetRecord]:
        """Tombstones of the group's expired offsets."""
        since, is_in_use = expiry
        tombstones = []
        for (topic, partition), value in self.of_group(group).items():
            if is_in_use is not None and is_in_use(topic):
                continue
            if value.expire_timestamp != -1:
                is_expired = now_ms >= value.expire_timestamp
            else:
                is_expired = now_ms - (value.commit_timestamp if since is None else since) >= retention_ms
            if is_expired and not self.is_unstable(group, topic, partition):
                tombstones.append(OffsetRecord(group, topic, partition, None))
        return tombstones

    def of_topics(self, topics: frozenset[str]) -> list[OffsetRecord]:
        """Tombstones of all groups' committed and pending offsets in deleted topics."""
        keys = {(group, *place): None for group, offsets in self._groups.items() for place in offsets}
        keys.update(dict.fromkeys(self._unstable))
        return [OffsetRecord(group, topic, partition, None) for group, topic, partition in keys if topic in topics]
