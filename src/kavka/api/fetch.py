"""Fetch (key 1): reads record batches.

v0-v1  magic 0 in the response; v1 adds throttle_time_ms
v2-v3  magic 1; v3 adds max_bytes of the whole response
v4     record batches (magic 2), isolation_level, aborted transactions
v5     log_start_offset
v7     fetch sessions
v9     current_leader_epoch (fencing); v10 zstd
v11    rack_id, preferred read replica
v12    flexible, last_fetched_epoch and the diverging epoch
v13    topics by id
v15    replica_state instead of replica_id; v16 node endpoints; v17-v18 for replicas

`fetch_reads.py` reads the partitions for consumers and for followers. A fetch with fewer bytes than
`min_bytes` waits in the purgatory.

The response contains FileSlices instead of bytes. The connection sends them with sendfile. A worker
thread first reads a slice that is not in the page cache, so that a slow disk does not block the
event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from typing import Any, TypeVar

from kavka.api import authorization
from kavka.api.context import RequestContext
from kavka.api.fetch_reads import (
    EMPTY,
    ConsumerReader,
    DeniedReader,
    FollowerReader,
    PartitionRead,
    PartitionReader,
)
from kavka.api.fetch_session import NO_SESSION, FetchContext, FetchPartition
from kavka.api.registry import handles
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.turns import over_turns
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from kavka.records.batch import batches
from kavka.records.convert import down_convert
from kavka.replication.partition import Partition
from kavka.replication.purgatory import DelayedFetch
from kavka.security.acls import Operation
from kavka.security.quotas import Meter
from kavka.storage.file_slice import FileClosed, FileSlice
from kavka.storage.log_read import PageCacheMiss
from kavka.storage.page_cache import warm

NO_LIMIT = 0x7FFFFFFF
NO_REPLICA = -1
# The maximum number of reads of one fetch. The page cache may evict data again before it is read.
MAX_WARMING_ROUNDS = 64
# A fetch of more partitions is divided over several turns of the event loop.
MAX_PARTITIONS_PER_TURN = 2000
# With these codes the response contains the current leader.
_LEADER_CHANGED = frozenset((int(ErrorCode.NOT_LEADER_OR_FOLLOWER), int(ErrorCode.FENCED_LEADER_EPOCH)))

Result = tuple[FetchPartition, PartitionRead]
T = TypeVar("T")


def _on_error(request: FetchRequest, version: int, error: KafkaError) -> FetchResponse:
    """Up to v12, clients read the error code of each partition. From v7 on, clients also read the
    top-level code, because an incremental response may have no partitions."""
    response = FetchResponse(error_code=int(error.code), session_id=request.session_id)
    if version < 13:
        response.responses = [
            FetchableTopicResponse(
                topic=topic.topic,
                partitions=[
                    PartitionData(
                        partition_index=partition.partition,
                        error_code=int(error.code),
                        high_watermark=-1,
                        records=EMPTY,
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    return response


def _replica_id(request: FetchRequest, version: int) -> int:
    return request.replica_state.replica_id if version >= 15 else request.replica_id


def is_from_follower(request: FetchRequest, version: int) -> bool:
    return _replica_id(request, version) >= 0


@handles(ApiKey.FETCH, versions=(0, 18), on_error=_on_error)
def handle(ctx: RequestContext, request: FetchRequest) -> Any:
    broker = ctx.broker
    uses_topic_ids = ctx.version >= 13
    replica_id = _replica_id(request, ctx.version)
    is_follower = replica_id >= 0
    may_follow = not is_follower or authorization.may_on_cluster(ctx, Operation.CLUSTER_ACTION)
    session_owner = replica_id if may_follow else NO_REPLICA
    try:
        context = broker.fetch_sessions.open(request, uses_topic_ids, broker.metadata_cache.topic_name, session_owner)
    except KafkaError as error:
        return FetchResponse(error_code=int(error.code))
    reader: PartitionReader
    meter = None
    if not may_follow:
        reader = DeniedReader(ctx)
    elif is_follower:
        reader = FollowerReader(ctx, request, replica_id, context.follower)
    else:
        reader = ConsumerReader(ctx, request)
        if ctx.quota is not None and ctx.quota.client is not None:
            meter = ctx.quota.client.fetch
    fetch = _Fetch(ctx, request, context, reader, meter)
    if fetch.is_divided:
        return _handle_in_turns(fetch, request)
    results = fetch.read()
    if request.max_wait_ms > 0 and not fetch.is_complete(results):
        delayed = DelayedFetch(
            fetch.watch(results),
            fetch.is_ready,
            fetch.read_and_respond,
            request.max_wait_ms,
            context.follower,
            is_follower,
        )
        if is_follower:
            # The recorded fetch offset may have completed a Produce request. Its client may have
            # appended again since the read.
            delayed.check()
        return delayed.future
    return fetch.respond(results)


async def _handle_in_turns(fetch: _Fetch, request: FetchRequest) -> Any:
    """Like `handle`, for a consumer's fetch of thousands of partitions."""
    results = await fetch.read_in_turns()
    if request.max_wait_ms > 0 and not fetch.is_complete(results):
        watched = fetch.watch(results)
        delayed = DelayedFetch(watched, fetch.is_ready, fetch.read_and_respond, request.max_wait_ms)
        # Records may have been appended between the read of a partition and this turn.
        async for partition in over_turns(list(watched)):
            if delayed not in partition.pending_fetches:
                break
            delayed.check(partition)
        return delayed.future
    return fetch.respond(results)


class _Fetch:
    """One Fetch request. Reads the partitions, may wait and read again, and builds the response."""

    __slots__ = (
        "_context",
        "_ctx",
        "_has_cold_data",
        "_max_bytes",
        "_meter",
        "_min_bytes",
        "_missing_bytes",
        "_reader",
        "_uses_topic_ids",
        "_version",
        "_watched",
        "is_divided",
    )

    def __init__(
        self,
        ctx: RequestContext,
        request: FetchRequest,
        context: FetchContext,
        reader: PartitionReader,
        meter: Meter | None = None,
    ) -> None:
        self._ctx = ctx
        self._version = ctx.version
        self._uses_topic_ids = ctx.version >= 13
        self._context = context
        self._reader = reader
        self._max_bytes = min(request.max_bytes if ctx.version >= 3 else NO_LIMIT, ctx.broker.settings.fetch_max_bytes)
        self._meter = meter
        if meter is not None:
            # A larger response would always exceed the quota.
            self._max_bytes = min(self._max_bytes, int(meter.max_burst))
        self._min_bytes: int = min(request.min_bytes, self._max_bytes)
        self._has_cold_data = False
        # The partitions of a waiting fetch with their readable bytes, and the bytes that are
        # missing in total. An append updates the count of its partition only.
        self._watched: dict[Partition, tuple[FetchPartition, int]] = {}
        self._missing_bytes: int = self._min_bytes
        # Whether the request is handled over several turns of the event loop. Followers' requests
        # are not: an append between two turns would be lost for their session.
        self.is_divided = not isinstance(reader, FollowerReader) and len(context.partitions) > MAX_PARTITIONS_PER_TURN

    # ---- reading

    def read(self) -> list[Result]:
        """Read the partitions of the request, up to the maximum bytes of the response. Return the
        entries with their reads."""
        self._has_cold_data = False
        self._reader.begin()
        results: list[Result] = []
        self._read(self._context.partitions, results, self._max_bytes)
        return results

    async def read_in_turns(self) -> list[Result]:
        self._has_cold_data = False
        self._reader.begin()
        results: list[Result] = []
        remaining = self._max_bytes
        for part in _parts(self._context.partitions):
            remaining = self._read(part, results, remaining)
            await asyncio.sleep(0)
        return results

    def _read(self, entries: list[FetchPartition], results: list[Result], remaining: int) -> int:
        """Read up to `remaining` bytes, and add the reads to `results`. Return the remaining
        bytes."""
        reader = self._reader
        # From v3 on, the first batch is sent even if it exceeds the limit, so that a consumer makes
        # progress.
        min_one_batch = self._version >= 3 and remaining == self._max_bytes
        for entry in entries:
            try:
                read = reader.read(entry, remaining, min_one_batch)
            except KafkaError as error:
                read = self._failed_read(entry, error)
            except OSError as error:
                read = self._failed_read(entry, self._on_disk_error(entry, error))
            if read.size:
                min_one_batch = False
                remaining = max(0, remaining - read.size)
            if read.cold is not None:
                self._has_cold_data = True
            results.append((entry, read))
        return remaining

    def _failed_read(self, entry: FetchPartition, error: KafkaError) -> PartitionRead:
        self._ctx.broker.replica_manager.count_failed_fetch(entry.topic, entry.index)
        read = PartitionRead()
        read.error_code = int(error.code)
        return read

    def _on_disk_error(self, entry: FetchPartition, error: OSError) -> KafkaError:
        return self._ctx.broker.replica_manager.on_read_error(entry.topic, entry.index, error)

    # ---- waiting

    def is_complete(self, results: list[Result]) -> bool:
        """Return whether to respond now: there are enough bytes or no partitions, or an outcome
        must be sent at once."""
        total = 0
        for _, read in results:
            if read.must_respond or read.is_incomplete:
                return True
            total += read.size
        context = self._context
        # A follower needs the id of a new session at once: it can change its partitions only with
        # that id.
        must_respond = not results if context.follower is None else not context.incremental
        if must_respond or total >= self._min_bytes:
            return True
        # A read ends at the end of a segment. The next segment may have the missing bytes.
        return total > 0 and self.is_ready()

    def watch(self, results: list[Result]) -> Collection[Partition]:
        """Count the readable bytes after an incomplete read, and return the partitions whose
        appends may complete this fetch. There are none for a follower with a session: appends
        notify the session instead."""
        if self._context.follower is None:
            has_records = any(read.size for _, read in results)
            for entry, read in results:
                if (partition := read.partition) is not None:
                    readable = self._readable_bytes(partition, entry) if has_records else 0
                    self._watched[partition] = entry, readable
            self._missing_bytes = self._min_bytes - sum(readable for _, readable in self._watched.values())
        return self._watched

    def is_ready(self, changed: Partition | None = None) -> bool:
        """Return whether another read would return enough bytes or an error. `changed` is the only
        watched partition that has changed since the last call."""
        if changed is not None:
            entry, counted = self._watched[changed]
            readable = self._readable_bytes(changed, entry)
            self._watched[changed] = entry, readable
            self._missing_bytes += counted - readable
            return self._missing_bytes <= 0
        partitions = self._ctx.broker.replica_manager.partitions
        remaining = self._min_bytes
        session = self._context.follower
        for entry in self._context.partitions if session is None else list(session.dirty):
            partition = partitions.get((entry.topic, entry.index))
            if partition is None:
                return True
            remaining -= self._readable_bytes(partition, entry)
            if remaining <= 0:
                return True
        return False

    def _readable_bytes(self, partition: Partition, entry: FetchPartition) -> int:
        """Return how many bytes a read could return, or NO_LIMIT if it would return an error."""
        log = partition.log
        if log is None or not log.start_offset <= entry.fetch_offset <= log.end_offset:
            return NO_LIMIT
        readable = self._reader.readable_bytes(partition, entry)
        return readable if readable < entry.max_bytes else entry.max_bytes

    def read_and_respond(self) -> Any:
        if self.is_divided:
            return asyncio.ensure_future(self._respond_in_turns(None))
        return self.respond(self.read())

    # ---- the response

    def respond(self, results: list[Result]) -> Any:
        """Return the response, or a future of the response if a worker thread must read or convert
        data first."""
        if self._has_cold_data or self._version < 4:
            return asyncio.ensure_future(self._respond_from_worker(results))
        if self._meter is None and self.is_divided:
            return asyncio.ensure_future(self._respond_in_turns(results))
        return self._build_within_quota(results)

    async def _respond_in_turns(self, results: list[Result] | None) -> FetchResponse:
        if results is None:
            results = await self.read_in_turns()
        if self._has_cold_data or self._version < 4:
            return await self._respond_from_worker(results)
        if self._meter is not None:
            return self._build_within_quota(results)
        response = FetchResponse(session_id=self._context.session_id)
        topics: dict[Any, FetchableTopicResponse] = {}
        for part in _parts(results):
            self._add_results(response, topics, part)
            await asyncio.sleep(0)
        return response

    def _build_within_quota(self, results: list[Result]) -> FetchResponse:
        """Return the response and record its bytes. If they exceed the quota, return an empty
        response with a throttle time, and the bytes do not count."""
        meter = self._meter
        if meter is None:
            return self._build(results)
        now_ms = self._ctx.broker.now_ms()
        size = sum(read.size for _, read in results)
        is_quiet = meter.measure(now_ms) <= 0
        throttle_ms = meter.record(size, now_ms)
        if not throttle_ms or is_quiet:
            # A batch that alone exceeds the quota is sent after a quiet time. In Kafka a consumer
            # never gets beyond such a batch.
            response = self._build(results)
            response.throttle_time_ms = throttle_ms
            return response
        meter.withdraw(size, now_ms)
        context = self._context
        response = FetchResponse(throttle_time_ms=throttle_ms, session_id=context.session_id)
        if context.session is not None and not context.incremental:
            # The client repeats a full fetch without a session.
            self._ctx.broker.fetch_sessions.end(context.session_id)
            response.session_id = NO_SESSION
        return response

    async def _respond_from_worker(self, results: list[Result]) -> FetchResponse:
        for _ in range(MAX_WARMING_ROUNDS):
            must_read_again = any(read.is_incomplete for _, read in results)
            for entry, read in results:
                if read.cold is None:
                    continue
                try:
                    await self._ctx.broker.run_in_worker(warm, read.cold)
                except FileClosed:
                    # The log was truncated, deleted or moved.
                    must_read_again = True
                except OSError as error:
                    self._on_disk_error(entry, error)
                    must_read_again = True
            if not must_read_again:
                break
            results = self.read()
        if self._version < 4:
            results = [(entry, await self._down_convert(entry, read) if read.size else read) for entry, read in results]
        return self._build_within_quota(results)

    async def _down_convert(self, entry: FetchPartition, read: PartitionRead) -> PartitionRead:
        """Convert the records to the format of an old client. A failed conversion becomes an error
        of the partition.

        Control batches have no form in the old formats. If the read has only control batches, the
        following batches are read. After an empty response, the client would fetch the same offset
        again and make no progress.
        """
        run_in_worker = self._ctx.broker.run_in_worker
        magic = 0 if self._version < 2 else 1
        file_slice: FileSlice | None = read.records
        read.records = EMPTY
        try:
            while file_slice is not None and not read.records:
                read.records, next_offset = await run_in_worker(_convert, file_slice, magic, entry.fetch_offset)
                file_slice = await self._read_slice(entry, next_offset) if not read.records else None
        except KafkaError as error:
            return self._failed_read(entry, error)
        read.size = len(read.records)
        return read

    async def _read_slice(self, entry: FetchPartition, offset: int) -> FileSlice | None:
        reader = self._reader
        while True:
            try:
                log_read = reader.find(entry).read(offset, entry.max_bytes, reader.isolation_level, True)
            except PageCacheMiss as cold:
                await self._ctx.broker.run_in_worker(warm, cold.slice)
            else:
                return log_read.slice if log_read else None

    def _build(self, results: list[Result]) -> FetchResponse:
        response = FetchResponse(session_id=self._context.session_id)
        self._add_results(response, {}, results)
        return response

    def _add_results(
        self, response: FetchResponse, topics: dict[Any, FetchableTopicResponse], results: list[Result]
    ) -> None:
        """Add the results to the response. `topics` has the topics of the response so far."""
        for entry, read in self._context.select(results):
            key = entry.topic_id if self._uses_topic_ids else entry.topic
            topic = topics.get(key)
            if topic is None:
                topic = topics[key] = FetchableTopicResponse(topic=entry.topic, topic_id=entry.topic_id)
                response.responses.append(topic)
            data = PartitionData(
                partition_index=entry.index,
                high_watermark=read.high_watermark,
                last_stable_offset=read.last_stable_offset,
                log_start_offset=read.log_start_offset,
                aborted_transactions=None,
                records=read.records,
            )
            topic.partitions.append(data)
            if read.aborted_transactions is not None:
                data.aborted_transactions = [
                    AbortedTransaction(producer_id=aborted.producer_id, first_offset=aborted.first_offset)
                    for aborted in read.aborted_transactions
                ]
            if read.size:
                self._reader.count_sent(read)
            elif read.must_respond:
                self._set_outcome(response, entry, read, data)

    def _set_outcome(
        self, response: FetchResponse, entry: FetchPartition, read: PartitionRead, data: PartitionData
    ) -> None:
        """Set the fields of a read without records: error, diverging epoch, preferred replica."""
        data.error_code = read.error_code
        data.preferred_read_replica = read.preferred_replica
        if read.diverging is not None:
            data.diverging_epoch = EpochEndOffset(epoch=read.diverging[0], end_offset=read.diverging[1])
        if read.error_code in _LEADER_CHANGED and self._version >= 12:
            self._add_leader(response, entry, data)

    def _add_leader(self, response: FetchResponse, entry: FetchPartition, data: PartitionData) -> None:
        """Set the current leader, so that the client needs no Metadata request."""
        cache = self._ctx.broker.metadata_cache
        state = cache.partition_state(entry.topic, entry.index)
        if state is None:
            return
        leader = state.leader
        data.current_leader = LeaderIdAndEpoch(leader_id=leader, leader_epoch=state.leader_epoch)
        endpoint = cache.endpoint(leader, self._ctx.listener) if self._version >= 16 else None
        if endpoint is not None and all(node.node_id != leader for node in response.node_endpoints):
            response.node_endpoints.append(
                NodeEndpoint(node_id=leader, host=endpoint.host, port=endpoint.port, rack=cache.rack(leader))
            )


def _convert(file_slice: FileSlice, magic: int, first_offset: int) -> tuple[bytes, int]:
    """Return the records in an older format, and the offset after the last batch. Runs in a worker
    thread."""
    record_data = file_slice.read()
    next_offset = first_offset
    for batch in batches(record_data):
        next_offset = batch.last_offset + 1
    return down_convert(record_data, magic, first_offset), next_offset


def _parts(items: list[T]) -> Iterator[list[T]]:
    return (items[start : start + MAX_PARTITIONS_PER_TURN] for start in range(0, len(items), MAX_PARTITIONS_PER_TURN))
