"""The replicas of several brokers in one process, in virtual time.

Logs and handlers are real. Fake connections pass the encoded requests between the brokers. The test
takes the part of the controller.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock
from uuid import UUID, uuid4

from kavka.api import registry
from kavka.api.fetch_session import FetchSessionCache
from kavka.broker.settings import Settings
from kavka.client.errors import Disconnected
from kavka.common.clock import SystemClock
from kavka.common.errors import ErrorCode
from kavka.common.metrics import Registry
from kavka.common.types import TopicPartition
from kavka.protocol.api_keys import APIS
from kavka.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    AlterPartitionResponseTopicData,
)
from kavka.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from kavka.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from kavka.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kavka.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kavka.replication.isr_changes import IsrChanges
from kavka.replication.metadata_cache import BrokerInfo, MetadataCache
from kavka.replication.partition import Partition
from kavka.replication.partition_state import LeaderAndIsr, PartitionOrder
from kavka.replication.replica_manager import ReplicaManager
from kavka.replication.settings import ReplicationSettings
from kavka.replication.topic_metrics import TopicMetrics
from kavka.storage.file_slice import FileSlice
from kavka.storage.log_config import LogConfig
from kavka.storage.log_manager import LogManager
from tests.support.handlers import call_handler
from tests.support.logs import build
from tests.support.virtual_time import InlineWorkers, run

QUICK = ReplicationSettings(fetch_backoff_s=0.02, fetch_wait_max_ms=200)
TOPIC = "t"
TP = TopicPartition(TOPIC, 0)


class World:
    """The brokers, and the state of one partition, which the test changes like a controller."""

    def __init__(self, folder: Path, brokers: Iterable[int], settings: ReplicationSettings, config: LogConfig) -> None:
        self.folder = folder
        self.settings = settings
        self.config = config
        self.topic_id: UUID = uuid4()
        self.nodes: dict[int, Node] = {}
        self.disconnected: set[frozenset[int]] = set()
        self.leader = -1
        self.leader_epoch = -1
        self.partition_epoch = 0
        self.isr: list[int] = []
        self.replicas = list(brokers)
        self.is_new = True
        # The controller's response to an ISR change; None accepts it.
        self.refuse: Callable[[list[int]], ErrorCode | None] = lambda isr: None
        self.isr_requests: list[tuple[int, list[int]]] = []
        for broker_id in self.replicas:
            self.start(broker_id)

    def start(self, broker_id: int) -> Node:
        node = self.nodes[broker_id] = Node(self, broker_id)
        self._update_live_brokers()
        return node

    async def kill(self, broker_id: int) -> None:
        """Stop the broker like kill -9: it flushes nothing and writes no checkpoint."""
        node = self.nodes.pop(broker_id)
        for peers in (node.peers, *(other.peers for other in self.nodes.values())):
            peers.close_connections_of(broker_id)
        await node.abandon()
        self._update_live_brokers()

    def _update_live_brokers(self) -> None:
        for node in self.nodes.values():
            node.cache.brokers = {id_: BrokerInfo(id_, f"rack-{id_}", {}) for id_ in self.nodes}

    def disconnect(self, *pairs: tuple[int, int]) -> None:
        """Break the connections between these pairs of brokers."""
        self.disconnected.update(map(frozenset, pairs))

    def reconnect(self) -> None:
        """Restore all connections."""
        self.disconnected.clear()

    # ---- orders

    async def elect(self, leader: int, isr: Iterable[int] | None = None, to: Iterable[int] | None = None) -> None:
        """Start an epoch with this leader. Sends the order to the brokers `to` (default: all)."""
        self.leader = leader
        self.leader_epoch += 1
        self.partition_epoch += 1
        if isr is not None:
            self.isr = list(isr)
        await self.send_order(self.nodes if to is None else to)

    async def send_order(self, to: Iterable[int]) -> None:
        """Send the current state to these brokers."""
        state = LeaderAndIsr(
            leader=self.leader,
            leader_epoch=self.leader_epoch,
            isr=frozenset(self.isr),
            replicas=tuple(self.replicas),
            partition_epoch=self.partition_epoch,
            is_new=self.is_new,
        )
        order = PartitionOrder(TopicPartition(TOPIC, 0), self.topic_id, state)
        for broker_id in list(to):
            node = self.nodes[broker_id]
            node.cache.names_by_id[self.topic_id] = TOPIC
            assert await node.replicas.become_leader_or_follower(1, [order]) == [0]
        self.is_new = False

    async def alter_partition(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        """Handle a proposed ISR change like the controller."""
        await asyncio.sleep(0)
        [topic] = request.topics
        [partition] = topic.partitions
        isr = [member.broker_id for member in partition.new_isr_with_epochs]
        self.isr_requests.append((request.broker_id, isr))
        code = self.refuse(isr)
        if code is None and partition.leader_epoch != self.leader_epoch:
            code = ErrorCode.FENCED_LEADER_EPOCH
        if code is None and partition.partition_epoch != self.partition_epoch:
            code = ErrorCode.INVALID_UPDATE_VERSION
        result = AlterPartitionResponsePartitionData(partition_index=0, error_code=int(code or 0))
        if code is None:
            self.isr = isr
            self.partition_epoch += 1
            result.leader_id = self.leader
            result.leader_epoch = self.leader_epoch
            result.isr = list(isr)
            result.partition_epoch = self.partition_epoch
        return AlterPartitionResponse(
            topics=[AlterPartitionResponseTopicData(topic_id=topic.topic_id, partitions=[result])]
        )

    # ---- requests and state

    def partition(self, broker_id: int) -> Partition:
        return self.nodes[broker_id].replicas.partitions[TP]

    def log(self, broker_id: int) -> Any:
        log = self.partition(broker_id).log
        assert log is not None
        return log

    def produce(self, data: bytes | bytearray, acks: int = -1, timeout_ms: int = 10_000) -> Any:
        """Send a batch to the leader. Returns the response or a future of it."""
        return self.nodes[self.leader].handle(
            ProduceRequest(
                acks=acks,
                timeout_ms=timeout_ms,
                topic_data=[TopicProduceData(name=TOPIC, partition_data=[PartitionProduceData(index=0, records=data)])],
            ),
            12,
        )

    async def produce_and_wait(self, count: int = 1, **options: Any) -> Any:
        """Append one batch with acks=all. Returns the partition's result."""
        result = self.produce(batch(count, **options))
        response = await result if isinstance(result, asyncio.Future) else result
        return response.responses[0].partition_responses[0]

    async def delete_records(self, offset: int, timeout_ms: int = 10_000) -> Any:
        topic = DeleteRecordsTopic(name=TOPIC, partitions=[DeleteRecordsPartition(partition_index=0, offset=offset)])
        result = self.nodes[self.leader].handle(DeleteRecordsRequest(topics=[topic], timeout_ms=timeout_ms), 2)
        response = await result if isinstance(result, asyncio.Future) else result
        return response.topics[0].partitions[0]

    def list_offsets(self, timestamp: int, version: int = 7, replica_id: int = -1) -> Any:
        partition = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
        request = ListOffsetsRequest(
            replica_id=replica_id, topics=[ListOffsetsTopic(name=TOPIC, partitions=[partition])]
        )
        return self.nodes[self.leader].handle(request, version).topics[0].partitions[0]

    def fetch_as(self, replica_id: int, offset: int, *, epoch: int = -1, broker_epoch: int = -1) -> Any:
        """A follower's fetch from the leader that does not wait."""
        partition = FetchPartition(
            partition=0, current_leader_epoch=epoch, fetch_offset=offset, partition_max_bytes=1_000_000
        )
        request = FetchRequest(
            replica_state=ReplicaState(replica_id=replica_id, replica_epoch=broker_epoch),
            max_bytes=10_000_000,
            session_epoch=-1,
            topics=[FetchTopic(topic=TOPIC, topic_id=self.topic_id, partitions=[partition])],
        )
        return self.nodes[self.leader].handle(request, 17).responses[0].partitions[0]

    def fetch_in(self, rack: str, offset: int, *, at: int | None = None, max_wait_ms: int = 0) -> Any:
        """A consumer's fetch, in that rack, from the leader or from broker `at`. Returns the
        partition's result, or a future of the response."""
        partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1_000_000)
        request = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=10_000_000,
            session_epoch=-1,
            rack_id=rack,
            topics=[FetchTopic(topic=TOPIC, topic_id=self.topic_id, partitions=[partition])],
        )
        result = self.nodes[self.leader if at is None else at].handle(request, 13)
        return result if isinstance(result, asyncio.Future) else result.responses[0].partitions[0]

    async def until(self, condition: Callable[[], Any], description: str = "") -> None:
        deadline = self.now() + 30
        while not condition():
            assert self.now() < deadline, f"not reached: {description or condition}"
            await asyncio.sleep(0.002)

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def until_caught_up(self) -> None:
        """Wait until every replica has the leader's log and its high watermark."""
        end = self.log(self.leader).end_offset
        await self.until(
            lambda: all(
                (log := self.log(b)).end_offset == end and log.high_watermark == end
                for b in self.nodes
                if b in self.replicas
            ),
            f"all at {end}: { {b: (self.log(b).end_offset, self.log(b).high_watermark) for b in self.nodes} }",
        )

    def digests(self) -> dict[int, str]:
        """A digest of every replica's .log files."""
        return {broker_id: node.digest() for broker_id, node in self.nodes.items()}

    async def close(self) -> None:
        for node in list(self.nodes.values()):
            await node.close()


class Node:
    """One broker, without a network."""

    def __init__(self, world: World, broker_id: int) -> None:
        self.world = world
        self.broker_id = broker_id
        self.workers = InlineWorkers()
        self.cache = MetadataCache()
        self.failed_dirs: list[Any] = []
        self.folder = world.folder / str(broker_id)
        clock = SystemClock()
        self.log_manager = LogManager(
            [self.folder], lambda topic: world.config, None, clock, on_dir_failure=self._on_dir_failure
        )
        self.log_manager.open_dirs()
        self.log_manager.write_ids(broker_id, "cluster")
        self.log_manager.load()
        self.replicas = ReplicaManager(
            broker_id,
            self.log_manager,
            self.cache,
            self.workers.post,
            TopicMetrics(Registry()),
            world.settings,
        )
        self.replicas.shared.monotonic = world.now
        self.peers = FakePeers(self)
        self.isr_changes = IsrChanges(broker_id, lambda: 100 + broker_id, world.alter_partition)
        self.replicas.start(self.peers, self.isr_changes, lambda: 100 + broker_id)  # type: ignore[arg-type]
        self.broker: Any = SimpleNamespace(
            settings=Settings({}),
            clock=clock,
            log_manager=self.log_manager,
            replica_manager=self.replicas,
            metadata_cache=self.cache,
            run_in_worker=self.workers.run,
            fetch_sessions=FetchSessionCache(10, 120.0, world.now),
        )

    def _on_dir_failure(self, directory: Any, offline: Any) -> None:
        self.failed_dirs.append(directory)
        self.replicas.on_dir_failure(directory, offline)

    def handle(self, request: Any, version: int) -> Any:
        """Call the broker's handler and write the staged appends. Returns the response or a future
        of it."""
        result = call_handler(self.broker, request, version)
        self.replicas.staged_appends.write()
        return result

    def digest(self) -> str:
        digest = hashlib.sha256()
        for path in sorted((self.folder / "t-0").glob("*.log")):
            digest.update(path.name.encode() + path.read_bytes())
        return digest.hexdigest()

    async def abandon(self) -> None:
        await self._stop()
        self.log_manager.abandon()
        self.workers.close()

    async def _stop(self) -> None:
        await self.isr_changes.close()
        await self.replicas.stop()

    async def close(self) -> None:
        await self._stop()
        await self.workers.run(self.log_manager.shutdown)
        self.workers.close()


class FakePeers:
    def __init__(self, node: Node) -> None:
        self.node = node
        self._open: dict[tuple[int, str], FakeConnection] = {}

    async def connection(self, broker_id: int, channel: str = "") -> Any:
        await asyncio.sleep(0)
        world = self.node.world
        if broker_id not in world.nodes or frozenset((broker_id, self.node.broker_id)) in world.disconnected:
            raise Disconnected(f"broker {broker_id} is unreachable")
        connection = self._open.get((broker_id, channel))
        if connection is None or connection.closed:
            connection = self._open[broker_id, channel] = FakeConnection(self.node, world.nodes[broker_id])
        return connection

    async def send(self, broker_id: int, request: Any, *, channel: str = "", timeout: float = 30.0, **_: Any) -> Any:
        connection = await self.connection(broker_id, channel)
        future = asyncio.get_running_loop().create_future()
        connection.send_with_handler(request, connection.version_of(request.API_KEY), future, timeout)
        return await future

    def close_channel(self, broker_id: int, channel: str = "") -> None:
        connection = self._open.pop((broker_id, channel), None)
        if connection is not None:
            connection.close()

    def close_connections_of(self, broker_id: int) -> None:
        for (source, _), connection in list(self._open.items()):
            if broker_id in (source, self.node.broker_id):
                connection.close()


class FakeConnection:
    """Passes requests and encoded responses between two brokers. Responses arrive in a later turn
    of the loop, in order."""

    def __init__(self, origin: Node, target: Node) -> None:
        self.origin = origin
        self.target = target
        self.closed = False
        self.bytes_in = 0
        self._handlers: list[Any] = []
        self._futures: set[asyncio.Future[Any]] = set()

    def version_of(self, api_key: int, max_version: int | None = None) -> int:
        highest = registry.load()[api_key].max_version
        return highest if max_version is None else min(highest, max_version)

    def send_with_handler(self, request: Any, version: int, handler: Any, timeout: float) -> int:
        if self.closed:
            raise Disconnected("closed")
        self._handlers.append(handler)
        asyncio.get_running_loop().call_soon(self._deliver, request, version, handler)
        return 0

    def _deliver(self, request: Any, version: int, handler: Any) -> None:
        if self.closed:
            return
        result = self.target.handle(request, version)
        if isinstance(result, asyncio.Future):
            self._futures.add(result)
            result.add_done_callback(lambda done: self._on_done(request.API_KEY, version, done, handler))
        else:
            asyncio.get_running_loop().call_soon(self._return, request.API_KEY, version, result, handler)

    def _on_done(self, api_key: int, version: int, done: asyncio.Future[Any], handler: Any) -> None:
        self._futures.discard(done)
        if not done.cancelled():
            self._return(api_key, version, done.result(), handler)

    def _return(self, api_key: int, version: int, response: Any, handler: Any) -> None:
        if frozenset((self.origin.broker_id, self.target.broker_id)) in self.origin.world.disconnected:
            self.close()
        if self.closed:
            return
        pieces: list[Any] = []
        response.encode(pieces, version)
        try:
            data = b"".join(p.read() if isinstance(p, FileSlice) else bytes(p) for p in pieces)
        except OSError:
            self.close()  # the file was truncated
            return
        self.bytes_in += len(data)
        decoded, _ = APIS[api_key].response_class().decode(memoryview(data), 0, version)
        self._handlers.remove(handler)
        if not handler.done():
            handler.set_result(decoded)

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        for future in list(self._futures):
            future.cancel()
        for handler in self._handlers:
            if not handler.done():
                handler.set_exception(Disconnected("closed"))


def batch(count: int = 1, size: int = 10, **options: Any) -> bytearray:
    return build([(None, bytes(size))] * count, timestamp=int(time.time() * 1000), **options)


def in_world(
    folder: Path,
    body: Callable[[World], Awaitable[None]],
    brokers: Iterable[int] = (0, 1, 2),
    settings: ReplicationSettings = QUICK,
    replicas: Iterable[int] | None = None,
    **config: Any,
) -> None:
    async def scenario() -> None:
        world = World(folder, brokers, settings, replace(LogConfig(), **config))
        world.replicas = list(brokers if replicas is None else replicas)
        try:
            await asyncio.wait_for(body(world), 600)
        finally:
            await world.close()

    run_with_virtual_clock(scenario())


def run_with_virtual_clock(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run the coroutine in virtual time, with the same clock for the handlers of Fetch."""
    with mock.patch("kavka.api.fetch_reads.monotonic", lambda: asyncio.get_running_loop().time()):
        run(coroutine)
