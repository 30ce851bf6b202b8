from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from kavka.client.cluster import Cluster
from kavka.client.errors import ClientClosed, Disconnected, KafkaTimeout
from kavka.client.metadata import Node, topic_metadata, with_leader
from kavka.client.producer_config import producer_config
from kavka.common.backoff import Backoff
from kavka.common.errors import ErrorCode, KafkaError
from kavka.protocol.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from kavka.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

ID = UUID(int=5)


def topic(
    name: str = "t", leaders: tuple[int, ...] = (0,), epoch: int = 1, topic_id: UUID = ID
) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        name=name,
        topic_id=topic_id,
        partitions=[
            MetadataResponsePartition(partition_index=p, leader_id=leader, leader_epoch=epoch)
            for p, leader in reversed(list(enumerate(leaders)))
        ],
    )


def test_partitions_are_sorted_and_available_if_they_have_a_leader() -> None:
    metadata = topic_metadata(topic(leaders=(3, -1, 4)))
    assert [p.partition for p in metadata.partitions] == [0, 1, 2]
    assert metadata.available == (0, 2)


def test_stale_response_does_not_restore_an_older_leader() -> None:
    newer = topic_metadata(topic(leaders=(7,), epoch=9))
    assert topic_metadata(topic(leaders=(3,), epoch=8), newer).partitions[0].leader == 7
    assert topic_metadata(topic(leaders=(3,), epoch=10), newer).partitions[0].leader == 3


def test_recreated_topic_accepts_lower_epochs() -> None:
    previous = topic_metadata(topic(leaders=(7,), epoch=9))
    recreated = topic_metadata(topic(leaders=(3,), epoch=0, topic_id=UUID(int=6)), previous)
    assert recreated.partitions[0].leader == 3


def test_new_leader_is_accepted_if_its_epoch_is_higher() -> None:
    metadata = topic_metadata(topic(leaders=(-1, 0), epoch=4))
    assert with_leader(metadata, 0, 5, 4) is metadata
    assert with_leader(metadata, 9, 5, 9) is metadata
    changed = with_leader(metadata, 0, 5, 6)
    assert (changed.partitions[0].leader, changed.available) == (5, (0, 1))


def test_backoff_doubles_up_to_its_limit_with_jitter() -> None:
    backoff = Backoff(100, 1000)
    assert backoff.delay(0) == 0
    for failures, expected in ((1, 0.1), (2, 0.2), (4, 0.8), (5, 1.0), (500, 1.0)):
        for _ in range(50):
            assert expected * 0.8 <= backoff.delay(failures) <= expected * 1.2


# --- the cluster with in-memory connections


class Broker:
    """Responds to requests while `is_up`. Metadata responses contain the brokers that are up or
    `is_listed`."""

    def __init__(self, node_id: int, port: int) -> None:
        self.node = Node(node_id, "fake", port, f"rack-{node_id}")
        self.is_up = True
        self.is_listed = False
        self.requested: list[list[str] | None] = []


class FakeConnection:
    def __init__(self, environment: Environment, broker: Broker) -> None:
        self.environment, self.broker = environment, broker
        self.name = f"fake:{broker.node.port}"
        self.closed = False
        self.in_flight = 0
        self.throttled_until = 0.0
        self.last_used = 1e12
        self.on_close: Any = None

    def version_of(self, api_key: int, max_version: int | None = None) -> int:
        return 13

    async def send(self, request: Any, *, timeout: float, version: int | None = None, **options: Any) -> Any:
        await asyncio.sleep(0)
        if not self.broker.is_up:
            self.close()
            raise Disconnected("down")
        if isinstance(request, FindCoordinatorRequest):
            node = self.environment.brokers[-1].node
            return FindCoordinatorResponse(
                coordinators=[Coordinator(key="g", node_id=node.id, host=node.host, port=node.port)]
            )
        names = None if request.topics is None else [t.name for t in request.topics]
        self.broker.requested.append(names)
        topics = self.environment.topics
        return MetadataResponse(
            error_code=self.environment.error,
            brokers=[
                MetadataResponseBroker(node_id=b.node.id, host=b.node.host, port=b.node.port, rack=b.node.rack)
                for b in self.environment.brokers
                if b.is_up or b.is_listed
            ],
            controller_id=self.environment.brokers[0].node.id,
            topics=[
                topics.get(name) or MetadataResponseTopic(name=name, error_code=3)
                for name in (topics if names is None else names)
            ],
        )

    def close(self, error: BaseException | None = None) -> None:
        if not self.closed:
            self.closed = True
            if self.on_close is not None:
                self.on_close(self)


class Environment:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, brokers: int = 2) -> None:
        self.brokers = [Broker(i, 9000 + i) for i in range(brokers)]
        self.topics: dict[str, MetadataResponseTopic] = {"t": topic()}
        self.error = 0
        self.opened: list[int] = []
        monkeypatch.setattr("kavka.client.connections.Connection.open", self.open)

    async def open(self, host: str, port: int, **options: Any) -> Any:
        await asyncio.sleep(0)
        self.opened.append(port)
        broker = next((b for b in self.brokers if b.node.port == port), None)
        if broker is None or not broker.is_up:
            raise Disconnected(f"no broker at {port}")
        return FakeConnection(self, broker)

    def cluster(self, **settings: Any) -> Cluster:
        defaults = {
            "bootstrap.servers": "fake:9000",
            "reconnect.backoff.ms": 1,
            "reconnect.backoff.max.ms": 2,
            "retry.backoff.ms": 2,
            "retry.backoff.max.ms": 4,
        }
        return Cluster(producer_config(defaults | settings, {}))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


def test_topic_is_fetched_over_the_bootstrap_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        environment = Environment(monkeypatch)
        cluster = environment.cluster()
        await cluster.start()
        metadata = await cluster.topic("t", 60)
        assert metadata.partitions[0].leader == 0
        assert await cluster.leader("t", 0, 60) == 0
        assert sorted(cluster.nodes) == [0, 1]
        connection = await cluster.connection(0)
        assert environment.opened == [9000]
        await cluster.close()
        assert connection.closed

    asyncio.run(work())


def test_coordinator_has_the_rack_from_the_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        environment = Environment(monkeypatch)
        cluster = environment.cluster()
        await cluster.start()
        await cluster.topic("t", 60)
        assert (await cluster.find_coordinator("g")).rack == "rack-1"
        assert [node.rack for node in cluster.nodes.values()] == ["rack-0", "rack-1"]
        await cluster.close()

    asyncio.run(work())


def test_only_new_topics_are_requested_and_others_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        environment = Environment(monkeypatch)
        environment.topics["u"] = topic("u", topic_id=UUID(int=9))
        cluster = environment.cluster()
        await cluster.start()
        await cluster.topic("t", 60)
        await cluster.topic("u", 60)
        assert environment.brokers[0].requested[-1] == ["u"]
        assert sorted(cluster.topics) == ["t", "u"]
        assert cluster.topic_names == {ID: "t", UUID(int=9): "u"}
        await cluster.close()

    asyncio.run(work())


def test_missing_topic_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        environment = Environment(monkeypatch)
        cluster = environment.cluster()
        await cluster.start()
        with pytest.raises(KafkaTimeout, match="unknown topic"):
            await cluster.topic("later", 0.5)
        waiting = asyncio.create_task(cluster.topic("later", 60))
        count = len(environment.brokers[0].requested)
        await until(lambda: len(environment.brokers[0].requested) > count)
        environment.topics["later"] = topic("later")
        assert (await waiting).name == "later"
        await cluster.close()

    asyncio.run(work())


def test_topic_without_leader_is_refetched_even_if_no_caller_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> None:
        environment = Environment(monkeypatch)
        environment.topics["later"] = MetadataResponseTopic(
            name="later", error_code=int(ErrorCode.LEADER_NOT_AVAILABLE)
        )
        cluster = environment.cluster()
        await cluster.start()
        cluster.set_topics(["later"])
        await until(lambda: "later" in cluster.topic_errors)
        environment.topics["later"] = topic("later")
        await until(lambda: "later" in cluster.topics)
        count = len(environment.brokers[0].requested)
        await asyncio.sleep(0.05)
        assert len(environment.brokers[0].requested) == count
        await cluster.close()

    asyncio.run(work())


def test_invalid_topic_fails_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        environment = Environment(monkeypatch)
        environment.topics["bad name"] = MetadataResponseTopic(name="bad name", error_code=17)
        cluster = environment.cluster()
        await cluster.start()
        with pytest.raises(KafkaError) as caught:
            await cluster.topic("bad name", 5)
        assert caught.value.code == ErrorCode.INVALID_TOPIC_EXCEPTION
        await cluster.close()

    asyncio.run(work())


def test_metadata_is_requested_from_another_broker_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        environment = Environment(monkeypatch)
        cluster = environment.cluster()
        await cluster.start()
        await cluster.topic("t", 60)
        environment.brokers[0].is_up = False
        await cluster.wait_for_update(cluster.request_update(), 60)
        assert sorted(cluster.nodes) == [1]
        assert environment.brokers[1].requested
        await cluster.close()

    asyncio.run(work())


def test_client_rebootstraps_when_no_broker_is_reachable(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        environment = Environment(monkeypatch, brokers=1)
        cluster = environment.cluster()
        await cluster.start()
        await cluster.topic("t", 60)
        # The metadata has only a broker that is not in bootstrap.servers. No broker is reachable.
        environment.brokers.append(Broker(1, 9555))
        environment.brokers[0].is_up = False
        cluster.nodes = {1: environment.brokers[1].node}
        environment.brokers[1].is_up = False
        cluster.request_update()
        await until(lambda: -1 in cluster.nodes)
        environment.brokers[0].is_up = True
        await cluster.wait_for_update(cluster.request_update(), 60)
        assert sorted(cluster.nodes) == [0]
        await cluster.close()

    asyncio.run(work())


def test_client_rebootstraps_when_a_broker_requires_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        environment = Environment(monkeypatch)
        cluster = environment.cluster()
        await cluster.start()
        await cluster.topic("t", 60)
        opened_before = len(environment.opened)
        environment.error = ErrorCode.REBOOTSTRAP_REQUIRED
        cluster.request_update()
        await until(lambda: -1 in cluster.nodes)
        environment.error = 0
        await cluster.wait_for_update(cluster.request_update(), 60)
        assert 9000 in environment.opened[opened_before:]
        await cluster.close()

    asyncio.run(work())


def test_channels_are_separate_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        environment = Environment(monkeypatch)
        cluster = environment.cluster()
        await cluster.start()
        await cluster.topic("t", 60)
        first, other, again = await asyncio.gather(
            cluster.connection(1), cluster.connection(1, "coordinator"), cluster.connection(1)
        )
        assert first is again
        assert first is not other
        await cluster.close()

    asyncio.run(work())


def test_response_for_some_topics_does_not_complete_a_request_for_all_topics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> None:
        environment = Environment(monkeypatch)
        cluster = environment.cluster(**{"retry.backoff.ms": 60_000, "retry.backoff.max.ms": 60_000})
        updates: list[tuple[bool, list[str]]] = []
        cluster.on_update(lambda cluster: updates.append((cluster.complete, sorted(cluster.topics))))
        await cluster.start()
        await until(lambda: bool(environment.brokers[0].requested))
        cluster.all_topics = True
        cluster.request_update()
        # The first request for all topics does not wait for retry.backoff.ms.
        await until(lambda: cluster.complete)
        assert updates == [(False, []), (True, ["t"])]
        await cluster.close()

    asyncio.run(work())


def test_connection_to_an_unreachable_broker_waits_for_the_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        environment = Environment(monkeypatch)
        cluster = environment.cluster(**{"reconnect.backoff.ms": 2000, "reconnect.backoff.max.ms": 2000})
        await cluster.start()
        await cluster.topic("t", 60)
        environment.brokers[1].is_up, environment.brokers[1].is_listed = False, True
        notified: list[int] = []
        cluster.on_connection_change(notified.append)
        with pytest.raises(Disconnected):
            await cluster.connection(1)
        assert cluster.is_unreachable(1)
        with pytest.raises(KafkaTimeout):
            await cluster.connection(1, timeout=0.05)
        assert notified == [1]
        await cluster.close()

    asyncio.run(work())


def test_unused_topic_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        environment = Environment(monkeypatch)
        cluster = environment.cluster()
        await cluster.start()
        await cluster.topic("t", 60)
        cluster._max_topic_idle = 0.0
        await asyncio.sleep(0.01)
        cluster._forget_idle_topics()
        assert not cluster.topics
        await cluster.close()

    asyncio.run(work())


def test_new_leader_in_a_response_is_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        environment = Environment(monkeypatch)
        cluster = environment.cluster()
        await cluster.start()
        await cluster.topic("t", 60)
        leaders_seen: list[int] = []
        cluster.on_update(lambda c: leaders_seen.append(c.leader_of("t", 0)))
        assert cluster.update_leader("t", 0, 4, 9, [Node(4, "fake", 9004)])
        assert not cluster.update_leader("t", 0, 5, 8, [Node(5, "fake", 9005)])
        assert leaders_seen == [4]
        assert cluster.nodes[4].port == 9004
        await cluster.close()

    asyncio.run(work())


def test_closing_the_client_fails_pending_connects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> None:
        environment = Environment(monkeypatch)
        cluster = environment.cluster()
        await cluster.start()
        await cluster.topic("t", 60)
        never = asyncio.Event()

        async def hang(*args: Any, **options: Any) -> Any:
            await never.wait()

        monkeypatch.setattr("kavka.client.connections.Connection.open", hang)
        waiting = asyncio.create_task(cluster.connection(1))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await cluster.close()
        (outcome,) = await asyncio.gather(waiting, return_exceptions=True)
        assert isinstance(outcome, ClientClosed)

    asyncio.run(work())


def test_broker_that_moves_during_connect_gets_a_new_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> None:
        environment = Environment(monkeypatch, brokers=3)
        cluster = environment.cluster()
        await cluster.start()
        await cluster.topic("t", 60)
        opening, proceed = asyncio.Event(), asyncio.Event()

        async def slow(host: str, port: int, **options: Any) -> Any:
            opening.set()
            await proceed.wait()
            return await environment.open(host, port, **options)

        monkeypatch.setattr("kavka.client.connections.Connection.open", slow)
        waiting = asyncio.create_task(cluster.connection(1))
        await opening.wait()
        cluster.add_node(Node(1, "fake", 9002))
        proceed.set()
        with pytest.raises(Disconnected, match="is no longer at fake:9001"):
            await waiting
        assert (await cluster.connection(1)).name == "fake:9002"
        await cluster.close()

    asyncio.run(work())


def test_timed_out_waits_for_metadata_leave_no_waiter(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        environment = Environment(monkeypatch)
        for broker in environment.brokers:
            broker.is_up = False
        cluster = environment.cluster()
        await cluster.start()
        for _ in range(20):
            with pytest.raises(KafkaTimeout):
                await cluster.topic("t", 0)
        assert not cluster._waiters
        await cluster.close()

    asyncio.run(work())
