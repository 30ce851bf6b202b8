"""Types and constants that all layers use."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import NamedTuple
from uuid import UUID

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_TIMESTAMP = -1
NO_LEADER_EPOCH = -1


class TopicPartition(NamedTuple):
    """Identifies a partition. `str()` is the name of its directory on disk."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def uuid_text(value: UUID) -> str:
    """Return the text of an id as Kafka writes it: URL-safe base64 without padding, 22
    characters."""
    return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")


def uuid_from_text(text: str) -> UUID:
    """Return the id of a text that `uuid_text` returned. Raises ValueError if the text does not
    decode to 16 bytes."""
    return UUID(bytes=base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))


def by_topic(partitions: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    """Return the partition indexes by topic, in the order of `partitions`."""
    indexes: dict[str, list[int]] = {}
    for topic, partition in partitions:
        indexes.setdefault(topic, []).append(partition)
    return indexes
