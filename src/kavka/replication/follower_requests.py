"""What a follower asks a leader's broker for: its partitions, and the fetch session in which only changes are named.

changed      has to be named in the next request: new, or from another offset than before
in session   the leader was told of it, and goes on sending from there
forgotten    the leader was told of it, and is to leave it out from the next request on
"""

from __future__ import annotations

from asyncio import TimerHandle
from collections.abc import Callable, Iterable
from uuid import UUID

from kavka.protocol.messages.fetch import FetchPartition, FetchTopic, ForgottenTopic
from kavka.protocol.primitives import ZERO_UUID
from kavka.replication.partition import Partition

FULL_SESSION = 0
_MAX_EPOCH = 0x7FFFFFFF

Key = tuple[UUID | str, int]


class Following:
    """One partition as it is copied, in one epoch of its leader."""

    __slots__ = (
        "asked_from",
        "asked_start",
        "attempts",
        "failed",
        "gone",
        "hurries",
        "index",
        "lag",
        "leader_epoch",
        "partition",
        "resting",
        "timer",
        "topic",
        "topic_id",
    )

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.topic, self.index = partition.topic_partition
        self.topic_id = partition.topic_id
        self.leader_epoch = partition.leader_epoch
        self.asked_from = -1
        self.asked_start = -1
        self.attempts = 0
        self.lag = -1
        self.resting = False
        self.failed = False
        # Whether what a leader holds back for others is to be given up for it.
        self.hurries = True
        self.gone = False
        self.timer: TimerHandle | None = None


class FollowerRequests:
    """The follower's side of a fetch session. `id` and `epoch` go into the request; an epoch of 0 names everything."""

    def __init__(self, following: Callable[[], Iterable[Following]]) -> None:
        self.id = 0
        self.epoch = FULL_SESSION
        self.by_id = True
        self.in_session: dict[Key, Following] = {}
        self.changed: dict[Following, None] = {}
        self._following = following
        self._forgotten: dict[Key, Following] = {}

    def begin(self) -> None:
        """The next request names everything: what the leader knows of a session is not known."""
        self.epoch = FULL_SESSION
        self.in_session.clear()
        self._forgotten.clear()
        self.changed = {one: None for one in self._following() if not one.resting and not one.failed}

    def answered(self, session_id: int) -> None:
        self.id = session_id
        if session_id == 0:
            self.epoch = FULL_SESSION
        else:
            self.epoch = 1 if self.epoch == _MAX_EPOCH else self.epoch + 1

    def leave_out(self, one: Following) -> None:
        self.changed.pop(one, None)
        key = (one.topic_id if self.by_id else one.topic), one.index
        if self.in_session.get(key) is one:
            del self.in_session[key]
            self._forgotten[key] = one

    def go_by_names(self) -> None:
        """Ids are for brokers and topics that have them, for all partitions of a session or for none."""
        if self.by_id:
            self.by_id = False
            self.begin()

    def choose_names_or_ids(self) -> None:
        if not self.by_id or any(one.topic_id == ZERO_UUID for one in self.changed):
            by_id = all(one.topic_id != ZERO_UUID for one in self._following())
            if by_id != self.by_id:
                self.by_id = by_id
                self.begin()

    def topics(self, max_bytes: int) -> list[FetchTopic]:
        """What is to be named in the next request; it counts as told."""
        topics: dict[str | UUID, FetchTopic] = {}
        for one in self.changed:
            the_log = one.partition.log
            if the_log is None:
                continue
            name = one.topic_id if self.by_id else one.topic
            topic = topics.get(name)
            if topic is None:
                topic = topics[name] = FetchTopic(topic=one.topic, topic_id=one.topic_id, partitions=[])
            one.asked_from = the_log.end_offset
            one.asked_start = the_log.start_offset
            topic.partitions.append(
                FetchPartition(
                    partition=one.index,
                    current_leader_epoch=one.leader_epoch,
                    fetch_offset=one.asked_from,
                    last_fetched_epoch=the_log.latest_epoch,
                    log_start_offset=one.asked_start,
                    partition_max_bytes=max_bytes,
                )
            )
            key = name, one.index
            self.in_session[key] = one
            self._forgotten.pop(key, None)
        self.changed = {}
        return list(topics.values())

    def forgotten(self) -> list[ForgottenTopic]:
        """Call it after `topics`: what has come back is not forgotten."""
        if not self._forgotten:
            return []
        topics: dict[str | UUID, ForgottenTopic] = {}
        if self.epoch != FULL_SESSION:
            for (name, index), one in self._forgotten.items():
                topic = topics.get(name)
                if topic is None:
                    topic = topics[name] = ForgottenTopic(topic=one.topic, topic_id=one.topic_id, partitions=[])
                topic.partitions.append(index)
        self._forgotten = {}
        return list(topics.values())
