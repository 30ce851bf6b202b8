"""Asking partitions' leaders about offsets: the first, the last, those of a time, and where a leader's epoch ended."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from kavka.client.backoff import Backoff
from kavka.client.cluster import Cluster
from kavka.client.config import ClientConfig
from kavka.client.errors import KafkaTimeout, UnsupportedVersion, error_of
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kavka.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

log = logging.getLogger(__name__)

LATEST = -1
EARLIEST = -2
CONSUMER_REPLICA = -1
EPOCHS_FOR_CONSUMERS_FROM = 3


class Found(NamedTuple):
    """`offset` is -1 where no record has a timestamp as late as what was asked for."""

    offset: int
    timestamp: int = -1
    leader_epoch: int = -1


class EpochEnd(NamedTuple):
    """Where the largest epoch not above the one asked for ended; both -1 where the leader does not know."""

    epoch: int
    end_offset: int


class OffsetLookup:
    """Whoever refuses, or cannot be reached, is perhaps not the leader any more: then newer metadata is wanted. Nobody
    else would ask, as a partition is not fetched while its position is looked for, or in doubt."""

    def __init__(self, config: ClientConfig, cluster: Cluster) -> None:
        self._cluster = cluster
        self._isolation = 1 if config["isolation.level"] == "read_committed" else 0
        self._timeout = config.seconds("request.timeout.ms")
        self._backoff = Backoff(config["retry.backoff.ms"], config["retry.backoff.max.ms"])

    async def at_times(self, times: Mapping[TopicPartition, int], deadline: float) -> dict[TopicPartition, Found]:
        """For each partition the first record of that time (ms) or later; LATEST and EARLIEST are times too.

        Tries again until all leaders have answered, or the time is up (KafkaTimeout)."""
        found: dict[TopicPartition, Found] = {}
        failures = 0
        for topic in {tp.topic for tp in times}:
            if topic not in self._cluster.topics:
                await self._cluster.topic(topic, max(0.0, deadline - time.monotonic()))
        while True:
            missing = {tp: when for tp, when in times.items() if tp not in found}
            why = await self.ask(missing, found, deadline)
            if len(found) == len(times):
                return found
            failures += 1
            await self._pause(failures, deadline, f"no offsets of {_names(times, found)}: {why or 'no leader'}")

    async def ask(
        self, times: Mapping[TopicPartition, int], found: dict[TopicPartition, Found], deadline: float
    ) -> KafkaError | None:
        """One attempt, at those that have a leader; why what is missing is missing. What no attempt can cure is
        raised."""
        why: KafkaError | None = None
        requests = [self._ask(node, asked, found, deadline) for node, asked in self._by_leader(times).items()]
        for result in await asyncio.gather(*requests, return_exceptions=True):
            if isinstance(result, KafkaError):
                if not result.retriable or self._cluster.closed:
                    raise result
                why = result
            elif isinstance(result, BaseException):
                raise result
            else:
                why = result or why
        if why is not None:
            self._cluster.request_update()
        return why

    def _by_leader(self, asked: Mapping[TopicPartition, Any]) -> dict[int, dict[TopicPartition, Any]]:
        nodes: dict[int, dict[TopicPartition, Any]] = {}
        for tp, what in asked.items():
            leader = self._cluster.leader_of(tp.topic, tp.partition)
            if leader in self._cluster.nodes:
                nodes.setdefault(leader, {})[tp] = what
            else:
                self._cluster.request_update()
        return nodes

    async def _pause(self, failures: int, deadline: float, what: str) -> None:
        wait = self._backoff.delay(failures)
        if time.monotonic() + wait >= deadline:
            raise KafkaTimeout(what)
        await asyncio.sleep(wait)

    async def _ask(
        self, leader: int, asked: Mapping[TopicPartition, int], found: dict[TopicPartition, Found], deadline: float
    ) -> KafkaError | None:
        topics: dict[str, ListOffsetsTopic] = {}
        for tp, when in asked.items():
            topic = topics.setdefault(tp.topic, ListOffsetsTopic(name=tp.topic, partitions=[]))
            topic.partitions.append(
                ListOffsetsPartition(partition_index=tp.partition, current_leader_epoch=self._epoch(tp), timestamp=when)
            )
        limit = max(0.001, min(self._timeout, deadline - time.monotonic()))
        request = ListOffsetsRequest(
            replica_id=CONSUMER_REPLICA,
            isolation_level=self._isolation,
            topics=list(topics.values()),
            timeout_ms=int(limit * 1000),
        )
        response = await self._cluster.request(leader, request, timeout=limit)
        why: KafkaError | None = None
        for topic in response.topics:
            for one in topic.partitions:
                tp = TopicPartition(topic.name, one.partition_index)
                if one.error_code == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT:
                    found[tp] = Found(-1)
                elif one.error_code:
                    why = error_of(one.error_code, f"{tp}: {error_of(one.error_code)}")
                    if not why.retriable:
                        raise why
                else:
                    found[tp] = Found(one.offset, one.timestamp, one.leader_epoch)
        return why

    def _epoch(self, tp: TopicPartition) -> int:
        topic = self._cluster.topics.get(tp.topic)
        if topic is None or tp.partition >= len(topic.partitions):
            return -1
        return topic.partitions[tp.partition].leader_epoch

    async def epoch_ends(
        self, epochs: Mapping[TopicPartition, int], deadline: float
    ) -> dict[TopicPartition, EpochEnd | None]:
        """For each partition where that epoch ended, from those leaders that answer; None where a leader is too old to
        be asked. What is missing is to be tried again."""
        found: dict[TopicPartition, EpochEnd | None] = {}
        for leader, asked in self._by_leader(epochs).items():
            topics: dict[str, OffsetForLeaderTopic] = {}
            for tp, epoch in asked.items():
                topic = topics.setdefault(tp.topic, OffsetForLeaderTopic(topic=tp.topic, partitions=[]))
                topic.partitions.append(
                    OffsetForLeaderPartition(
                        partition=tp.partition, current_leader_epoch=self._epoch(tp), leader_epoch=epoch
                    )
                )
            try:
                limit = max(0.001, min(self._timeout, deadline - time.monotonic()))
                connection = await self._cluster.connection(leader, timeout=limit)
                if not connection.supports(OffsetForLeaderEpochRequest.API_KEY, EPOCHS_FOR_CONSUMERS_FROM):
                    found.update(dict.fromkeys(asked))
                    continue
                request = OffsetForLeaderEpochRequest(replica_id=CONSUMER_REPLICA, topics=list(topics.values()))
                response = await connection.send(request, timeout=limit)
            except UnsupportedVersion:
                found.update(dict.fromkeys(asked))
                continue
            except KafkaError as error:
                if not error.retriable or self._cluster.closed:
                    raise
                self._cluster.request_update()
                continue
            for topic_result in response.topics:
                for one in topic_result.partitions:
                    tp = TopicPartition(topic_result.topic, one.partition)
                    if not one.error_code:
                        found[tp] = EpochEnd(one.leader_epoch, one.end_offset)
                    elif one.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                        raise error_of(one.error_code, f"{tp}: {error_of(one.error_code)}")
                    else:
                        self._cluster.request_update()
        return found


def _names(asked: Mapping[TopicPartition, Any], found: Mapping[TopicPartition, Any]) -> str:
    missing = sorted(str(tp) for tp in asked if tp not in found)
    return ", ".join(missing[:5]) + (" …" if len(missing) > 5 else "")
