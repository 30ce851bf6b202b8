"""The partitions of topics, and the creation of an application's repartition topics."""

from __future__ import annotations

from collections.abc import Mapping

from kavka.client.admin import Admin
from kavka.client.admin.base import AdminError
from kavka.client.admin.types import NewTopic
from kavka.common.errors import ErrorCode
from kavka.pipeline.streams.errors import StreamsException

_TIMEOUT = 30.0
# As Kafka Streams creates repartition topics: retention never deletes records before they are read.
_SETTINGS = {"cleanup.policy": "delete", "retention.ms": "-1", "segment.bytes": str(50 * 1024 * 1024)}


def partitions_of(admin: Admin, topics: set[str]) -> dict[str, int]:
    """The partitions of those topics that exist."""
    if not topics:
        return {}
    try:
        described = admin.describe_topics(sorted(topics), timeout=_TIMEOUT)
    except AdminError as error:
        if any(reason.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for reason in error.errors.values()):
            raise
        described = error.results
    return {topic.name: len(topic.partitions) for topic in described.values()}


def create_own(admin: Admin, topics: Mapping[str, int], replication: int, configs: Mapping[str, str]) -> None:
    """Create the topics that do not exist. `configs` are the settings `topic.`."""
    existing = partitions_of(admin, set(topics))
    for topic, count in topics.items():
        if topic not in existing:
            factor = None if replication < 0 else replication
            try:
                admin.create_topics(
                    [NewTopic(topic, count, factor, configs={**_SETTINGS, **configs})], timeout=_TIMEOUT
                )
            except AdminError as error:
                if any(reason.code != ErrorCode.TOPIC_ALREADY_EXISTS for reason in error.errors.values()):
                    raise
        elif existing[topic] != count:
            raise StreamsException(
                f"the application's topic {topic} has {existing[topic]} partitions and should have {count}: delete "
                "it, and call clean_up()"
            )
