"""A topic: its partitions, its consumer groups and its actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from starlette.responses import Response

from kavka.client.admin.types import ElectionType
from kavka.common.errors import ErrorCode
from kavka.common.types import TopicPartition
from kavka.console.auth import Role
from kavka.console.cluster import ClusterHandle
from kavka.console.context import Context, check_confirmation, check_seen, fingerprint
from kavka.console.errors import Refused, reason
from kavka.console.pages.topics import MAX_PARTITIONS, TopicRow, row_of, topic_path
from kavka.console.registry import Bounds, Done, action, query
from kavka.console.state import Partition, Sample, Topic
from kavka.console.views import Pager, View, page

ALL_RECORDS = -1


@dataclass(frozen=True, slots=True)
class Reader:
    """A group that has committed offsets of a topic."""

    group: str
    state: str
    partitions: int
    lag: int | None


@dataclass(frozen=True, slots=True)
class TopicDetail:
    """A topic with its partitions and consumer groups."""

    row: TopicRow
    topic_id: str
    partitions: list[Partition]
    readers: list[Reader]
    seen: str
    """The fingerprint for a confirmation."""


def seen_of(topic: Topic) -> str:
    """Return the fingerprint of a topic. It changes when the topic is recreated or gets more
    partitions."""
    return fingerprint(topic.name, topic.id, len(topic.partitions))


@query(
    "/topics/{topic}",
    "Describe a topic: leaders, replicas, ISR, offsets and sizes of partitions; consumer groups",
    topics=("topic",),
)
async def describe_topic(context: Context, topic: str) -> TopicDetail:
    cluster = context.cluster
    current = await cluster.topic(topic, groups=True)
    return TopicDetail(
        row_of(cluster, current),
        str(current.id),
        list(current.partitions),
        readers(cluster.sample, topic),
        seen_of(current),
    )


def readers(sample: Sample | None, topic: str) -> list[Reader]:
    """Return the groups with committed offsets of the topic, largest lag first."""
    found_readers = []
    for group in (sample.groups if sample else {}).values():
        partitions = [tp for tp in group.offsets or () if tp.topic == topic]
        if partitions:
            lag = sum(group.lags.get(tp, 0) for tp in partitions) if group.lags is not None else None
            found_readers.append(Reader(group.id, group.state, len(partitions), lag))
    return sorted(found_readers, key=lambda reader: -(reader.lag or 0))


async def fresh_topic(cluster: ClusterHandle, name: str) -> Topic:
    """Return the topic from a new sample, for the check of a confirmation. Raises Refused if the
    topic does not exist or the cluster does not respond."""
    cluster.mark_stale()
    topic = await cluster.topic(name)
    if cluster.error:
        raise Refused(f"the cluster does not respond: {cluster.error}; nothing was done", 502)
    return topic


@action("/topics/{topic}/delete", "Delete a topic with all its messages", role=Role.ADMIN, topics=("topic",))
async def delete_topic(
    context: Context,
    topic: str,
    confirm: Annotated[str, "The topic's name, typed again"],
    seen: Annotated[str, "The fingerprint of the page"] = "",
) -> Done:
    current = await fresh_topic(context.cluster, topic)
    check_confirmation(typed=confirm, name=topic, seen=seen, current=seen_of(current))
    await context.admin.delete_topics([topic])
    await context.cluster.wait_until(lambda sample: topic not in sample.topics)
    return Done(f"{topic} was deleted", f"/c/{context.cluster.name}/topics")


@action("/topics/{topic}/empty", "Delete all messages of a topic", role=Role.ADMIN, topics=("topic",))
async def empty_topic(
    context: Context,
    topic: str,
    confirm: Annotated[str, "The topic's name, typed again"],
    seen: Annotated[str, "The fingerprint of the page"] = "",
) -> Done:
    """Messages that producers send during this operation may remain."""
    current = await fresh_topic(context.cluster, topic)
    check_confirmation(typed=confirm, name=topic, seen=seen, current=seen_of(current))
    leaderless = [p.id for p in current.partitions if p.offline]
    if leaderless:
        raise Refused(f"partition {leaderless[0]} has no leader; nothing was done", 409)
    await context.admin.delete_records({TopicPartition(topic, p.id): ALL_RECORDS for p in current.partitions})
    context.cluster.mark_stale()
    return Done(f"{topic} is empty", topic_path(context, topic))


@action(
    "/topics/{topic}/delete-records", "Delete the oldest messages of a partition", role=Role.ADMIN, topics=("topic",)
)
async def delete_records(
    context: Context,
    topic: str,
    partition: Annotated[int, Bounds(0)],
    before: Annotated[int, "Messages with smaller offsets are deleted", Bounds(0)],
    confirm: Annotated[str, "The topic's name, typed again"],
    seen: Annotated[str, "The fingerprint of the page"] = "",
) -> Done:
    current = await fresh_topic(context.cluster, topic)
    check_confirmation(typed=confirm, name=topic, seen=seen, current=seen_of(current))
    if partition not in {p.id for p in current.partitions}:
        raise Refused(f"there is no partition {partition}", 404, "partition")
    await context.admin.delete_records({TopicPartition(topic, partition): before})
    context.cluster.mark_stale()
    return Done(f"partition {partition} of {topic} starts at offset {before}", topic_path(context, topic))


@action("/topics/{topic}/partitions", "Add partitions to a topic", topics=("topic",))
async def add_partitions(
    context: Context,
    topic: str,
    total: Annotated[int, "The new number of partitions", Bounds(1, MAX_PARTITIONS)],
    seen: Annotated[str, "The fingerprint of the page"] = "",
) -> Done:
    """This cannot be undone. The keyed messages of producers then go to other partitions."""
    current = await fresh_topic(context.cluster, topic)
    check_seen(seen, seen_of(current))
    if total <= len(current.partitions):
        raise Refused(f"{topic} has {len(current.partitions)} partitions: the number can only increase", field="total")
    await context.admin.create_partitions({topic: total})
    await context.cluster.wait_until(
        lambda sample: topic in sample.topics and len(sample.topics[topic].partitions) >= total
    )
    return Done(f"{topic} has {total} partitions", topic_path(context, topic))


@action("/topics/{topic}/elect", "Elect the preferred replicas as leaders", topics=("topic",))
async def elect_preferred(
    context: Context, topic: str, partition: Annotated[int | None, "Only this partition", Bounds(0)] = None
) -> Done:
    current = await context.cluster.topic(topic)
    partitions = [TopicPartition(topic, p.id) for p in current.partitions if partition is None or p.id == partition]
    if not partitions:
        raise Refused(f"there is no partition {partition}", 404, "partition")
    count = await _elect(context, ElectionType.PREFERRED, partitions)
    if not count:
        return Done("The preferred replicas lead already", topic_path(context, topic))
    return Done(f"{count} {'leader was' if count == 1 else 'leaders were'} elected", topic_path(context, topic))


@action("/topics/{topic}/elect-unclean", "Elect leaders that may lack messages", role=Role.ADMIN, topics=("topic",))
async def elect_unclean(
    context: Context,
    topic: str,
    confirm: Annotated[str, "The topic's name, typed again"],
    seen: Annotated[str, "The fingerprint of the page"] = "",
) -> Done:
    """Only partitions without a leader are changed. Messages that the new leader does not have are
    lost, also on the other replicas."""
    current = await fresh_topic(context.cluster, topic)
    check_confirmation(typed=confirm, name=topic, seen=seen, current=seen_of(current))
    partitions = [TopicPartition(topic, p.id) for p in current.partitions if p.offline]
    if not partitions:
        raise Refused("every partition has a leader; nothing was done", 409)
    count = await _elect(context, ElectionType.UNCLEAN, partitions)
    return Done(f"{count} {'leader was' if count == 1 else 'leaders were'} elected", topic_path(context, topic))


async def _elect(context: Context, election: ElectionType, partitions: list[TopicPartition]) -> int:
    """Return the number of elected leaders. Raises Refused if an election failed."""
    results = await context.admin.elect_leaders(election, partitions)
    context.cluster.mark_stale()
    elected = [tp for tp, error in results.items() if error is None]
    failed = {
        tp: error
        for tp, error in results.items()
        if error is not None and error.code is not ErrorCode.ELECTION_NOT_NEEDED
    }
    if failed:
        tp, error = next(iter(failed.items()))
        raise Refused(
            f"{len(elected)} leaders were elected, {len(failed)} elections failed, for example {tp}: {reason(error)}",
            409,
        )
    return len(elected)


@page("/topics/{topic}", "Topic", tab="Partitions", topics=("topic",))
async def topic_page(view: View) -> Response:
    name = view.path("topic")
    detail = await describe_topic(view.context, name)
    return view.render(
        "topic.html", name=name, detail=detail, row=detail.row, pager=Pager(view, detail.partitions, 200)
    )


@page("/topics/{topic}/actions", "Change a topic", tab="Actions", role=Role.OPERATE, topics=("topic",))
async def topic_actions_page(view: View) -> Response:
    name = view.path("topic")
    topic = await view.context.cluster.topic(name)
    return view.render("topic_actions.html", name=name, topic=topic, seen=seen_of(topic))
