"""Where an application's stores and tasks are: Kafka's answers, for an application that one driver
runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kavka.client.producer._append import murmur2
from kavka.common.types import TopicPartition
from kavka.pipeline.streams.errors import InvalidStateStoreException, StreamsException
from kavka.pipeline.streams.plan import Plan
from kavka.pipeline.streams.serdes import Serde
from kavka.pipeline.streams.settings import Settings
from kavka.pipeline.streams.topology import Topology


@dataclass(frozen=True)
class HostInfo:
    """What `application.server` says."""

    host: str
    port: int

    @staticmethod
    def of(settings: Settings) -> HostInfo:
        given = str(settings.given.get("application.server") or "")
        if not given:
            return HostInfo("unknown", -1)
        host, _, port = given.rpartition(":")
        if not host or not port.isdigit():
            raise StreamsException(f"application.server must be host:port, not {given!r}")
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
    """Of one start of an application."""

    def __init__(self, topology: Topology, plan: Plan, settings: Settings) -> None:
        self._topology, self._plan, self._settings = topology, plan, settings
        self._host = HostInfo.of(settings)

    def tasks(self) -> tuple[TaskMetadata, ...]:
        """Of all sub-topologies, also of those that remember nothing."""
        plan, found = self._plan, []
        for sub in (*plan.stateless, *plan.feeding, *plan.stateful):
            read: dict[int, set[TopicPartition]] = {}
            for topic in (topic for source in sub.sources for topic in source.topics):
                full = f"{self._settings.application_id}-{topic}" if topic in self._topology.internal_topics else topic
                for number in range(plan.partitions[topic]):
                    read.setdefault(number, set()).add(TopicPartition(full, number))
            found += [TaskMetadata(f"{sub.id}_{number}", frozenset(tps)) for number, tps in sorted(read.items())]
        return tuple(sorted(found, key=lambda one: tuple(map(int, one.task_id.split("_")))))

    def client(self) -> StreamsMetadata:
        read = frozenset(tp for task in self.tasks() for tp in task.topic_partitions)
        return StreamsMetadata(self._host, frozenset(self._topology.stores), read)

    def for_key(self, store: str, key: Any, how: Serde | Callable[..., int | None] | None = None) -> KeyQueryMetadata:
        if store in self._topology.global_stores:
            return KeyQueryMetadata(self._host, -1)
        sub = next((one for one in self._plan.stateful if store in one.stores), None)
        if sub is None:
            raise InvalidStateStoreException(f"there is no store {store}")
        count = sum(slot.sub == sub.id for slot in self._plan.tasks)
        if how is not None and not isinstance(how, Serde):
            topic = next(topic for source in sub.sources for topic in source.topics)
            chosen = how(topic, key, None, count)
            if chosen is not None:
                return KeyQueryMetadata(self._host, chosen)
            how = None
        serde = how or self._topology.stores[store].key_serde or self._settings.key_serde
        data = serde.resolved(self._settings.key_serde, self._settings.value_serde).serialize(key)
        return KeyQueryMetadata(self._host, (murmur2(data or b"") & 0x7FFFFFFF) % count)
