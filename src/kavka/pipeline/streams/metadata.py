"""Metadata of an application's stores and tasks, in Kafka's types. One driver runs the
application."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kavka.client.producer._append import murmur2
from kavka.common.types import TopicPartition
from kavka.pipeline.streams.errors import InvalidStateStoreException, StreamsException
from kavka.pipeline.streams.plan import Plan
from kavka.pipeline.streams.serdes import Serde, resolved
from kavka.pipeline.streams.settings import Settings
from kavka.pipeline.streams.topology import Topology


@dataclass(frozen=True)
class HostInfo:
    """The host of `application.server`."""

    host: str
    port: int

    @staticmethod
    def of(settings: Settings) -> HostInfo:
        server = str(settings.config.get("application.server") or "")
        if not server:
            return HostInfo("unknown", -1)
        host, _, port = server.rpartition(":")
        if not host or not port.isdigit():
            raise StreamsException(f"application.server must be host:port, not {server!r}")
        return HostInfo(host, int(port))


@dataclass(frozen=True)
class StreamsMetadata:
    host_info: HostInfo
    state_store_names: frozenset[str]
    topic_partitions: frozenset[TopicPartition]
    standby_state_store_names: frozenset[str] = frozenset()
    standby_topic_partitions: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True)
class KeyQueryMetadata:
    active_host: HostInfo
    partition: int
    standby_hosts: frozenset[HostInfo] = frozenset()


@dataclass(frozen=True)
class TaskMetadata:
    task_id: str
    topic_partitions: frozenset[TopicPartition]


@dataclass(frozen=True)
class ThreadMetadata:
    thread_name: str
    thread_state: str
    active_tasks: tuple[TaskMetadata, ...]
    standby_tasks: tuple[TaskMetadata, ...] = ()


class Metadata:
    """The metadata of a running application."""

    def __init__(self, topology: Topology, plan: Plan, settings: Settings) -> None:
        self._topology, self._plan, self._settings = topology, plan, settings
        self._host = HostInfo.of(settings)

    def tasks(self) -> tuple[TaskMetadata, ...]:
        """The tasks of all sub-topologies, including stateless sub-topologies."""
        plan, tasks = self._plan, []
        for sub in sorted((*plan.stateless, *plan.feeding, *plan.stateful), key=lambda sub: sub.id):
            partitions: dict[int, set[TopicPartition]] = {}
            for topic in sub.topics:
                is_internal = topic in self._topology.internal_topics
                name = f"{self._settings.application_id}-{topic}" if is_internal else topic
                for number in range(plan.partitions[topic]):
                    partitions.setdefault(number, set()).add(TopicPartition(name, number))
            tasks += [
                TaskMetadata(f"{sub.id}_{number}", frozenset(partitions[number])) for number in sorted(partitions)
            ]
        return tuple(tasks)

    def client(self) -> StreamsMetadata:
        partitions = frozenset(partition for task in self.tasks() for partition in task.topic_partitions)
        return StreamsMetadata(self._host, frozenset(self._topology.stores), partitions)

    def for_key(
        self, store: str, key: Any, serde_or_partitioner: Serde | Callable[..., int | None] | None = None
    ) -> KeyQueryMetadata:
        if store in self._topology.global_stores:
            return KeyQueryMetadata(self._host, -1)
        sub = next((sub for sub in self._plan.stateful if store in sub.stores), None)
        if sub is None:
            raise InvalidStateStoreException(f"there is no store {store}")
        count = sum(slot.sub == sub.id for slot in self._plan.tasks)
        serde = serde_or_partitioner if isinstance(serde_or_partitioner, Serde) else None
        if serde_or_partitioner is not None and not isinstance(serde_or_partitioner, Serde):
            partition = serde_or_partitioner(sub.topics[0], key, None, count)
            if partition is not None:
                return KeyQueryMetadata(self._host, partition)
        serde = serde or self._topology.stores[store].key_serde
        data = resolved(serde, self._settings.key_serde, self._settings.value_serde).serialize(key)
        return KeyQueryMetadata(self._host, (murmur2(data or b"") & 0x7FFFFFFF) % count)
