"""ListOffsets (key 2): the offset for a timestamp, or the start or end offset of the log.

v0     up to max_num_offsets offsets of segments, newest first
v1     a single offset with its timestamp
v2     isolation_level: with read_committed the latest offset is the last stable offset
v4     current_leader_epoch (fencing), leader_epoch in the response
v5     OFFSET_NOT_AVAILABLE (before: LEADER_NOT_AVAILABLE)
v6     flexible
v7     -3: the record with the largest timestamp
v8     -4: the earliest local offset
v9     -5: the latest offset in tiered storage
v10    timeout_ms
v11    -6: the earliest offset that is not yet in tiered storage

There is no tiered storage, so -4 is the same as -2, and -5 and -6 match nothing.

The high watermark of a new leader may be lower than that of the previous leader. Until it reaches
the start offset of the new leader epoch, consumers get OFFSET_NOT_AVAILABLE instead of a latest
offset that goes backwards.

A search by timestamp decompresses the batch that contains the record. A worker thread searches
batches that are large, many, or not in the page cache, within the limits of kavka.records.limits.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from kavka.api import authorization
from kavka.api.context import RequestContext
from kavka.api.registry import handles
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import NO_TIMESTAMP
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from kavka.records.limits import MAX_DECOMPRESSION_IN_WORKERS_S, MAX_DECOMPRESSION_ON_LOOP_S
from kavka.replication.partition import Partition
from kavka.security.acls import Operation, ResourceType
from kavka.storage.log import Log
from kavka.storage.log_read import (
    MAX_OPENED_ON_LOOP,
    MustSearchInWorker,
    StoredBatch,
    StoredBatches,
    TimestampOffset,
)

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
MIN_TIMESTAMP_VERSIONS = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
NEVER_FOUND = (LATEST_TIERED, EARLIEST_PENDING_UPLOAD)
MIN_OFFSET_NOT_AVAILABLE_VERSION = 5
CONSUMER = -1
NOT_FOUND = -1


def _on_error(request: ListOffsetsRequest, version: int, error: KafkaError) -> ListOffsetsResponse:
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    ListOffsetsPartitionResponse(partition_index=partition.partition_index, error_code=int(error.code))
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


@handles(ApiKey.LIST_OFFSETS, versions=(0, 11), on_error=_on_error)
def handle(ctx: RequestContext, request: ListOffsetsRequest) -> Any:
    counts = Counter(
        (topic.name, requested_partition.partition_index)
        for topic in request.topics
        for requested_partition in topic.partitions
    )
    denied = authorization.denied(ctx, Operation.DESCRIBE, ResourceType.TOPIC, (t.name for t in request.topics))
    response = ListOffsetsResponse()
    unsearched: list[tuple[Query, StoredBatch | StoredBatches]] = []
    deadline = monotonic() + MAX_DECOMPRESSION_ON_LOOP_S
    for topic in request.topics:
        results = []
        for requested_partition in topic.partitions:
            query = Query(ctx, request, topic.name, requested_partition)
            try:
                if topic.name in denied:
                    raise authorization.failure(ResourceType.TOPIC)
                if counts[topic.name, requested_partition.partition_index] > 1:
                    raise KafkaError(ErrorCode.INVALID_REQUEST)
                query.run(max_opened=MAX_OPENED_ON_LOOP if monotonic() <= deadline else 0)
            except MustSearchInWorker as search:
                unsearched.append((query, search.batches))
            except (KafkaError, OSError) as error:
                query.fail(error)
            results.append(query.result)
        response.topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=results))
    return _search_in_worker(ctx, response, unsearched) if unsearched else response


async def _search_in_worker(
    ctx: RequestContext, response: ListOffsetsResponse, unsearched: list[tuple[Query, StoredBatch | StoredBatches]]
) -> ListOffsetsResponse:
    """Finish the searches in a worker thread. Return the response."""
    replicas = ctx.broker.replica_manager
    deadline = monotonic() + MAX_DECOMPRESSION_IN_WORKERS_S
    for query, first in unsearched:
        batches: StoredBatch | StoredBatches | None = first
        while batches is not None:
            try:
                if monotonic() > deadline:
                    raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)
                async with replicas.decompressions:
                    record = await ctx.broker.run_in_worker(batches.first_record)
                query.run(record, after=batches.last_offset)
                batches = None
            except MustSearchInWorker as search:
                batches = search.batches
            except (KafkaError, OSError) as error:
                query.fail(error)
                batches = None
    return response


@dataclass(slots=True, eq=False, repr=False)
class Query:
    """The query for one partition, and its result."""

    _ctx: RequestContext
    _request: ListOffsetsRequest
    _topic: str
    _requested_partition: ListOffsetsPartition
    result: ListOffsetsPartitionResponse = field(init=False)

    def __post_init__(self) -> None:
        self.result = ListOffsetsPartitionResponse(partition_index=self._requested_partition.partition_index)

    def fail(self, error: KafkaError | OSError) -> None:
        if isinstance(error, OSError):
            replicas = self._ctx.broker.replica_manager
            error = replicas.on_read_error(self._topic, self._requested_partition.partition_index, error)
        self.result.error_code = int(error.code)

    def run(self, match: TimestampOffset | None = None, after: int = -1, max_opened: int = MAX_OPENED_ON_LOOP) -> None:
        """Search the log and set `result`. Raises MustSearchInWorker if a batch must be
        decompressed in a worker thread, and KafkaError or OSError if the search fails.

        `match` is the record that a worker thread found. Without a match, the search starts after
        the offset `after`.
        """
        requested_partition, version, result = self._requested_partition, self._ctx.version, self.result
        partition = self._ctx.broker.replica_manager.leader(self._topic, requested_partition.partition_index)
        log = partition.log
        assert log is not None
        from_consumer = self._request.replica_id == CONSUMER
        timestamp = requested_partition.timestamp
        if version == 0:
            result.old_style_offsets = _segment_offsets(
                self._ctx, log, timestamp, requested_partition.max_num_offsets, from_consumer
            )
            return
        partition.check_epoch(requested_partition.current_leader_epoch)
        if timestamp < EARLIEST_PENDING_UPLOAD or version < MIN_TIMESTAMP_VERSIONS.get(timestamp, 0):
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
        end = partition.read_limit(self._request.isolation_level) if from_consumer else log.end_offset
        result.timestamp, result.offset, leader_epoch = _find(partition, log, timestamp, end, match, after, max_opened)
        if (
            from_consumer
            and not partition.is_high_watermark_current
            and (timestamp == LATEST or (result.offset == NOT_FOUND and timestamp not in NEVER_FOUND))
        ):
            raise KafkaError(
                ErrorCode.OFFSET_NOT_AVAILABLE
                if version >= MIN_OFFSET_NOT_AVAILABLE_VERSION
                else ErrorCode.LEADER_NOT_AVAILABLE
            )
        if version >= 4:
            result.leader_epoch = leader_epoch


def _find(
    partition: Partition,
    log: Log,
    timestamp: int,
    end: int,
    match: TimestampOffset | None,
    after: int,
    max_opened: int,
) -> tuple[int, int, int]:
    """Return (timestamp, offset, leader epoch) of the match, each -1 if there is none."""
    if timestamp == LATEST:
        return NO_TIMESTAMP, end, partition.leader_epoch
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return NO_TIMESTAMP, log.start_offset, log.epochs.epoch_for(log.start_offset)
    if timestamp in NEVER_FOUND:
        return NO_TIMESTAMP, NOT_FOUND, NOT_FOUND
    if match is None:
        if timestamp == MAX_TIMESTAMP:
            match = log.offset_of_max_timestamp(after=after, max_opened=max_opened)
        else:
            match = log.offset_for_timestamp(timestamp, after=after, max_opened=max_opened)
    if match is None or match.offset >= end:
        return NO_TIMESTAMP, NOT_FOUND, NOT_FOUND
    return match.timestamp, match.offset, match.leader_epoch


def _segment_offsets(ctx: RequestContext, log: Log, timestamp: int, count: int, from_consumer: bool) -> list[int]:
    """Return the result in v0: the start offsets of up to `count` segments that were last written
    at or before the timestamp, newest first. The log end offset counts as a segment that is written
    now."""
    segments = [(max(s.base_offset, log.start_offset), s.last_modified_ms()) for s in log.segments]
    if log.active_segment.size:
        segments.append((log.end_offset, ctx.broker.clock.now_ms()))
    if timestamp == LATEST:
        end = len(segments)
    elif timestamp == EARLIEST:
        end = 1
    else:
        end = next((n for n in range(len(segments), 0, -1) if segments[n - 1][1] <= timestamp), 0)
    offsets = sorted((offset for offset, _ in segments[max(0, end - count) : end]), reverse=True)
    if from_consumer and any(offset > log.high_watermark for offset in offsets):
        return [log.high_watermark, *(offset for offset in offsets if offset <= log.high_watermark)]
    return offsets
