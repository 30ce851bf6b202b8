"""Incremental fetch sessions: after a full fetch, requests and responses contain only changes.

A session stores the partitions with their fetch offsets and the offsets that were last sent. An
incremental response contains only partitions with records, an error, or a changed offset. The
session epoch orders the requests of a session. After an error about the epoch, the client starts a
new session.

Sessions are lost when the process stops. The cache is bounded, and the sessions of followers have
priority (see `FetchSessionCache`). If no slot is free, the request is served without a session.
"""

from __future__ import annotations

import random
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import NO_LEADER_EPOCH
from kavka.protocol.primitives import ZERO_UUID
from kavka.replication.follower_session import FollowerSession

if TYPE_CHECKING:
    from kavka.api.fetch_reads import PartitionRead

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
NO_SESSION = 0


class FetchPartition:
    """One partition of a Fetch request. In a session it also stores the offsets that were last
    sent."""

    __slots__ = (
        "current_leader_epoch",
        "fetch_offset",
        "index",
        "last_fetched_epoch",
        "log_start_offset",
        "max_bytes",
        "sent_high_watermark",
        "sent_log_start",
        "topic",
        "topic_id",
    )

    def __init__(self, topic: str, topic_id: UUID, requested_partition: Any) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index: int = requested_partition.partition
        self.current_leader_epoch = NO_LEADER_EPOCH
        self.sent_high_watermark = -1
        self.sent_log_start = -1
        self.update(requested_partition)

    def update(self, requested_partition: Any) -> None:
        """Apply the fields of a Fetch request."""
        self.fetch_offset: int = requested_partition.fetch_offset
        self.max_bytes: int = requested_partition.partition_max_bytes
        self.last_fetched_epoch: int = requested_partition.last_fetched_epoch
        self.log_start_offset: int = requested_partition.log_start_offset
        if requested_partition.current_leader_epoch != self.current_leader_epoch:
            # The client may have ignored offsets that were sent in another epoch.
            self.current_leader_epoch = requested_partition.current_leader_epoch
            self.sent_high_watermark = self.sent_log_start = -1

    def store_sent_offsets(self, read: PartitionRead) -> bool:
        """Store the offsets of the read as sent. Return whether an incremental response must
        contain the read."""
        must_send = read.size > 0 or read.preferred_replica >= 0
        if read.high_watermark != self.sent_high_watermark:
            self.sent_high_watermark = read.high_watermark
            must_send = True
        if read.log_start_offset != self.sent_log_start:
            self.sent_log_start = read.log_start_offset
            must_send = True
        if read.error_code or read.diverging is not None:
            # The first response after an error must contain the partition.
            self.sent_high_watermark = -1
            must_send = True
        return must_send


PartitionKey = tuple[str | UUID, int]
Result = tuple[FetchPartition, "PartitionRead"]
# (whether a follower owns the session, number of partitions, session id). The lowest rank is
# evicted first.
Rank = tuple[bool, int, int]


class FetchSession:
    """The broker's state of one session. Only `FetchSessionCache` and its contexts use it."""

    __slots__ = ("created", "epoch", "follower", "id", "is_aged", "last_used", "partitions", "rank", "uses_topic_ids")

    def __init__(self, session_id: int, uses_topic_ids: bool, now: float, replica_id: int) -> None:
        self.id = session_id
        self.uses_topic_ids = uses_topic_ids
        self.epoch = 1
        self.created = self.last_used = now
        self.partitions: OrderedDict[PartitionKey, FetchPartition] = OrderedDict()
        # The position in the cache's eviction order.
        self.rank: Rank | None = None
        self.is_aged = False
        # Tracks the partitions with changes. None for a consumer.
        self.follower = FollowerSession(replica_id, now) if replica_id >= 0 else None


class FetchContext:
    """One Fetch request in its session. Selects the partitions to read and the results to send."""

    __slots__ = ("_partitions", "follower", "incremental", "session")

    def __init__(
        self,
        session: FetchSession | None,
        incremental: bool,
        partitions: Iterable[FetchPartition],
        follower: FollowerSession | None = None,
    ) -> None:
        self.session = session
        self.incremental = incremental
        self.follower = follower
        self._partitions = list(partitions)

    @property
    def partitions(self) -> list[FetchPartition]:
        """The partitions to read. An incremental fetch of a follower reads only partitions with
        changes."""
        if self.follower is None or not self.incremental:
            return self._partitions
        return self.follower.entries_to_read()

    @property
    def session_id(self) -> int:
        return self.session.id if self.session else NO_SESSION

    def select(self, results: list[Result]) -> list[Result]:
        """Return the results to send. A partition with records moves to the end of the session's
        read order."""
        session = self.session
        if session is None:
            return results
        if self.follower is not None:
            return self._select_for_follower(self.follower, results)
        selected = []
        for result in results:
            entry, read = result
            if entry.store_sent_offsets(read) or not self.incremental:
                selected.append(result)
            if read.size > 0:
                key = _key(entry, session.uses_topic_ids)
                if key in session.partitions:
                    session.partitions.move_to_end(key)
        return selected

    def _select_for_follower(self, follower: FollowerSession, results: list[Result]) -> list[Result]:
        """Return the results to send to a follower. After records or an error, the next fetch of
        the follower contains the partition. Until then the partition is not read again."""
        selected = []
        for result in results:
            entry, read = result
            if entry.store_sent_offsets(read) or not self.incremental:
                selected.append(result)
            follower.touched.pop(entry, None)
            if read.size > 0 or read.error_code or read.diverging is not None:
                follower.dirty.pop(entry, None)
        return selected


def _key(partition: FetchPartition, uses_topic_ids: bool) -> PartitionKey:
    return (partition.topic_id if uses_topic_ids else partition.topic, partition.index)


class FetchSessionCache:
    """Owns all sessions, at most `slots`. A new session evicts another session by the rules of
    Kafka's FetchSessionCache, so that consumers never evict an active follower:

    1. Any session evicts a session that was not used for `min_idle_s`.
    2. A follower's session evicts the consumer's session with the fewest partitions. If there is no
       consumer's session, it evicts the smallest session that is older than `min_idle_s` and has
       fewer partitions.
    3. A consumer's session evicts the smallest consumer's session that is older than `min_idle_s`
       and has fewer partitions.
    """

    def __init__(self, slots: int, min_idle_s: float, monotonic: Callable[[], float]) -> None:
        self._slots = slots
        self._min_idle = min_idle_s
        self._monotonic = monotonic
        # The least recently used session is the first.
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self._evictable_by_followers: list[Rank] = []
        self._evictable_by_all: list[Rank] = []

    def __len__(self) -> int:
        return len(self._sessions)

    def open(
        self, request: Any, uses_topic_ids: bool, resolve: Callable[[UUID], str | None], replica_id: int = -1
    ) -> FetchContext:
        """Return the context of a FetchRequest. `resolve` returns the topic name of a topic id.
        Raises KafkaError for an unknown session or a wrong session epoch."""
        epoch = request.session_epoch
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self.end(request.session_id)
            partitions = list(_requested_partitions(request.topics, uses_topic_ids, resolve))
            if epoch == FINAL_EPOCH or not partitions:
                return FetchContext(None, False, partitions)
            session = self._new_session(uses_topic_ids, replica_id, len(partitions))
            if session is None:
                return FetchContext(None, False, partitions)
            for partition in partitions:
                session.partitions[_key(partition, uses_topic_ids)] = partition
            self._set_rank(session, session.created)
            if session.follower is not None:
                session.follower.begin(partitions, session.last_used)
            return FetchContext(session, False, partitions, session.follower)
        session = self._sessions.get(request.session_id)
        if session is None:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_topic_ids != uses_topic_ids:
            raise KafkaError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        if (session.follower.replica_id if session.follower else -1) != max(replica_id, -1):
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        session.epoch = 1 if epoch == 0x7FFFFFFF else epoch + 1
        session.last_used = self._monotonic()
        self._sessions.move_to_end(session.id)
        follower = session.follower
        changed = self._update(session, request.topics, resolve) if request.topics else []
        for topic in request.forgotten_topics_data:
            topic_key: str | UUID = topic.topic_id if uses_topic_ids else topic.topic
            for index in topic.partitions:
                forgotten = session.partitions.pop((topic_key, index), None)
                if forgotten is not None and follower is not None:
                    follower.forget(forgotten)
        if not session.partitions:
            self.end(session.id)
            return FetchContext(None, False, ())
        self._set_rank(session, session.last_used)
        if follower is not None:
            follower.begin(changed, session.last_used)
            return FetchContext(session, True, (), follower)
        return FetchContext(session, True, session.partitions.values())

    def end(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._remove_rank(session)
            if session.follower is not None:
                session.follower.close()

    def _set_rank(self, session: FetchSession, now: float) -> None:
        """Update the session's position in the eviction order, which depends on its age and its
        number of partitions."""
        rank = (session.follower is not None, len(session.partitions), session.id)
        is_aged = now - session.created > self._min_idle
        if rank == session.rank and is_aged == session.is_aged:
            return
        self._remove_rank(session)
        session.rank, session.is_aged = rank, is_aged
        if is_aged or session.follower is None:
            insort(self._evictable_by_followers, rank)
        if is_aged:
            insort(self._evictable_by_all, rank)

    def _remove_rank(self, session: FetchSession) -> None:
        rank = session.rank
        if rank is not None:
            for ranks in (self._evictable_by_followers, self._evictable_by_all):
                position = bisect_left(ranks, rank)
                if position < len(ranks) and ranks[position] == rank:
                    del ranks[position]

    def _make_room(self, is_follower: bool, size: int, now: float) -> bool:
        """Evict a session if all slots are in use. Return whether there is a slot for a session of
        `size` partitions."""
        if len(self._sessions) < self._slots:
            return True
        if not self._sessions:
            return False
        least_recent = next(iter(self._sessions.values()))
        if now - least_recent.last_used > self._min_idle:
            self.end(least_recent.id)
            return True
        evictable = self._evictable_by_followers if is_follower else self._evictable_by_all
        if not evictable or (is_follower, size) <= evictable[0][:2]:
            return False
        self.end(evictable[0][2])
        return True

    def _update(
        self, session: FetchSession, topics: Any, resolve: Callable[[UUID], str | None]
    ) -> list[FetchPartition]:
        """Add or update the partitions of a request. Return their entries."""
        changed = []
        for topic in topics:
            topic_key: str | UUID = topic.topic_id if session.uses_topic_ids else topic.topic
            for requested_partition in topic.partitions:
                entry = session.partitions.get((topic_key, requested_partition.partition))
                if entry is not None:
                    entry.update(requested_partition)
                else:
                    topic_name = (resolve(topic.topic_id) or "") if session.uses_topic_ids else topic.topic
                    entry = FetchPartition(topic_name, topic.topic_id, requested_partition)
                    session.partitions[(topic_key, requested_partition.partition)] = entry
                changed.append(entry)
        return changed

    def _new_session(self, uses_topic_ids: bool, replica_id: int, size: int) -> FetchSession | None:
        now = self._monotonic()
        if not self._make_room(replica_id >= 0, size, now):
            return None
        session_id = NO_SESSION
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = random.getrandbits(31)
        session = self._sessions[session_id] = FetchSession(session_id, uses_topic_ids, now, replica_id)
        return session


def _requested_partitions(
    topics: Any, uses_topic_ids: bool, resolve: Callable[[UUID], str | None]
) -> Iterable[FetchPartition]:
    for topic in topics:
        name = (resolve(topic.topic_id) or "") if uses_topic_ids else topic.topic
        topic_id = topic.topic_id if uses_topic_ids else ZERO_UUID
        for requested_partition in topic.partitions:
            yield FetchPartition(name, topic_id, requested_partition)
