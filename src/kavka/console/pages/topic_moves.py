"""Reassigns the partitions of a topic: plan, start, progress, cancellation.

The console records its throttles in the store. It removes a throttle when the reassignment of the
topic has ended, also after a restart of the console.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated

from starlette.responses import Response

from kavka.common.errors import KafkaError
from kavka.common.types import TopicPartition
from kavka.console.auth import Role
from kavka.console.cluster import ClusterHandle
from kavka.console.context import Context, check_seen, fingerprint
from kavka.console.errors import Refused
from kavka.console.moves import parse_replicas, propose
from kavka.console.pages.topic import fresh_topic
from kavka.console.pages.topics import topic_path
from kavka.console.registry import Bounds, Done, action, query
from kavka.console.state import Topic
from kavka.console.views import View, page

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Planned:
    """A partition of a reassignment plan."""

    partition: int
    current: tuple[int, ...]
    proposed: tuple[int, ...]
    size: int | None

    @property
    def moves(self) -> bool:
        return self.current != self.proposed

    @property
    def copied(self) -> int:
        """The number of bytes that brokers must copy."""
        return len(set(self.proposed) - set(self.current)) * (self.size or 0)


@dataclass(frozen=True, slots=True)
class Move:
    """A reassignment in progress. `done` is the share of copied bytes, None if unknown."""

    partition: int
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    done: float | None


def seen_of(topic: Topic) -> str:
    """Return the fingerprint of the assignment of a topic."""
    return fingerprint(topic.id, [p.replicas for p in topic.partitions])


@query("/topics/{topic}/plan", "Plan a reassignment of a topic without starting it")
async def plan_moves(
    context: Context,
    topic: str,
    brokers: Annotated[list[int], "The brokers for the replicas", Bounds(1)],
    replication: Annotated[int | None, "The replication factor. Default: unchanged", Bounds(1, 1000)] = None,
) -> list[Planned]:
    current_topic = await context.cluster.topic(topic)
    sample = await context.cluster.state()
    unknown = [broker for broker in brokers if broker not in sample.nodes]
    if unknown:
        raise Refused(f"broker {unknown[0]} is not in the cluster", field="brokers")
    racks = {broker: sample.nodes[broker].rack for broker in brokers}
    current = {p.id: p.replicas for p in current_topic.partitions}
    proposed = propose(current, list(dict.fromkeys(brokers)), racks, replication or current_topic.replication)
    return [Planned(p.id, p.replicas, proposed[p.id], p.size) for p in current_topic.partitions]


@query("/topics/{topic}/moves", "List the reassignments of a topic that are in progress")
async def list_moves(context: Context, topic: str) -> list[Move]:
    current_topic = await context.cluster.topic(topic)
    partitions = [TopicPartition(topic, p.id) for p in current_topic.partitions]
    in_progress = await context.admin.list_partition_reassignments(partitions, timeout=10)
    sizes = await _sizes(context, {tp: move.adding_replicas for tp, move in in_progress.items()})
    leader_sizes = {p.id: p.size for p in current_topic.partitions}
    moves = []
    for tp, move in sorted(in_progress.items()):
        total = (leader_sizes.get(tp.partition) or 0) * len(move.adding_replicas)
        added_sizes = [sizes.get((tp, broker)) for broker in move.adding_replicas]
        copied = sum(size for size in added_sizes if size is not None)
        done = None if not total or None in added_sizes else min(1.0, copied / total)
        moves.append(Move(tp.partition, move.replicas, move.adding_replicas, move.removing_replicas, done))
    return moves


async def _sizes(
    context: Context, adding: dict[TopicPartition, tuple[int, ...]]
) -> dict[tuple[TopicPartition, int], int]:
    """Return the sizes of the replicas being added, by partition and broker. Brokers that do not
    respond are omitted."""
    brokers = {broker for replicas in adding.values() for broker in replicas}
    if not brokers:
        return {}
    try:
        log_dirs = await context.admin.describe_log_dirs(brokers, list(adding), timeout=5)
    except KafkaError as error:
        log_dirs = getattr(error, "results", {})
    return {
        (tp, broker): max(info.size for info in infos)
        for broker, dirs in log_dirs.items()
        for directory in dirs.values()
        for tp, infos in directory.replicas.items()
        if infos
    }


@action("/topics/{topic}/moves", "Reassign partitions of a topic to other brokers", role=Role.ADMIN)
async def move_partitions(
    context: Context,
    topic: str,
    plan: Annotated[dict[str, str], 'Brokers by partition, the preferred leader first: {"0": "1,2"}', Bounds(1)],
    throttle: Annotated[int | None, "Maximum bytes per second of each broker", Bounds(1, 2**50)] = None,
    seen: Annotated[str, "The fingerprint of the displayed assignment"] = "",
) -> Done:
    cluster = context.cluster
    current_topic = await fresh_topic(cluster, topic)
    check_seen(seen, seen_of(current_topic))
    nodes = (await cluster.state()).nodes
    current = {TopicPartition(topic, p.id): p.replicas for p in current_topic.partitions}
    target: dict[TopicPartition, tuple[int, ...]] = {}
    for key, text in plan.items():
        partition_id, brokers = parse_replicas(key, text)
        tp = TopicPartition(topic, partition_id)
        if tp not in current:
            raise Refused(f"there is no partition {partition_id}")
        unknown = [broker for broker in brokers if broker not in nodes and broker not in current[tp]]
        if unknown:
            raise Refused(f"partition {partition_id}: broker {unknown[0]} is not in the cluster")
        if brokers != current[tp]:
            target[tp] = brokers
    if not target:
        raise Refused("the plan changes nothing")
    in_progress = await context.admin.list_partition_reassignments(list(current))
    if in_progress:
        raise Refused("a reassignment of this topic is in progress: wait for its end, or cancel it", 409)
    if throttle is not None:
        # Record the throttle before setting it: an unrecorded throttle would never be removed.
        await _record_throttle(cluster, topic, True)
        await context.admin.throttle_replication(throttle, in_progress, target, current)
    await context.admin.alter_partition_reassignments(target)
    cluster.mark_stale()
    return Done(f"the reassignment of {_count(target)} has started", topic_path(context, topic) + "/move")


@action("/topics/{topic}/moves/cancel", "Cancel the reassignments of a topic", role=Role.ADMIN)
async def cancel_moves(context: Context, topic: str) -> Done:
    current_topic = await context.cluster.topic(topic)
    partitions = [TopicPartition(topic, p.id) for p in current_topic.partitions]
    in_progress = await context.admin.list_partition_reassignments(partitions)
    if not in_progress:
        raise Refused("no reassignment is in progress", 409)
    await context.admin.alter_partition_reassignments(dict.fromkeys(in_progress))
    context.cluster.mark_stale()
    return Done(f"the reassignment of {_count(in_progress)} was cancelled", topic_path(context, topic) + "/move")


def _count(partitions: Collection[TopicPartition]) -> str:
    return f"{len(partitions)} partition{'s' if len(partitions) > 1 else ''}"


# --- throttles


def _key(cluster: ClusterHandle, topic: str) -> str:
    return f"throttled/{cluster.name}/{topic}"


async def _record_throttle(cluster: ClusterHandle, topic: str, is_throttled: bool) -> None:
    statement = (
        "INSERT OR REPLACE INTO setting VALUES (?, '1')" if is_throttled else "DELETE FROM setting WHERE name = ?"
    )
    await cluster.store.run(lambda db: db.execute(statement, (_key(cluster, topic),)))
    if is_throttled:
        cluster.throttled.add(topic)
    else:
        cluster.throttled.discard(topic)


async def load_throttled_topics(cluster: ClusterHandle) -> None:
    """Load the topics whose throttle an earlier process of the console set."""
    prefix = _key(cluster, "")
    rows = await cluster.store.run(
        lambda db: db.execute(
            "SELECT name FROM setting WHERE name >= ? AND name < ?", (prefix, prefix + "\uffff")
        ).fetchall()
    )
    cluster.throttled = {row[0].removeprefix(prefix) for row in rows}


async def remove_ended_throttles(cluster: ClusterHandle) -> None:
    """Remove the throttles of topics whose reassignment has ended. Called after every sample."""
    if not cluster.throttled or cluster.error or cluster.sample is None:
        return
    try:
        moving = {tp.topic for tp in await cluster.admin.list_partition_reassignments(timeout=10)}
        for topic in sorted(cluster.throttled - moving):
            existing = [topic] if topic in cluster.sample.topics else []
            # A broker has one rate for all topics, which is removed after the last reassignment.
            brokers = [] if moving else list(cluster.sample.nodes)
            await cluster.admin.clear_throttles(brokers, existing, timeout=10)
            if not moving:
                await _record_throttle(cluster, topic, False)
    except KafkaError as error:
        logger.info("Cannot remove the throttle of a reassignment yet: %s", error)


@page("/topics/{topic}/move", "Move", tab="Move", role=Role.ADMIN)
async def move_page(view: View) -> Response:
    name = view.path("topic")
    context = view.context
    topic = await context.cluster.topic(name)
    sample = await context.cluster.state()
    selected = _selected_brokers(view)
    plan, problem = [], ""
    replication = view.number("replication", topic.replication, 1, 1000)
    if selected:
        try:
            plan = await plan_moves(context, name, selected, replication)
        except Refused as error:
            problem = str(error)
    return view.render(
        "topic_move.html",
        name=name,
        topic=topic,
        nodes=sample.nodes,
        chosen=selected or sorted({broker for p in topic.partitions for broker in p.replicas}),
        replication=replication,
        plan=plan,
        problem=problem,
        moving=[planned for planned in plan if planned.moves],
        moves=await list_moves(context, name),
        throttled=name in context.cluster.throttled,
        seen=seen_of(topic),
    )


def _selected_brokers(view: View) -> list[int]:
    texts = view.request.query_params.getlist("brokers")
    return [int(text) for text in texts if text.isascii() and text.isdigit() and len(text) < 10]
