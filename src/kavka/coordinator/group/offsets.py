"""[pure] The committed offsets of the groups of one shard.

Rules:
- A committed offset is the offset of the next record that the group reads in a partition. The last
  commit wins, even if its offset is lower.
- A commit in a transaction is pending and not visible until the transaction ends. Until then,
  a client that requires stable offsets must retry its fetch. A later commit outside the transaction
  supersedes the pending commit.
- Offsets expire `offsets.retention.minutes` after the group became empty. For a group that never
  had members, and for topics that the group no longer subscribes to, the retention starts at the
  commit. OffsetCommit versions 2 to 4 may set another retention time. An offset that an open
  transaction may change does not expire.

All changes go through the journal (`put`, `drop`), so that they can be undone until they are
written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from kavka.coordinator.group.group import OffsetExpiry
from kavka.coordinator.group.records import CommittedOffset, OffsetRecord
from kavka.coordinator.operations import Journal, inner_table, put_or_drop

TopicPartitionKey = tuple[str, int]
# Group, topic and partition.
OffsetKey = tuple[str, str, int]


class PendingOffset(NamedTuple):
    """A commit in an open transaction. `order` numbers the pending commits of the shard in log
    order. `value` is None if a later commit has superseded this commit. The partition is unstable
    until the transaction ends."""

    order: int
    value: CommittedOffset | None


@dataclass(slots=True, eq=False, repr=False)
class OffsetStore:
    """Owns the committed and the pending offsets. The shard replays records and markers into it."""

    _journal: Journal
    _groups: dict[str, dict[TopicPartitionKey, CommittedOffset]] = field(init=False, default_factory=dict)
    # Pending offsets by producer id.
    _pending: dict[int, dict[OffsetKey, PendingOffset]] = field(init=False, default_factory=dict)
    # The ids of the producers whose open transactions may change an offset.
    _unstable: dict[OffsetKey, frozenset[int]] = field(init=False, default_factory=dict)
    # Number of pending commits so far.
    _order: int = field(init=False, default=0)

    # ---- reading

    def get(self, group: str, topic: str, partition: int) -> CommittedOffset | None:
        offsets = self._groups.get(group)
        return offsets.get((topic, partition)) if offsets is not None else None

    def of_group(self, group: str) -> dict[TopicPartitionKey, CommittedOffset]:
        return self._groups.get(group, {})

    def is_unstable(self, group: str, topic: str, partition: int) -> bool:
        """Return whether an open transaction may change the offset."""
        return bool(self._unstable) and (group, topic, partition) in self._unstable

    def has_pending(self, group: str) -> bool:
        return bool(self._unstable) and any(key[0] == group for key in self._unstable)

    def pending_of(self, group: str) -> Iterator[TopicPartitionKey]:
        return ((topic, partition) for name, topic, partition in self._unstable if name == group)

    def discard(self, group: str) -> None:
        """Free the committed offsets of a group, after the shard was unloaded."""
        self._groups.pop(group, None)

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
        if value is not None:
            self._journal.put(inner_table(self._journal, self._groups, group), (topic, partition), value)
        elif (offsets := self._groups.get(group)) is not None:
            self._journal.drop(offsets, (topic, partition))
            if not offsets:
                self._journal.drop(self._groups, group)

    def _replay_pending(self, record: OffsetRecord, producer_id: int) -> None:
        group, topic, partition, value = record
        key = (group, topic, partition)
        self._order += 1
        pending = inner_table(self._journal, self._pending, producer_id)
        self._journal.put(pending, key, PendingOffset(self._order, value))
        self._journal.put(self._unstable, key, self._unstable.get(key, frozenset()) | {producer_id})

    def _supersede(self, key: OffsetKey, order: int) -> None:
        """Discard the values of the pending commits of `key` up to `order`."""
        for producer_id in self._unstable.get(key, ()):
            pending = self._pending[producer_id][key]
            if pending.order <= order:
                self._journal.put(self._pending[producer_id], key, PendingOffset(pending.order, None))

    def replay_end_of_transaction(self, producer_id: int, commit: bool) -> None:
        pending_offsets = self._pending.get(producer_id)
        if pending_offsets is None:
            return
        self._journal.drop(self._pending, producer_id)
        for key, pending in pending_offsets.items():
            other_producers = self._unstable.get(key, frozenset()) - {producer_id}
            put_or_drop(self._journal, self._unstable, key, other_producers or None)
            if commit and pending.value is not None:
                if other_producers:
                    self._supersede(key, pending.order)
                group, topic, partition = key
                offsets = inner_table(self._journal, self._groups, group)
                self._journal.put(offsets, (topic, partition), pending.value)

    # ---- removal

    def expired_tombstones(
        self, group: str, now_ms: int, retention_ms: int, expiry: OffsetExpiry
    ) -> list[OffsetRecord]:
        """Return tombstones of the group's expired offsets."""
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

    def tombstones_of_topics(self, topics: frozenset[str]) -> list[OffsetRecord]:
        """Return tombstones of the committed and pending offsets in these topics, of all groups."""
        keys = {(group, *key): None for group, offsets in self._groups.items() for key in offsets}
        keys.update(dict.fromkeys(self._unstable))
        return [OffsetRecord(group, topic, partition, None) for group, topic, partition in keys if topic in topics]
