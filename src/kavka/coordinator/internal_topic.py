"""The internal topic of a coordinator: the partition of each key, and the creation of the topic."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from kavka.common.errors import ErrorCode, KafkaError
from kavka.replication.metadata_cache import MetadataCache

logger = logging.getLogger(__name__)

# Takes (name, partitions, replication factor, configs). Returns when the controller has created the
# topic.
CreateTopic = Callable[[str, int, int, Mapping[str, str]], Awaitable[None]]

# The maximum time that callers wait for the leaders of the new topic.
MAX_LEADER_WAIT_S = 2.0
_POLL_INTERVAL_S = 0.02
_MAX_CACHED_KEYS = 20_000


def java_hash(text: str) -> int:
    """Return Java's String.hashCode: a hash of the UTF-16 code units, as a signed 32-bit
    integer."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for i in range(0, len(units), 2):
        value = (31 * value + (units[i] << 8 | units[i + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def partition_for(key: str, partitions: int) -> int:
    """Return the partition of a key, as Kafka computes it for internal topics."""
    value = java_hash(key)
    return 0 if value == -(1 << 31) else abs(value) % partitions


@dataclass(eq=False, repr=False)
class InternalTopic:
    """The name and the settings of the topic. Caches the partitions of keys, so the number of
    partitions must not change."""

    name: str
    _partitions: int
    _replication_factor: int
    _configs: Mapping[str, str]
    _cache: MetadataCache
    _create: CreateTopic
    _creating: asyncio.Task[None] | None = field(init=False, default=None)
    _partition_by_key: dict[str, int] = field(init=False, default_factory=dict)

    @property
    def exists(self) -> bool:
        return self.name in self._cache.topics

    def partition_of(self, key: str) -> int:
        """Return the partition of a group id or transactional id. If the topic does not exist, the
        configured number of partitions is used."""
        partition = self._partition_by_key.get(key)
        if partition is not None:
            return partition
        topic = self._cache.topics.get(self.name)
        if topic is None:
            return partition_for(key, self._partitions)
        if len(self._partition_by_key) >= _MAX_CACHED_KEYS:
            self._partition_by_key.clear()
        partition = self._partition_by_key[key] = partition_for(key, len(topic.partitions) or self._partitions)
        return partition

    def leader_of(self, key: str) -> int | None:
        """Return the id of the broker that coordinates `key`, or None if the partition has no
        leader."""
        state = self._cache.partition_state(self.name, self.partition_of(key))
        return state.leader if state is not None and state.leader >= 0 else None

    async def ensure(self) -> None:
        """Create the topic if it does not exist. Concurrent callers wait for the same creation.
        Raises COORDINATOR_NOT_AVAILABLE if the creation fails."""
        if self.exists:
            return
        if self._creating is None:
            self._creating = asyncio.ensure_future(self._create_and_wait())
            self._creating.add_done_callback(self._on_created)
        await asyncio.shield(self._creating)

    async def _create_and_wait(self) -> None:
        try:
            await self._create(self.name, self._partitions, self._replication_factor, self._configs)
        except KafkaError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                logger.warning("Cannot create topic %s: %s", self.name, error.message)
                raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message) from error
        waited_s = 0.0
        while not self._cache.has_leaders(self.name) and waited_s < MAX_LEADER_WAIT_S:
            await asyncio.sleep(_POLL_INTERVAL_S)
            waited_s += _POLL_INTERVAL_S

    def _on_created(self, task: asyncio.Task[None]) -> None:
        self._creating = None
        if not task.cancelled():
            task.exception()
