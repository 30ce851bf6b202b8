"""A controller on a real embedded znode tree, with brokers that only record requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from kavka.broker.controller_requests import update_cache
from kavka.common.config_view import BrokerConfigs
from kavka.common.errors import ErrorCode
from kavka.common.types import TopicPartition
from kavka.controller.channel import LocalChannel
from kavka.controller.controller import Controller
from kavka.controller.term import ControllerSettings
from kavka.controller.topics import Topics
from kavka.metadata.cluster import create_top_level_paths, register_broker
from kavka.metadata.dynamic_config import DynamicConfig
from kavka.metadata.embedded import EmbeddedStore
from kavka.metadata.paths import BrokerRegistration, EndPoint
from kavka.protocol.messages.leader_and_isr import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
)
from kavka.protocol.messages.stop_replica import StopReplicaPartitionError, StopReplicaRequest, StopReplicaResponse
from kavka.protocol.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse
from kavka.replication.metadata_cache import MetadataCache


class FakeBroker:
    """Records the controller's requests. `leads` has the last received state of each replica,
    also of followers."""

    def __init__(self, broker_id: int) -> None:
        self.id = broker_id
        self.cache = MetadataCache()
        self.received: list[Any] = []
        self.leads: dict[TopicPartition, Any] = {}
        self.deleted: list[TopicPartition] = []
        self.failed_disk: set[TopicPartition] = set()

    def channel(self) -> LocalChannel:
        return LocalChannel(self.leader_and_isr, self.update_metadata, self.stop_replica)

    async def leader_and_isr(self, request: LeaderAndIsrRequest) -> LeaderAndIsrResponse:
        self.received.append(request)
        topics = []
        for topic in request.topic_states:
            errors = []
            for state in topic.partition_states:
                tp = TopicPartition(topic.topic_name, state.partition_index)
                code = ErrorCode.KAFKA_STORAGE_ERROR if tp in self.failed_disk else ErrorCode.NONE
                if code is ErrorCode.NONE:
                    self.leads[tp] = state
                errors.append(LeaderAndIsrPartitionError(partition_index=tp.partition, error_code=int(code)))
            topics.append(LeaderAndIsrTopicError(topic_id=topic.topic_id, partition_errors=errors))
        return LeaderAndIsrResponse(topics=topics)

    def update_metadata(self, request: UpdateMetadataRequest) -> UpdateMetadataResponse:
        self.received.append(request)
        update_cache(self.cache, request)
        return UpdateMetadataResponse()

    def stop_replica(self, request: StopReplicaRequest) -> StopReplicaResponse:
        self.received.append(request)
        errors = []
        for topic in request.topic_states:
            for state in topic.partition_states:
                tp = TopicPartition(topic.topic_name, state.partition_index)
                self.leads.pop(tp, None)
                if state.delete_partition:
                    self.deleted.append(tp)
                errors.append(StopReplicaPartitionError(topic_name=tp.topic, partition_index=tp.partition))
        return StopReplicaResponse(partition_errors=errors)

    def requests_of_type(self, kind: type) -> list[Any]:
        return [request for request in self.received if isinstance(request, kind)]


class Settings:
    def __init__(self, values: dict[str, str] | None = None) -> None:
        self.configs = BrokerConfigs(values or {})

    def set_dynamic(self, *, default: Any = None, broker: Any = None) -> frozenset[str]:
        previous = self.configs.values
        self.configs = self.configs.with_dynamic(default=default, broker=broker)
        return frozenset(name for name, value in self.configs.values.items() if previous.get(name) != value)


class World:
    """One controller (on broker 0) and its brokers."""

    def __init__(self, store: EmbeddedStore, broker_ids: tuple[int, ...], racks: dict[int, str] | None = None) -> None:
        self.store = store
        self.racks = racks or {}
        self.brokers = {broker_id: FakeBroker(broker_id) for broker_id in broker_ids}
        self.configs = DynamicConfig(store, 0, Settings())
        self.controller = Controller(
            0,
            store,
            lambda registration: self.brokers[registration.id].channel(),
            ControllerSettings(lambda topic: topic.startswith("unclean")),
        )
        self.topics = Topics(self.controller, store, self.configs, self.brokers[0].cache)

    @property
    def broker(self) -> FakeBroker:
        return self.brokers[0]

    async def register(self, broker_id: int) -> int:
        point = EndPoint("PLAINTEXT", "PLAINTEXT", "localhost", 9092 + broker_id)
        return await register_broker(self.store, BrokerRegistration(broker_id, (point,), 1, self.racks.get(broker_id)))

    async def start(self) -> None:
        for broker_id in self.brokers:
            await self.register(broker_id)
        await self.configs.start()
        self.controller.start()
        await self.controller.wait_until_idle()


def in_world(
    folder: Path,
    body: Callable[[World], Awaitable[Any]],
    *,
    brokers: tuple[int, ...] = (0,),
    racks: dict[int, str] | None = None,
    start: bool = True,
) -> Any:
    """Run `body` with a new controller. A second call with the same folder continues on its znodes,
    like a restarted process."""

    async def run() -> Any:
        store = EmbeddedStore.open(folder / "metadata.db")
        await create_top_level_paths(store)
        world = World(store, brokers, racks)
        try:
            if start:
                await world.start()
            return await body(world)
        finally:
            await world.controller.stop()
            await world.configs.stop()
            await store.close()

    return asyncio.run(asyncio.wait_for(run(), 30))
