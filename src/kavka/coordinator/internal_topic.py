"""The topic that a kind of coordinator keeps its state in: which partition is whose, and how it is first made."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from kavka.common.errors import ErrorCode, KafkaError
from kavka.replication.metadata_cache import MetadataCache

log = logging.getLogger(__name__)

# (name, partitions, replication factor, configs); returns when the controller has made the topic.
CreateTopic = Callable[[str, int, int, Mapping[str, str]], Awaitable[None]]

# How long whoever asked first waits for the new topic's leaders to be known.
WAIT_FOR_LEADERS_S = 2.0
_POLL_S = 0.02
_REMEMBERED_KEYS = 20_000


def java_hash(text: str) -> int:
    """Java's String.hashCode: over UTF-16 units, in 32 bits with a sign."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for i in range(0, len(units), 2):
        value = (31 * value + (units[i] << 8 | units[i + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def partition_for(key: str, partitions: int) -> int:
    value = java_hash(key)
    return 0 if value == -(1 << 31) else abs(value) % partitions


class InternalTopic:
    def __init__(
        self,
        name: str,
        partitions: int,
        replication_factor: int,
        configs: Mapping[str, str],
        metadata_cache: MetadataCache,
        create_topic: CreateTopic,
    ) -> None:
        self.name = name
        self._partitions = partitions
        self._replication_factor = replication_factor
        self._configs = dict(configs)
        self._cache = metadata_cache
        self._create = create_topic
        self._creating: asyncio.Task[None] | None = None
        self._known: dict[str, int] = {}

    @property
    def exists(self) -> bool:
        return self.name in self._cache.topics

    def partition_of(self, key: str) -> int:
        """The partition that a group or a transactional id belongs to. Once the topic is there, its own number of
        partitions counts."""
        found = self._known.get(key)
        if found is not None:
            return found
        topic = self._cache.topics.get(self.name)
        if topic is None:
            return partition_for(key, self._partitions)
        if len(self._known) >= _REMEMBERED_KEYS:
            self._known.clear()
        found = self._known[key] = partition_for(key, len(topic.partitions) or self._partitions)
        return found

    def leader_of(self, key: str) -> int | None:
        """The broker that coordinates `key`, None where the partition has no leader (yet)."""
        state = self._cache.partition_state(self.name, self.partition_of(key))
        return state.leader if state is not None and state.leader >= 0 else None

    async def ensure(self) -> None:
        """Make the topic where it is not there; whoever asks meanwhile waits for the same creation."""
        if self.exists:
            return
        if self._creating is None:
            self._creating = asyncio.ensure_future(self._make())
            self._creating.add_done_callback(self._made)
        await asyncio.shield(self._creating)

    async def _make(self) -> None:
        try:
            await self._create(self.name, self._partitions, self._replication_factor, self._configs)
        except KafkaError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                log.warning("Cannot make the topic %s: %s", self.name, error.message)
                raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message) from error
        waited = 0.0
        while not self._cache.has_leaders(self.name) and waited < WAIT_FOR_LEADERS_S:
            await asyncio.sleep(_POLL_S)
            waited += _POLL_S

    def _made(self, task: asyncio.Task[None]) -> None:
        self._creating = None
        if not task.cancelled():
            task.exception()
