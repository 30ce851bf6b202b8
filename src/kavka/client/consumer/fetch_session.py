"""[pure] Fetch sessions: after a full request, requests and responses contain only changes.

The broker stores partitions and offsets under a session id. The epoch numbers the requests of a
session:

- epoch 0: start a session with all partitions of the request; a session id other than 0 names the
  session to replace
- epoch n: add or change the listed partitions, and remove the forgotten partitions
- epoch -1: close the session
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from kavka.common.errors import ErrorCode
from kavka.common.types import TopicPartition
from kavka.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, ForgottenTopic
from kavka.protocol.primitives import ZERO_UUID

# Fetch versions.
MIN_TOPIC_ID_VERSION = 13
MAX_TOPIC_NAME_VERSION = 12
_MAX_EPOCH = 0x7FFFFFFF


class FetchTarget(NamedTuple):
    """The fetch parameters of a partition."""

    topic_id: UUID
    offset: int
    leader_epoch: int
    max_bytes: int


class FetchSession:
    """Owns the client's state of the session with one broker."""

    def __init__(self) -> None:
        self.session_id = 0
        self.epoch = 0
        self.partitions: dict[TopicPartition, FetchTarget] = {}
        """The partitions of the session as of the last request."""
        self.names: dict[UUID, str] = {}
        """Topic names by topic id."""
        self._uses_topic_ids = False

    def request(self, targets: dict[TopicPartition, FetchTarget]) -> tuple[FetchRequest, int | None]:
        """Return the request that fetches exactly these partitions, and the highest API version
        that it may be sent with (None for no limit)."""
        uses_topic_ids = all(target.topic_id != ZERO_UUID for target in targets.values())
        if uses_topic_ids != self._uses_topic_ids:
            # A session uses topic ids for all partitions or for none.
            self.epoch = 0
            self._uses_topic_ids = uses_topic_ids
        forgotten: list[tuple[TopicPartition, UUID]] = []
        if self.epoch == 0:
            changed = targets
            self.names.clear()
        else:
            previous = self.partitions
            changed = {tp: target for tp, target in targets.items() if previous.get(tp) != target}
            for tp, previous_target in previous.items():
                target = targets.get(tp)
                if target is None or target.topic_id != previous_target.topic_id:
                    forgotten.append((tp, previous_target.topic_id))
        for tp, target in changed.items():
            self.names[target.topic_id] = tp.topic
        self.partitions = dict(targets)
        request = FetchRequest(
            session_id=self.session_id,
            session_epoch=self.epoch,
            topics=_by_topic(changed),
            forgotten_topics_data=_forgotten(forgotten),
        )
        return request, None if uses_topic_ids else MAX_TOPIC_NAME_VERSION

    def close_request(self) -> FetchRequest | None:
        """Return the request that closes the session, or None if there is no session."""
        if not self.session_id:
            return None
        return FetchRequest(session_id=self.session_id, session_epoch=-1, topics=[], forgotten_topics_data=[])

    def handle_response(self, response: FetchResponse) -> bool:
        """Update the session. Returns False if the response is an error; the next request then
        starts a new session."""
        code = response.error_code
        if code:
            if code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                self.session_id = 0
            self.epoch = 0
            return False
        if response.session_id == 0:
            # The broker has no session for this client: every request is a full request.
            self.session_id = self.epoch = 0
        else:
            self.session_id = response.session_id
            self.epoch = 1 if self.epoch in (0, _MAX_EPOCH) else self.epoch + 1
        return True

    def reset(self) -> None:
        """Make the next request replace the session. Called after a failed request, because the
        broker's state of the session is then unknown."""
        self.epoch = 0


def _by_topic(partitions: dict[TopicPartition, FetchTarget]) -> list[FetchTopic]:
    topics: dict[str, FetchTopic] = {}
    for tp, target in partitions.items():
        topic = topics.get(tp.topic)
        if topic is None:
            topic = topics[tp.topic] = FetchTopic(topic=tp.topic, topic_id=target.topic_id, partitions=[])
        topic.partitions.append(
            FetchPartition(
                partition=tp.partition,
                current_leader_epoch=target.leader_epoch,
                fetch_offset=target.offset,
                partition_max_bytes=target.max_bytes,
            )
        )
    return list(topics.values())


def _forgotten(partitions: list[tuple[TopicPartition, UUID]]) -> list[ForgottenTopic]:
    topics: dict[tuple[str, UUID], ForgottenTopic] = {}
    for tp, topic_id in partitions:
        topic = topics.get((tp.topic, topic_id))
        if topic is None:
            topic = topics[tp.topic, topic_id] = ForgottenTopic(topic=tp.topic, topic_id=topic_id, partitions=[])
        topic.partitions.append(tp.partition)
    return list(topics.values())
