"""An in-memory broker for producer tests, with leaders, sequences, errors and lost connections.

`FakeCluster` replaces `Cluster`. Requests stay in `broker.requests` until the test calls `respond`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import UUID

from crc32c import crc32c

from kavka.client.errors import Disconnected
from kavka.client.metadata import Node, PartitionMetadata, TopicMetadata
from kavka.client.producer._append import SendPath
from kavka.client.producer.core import ProducerCore
from kavka.client.producer_config import producer_config
from kavka.common.errors import ErrorCode
from kavka.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from kavka.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from kavka.records.batch import HEADER, parse_header
from kavka.records.reader import read_records

TOPIC_ID = UUID(int=1)


class Log:
    """One partition: its values in order, and the producer state of a real broker."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.producers: dict[int, dict[str, Any]] = {}
        self.max_batch = 1 << 30
        self.strict = False
        self.start_offset = 0

    def append(self, data: memoryview) -> tuple[int, int]:
        """Returns (error code, base offset)."""
        header = parse_header(data)
        assert header.batch_length + 12 == len(data)
        assert crc32c(data[21:]) == HEADER.unpack_from(data)[4]
        if len(data) > self.max_batch:
            return ErrorCode.MESSAGE_TOO_LARGE, -1
        first, count = header.base_sequence, header.count
        if header.producer_id >= 0:
            state = self.producers.get(header.producer_id)
            if state is None or header.producer_epoch > state["epoch"]:
                # As in Kafka: without producer state the broker accepts any sequence.
                if first != 0 and (state is not None or self.strict):
                    return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
                state = {"epoch": header.producer_epoch, "next": first, "known": []}
                self.producers[header.producer_id] = state
            elif header.producer_epoch < state["epoch"]:
                return ErrorCode.INVALID_PRODUCER_EPOCH, -1
            for known_first, known_count, offset in state["known"]:
                if (first, count) == (known_first, known_count):
                    return ErrorCode.NONE, offset
            if first != state["next"]:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
            state["next"] = first + count
            state["known"] = [*state["known"], (first, count, len(self.values))][-5:]
        offset = len(self.values)
        self.values += [record.value or b"" for record in read_records(data)]
        return ErrorCode.NONE, offset


class FakeBroker:
    def __init__(self, partitions: int = 1) -> None:
        self.logs = [Log() for _ in range(partitions)]
        self.requests: list[tuple[FakeConnection, ProduceRequest, Any]] = []
        self.next_producer_id = 1000
        self.produce_version = 13

    def store(self, request: ProduceRequest) -> ProduceResponse:
        topics = []
        for topic in request.topic_data:
            partitions = []
            for data in topic.partition_data:
                code, offset = self.logs[data.index].append(data.records)
                partitions.append(
                    PartitionProduceResponse(index=data.index, error_code=code, base_offset=offset, log_start_offset=0)
                )
            topics.append(
                TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=partitions)
            )
        return ProduceResponse(responses=topics)

    def reject(self, request: ProduceRequest, code: int, **fields: Any) -> ProduceResponse:
        return ProduceResponse(
            responses=[
                TopicProduceResponse(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partition_responses=[
                        PartitionProduceResponse(index=d.index, error_code=code, base_offset=-1, **fields)
                        for d in topic.partition_data
                    ],
                )
                for topic in request.topic_data
            ]
        )

    def respond(self, fate: str = "store") -> None:
        """Handle the oldest request. `fate` is 'store', 'lose' (the connection breaks before the
        append), 'store and lose' (it breaks after the append), or the name of an error code."""
        connection, request, call = self.requests[0]
        if fate in ("lose", "store and lose"):
            lost = [r for r in self.requests if r[0] is connection]
            self.requests = [r for r in self.requests if r[0] is not connection]
            if fate == "store and lose":
                # The broker read all requests before the connection broke.
                for _, lost_request, _ in lost:
                    self.store(lost_request)
            connection.break_(lost)
            return
        self.requests.pop(0)
        connection.in_flight -= 1
        call.set_result(self.store(request) if fate == "store" else self.reject(request, ErrorCode[fate]))


class FakeConnection:
    name = "fake:9092"
    throttled_until = 0.0
    writable = True
    bytes_in = bytes_out = requests = 0
    features: dict[str, int] = {}

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.in_flight = 0
        self.closed = False

    def version_of(self, api_key: int, max_version: int | None = None) -> int:
        version = self.cluster.broker.produce_version
        return version if max_version is None else min(version, max_version)

    def send_with_handler(self, request: ProduceRequest, version: int, call: Any, timeout: float) -> int:
        assert not self.closed
        # Decode a copy, which later changes to the batch do not affect.
        copied = ProduceRequest.decode(memoryview(bytearray(request.to_bytes(version))), 0, version)[0]
        for topic in copied.topic_data:
            topic.name = topic.name or "t"
        self.in_flight += 1
        self.cluster.broker.requests.append((self, copied, call))
        return 0

    def send_one_way(self, request: ProduceRequest, version: int) -> int:
        self.cluster.broker.store(request)
        return 0

    def break_(self, lost: list[Any]) -> None:
        self.closed = True
        self.cluster.current = None
        for _, _, call in lost:
            call.set_exception(Disconnected("the connection broke"))


class FakeCluster:
    """A cluster with one broker, the leader of every partition of topic t."""

    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self.nodes = {0: Node(0, "fake", 9092)}
        self.topics: dict[str, TopicMetadata] = {}
        self.closed = False
        self.connections_opened = 0
        self.current: FakeConnection | None = None
        self.updates_requested = 0
        self.init_error: int = 0
        self._listeners: list[Callable[[Any], None]] = []
        self._connected: list[Callable[[int], None]] = []

    async def start(self) -> None:
        self.publish()

    def publish(self, leader: int = 0) -> None:
        partitions = tuple(PartitionMetadata("t", p, leader, 0, (0,), (0,), ()) for p in range(len(self.broker.logs)))
        available = tuple(range(len(partitions))) if leader >= 0 else ()
        self.topics = {"t": TopicMetadata("t", TOPIC_ID, False, partitions, available)}
        for listener in self._listeners:
            listener(self)

    async def close(self) -> None:
        self.closed = True

    async def topic(self, name: str, timeout: float) -> TopicMetadata:
        return self.topics[name]

    def on_update(self, listener: Callable[[Any], None]) -> None:
        self._listeners.append(listener)

    def on_connection_change(self, callback: Callable[[int], None]) -> None:
        self._connected.append(callback)

    async def find_coordinator(self, key: str, key_type: int, *, timeout: float | None = None) -> Node:
        return Node(0, "fake", 9092)

    def ready_connection(self, node_id: int, channel: str = "") -> FakeConnection | None:
        if node_id not in self.nodes:
            raise Disconnected(f"there is no broker {node_id} in the metadata")
        if self.current is None:
            self.current = FakeConnection(self)
            self.connections_opened += 1
        return self.current

    def connections(self) -> list[FakeConnection]:
        return [] if self.current is None else [self.current]

    def request_update(self) -> int:
        self.updates_requested += 1
        return 0

    def update_leader(self, *args: Any) -> bool:
        return False

    def add_topic(self, name: str) -> None:
        pass

    async def request(self, node_id: int | None, request: Any, **options: Any) -> Any:
        assert isinstance(request, InitProducerIdRequest)
        await asyncio.sleep(0)
        if self.init_error:
            return InitProducerIdResponse(error_code=self.init_error)
        self.broker.next_producer_id += 1
        return InitProducerIdResponse(producer_id=self.broker.next_producer_id, producer_epoch=0)


class Bench:
    """A producer's core on a fake broker."""

    def __init__(self, partitions: int = 1, **settings: Any) -> None:
        self.broker = FakeBroker(partitions)
        self.cluster = FakeCluster(self.broker)
        defaults = {"bootstrap_servers": "fake:9092", "linger_ms": 0, "retry_backoff_ms": 0, "retry_backoff_max_ms": 0}
        config = producer_config({}, defaults | settings)
        self.core = ProducerCore(config, self.cluster)  # type: ignore[arg-type]
        self.path = SendPath(self.core.accumulator)
        self.core.configure_path(self.path)

    async def __aenter__(self) -> Bench:
        await self.core.start()
        return self

    async def __aexit__(self, *args: object) -> None:
        await self.core.close(0)

    def send(self, value: bytes, **keywords: Any) -> Any:
        names = ("key", "partition", "timestamp", "headers", "callback")
        arguments = [keywords.get(name) for name in names]
        transaction = self.core.accumulator.transaction
        future = self.path.try_send("t", value, *arguments)
        if future is None:
            steps = self.core.steps(transaction, "t", value, *arguments)
            try:
                raise AssertionError(f"send waits: {next(steps)}")
            except StopIteration as stop:
                return stop.value
        return future

    async def warm_up(self) -> None:
        """Store one record, so that the broker has producer state."""
        self.send(b"warm")
        await self.respond_all()

    async def settle(self, turns: int = 6) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)

    async def requests(self, count: int = 1) -> list[Any]:
        """Wait for `count` requests."""
        for _ in range(500):
            if len(self.broker.requests) >= count:
                break
            await asyncio.sleep(0.001)
        assert len(self.broker.requests) >= count, f"{len(self.broker.requests)} requests, {count} expected"
        return self.broker.requests

    async def respond(self, fate: str = "store") -> None:
        await self.requests(1)
        self.broker.respond(fate)
        await self.settle()

    async def respond_all(self) -> None:
        """Respond to requests until all batches have an outcome."""
        for _ in range(2000):
            if self.broker.requests:
                self.broker.respond()
            elif not self.core.accumulator.incomplete:
                return
            await asyncio.sleep(0 if self.broker.requests else 0.001)
        raise AssertionError("some batches have no outcome")
