"""The partitions that a fetcher copies: their states, and what a response means for each."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from kavka.common.errors import ErrorCode, KafkaError, known_code
from kavka.protocol.messages.fetch import FetchResponse, PartitionData
from kavka.replication import leader_offsets
from kavka.replication.fetcher_session import FetcherSession, FollowedPartition
from kavka.replication.fetcher_states import CopyState
from kavka.replication.partition import Partition
from kavka.replication.shared import Shared

if TYPE_CHECKING:
    from kavka.replication.peers import Peers
    from kavka.storage.log_manager import LogManager

logger = logging.getLogger(__name__)

FIRST_BACKOFF_S = 0.02
# A held request is abandoned at most this often for a partition that the leader refuses.
URGENT_ATTEMPTS = 6
# Errors that pass when the leader has applied the controller's order, usually after milliseconds.
_TRANSIENT = frozenset(
    (
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    )
)


class FollowedPartitions:
    """Owns the partitions that are copied from one broker, and the fetch session with it.

    `ReplicaFetcher` sends the requests and passes the responses to `process`. This class calls
    `fetch` when there is more to fetch; with True, a request that the leader holds is abandoned for
    it. An error of one partition does not stop the others. Only the loop thread calls it.
    """

    def __init__(
        self,
        broker_id: int,
        source: int,
        peers: Peers,
        log_manager: LogManager,
        shared: Shared,
        on_failure: Callable[[Partition, BaseException], None],
        fetch: Callable[[bool], None],
    ) -> None:
        self.by_partition: dict[tuple[str, int], FollowedPartition] = {}
        self.session = FetcherSession(self.by_partition.values)
        # The next request is sent after these flushes.
        self.flushes: set[_PendingFlush] = set()
        self._broker_id = broker_id
        self._source = source
        self._peers = peers
        self._log_manager = log_manager
        self._shared = shared
        self._on_failure = on_failure
        self._fetch = fetch
        self._loop = asyncio.get_running_loop()
        self._lookups: set[asyncio.Task[None]] = set()
        self._restart_session = False

    def add(self, partition: Partition) -> bool:
        """Copy the partition from the end of its log on, in its current leader epoch. False if its
        log cannot be written."""
        self.remove(partition.topic_partition)
        followed = FollowedPartition(partition)
        self.by_partition[partition.topic_partition] = followed
        assert partition.log is not None
        try:
            followed.role.prepare(self._log_manager)
        except (KafkaError, OSError) as error:
            self._on_partition_failure(followed, error)
            return False
        self.session.changed[followed] = None
        return True

    def remove(self, tp: tuple[str, int]) -> None:
        followed = self.by_partition.pop(tp, None)
        if followed is not None:
            self._leave_out(followed, CopyState.REMOVED)

    def clear(self) -> list[asyncio.Task[None]]:
        """Remove all partitions. Returns the cancelled tasks."""
        for tp in list(self.by_partition):
            self.remove(tp)
        lookups = list(self._lookups)
        for lookup in lookups:
            lookup.cancel()
        return lookups

    def backoff_s(self, attempts: int) -> float:
        """Short at first, up to replica.fetch.backoff.ms."""
        return min(self._shared.settings.fetch_backoff_s, FIRST_BACKOFF_S * (1 << min(attempts, 16)))

    def _leave_out(self, followed: FollowedPartition, state: CopyState) -> None:
        followed.move_to(state)
        self.session.remove(followed)

    def _delay(self, followed: FollowedPartition, seconds: float) -> None:
        self._leave_out(followed, CopyState.DELAYED)
        followed.timer = self._loop.call_later(seconds, self._resume, followed)

    def _resume(self, followed: FollowedPartition) -> None:
        if followed.is_active:
            if followed.state is CopyState.DELAYED:
                followed.move_to(CopyState.FETCHING)
            self.session.changed[followed] = None
            self._fetch(followed.is_urgent)

    def _on_partition_failure(self, followed: FollowedPartition, error: BaseException) -> None:
        """The log cannot be written. The log manager decides whether its directory is offline.
        Otherwise the fetch is retried."""
        logger.error("Copying %s from broker %d failed: %s", followed.partition.topic_partition, self._source, error)
        self._on_failure(followed.partition, error)
        if not followed.is_active:
            return
        if followed.partition.log is None:
            self._leave_out(followed, CopyState.FAILED)
        else:
            self._delay(followed, self._shared.settings.fetch_backoff_s)

    def delay_throttled(self) -> None:
        """Delay throttled partitions that lag while the quota is exceeded."""
        now = self._loop.time()
        for followed in list(self.session.changed):
            log = followed.partition.log
            if (
                log is not None
                and log.config.follower_replication_throttled_replicas
                and followed.lag != 0
                and followed.role.is_throttled
                and self._shared.follower_throttle.is_exceeded(now)
            ):
                self._delay(followed, self._shared.settings.quota_sample_s / 2)

    # ---- responses

    def process(self, response: FetchResponse) -> None:
        """Apply a response without a top-level error."""
        session = self.session
        session.on_response(response.session_id)
        in_session = session.in_session
        by_id = session.by_id
        for topic in response.responses:
            name = topic.topic_id if by_id else topic.topic
            for data in topic.partitions:
                followed = in_session.get((name, data.partition_index))
                if followed is not None:
                    try:
                        self._process(followed, data)
                    except Exception as error:
                        self._on_process_error(followed, error)
        if response.session_id == 0 or self._restart_session:
            self._restart_session = False
            session.restart()

    def _process(self, followed: FollowedPartition, data: PartitionData) -> None:
        partition, role = followed.partition, followed.role
        log = partition.log
        if log is None or partition.leader_epoch != followed.leader_epoch:
            return
        if data.error_code:
            self._on_partition_error(followed, known_code(data.error_code))
            return
        followed.attempts = 0
        followed.is_urgent = False
        diverging = data.diverging_epoch
        if diverging.epoch >= 0 or diverging.end_offset >= 0:
            role.truncate(self._log_manager, diverging.epoch, diverging.end_offset)
            # More may have to be truncated, so the offsets in this response do not count. The
            # leader sends them only once, so the session is restarted.
            self._restart_session = True
            return
        records = data.records
        if records is not None and len(records):
            if log.end_offset != followed.fetch_offset:
                raise KafkaError(
                    ErrorCode.UNKNOWN_SERVER_ERROR,
                    f"received records from offset {followed.fetch_offset} for a log that ends at {log.end_offset}",
                )
            role.append(self._log_manager, records)
            self.session.changed[followed] = None
            self._shared.bytes_in.value += len(records)
            if log.config.follower_replication_throttled_replicas and role.is_throttled:
                self._shared.follower_throttle.record(len(records), self._loop.time())
            if log.unflushed_messages >= log.config.flush_messages or log.config.flush_before_visible:
                self._flush(partition, log.end_offset)
        role.update_offsets(data.high_watermark, data.log_start_offset)
        followed.lag = max(0, data.high_watermark - log.end_offset)
        if log.start_offset != followed.sent_start_offset and followed.state is CopyState.FETCHING:
            self.session.changed[followed] = None

    def _flush(self, partition: Partition, end: int) -> None:
        """A fetch acknowledges all records before its offset, so they are flushed first where the
        topic requires it. No other request is sent meanwhile: the leader might hold it for long."""
        flush = _PendingFlush(self, end)
        self.flushes.add(flush)
        partition.pending_appends.add(flush)
        partition.advance()

    def on_flushed(self, flush: _PendingFlush) -> None:
        self.flushes.discard(flush)
        self._loop.call_soon(self._fetch, False)

    def _on_process_error(self, followed: FollowedPartition, error: Exception) -> None:
        tp = followed.partition.topic_partition
        if isinstance(error, KafkaError) and error.code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD):
            # The corruption may have happened in transit: fetch again.
            logger.error("%s: broker %d sent a corrupt batch: %s", tp, self._source, error)
            if followed.is_active:
                self._delay(followed, self._shared.settings.fetch_backoff_s)
            return
        if not isinstance(error, (KafkaError, OSError)):
            logger.error("Copying %s failed unexpectedly", tp, exc_info=error)
        self._on_partition_failure(followed, error)

    def _on_partition_error(self, followed: FollowedPartition, code: ErrorCode) -> None:
        tp = followed.partition.topic_partition
        backoff = self._shared.settings.fetch_backoff_s
        if code is ErrorCode.OFFSET_OUT_OF_RANGE or code is ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE:
            self._delay(followed, backoff)
            is_tiered = code is ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE
            earliest = leader_offsets.EARLIEST_LOCAL if is_tiered else leader_offsets.EARLIEST
            task = self._loop.create_task(self._move_into_range(followed, earliest), name=f"offset-of-{tp}")
            self._lookups.add(task)
            task.add_done_callback(self._lookups.discard)
        elif code is ErrorCode.FENCED_LEADER_EPOCH:
            # There is a newer leader. The controller will send an order to follow it.
            logger.info("%s: broker %d has a newer leader epoch than %d", tp, self._source, followed.leader_epoch)
            self._leave_out(followed, CopyState.FAILED)
        else:
            is_transient = code in _TRANSIENT
            level = logging.DEBUG if is_transient else logging.ERROR
            logger.log(level, "%s: broker %d refused a fetch: %s", tp, self._source, code.name)
            self._delay(followed, self.backoff_s(followed.attempts) if is_transient else backoff)
            followed.is_urgent = is_transient and followed.attempts < URGENT_ATTEMPTS
            followed.attempts += 1

    async def _move_into_range(self, followed: FollowedPartition, earliest: int) -> None:
        """Find a fetch offset after OFFSET_OUT_OF_RANGE. The partition is delayed meanwhile."""
        try:
            end = await self._leader_offset(followed, leader_offsets.LATEST)
            start = await self._leader_offset(followed, earliest) if followed.is_active else -1
            if not followed.is_active or followed.partition.log is None:
                return
            followed.role.move_into_range(self._log_manager, start, end)
        except (KafkaError, OSError) as error:
            logger.info(
                "%s: looking up the offsets of broker %d failed: %s",
                followed.partition.topic_partition,
                self._source,
                error,
            )
            return  # the delay's timer retries
        except Exception as error:
            self._on_process_error(followed, error)
            return
        self._resume(followed)

    async def _leader_offset(self, followed: FollowedPartition, timestamp: int) -> int:
        timeout_s = self._shared.settings.socket_timeout_s
        return await leader_offsets.leader_offset(
            self._peers, self._broker_id, self._source, followed, timestamp, timeout_s
        )


class _PendingFlush:
    """Waits in the purgatory until the copied records are flushed."""

    __slots__ = ("_end", "_followed")

    def __init__(self, followed: FollowedPartitions, end: int) -> None:
        self._followed = followed
        self._end = end

    def check(self, partition: Partition) -> None:
        log = partition.log
        if log is not None and log.flushed_offset >= min(self._end, log.end_offset):
            self._complete(partition)

    def fail(self, partition: Partition, code: ErrorCode) -> None:
        """The partition is no longer followed, or its log directory failed."""
        self._complete(partition)

    def _complete(self, partition: Partition) -> None:
        partition.pending_appends.discard(self)
        self._followed.on_flushed(self)
