"""The leader's state of a follower's fetch session. It makes the cost of a fetch depend on the
number of changed partitions, not on the number of followed ones.

A follower's session may have thousands of partitions, nearly all without new records. Partitions
notify the sessions that they are in. A partition of a session is idle, or it is

    dirty        there may be records after the follower's position, or another change to send
    touched      the high watermark has moved: part of the next response, but no reason to respond
    outside ISR  the follower may join the ISR: checked with every fetch

The follower had all records of an idle partition at its last fetch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kavka.replication.partition import Partition
    from kavka.replication.purgatory import DelayedFetch

# Poll interval for changes that no notification announces, for example a log start offset moved by
# retention.
SWEEP_S = 10.0


class FollowerSession:
    """Owns which partitions of one follower's session have changes. An `entry` is the object that
    stands for a partition in the fetch session. Only the loop thread uses it."""

    __slots__ = (
        "_swept_at",
        "_tracked",
        "dirty",
        "fetched_at",
        "outside_isr",
        "pending_fetch",
        "replica_id",
        "touched",
    )

    def __init__(self, replica_id: int, now: float) -> None:
        self.replica_id = replica_id
        self.fetched_at = now
        self.dirty: dict[Any, None] = {}
        self.touched: dict[Any, None] = {}
        self.outside_isr: dict[Any, None] = {}
        self.pending_fetch: DelayedFetch | None = None
        self._tracked: dict[Any, Partition] = {}
        self._swept_at = now

    # ---- called for a fetch

    def begin(self, changed: Iterable[Any], now: float) -> None:
        """A fetch has arrived that names the `changed` partitions."""
        self.fetched_at = now
        for entry in changed:
            self.dirty[entry] = None
        if self.outside_isr:
            self.touched.update(self.outside_isr)
        if now - self._swept_at > SWEEP_S:
            self._swept_at = now
            self.touched.update(dict.fromkeys(self._tracked))

    def entries_to_read(self) -> list[Any]:
        touched = self.touched
        if not touched:
            return list(self.dirty)
        return [*self.dirty, *(entry for entry in touched if entry not in self.dirty)]

    def track(self, entry: Any, partition: Partition) -> None:
        """Let the partition notify this session instead of an older session of the same broker."""
        if self._tracked.get(entry) is partition:
            return
        for other in [session for session in partition.follower_sessions if session.replica_id == self.replica_id]:
            other.forget(partition.follower_sessions[other])
        self._tracked[entry] = partition
        partition.follower_sessions[self] = entry

    def mark_read(self, entry: Any) -> None:
        """The follower has all records. Its offsets are compared when the response is built."""
        if entry in self.dirty:
            del self.dirty[entry]
            self.touched[entry] = None

    def set_in_isr(self, entry: Any, is_in_isr: bool) -> None:
        if is_in_isr:
            self.outside_isr.pop(entry, None)
        else:
            self.outside_isr[entry] = None

    def forget(self, entry: Any) -> None:
        partition = self._tracked.pop(entry, None)
        if partition is not None and partition.follower_sessions.get(self) is entry:
            del partition.follower_sessions[self]
        self.dirty.pop(entry, None)
        self.touched.pop(entry, None)
        self.outside_isr.pop(entry, None)

    def close(self) -> None:
        for entry in list(self._tracked):
            self.forget(entry)

    # ---- called by partitions

    def on_append(self, entry: Any, partition: Partition) -> None:
        if entry not in self.dirty:
            self.dirty[entry] = None
            role = partition.leader_role
            follower = role.followers.get(self.replica_id) if role is not None else None
            if follower is not None:
                follower.mark_caught_up(self.fetched_at)
        if self.pending_fetch is not None:
            self.pending_fetch.check()

    def on_change(self, entry: Any) -> None:
        """The leader or the availability of the partition changed: respond now."""
        self.dirty[entry] = None
        if self.pending_fetch is not None:
            self.pending_fetch.complete()
