"""[pure] The topics as groups see them: ids, numbers of partitions, racks.

`version` increases with every change of the topics. A group that has checked the latest version
need not check again.
"""

from __future__ import annotations

from collections.abc import Iterable, KeysView
from hashlib import blake2b
from typing import Any, NamedTuple, Protocol
from uuid import UUID


class Topic(NamedTuple):
    """`racks`: the racks of each partition's replicas; empty if no broker has a rack."""

    name: str
    topic_id: UUID
    partitions: int
    racks: tuple[frozenset[str], ...] = ()


class Topics(Protocol):
    @property
    def version(self) -> int: ...

    def get(self, name: str) -> Topic | None: ...

    def name_of(self, topic_id: UUID) -> str | None: ...

    def names(self) -> KeysView[str]: ...


class NoTopics:
    """No topics, for tests and before the metadata is loaded."""

    version = 0

    def get(self, name: str) -> Topic | None:
        return None

    def name_of(self, topic_id: UUID) -> str | None:
        return None

    def names(self) -> KeysView[str]:
        return {}.keys()


class CachedTopics:
    """The topics of the broker's metadata cache."""

    def __init__(self, cache: Any) -> None:
        self._cache = cache

    @property
    def version(self) -> int:
        version: int = self._cache.topics_version
        return version

    def get(self, name: str) -> Topic | None:
        info = self._cache.topics.get(name)
        if info is None:
            return None
        racks: tuple[frozenset[str], ...] = ()
        rack_of = {broker.id: broker.rack for broker in self._cache.brokers.values() if broker.rack is not None}
        if rack_of:
            racks = tuple(
                frozenset(rack_of[replica] for replica in state.replicas if replica in rack_of)
                for _, state in sorted(info.partitions.items())
            )
        return Topic(name, info.topic_id, len(info.partitions), racks)

    def name_of(self, topic_id: UUID) -> str | None:
        name: str | None = self._cache.topic_name(topic_id)
        return name

    def names(self) -> KeysView[str]:
        names: KeysView[str] = self._cache.topics.keys()
        return names


def metadata_hash(names: Iterable[str], topics: Topics) -> int:
    """A hash that shows whether these topics have changed; 0 if none of them exists. It is stored
    with the group epoch, so it must not depend on the process."""
    digest = blake2b(digest_size=8)
    empty = True
    for name in sorted(names):
        topic = topics.get(name)
        if topic is None:
            continue
        empty = False
        digest.update(topic.topic_id.bytes)
        racks = ";".join(",".join(sorted(racks)) for racks in topic.racks)
        digest.update(f"\0{name}\0{topic.partitions}\0{racks}\0".encode())
    return 0 if empty else int.from_bytes(digest.digest(), "big", signed=True)
