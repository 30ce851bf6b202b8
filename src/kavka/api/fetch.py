"""Fetch (key 1): read record batches.

v0-v1  magic 0 in the answer; v1 adds throttle_time_ms
v2-v3  magic 1; v3 adds max_bytes of the whole answer
v4     record batches (magic 2), isolation_level, aborted transactions
v5     log_start_offset
v7     fetch sessions
v9     current_leader_epoch (fencing); v10 zstd
v11    rack_id, preferred read replica
v12    flexible, last_fetched_epoch and the diverging epoch
v13    topics by id
v15    replica_state instead of replica_id; v16 node endpoints; v17-v18 for replicas

A follower's fetch (one with a replica id) reads up to the end of the log, and says by its offsets what it has: that may
move the high watermark and wake producers, before the follower itself gets its answer.

The answer holds FileSlices, not bytes: the connection sends them with sendfile. A slice that is not in the
page cache is warmed in a worker thread first, so that one slow disk read does not stop the loop.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any

from kavka.api.context import RequestContext
from kavka.api.fetch_session import FetchContext, FetchPartition
from kavka.api.registry import handles
from kavka.common.errors import ErrorCode, KafkaError
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
from kavka.replication.partition import READ_ALL, READ_COMMITTED, Partition
from kavka.replication.waiting import FetchWaiter
from kavka.storage.file_slice import FileClosed, FileSlice
from kavka.storage.log_config import LogConfig
from kavka.storage.log_read import ColdRead
from kavka.storage.page_cache import is_resident, warm

NO_LIMIT = 0x7FFFFFFF
EMPTY = b""
# Data that was warmed may be gone from the page cache again before it is looked at.
WARMING_ROUNDS = 64
KNOWS_ZSTD = 10
KNOWS_RACKS = 11

Result = tuple[FetchPartition, PartitionData, int]


def _on_error(request: FetchRequest, version: int, error: KafkaError) -> FetchResponse:
    """Before v13 clients look at the partitions, from v7 on (incremental answers may have none) also above them."""
    response = FetchResponse(error_code=int(error.code), session_id=request.session_id)
    if version < 13:
        response.responses = [
            FetchableTopicResponse(
                topic=topic.topic,
                partitions=[
                    PartitionData(
                        partition_index=asked.partition, error_code=int(error.code), high_watermark=-1, records=EMPTY
                    )
                    for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    return response


@handles(ApiKey.FETCH, versions=(0, 18), on_error=_on_error)
def handle(ctx: RequestContext, request: FetchRequest) -> Any:
    broker = ctx.broker
    by_id = ctx.version >= 13
    replica_id = request.replica_state.replica_id if ctx.version >= 15 else request.replica_id
    try:
        context = broker.fetch_sessions.open(request, by_id, broker.metadata_cache.topic_name, replica_id)
    except KafkaError as error:
        return FetchResponse(error_code=int(error.code))
    fetch = _Fetch(ctx, request, context, replica_id)
    results = fetch.read()
    if request.max_wait_ms > 0 and not fetch.enough(results):
        wait_ms, session = request.max_wait_ms, context.follower
        waiter = FetchWaiter(fetch.waiting_on(), fetch.ready, fetch.answer_again, wait_ms, session, fetch.of_follower)
        if fetch.of_follower:
            # What a follower has may commit something, and who waited for that may have appended since the read.
            waiter.check()
        return waiter.future
    return fetch.answer(results)


class _Fetch:
    """One fetch request while it is served: read, perhaps wait and read again, then answer."""

    __slots__ = (
        "_by_id",
        "_cold",
        "_cold_headers",
        "_context",
        "_ctx",
        "_from_any_replica",
        "_isolation",
        "_max_bytes",
        "_messages",
        "_min_bytes",
        "_noted",
        "_now",
        "_rack",
        "_replica_epoch",
        "_replica_id",
        "of_follower",
    )

    def __init__(self, ctx: RequestContext, request: FetchRequest, context: FetchContext, replica_id: int) -> None:
        self._ctx = ctx
        self._context = context
        self._by_id = ctx.version >= 13
        self._replica_id = replica_id
        self._replica_epoch = request.replica_state.replica_epoch if ctx.version >= 15 else -1
        self.of_follower = replica_id >= 0
        self._noted = False
        self._now = 0.0
        self._rack = ""
        if request.rack_id and not self.of_follower and ctx.broker.replica_manager.shared.settings.rack_aware:
            self._rack = request.rack_id
        self._from_any_replica = not self.of_follower and ctx.version >= KNOWS_RACKS
        if self.of_follower:
            self._isolation = READ_ALL
        else:
            self._isolation = request.isolation_level if ctx.version >= 4 else 0
        self._max_bytes = min(request.max_bytes if ctx.version >= 3 else NO_LIMIT, ctx.broker.settings.fetch_max_bytes)
        self._min_bytes = min(request.min_bytes, self._max_bytes)
        # What has to be warmed before the answer is sent; and, for the second, before it can even be found.
        self._cold: list[tuple[FetchPartition, FileSlice]] = []
        self._cold_headers: list[tuple[FetchPartition, FileSlice]] = []
        # How many records were found, for the metrics.
        self._messages: dict[FetchPartition, int] = {}

    # ---- reading

    def read(self) -> list[Result]:
        """Every partition of the request, as far as the bytes allowed reach."""
        results: list[Result] = []
        left = self._max_bytes
        # From v3 on the first batch found is sent whatever its size, so that a consumer cannot get stuck on it.
        min_one = self._ctx.version >= 3
        self._cold.clear()
        self._cold_headers.clear()
        self._messages.clear()
        if self.of_follower:
            self._now = monotonic()
        for asked in self._context.partitions:
            data = PartitionData(partition_index=asked.index, records=EMPTY)
            size = 0
            try:
                size = self._read_one(asked, data, left, min_one)
            except KafkaError as error:
                self._refuse(asked, data, error)
            except ColdRead as cold:
                self._cold_headers.append((asked, cold.slice))
            except OSError as error:
                self._refuse(asked, data, self._disk_failed(asked, error))
            if size:
                min_one = False
                left = max(0, left - size)
            results.append((asked, data, size))
        return results

    def _read_one(self, asked: FetchPartition, data: PartitionData, left: int, min_one: bool) -> int:
        partition = self._partition(asked)
        partition.check_epoch(asked.current_leader_epoch)
        log = partition.log
        assert log is not None
        follower = partition.follower(self._replica_id) if self.of_follower else None
        session = self._context.follower
        if session is not None:
            session.track(asked, partition)
        data.high_watermark = log.high_watermark
        data.last_stable_offset = log.last_stable_offset
        data.log_start_offset = log.start_offset
        if asked.last_fetched_epoch >= 0:
            epoch, end = log.end_offset_for_epoch(asked.last_fetched_epoch)
            if epoch < 0 or end < 0 or asked.fetch_offset < log.start_offset:
                raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
            if epoch < asked.last_fetched_epoch or end < asked.fetch_offset:
                data.diverging_epoch = EpochEndOffset(epoch=epoch, end_offset=end)
                return 0
        if follower is not None:
            # A second look, after a wait, says nothing new of the follower.
            if not self._noted and log.start_offset <= asked.fetch_offset <= log.written_end:
                partition.note_fetch(
                    follower, asked.fetch_offset, asked.log_start_offset, self._now, self._replica_epoch
                )
                data.high_watermark = log.high_watermark
                if session is not None:
                    if self._replica_id in partition.isr:
                        session.outside.pop(asked, None)
                    else:
                        session.outside[asked] = None
            if partition.holds_back(follower, self._now):
                return 0
        elif self._rack and (near := partition.preferred_replica(self._rack, asked.fetch_offset, self._rack_of)) >= 0:
            data.preferred_read_replica = near
            return 0
        elif self._ctx.version < KNOWS_ZSTD:
            self._check_format(log.config)
        found = partition.read(asked.fetch_offset, min(asked.max_bytes, left), self._isolation, min_one)
        if self._isolation == READ_COMMITTED:
            data.aborted_transactions = []
        else:
            data.aborted_transactions = None
        if found is None:
            if session is not None and asked.fetch_offset >= log.written_end:
                session.is_level(asked)
            return 0
        if not found.first_batch_complete and self._ctx.version >= 3:
            # The bytes allowed are used up. Clients of these versions take a part of a batch for a broken log.
            return 0
        if self._isolation == READ_COMMITTED:
            data.aborted_transactions = [
                AbortedTransaction(producer_id=txn.producer_id, first_offset=txn.first_offset)
                for txn in log.aborted_transactions(asked.fetch_offset, found.upper_bound())
            ]
        data.records = found.slice
        self._messages[asked] = found.end_offset() - asked.fetch_offset
        if not found.recent and not is_resident(found.slice):
            self._cold.append((asked, found.slice))
        return len(found.slice)

    def _rack_of(self, broker_id: int) -> str | None:
        broker = self._ctx.broker.metadata_cache.brokers.get(broker_id)
        return broker.rack if broker else None

    def _check_format(self, config: LogConfig) -> None:
        """Whether an old client can be given what the topic holds."""
        if config.compression_type == "zstd":
            raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        if self._ctx.version < 4 and not config.message_downconversion_enable:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)

    def _partition(self, asked: FetchPartition) -> Partition:
        if self._by_id and not asked.topic:
            name = self._ctx.broker.metadata_cache.topic_name(asked.topic_id)
            if name is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
            asked.topic = name
        replicas = self._ctx.broker.replica_manager
        if self._from_any_replica:
            partition = replicas.replica(asked.topic, asked.index)
        else:
            partition = replicas.leader(asked.topic, asked.index)
        if self._by_id and partition.topic_id != asked.topic_id:
            raise KafkaError(ErrorCode.INCONSISTENT_TOPIC_ID)
        return partition

    def _refuse(self, asked: FetchPartition, data: PartitionData, error: KafkaError) -> None:
        broker = self._ctx.broker
        data.error_code = int(error.code)
        data.records = EMPTY
        data.high_watermark = data.last_stable_offset = data.log_start_offset = -1
        partition = broker.replica_manager.partitions.get((asked.topic, asked.index))
        if partition is not None:
            partition.metrics.failed_fetches.value += 1
        if self._ctx.version >= 12 and error.code in (
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.FENCED_LEADER_EPOCH,
        ):
            state = broker.metadata_cache.partition_state(asked.topic, asked.index)
            if state is not None:
                data.current_leader = LeaderIdAndEpoch(leader_id=state.leader, leader_epoch=state.leader_epoch)

    def _disk_failed(self, asked: FetchPartition, error: OSError) -> KafkaError:
        return self._ctx.broker.replica_manager.note_disk_failure(asked.topic, asked.index, error)

    # ---- waiting

    def enough(self, results: list[Result]) -> bool:
        """Whether to answer now: enough bytes, nothing asked for, or something that the client must hear of."""
        total = 0
        for _, data, size in results:
            if data.error_code or data.diverging_epoch.epoch >= 0 or data.preferred_read_replica >= 0:
                return True
            total += size
        context = self._context
        # A follower that begins a session is told its number at once: it may soon have more to ask for.
        at_once = not results if context.follower is None else not context.incremental
        if at_once or total >= self._min_bytes or self._cold_headers:
            return True
        # What was found may be little only because the segment ends there.
        return total > 0 and self.ready()

    def waiting_on(self) -> list[Partition]:
        """Where to wait for data; a follower's session is told of it by itself."""
        if self._context.follower is not None:
            return []
        partitions = self._ctx.broker.replica_manager.partitions
        found = (partitions.get((asked.topic, asked.index)) for asked in self._context.partitions)
        return [partition for partition in found if partition is not None]

    def ready(self) -> bool:
        """Whether reading again would give enough, or an error."""
        partitions = self._ctx.broker.replica_manager.partitions
        left = self._min_bytes
        follower_session = self._context.follower
        for asked in self._context.partitions if follower_session is None else list(follower_session.dirty):
            partition = partitions.get((asked.topic, asked.index))
            if partition is None or partition.log is None:
                return True
            if not partition.log.start_offset <= asked.fetch_offset <= partition.log.end_offset:
                return True
            readable = partition.readable_bytes(asked.fetch_offset, self._isolation)
            if readable and self.of_follower:
                follower = partition.followers.get(self._replica_id)
                if follower is not None and partition.holds_back(follower, monotonic()):
                    continue
            left -= min(readable, asked.max_bytes)
            if left <= 0:
                return True
        return False

    def answer_again(self) -> Any:
        self._noted = True
        return self.answer(self.read())

    # ---- answering

    def answer(self, results: list[Result]) -> Any:
        """The response, or a future of it where data has to be read from the disk or converted first."""
        if self._cold or self._cold_headers or self._ctx.version < 4:
            return asyncio.ensure_future(self._answer_from_worker(results))
        return self._build(results)

    async def _answer_from_worker(self, results: list[Result]) -> FetchResponse:
        self._noted = True
        for _ in range(WARMING_ROUNDS):
            read_again = bool(self._cold_headers)
            for asked, piece in [*self._cold_headers, *self._cold]:
                try:
                    await self._ctx.broker.run_in_worker(warm, piece)
                except FileClosed:
                    # The log was truncated, deleted or moved: what is there now has to be found again.
                    read_again = True
                except OSError as error:
                    self._disk_failed(asked, error)
                    read_again = True
            if not read_again:
                break
            results = self.read()
        if self._ctx.version < 4:
            for asked, data, size in results:
                if size:
                    await self._down_convert(asked, data)
        return self._build(results)

    async def _down_convert(self, asked: FetchPartition, data: PartitionData) -> None:
        """Rewrite what was found to the format that an old client reads. What cannot be is an error of that partition.

        Control batches have no old form. Where nothing else was found we read on: an empty answer would make
        the client ask for the same offset for ever.
        """
        run = self._ctx.broker.run_in_worker
        magic = 0 if self._ctx.version < 2 else 1
        piece: FileSlice | None = data.records
        data.records = EMPTY
        try:
            while piece is not None and not data.records:
                data.records, after = await run(_convert, piece, magic, asked.fetch_offset)
                piece = await self._next_piece(asked, after) if not data.records else None
        except KafkaError as error:
            self._refuse(asked, data, error)

    async def _next_piece(self, asked: FetchPartition, offset: int) -> FileSlice | None:
        while True:
            try:
                found = self._partition(asked).read(offset, asked.max_bytes, self._isolation, True)
            except ColdRead as cold:
                await self._ctx.broker.run_in_worker(warm, cold.slice)
            else:
                return found.slice if found else None

    def _build(self, results: list[Result]) -> FetchResponse:
        response = FetchResponse(session_id=self._context.session_id)
        topics: dict[Any, FetchableTopicResponse] = {}
        for asked, data, size in self._context.to_tell(results):
            key = asked.topic_id if self._by_id else asked.topic
            topic = topics.get(key)
            if topic is None:
                topic = topics[key] = FetchableTopicResponse(topic=asked.topic, topic_id=asked.topic_id)
                response.responses.append(topic)
            topic.partitions.append(data)
            if size:
                self._count(asked, data)
            if self._ctx.version >= 16 and data.current_leader.leader_id >= 0:
                self._add_node(response, data.current_leader.leader_id)
        return response

    def _count(self, asked: FetchPartition, data: PartitionData) -> None:
        partition = self._ctx.broker.replica_manager.partitions.get((asked.topic, asked.index))
        if partition is not None and self.of_follower:
            shared = self._ctx.broker.replica_manager.shared
            shared.bytes_out.value += len(data.records)
            if partition.is_throttled_leader:
                shared.leader_throttle.record(len(data.records), self._now)
        elif partition is not None:
            partition.metrics.bytes_out.value += len(data.records)
            partition.metrics.messages_out.value += max(0, self._messages.get(asked, 0))

    def _add_node(self, response: FetchResponse, node_id: int) -> None:
        cache = self._ctx.broker.metadata_cache
        endpoint = cache.endpoint(node_id, self._ctx.listener)
        if endpoint is not None and all(node.node_id != node_id for node in response.node_endpoints):
            response.node_endpoints.append(
                NodeEndpoint(node_id=node_id, host=endpoint.host, port=endpoint.port, rack=cache.brokers[node_id].rack)
            )


def _convert(piece: FileSlice, magic: int, first_offset: int) -> tuple[bytes, int]:
    """In a worker thread: the piece in an older format, and the offset after it."""
    data = piece.read()
    after = first_offset
    for batch in batches(data):
        after = batch.last_offset + 1
    return down_convert(data, magic, first_offset), after
