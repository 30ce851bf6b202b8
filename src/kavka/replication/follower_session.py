"""What a leader keeps of a follower's fetch session, so that a fetch costs what has happened and not what is followed.

A follower's session may be of thousands of partitions, nearly all of which have nothing new. The partitions themselves
say which do: each knows the sessions it is in. A partition of a session is, beside idle,

    dirty      there may be records behind the follower's position, or something else that it has to be told
    touched    a mark has moved (the high watermark): told with the next answer, but no reason for one
    outside    the follower is not in the ISR: looked at with every fetch, as it may come in

Of an idle one it is known that the follower had all of it at its last fetch. Only the loop thread touches this.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kavka.replication.partition import Partition
    from kavka.replication.waiting import FetchWaiter

# What nobody says (retention has moved the start of a log) is looked for this often.
SWEEP_S = 10.0


class FollowerSession:
    """Its places in partitions are `asked`: whatever stands for the partition in the session."""

    __slots__ = ("_swept_at", "_tracked", "dirty", "fetched_at", "outside", "replica_id", "touched", "waiter")

    def __init__(self, replica_id: int, now: float) -> None:
        self.replica_id = replica_id
        self.fetched_at = now
        self.dirty: dict[Any, None] = {}
        self.touched: dict[Any, None] = {}
        self.outside: dict[Any, None] = {}
        self.waiter: FetchWaiter | None = None
        self._tracked: dict[Any, Partition] = {}
        self._swept_at = now

    # ---- one fetch

    def begin(self, changed: Iterable[Any], now: float) -> None:
        """A fetch has come that names these partitions, and means all others as they were."""
        self.fetched_at = now
        for asked in changed:
            self.dirty[asked] = None
        if self.outside:
            self.touched.update(self.outside)
        if now - self._swept_at > SWEEP_S:
            self._swept_at = now
            self.touched.update(dict.fromkeys(self._tracked))

    def to_read(self) -> list[Any]:
        touched = self.touched
        if not touched:
            return list(self.dirty)
        return [*self.dirty, *(asked for asked in touched if asked not in self.dirty)]

    def track(self, asked: Any, partition: Partition) -> None:
        """The partition was found: it says from now on when something happens to it. A session that the same broker
        left behind is out of it."""
        if self._tracked.get(asked) is partition:
            return
        for other in [one for one in partition.follower_sessions if one.replica_id == self.replica_id]:
            other.forget(partition.follower_sessions[other])
        self._tracked[asked] = partition
        partition.follower_sessions[self] = asked

    def is_level(self, asked: Any) -> None:
        """There are no records to send; whether there are marks to tell is seen when an answer is made."""
        if asked in self.dirty:
            del self.dirty[asked]
            self.touched[asked] = None

    def forget(self, asked: Any) -> None:
        partition = self._tracked.pop(asked, None)
        if partition is not None and partition.follower_sessions.get(self) is asked:
            del partition.follower_sessions[self]
        self.dirty.pop(asked, None)
        self.touched.pop(asked, None)
        self.outside.pop(asked, None)

    def close(self) -> None:
        """The session is over."""
        for asked in list(self._tracked):
            self.forget(asked)

    # ---- said by partitions

    def appended(self, asked: Any, partition: Partition) -> None:
        if asked not in self.dirty:
            self.dirty[asked] = None
            follower = partition.followers.get(self.replica_id)
            if follower is not None:
                follower.was_at_end(self.fetched_at)
        if self.waiter is not None:
            self.waiter.check()

    def changed(self, asked: Any) -> None:
        """Who leads it, or whether it can be read at all: that has to be told now."""
        self.dirty[asked] = None
        if self.waiter is not None:
            self.waiter.abandon()
