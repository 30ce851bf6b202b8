"""An in-memory broker that responds to each request by itself, for producers with a running event
loop. It is the leader and the coordinator, and has the metadata.

A test replaces `producer_core.Cluster` with this `Cluster`.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from kavka.client.errors import KafkaTimeout
from kavka.client.metadata import PartitionMetadata, TopicMetadata
from kavka.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from kavka.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from kavka.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from kavka.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from kavka.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from tests.unit.client.producer.fake_broker import TOPIC_ID, FakeBroker, FakeCluster, FakeConnection

WAIT = 30


class Gate:
    """Stops a thread until the test opens the gate."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()
        self.shut = False

    def pass_through(self) -> None:
        if self.shut:
            self.reached.set()
            assert self.opened.wait(WAIT)


class Connection(FakeConnection):
    cluster: Cluster

    def send_with_handler(self, request: Any, version: int, call: Any, timeout: float) -> int:
        super().send_with_handler(request, version, call, timeout)
        self.cluster.respond()
        return 0


class Cluster(FakeCluster):
    """The coordinator and the leader. `committed` and `aborted` are the values of committed and of
    aborted transactions. Produce requests wait while `stalled` is set."""

    def __init__(self) -> None:
        super().__init__(FakeBroker())
        self.loop: asyncio.AbstractEventLoop | None = None
        self.stalled = False
        self.committed: list[bytes] = []
        self.aborted: list[bytes] = []
        self.offsets: list[int] = []
        self.epoch = 0
        self.metadata_gate = Gate()
        self.fail_metadata = False
        self.offsets_gate = Gate()

    async def start(self) -> None:
        self.loop = asyncio.get_running_loop()
        await super().start()

    def ready_connection(self, node_id: int, channel: str = "") -> FakeConnection | None:
        if self.current is None:
            self.current = Connection(self)
        return self.current

    def respond(self) -> None:
        def work() -> None:
            while self.broker.requests and not self.stalled:
                self.broker.respond()

        assert self.loop is not None
        self.loop.call_soon_threadsafe(work)

    def resume(self) -> None:
        self.stalled = False
        self.respond()

    async def topic(self, name: str, timeout: float) -> TopicMetadata:
        while not self.metadata_gate.opened.is_set():
            self.metadata_gate.reached.set()
            await asyncio.sleep(0.005)
        if self.fail_metadata:
            raise KafkaTimeout("no metadata")
        partition = PartitionMetadata(name, 0, 0, 0, (0,), (0,), ())
        self.topics = {**self.topics, name: TopicMetadata(name, TOPIC_ID, False, (partition,), (0,))}
        for listener in self._listeners:
            listener(self)
        return self.topics[name]

    async def request(self, node_id: int | None, request: Any, **options: Any) -> Any:
        await asyncio.sleep(0)
        if isinstance(request, InitProducerIdRequest):
            self.epoch += 1
            return InitProducerIdResponse(producer_id=7, producer_epoch=self.epoch)
        if isinstance(request, EndTxnRequest):
            values = self.broker.logs[0].values
            (self.committed if request.committed else self.aborted).extend(values)
            values.clear()
            return EndTxnResponse()
        if isinstance(request, AddOffsetsToTxnRequest):
            return AddOffsetsToTxnResponse()
        if isinstance(request, TxnOffsetCommitRequest):
            while self.offsets_gate.shut:
                self.offsets_gate.reached.set()
                await asyncio.sleep(0.005)
            self.offsets += [p.committed_offset for topic in request.topics for p in topic.partitions]
            return TxnOffsetCommitResponse()
        assert isinstance(request, AddPartitionsToTxnRequest)
        return AddPartitionsToTxnResponse()
