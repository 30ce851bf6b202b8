"""Fetch sessions: a consumer names its partitions once, and from then on only what changed, in both directions.

The broker keeps, for each session, the partitions with their fetch positions and what it last told about them. An
incremental answer holds only partitions that have data, an error, or a moved watermark. Epochs order the requests of a
session; a request with the wrong epoch is refused and the client starts a new session.

Nothing here outlives the process. The cache is bounded, and followers come first: `FetchSessionCache` has the rules. A
request that gets no slot is served without a session.
"""

from __future__ import annotations

import random
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import NO_LEADER_EPOCH
from kavka.replication.follower_session import FollowerSession

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
NO_SESSION = 0
_ZERO_UUID = UUID(int=0)


class FetchPartition:
    """One partition that a fetch asks for; inside a session it also remembers what was last told."""

    __slots__ = (
        "current_leader_epoch",
        "fetch_offset",
        "index",
        "last_fetched_epoch",
        "log_start_offset",
        "max_bytes",
        "told_high_watermark",
        "told_log_start",
        "topic",
        "topic_id",
    )

    def __init__(self, topic: str, topic_id: UUID, asked: Any) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index: int = asked.partition
        self.current_leader_epoch = NO_LEADER_EPOCH
        self.told_high_watermark = -1
        self.told_log_start = -1
        self.update(asked)

    def update(self, asked: Any) -> None:
        self.fetch_offset: int = asked.fetch_offset
        self.max_bytes: int = asked.partition_max_bytes
        self.last_fetched_epoch: int = asked.last_fetched_epoch
        self.log_start_offset: int = asked.log_start_offset
        if asked.current_leader_epoch != self.current_leader_epoch:
            # What was told in another epoch may have been ignored for that.
            self.current_leader_epoch = asked.current_leader_epoch
            self.told_high_watermark = self.told_log_start = -1

    def must_tell(self, data: Any, size: int) -> bool:
        """Whether an incremental answer has to contain `data`; remembers it as told."""
        must = size > 0 or data.preferred_read_replica >= 0
        if data.high_watermark != self.told_high_watermark:
            self.told_high_watermark = data.high_watermark
            must = True
        if data.log_start_offset != self.told_log_start:
            self.told_log_start = data.log_start_offset
            must = True
        if data.error_code or data.diverging_epoch.epoch >= 0:
            # Forget what was told, so that the first good answer after it is not left out.
            self.told_high_watermark = -1
            must = True
        return must


Key = tuple[str | UUID, int]


# Whether the session is a follower's, its partitions, its id: the smallest is the least important.
Rank = tuple[bool, int, int]


class FetchSession:
    __slots__ = ("by_id", "created", "epoch", "follower", "id", "is_aged", "last_used", "partitions", "rank")

    def __init__(self, session_id: int, by_id: bool, now: float, replica_id: int) -> None:
        self.id = session_id
        self.by_id = by_id
        self.epoch = 1
        self.created = self.last_used = now
        self.partitions: OrderedDict[Key, FetchPartition] = OrderedDict()
        # As the cache has filed it for eviction.
        self.rank: Rank | None = None
        self.is_aged = False
        # Where a replica asks: which of the partitions have to be looked at.
        self.follower = FollowerSession(replica_id, now) if replica_id >= 0 else None

    def end(self) -> None:
        if self.follower is not None:
            self.follower.close()


class FetchContext:
    """How one fetch request is to be answered: which partitions to read, and which of them to tell about."""

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
        """Those to read: all, but of a follower's session that goes on only where something may have happened."""
        if self.follower is None or not self.incremental:
            return self._partitions
        return self.follower.to_read()

    @property
    def session_id(self) -> int:
        return self.session.id if self.session else NO_SESSION

    def to_tell(self, results: list[tuple[FetchPartition, Any, int]]) -> list[tuple[FetchPartition, Any, int]]:
        """Of (partition, data, bytes) those that go into the answer. Who got data goes to the end of the line."""
        session = self.session
        if session is None:
            return results
        if self.follower is not None:
            return self._to_tell_follower(self.follower, results)
        told = []
        for result in results:
            partition, data, size = result
            if partition.must_tell(data, size) or not self.incremental:
                told.append(result)
            if size > 0:
                key = _key(partition, session.by_id)
                if key in session.partitions:
                    session.partitions.move_to_end(key)
        return told

    def _to_tell_follower(
        self, follower: FollowerSession, results: list[tuple[FetchPartition, Any, int]]
    ) -> list[tuple[FetchPartition, Any, int]]:
        """Who is told of records, or of trouble, asks anew; until then there is nothing more to tell."""
        told = []
        for result in results:
            asked, data, size = result
            if asked.must_tell(data, size) or not self.incremental:
                told.append(result)
            follower.touched.pop(asked, None)
            if size > 0 or data.error_code or data.diverging_epoch.epoch >= 0:
                follower.dirty.pop(asked, None)
        return told


def _key(partition: FetchPartition, by_id: bool) -> Key:
    return (partition.topic_id if by_id else partition.topic, partition.index)


class FetchSessionCache:
    """`slots` sessions at most. The rules of eviction are those of Kafka's FetchSessionCache, so that any number of
    consumers leave the followers their sessions:

    1. A session that was not used for `min_idle_s` makes room for any other.
    2. A follower's session replaces the smallest session of a consumer. If all are followers', it replaces the smallest
       one that exists for `min_idle_s` and has fewer partitions.
    3. A consumer's session replaces the smallest session of a consumer that exists for `min_idle_s` and has fewer
       partitions.
    """

    def __init__(self, slots: int, min_idle_s: float, monotonic: Callable[[], float]) -> None:
        self._slots = slots
        self._min_idle = min_idle_s
        self._monotonic = monotonic
        # In the order of their last use.
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self._evictable_by_followers: list[Rank] = []
        self._evictable_by_all: list[Rank] = []

    def __len__(self) -> int:
        return len(self._sessions)

    def open(
        self, request: Any, by_id: bool, resolve: Callable[[UUID], str | None], replica_id: int = -1
    ) -> FetchContext:
        """What `request` (a FetchRequest) asks for; raises KafkaError for a wrong session or epoch."""
        epoch = request.session_epoch
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._end(request.session_id)
            partitions = list(_asked(request.topics, by_id, resolve))
            if epoch == FINAL_EPOCH or not partitions:
                return FetchContext(None, False, partitions)
            session = self._new_session(by_id, replica_id, len(partitions))
            if session is None:
                return FetchContext(None, False, partitions)
            for partition in partitions:
                session.partitions[_key(partition, by_id)] = partition
            self._file(session, session.created)
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
                gone = session.partitions.pop((name, index), None)
                if gone is not None and follower is not None:
                    follower.forget(gone)
        if not session.partitions:
            self._end(session.id)
            return FetchContext(None, False, ())
        self._file(session, session.last_used)
        if follower is not None:
            follower.begin(changed, session.last_used)
            return FetchContext(session, True, (), follower)
        return FetchContext(session, True, session.partitions.values())

    def _end(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._unfile(session)
            session.end()

    def _file(self, session: FetchSession, now: float) -> None:
        """Note what may replace the session: that depends on its age and its number of partitions."""
        rank = (session.follower is not None, len(session.partitions), session.id)
        is_aged = now - session.created > self._min_idle
        if rank == session.rank and is_aged == session.is_aged:
            return
        self._unfile(session)
        session.rank, session.is_aged = rank, is_aged
        if is_aged or session.follower is None:
            insort(self._evictable_by_followers, rank)
        if is_aged:
            insort(self._evictable_by_all, rank)

    def _unfile(self, session: FetchSession) -> None:
        rank = session.rank
        if rank is not None:
            for ranks in (self._evictable_by_followers, self._evictable_by_all):
                position = bisect_left(ranks, rank)
                if position < len(ranks) and ranks[position] == rank:
                    del ranks[position]

    def _make_room(self, is_follower: bool, size: int, now: float) -> bool:
        """Whether there is a slot for a session of `size` partitions; another session may have ended for it."""
        if len(self._sessions) < self._slots:
            return True
        if not self._sessions:
            return False
        least_used = next(iter(self._sessions.values()))
        if now - least_used.last_used > self._min_idle:
            self._end(least_used.id)
            return True
        evictable = self._evictable_by_followers if is_follower else self._evictable_by_all
        if not evictable or (is_follower, size) <= evictable[0][:2]:
            return False
        self._end(evictable[0][2])
        return True

    def _update(
        self, session: FetchSession, topics: Any, resolve: Callable[[UUID], str | None]
    ) -> list[FetchPartition]:
        """Take what a request says of partitions; returns them."""
        changed = []
        for topic in topics:
            name: str | UUID = topic.topic_id if session.by_id else topic.topic
            for asked in topic.partitions:
                known = session.partitions.get((name, asked.partition))
                if known is not None:
                    known.update(asked)
                else:
                    title = (resolve(topic.topic_id) or "") if session.by_id else topic.topic
                    known = session.partitions[(name, asked.partition)] = FetchPartition(title, topic.topic_id, asked)
                changed.append(known)
        return changed

    def _new_session(self, by_id: bool, replica_id: int, size: int) -> FetchSession | None:
        now = self._monotonic()
        if not self._make_room(replica_id >= 0, size, now):
            return None
        while True:
            session_id = random.randint(1, 0x7FFFFFFF)
            if session_id not in self._sessions:
                break
        session = self._sessions[session_id] = FetchSession(session_id, by_id, now, replica_id)
        return session


def _asked(topics: Any, by_id: bool, resolve: Callable[[UUID], str | None]) -> Iterable[FetchPartition]:
    for topic in topics:
        name = (resolve(topic.topic_id) or "") if by_id else topic.topic
        topic_id = topic.topic_id if by_id else _ZERO_UUID
        for asked in topic.partitions:
            yield FetchPartition(name, topic_id, asked)
