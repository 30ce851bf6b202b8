"""Reassigns the partitions of a topic: plan, start, progress, cancellation.

A throttle of the console is recorded in the store and removed when the reassignment of its topic
ends, also after a restart of the console.
"""

from __future__ import annotations

import logging
import sqlite3
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
from kavka.console.pages.topics import topic_address
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
        """The bytes to copy over the network."""
        return len(set(self.proposed) - set(self.current)) * (self.size or 0)


@dataclass(frozen=True, slots=True)
class Move:
    """A reassignment in progress. `done` is the share of copied bytes, None if unknown."""

    partition: int
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    done: float | None


def assignment_of(topic: Topic) -> str:
    return fingerprint(topic.id, [p.replicas for p in topic.partitions])


@query("/topics/{topic}/plan", "Where the partitions of a topic could go; nothing is moved")
async def plan_moves(
    context: Context,
    topic: str,
    brokers: Annotated[list[int], "Those that are to have the replicas", Bounds(1)],
    replication: Annotated[int | None, "Replicas of each; as many as now if left out", Bounds(1, 1000)] = None,
) -> list[Planned]:
    described = await context.cluster.topic(topic)
    sample = await context.cluster.state()
    unknown = [broker for broker in brokers if broker not in sample.nodes]
    if unknown:
        raise Refused(f"broker {unknown[0]} is not in the cluster", field="brokers")
    racks = {broker: sample.nodes[broker].rack for broker in brokers}
    current = {p.id: p.replicas for p in described.partitions}
    proposed = propose(current, list(dict.fromkeys(brokers)), racks, replication or described.replication)
    return [Planned(p.id, p.replicas, proposed[p.id], p.size) for p in described.partitions]


@query("/topics/{topic}/moves", "Moves of a topic's partitions that are under way")
async def list_moves(context: Context, topic: str) -> list[Move]:
    described = await context.cluster.topic(topic)
    partitions = [TopicPartition(topic, p.id) for p in described.partitions]
    in_progress = await context.admin.list_partition_reassignments(partitions, timeout=10)
    sizes = await _sizes(context, {tp: move.adding_replicas for tp, move in in_progress.items()})
    leaders = {p.id: p.size for p in described.partitions}
    moves = []
    for tp, move in sorted(in_progress.items()):
        total = (leaders.get(tp.partition) or 0) * len(move.adding_replicas)
        added_sizes = [sizes.get((tp, broker)) for broker in move.adding_replicas]
        copied = sum(size for size in added_sizes if size is not None)
        done = None if not total or None in added_sizes else min(1.0, copied / total)
        moves.append(Move(tp.partition, move.replicas, move.adding_replicas, move.removing_replicas, done))
    return moves


async def _sizes(
    context: Context, adding: dict[TopicPartition, tuple[int, ...]]
) -> dict[tuple[TopicPartition, int], int]:
    """The sizes of the replicas being added."""
    brokers = {broker for some in adding.values() for broker in some}
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


@action("/topics/{topic}/moves", "Move partitions of a topic to other brokers", role=Role.ADMIN)
async def move_partitions(
    context: Context,
    topic: str,
    plan: Annotated[dict[str, str], 'By partition, its brokers, the preferred leader first: {"0": "1,2"}', Bounds(1)],
    throttle: Annotated[int | None, "At most so many bytes per second of each broker", Bounds(1, 2**50)] = None,
    seen: Annotated[str, "The fingerprint of the assignment that was shown"] = "",
) -> Done:
    cluster = context.cluster
    described = await fresh_topic(cluster, topic)
    check_seen(seen, assignment_of(described))
    nodes = (await cluster.state()).nodes
    current = {TopicPartition(topic, p.id): p.replicas for p in described.partitions}
    target: dict[TopicPartition, tuple[int, ...]] = {}
    for key, text in plan.items():
        number, brokers = parse_replicas(key, text)
        tp = TopicPartition(topic, number)
        if tp not in current:
            raise Refused(f"there is no partition {number}")
        unknown = [broker for broker in brokers if broker not in nodes and broker not in current[tp]]
        if unknown:
            raise Refused(f"partition {number}: broker {unknown[0]} is not in the cluster")
        if brokers != current[tp]:
            target[tp] = brokers
    if not target:
        raise Refused("nothing would move")
    in_progress = await context.admin.list_partition_reassignments(list(current))
    if in_progress:
        raise Refused("partitions of this topic are being moved already: wait, or cancel that first", 409)
    if throttle is not None:
        # Record the throttle before setting it: an unrecorded throttle would never be removed.
        await _remember(cluster, topic, True)
        await context.admin.throttle_replication(throttle, in_progress, target, current)
    await context.admin.alter_partition_reassignments(target)
    cluster.changed()
    many = "s" if len(target) > 1 else ""
    return Done(f"{len(target)} partition{many} began to move", topic_address(context, topic) + "/move")


@action("/topics/{topic}/moves/cancel", "Call off the moves of a topic's partitions", role=Role.ADMIN)
async def cancel_moves(context: Context, topic: str) -> Done:
    described = await context.cluster.topic(topic)
    partitions = [TopicPartition(topic, p.id) for p in described.partitions]
    in_progress = await context.admin.list_partition_reassignments(partitions)
    if not in_progress:
        raise Refused("nothing is being moved any more", 409)
    await context.admin.alter_partition_reassignments(dict.fromkeys(in_progress))
    context.cluster.changed()
    many = "s" if len(in_progress) > 1 else ""
    return Done(
        f"the move of {len(in_progress)} partition{many} was called off", topic_address(context, topic) + "/move"
    )


# --- throttles


def _key(cluster: ClusterHandle, topic: str) -> str:
    return f"throttled/{cluster.name}/{topic}"


async def _remember(cluster: ClusterHandle, topic: str, throttled: bool) -> None:
    def work(db: sqlite3.Connection) -> None:
        if throttled:
            db.execute("INSERT OR REPLACE INTO setting VALUES (?, '1')", (_key(cluster, topic),))
        else:
            db.execute("DELETE FROM setting WHERE name = ?", (_key(cluster, topic),))

    await cluster.store.run(work)
    if throttled:
        cluster.throttled.add(topic)
    else:
        cluster.throttled.discard(topic)


async def load_throttled(cluster: ClusterHandle) -> None:
    start = _key(cluster, "")
    rows = await cluster.store.run(
        lambda db: db.execute(
            "SELECT name FROM setting WHERE name >= ? AND name < ?", (start, start + "\uffff")
        ).fetchall()
    )
    cluster.throttled = {row[0].removeprefix(start) for row in rows}


async def clear_done_throttles(cluster: ClusterHandle) -> None:
    """Remove the throttles of topics whose reassignment has ended. Called after every sample."""
    if not cluster.throttled or cluster.error or cluster.sample is None:
        return
    try:
        busy = {tp.topic for tp in await cluster.admin.list_partition_reassignments(timeout=10)}
        for topic in sorted(cluster.throttled - busy):
            here = [topic] if topic in cluster.sample.topics else []
            # A broker has one rate for all topics, removed after the last reassignment.
            brokers = [] if busy else list(cluster.sample.nodes)
            await cluster.admin.clear_throttles(brokers, here, timeout=10)
            if not busy:
                await _remember(cluster, topic, False)
    except KafkaError as error:
        logger.info("Cannot remove the throttle of a reassignment yet: %s", error)


@page("/topics/{topic}/move", "Move", tab="Move", role=Role.ADMIN)
async def move_page(view: View) -> Response:
    name = view.path("topic")
    context = view.context
    topic = await context.cluster.topic(name)
    sample = await context.cluster.state()
    chosen = _chosen(view)
    plan, problem = [], ""
    replication = view.number("replication", topic.replication, 1, 1000)
    if chosen:
        try:
            plan = await plan_moves(context, name, chosen, replication)
        except Refused as error:
            problem = str(error)
    return view.render(
        "topic_move.html",
        name=name,
        topic=topic,
        nodes=sample.nodes,
        chosen=chosen or sorted({broker for p in topic.partitions for broker in p.replicas}),
        replication=replication,
        plan=plan,
        problem=problem,
        moving=[planned for planned in plan if planned.moves],
        moves=await list_moves(context, name),
        throttled=name in context.cluster.throttled,
        seen=assignment_of(topic),
    )


def _chosen(view: View) -> list[int]:
    brokers = []
    for text in view.request.query_params.getlist("brokers"):
        if text.isascii() and text.isdigit() and len(text) < 10:
            brokers.append(int(text))
    return brokers
