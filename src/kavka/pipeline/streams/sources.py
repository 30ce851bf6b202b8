"""The topics that a query reads, and from where."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kavka.pipeline.streams.settings import Settings
from kavka.pipeline.streams.topology import SourceNode, Topology

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_READ_ALL = -2
_READ_NEW = -1


def source_frame(
    spark: SparkSession,
    settings: Settings,
    topics: Mapping[str, int],
    policies: Mapping[str, str],
    most: int | None,
    form: str = "kavka",
) -> DataFrame:
    """A stream of these topics (with their partitions) from where their policies say, so many records at a time."""
    options: dict[str, Any] = {
        "kafka.bootstrap.servers": settings.bootstrap_servers,
        "subscribe": ",".join(sorted(topics)),
        "includeHeaders": "true",
        "groupIdCommit": settings.application_id,
        "startingOffsets": _starting(topics, policies),
        **{f"kafka.{name}": value for name, value in settings.clients.items()},
    }
    if settings.exactly_once:
        options["kafka.isolation.level"] = "read_committed"
    if most is not None:
        options["maxOffsetsPerTrigger"] = most
    return spark.readStream.format(form).options(**options).load()


def _starting(topics: Mapping[str, int], policies: Mapping[str, str]) -> str:
    chosen = {policies[topic] for topic in topics}
    if len(chosen) == 1:
        return chosen.pop()
    at = {"earliest": _READ_ALL, "latest": _READ_NEW}
    return json.dumps(
        {topic: {str(number): at[policies[topic]] for number in range(count)} for topic, count in topics.items()}
    )


def policies_of(topology: Topology, settings: Settings) -> dict[str, str]:
    """Where reading begins, by topic, when there is no state yet. The application's own topics hold nothing then but
    what was left when the state was forgotten, and that would count twice."""
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
