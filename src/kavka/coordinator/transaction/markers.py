"""The markers that end a transaction in its partitions.

`LocalMarkers` writes them to partitions that this broker leads, for its own coordinator and for those of other brokers
(WriteTxnMarkers). `MarkerSender` sees to it that all partitions of a transaction get theirs, wherever they are led, and
goes on trying until they have. A marker that is written twice changes nothing, so after a crash all are written again.

Partitions of `__consumer_offsets` are the group coordinator's: it takes the marker in, and with it what was
committed in the transaction.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple, Protocol

from kavka.common.clock import Clock
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.coordinator.runtime import Runtime
from kavka.coordinator.transaction.state import EPOCH_BUMP_VERSION
from kavka.records.control import end_marker
from kavka.replication.metadata_cache import MetadataCache
from kavka.replication.partition import Partition
from kavka.replication.replica_manager import ReplicaManager
from kavka.storage.log_append import AppendOrigin

log = logging.getLogger(__name__)

FIRST_RETRY_S = 0.02
LONGEST_RETRY_S = 1.0
# How long a broker that has just started is given to hear of every topic, before one that it does not know is gone.
HEAR_OF_TOPICS_S = 5.0

Results = dict[TopicPartition, ErrorCode]
Done = Callable[[Results], None]


class Marker(NamedTuple):
    """`version` is that of transactions: from 2 on the epoch is above that of the records that it ends."""

    producer_id: int
    epoch: int
    commit: bool
    coordinator_epoch: int
    version: int = 0


class MarkerChannel(Protocol):
    """The way to other brokers. Requests to one broker may be sent together: that is the channel's matter."""

    def write_markers(self, broker_id: int, marker: Marker, partitions: list[TopicPartition], done: Done) -> None:
        """`done` gets a code for every partition, NETWORK_EXCEPTION where the broker cannot be reached."""


class LocalMarkers:
    def __init__(self, replicas: ReplicaManager, offsets: Runtime[Any] | None, clock: Clock) -> None:
        self._replicas = replicas
        self._offsets = offsets
        self._offsets_topic = None if offsets is None else offsets.topic
        self._clock = clock

    def holds(self, tp: TopicPartition) -> bool:
        return tp in self._replicas.partitions

    def write(self, marker: Marker, partitions: Iterable[TopicPartition], done: Done) -> None:
        """`done` is called when every partition has the marker committed, or has failed: at once where nothing has to
        be waited for."""
        producer_id, epoch, commit, coordinator_epoch, version = marker
        batch = end_marker(commit, producer_id, epoch, coordinator_epoch, self._clock.now_ms())
        write = _Write(done)
        for tp in partitions:
            try:
                partition = self._replicas.leader(*tp)
                assert partition.log is not None
                if version >= EPOCH_BUMP_VERSION:
                    partition.log.producer_states.check_raised_epoch(producer_id, epoch)
                if tp.topic == self._offsets_topic and self._offsets is not None:
                    host = self._offsets.host(tp.partition)
                    write.wait_for(tp, host.end_transaction(producer_id, epoch, coordinator_epoch, commit))
                else:
                    write.wait_at(tp, partition, _append(partition, bytearray(batch)))
            except KafkaError as error:
                write.results[tp] = error.code
        write.start()


def _append(partition: Partition, batch: bytearray) -> int:
    """Write the marker; returns the offset that the high watermark has to reach."""
    info = partition.stage(memoryview(batch), -1, None, AppendOrigin.COORDINATOR)
    try:
        partition.write_staged()
    except KafkaError as error:
        if partition.on_storage_failure is not None:
            partition.on_storage_failure(partition, error.__cause__ or error)
        raise
    partition.advance()
    return info.last_offset + 1


class _Write:
    """One marker on its way to partitions of this broker; waits where one is not committed at once."""

    __slots__ = ("_done", "_futures", "_partitions", "_started", "results")

    def __init__(self, done: Done) -> None:
        self.results: Results = {}
        self._done = done
        self._partitions: dict[Partition, tuple[TopicPartition, int]] = {}
        self._futures: set[TopicPartition] = set()
        self._started = False

    def wait_at(self, tp: TopicPartition, partition: Partition, end_offset: int) -> None:
        if partition.has(end_offset, True):
            self.results[tp] = ErrorCode.NONE
        else:
            self._partitions[partition] = (tp, end_offset)
            partition.produce_waiters.add(self)

    def wait_for(self, tp: TopicPartition, future: asyncio.Future[Any]) -> None:
        if future.done():
            self.results[tp] = _code_of(future)
        else:
            self._futures.add(tp)
            future.add_done_callback(partial(self._future_done, tp))

    def start(self) -> None:
        self._started = True
        self._finish()

    def check(self, partition: Partition) -> None:
        wanted = self._partitions.get(partition)
        if wanted is not None and partition.has(wanted[1], True):
            self._partition_done(partition, ErrorCode.NONE)

    def fail(self, partition: Partition, code: ErrorCode) -> None:
        if partition in self._partitions:
            self._partition_done(partition, code)

    def _partition_done(self, partition: Partition, code: ErrorCode) -> None:
        partition.produce_waiters.discard(self)
        tp, _ = self._partitions.pop(partition)
        self.results[tp] = code
        self._finish()

    def _future_done(self, tp: TopicPartition, future: asyncio.Future[Any]) -> None:
        self._futures.discard(tp)
        self.results[tp] = _code_of(future)
        self._finish()

    def _finish(self) -> None:
        if self._started and not self._partitions and not self._futures:
            self._started = False
            self._done(self.results)


def _code_of(future: asyncio.Future[Any]) -> ErrorCode:
    if future.cancelled():
        return ErrorCode.NOT_COORDINATOR
    error = future.exception()
    if error is None:
        return ErrorCode.NONE
    return error.code if isinstance(error, KafkaError) else ErrorCode.UNKNOWN_SERVER_ERROR


class MarkerSender:
    """`coordinator_topic` is the one in which the decisions are: while the cache does not know even that, it cannot
    tell whether a partition is gone or not heard of yet."""

    def __init__(
        self,
        broker_id: int,
        local: LocalMarkers,
        cache: MetadataCache,
        coordinator_topic: str,
        loop: asyncio.AbstractEventLoop,
        channel: MarkerChannel | None = None,
    ) -> None:
        self.local = local
        self.channel = channel
        self._broker_id = broker_id
        self._cache = cache
        self._coordinator_topic = coordinator_topic
        self._loop = loop
        self._hears_since: float | None = None

    def send(
        self,
        marker: Marker,
        partitions: Iterable[TopicPartition],
        is_wanted: Callable[[], bool],
        done: Callable[[bool], None],
    ) -> None:
        """`done(True)` when every partition has its marker (or is gone), `done(False)` when a coordinator that came
        later has taken over; neither where it is no longer wanted."""
        _Sending(self, marker, set(partitions), is_wanted, done).go_on()

    def by_leader(self, partitions: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
        """The partitions by the broker that leads them, -1 where none does (or that is not known)."""
        found: dict[int, list[TopicPartition]] = {}
        for tp in partitions:
            state = self._cache.partition_state(*tp)
            found.setdefault(-1 if state is None else state.leader, []).append(tp)
        return found

    def is_gone(self, tp: TopicPartition) -> bool:
        if self._coordinator_topic not in self._cache.topics:
            return False
        if self._hears_since is None:
            self._hears_since = self._loop.time()
        return (
            self._cache.partition_state(*tp) is None
            and not self.local.holds(tp)
            and self._loop.time() - self._hears_since >= HEAR_OF_TOPICS_S
        )

    def write(self, broker_id: int, marker: Marker, partitions: list[TopicPartition], done: Done) -> None:
        if broker_id == self._broker_id:
            self.local.write(marker, partitions, done)
        elif broker_id >= 0 and self.channel is not None:
            self.channel.write_markers(broker_id, marker, partitions, done)
        else:
            done(dict.fromkeys(partitions, ErrorCode.LEADER_NOT_AVAILABLE))

    def later(self, delay_s: float, callback: Callable[[], None]) -> None:
        self._loop.call_later(delay_s, callback)


class _Sending:
    """The markers of one transaction that are not written yet."""

    __slots__ = ("_delay_s", "_done", "_is_wanted", "_marker", "_sender", "_under_way", "left")

    def __init__(
        self,
        sender: MarkerSender,
        marker: Marker,
        partitions: set[TopicPartition],
        is_wanted: Callable[[], bool],
        done: Callable[[bool], None],
    ) -> None:
        self.left = partitions
        self._sender = sender
        self._marker = marker
        self._is_wanted = is_wanted
        self._done = done
        self._under_way = 0
        self._delay_s = FIRST_RETRY_S

    def go_on(self) -> None:
        if not self._is_wanted():
            return
        by_leader = self._sender.by_leader(self.left)
        # One more than there are, so that answers that come at once do not end the round before it has begun.
        self._under_way = len(by_leader) + 1
        for broker_id, partitions in by_leader.items():
            self._sender.write(broker_id, self._marker, partitions, self._take)
        self._take({})

    def _take(self, results: Results) -> None:
        self._under_way -= 1
        for tp, code in results.items():
            if code is ErrorCode.TRANSACTION_COORDINATOR_FENCED:
                log.warning("Another coordinator has ended the transaction of producer %d", self._marker.producer_id)
                self._is_wanted = _no
                self._done(False)
                return
            if self._is_settled(tp, code):
                self.left.discard(tp)
        if self._under_way or not self._is_wanted():
            return
        if not self.left:
            self._done(True)
            return
        self._sender.later(self._delay_s, self.go_on)
        self._delay_s = min(2 * self._delay_s, LONGEST_RETRY_S)

    def _is_settled(self, tp: TopicPartition, code: ErrorCode) -> bool:
        if code in (ErrorCode.NONE, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT):
            return True
        if code is ErrorCode.INVALID_PRODUCER_EPOCH:
            # Records of a later epoch can only be there when this transaction was ended there before.
            log.warning("%s has a later epoch of producer %d than the marker", tp, self._marker.producer_id)
            return True
        return self._sender.is_gone(tp)


def _no() -> bool:
    return False
