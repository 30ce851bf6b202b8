"""The follower's side of a fetch session: the partitions that it copies from one leader's broker.

A request names only changes. A partition is

    changed      named in the next request: new, or its fetch offset has moved
    in session   known to the leader, which continues from the last fetch offset
    forgotten    known to the leader, and removed from the session by the next request
"""

from __future__ import annotations

from asyncio import TimerHandle
from collections.abc import Callable, Iterable
from uuid import UUID

from kavka.protocol.messages.fetch import FetchPartition, FetchTopic, ForgottenTopic
from kavka.protocol.primitives import ZERO_UUID
from kavka.replication.fetcher_states import COPY_TRANSITIONS, CopyState, check
from kavka.replication.partition import Partition

FULL_SESSION = 0
_MAX_EPOCH = 0x7FFFFFFF

Key = tuple[UUID | str, int]


class FollowedPartition:
    """One partition as it is copied, in one leader epoch. The fetcher owns it."""

    __slots__ = (
        "attempts",
        "fetch_offset",
        "index",
        "is_urgent",
        "lag",
        "leader_epoch",
        "partition",
        "role",
        "sent_start_offset",
        "state",
        "timer",
        "topic",
        "topic_id",
    )

    def __init__(self, partition: Partition) -> None:
        role = partition.follower_role
        assert role is not None
        self.partition = partition
        self.role = role
        self.topic, self.index = partition.topic_partition
        self.topic_id = partition.topic_id
        self.leader_epoch = partition.leader_epoch
        self.state = CopyState.FETCHING
        self.fetch_offset = -1
        self.sent_start_offset = -1
        self.attempts = 0
        self.lag = -1
        # Whether a request that the leader holds is abandoned to name this partition.
        self.is_urgent = True
        self.timer: TimerHandle | None = None

    @property
    def is_active(self) -> bool:
        return self.state in (CopyState.FETCHING, CopyState.DELAYED)

    def move_to(self, state: CopyState) -> None:
        """Any timer of the old state is cancelled."""
        self.state = check(COPY_TRANSITIONS, self.state, state)
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class FetcherSession:
    """Owns the session's `id` and `epoch`, and which partitions the leader knows. An epoch of 0
    names all partitions."""

    def __init__(self, followed: Callable[[], Iterable[FollowedPartition]]) -> None:
        self.id = 0
        self.epoch = FULL_SESSION
        self.by_id = True
        self.in_session: dict[Key, FollowedPartition] = {}
        self.changed: dict[FollowedPartition, None] = {}
        self._followed = followed
        self._forgotten: dict[Key, FollowedPartition] = {}

    def restart(self) -> None:
        """Name all partitions in the next request: the leader's state of the session is unknown."""
        self.epoch = FULL_SESSION
        self.in_session.clear()
        self._forgotten.clear()
        self.changed = {followed: None for followed in self._followed() if followed.state is CopyState.FETCHING}

    def on_response(self, session_id: int) -> None:
        self.id = session_id
        if session_id == 0:
            self.epoch = FULL_SESSION
        else:
            self.epoch = 1 if self.epoch == _MAX_EPOCH else self.epoch + 1

    def remove(self, followed: FollowedPartition) -> None:
        self.changed.pop(followed, None)
        key = (followed.topic_id if self.by_id else followed.topic), followed.index
        if self.in_session.get(key) is followed:
            del self.in_session[key]
            self._forgotten[key] = followed

    def use_names(self) -> None:
        """The leader's version has no topic ids. A session uses ids for all partitions or none."""
        if self.by_id:
            self.by_id = False
            self.restart()

    def choose_names_or_ids(self) -> None:
        if not self.by_id or any(followed.topic_id == ZERO_UUID for followed in self.changed):
            by_id = all(followed.topic_id != ZERO_UUID for followed in self._followed())
            if by_id != self.by_id:
                self.by_id = by_id
                self.restart()

    def take_changed(self, max_bytes: int) -> list[FetchTopic]:
        """The topics of the next request. Their partitions are in the session from now on."""
        topics: dict[str | UUID, FetchTopic] = {}
        for followed in self.changed:
            log = followed.partition.log
            if log is None:
                continue
            name = followed.topic_id if self.by_id else followed.topic
            topic = topics.get(name)
            if topic is None:
                topic = topics[name] = FetchTopic(topic=followed.topic, topic_id=followed.topic_id, partitions=[])
            followed.fetch_offset = log.end_offset
            followed.sent_start_offset = log.start_offset
            topic.partitions.append(
                FetchPartition(
                    partition=followed.index,
                    current_leader_epoch=followed.leader_epoch,
                    fetch_offset=followed.fetch_offset,
                    last_fetched_epoch=log.epochs.latest,
                    log_start_offset=followed.sent_start_offset,
                    partition_max_bytes=max_bytes,
                )
            )
            key = name, followed.index
            self.in_session[key] = followed
            self._forgotten.pop(key, None)
        self.changed = {}
        return list(topics.values())

    def take_forgotten(self) -> list[ForgottenTopic]:
        """Call it after `take_changed`: a partition that was added again is not forgotten."""
        if not self._forgotten:
            return []
        topics: dict[str | UUID, ForgottenTopic] = {}
        if self.epoch != FULL_SESSION:
            for (name, index), followed in self._forgotten.items():
                topic = topics.get(name)
                if topic is None:
                    topic = topics[name] = ForgottenTopic(
                        topic=followed.topic, topic_id=followed.topic_id, partitions=[]
                    )
                topic.partitions.append(index)
        self._forgotten = {}
        return list(topics.values())
