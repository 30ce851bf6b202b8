"""The follower's side of a fetch session with the broker that leads the copied partitions.

A request contains only changes. A partition is

    changed      in the next request: it is new, or its fetch offset has moved
    in session   part of the leader's session, which continues from the last fetch offset
    forgotten    part of the leader's session, and removed by the next request
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from uuid import UUID

from kavka.protocol.messages.fetch import FetchPartition, FetchTopic, ForgottenTopic
from kavka.protocol.primitives import ZERO_UUID
from kavka.replication.fetcher_states import CopyState
from kavka.replication.follower import FollowerRole

FULL_SESSION = 0
_MAX_EPOCH = 0x7FFFFFFF

Key = tuple[UUID | str, int]


class FetcherSession:
    """Owns the session's `id` and `epoch`, and the partitions in the leader's session. A request
    with epoch 0 contains all partitions."""

    def __init__(self, roles: Callable[[], Iterable[FollowerRole]]) -> None:
        self.id = 0
        self.epoch = FULL_SESSION
        self.by_id = True
        self.in_session: dict[Key, FollowerRole] = {}
        self.changed: dict[FollowerRole, None] = {}
        self._roles = roles
        self._forgotten: dict[Key, FollowerRole] = {}

    def restart(self) -> None:
        """Send all partitions in the next request: the leader's state of the session is unknown."""
        self.epoch = FULL_SESSION
        self.in_session.clear()
        self._forgotten.clear()
        self.changed = {role: None for role in self._roles() if role.state is CopyState.FETCHING}

    def on_response(self, session_id: int) -> None:
        self.id = session_id
        if session_id == 0:
            self.epoch = FULL_SESSION
        else:
            self.epoch = 1 if self.epoch == _MAX_EPOCH else self.epoch + 1

    def remove(self, role: FollowerRole) -> None:
        self.changed.pop(role, None)
        key = (role.topic_id if self.by_id else role.topic), role.index
        if self.in_session.get(key) is role:
            del self.in_session[key]
            self._forgotten[key] = role

    def use_names(self) -> None:
        """The leader's version has no topic ids. A session uses ids for all partitions or none."""
        if self.by_id:
            self.by_id = False
            self.restart()

    def choose_names_or_ids(self) -> None:
        if not self.by_id or any(role.topic_id == ZERO_UUID for role in self.changed):
            by_id = all(role.topic_id != ZERO_UUID for role in self._roles())
            if by_id != self.by_id:
                self.by_id = by_id
                self.restart()

    def take_changed(self, max_bytes: int) -> list[FetchTopic]:
        """The topics of the next request. Their partitions are in the session from now on."""
        topics: dict[str | UUID, FetchTopic] = {}
        for role in self.changed:
            log = role.partition.log
            if log is None:
                continue
            name = role.topic_id if self.by_id else role.topic
            topic = topics.get(name)
            if topic is None:
                topic = topics[name] = FetchTopic(topic=role.topic, topic_id=role.topic_id, partitions=[])
            role.fetch_offset = log.end_offset
            role.sent_start_offset = log.start_offset
            topic.partitions.append(
                FetchPartition(
                    partition=role.index,
                    current_leader_epoch=role.leader_epoch,
                    fetch_offset=role.fetch_offset,
                    last_fetched_epoch=log.epochs.latest,
                    log_start_offset=role.sent_start_offset,
                    partition_max_bytes=max_bytes,
                )
            )
            key = name, role.index
            self.in_session[key] = role
            self._forgotten.pop(key, None)
        self.changed = {}
        return list(topics.values())

    def take_forgotten(self) -> list[ForgottenTopic]:
        """Call this after `take_changed`: a partition that was added again is not forgotten."""
        forgotten, self._forgotten = self._forgotten, {}
        topics: dict[str | UUID, ForgottenTopic] = {}
        if forgotten and self.epoch != FULL_SESSION:
            for (name, index), role in forgotten.items():
                topic = topics.setdefault(name, ForgottenTopic(topic=role.topic, topic_id=role.topic_id, partitions=[]))
                topic.partitions.append(index)
        return list(topics.values())
