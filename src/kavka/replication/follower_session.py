"""The leader's state of a follower's fetch session.

A session may have thousands of partitions, most of them without new records. Partitions notify the
sessions that contain them, so the cost of a fetch depends only on the number of changed partitions.
A partition of a session is idle, or it is

    dirty        there may be records after the fetch offset, or another change to send
    touched      the high watermark has moved: part of the next response, but no reason to respond
    outside ISR  the follower may join the ISR: checked with every fetch

The follower had all records of an idle partition at its last fetch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kavka.replication.in_sync import FollowerState
    from kavka.replication.partition import Partition
    from kavka.replication.purgatory import DelayedFetch

# Poll interval for changes that no notification announces, for example a log start offset moved by
# retention.
SWEEP_INTERVAL_S = 10.0


@dataclass(slots=True, eq=False)
class FollowerSession:
    """Owns the sets of changed partitions of one follower's session. An `entry` is the fetch
    session's object for a partition. Only the loop thread uses it."""

    replica_id: int
    fetched_at: float
    dirty: dict[Any, None] = field(default_factory=dict)
    touched: dict[Any, None] = field(default_factory=dict)
    outside_isr: dict[Any, None] = field(default_factory=dict)
    pending_fetch: DelayedFetch | None = None
    _tracked: dict[Any, Partition] = field(default_factory=dict)
    _swept_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._swept_at = self.fetched_at

    # ---- called for a fetch

    def begin(self, changed_entries: Iterable[Any], now: float) -> None:
        """Begin a fetch, which includes the partitions of `changed_entries`."""
        self.fetched_at = now
        for entry in changed_entries:
            self.dirty[entry] = None
        if self.outside_isr:
            self.touched.update(self.outside_isr)
        if now - self._swept_at > SWEEP_INTERVAL_S:
            self._swept_at = now
            self.touched.update(dict.fromkeys(self._tracked))

    def entries_to_read(self) -> list[Any]:
        return list(self.dirty | self.touched)

    def track(self, entry: Any, partition: Partition) -> None:
        """Let the partition notify this session instead of an older session of the same broker."""
        if self._tracked.get(entry) is partition:
            return
        for session, previous_entry in list(partition.follower_sessions.items()):
            if session.replica_id == self.replica_id:
                session.forget(previous_entry)
        self._tracked[entry] = partition
        partition.follower_sessions[self] = entry

    def mark_read(self, entry: Any) -> None:
        """The follower has all records. The next response includes the partition only if its
        offsets have changed."""
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

    def on_append(self, entry: Any, followers: Mapping[int, FollowerState]) -> None:
        if entry not in self.dirty:
            self.dirty[entry] = None
            follower = followers.get(self.replica_id)
            if follower is not None:
                follower.mark_caught_up(self.fetched_at)
        if self.pending_fetch is not None:
            self.pending_fetch.check()

    def on_change(self, entry: Any) -> None:
        """The leader or the availability of the partition changed: respond now."""
        self.dirty[entry] = None
        if self.pending_fetch is not None:
            self.pending_fetch.complete()
