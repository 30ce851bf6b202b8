"""Sends requests through the codec and the handlers, with a real znode tree and controller. The
brokers only record the controller's requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from pathlib import Path
from typing import Any

from kavka.api import registry
from kavka.api.context import RequestContext
from kavka.broker.controller_link import ControllerLink
from kavka.broker.topic_creation import TopicCreation
from kavka.common.errors import KafkaError
from kavka.metadata.cluster import ProducerIds
from kavka.replication.peers import Peers
from tests.unit.controller.support import World, in_world


class Settings(dict[str, Any]):
    """The broker settings that handlers read."""


class FakeBrokerServices:
    def __init__(self, world: World) -> None:
        self.broker_id = 0
        self.cluster_id = "C_AtECe4SGyv8WgkJB6nmA"
        self.settings = Settings(
            {
                "auto.create.topics.enable": True,
                "delete.topic.enable": True,
                "num.partitions": 1,
                "max.request.partition.size.limit": 2000,
            }
        )
        self.world = world
        self.store = world.store
        self.controller = world.controller
        self.topics = world.topics
        self.configs = world.configs
        self.metadata_cache = world.broker.cache
        self.producer_ids = ProducerIds(world.store, 0)
        self.in_cluster = False
        link = ControllerLink(0, lambda: 0, Client(self).send, Peers(0, lambda broker_id: None))
        self.topic_creation = TopicCreation(link, self.metadata_cache)


class Client:
    """A client that encodes and decodes everything in the requested version."""

    def __init__(self, services: FakeBrokerServices, listener: str = "PLAINTEXT") -> None:
        self.broker = services
        self.listener = listener

    async def send(self, request: Any, version: int) -> Any:
        api = registry.load()[int(request.API_KEY)]
        assert api.min_version <= version <= api.max_version
        pieces: list[bytes] = []
        request.encode(pieces, version)
        decoded, _ = api.request_class.decode(memoryview(b"".join(pieces)), 0, version)
        ctx = RequestContext(self.broker, version, 1, "test", self.listener, "127.0.0.1", "User:ANONYMOUS")  # type: ignore[arg-type]
        try:
            response = api.handle(ctx, decoded)
            if isawaitable(response):
                response = await response
        except KafkaError as error:
            response = api.on_error(decoded, version, error)
        encoded: list[bytes] = []
        response.encode(encoded, version)
        return type(response).decode(memoryview(b"".join(encoded)), 0, version)[0]


def with_client(folder: Path, body: Callable[[Client], Awaitable[Any]], *, brokers: tuple[int, ...] = (0,)) -> Any:
    async def run(world: World) -> Any:
        return await asyncio.wait_for(body(Client(FakeBrokerServices(world))), 20)

    return in_world(folder, run, brokers=brokers)
