"""The partitions that a fetcher copies: their states, and the handling of a response for each."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from kavka.common.errors import ErrorCode, KafkaError, known_code
from kavka.protocol.messages.fetch import FetchResponse, PartitionData
from kavka.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kavka.replication.divergence import truncation_offset
from kavka.replication.fetcher_session import FetcherSession
from kavka.replication.fetcher_states import CopyState
from kavka.replication.follower import FollowerRole
from kavka.replication.partition import Partition
from kavka.replication.shared import Shared

if TYPE_CHECKING:
    from kavka.replication.peers import Peers
    from kavka.storage.log import Log
    from kavka.storage.log_manager import LogManager
    from kavka.storage.producer_replay import PastProducers

logger = logging.getLogger(__name__)

LOOKUP_CHANNEL = "offset-lookup"
LATEST = -1
EARLIEST = -2
# A follower cannot copy records that the leader has moved to tiered storage.
EARLIEST_LOCAL = -4
FIRST_BACKOFF_S = 0.02
# A held request is abandoned at most this often for a partition that the leader refuses.
MAX_URGENT_ATTEMPTS = 6
# Errors that the leader returns until it has applied the controller's order, usually within
# milliseconds.
_TRANSIENT_ERRORS = frozenset(
    (
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    )
)


class FollowedPartitions:
    """Owns the partitions that are copied from one broker, and the fetch session with that broker.

    `ReplicaFetcher` sends the requests and passes the responses to `process`. This class calls
    `fetch` when there is more to fetch. `fetch(True)` also abandons a request that the leader
    holds. An error of one partition does not affect the other partitions. Only the loop thread
    calls it.
    """

    def __init__(
        self,
        broker_id: int,
        leader_id: int,
        peers: Peers,
        log_manager: LogManager,
        shared: Shared,
        on_failure: Callable[[Partition, BaseException], None],
        fetch: Callable[[bool], None],
    ) -> None:
        self.by_partition: dict[tuple[str, int], FollowerRole] = {}
        self.session = FetcherSession(self.by_partition.values)
        # The next request is sent after these flushes.
        self.flushes: set[_PendingFlush] = set()
        self._broker_id = broker_id
        self._leader_id = leader_id
        self._peers = peers
        self._log_manager = log_manager
        self._shared = shared
        self._on_failure = on_failure
        self._fetch = fetch
        self._loop = asyncio.get_running_loop()
        self._lookups: set[asyncio.Task[None]] = set()
        self._must_restart_session = False

    def add(self, partition: Partition) -> bool:
        """Copy the partition from the end of its log on, in its current leader epoch. Returns False
        if its log cannot be written."""
        self.remove(partition.topic_partition)
        role = self.by_partition[partition.topic_partition] = FollowerRole(partition, self._log_manager)
        assert partition.log is not None
        try:
            offset = role.prepare(partition.log)
            if offset is None or self._truncate(role, partition.log, offset):
                self.session.changed[role] = None
        except (KafkaError, OSError) as error:
            self._on_partition_failure(role, error)
            return False
        return True

    def remove(self, tp: tuple[str, int]) -> None:
        role = self.by_partition.pop(tp, None)
        if role is not None:
            self._leave_out(role, CopyState.REMOVED)

    def clear(self) -> list[asyncio.Task[None]]:
        """Remove all partitions. Returns the cancelled tasks."""
        for tp in list(self.by_partition):
            self.remove(tp)
        lookups = list(self._lookups)
        for lookup in lookups:
            lookup.cancel()
        return lookups

    def backoff_s(self, attempts: int) -> float:
        """Return the backoff, which doubles from FIRST_BACKOFF_S up to replica.fetch.backoff.ms."""
        return min(self._shared.settings.fetch_backoff_s, FIRST_BACKOFF_S * (1 << min(attempts, 16)))

    def _leave_out(self, role: FollowerRole, state: CopyState) -> None:
        role.move_to(state)
        self.session.remove(role)

    def _delay(self, role: FollowerRole, seconds: float) -> None:
        self._leave_out(role, CopyState.DELAYED)
        role.timer = self._loop.call_later(seconds, self._resume, role)

    def _resume(self, role: FollowerRole) -> None:
        if role.is_active:
            if role.state is CopyState.DELAYED:
                role.move_to(CopyState.FETCHING)
            self.session.changed[role] = None
            self._fetch(role.is_urgent)

    def _on_partition_failure(self, role: FollowerRole, error: BaseException) -> None:
        """The log cannot be written. The log manager decides whether its directory goes offline. If
        it stays online, the fetch is retried."""
        logger.error("Cannot copy %s from broker %d: %s", role.partition.topic_partition, self._leader_id, error)
        self._on_failure(role.partition, error)
        if not role.is_active:
            return
        if role.partition.log is None:
            self._leave_out(role, CopyState.FAILED)
        else:
            self._delay(role, self._shared.settings.fetch_backoff_s)

    def delay_throttled(self) -> None:
        """Delay throttled partitions that lag while the quota is exceeded."""
        now = self._loop.time()
        for role in list(self.session.changed):
            log = role.partition.log
            if (
                log is not None
                and (replicas := log.config.follower_replication_throttled_replicas)
                and role.lag != 0
                and role.partition.is_throttled(replicas)
                and self._shared.follower_throttle.is_exceeded(now)
            ):
                self._delay(role, self._shared.settings.quota_sample_s / 2)

    # ---- responses

    def process(self, response: FetchResponse) -> None:
        """Apply a response without a top-level error."""
        session = self.session
        session.on_response(response.session_id)
        in_session = session.in_session
        uses_topic_ids = session.uses_topic_ids
        for topic in response.responses:
            topic_key = topic.topic_id if uses_topic_ids else topic.topic
            for partition_data in topic.partitions:
                role = in_session.get((topic_key, partition_data.partition_index))
                if role is not None:
                    try:
                        self._process(role, partition_data)
                    except Exception as error:
                        self._on_process_error(role, error)
        if response.session_id == 0 or self._must_restart_session:
            self._must_restart_session = False
            session.restart()

    def _process(self, role: FollowerRole, partition_data: PartitionData) -> None:
        partition = role.partition
        log = partition.log
        if log is None or partition.leader_epoch != role.leader_epoch:
            return
        if partition_data.error_code:
            self._on_partition_error(role, known_code(partition_data.error_code))
            return
        role.attempts = 0
        role.is_urgent = False
        diverging = partition_data.diverging_epoch
        if diverging.epoch >= 0 or diverging.end_offset >= 0:
            # Another truncation may be needed after the next fetch.
            offset = truncation_offset(
                log.end_offset_for_epoch, log.end_offset, log.high_watermark, diverging.epoch, diverging.end_offset
            )
            self._truncate(role, log, offset)
            # The offsets in this response are ignored, because another truncation may follow. The
            # leader sends them only once, so the session is restarted.
            self._must_restart_session = True
            return
        records = partition_data.records
        if records is not None and len(records):
            if log.end_offset != role.fetch_offset:
                raise KafkaError(
                    ErrorCode.UNKNOWN_SERVER_ERROR,
                    f"received records from offset {role.fetch_offset} for a log that ends at {log.end_offset}",
                )
            role.append(log, records)
            self.session.changed[role] = None
            self._shared.bytes_in.value += len(records)
            throttled = log.config.follower_replication_throttled_replicas
            if throttled and partition.is_throttled(throttled):
                self._shared.follower_throttle.record(len(records), self._loop.time())
            if log.unflushed_messages >= log.config.flush_messages or log.config.flush_before_visible:
                self._flush(partition, log.end_offset)
        role.update_offsets(log, partition_data.high_watermark, partition_data.log_start_offset)
        role.lag = max(0, partition_data.high_watermark - log.end_offset)
        if log.start_offset != role.sent_start_offset and role.state is CopyState.FETCHING:
            self.session.changed[role] = None

    def _truncate(self, role: FollowerRole, log: Log, offset: int) -> bool:
        """Truncate the log, or return False if a worker thread must first compute the producer
        states at `offset`. The partition is delayed meanwhile; its log does not change."""
        past = role.pending_truncation = log.past_producers(offset)
        if past is None:
            role.truncate_to(log, offset)
            return True
        self._leave_out(role, CopyState.DELAYED)
        role.partition.run_in_worker(past.run, partial(self._on_producers_read, role, log, offset, past))
        return False

    def _on_producers_read(
        self, role: FollowerRole, log: Log, offset: int, past: PastProducers, error: BaseException | None
    ) -> None:
        if not role.is_active or role.pending_truncation is not past:
            return
        role.pending_truncation = None
        try:
            if role.partition.log is log:
                # The worker fails if a segment is deleted or compacted meanwhile. The states are
                # then read here: a real failure of the disk fails again.
                role.truncate_to(log, offset, past if error is None else None)
            elif role.partition.log is not None:
                # The log was moved to another directory. The next fetch finds the divergence again.
                new_offset = role.prepare(role.partition.log)
                if new_offset is not None and not self._truncate(role, role.partition.log, new_offset):
                    return
        except Exception as failure:
            self._on_process_error(role, failure)
            return
        self._resume(role)

    def _flush(self, partition: Partition, end: int) -> None:
        """A fetch acknowledges all records before its offset. If the topic requires a flush, the
        records are flushed before the next fetch. No request for other partitions is sent
        meanwhile, because the leader might hold it for long."""
        flush = _PendingFlush(self, end)
        self.flushes.add(flush)
        partition.pending_appends.add(flush)
        partition.advance()

    def on_flushed(self, flush: _PendingFlush) -> None:
        self.flushes.discard(flush)
        self._loop.call_soon(self._fetch, False)

    def _on_process_error(self, role: FollowerRole, error: Exception) -> None:
        tp = role.partition.topic_partition
        if isinstance(error, KafkaError) and error.code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD):
            # The corruption may have happened in transit: fetch again.
            logger.error("%s: broker %d sent a corrupt batch: %s", tp, self._leader_id, error)
            if role.is_active:
                self._delay(role, self._shared.settings.fetch_backoff_s)
            return
        if not isinstance(error, (KafkaError, OSError)):
            logger.error("Unexpected error in copying %s", tp, exc_info=error)
        self._on_partition_failure(role, error)

    def _on_partition_error(self, role: FollowerRole, code: ErrorCode) -> None:
        tp = role.partition.topic_partition
        backoff = self._shared.settings.fetch_backoff_s
        if code is ErrorCode.OFFSET_OUT_OF_RANGE or code is ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE:
            self._delay(role, backoff)
            earliest = EARLIEST if code is ErrorCode.OFFSET_OUT_OF_RANGE else EARLIEST_LOCAL
            task = self._loop.create_task(self._move_into_range(role, earliest), name=f"offset-of-{tp}")
            self._lookups.add(task)
            task.add_done_callback(self._lookups.discard)
        elif code is ErrorCode.FENCED_LEADER_EPOCH:
            # There is a newer leader. The controller will send an order to follow it.
            logger.info("%s: broker %d has a newer leader epoch than %d", tp, self._leader_id, role.leader_epoch)
            self._leave_out(role, CopyState.FAILED)
        else:
            is_transient = code in _TRANSIENT_ERRORS
            level = logging.DEBUG if is_transient else logging.ERROR
            logger.log(level, "%s: broker %d refused a fetch: %s", tp, self._leader_id, code.name)
            self._delay(role, self.backoff_s(role.attempts) if is_transient else backoff)
            role.is_urgent = is_transient and role.attempts < MAX_URGENT_ATTEMPTS
            role.attempts += 1

    async def _move_into_range(self, role: FollowerRole, earliest_timestamp: int) -> None:
        """Move the end of this log into the range of the leader's log, after a fetch offset outside
        of that range. The partition is delayed meanwhile."""
        tp = role.partition.topic_partition
        try:
            end = await self._leader_offset(role, LATEST)
            start = await self._leader_offset(role, earliest_timestamp) if role.is_active else -1
            log = role.partition.log
            if not role.is_active or log is None or role.pending_truncation is not None:
                return
            offset = role.move_into_range(log, start, end)
            if offset is not None and not self._truncate(role, log, offset):
                return
        except (KafkaError, OSError) as error:
            logger.info("Cannot look up the offsets of %s at broker %d: %s", tp, self._leader_id, error)
            return  # the delay's timer retries
        except Exception as error:
            self._on_process_error(role, error)
            return
        self._resume(role)

    async def _leader_offset(self, role: FollowerRole, timestamp: int) -> int:
        """Look up an offset of the leader's log. Raises KafkaError or OSError."""
        partition = ListOffsetsPartition(
            partition_index=role.index, current_leader_epoch=role.leader_epoch, timestamp=timestamp
        )
        request = ListOffsetsRequest(
            replica_id=self._broker_id, topics=[ListOffsetsTopic(name=role.topic, partitions=[partition])]
        )
        timeout_s = self._shared.settings.socket_timeout_s
        response = await self._peers.send(self._leader_id, request, channel=LOOKUP_CHANNEL, timeout=timeout_s)
        result = response.topics[0].partitions[0]
        if result.error_code:
            raise KafkaError(known_code(result.error_code))
        return int(result.offset)


@dataclass(slots=True, eq=False)
class _PendingFlush:
    """Waits in the purgatory until the copied records are flushed."""

    _followed: FollowedPartitions
    _end: int

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
