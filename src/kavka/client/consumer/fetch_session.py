"""[pure] Fetch sessions: after a first full request, a broker is only told what changed, and only tells what is new.

The broker remembers partitions and offsets under a session id; requests of a session are numbered by its epoch.

    epoch 0: begin a session with all partitions that the request names (id 0, or that of one to replace)
    epoch n: partitions that are named are added or changed, forgotten ones removed, all others as they were
    epoch -1: end it
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from kavka.common.errors import ErrorCode
from kavka.common.types import TopicPartition
from kavka.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, ForgottenTopic
from kavka.protocol.primitives import ZERO_UUID

FIRST_WITH_TOPIC_IDS = 13
LAST_WITH_NAMES = 12
_MAX_EPOCH = 0x7FFFFFFF


class Wanted(NamedTuple):
    """What is asked of one partition."""

    topic_id: UUID
    offset: int
    leader_epoch: int
    max_bytes: int


class FetchSession:
    """The session with one broker."""

    def __init__(self) -> None:
        self.session_id = 0
        self.epoch = 0
        self.partitions: dict[TopicPartition, Wanted] = {}
        """What the broker has been told."""
        self.names: dict[UUID, str] = {}
        self._by_id = False

    def request(self, wanted: dict[TopicPartition, Wanted]) -> tuple[FetchRequest, int | None]:
        """The request for these partitions and no others, and the highest version it may be sent in (None: any)."""
        by_id = all(one.topic_id != ZERO_UUID for one in wanted.values())
        if by_id != self._by_id:
            # A session goes by ids or by names, all of it.
            self.epoch = 0
            self._by_id = by_id
        forgotten: list[tuple[TopicPartition, UUID]] = []
        if self.epoch == 0:
            changed = wanted
            self.names.clear()
        else:
            before = self.partitions
            changed = {tp: one for tp, one in wanted.items() if before.get(tp) != one}
            for tp, one in before.items():
                now = wanted.get(tp)
                if now is None or now.topic_id != one.topic_id:
                    forgotten.append((tp, one.topic_id))
        for tp, one in changed.items():
            self.names[one.topic_id] = tp.topic
        self.partitions = dict(wanted)
        request = FetchRequest(
            session_id=self.session_id,
            session_epoch=self.epoch,
            topics=_by_topic(changed),
            forgotten_topics_data=_forgotten(forgotten),
        )
        return request, None if by_id else LAST_WITH_NAMES

    def closing(self) -> FetchRequest | None:
        """The request that ends it; None where there is nothing to end."""
        if not self.session_id:
            return None
        return FetchRequest(session_id=self.session_id, session_epoch=-1, topics=[], forgotten_topics_data=[])

    def answered(self, response: FetchResponse) -> bool:
        """Whether the answer is one of records; False where the session is to begin anew."""
        code = response.error_code
        if code:
            if code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                self.session_id = 0
            self.epoch = 0
            return False
        if response.session_id == 0:
            # The broker keeps none, or no more: each request is a full one.
            self.session_id = self.epoch = 0
        else:
            self.session_id = response.session_id
            self.epoch = 1 if self.epoch in (0, _MAX_EPOCH) else self.epoch + 1
        return True

    def failed(self) -> None:
        """No answer: what the broker knows of the session is not known. The next request begins a new one in its
        place."""
        self.epoch = 0


def _by_topic(partitions: dict[TopicPartition, Wanted]) -> list[FetchTopic]:
    topics: dict[str, FetchTopic] = {}
    for tp, one in partitions.items():
        topic = topics.get(tp.topic)
        if topic is None:
            topic = topics[tp.topic] = FetchTopic(topic=tp.topic, topic_id=one.topic_id, partitions=[])
        topic.partitions.append(
            FetchPartition(
                partition=tp.partition,
                current_leader_epoch=one.leader_epoch,
                fetch_offset=one.offset,
                partition_max_bytes=one.max_bytes,
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
