"""The markers that end a transaction in its partitions.

`LocalMarkers` writes markers to partitions that this broker leads, for the coordinators of this
broker and of other brokers (WriteTxnMarkers). `MarkerSender` sends markers to the leaders on all
brokers and retries until all partitions of a transaction have their markers. A marker that is
written twice changes nothing, so after a crash all markers are written again.

A marker in a partition of `__consumer_offsets` goes through the group coordinator, which applies
the pending offsets of the transaction.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

from kavka.common.backoff import Backoff
from kavka.common.clock import Clock
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.topics import TRANSACTION_STATE
from kavka.common.types import TopicPartition
from kavka.coordinator.runtime import Runtime
from kavka.coordinator.transaction.state import EPOCH_BUMP_VERSION
from kavka.records.control import end_marker
from kavka.replication.metadata_cache import MetadataCache
from kavka.replication.partition import Partition
from kavka.replication.replica_manager import ReplicaManager

logger = logging.getLogger(__name__)

RETRY_BACKOFF = Backoff(20, 1_000, jitter=0)
# The maximum time that a broker which has just started waits for the metadata of all topics. Then
# it considers unknown topics deleted.
MAX_TOPIC_DISCOVERY_S = 5.0

Results = dict[TopicPartition, ErrorCode]
OnResults = Callable[[Results], None]


class Marker(NamedTuple):
    """The end marker of one transaction. From `transaction_version` 2 on, the epoch of the marker
    is higher than the epoch of the records."""

    producer_id: int
    epoch: int
    commit: bool
    coordinator_epoch: int
    transaction_version: int = 0


class MarkerChannel(Protocol):
    """The connection to other brokers. It may combine requests to the same broker."""

    def write_markers(
        self, broker_id: int, marker: Marker, partitions: list[TopicPartition], on_results: OnResults
    ) -> None:
        """Call `on_results` with an error code for every partition: NETWORK_EXCEPTION if the broker
        is unreachable."""


@dataclass(slots=True, eq=False, repr=False)
class LocalMarkers:
    """Writes markers to partitions that this broker leads. `_offsets` is the runtime of
    `__consumer_offsets`."""

    _replicas: ReplicaManager
    _offsets: Runtime[Any] | None
    _clock: Clock

    def has_replica(self, tp: TopicPartition) -> bool:
        return tp in self._replicas.partitions

    def write(self, marker: Marker, partitions: Iterable[TopicPartition], on_results: OnResults) -> None:
        """Write the marker. Call `on_results` when it is committed or has failed in every
        partition: before this method returns, if no partition has to wait."""
        producer_id, epoch, commit, coordinator_epoch, transaction_version = marker
        batch = end_marker(commit, producer_id, epoch, coordinator_epoch, self._clock.now_ms())
        write = _MarkerWrite(on_results)
        for tp in partitions:
            try:
                partition = self._replicas.leader(*tp)
                assert partition.log is not None
                if transaction_version >= EPOCH_BUMP_VERSION:
                    partition.log.producer_states.check_bumped_epoch(producer_id, epoch)
                if self._offsets is not None and tp.topic == self._offsets.topic:
                    host = self._offsets.host(tp.partition)
                    write.add_future(tp, host.end_transaction(producer_id, epoch, coordinator_epoch, commit))
                else:
                    write.add_partition(tp, partition, _append(partition, bytearray(batch)))
            except KafkaError as error:
                write.results[tp] = error.code
        write.start()


def _append(partition: Partition, batch: bytearray) -> int:
    """Write the marker. Return the offset that the high watermark has to reach."""
    try:
        info = partition.append(batch)
    except KafkaError as error:
        partition.report_storage_failure(error)
        raise
    partition.advance()
    return info.last_offset + 1


@dataclass(slots=True, eq=False, repr=False)
class _MarkerWrite:
    """The write of one marker to partitions of this broker. It is in the purgatory of each
    partition until the marker is committed there."""

    _on_results: OnResults
    results: Results = field(init=False, default_factory=dict)
    # Pending partitions, with the offset that the high watermark has to reach.
    _partitions: dict[Partition, tuple[TopicPartition, int]] = field(init=False, default_factory=dict)
    # Pending partitions of `__consumer_offsets`.
    _futures: set[TopicPartition] = field(init=False, default_factory=set)
    _is_started: bool = field(init=False, default=False)

    def add_partition(self, tp: TopicPartition, partition: Partition, end_offset: int) -> None:
        if partition.has_reached(end_offset, True):
            self.results[tp] = ErrorCode.NONE
        else:
            self._partitions[partition] = (tp, end_offset)
            partition.pending_appends.add(self)

    def add_future(self, tp: TopicPartition, future: asyncio.Future[Any]) -> None:
        if future.done():
            self.results[tp] = _code_of(future)
        else:
            self._futures.add(tp)
            future.add_done_callback(partial(self._on_future, tp))

    def start(self) -> None:
        """Allow the write to complete. Called after all partitions are added."""
        self._is_started = True
        self._finish_if_complete()

    def check(self, partition: Partition) -> None:
        pending = self._partitions.get(partition)
        if pending is not None and partition.has_reached(pending[1], True):
            self._on_partition(partition, ErrorCode.NONE)

    def fail(self, partition: Partition, code: ErrorCode) -> None:
        if partition in self._partitions:
            self._on_partition(partition, code)

    def _on_partition(self, partition: Partition, code: ErrorCode) -> None:
        partition.pending_appends.discard(self)
        tp, _ = self._partitions.pop(partition)
        self.results[tp] = code
        self._finish_if_complete()

    def _on_future(self, tp: TopicPartition, future: asyncio.Future[Any]) -> None:
        self._futures.discard(tp)
        self.results[tp] = _code_of(future)
        self._finish_if_complete()

    def _finish_if_complete(self) -> None:
        if self._is_started and not self._partitions and not self._futures:
            self._is_started = False
            self._on_results(self.results)


def _code_of(future: asyncio.Future[Any]) -> ErrorCode:
    if future.cancelled():
        return ErrorCode.NOT_COORDINATOR
    error = future.exception()
    if error is None:
        return ErrorCode.NONE
    return error.code if isinstance(error, KafkaError) else ErrorCode.UNKNOWN_SERVER_ERROR


@dataclass(eq=False, repr=False)
class MarkerSender:
    """Sends the markers of this broker's coordinator to the partition leaders.

    A metadata cache without `__transaction_state` is incomplete. Until it contains the topic, no
    unknown partition is considered deleted.
    """

    _broker_id: int
    local: LocalMarkers
    _cache: MetadataCache
    loop: asyncio.AbstractEventLoop
    channel: MarkerChannel | None = None
    _cache_ready_at: float | None = field(init=False, default=None)

    def send(
        self,
        marker: Marker,
        partitions: Iterable[TopicPartition],
        is_needed: Callable[[], bool],
        on_written: Callable[[], None],
    ) -> None:
        """Call `on_written` when every partition has its marker or is deleted. `on_written` is not
        called if `is_needed` becomes false or a newer coordinator ends the transaction."""
        _MarkerDelivery(self, marker, set(partitions), is_needed, on_written).send_round()

    def by_leader(self, partitions: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
        """Return the partitions by leader. The leader is -1 if it is unknown or there is none."""
        by_leader: dict[int, list[TopicPartition]] = {}
        for tp in partitions:
            state = self._cache.partition_state(*tp)
            by_leader.setdefault(-1 if state is None else state.leader, []).append(tp)
        return by_leader

    def is_deleted(self, tp: TopicPartition) -> bool:
        if TRANSACTION_STATE not in self._cache.topics:
            return False
        if self._cache_ready_at is None:
            self._cache_ready_at = self.loop.time()
        return (
            self._cache.partition_state(*tp) is None
            and not self.local.has_replica(tp)
            and self.loop.time() - self._cache_ready_at >= MAX_TOPIC_DISCOVERY_S
        )

    def write(self, broker_id: int, marker: Marker, partitions: list[TopicPartition], on_results: OnResults) -> None:
        if broker_id == self._broker_id:
            self.local.write(marker, partitions, on_results)
        elif broker_id >= 0 and self.channel is not None:
            self.channel.write_markers(broker_id, marker, partitions, on_results)
        else:
            on_results(dict.fromkeys(partitions, ErrorCode.LEADER_NOT_AVAILABLE))


@dataclass(slots=True, eq=False, repr=False)
class _MarkerDelivery:
    """Sends the marker of one transaction to its partitions, in rounds. `_remaining` are the
    partitions without the marker."""

    _sender: MarkerSender
    _marker: Marker
    _remaining: set[TopicPartition]
    _is_needed: Callable[[], bool]
    _on_written: Callable[[], None]
    _in_flight: int = field(init=False, default=0)
    _rounds: int = field(init=False, default=0)
    _is_fenced: bool = field(init=False, default=False)

    def send_round(self) -> None:
        if not self._is_needed():
            return
        by_leader = self._sender.by_leader(self._remaining)
        # The extra count prevents synchronous results from ending the round before all requests are
        # sent.
        self._in_flight = len(by_leader) + 1
        for broker_id, partitions in by_leader.items():
            self._sender.write(broker_id, self._marker, partitions, self._on_results)
        self._on_results({})

    def _on_results(self, results: Results) -> None:
        self._in_flight -= 1
        for tp, code in results.items():
            if code is ErrorCode.TRANSACTION_COORDINATOR_FENCED:
                logger.warning("A newer coordinator has ended the transaction of producer %d", self._marker.producer_id)
                self._is_fenced = True
                return
            if self._is_final(tp, code):
                self._remaining.discard(tp)
        if self._in_flight or self._is_fenced or not self._is_needed():
            return
        if not self._remaining:
            self._on_written()
            return
        self._rounds += 1
        self._sender.loop.call_later(RETRY_BACKOFF.delay(self._rounds), self.send_round)

    def _is_final(self, tp: TopicPartition, code: ErrorCode) -> bool:
        if code in (ErrorCode.NONE, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT):
            return True
        if code is ErrorCode.INVALID_PRODUCER_EPOCH:
            # The partition accepts a later epoch only after this transaction has ended there.
            logger.warning("%s has a newer epoch of producer %d than the marker", tp, self._marker.producer_id)
            return True
        return self._sender.is_deleted(tp)
