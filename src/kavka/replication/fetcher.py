"""Copying from one other broker the partitions that it leads.

One request is in flight at a time, for all partitions together, in a fetch session: only what changed is named. The
leader holds it until there is something to send. The answer's records are views of the frame it came in and go straight
to the logs, one write for each; then the next request leaves, all within the read that brought the answer: no task, no
turn of the loop in between.

A partition is in one of these states:

    fetching    in the session, asked for from the end of its log
    resting     left out until a time: after an error, or while a question to the leader is under way
    failed      left out until its next order: an order to follow a newer epoch, or the disk works again

What one partition meets (a full disk, a corrupt batch) is its own: the others go on. A crash at any point leaves a log
that is a prefix of what was sent; the next fetch begins at its end, and by the epoch of the last record in it the
leader finds whether that is a prefix of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kavka.common.errors import ErrorCode, KafkaError, known_code
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.fetch import (
    FetchRequest,
    FetchResponse,
    PartitionData,
    ReplicaState,
)
from kavka.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kavka.replication import follower
from kavka.replication.follower_requests import FULL_SESSION, FollowerRequests, Following
from kavka.replication.partition import Partition
from kavka.replication.shared import Shared

if TYPE_CHECKING:
    from kavka.client.connection import Connection
    from kavka.replication.peers import Peers
    from kavka.storage.log_manager import LogManager

log = logging.getLogger(__name__)

CHANNEL = "fetch"
QUESTIONS = "fetch-questions"
FIRST_BACKOFF_S = 0.02
# How long an answer that is on its way may take to begin to arrive.
ANSWER_TIME_S = 0.02
# How often the leader's answer to others is given up for a partition that it refuses.
HASTY_ATTEMPTS = 6
LATEST = -1
EARLIEST = -2
EARLIEST_LOCAL = -4
HIGHEST_FETCH = 17
LAST_WITH_NAMES = 12
_LATER = frozenset(
    (
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    )
)


class ReplicaFetcher:
    """The loop thread owns it. `add` and `remove` at any time; what is in flight of a removed one is dropped."""

    def __init__(
        self,
        broker_id: int,
        source: int,
        peers: Peers,
        log_manager: LogManager,
        shared: Shared,
        broker_epoch: Callable[[], int],
        on_failure: Callable[[Partition, BaseException], None],
    ) -> None:
        self.source = source
        self.following: dict[tuple[str, int], Following] = {}
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._peers = peers
        self._log_manager = log_manager
        self._shared = shared
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._attempts = 0
        self._backoff: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._asked: _Asked | None = None
        self._flushing: set[_Flushing] = set()
        self._session = FollowerRequests(self.following.values)
        self._tell_all_again = False
        self._closed = False

    # ---- which partitions

    def add(self, partition: Partition) -> None:
        """Copy it from the end of its log on, in the epoch it is in now."""
        self.remove(partition.topic_partition)
        one = Following(partition)
        self.following[partition.topic_partition] = one
        assert partition.log is not None
        try:
            follower.prepare(partition, self._log_manager)
        except (KafkaError, OSError) as error:
            self._partition_failed(one, error)
            return
        self._session.changed[one] = None
        if self._backoff is not None:
            # Who names it as a leader has just heard of it.
            self._backoff.cancel()
            self._backoff = None
        self._wake_soon()

    def remove(self, tp: tuple[str, int]) -> None:
        one = self.following.pop(tp, None)
        if one is not None:
            one.gone = True
            self._leave_out(one)

    def __len__(self) -> int:
        return len(self.following)

    @property
    def max_lag(self) -> int:
        """The most records that a partition is behind by."""
        return max((one.lag for one in list(self.following.values())), default=0)

    async def close(self) -> None:
        await asyncio.gather(*self.shut(), return_exceptions=True)

    def shut(self) -> list[asyncio.Task[None]]:
        """Everything ends now, but for what these tasks do when they are cancelled."""
        self._closed = True
        for tp in list(self.following):
            self.remove(tp)
        self._asked = None
        if self._backoff is not None:
            self._backoff.cancel()
        tasks = [*self._tasks, *([self._connecting] if self._connecting else [])]
        for task in tasks:
            task.cancel()
        self._peers.close_channel(self.source, CHANNEL)
        self._peers.close_channel(self.source, QUESTIONS)
        return tasks

    def _leave_out(self, one: Following) -> None:
        if one.timer is not None:
            one.timer.cancel()
            one.timer = None
        self._session.leave_out(one)

    def _rest(self, one: Following, seconds: float) -> None:
        """Leave it out for a while."""
        self._leave_out(one)
        one.resting = True
        one.timer = self._loop.call_later(seconds, self._go_on_with, one)

    def _go_on_with(self, one: Following) -> None:
        if not one.gone and not one.failed:
            one.resting = False
            one.timer = None
            self._session.changed[one] = None
            self._wake()
            if one.hurries:
                self._hurry()

    def _partition_failed(self, one: Following, error: BaseException) -> None:
        """It cannot be written to. A disk that is broken is the log manager's matter; after anything else it is tried
        again."""
        log.error("%s cannot be copied from broker %d: %s", one.partition.topic_partition, self.source, error)
        self._on_failure(one.partition, error)
        if one.partition.log is None:
            one.failed = True
            self._leave_out(one)
        else:
            self._rest(one, self._shared.settings.fetch_backoff_s)

    # ---- the connection

    def _wake_soon(self) -> None:
        """With all that one order brings."""
        self._loop.call_soon(self._wake)
        self._hurry()

    def _hurry(self) -> None:
        """A request that the leader holds until there is something to send would hold up a new partition, too: give it
        up for a new connection, unless an answer is just coming. Not the first one of a session: its answer says how to
        replace that."""
        asked, connection = self._asked, self._connection
        if self._session.epoch == FULL_SESSION:
            return
        if asked is not None and connection is not None and not asked.given_up:
            asked.given_up = True
            self._loop.call_later(ANSWER_TIME_S, self._give_up, asked, connection, connection.bytes_in)

    def _give_up(self, asked: _Asked, connection: Connection, bytes_in: int) -> None:
        if self._asked is not asked or self._closed:
            return
        asked.given_up = False
        if not self._session.changed or connection.bytes_in != bytes_in:
            return
        self._asked = None
        self._connection = None
        self._peers.close_channel(self.source, CHANNEL)
        self._session.begin()
        self._wake()

    def _wake(self) -> None:
        if self._asked is not None or self._connecting is not None or self._backoff is not None or self._flushing:
            return
        if self._closed:
            return
        if not self._session.in_session and not self._session.changed:
            return
        connection = self._connection
        if connection is None or connection.closed:
            self._connecting = self._loop.create_task(self._connect(), name=f"fetch-from-{self.source}")
            return
        try:
            self._ask(connection)
        except Exception as error:
            self._asked = None
            self._lost(error)

    async def _connect(self) -> None:
        try:
            connection = await self._peers.connection(self.source, CHANNEL)
        except (KafkaError, OSError) as error:
            self._connecting = None
            self._lost(error)
            return
        except BaseException:
            self._connecting = None
            raise
        self._connecting = None
        self._connection = connection
        self._session.begin()
        self._wake()

    def _lost(self, error: BaseException) -> None:
        """The leader is not to be reached: try again after a while, all of it."""
        if self._closed:
            return
        log.info("Broker %d cannot be fetched from: %s", self.source, error)
        if not isinstance(error, (KafkaError, OSError)):
            log.error("Fetching from broker %d failed", self.source, exc_info=error)
        self._connection = None
        self._peers.close_channel(self.source, CHANNEL)
        self._session.begin()
        self._backoff = self._loop.call_later(self._patience(self._attempts), self._try_again)
        self._attempts += 1

    def _patience(self, attempts: int) -> float:
        """How long to wait before the next attempt: soon at first, then replica.fetch.backoff.ms."""
        longest = self._shared.settings.fetch_backoff_s
        return min(longest, FIRST_BACKOFF_S * (1 << min(attempts, 16)))

    def _try_again(self) -> None:
        self._backoff = None
        self._wake()

    # ---- asking

    def _ask(self, connection: Connection) -> None:
        session = self._session
        session.choose_names_or_ids()
        settings = self._shared.settings
        version = connection.version_of(ApiKey.FETCH, HIGHEST_FETCH if session.by_id else LAST_WITH_NAMES)
        if version <= LAST_WITH_NAMES:
            session.go_by_names()
        self._hold_back()
        asked = self._asked = _Asked(self, connection)
        request = FetchRequest(
            replica_id=self._broker_id if version < 15 else -1,
            replica_state=ReplicaState(replica_id=self._broker_id, replica_epoch=self._broker_epoch()),
            max_wait_ms=settings.fetch_wait_max_ms,
            min_bytes=settings.fetch_min_bytes,
            max_bytes=settings.fetch_response_max_bytes,
            session_id=session.id,
            session_epoch=session.epoch,
            topics=session.topics(settings.fetch_max_bytes),
            forgotten_topics_data=session.forgotten(),
        )
        connection.send_to(request, version, asked, settings.socket_timeout_s)

    def _hold_back(self) -> None:
        """Throttled partitions that lag have to wait when enough has been copied lately."""
        now = self._loop.time()
        for one in list(self._session.changed):
            the_log = one.partition.log
            if (
                the_log is not None
                and the_log.config.follower_replication_throttled_replicas
                and one.lag != 0
                and one.partition.is_throttled_follower
                and self._shared.follower_throttle.is_exceeded(now)
            ):
                self._rest(one, self._shared.settings.quota_sample_s / 2)

    # ---- the answer

    def _answered(self, response: FetchResponse) -> None:
        self._attempts = 0
        if response.error_code:
            self._session_refused(response.error_code)
            return
        session = self._session
        session.answered(response.session_id)
        in_session = session.in_session
        by_id = session.by_id
        for topic in response.responses:
            name = topic.topic_id if by_id else topic.topic
            for data in topic.partitions:
                one = in_session.get((name, data.partition_index))
                if one is not None:
                    try:
                        self._take(one, data)
                    except Exception as error:
                        self._failed_to_take(one, error)
        if response.session_id == 0 or self._tell_all_again:
            self._tell_all_again = False
            session.begin()
        self._wake()

    def _session_refused(self, number: int) -> None:
        self._session.begin()
        if number in (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH):
            self._session.id = 0
            self._wake()
        else:
            self._lost(KafkaError(known_code(number), "the whole fetch was refused"))

    def _take(self, one: Following, data: PartitionData) -> None:
        partition = one.partition
        the_log = partition.log
        if the_log is None or partition.leader_epoch != one.leader_epoch:
            return
        if data.error_code:
            self._refused(one, known_code(data.error_code))
            return
        one.attempts = 0
        one.hurries = False
        if data.diverging_epoch.epoch >= 0 or data.diverging_epoch.end_offset >= 0:
            follower.truncate(partition, self._log_manager, data.diverging_epoch)
            # The marks in this answer do not count, as more may have to be cut; and a leader tells them only once.
            self._tell_all_again = True
            return
        records = data.records
        if records is not None and len(records):
            if the_log.end_offset != one.asked_from:
                raise KafkaError(
                    ErrorCode.UNKNOWN_SERVER_ERROR,
                    f"records from {one.asked_from} on came for a log that ends at {the_log.end_offset}",
                )
            follower.append(partition, self._log_manager, records)
            self._session.changed[one] = None
            self._shared.bytes_in.value += len(records)
            if the_log.config.follower_replication_throttled_replicas and partition.is_throttled_follower:
                self._shared.follower_throttle.record(len(records), self._loop.time())
            if the_log.unflushed_messages >= the_log.config.flush_messages or the_log.config.flush_before_visible:
                self._flush(one)
        follower.take_marks(partition, data.high_watermark, data.log_start_offset)
        one.lag = max(0, data.high_watermark - the_log.end_offset)
        if the_log.start_offset != one.asked_start and not one.resting:
            self._session.changed[one] = None

    def _flush(self, one: Following) -> None:
        """To ask for more is to say that all before is safe here; so first it is flushed, where that is asked for.
        Nothing else is asked for meanwhile: that request might be held for long."""
        partition = one.partition
        assert partition.log is not None
        flushing = _Flushing(self, partition.log.end_offset)
        self._flushing.add(flushing)
        partition.produce_waiters.add(flushing)
        partition.advance()

    def _failed_to_take(self, one: Following, error: Exception) -> None:
        tp = one.partition.topic_partition
        if isinstance(error, KafkaError) and error.code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD):
            # It may have been broken on the way: ask again.
            log.error("%s: broker %d sent what is corrupt: %s", tp, self.source, error)
            self._rest(one, self._shared.settings.fetch_backoff_s)
            return
        if not isinstance(error, (KafkaError, OSError)):
            log.error("Copying %s failed", tp, exc_info=error)
        self._partition_failed(one, error)

    def _refused(self, one: Following, code: ErrorCode) -> None:
        tp = one.partition.topic_partition
        backoff = self._shared.settings.fetch_backoff_s
        if code is ErrorCode.OFFSET_OUT_OF_RANGE or code is ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE:
            self._rest(one, backoff)
            # What a leader has moved to tiered storage cannot be copied from its disk.
            earliest = EARLIEST if code is ErrorCode.OFFSET_OUT_OF_RANGE else EARLIEST_LOCAL
            task = self._loop.create_task(self._find_offset(one, earliest), name=f"offset-of-{tp}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif code is ErrorCode.FENCED_LEADER_EPOCH:
            # There is a newer leader, and an order to follow it is on its way.
            log.info("%s: broker %d has a newer epoch than %d", tp, self.source, one.leader_epoch)
            one.failed = True
            self._leave_out(one)
        else:
            is_usual = code in _LATER
            level = logging.DEBUG if is_usual else logging.ERROR
            log.log(level, "%s: broker %d refuses a fetch: %s", tp, self.source, code.name)
            # After an election the leader may hear of it later than its followers: that is a matter of milliseconds.
            self._rest(one, self._patience(one.attempts) if is_usual else backoff)
            one.hurries = is_usual and one.attempts < HASTY_ATTEMPTS
            one.attempts += 1

    # ---- where to begin when the end of our log is not within the leader's

    async def _find_offset(self, one: Following, earliest: int) -> None:
        tp = one.partition.topic_partition
        try:
            end = await self._offset_of(one, LATEST)
            start = await self._offset_of(one, earliest) if not one.gone else -1
            if one.gone or one.failed or one.partition.log is None:
                return
            follower.move_into_range(one.partition, self._log_manager, start, end)
        except (KafkaError, OSError) as error:
            log.info("%s: where broker %d's log begins and ends is not known: %s", tp, self.source, error)
            return  # it rests already
        except Exception as error:
            self._failed_to_take(one, error)
            return
        if one.timer is not None:
            one.timer.cancel()
        self._go_on_with(one)

    async def _offset_of(self, one: Following, timestamp: int) -> int:
        answer = await self._peers.ask(
            self.source,
            ListOffsetsRequest(
                replica_id=self._broker_id,
                topics=[
                    ListOffsetsTopic(
                        name=one.topic,
                        partitions=[
                            ListOffsetsPartition(
                                partition_index=one.index, current_leader_epoch=one.leader_epoch, timestamp=timestamp
                            )
                        ],
                    )
                ],
            ),
            channel=QUESTIONS,
            timeout=self._shared.settings.socket_timeout_s,
        )
        found = answer.topics[0].partitions[0]
        if found.error_code:
            raise KafkaError(known_code(found.error_code))
        return int(found.offset)


class _Asked:
    """The request in flight, as the connection's place for its answer."""

    __slots__ = ("_connection", "_fetcher", "given_up")

    def __init__(self, fetcher: ReplicaFetcher, connection: Connection) -> None:
        self.given_up = False
        self._fetcher = fetcher
        self._connection = connection

    def done(self) -> bool:
        return self._fetcher._asked is not self

    def set_result(self, response: Any, /) -> None:
        fetcher = self._fetcher
        fetcher._asked = None
        try:
            fetcher._answered(response)
        except Exception as error:
            fetcher._lost(error)

    def set_exception(self, error: BaseException, /) -> None:
        fetcher = self._fetcher
        fetcher._asked = None
        if fetcher._connection is self._connection:
            fetcher._lost(error)


class _Flushing:
    """Waits, as an append does, for what was copied to be on disk."""

    __slots__ = ("_end", "_fetcher")

    def __init__(self, fetcher: ReplicaFetcher, end: int) -> None:
        self._fetcher = fetcher
        self._end = end

    def check(self, partition: Partition) -> None:
        the_log = partition.log
        if the_log is not None and the_log.flushed_offset >= min(self._end, the_log.end_offset):
            self._done(partition)

    def fail(self, partition: Partition, code: ErrorCode) -> None:
        """It is no longer followed, or its disk has failed."""
        self._done(partition)

    def _done(self, partition: Partition) -> None:
        partition.produce_waiters.discard(self)
        self._fetcher._flushing.discard(self)
        self._fetcher._wake_soon()
