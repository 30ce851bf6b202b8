"""The transaction coordinator of one broker: runs the operation of a request on the shard of its
transactional id."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol

from kavka.common.clock import Clock
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.metrics import Registry
from kavka.common.topics import TRANSACTION_STATE
from kavka.common.types import TopicPartition
from kavka.coordinator.internal_topic import CreateTopic, InternalTopic
from kavka.coordinator.operations import NOTHING, Timers
from kavka.coordinator.runtime import Runtime
from kavka.coordinator.shard_host import ShardHost
from kavka.coordinator.transaction.config import TransactionConfig
from kavka.coordinator.transaction.markers import LocalMarkers, Marker, MarkerChannel, MarkerSender, OnResults
from kavka.coordinator.transaction.shard import NeedsProducerId, ProducerIdAndEpoch, TransactionShard
from kavka.coordinator.transaction.state import EPOCH_BUMP_VERSION, PREPARE_COMMIT, State, Transaction
from kavka.metadata.store import StoreUnavailable
from kavka.replication.metadata_cache import MetadataCache
from kavka.replication.partition import Partition, RunInWorker
from kavka.replication.replica_manager import ReplicaManager

logger = logging.getLogger(__name__)

COMPLETION_RETRY_DELAY_S = 0.1
_NO_PARTITIONS: frozenset[TopicPartition] = frozenset()


class ProducerIds(Protocol):
    async def next(self) -> int: ...


class TransactionChannel(MarkerChannel, Protocol):
    """The connection to the coordinators and partition leaders on other brokers."""

    def add_or_verify(
        self,
        broker_id: int,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Sequence[TopicPartition],
        add: bool,
    ) -> Awaitable[frozenset[TopicPartition]]:
        """Call `TransactionCoordinator.add_or_verify` on another broker with AddPartitionsToTxn,
        which has `verify_only` set unless `add` is true."""


class TransactionCoordinator:
    """Owns the shards of `__transaction_state` that this broker leads.

    All methods run on the event loop. The methods for requests return the response, or a future or
    coroutine of the response. The call or the awaitable raises KafkaError.
    """

    def __init__(
        self,
        settings: Any,
        *,
        broker_id: int,
        clock: Clock,
        metadata_cache: MetadataCache,
        replica_manager: ReplicaManager,
        producer_ids: ProducerIds,
        run_in_worker: RunInWorker,
        create_topic: CreateTopic,
        offsets: Runtime[Any] | None = None,
        channel: TransactionChannel | None = None,
        transaction_version: Callable[[], int] = lambda: EPOCH_BUMP_VERSION,
        metrics: Registry | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """`offsets` is the group coordinator's runtime. `transaction_version` returns the finalized
        level of the feature `transaction.version`."""
        self._loop = loop or asyncio.get_running_loop()
        self._clock = clock
        self._broker_id = broker_id
        self._producer_ids = producer_ids
        self.channel = channel
        self._transaction_version = transaction_version
        self.config = TransactionConfig.of(settings)
        # A single node can have only one replica.
        is_cluster = bool(settings.zookeeper_connect)
        self.topic = InternalTopic(
            TRANSACTION_STATE,
            settings.transaction_state_log_num_partitions,
            settings.transaction_state_log_replication_factor if is_cluster else 1,
            {
                "cleanup.policy": "compact",
                "compression.type": "uncompressed",
                "unclean.leader.election.enable": "false",
                "min.insync.replicas": str(settings.transaction_state_log_min_isr if is_cluster else 1),
                "segment.bytes": str(settings.transaction_state_log_segment_bytes),
            },
            metadata_cache,
            create_topic,
        )
        self.runtime: Runtime[TransactionShard] = Runtime(
            TRANSACTION_STATE,
            self._make_shard,
            loop=self._loop,
            clock=clock,
            run_in_worker=run_in_worker,
            load_bytes=settings.transaction_state_log_load_buffer_size,
        )
        self.markers = MarkerSender(
            broker_id,
            LocalMarkers(replica_manager, offsets, clock),
            metadata_cache,
            self._loop,
            channel,
        )
        self._timers: list[asyncio.TimerHandle] = []
        self._committed = self._aborted = None
        if metrics is not None:
            ended = metrics.counter("kavka_transactions_total", "Transactions that ended here", ("result",))
            self._committed, self._aborted = ended.labels("committed"), ended.labels("aborted")
            metrics.gauge("kavka_transactional_ids", "Transactional ids that this broker keeps", read=self._count)

    def _make_shard(self, timers: Timers) -> TransactionShard:
        return TransactionShard(self._clock, timers, self.config, self._end, self._transaction_version)

    # ---- start and stop

    def start(self) -> None:
        self._timers = [
            self._loop.call_later(self.config.abort_check_interval_ms / 1000, self._abort_timed_out),
            self._loop.call_later(self.config.expiration_check_interval_ms / 1000, self._expire),
        ]

    def stop(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers = []
        self.runtime.close()

    def _abort_timed_out(self) -> None:
        self._timers[0] = self._loop.call_later(self.config.abort_check_interval_ms / 1000, self._abort_timed_out)
        for host in self.runtime.active_hosts():
            for outcome in host.shard.abort_timed_out():
                logger.info("Aborting the transaction of %s: it has timed out", outcome.records[0].transactional_id)
                host.submit_background(outcome)

    def _expire(self) -> None:
        self._timers[1] = self._loop.call_later(self.config.expiration_check_interval_ms / 1000, self._expire)
        for host in self.runtime.active_hosts():
            host.submit_background(host.shard.expire())

    def on_leadership(self, partition: Partition, is_leader: bool) -> None:
        self.runtime.on_leadership(partition, is_leader)

    # ---- shards

    def host(self, transactional_id: str) -> ShardHost[TransactionShard]:
        """Return the host of the id's shard. Raises NOT_COORDINATOR or COORDINATOR_LOAD_IN_PROGRESS
        if this broker cannot serve the id."""
        return self.runtime.host(self.topic.partition_of(transactional_id))

    # ---- producers

    async def new_producer_id(self) -> int:
        try:
            return await self._producer_ids.next()
        except OverflowError as error:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) from error
        except StoreUnavailable as error:
            # Producers retry on this error code.
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, str(error)) from error

    async def init_producer(
        self, transactional_id: str, timeout_ms: int, expected: tuple[int, int] | None = None
    ) -> ProducerIdAndEpoch:
        new_producer_id: int | None = None
        while True:
            host = self._checked_host(transactional_id)
            try:
                outcome = host.shard.init_producer(transactional_id, timeout_ms, expected, new_producer_id)
            except NeedsProducerId:
                new_producer_id = await self.new_producer_id()
                continue
            producer: ProducerIdAndEpoch = await host.submit(outcome)
            if producer.error is not ErrorCode.NONE:
                raise KafkaError(producer.error)
            return producer

    def _checked_host(self, transactional_id: str) -> ShardHost[TransactionShard]:
        if not transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "The transactional id is empty.")
        return self.host(transactional_id)

    # ---- partitions

    def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Iterable[TopicPartition],
        client_transaction_version: int = 0,
        response: Any = None,
    ) -> Any:
        """Return `response`, or a future of `response` that completes when the partitions are
        committed to the coordinator's log."""
        host = self._checked_host(transactional_id)
        outcome = host.shard.add_partitions(
            transactional_id, producer_id, epoch, partitions, client_transaction_version
        )
        if outcome is NOTHING:
            return host.read(lambda _: response)
        return host.append(outcome.records, response)

    def missing_partitions(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: Sequence[TopicPartition]
    ) -> frozenset[TopicPartition] | asyncio.Future[frozenset[TopicPartition]]:
        """Return the partitions that are not in the producer's transaction, or a future of them."""
        host = self._checked_host(transactional_id)
        host.write_open_batch()
        missing: frozenset[TopicPartition] | asyncio.Future[frozenset[TopicPartition]] = host.read(
            TransactionShard.missing_partitions, transactional_id, producer_id, epoch, partitions
        )
        return missing

    def add_or_verify(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: Sequence[TopicPartition], *, add: bool
    ) -> frozenset[TopicPartition] | Awaitable[frozenset[TopicPartition]]:
        """Return the partitions that are not in the producer's transaction, or an awaitable of
        them. The leader of the partitions calls this before it appends records.

        With `add`, the partitions are added first. On a single node the result is no awaitable.
        """
        leader = self.topic.leader_of(transactional_id)
        if leader is not None and leader != self._broker_id and self.channel is not None:
            return self.channel.add_or_verify(leader, transactional_id, producer_id, epoch, partitions, add)
        if not add:
            return self.missing_partitions(transactional_id, producer_id, epoch, partitions)
        result: frozenset[TopicPartition] | asyncio.Future[frozenset[TopicPartition]] = self.add_partitions(
            transactional_id, producer_id, epoch, partitions, EPOCH_BUMP_VERSION, _NO_PARTITIONS
        )
        if isinstance(result, asyncio.Future):
            # The producer's records wait for this write: do not wait for the end of the iteration.
            self.host(transactional_id).write_open_batch()
            if result.done():
                return result.result()
        return result

    # ---- the end of a transaction

    def end(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        commit: bool,
        client_transaction_version: int,
        respond: Callable[[ProducerIdAndEpoch], Any],
        new_producer_id: int | None = None,
    ) -> Any:
        """Return the result of `respond` for the next producer id and epoch, or a future or
        coroutine of that result."""
        host = self._checked_host(transactional_id)
        try:
            outcome = host.shard.end(
                transactional_id, producer_id, epoch, commit, client_transaction_version, new_producer_id
            )
        except NeedsProducerId:
            retry = partial(self.end, transactional_id, producer_id, epoch, commit, client_transaction_version, respond)
            return self._end_with_new_id(retry)
        return host.append(outcome.records, respond(outcome.response), outcome.on_append)

    async def _end_with_new_id(self, end: Callable[[int], Any]) -> Any:
        response = end(await self.new_producer_id())
        return await response if isinstance(response, asyncio.Future) else response

    def _end(self, transactional_id: str, prepared: Transaction) -> None:
        """Write the markers of a prepared transaction, then complete it."""
        try:
            host = self.host(transactional_id)
        except KafkaError:
            return
        commit = prepared.state is PREPARE_COMMIT
        marker = Marker(
            prepared.producer_id,
            prepared.epoch,
            commit,
            host.partition.leader_epoch,
            prepared.client_transaction_version,
        )
        shard = host.shard

        def is_needed() -> bool:
            return shard.transactions.get(transactional_id) is prepared

        on_written = partial(self._complete, host, transactional_id, prepared)
        self.markers.send(marker, prepared.partitions, is_needed, on_written)

    def _complete(self, host: ShardHost[TransactionShard], transactional_id: str, prepared: Transaction) -> None:
        """Complete a transaction whose markers are all written. Retry if the write fails."""

        def on_append(error: KafkaError | None) -> None:
            if error is None:
                counter = self._committed if prepared.state is PREPARE_COMMIT else self._aborted
                if counter is not None:
                    counter.value += 1
            elif host.shard.transactions.get(transactional_id) is prepared:
                self._loop.call_later(COMPLETION_RETRY_DELAY_S, self._complete, host, transactional_id, prepared)

        host.submit_background(host.shard.complete(transactional_id, prepared, on_append))

    def write_markers(self, marker: Marker, partitions: Iterable[TopicPartition], on_results: OnResults) -> None:
        """Write markers of any coordinator to partitions that this broker leads."""
        self.markers.local.write(marker, partitions, on_results)

    # ---- queries

    def describe(self, transactional_id: str) -> Any:
        return self._checked_host(transactional_id).read(TransactionShard.describe, transactional_id)

    def list(
        self,
        producer_ids: Sequence[int],
        states: frozenset[State] | None,
        running_for_ms: int = -1,
        matches: Callable[[str], object] | None = None,
    ) -> list[tuple[str, Transaction]]:
        """Return the matching transactions with their ids (see `TransactionShard.list`). Raises
        COORDINATOR_LOAD_IN_PROGRESS while a shard is loading."""
        if self.runtime.is_loading:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return [
            entry
            for host in self.runtime.active_hosts()
            for entry in host.shard.list(producer_ids, states, running_for_ms, matches)
        ]

    def _count(self) -> float:
        return float(sum(len(host.shard.transactions) for host in self.runtime.active_hosts()))
