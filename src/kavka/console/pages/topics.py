"""Lists and creates topics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import quote

from starlette.responses import Response

from kavka.client.admin.types import NewTopic
from kavka.common.topic_config import TOPIC_CONFIGS
from kavka.console.auth import Role
from kavka.console.cluster import ClusterHandle
from kavka.console.context import Context
from kavka.console.errors import Refused
from kavka.console.registry import Bounds, Done, action, query
from kavka.console.state import Sample, Topic
from kavka.console.views import Pager, View, page

MAX_PARTITIONS = 100_000
COMMON_SETTINGS = ("cleanup.policy", "retention.ms", "retention.bytes", "min.insync.replicas", "max.message.bytes")
HEALTHS = ("offline", "under-replicated", "healthy")


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A topic. `messages` is the number of offsets; a compacted topic has fewer messages. `size` is
    the size of the leaders' replicas, `disk` the size of all replicas. `messages_in` and `bytes_in`
    are per second."""

    name: str
    internal: bool
    partitions: int
    replication: int
    messages: int | None
    size: int | None
    disk: int | None
    messages_in: float
    bytes_in: float
    offline: int
    under_replicated: int
    health: str


def row_of(cluster: ClusterHandle, topic: Topic) -> TopicRow:
    messages_in, bytes_in = cluster.topic_rates.get(topic.name, (0.0, 0.0))
    return TopicRow(
        topic.name,
        topic.internal,
        len(topic.partitions),
        topic.replication,
        topic.messages,
        topic.size,
        topic.disk,
        messages_in,
        bytes_in,
        topic.offline,
        topic.under_replicated,
        topic.health,
    )


SORT_KEYS: dict[str, Callable[[ClusterHandle, Topic], Any]] = {
    "name": lambda cluster, topic: topic.name,
    "partitions": lambda cluster, topic: len(topic.partitions),
    "replication": lambda cluster, topic: topic.replication,
    "messages": lambda cluster, topic: -1 if topic.messages is None else topic.messages,
    "size": lambda cluster, topic: -1 if topic.size is None else topic.size,
    "rate": lambda cluster, topic: cluster.topic_rates.get(topic.name, (0.0, 0.0))[0],
    "health": lambda cluster, topic: HEALTHS.index(topic.health),
}


def matching_topics(
    cluster: ClusterHandle, sample: Sample, search: str, internal: bool, health: str, sort: str
) -> list[Topic]:
    """Return the topics of a list in its order. Creates no rows: a page shows few of them."""
    sort_key = SORT_KEYS.get(sort.removeprefix("-"))
    if sort_key is None:
        raise Refused(f"sort must be one of {', '.join(SORT_KEYS)}, not '{sort[:60]}'", field="sort")
    pattern = search.strip().lower()
    topics = [
        topic
        for topic in sample.topics.values()
        if (internal or not topic.internal)
        and pattern in topic.name.lower()
        and (not health or topic.health == health or (health == "under-replicated" and topic.under_replicated))
    ]
    return sorted(topics, key=lambda topic: sort_key(cluster, topic), reverse=sort.startswith("-"))


@query("/topics", "List the topics with their size, messages and health", topics=())
async def list_topics(
    context: Context,
    search: Annotated[str, "Part of the name"] = "",
    internal: Annotated[bool, "Include internal topics"] = False,
    health: Annotated[str, "offline, under-replicated or healthy"] = "",
    sort: Annotated[
        str, "name, partitions, replication, messages, size, rate or health; with the prefix - in descending order"
    ] = "name",
) -> list[TopicRow]:
    sample = await context.cluster.state()
    topics = matching_topics(context.cluster, sample, search, internal, health, sort)
    return [row_of(context.cluster, topic) for topic in topics]


@action("/topics/create", "Create a topic", topics=("name",))
async def create_topic(
    context: Context,
    name: str,
    partitions: Annotated[int | None, "Default: num.partitions of the broker", Bounds(1, MAX_PARTITIONS)] = None,
    replication: Annotated[int | None, "Default: default.replication.factor of the broker", Bounds(1, 1000)] = None,
    configs: Annotated[dict[str, str] | None, "Settings by name. Empty values are ignored"] = None,
) -> Done:
    overrides = {key: value for key, value in (configs or {}).items() if value not in (None, "")}
    created = await context.admin.create_topics([NewTopic(name.strip(), partitions, replication, configs=overrides)])
    await context.cluster.wait_until(lambda sample: name.strip() in sample.topics)
    count = next(iter(created.values())).num_partitions
    suffix = f" with {count} partition{'s' if count != 1 else ''}" if count > 0 else ""
    return Done(f"{name.strip()} was created{suffix}", topic_path(context, name.strip()))


def topic_path(context: Context, topic: str) -> str:
    return f"/c/{context.cluster.name}/topics/{quote(topic, safe='')}"


@page("/topics", "Topics", nav="Topics", icon="layers", section="Data", topics=())
async def topics_page(view: View) -> Response:
    sort = view.text("sort", "name")
    cluster = view.context.cluster
    sample = await cluster.state()
    topics = matching_topics(cluster, sample, view.text("search"), view.flag("internal"), view.text("health"), sort)
    pager = Pager(view, topics)
    pager.rows = [row_of(cluster, topic) for topic in pager.rows]
    return view.render(
        "topics.html",
        pager=pager,
        sort=sort,
        hidden_internal_topics=sum(t.internal for t in sample.topics.values()) if not view.flag("internal") else 0,
        common_settings=[TOPIC_CONFIGS.keys[name] for name in COMMON_SETTINGS],
        may_create=view.context.user.role >= Role.OPERATE,
        brokers=len(sample.nodes),
    )
