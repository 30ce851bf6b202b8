"""One node with real logs and real coordinators, on a loop and a clock that tests control."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from kavka.common.broker_config import BROKER_CONFIGS
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.metrics import Registry
from kavka.common.topics import CONSUMER_OFFSETS, TRANSACTION_STATE
from kavka.common.types import TopicPartition
from kavka.coordinator.group.service import GroupCoordinator
from kavka.coordinator.transaction.service import TransactionCoordinator
from kavka.records.control import parse_end_marker
from kavka.replication.metadata_cache import (
    LEADER_DURING_DELETION,
    MetadataCache,
    PartitionInfo,
    TopicUpdate,
)
from kavka.replication.partition import Partition
from kavka.replication.partition_state import LeaderAndIsr
from kavka.replication.staged_appends import StagedAppends
from kavka.replication.topic_metrics import TopicMetrics
from kavka.storage.log import Log
from kavka.storage.log_config import LogConfig
from tests.support.logs import stored_batches
from tests.unit.coordinator.fakes import FakeClock, FakeLoop

ME = 0
STATE = TopicPartition(TRANSACTION_STATE, 0)
OFFSETS = TopicPartition(CONSUMER_OFFSETS, 0)

SETTINGS = {name.replace(".", "_"): value for name, value in BROKER_CONFIGS.defaults().items()} | {
    "transactional_id_expiration_ms": 600_000,
    "transaction_remove_expired_transaction_cleanup_interval_ms": 60_000,
    "transaction_state_log_num_partitions": 1,
    "offsets_topic_num_partitions": 1,
}


class Replicas:
    """The methods of a ReplicaManager that markers and produce requests use."""

    def __init__(self, cache: MetadataCache) -> None:
        self.partitions: dict[TopicPartition, Partition] = {}
        self.staged_appends = StagedAppends()
        self._cache = cache

    def leader(self, topic: str, index: int) -> Partition:
        partition = self.partitions.get(TopicPartition(topic, index))
        if partition is None or partition.log is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if not partition.is_leader:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return partition

    def count_failed_produce(self, topic: str, index: int) -> None:
        pass

    def topic_name(self, topic_id: UUID) -> str:
        name = self._cache.topic_name(topic_id)
        if name is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        return name


class ProducerIds:
    def __init__(self) -> None:
        self.last = 100

    async def next(self) -> int:
        self.last += 1
        return self.last


class Channel:
    """A channel to other brokers that stores requests until the test responds."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, Any, list[TopicPartition], Any]] = []

    def write_markers(self, broker_id: int, marker: Any, partitions: list[TopicPartition], done: Any) -> None:
        self.sent.append((broker_id, marker, list(partitions), done))

    def add_or_verify(self, *args: Any) -> Any:
        raise KafkaError(ErrorCode.NETWORK_EXCEPTION)


class Node:
    """`hold(tp)` prevents commits in a partition until `release(tp)`."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self.path = path
        self.clock = FakeClock()
        self.loop = FakeLoop(self.clock)
        self.settings = SimpleNamespace(**SETTINGS | settings)
        self.channel = Channel()
        self.metrics = TopicMetrics(Registry())
        self.producer_ids = ProducerIds()
        self.held: dict[TopicPartition, list[Callable[[], None]]] = {}
        self.start()

    def start(self) -> None:
        self.cache = MetadataCache()
        self.replicas = Replicas(self.cache)
        common = {
            "clock": self.clock,
            "metadata_cache": self.cache,
            "run_in_worker": lambda run, done: (run(), done(None)),
            "create_topic": None,
            "loop": self.loop,
        }
        self.groups = GroupCoordinator(
            self.settings,
            group_values=lambda group: {},
            **common,
        )
        self.transactions = TransactionCoordinator(
            self.settings,
            broker_id=ME,
            replica_manager=self.replicas,  # type: ignore[arg-type]
            producer_ids=self.producer_ids,
            offsets=self.groups.runtime,
            channel=self.channel,
            **common,  # type: ignore[arg-type]
        )
        self.transactions.start()

    def restart(self, *partitions: TopicPartition, epoch: int = 2) -> None:
        """Restart after a crash, with these partitions."""
        self.transactions.stop()
        self.groups.stop()
        for partition in self.replicas.partitions.values():
            assert partition.log is not None
            partition.log.abandon()
        self.start()
        for tp in partitions:
            self.lead(tp, epoch=epoch)

    # ---- partitions

    def lead(self, tp: TopicPartition, *, epoch: int = 1, is_published: bool = True, **config: Any) -> Partition:
        """Make this broker the leader of the partition. If `is_published`, also update the metadata
        cache."""
        topic_id = UUID(int=abs(hash(tp.topic)))
        partition = self.replicas.partitions.get(tp)
        if partition is None:
            partition = Partition(tp, topic_id, ME, self._worker(tp), self.metrics.of_topic(tp.topic))
        log = partition.log or Log.open(self.path / str(tp), tp, LogConfig(**config), self.clock, clean_shutdown=False)
        state = LeaderAndIsr(leader=ME, leader_epoch=epoch, isr=frozenset((ME,)), replicas=(ME,))
        partition.make_leader(state, log)
        self.replicas.partitions[tp] = partition
        if is_published:
            self.publish_leader(tp, ME)
        self.groups.on_leadership(partition, True)
        self.transactions.on_leadership(partition, True)
        return partition

    def publish_leader(self, tp: TopicPartition, leader: int) -> None:
        """Update the metadata cache. LEADER_DURING_DELETION marks a topic as deleted."""
        state = PartitionInfo(tp.partition, leader, replicas=[leader])
        topic = TopicUpdate(tp.topic, UUID(int=abs(hash(tp.topic))), [state])
        self.cache.update(topics=[topic])

    def delete(self, tp: TopicPartition) -> None:
        partition = self.replicas.partitions.pop(tp)
        assert partition.log is not None
        partition.log.abandon()
        self.publish_leader(tp, LEADER_DURING_DELETION)

    def resign(self, tp: TopicPartition) -> None:
        partition = self.replicas.partitions[tp]
        partition.stop()
        self.publish_leader(tp, 5)
        self.groups.on_leadership(partition, False)
        self.transactions.on_leadership(partition, False)

    def _worker(self, tp: TopicPartition) -> Any:
        def run(job: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
            def finish() -> None:
                job()
                done(None)

            if tp in self.held:
                self.held[tp].append(finish)
            else:
                finish()

        return run

    def hold(self, tp: TopicPartition) -> None:
        """Prevent commits in the partition. Its log needs flush_messages=1, so that the high
        watermark waits for a worker."""
        self.held.setdefault(tp, [])

    def release(self, tp: TopicPartition) -> None:
        for finish in self.held.pop(tp):
            finish()
        self.loop.run_ready()

    # ---- queries

    def log(self, tp: TopicPartition) -> Log:
        log = self.replicas.partitions[tp].log
        assert log is not None
        return log

    def markers(self, tp: TopicPartition) -> list[tuple[int, int, bool, int]]:
        """Return (producer id, epoch, commit, coordinator epoch) of each marker."""
        markers = []
        for batch in stored_batches(self.log(tp)):
            if batch.is_control:
                marker = parse_end_marker(batch)
                assert marker is not None
                markers.append((batch.producer_id, batch.producer_epoch, marker.commit, marker.coordinator_epoch))
        return markers

    def state(self, transactional_id: str) -> str:
        return self.transactions.host(transactional_id).shard.transactions[transactional_id].state.value

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run the function as a callback of the loop."""
        asyncio._set_running_loop(self.loop)  # type: ignore[arg-type]
        try:
            return function(*args)
        finally:
            asyncio._set_running_loop(None)

    def run(self, awaitable: Any, wait_ms: int = 0) -> Any:
        """Run the loop until a coroutine or future completes, for at most `wait_ms`. Return the
        result."""
        if asyncio.isfuture(awaitable):
            self.loop.run_ready()
            return awaitable.result()
        if not asyncio.iscoroutine(awaitable):
            return awaitable
        while True:
            try:
                awaited = self.call(awaitable.send, None)
            except StopIteration as stop:
                return stop.value
            self.loop.run_ready()
            while awaited is not None and not awaited.done():
                assert wait_ms > 0, "the coroutine does not complete in time"
                self.loop.advance(10)
                wait_ms -= 10
