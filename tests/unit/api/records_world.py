"""Partitions with real logs and the handlers of Produce, Fetch and similar requests, without a
network."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

from kavka.api.fetch_session import FetchSessionCache
from kavka.broker.settings import Settings
from kavka.broker.workers import Workers
from kavka.common.clock import SystemClock
from kavka.common.metrics import Registry
from kavka.common.types import TopicPartition
from kavka.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from kavka.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from kavka.records.control import end_marker
from kavka.replication.metadata_cache import MetadataCache
from kavka.replication.partition import Partition
from kavka.replication.partition_state import LeaderAndIsr, PartitionOrder, ReplicaStop
from kavka.replication.replica_manager import ReplicaManager
from kavka.replication.topic_metrics import TopicMetrics
from kavka.security.quotas import ConnectionQuota
from kavka.storage.file_slice import FileSlice
from kavka.storage.log_config import LogConfig
from kavka.storage.log_manager import LogManager
from tests.support.handlers import call_handler
from tests.support.logs import build

NEWEST_FETCH = 12  # the last version with topics by name
NEWEST_PRODUCE = 12


def batch(count: int = 1, size: int = 10, **options: Any) -> bytearray:
    return build([(None, bytes(size))] * count, timestamp=int(time.time() * 1000), **options)


class RecordsWorld:
    """One broker that leads all its partitions. `failed` collects failed log directories."""

    def __init__(self, folder: Path, dirs: tuple[str, ...] = ("data",), **changes: str) -> None:
        self.configs: dict[str, LogConfig] = {}
        self.workers = Workers(2)
        clock = SystemClock()
        cache = MetadataCache()
        self.failed: list[Any] = []
        self.log_manager = LogManager(
            [folder / name for name in dirs],
            lambda topic: self.configs.get(topic, LogConfig()),
            None,
            clock,
            on_dir_failure=self._dir_failed,
        )
        self.log_manager.open_dirs()
        self.log_manager.write_ids(0, "cluster")
        self.log_manager.load()
        self.metrics = Registry()
        self.replicas = ReplicaManager(0, self.log_manager, cache, self.workers.post, TopicMetrics(self.metrics))
        self.broker: Any = SimpleNamespace(
            settings=Settings(changes),
            clock=clock,
            log_manager=self.log_manager,
            replica_manager=self.replicas,
            metadata_cache=cache,
            run_in_worker=self.workers.run,
            fetch_sessions=FetchSessionCache(10, 120.0, time.monotonic),
            now_ms=lambda: self.now_ms,
        )
        self.now_ms = 0
        self.quota: ConnectionQuota | None = None

    def _dir_failed(self, directory: Any, offline: Any) -> None:
        self.failed.append(directory)
        self.replicas.on_dir_failure(directory, offline)

    async def create(self, topic: str, partitions: int = 1, epoch: int = 0, **config: Any) -> Partition:
        """Create a topic that this broker leads. Returns partition 0."""
        if config:
            self.configs[topic] = replace(LogConfig(), **config)
        existing = self.replicas.partitions.get((topic, 0))
        topic_id: UUID = existing.topic_id if existing is not None else uuid4()
        state = LeaderAndIsr(leader=0, leader_epoch=epoch, isr=frozenset((0,)), replicas=(0,), is_new=existing is None)
        orders = [PartitionOrder(TopicPartition(topic, index), topic_id, state) for index in range(partitions)]
        await self.replicas.become_leader_or_follower(1, orders)
        return self.partition(topic)

    def partition(self, topic: str, index: int = 0) -> Partition:
        return self.replicas.partitions[topic, index]

    async def delete(self, topic: str) -> None:
        await self.replicas.stop_replicas(1, [ReplicaStop(TopicPartition(topic, 0), -1, True)])

    # ---- requests

    def send(self, request: Any, version: int) -> Any:
        """The handler's response, or a future of it. Staged appends are written as at the end of a
        turn."""
        result = call_handler(self.broker, request, version, self.quota)
        self.replicas.staged_appends.write()
        return result

    def produce(self, *records: tuple[str, int, bytes], acks: int = 1, version: int = NEWEST_PRODUCE) -> Any:
        """Produce batches to each (topic, partition). Returns the response or a future of it."""
        request = ProduceRequest(
            acks=acks,
            timeout_ms=10_000,
            topic_data=[
                TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=index, records=data)])
                for topic, index, data in records
            ],
        )
        return self.send(request, version)

    def append(self, topic: str, index: int = 0, count: int = 1, size: int = 10, **options: Any) -> int:
        """Append one batch and return its size."""
        data = batch(count, size, **options)
        [result] = produced(self.produce((topic, index, bytes(data))))
        assert result.error_code == 0, result
        return len(data)

    def end_transaction(self, topic: str, producer_id: int, commit: bool = True) -> None:
        partition = self.partition(topic)
        marker = end_marker(commit, producer_id, 0, 0, int(time.time() * 1000))
        partition.append(marker)
        partition.advance()

    def fetch(
        self,
        *positions: tuple[str, int, int],
        max_wait_ms: int = 0,
        min_bytes: int = 1,
        max_bytes: int = 50_000_000,
        partition_max_bytes: int = 1_000_000,
        version: int = NEWEST_FETCH,
        committed: bool = False,
        epoch: int = -1,
    ) -> Any:
        """Fetch from each (topic, partition, offset). Returns the response or a future of it."""
        request = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            isolation_level=int(committed),
            session_epoch=-1,
            topics=[
                FetchTopic(
                    topic=topic,
                    partitions=[
                        FetchPartition(
                            partition=index,
                            fetch_offset=offset,
                            partition_max_bytes=partition_max_bytes,
                            current_leader_epoch=epoch,
                        )
                    ],
                )
                for topic, index, offset in positions
            ],
        )
        return self.send(request, version)

    def pending_requests(self) -> int:
        return sum(len(p.pending_fetches) + len(p.pending_appends) for p in self.replicas.partitions.values())

    async def close(self) -> None:
        await self.workers.run(self.log_manager.shutdown)
        self.workers.close()


def produced(response: ProduceResponse) -> list[PartitionProduceResponse]:
    return [result for topic in response.responses for result in topic.partition_responses]


def fetched(response: FetchResponse) -> list[PartitionData]:
    return [data for topic in response.responses for data in topic.partitions]


def sizes(response: FetchResponse) -> list[int]:
    return [len(data.records) for data in fetched(response)]


def codes(response: Any) -> list[int]:
    data = fetched(response) if isinstance(response, FetchResponse) else produced(response)
    return [result.error_code for result in data]


def content(data: PartitionData) -> bytes:
    return data.records.read() if isinstance(data.records, FileSlice) else bytes(data.records)


def in_records_world(folder: Path, body: Callable[[RecordsWorld], Awaitable[None]], **more: Any) -> None:
    async def scenario() -> None:
        world = RecordsWorld(folder, **more)
        try:
            await asyncio.wait_for(body(world), 20)
        finally:
            await world.close()

    asyncio.run(scenario())
