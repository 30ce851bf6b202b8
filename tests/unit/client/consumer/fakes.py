"""An in-memory cluster for fetcher tests. A request stays pending until the test calls `respond` or
`fail`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from kavka.client.metadata import Node, PartitionMetadata, TopicMetadata, with_leader
from kavka.common.types import TopicPartition as TP
from kavka.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from kavka.records.builder import BatchBuilder
from kavka.records.record import Record

TOPIC_ID = UUID(int=77)


class FakeConnection:
    def __init__(self, node: int, version: int) -> None:
        self.node = node
        self.version = version
        self.throttled_until = 0.0
        self.new_buffer: Callable[[int], bytearray | memoryview] = bytearray
        self.sent: list[tuple[FetchRequest, Any]] = []
        self.send_error: Exception | None = None
        self.version_error: Exception | None = None

    def version_of(self, api_key: int, max_version: int | None = None) -> int:
        if self.version_error is not None:
            raise self.version_error
        return self.version if max_version is None else min(self.version, max_version)

    def send_with_handler(self, request: FetchRequest, version: int, handler: Any, timeout: float) -> int:
        if self.send_error is not None:
            raise self.send_error
        self.sent.append((request, handler))
        return 0


class FakeCluster:
    def __init__(self, partitions: int = 1, version: int = 17, nodes: int = 2) -> None:
        self.closed = False
        self.nodes = {n: Node(n, "host", 9000 + n) for n in range(1, nodes + 1)}
        created = tuple(PartitionMetadata("t", p, 1, 5, (1, 2), (1, 2), ()) for p in range(partitions))
        self.topics = {"t": TopicMetadata("t", TOPIC_ID, False, created, tuple(range(partitions)))}
        self.connections = {n: FakeConnection(n, version) for n in self.nodes}
        self.updates_requested = 0
        self.listeners: list[Callable[[Any], None]] = []

    def on_connection_change(self, callback: Any) -> None:
        self.connected = callback

    def on_update(self, listener: Any) -> None:
        self.listeners.append(listener)

    def request_update(self) -> int:
        self.updates_requested += 1
        return 0

    def ready_connection(self, node: int, channel: str) -> FakeConnection | None:
        return self.connections.get(node)

    def update_leader(self, topic: str, partition: int, leader: int, epoch: int, nodes: Any) -> bool:
        if leader < 0:
            return False
        for node in nodes:
            self.nodes[node.id] = node
        self.topics = {topic: with_leader(self.topics[topic], partition, leader, epoch)}
        return True

    # --- for tests

    def move(self, partition: int, leader: int, epoch: int) -> None:
        self.topics = {"t": with_leader(self.topics["t"], partition, leader, epoch)}
        for listener in self.listeners:
            listener(self)

    def pending(self, node: int = 1) -> list[FetchRequest]:
        return [request for request, handler in self.connections[node].sent if not handler.done()]

    def requested_offsets(self, node: int = 1) -> dict[TP, int]:
        """Return the partitions and offsets of the only pending request."""
        (request,) = self.pending(node)
        return {TP("t", p.partition): p.fetch_offset for topic in request.topics for p in topic.partitions}

    def respond(self, *partitions: PartitionData, node: int = 1, **fields: Any) -> None:
        ((_, handler),) = [entry for entry in self.connections[node].sent if not entry[1].done()]
        topics = [FetchableTopicResponse(topic="t", topic_id=TOPIC_ID, partitions=list(partitions))]
        handler.set_result(FetchResponse(responses=topics, **{"session_id": 3, **fields}))

    def fail(self, error: Exception, node: int = 1) -> None:
        ((_, handler),) = [entry for entry in self.connections[node].sent if not entry[1].done()]
        handler.set_exception(error)


def records(offset: int, *values: bytes, epoch: int = 5) -> memoryview:
    builder = BatchBuilder(base_offset=offset, leader_epoch=epoch)
    for value in values:
        builder.append(Record(timestamp=1, value=value))
    return memoryview(builder.build())


def partition_data(partition: int, offset: int, *values: bytes, **fields: Any) -> PartitionData:
    batch = records(offset, *values) if values else None
    settings = {"high_watermark": 100, "last_stable_offset": 90, "log_start_offset": 0} | fields
    return PartitionData(partition_index=partition, records=batch, **settings)
