"""Creates internal topics, and topics on first use, through the controller."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kavka.broker.controller_link import ControllerLink
from kavka.client.errors import error_of
from kavka.common.errors import ErrorCode, KafkaError
from kavka.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from kavka.replication.metadata_cache import MetadataCache

INTERNAL_TOPIC_TIMEOUT_S = 30.0
USE_DEFAULT = -1
_POLL_INTERVAL_S = 0.01


@dataclass(eq=False, repr=False)
class TopicCreation:
    """Sends CreateTopics to the controller for this broker."""

    _link: ControllerLink
    _cache: MetadataCache

    async def create_internal(
        self, name: str, partitions: int, replication_factor: int, configs: Mapping[str, str]
    ) -> None:
        """Create an internal topic, unless it exists. Raises KafkaError if it cannot be created."""
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replication_factor,
            configs=[CreatableTopicConfig(name=config, value=value) for config, value in configs.items()],
        )
        error = (await self._create([topic], INTERNAL_TOPIC_TIMEOUT_S))[name]
        if error is not None and error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
            raise error

    async def auto_create(self, names: Sequence[str], timeout_s: float) -> dict[str, KafkaError | None]:
        """Create topics with the controller's defaults, and wait until this broker's metadata
        contains their leaders or until the timeout. Returns the error of each topic, or None."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        topics = [
            CreatableTopic(name=name, num_partitions=USE_DEFAULT, replication_factor=USE_DEFAULT) for name in names
        ]
        outcomes = await self._create(topics, timeout_s)
        created = [name for name, error in outcomes.items() if error is None]
        while not all(map(self._cache.has_leaders, created)) and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(_POLL_INTERVAL_S)
        return outcomes

    async def _create(self, topics: list[CreatableTopic], timeout_s: float) -> dict[str, KafkaError | None]:
        request = CreateTopicsRequest(topics=topics, timeout_ms=int(timeout_s * 1000))
        try:
            response: CreateTopicsResponse = await self._link.send(request, timeout_s=timeout_s)
        except KafkaError as error:
            return dict.fromkeys((topic.name for topic in topics), error)
        return {
            result.name: error_of(result.error_code, result.error_message) if result.error_code else None
            for result in response.topics
        }
