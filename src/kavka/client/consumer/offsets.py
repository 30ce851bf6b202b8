"""Offset lookups at partition leaders: the earliest and latest offsets, offsets by timestamp, and
the end offset of an epoch."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from kavka.client.cluster import Cluster
from kavka.client.config import ClientConfig
from kavka.client.errors import KafkaTimeout, UnsupportedVersion, error_of
from kavka.common.backoff import Backoff
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kavka.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

logger = logging.getLogger(__name__)

LATEST = -1
EARLIEST = -2
CONSUMER_REPLICA_ID = -1
# The first version of OffsetForLeaderEpoch that consumers may send.
MIN_EPOCH_LOOKUP_VERSION = 3


class OffsetResult(NamedTuple):
    """The result of a lookup. `offset` is -1 if all records are older than the timestamp."""

    offset: int
    timestamp: int = -1
    leader_epoch: int = -1


class EpochEnd(NamedTuple):
    """The end offset of the largest leader epoch that is not above the requested epoch. Both fields
    are -1 if the leader has no such epoch."""

    epoch: int
    end_offset: int


class OffsetLookup:
    """Sends lookups to leaders. After a failure it requests new metadata, because the broker may no
    longer be the leader. The fetcher does not detect this: it skips partitions without a valid
    position. Runs on the event loop."""

    def __init__(self, config: ClientConfig, cluster: Cluster) -> None:
        self._cluster = cluster
        self._isolation = 1 if config["isolation.level"] == "read_committed" else 0
        self._timeout = config.seconds("request.timeout.ms")
        self._backoff = Backoff(config["retry.backoff.ms"], config["retry.backoff.max.ms"])

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int], deadline: float
    ) -> dict[TopicPartition, OffsetResult]:
        """Return, for each partition, the first record whose timestamp is the given one (in ms) or
        later. LATEST and EARLIEST are accepted as timestamps.

        Retries until all leaders have responded. Raises KafkaTimeout at the deadline, and errors
        that are not retriable."""
        results: dict[TopicPartition, OffsetResult] = {}
        failures = 0
        for topic in {tp.topic for tp in times}:
            if topic not in self._cluster.topics:
                await self._cluster.topic(topic, max(0.0, deadline - time.monotonic()))
        while True:
            missing = {tp: timestamp for tp, timestamp in times.items() if tp not in results}
            error = await self.try_once(missing, results, deadline)
            if len(results) == len(times):
                return results
            failures += 1
            names = _missing_partitions(times, results)
            message = f"timed out looking up offsets for {names}: {error or 'no leader'}"
            await self._back_off(failures, deadline, message)

    async def try_once(
        self, times: Mapping[TopicPartition, int], results: dict[TopicPartition, OffsetResult], deadline: float
    ) -> KafkaError | None:
        """Look up the partitions that have a leader, without retries, and add them to `results`.
        Returns a retriable error if a lookup failed. Raises errors that are not retriable."""
        error: KafkaError | None = None
        requests = [
            self._list_offsets(node, node_times, results, deadline)
            for node, node_times in self._by_leader(times).items()
        ]
        for result in await asyncio.gather(*requests, return_exceptions=True):
            if isinstance(result, KafkaError):
                if not result.retriable or self._cluster.closed:
                    raise result
                error = result
            elif isinstance(result, BaseException):
                raise result
            else:
                error = result or error
        if error is not None:
            self._cluster.request_update()
        return error

    def _by_leader(self, values: Mapping[TopicPartition, Any]) -> dict[int, dict[TopicPartition, Any]]:
        nodes: dict[int, dict[TopicPartition, Any]] = {}
        for tp, value in values.items():
            leader = self._cluster.leader_of(tp.topic, tp.partition)
            if leader in self._cluster.nodes:
                nodes.setdefault(leader, {})[tp] = value
            else:
                self._cluster.request_update()
        return nodes

    async def _back_off(self, failures: int, deadline: float, message: str) -> None:
        wait = self._backoff.delay(failures)
        if time.monotonic() + wait >= deadline:
            raise KafkaTimeout(message)
        await asyncio.sleep(wait)

    async def _list_offsets(
        self,
        leader: int,
        times: Mapping[TopicPartition, int],
        results: dict[TopicPartition, OffsetResult],
        deadline: float,
    ) -> KafkaError | None:
        topics: dict[str, ListOffsetsTopic] = {}
        for tp, timestamp in times.items():
            topic = topics.setdefault(tp.topic, ListOffsetsTopic(name=tp.topic, partitions=[]))
            topic.partitions.append(
                ListOffsetsPartition(
                    partition_index=tp.partition, current_leader_epoch=self._epoch(tp), timestamp=timestamp
                )
            )
        timeout = max(0.001, min(self._timeout, deadline - time.monotonic()))
        request = ListOffsetsRequest(
            replica_id=CONSUMER_REPLICA_ID,
            isolation_level=self._isolation,
            topics=list(topics.values()),
            timeout_ms=int(timeout * 1000),
        )
        response = await self._cluster.request(leader, request, timeout=timeout)
        error: KafkaError | None = None
        for topic in response.topics:
            for partition in topic.partitions:
                tp = TopicPartition(topic.name, partition.partition_index)
                code = partition.error_code
                if code == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT:
                    results[tp] = OffsetResult(-1)
                elif code:
                    error = error_of(code, f"{tp}: {error_of(code)}")
                    if not error.retriable:
                        raise error
                else:
                    results[tp] = OffsetResult(partition.offset, partition.timestamp, partition.leader_epoch)
        return error

    def _epoch(self, tp: TopicPartition) -> int:
        topic = self._cluster.topics.get(tp.topic)
        if topic is None or tp.partition >= len(topic.partitions):
            return -1
        return topic.partitions[tp.partition].leader_epoch

    async def epoch_ends(
        self, epochs: Mapping[TopicPartition, int], deadline: float
    ) -> dict[TopicPartition, EpochEnd | None]:
        """Return the end of the epoch for each partition whose leader responds, or None for a
        partition whose leader does not support the request. The caller must retry missing
        partitions."""
        ends: dict[TopicPartition, EpochEnd | None] = {}
        for leader, leader_epochs in self._by_leader(epochs).items():
            topics: dict[str, OffsetForLeaderTopic] = {}
            for tp, epoch in leader_epochs.items():
                topic = topics.setdefault(tp.topic, OffsetForLeaderTopic(topic=tp.topic, partitions=[]))
                topic.partitions.append(
                    OffsetForLeaderPartition(
                        partition=tp.partition, current_leader_epoch=self._epoch(tp), leader_epoch=epoch
                    )
                )
            try:
                timeout = max(0.001, min(self._timeout, deadline - time.monotonic()))
                connection = await self._cluster.connection(leader, timeout=timeout)
                if not connection.supports(OffsetForLeaderEpochRequest.API_KEY, MIN_EPOCH_LOOKUP_VERSION):
                    ends.update(dict.fromkeys(leader_epochs))
                    continue
                request = OffsetForLeaderEpochRequest(replica_id=CONSUMER_REPLICA_ID, topics=list(topics.values()))
                response = await connection.send(request, timeout=timeout)
            except UnsupportedVersion:
                ends.update(dict.fromkeys(leader_epochs))
                continue
            except KafkaError as error:
                if not error.retriable or self._cluster.closed:
                    raise
                self._cluster.request_update()
                continue
            for topic_result in response.topics:
                for partition in topic_result.partitions:
                    tp = TopicPartition(topic_result.topic, partition.partition)
                    code = partition.error_code
                    if not code:
                        ends[tp] = EpochEnd(partition.leader_epoch, partition.end_offset)
                    elif code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                        raise error_of(code, f"{tp}: {error_of(code)}")
                    else:
                        self._cluster.request_update()
        return ends


def _missing_partitions(requested: Mapping[TopicPartition, Any], results: Mapping[TopicPartition, Any]) -> str:
    missing = sorted(str(tp) for tp in requested if tp not in results)
    return ", ".join(missing[:5]) + (" …" if len(missing) > 5 else "")
