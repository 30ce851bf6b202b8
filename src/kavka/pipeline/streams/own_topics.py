"""How many partitions topics have, and making those that belong to an application."""

from __future__ import annotations

from collections.abc import Mapping

from kavka.client.admin import Admin
from kavka.client.admin.base import AdminError
from kavka.client.admin.types import NewTopic
from kavka.common.errors import ErrorCode
from kavka.pipeline.streams.errors import StreamsException

_TIMEOUT = 30.0
# As Kafka Streams makes repartition topics: what is in them is not gone before it is read, however
# old it is.
_SETTINGS = {"cleanup.policy": "delete", "retention.ms": "-1", "segment.bytes": str(50 * 1024 * 1024)}


def partitions_of(admin: Admin, topics: set[str]) -> dict[str, int]:
    """Of those topics that are there."""
    if not topics:
        return {}
    try:
        described = admin.describe_topics(sorted(topics), timeout=_TIMEOUT)
    except AdminError as error:
        if any(why.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for why in error.errors.values()):
            raise
        described = error.results
    return {one.name: len(one.partitions) for one in described.values()}


def create_own(admin: Admin, topics: Mapping[str, int], replication: int) -> None:
    there = partitions_of(admin, set(topics))
    for topic, count in topics.items():
        if topic not in there:
            factor = None if replication < 0 else replication
            try:
                admin.create_topics([NewTopic(topic, count, factor, configs=_SETTINGS)], timeout=_TIMEOUT)
            except AdminError as error:
                if any(why.code != ErrorCode.TOPIC_ALREADY_EXISTS for why in error.errors.values()):
                    raise
        elif there[topic] != count:
            raise StreamsException(
                f"the application's topic {topic} has {there[topic]} partitions and should have {count}: delete it, "
                "and clean_up()"
            )
