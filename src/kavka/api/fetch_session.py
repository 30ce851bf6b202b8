"""Incremental fetch sessions: after a full fetch, requests and responses contain only changes.

A session stores the partitions with their fetch offsets and the offsets that were last sent. An
incremental response contains only partitions with records, an error, or a changed offset. The
session epoch orders the requests of a session. After a wrong epoch the client starts a new session.

Sessions are lost when the process stops. The cache is bounded, and the sessions of followers have
priority (see `FetchSessionCache`). Without a free slot the request is served without a session.
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

    def __init__(self, topic: str, topic_id: UUID, requested: Any) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index: int = requested.partition
        self.current_leader_epoch = NO_LEADER_EPOCH
        self.sent_high_watermark = -1
        self.sent_log_start = -1
        self.update(requested)

    def update(self, requested: Any) -> None:
        """Apply the fields of a Fetch request."""
        self.fetch_offset: int = requested.fetch_offset
        self.max_bytes: int = requested.partition_max_bytes
        self.last_fetched_epoch: int = requested.last_fetched_epoch
        self.log_start_offset: int = requested.log_start_offset
        if requested.current_leader_epoch != self.current_leader_epoch:
            # The client may have ignored offsets that were sent in another epoch.
            self.current_leader_epoch = requested.current_leader_epoch
            self.sent_high_watermark = self.sent_log_start = -1

    def has_changed(self, read: PartitionRead) -> bool:
        """Returns whether an incremental response must contain the read. Stores the offsets of the
        read as sent."""
        has_changed = read.size > 0 or read.preferred_replica >= 0
        if read.high_watermark != self.sent_high_watermark:
            self.sent_high_watermark = read.high_watermark
            has_changed = True
        if read.log_start_offset != self.sent_log_start:
            self.sent_log_start = read.log_start_offset
            has_changed = True
        if read.error_code or read.diverging is not None:
            # The first response after an error must contain the partition.
            self.sent_high_watermark = -1
            has_changed = True
        return has_changed


Key = tuple[str | UUID, int]
Result = tuple[FetchPartition, "PartitionRead"]
# (whether a follower owns the session, number of partitions, session id). The lowest rank is
# evicted first.
Rank = tuple[bool, int, int]


class FetchSession:
    """The broker's state of one session. Only `FetchSessionCache` and its contexts use it."""

    __slots__ = ("by_id", "created", "epoch", "follower", "id", "is_aged", "last_used", "partitions", "rank")

    def __init__(self, session_id: int, by_id: bool, now: float, replica_id: int) -> None:
        self.id = session_id
        self.by_id = by_id
        self.epoch = 1
        self.created = self.last_used = now
        self.partitions: OrderedDict[Key, FetchPartition] = OrderedDict()
        # The position in the cache's eviction order.
        self.rank: Rank | None = None
        self.is_aged = False
        # For a follower: tracks the partitions with changes.
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
        """The results to send. A partition with records moves to the end of the session's read
        order."""
        session = self.session
        if session is None:
            return results
        if self.follower is not None:
            return self._select_for_follower(self.follower, results)
        selected = []
        for result in results:
            entry, read = result
            if entry.has_changed(read) or not self.incremental:
                selected.append(result)
            if read.size > 0:
                key = _key(entry, session.by_id)
                if key in session.partitions:
                    session.partitions.move_to_end(key)
        return selected

    def _select_for_follower(self, follower: FollowerSession, results: list[Result]) -> list[Result]:
        """The results to send to a follower. After records or an error, the next fetch of the
        follower contains the partition. Until then the partition is not read again."""
        selected = []
        for result in results:
            entry, read = result
            if entry.has_changed(read) or not self.incremental:
                selected.append(result)
            follower.touched.pop(entry, None)
            if read.size > 0 or read.error_code or read.diverging is not None:
                follower.dirty.pop(entry, None)
        return selected


def _key(partition: FetchPartition, by_id: bool) -> Key:
    return (partition.topic_id if by_id else partition.topic, partition.index)


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
        self, request: Any, by_id: bool, resolve: Callable[[UUID], str | None], replica_id: int = -1
    ) -> FetchContext:
        """The context of a FetchRequest. `resolve` returns the name of a topic id. Raises
        KafkaError for an unknown session or a wrong epoch."""
        epoch = request.session_epoch
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._end(request.session_id)
            partitions = list(_requested_partitions(request.topics, by_id, resolve))
            if epoch == FINAL_EPOCH or not partitions:
                return FetchContext(None, False, partitions)
            session = self._new_session(by_id, replica_id, len(partitions))
            if session is None:
                return FetchContext(None, False, partitions)
            for partition in partitions:
                session.partitions[_key(partition, by_id)] = partition
            self._set_rank(session, session.created)
            if session.follower is not None:
                session.follower.begin(partitions, session.last_used)
            return FetchContext(session, False, partitions, session.follower)
        session = self._sessions.get(request.session_id)
        if session is None:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.by_id != by_id:
            raise KafkaError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        if (session.follower.replica_id if session.follower else -1) != max(replica_id, -1):
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        session.epoch = 1 if epoch == 0x7FFFFFFF else epoch + 1
        session.last_used = self._monotonic()
        self._sessions.move_to_end(session.id)
        follower = session.follower
        changed = self._update(session, request.topics, resolve) if request.topics else []
        for topic in request.forgotten_topics_data:
            name: str | UUID = topic.topic_id if by_id else topic.topic
            for index in topic.partitions:
                forgotten = session.partitions.pop((name, index), None)
                if forgotten is not None and follower is not None:
                    follower.forget(forgotten)
        if not session.partitions:
            self._end(session.id)
            return FetchContext(None, False, ())
        self._set_rank(session, session.last_used)
        if follower is not None:
            follower.begin(changed, session.last_used)
            return FetchContext(session, True, (), follower)
        return FetchContext(session, True, session.partitions.values())

    def _end(self, session_id: int) -> None:
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
        """Evict a session if all slots are in use. Returns whether there is a slot for a session of
        `size` partitions."""
        if len(self._sessions) < self._slots:
            return True
        if not self._sessions:
            return False
        least_recent = next(iter(self._sessions.values()))
        if now - least_recent.last_used > self._min_idle:
            self._end(least_recent.id)
            return True
        evictable = self._evictable_by_followers if is_follower else self._evictable_by_all
        if not evictable or (is_follower, size) <= evictable[0][:2]:
            return False
        self._end(evictable[0][2])
        return True

    def _update(
        self, session: FetchSession, topics: Any, resolve: Callable[[UUID], str | None]
    ) -> list[FetchPartition]:
        """Add or update the partitions of a request. Returns their entries."""
        changed = []
        for topic in topics:
            name: str | UUID = topic.topic_id if session.by_id else topic.topic
            for requested in topic.partitions:
                entry = session.partitions.get((name, requested.partition))
                if entry is not None:
                    entry.update(requested)
                else:
                    topic_name = (resolve(topic.topic_id) or "") if session.by_id else topic.topic
                    entry = FetchPartition(topic_name, topic.topic_id, requested)
                    session.partitions[(name, requested.partition)] = entry
                changed.append(entry)
        return changed

    def _new_session(self, by_id: bool, replica_id: int, size: int) -> FetchSession | None:
        now = self._monotonic()
        if not self._make_room(replica_id >= 0, size, now):
            return None
        session_id = NO_SESSION
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = random.getrandbits(31)
        session = self._sessions[session_id] = FetchSession(session_id, by_id, now, replica_id)
        return session


def _requested_partitions(topics: Any, by_id: bool, resolve: Callable[[UUID], str | None]) -> Iterable[FetchPartition]:
    for topic in topics:
        name = (resolve(topic.topic_id) or "") if by_id else topic.topic
        topic_id = topic.topic_id if by_id else ZERO_UUID
        for requested in topic.partitions:
            yield FetchPartition(name, topic_id, requested)
