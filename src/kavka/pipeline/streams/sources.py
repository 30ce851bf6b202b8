"""The topics that a query reads, and from where."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kavka.client.admin import Admin
from kavka.client.admin.types import OffsetSpec
from kavka.common.types import TopicPartition
from kavka.pipeline.spark.offsets import DONE_BY_JOB
from kavka.pipeline.streams.progress import ends
from kavka.pipeline.streams.settings import Settings
from kavka.pipeline.streams.topology import SourceNode, Topology

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_READ_ALL = -2
_READ_NEW = -1
_TIMEOUT = 30.0


def source_frame(
    spark: SparkSession,
    settings: Settings,
    topics: Mapping[str, int],
    policies: Mapping[str, str],
    begin: Mapping[TopicPartition, int],
    most: int | None,
    form: str = "kavka",
) -> DataFrame:
    """A stream of these topics (with their partitions), so many records at a time. What has no
    state yet starts at `begin`, and where that says nothing, where the topics' policies say."""
    options: dict[str, Any] = {
        "kafka.bootstrap.servers": settings.bootstrap_servers,
        "subscribe": ",".join(sorted(topics)),
        "includeHeaders": "true",
        "groupIdCommit": settings.application_id,
        "startingOffsets": _starting(topics, policies, begin),
        **{f"kafka.{name}": value for name, value in settings.clients.items()},
    }
    if settings.exactly_once:
        options["kafka.isolation.level"] = "read_committed"
    if most is not None:
        options["maxOffsetsPerTrigger"] = most
    return spark.readStream.format(form).options(**options).load()


def _starting(topics: Mapping[str, int], policies: Mapping[str, str], begin: Mapping[TopicPartition, int]) -> str:
    chosen = {policies[topic] for topic in topics}
    if len(chosen) == 1 and not any(tp.topic in topics for tp in begin):
        return chosen.pop()
    at = {"earliest": _READ_ALL, "latest": _READ_NEW}
    return json.dumps(
        {
            topic: {str(n): begin.get(TopicPartition(topic, n), at[policies[topic]]) for n in range(count)}
            for topic, count in topics.items()
        }
    )


def set_by_others(admin: Admin, topology: Topology, settings: Settings) -> dict[TopicPartition, int]:
    """Where the application's group was set to in the topics that it reads, by a tool that resets
    it or by Kafka Streams. What a job of ours has committed there is of a state that was forgotten,
    and does not count."""
    subs = [sub for sub in topology.subtopologies() if not sub.global_]
    topics = {topic for sub in subs for source in sub.sources for topic in source.topics}
    topics -= set(topology.internal_topics)
    committed = admin.list_consumer_group_offsets(settings.application_id, timeout=_TIMEOUT)
    found = {
        tp: one.offset
        for tp, one in committed.items()
        if one is not None and tp.topic in topics and one.metadata != DONE_BY_JOB
    }
    if not found:
        return {}
    read = {tp.topic for tp in found}
    first = admin.list_offsets(dict.fromkeys(found, OffsetSpec.earliest()), timeout=_TIMEOUT)
    last = ends(admin, read, committed=False)
    # Who reads what is committed alone does not see further than where the first open transaction
    # begins.
    seen = ends(admin, read, committed=True) if settings.reads_committed else last
    # As for a consumer, what is not there is as good as not set.
    return {tp: min(at, seen[tp]) for tp, at in found.items() if first[tp].offset <= at <= last[tp]}


def policies_of(topology: Topology, settings: Settings) -> dict[str, str]:
    """Where reading begins, by topic, when there is no state yet. The application's own topics hold
    nothing then but what was left when the state was forgotten, and that would count twice."""
    found = {}
    for node in topology.nodes.values():
        if not isinstance(node, SourceNode):
            continue
        for topic in node.topics:
            if topic in topology.internal_topics:
                found[f"{settings.application_id}-{topic}"] = "latest"
            else:
                found[topic] = node.reset_policy or settings.reset
    return found
