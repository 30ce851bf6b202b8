"""Reads partitions for Fetch requests of consumers and of followers.

A reader finds the partition of one entry of a request, checks the leader epoch and the offset, and
returns a `PartitionRead`. It raises KafkaError for an error of the partition, and OSError if the
disk fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

from kavka.api import authorization
from kavka.api.context import RequestContext
from kavka.api.fetch_session import FetchPartition
from kavka.common.errors import ErrorCode, KafkaError
from kavka.protocol.messages.fetch import FetchRequest
from kavka.replication.follower_session import FollowerSession
from kavka.replication.partition import READ_ALL, READ_COMMITTED, Partition
from kavka.security.acls import Operation, ResourceType
from kavka.storage.file_slice import FileSlice
from kavka.storage.log import Log
from kavka.storage.log_config import LogConfig
from kavka.storage.log_read import PageCacheMiss
from kavka.storage.page_cache import is_resident
from kavka.storage.transaction_index import AbortedTxn

EMPTY = b""
MIN_ZSTD_VERSION = 10
MIN_RACK_VERSION = 11


class PartitionRead:
    """The outcome of reading one partition.

    `cold` is data that must be read from disk before the response is sent. If `is_incomplete`, the
    partition must then be read again. `aborted_transactions` is None unless the isolation level is
    read_committed. A failed read has the offsets -1.
    """

    # The defaults are class attributes, so that a read sets only the fields that differ.
    error_code = 0
    records: Any = EMPTY
    size = 0
    messages = 0
    aborted_transactions: Sequence[AbortedTxn] | None = ()
    diverging: tuple[int, int] | None = None
    preferred_replica = -1
    cold: FileSlice | None = None
    is_incomplete = False

    def __init__(
        self,
        partition: Partition | None = None,
        high_watermark: int = -1,
        last_stable_offset: int = -1,
        log_start_offset: int = -1,
    ) -> None:
        self.partition = partition
        self.high_watermark = high_watermark
        self.last_stable_offset = last_stable_offset
        self.log_start_offset = log_start_offset

    @property
    def must_respond(self) -> bool:
        """Return whether the outcome must be sent without waiting for more bytes."""
        return self.error_code != 0 or self.diverging is not None or self.preferred_replica >= 0


class PartitionReader:
    """The base class of the readers for consumers and for followers."""

    __slots__ = ("_ctx", "_find_replica", "_uses_topic_ids", "_version", "isolation_level")

    _ctx: RequestContext
    _version: int
    _uses_topic_ids: bool
    _find_replica: Callable[[str, int], Partition]
    isolation_level: int

    def begin(self) -> None:
        """Called before the partitions of the request are read or read again."""

    def find(self, entry: FetchPartition) -> Partition:
        """Return the partition of the entry. Raises KafkaError if this broker cannot serve it."""
        if self._uses_topic_ids and not entry.topic:
            entry.topic = self._ctx.broker.replica_manager.topic_name(entry.topic_id)
        self.check_access(entry)
        partition = self._find_replica(entry.topic, entry.index)
        if self._uses_topic_ids and partition.topic_id != entry.topic_id:
            raise KafkaError(ErrorCode.INCONSISTENT_TOPIC_ID)
        return partition

    def check_access(self, entry: FetchPartition) -> None:
        """Raise KafkaError if the client may not read the topic."""

    def read(self, entry: FetchPartition, max_bytes: int, min_one_batch: bool) -> PartitionRead:
        raise NotImplementedError

    def readable_bytes(self, partition: Partition, entry: FetchPartition) -> int:
        return partition.readable_bytes(entry.fetch_offset, self.isolation_level)

    def count_sent(self, read: PartitionRead) -> None:
        raise NotImplementedError

    def _read_log(
        self, entry: FetchPartition, read: PartitionRead, partition: Partition, max_bytes: int, min_one_batch: bool
    ) -> bool:
        """Read the records into `read`. Return False if the log has no records at or after the
        fetch offset."""
        limit = entry.max_bytes if entry.max_bytes < max_bytes else max_bytes
        try:
            log_read = partition.read(entry.fetch_offset, limit, self.isolation_level, min_one_batch)
        except PageCacheMiss as cold:
            read.cold, read.is_incomplete = cold.slice, True
            return True
        is_committed = self.isolation_level == READ_COMMITTED
        if not is_committed:
            read.aborted_transactions = None
        if log_read is None:
            return False
        if not log_read.is_first_batch_complete and self._version >= 3:
            # The batch does not fit. From v3 on, clients treat a partial batch as corrupt.
            return True
        if is_committed:
            assert partition.log is not None
            read.aborted_transactions = partition.log.aborted_transactions(entry.fetch_offset, log_read.upper_bound())
        records = read.records = log_read.slice
        read.size = len(records)
        read.messages = log_read.end_offset() - entry.fetch_offset
        if not log_read.is_recent and not is_resident(records):
            read.cold = records
        return True


class ConsumerReader(PartitionReader):
    """Reads up to the high watermark or the last stable offset. From v11 on, a consumer may fetch
    from a follower in its rack."""

    __slots__ = ("_permitted", "_rack")

    def __init__(self, ctx: RequestContext, request: FetchRequest) -> None:
        version = ctx.version
        replicas = ctx.broker.replica_manager
        self._ctx = ctx
        self._version = version
        self._uses_topic_ids = version >= 13
        self._find_replica = replicas.replica if version >= MIN_RACK_VERSION else replicas.leader
        self.isolation_level = request.isolation_level if version >= 4 else 0
        self._rack = request.rack_id if request.rack_id and replicas.is_rack_aware else ""
        # The topics of this request that the client may read, and those that it may not read. None
        # without an authorizer.
        self._permitted: dict[str, bool] | None = None if ctx.authorizer is None else {}

    def check_access(self, entry: FetchPartition) -> None:
        if self._permitted is None:
            return
        is_permitted = self._permitted.get(entry.topic)
        if is_permitted is None:
            is_permitted = authorization.may(self._ctx, Operation.READ, ResourceType.TOPIC, entry.topic)
            self._permitted[entry.topic] = is_permitted
        if not is_permitted:
            raise authorization.failure(ResourceType.TOPIC)

    def read(self, entry: FetchPartition, max_bytes: int, min_one_batch: bool) -> PartitionRead:
        partition = self.find(entry)
        partition.check_epoch(entry.current_leader_epoch)
        log = partition.log
        assert log is not None
        read = PartitionRead(partition, log.high_watermark, log.last_stable_offset, log.start_offset)
        if entry.last_fetched_epoch >= 0:
            read.diverging = _diverging_epoch(log, entry)
            if read.diverging is not None:
                return read
        if self._rack:
            replica = self._preferred_replica(partition, entry)
            if replica >= 0:
                read.preferred_replica = replica
                return read
        if self._version < MIN_ZSTD_VERSION:
            self._check_format(log.config)
        self._read_log(entry, read, partition, max_bytes, min_one_batch)
        return read

    def _preferred_replica(self, partition: Partition, entry: FetchPartition) -> int:
        role = partition.leader_role
        if role is None:
            return -1
        return role.preferred_replica(self._rack, entry.fetch_offset, self._ctx.broker.metadata_cache.rack)

    def _check_format(self, config: LogConfig) -> None:
        """Raise KafkaError if a client of this version cannot read the topic's format."""
        if config.compression_type == "zstd":
            raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        if self._version < 4 and not config.message_downconversion_enable:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)

    def count_sent(self, read: PartitionRead) -> None:
        if read.partition is not None:
            metrics = read.partition.metrics
            metrics.bytes_out.value += read.size
            if read.messages > 0:
                metrics.messages_out.value += read.messages


class DeniedReader(PartitionReader):
    """Reads nothing: the client may not fetch as a follower."""

    __slots__ = ()

    def __init__(self, ctx: RequestContext) -> None:
        self._ctx = ctx
        self._version = ctx.version
        self._uses_topic_ids = ctx.version >= 13
        self._find_replica = ctx.broker.replica_manager.leader
        self.isolation_level = READ_ALL

    def read(self, entry: FetchPartition, max_bytes: int, min_one_batch: bool) -> PartitionRead:
        raise authorization.failure(ResourceType.TOPIC)


class FollowerReader(PartitionReader):
    """Reads up to the log end offset of the leader. The first read of a fetch records the
    follower's fetch offset. This may advance the high watermark and complete pending Produce
    requests."""

    __slots__ = ("_is_recorded", "_now", "_replica_epoch", "_replica_id", "_session")

    def __init__(
        self, ctx: RequestContext, request: FetchRequest, replica_id: int, session: FollowerSession | None
    ) -> None:
        self._ctx = ctx
        self._version = ctx.version
        self._uses_topic_ids = ctx.version >= 13
        self._find_replica = ctx.broker.replica_manager.leader
        self.isolation_level = READ_ALL
        self._replica_id = replica_id
        self._replica_epoch = request.replica_state.replica_epoch if ctx.version >= 15 else -1
        self._session = session
        self._is_recorded = False
        self._now = 0.0

    def begin(self) -> None:
        # A second read of the same fetch has no new fetch offset of the follower.
        self._is_recorded = self._now > 0.0
        self._now = monotonic()

    def read(self, entry: FetchPartition, max_bytes: int, min_one_batch: bool) -> PartitionRead:
        partition = self.find(entry)
        partition.check_epoch(entry.current_leader_epoch)
        log, role = partition.log, partition.leader_role
        assert log is not None and role is not None
        follower = role.follower(self._replica_id)
        session = self._session
        if session is not None:
            session.track(entry, partition)
        diverging = _diverging_epoch(log, entry) if entry.last_fetched_epoch >= 0 else None
        if diverging is None and not self._is_recorded and log.start_offset <= entry.fetch_offset <= log.written_end:
            role.record_fetch(follower, entry.fetch_offset, entry.log_start_offset, self._now, self._replica_epoch)
            if session is not None:
                session.set_in_isr(entry, self._replica_id in partition.isr_state.isr)
        read = PartitionRead(partition, log.high_watermark, log.last_stable_offset, log.start_offset)
        if diverging is not None:
            read.diverging = diverging
        elif not role.is_throttling(follower, self._now):
            has_records = self._read_log(entry, read, partition, max_bytes, min_one_batch)
            if not has_records and session is not None and entry.fetch_offset >= log.written_end:
                session.mark_read(entry)
        return read

    def readable_bytes(self, partition: Partition, entry: FetchPartition) -> int:
        readable = partition.readable_bytes(entry.fetch_offset, READ_ALL)
        role = partition.leader_role
        if readable and role is not None:
            follower = role.followers.get(self._replica_id)
            if follower is not None and role.is_throttling(follower, monotonic()):
                return 0
        return readable

    def count_sent(self, read: PartitionRead) -> None:
        role = read.partition.leader_role if read.partition is not None else None
        if role is not None:
            role.record_sent(read.size, self._now)


def _diverging_epoch(log: Log, entry: FetchPartition) -> tuple[int, int] | None:
    """Return the epoch and end offset at which the fetcher's log diverges from this log, or None if
    the logs agree. Raises OFFSET_OUT_OF_RANGE if this log does not have the epoch."""
    epoch, end = log.end_offset_for_epoch(entry.last_fetched_epoch)
    if epoch < 0 or end < 0 or entry.fetch_offset < log.start_offset:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
    if epoch < entry.last_fetched_epoch or end < entry.fetch_offset:
        return epoch, end
    return None
