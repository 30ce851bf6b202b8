"""A cluster without a network: brokers that share a znode tree. Each has a controller and executes
the requests of the active controller."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from kavka.common.errors import KafkaError
from kavka.common.types import TopicPartition
from kavka.controller.channel import BrokerChannel, ControlRequest, ControlResponse, OnReachability
from kavka.controller.controller import Controller
from kavka.controller.term import ControllerSettings
from kavka.controller.topics import NewTopic, TopicOutcome, Topics
from kavka.metadata import paths
from kavka.metadata.cluster import create_top_level_paths, register_broker
from kavka.metadata.dynamic_config import DynamicConfig
from kavka.metadata.paths import BrokerRegistration, EndPoint, PartitionStateNode, TopicNode
from kavka.metadata.store import MetadataStore, StoreUnavailable
from kavka.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    AlterPartitionResponse,
    BrokerState,
)
from tests.support.memory_tree import MemoryTree, TreeSession
from tests.unit.controller.support import FakeBroker, Settings

DEADLINE_S = 20.0


class NodeChannel(BrokerChannel):
    """The channel to one registration of a broker. While the broker is down, disconnected or
    registered with another epoch, requests are retried."""

    def __init__(self, node: Node, sender: Node) -> None:
        self._node = node
        self._sender = sender

    async def send(self, request: ControlRequest) -> ControlResponse:
        while not (self._node.is_up and self._node.is_connected and self._node.epoch == request.broker_epoch):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0)
        return await self._node.broker.channel().send(request)

    async def watch(self, on_change: OnReachability, *, is_starting: bool) -> None:
        reported = True
        while self._node is not self._sender:
            if reported != self._node.is_connected:
                reported = self._node.is_connected
                on_change(reported)
            await asyncio.sleep(0.001)


class Node:
    def __init__(self, cluster: Cluster, broker_id: int) -> None:
        self.cluster = cluster
        self.id = broker_id
        self.is_up = False
        self.is_connected = True
        self.epoch = -1
        self.broker = FakeBroker(broker_id)
        self.controller: Controller
        self.store: TreeSession

    async def start(self) -> None:
        self.store = self.cluster.tree.session()
        self.is_connected = True
        self.broker = FakeBroker(self.id)
        self.controller = Controller(
            self.id,
            self.store,
            lambda registration: NodeChannel(self.cluster.nodes[registration.id], self),
            ControllerSettings(
                lambda topic: topic.startswith("unclean") or topic in self.cluster.unclean, **self.cluster.settings
            ),
            wait_until_failed=self._wait_until_failed,
        )
        self.configs = DynamicConfig(self.store, self.id, Settings())
        self.topics = Topics(self.controller, self.store, self.configs, self.broker.cache)
        await self.register()
        self.controller.start()

    async def register(self) -> None:
        point = EndPoint("PLAINTEXT", "PLAINTEXT", "localhost", 9092 + self.id)
        rack = self.cluster.racks.get(self.id)
        registration = BrokerRegistration(self.id, (point,), 1, rack)
        try:
            self.epoch = await register_broker(self.store, registration)
        except StoreUnavailable:
            # Retry as a broker does, unless the write succeeded.
            stat = await self.store.exists(paths.broker(self.id))
            self.epoch = stat.czxid if stat is not None else await register_broker(self.store, registration)
        self.is_up = True

    async def _wait_until_failed(self, controller_id: int, refused_s: float) -> None:
        node = self.cluster.nodes[controller_id]
        while node.is_connected:
            await asyncio.sleep(0.001)
        await asyncio.sleep(refused_s)

    async def crash(self) -> None:
        """End the process. Its session lives on."""
        self.is_up = self.is_connected = False
        await self.controller.stop()

    async def kill(self) -> None:
        self.is_up = False
        self.store.expire()
        await self.controller.stop()

    async def lose_session(self) -> None:
        """Expire the session of the running broker and register it again."""
        self.store.renew()
        self.controller.on_session_lost()
        await self.register()


class Cluster:
    def __init__(
        self,
        brokers: Iterable[int] = (0, 1, 2),
        racks: dict[int, str] | None = None,
        tree: MemoryTree | None = None,
        **settings: Any,
    ) -> None:
        self.tree = tree or MemoryTree()
        self.racks = racks or {}
        self.unclean: set[str] = set()
        self.settings = settings
        self.nodes = {broker_id: Node(self, broker_id) for broker_id in brokers}
        # The session of the test itself.
        self.store: MetadataStore = self.tree.session()

    async def start(self) -> None:
        await create_top_level_paths(self.store)
        for node in self.nodes.values():
            await node.start()
        await self.until(lambda: self.controller_id is not None)
        await self.wait_until_idle()

    async def stop(self) -> None:
        for node in self.nodes.values():
            if node.is_up:
                await node.kill()

    @property
    def controller_id(self) -> int | None:
        active = [n.id for n in self.nodes.values() if n.is_up and n.controller.is_active]
        return active[0] if len(active) == 1 else None

    @property
    def controller(self) -> Controller:
        assert self.controller_id is not None
        return self.nodes[self.controller_id].controller

    @property
    def topics(self) -> Topics:
        assert self.controller_id is not None
        return self.nodes[self.controller_id].topics

    async def until(self, condition: Callable[[], bool], description: str = "the condition") -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + DEADLINE_S
        while not condition():
            assert loop.time() < deadline, f"timed out waiting for {description}"
            await asyncio.sleep(0.002)

    async def wait_until_idle(self) -> None:
        """Wait until no event and no request is in flight."""
        idle_rounds = 0
        previous = -1
        while idle_rounds < 3:
            for node in self.nodes.values():
                if node.is_up:
                    await node.controller.wait_until_idle()
                    term = node.controller._term
                    for broker_id in list(self.nodes):
                        node = self.nodes[broker_id]
                        if term is not None and node.is_up and node.is_connected:
                            with suppress(TimeoutError):
                                await asyncio.wait_for(term.wait_until_acknowledged(broker_id), 0.2)
            await asyncio.sleep(0.002)
            current = self.tree.multis + sum(len(n.broker.received) for n in self.nodes.values())
            idle_rounds = idle_rounds + 1 if current == previous else 0
            previous = current

    # ---- topics

    async def create(self, name: str, assignment: Sequence[Sequence[int]]) -> TopicOutcome:
        topic = NewTopic(name, assignments=dict(enumerate(assignment)))
        outcome = (await self.topics.create_topics([topic], timeout_ms=5000))[0]
        assert outcome.error is None, outcome.error
        await self.wait_until_idle()
        return outcome

    async def state(self, tp: TopicPartition) -> PartitionStateNode:
        return PartitionStateNode.decode(tp, (await self.store.get(paths.partition_state(tp)))[0])

    async def topic(self, name: str) -> TopicNode:
        return TopicNode.decode(name, (await self.store.get(paths.topic(name)))[0])

    # ---- requests of leaders

    def isr_request(self, tp: TopicPartition, isr: Sequence[int], **other: Any) -> AlterPartitionRequest:
        """The AlterPartition request of the leader of `tp` for this ISR."""
        state = self.controller.context.leaderships[tp]
        leader = other.pop("broker_id", state.state.leader)
        epochs = other.pop("epochs", {})
        partition = AlterPartitionRequestPartitionData(
            partition_index=tp.partition,
            leader_epoch=state.state.leader_epoch,
            new_isr=list(isr),
            new_isr_with_epochs=[
                BrokerState(broker_id=b, broker_epoch=epochs.get(b, self.nodes[b].epoch if b in self.nodes else -1))
                for b in isr
            ],
            leader_recovery_state=state.state.leader_recovery_state,
            partition_epoch=state.partition_epoch,
        )
        request = AlterPartitionRequest(broker_id=leader, broker_epoch=self.nodes[leader].epoch)
        for name, value in other.items():
            setattr(request if hasattr(request, name) else partition, name, value)
        topic_id = self.controller.context.topics[tp.topic].topic_id
        request.topics = [
            AlterPartitionRequestTopicData(topic_name=tp.topic, topic_id=topic_id, partitions=[partition])
        ]
        return request

    async def set_isr(self, tp: TopicPartition, isr: Sequence[int], version: int = 3, **other: Any) -> Any:
        response = await self.controller.alter_partition(self.isr_request(tp, isr, **other), version)
        assert isinstance(response, AlterPartitionResponse)
        return response.topics[0].partitions[0]

    async def catch_up(self) -> None:
        """Let all live followers catch up. Their leaders add them to the ISR."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + DEADLINE_S
        while loop.time() < deadline:
            await self.wait_until_idle()
            if self.controller_id is None:
                await asyncio.sleep(0.01)
                continue
            context = self.controller.context
            full_isrs = {}
            for tp, leadership in context.leaderships.items():
                leader, isr = leadership.state.leader, leadership.state.isr
                live = [b for b in context.replicas_of(tp) if context.is_live(b) and self.nodes[b].is_up]
                if leader in live and set(live) - set(isr) and tp.topic not in context.topics_to_delete:
                    full_isrs[tp] = [*isr, *(b for b in live if b not in isr)]
            if not full_isrs:
                return
            for tp, isr in full_isrs.items():
                with suppress(KafkaError, StoreUnavailable, AssertionError, KeyError):
                    await self.set_isr(tp, isr)
        raise AssertionError("the followers did not catch up")


def in_cluster(body: Callable[[Cluster], Awaitable[Any]], *args: Any, start: bool = True, **kw: Any) -> Any:
    async def run() -> Any:
        cluster = Cluster(*args, **kw)
        try:
            if start:
                await cluster.start()
            return await body(cluster)
        finally:
            await cluster.stop()

    return asyncio.run(asyncio.wait_for(run(), 60))
