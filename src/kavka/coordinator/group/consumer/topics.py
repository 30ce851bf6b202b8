"""[pure] The metadata of topics that groups use: ids, numbers of partitions, racks.

`version` increases when a topic, a partition or the replicas of a partition change, but not when
only the rack of a broker changes. A group checks its subscribed topics again only if the version
has changed.
"""

from __future__ import annotations

from collections.abc import Iterable, KeysView
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple, Protocol
from uuid import UUID

if TYPE_CHECKING:
    from kavka.replication.metadata_cache import MetadataCache


class Topic(NamedTuple):
    """`partitions` is the number of partitions. `racks` contains the racks of each partition's
    replicas; it is empty if no broker has a rack."""

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


@dataclass(slots=True, eq=False, repr=False)
class CachedTopics:
    """The topics of the broker's metadata cache."""

    _cache: MetadataCache

    @property
    def version(self) -> int:
        return self._cache.topics_version

    def get(self, name: str) -> Topic | None:
        info = self._cache.topics.get(name)
        if info is None:
            return None
        racks: tuple[frozenset[str], ...] = ()
        rack_by_broker = {broker.id: broker.rack for broker in self._cache.brokers.values() if broker.rack is not None}
        if rack_by_broker:
            racks = tuple(
                frozenset(rack_by_broker[replica] for replica in state.replicas if replica in rack_by_broker)
                for _, state in sorted(info.partitions.items())
            )
        return Topic(name, info.topic_id, len(info.partitions), racks)

    def name_of(self, topic_id: UUID) -> str | None:
        return self._cache.topic_name(topic_id)

    def names(self) -> KeysView[str]:
        return self._cache.topics.keys()


def metadata_hash(names: Iterable[str], topics: Topics) -> int:
    """Return a hash that changes when one of these topics changes, or 0 if no topic exists. The
    hash is stored with the group epoch, so it must be the same in every process."""
    digest = blake2b(digest_size=8)
    is_empty = True
    for name in sorted(names):
        topic = topics.get(name)
        if topic is None:
            continue
        is_empty = False
        digest.update(topic.topic_id.bytes)
        racks = ";".join(",".join(sorted(partition_racks)) for partition_racks in topic.racks)
        digest.update(f"\0{name}\0{topic.partitions}\0{racks}\0".encode())
    return 0 if is_empty else int.from_bytes(digest.digest(), "big", signed=True)
