"""How soon a client learns of a new leader after its connection to the leader broke."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest

from kavka.client import connections
from kavka.client.cluster import Cluster
from kavka.client.config import ClientConfig
from kavka.client.errors import ConnectionRefused, Disconnected
from kavka.client.producer_config import PRODUCER_CONFIGS
from kavka.common.backoff import Backoff
from kavka.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tests.support import virtual_time

BROKERS = {0: 1000, 1: 1001, 2: 1002}


class FakeBrokers:
    """Brokers that respond to Metadata. `leader` is the leader of the only partition."""

    def __init__(self) -> None:
        self.leader = 0
        self.leader_epoch = 5
        self.dead: set[int] = set()
        self.open: list[FakeConnection] = []
        self.metadata_requests: list[tuple[float, int]] = []
        self.attempts: list[int] = []

    async def connect(self, host: str, port: int, **options: Any) -> FakeConnection:
        await asyncio.sleep(0)
        broker_id = next(id_ for id_, broker_port in BROKERS.items() if broker_port == port)
        self.attempts.append(broker_id)
        if broker_id in self.dead:
            raise ConnectionRefused("refused")
        connection = FakeConnection(self, broker_id, f"{host}:{port}")
        self.open.append(connection)
        return connection

    def kill(self, broker_id: int) -> None:
        self.dead.add(broker_id)
        for connection in [c for c in self.open if c.broker_id == broker_id]:
            connection.close()

    def metadata(self) -> MetadataResponse:
        partition = MetadataResponsePartition(
            partition_index=0, leader_id=self.leader, leader_epoch=self.leader_epoch, replica_nodes=[0, 1, 2]
        )
        return MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=id_, host="host", port=port) for id_, port in BROKERS.items()],
            controller_id=1,
            topics=[MetadataResponseTopic(name="t", topic_id=UUID(int=1), partitions=[partition])],
        )


class FakeConnection:
    def __init__(self, brokers: FakeBrokers, broker_id: int, name: str) -> None:
        self.brokers = brokers
        self.broker_id = broker_id
        self.name = name
        self.closed = False
        self.in_flight = 0
        self.throttled_until = 0.0
        self.last_used = asyncio.get_running_loop().time()
        self.on_close: Callable[[Any], None] | None = None

    def version_of(self, api_key: int) -> int:
        return 12

    async def send(self, request: Any, **options: Any) -> Any:
        await asyncio.sleep(0)
        if self.closed:
            raise Disconnected("closed")
        self.brokers.metadata_requests.append((asyncio.get_running_loop().time(), self.broker_id))
        return self.brokers.metadata()

    def close(self, error: BaseException | None = None) -> None:
        if not self.closed:
            self.closed = True
            self.brokers.open.remove(self)
            if self.on_close is not None:
                self.on_close(self)


def in_client(body: Callable[[Cluster, FakeBrokers], Awaitable[None]], monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        brokers = FakeBrokers()
        monkeypatch.setattr(connections.Connection, "open", brokers.connect)
        monkeypatch.setattr(Cluster, "_now", lambda _: asyncio.get_running_loop().time())
        servers = ",".join(f"host:{port}" for port in BROKERS.values())
        cluster = Cluster(ClientConfig(PRODUCER_CONFIGS, {"bootstrap.servers": servers}))
        await cluster.start()
        try:
            await cluster.topic("t", 5)
            # Make the backoff between two refreshes expire.
            await asyncio.sleep(0.15)
            await asyncio.wait_for(body(cluster, brokers), 20)
        finally:
            await cluster.close()

    virtual_time.run(run())


def test_a_client_requests_metadata_from_another_broker_when_the_connection_to_the_leader_breaks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def body(cluster: Cluster, brokers: FakeBrokers) -> None:
        await cluster.connection(0)
        brokers.metadata_requests.clear()
        brokers.attempts.clear()
        killed_at = asyncio.get_running_loop().time()
        brokers.leader, brokers.leader_epoch = 2, 6
        brokers.kill(0)
        version = cluster.version
        await cluster.wait_for_update(version, 5)
        assert cluster.leader_of("t", 0) == 2
        (requested_at, broker_id) = brokers.metadata_requests[0]
        assert broker_id != 0
        assert requested_at - killed_at < 0.1, "before any retry backoff"
        assert 0 not in brokers.attempts, "the lost broker is the last resort"

    in_client(body, monkeypatch)


def test_a_client_repeats_the_request_while_the_leader_is_a_broker_that_it_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The new leader is elected some time after the connection broke."""

    async def body(cluster: Cluster, brokers: FakeBrokers) -> None:
        # Like a producer with records, which reconnects. Its backoff is long.
        cluster._reconnect = Backoff(10_000, 10_000)
        await cluster.connection(0)
        brokers.metadata_requests.clear()
        brokers.kill(0)
        cluster._links[0, ""].retry_at = 0.0
        cluster.ready_connection(0)
        await asyncio.sleep(1.5)
        # The delay doubles from 100 ms on.
        assert 3 <= len(brokers.metadata_requests) <= 8
        brokers.leader, brokers.leader_epoch = 1, 6
        deadline = asyncio.get_running_loop().time() + 1.3
        while cluster.leader_of("t", 0) != 1:
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        requests = len(brokers.metadata_requests)
        await asyncio.sleep(1.2)
        assert len(brokers.metadata_requests) <= requests + 1, "a live leader ends the requests"

    in_client(body, monkeypatch)
