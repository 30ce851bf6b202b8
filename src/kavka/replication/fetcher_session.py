"""The follower's side of a fetch session with the leader of the replicated partitions.

A request contains only changes. A partition is

    changed      in the next request: it is new, or its fetch offset has moved
    in session   cached in the leader's session with the last fetch offset that was sent
    forgotten    cached in the leader's session until the next request removes it
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from uuid import UUID

from kavka.protocol.messages.fetch import FetchPartition, FetchTopic, ForgottenTopic
from kavka.protocol.primitives import ZERO_UUID
from kavka.replication.fetcher_states import CopyState
from kavka.replication.follower import FollowerRole

INITIAL_EPOCH = 0
_MAX_EPOCH = 0x7FFFFFFF

Key = tuple[UUID | str, int]


class FetcherSession:
    """Owns the session's `id` and `epoch`, and the partitions in the leader's session. A request
    with epoch 0 contains all partitions."""

    def __init__(self, roles: Callable[[], Iterable[FollowerRole]]) -> None:
        self.id = 0
        self.epoch = INITIAL_EPOCH
        self.uses_topic_ids = True
        self.in_session: dict[Key, FollowerRole] = {}
        self.changed: dict[FollowerRole, None] = {}
        self._roles = roles
        self._forgotten: dict[Key, FollowerRole] = {}

    def restart(self) -> None:
        """Send all partitions in the next request: the leader's state of the session is unknown."""
        self.epoch = INITIAL_EPOCH
        self.in_session.clear()
        self._forgotten.clear()
        self.changed = {role: None for role in self._roles() if role.state is CopyState.FETCHING}

    def on_response(self, session_id: int) -> None:
        self.id = session_id
        if session_id == 0:
            self.epoch = INITIAL_EPOCH
        else:
            self.epoch = 1 if self.epoch == _MAX_EPOCH else self.epoch + 1

    def remove(self, role: FollowerRole) -> None:
        """Stop fetching a partition. The next request removes it from the leader's session."""
        self.changed.pop(role, None)
        key = (role.topic_id if self.uses_topic_ids else role.topic), role.index
        if self.in_session.get(key) is role:
            del self.in_session[key]
            self._forgotten[key] = role

    def use_topic_names(self) -> None:
        """Use topic names: the leader's Fetch version has no topic ids. A session uses topic ids
        for all partitions or for none."""
        if self.uses_topic_ids:
            self.uses_topic_ids = False
            self.restart()

    def choose_topic_ids_or_names(self) -> None:
        """Use topic ids if all partitions have a topic id. A change restarts the session."""
        if not self.uses_topic_ids or any(role.topic_id == ZERO_UUID for role in self.changed):
            uses_topic_ids = all(role.topic_id != ZERO_UUID for role in self._roles())
            if uses_topic_ids != self.uses_topic_ids:
                self.uses_topic_ids = uses_topic_ids
                self.restart()

    def take_changed(self, max_bytes: int) -> list[FetchTopic]:
        """Return the topics of the next request, and move their partitions into the session."""
        topics: dict[str | UUID, FetchTopic] = {}
        for role in self.changed:
            log = role.partition.log
            if log is None:
                continue
            topic_key = role.topic_id if self.uses_topic_ids else role.topic
            topic = topics.get(topic_key)
            if topic is None:
                topic = topics[topic_key] = FetchTopic(topic=role.topic, topic_id=role.topic_id, partitions=[])
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
            key = topic_key, role.index
            self.in_session[key] = role
            self._forgotten.pop(key, None)
        self.changed = {}
        return list(topics.values())

    def take_forgotten(self) -> list[ForgottenTopic]:
        """Return the partitions that the next request removes from the session. Must be called
        after `take_changed`, which keeps partitions that were added again."""
        forgotten, self._forgotten = self._forgotten, {}
        topics: dict[str | UUID, ForgottenTopic] = {}
        if forgotten and self.epoch != INITIAL_EPOCH:
            for (topic_key, index), role in forgotten.items():
                topic = topics.setdefault(
                    topic_key, ForgottenTopic(topic=role.topic, topic_id=role.topic_id, partitions=[])
                )
                topic.partitions.append(index)
        return list(topics.values())
