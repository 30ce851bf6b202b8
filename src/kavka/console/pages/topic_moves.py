"""Moving the partitions of a topic to other brokers: choose, see the plan, run it, watch it, call it off.

A throttle that was set from here is remembered in the store and taken away when the moves of its topic are over, also
when the console was restarted in between.
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

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Planned:
    partition: int
    current: tuple[int, ...]
    proposed: tuple[int, ...]
    size: int | None

    @property
    def moves(self) -> bool:
        return self.current != self.proposed

    @property
    def copied(self) -> int:
        """Bytes that have to go over the network."""
        return len(set(self.proposed) - set(self.current)) * (self.size or 0)


@dataclass(frozen=True, slots=True)
class Move:
    """One that is under way. `done` is the share of the bytes that are there, None where nobody says."""

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
    found = await context.cluster.topic(topic)
    sample = await context.cluster.state()
    unknown = [broker for broker in brokers if broker not in sample.nodes]
    if unknown:
        raise Refused(f"broker {unknown[0]} is not in the cluster", field="brokers")
    racks = {broker: sample.nodes[broker].rack for broker in brokers}
    current = {p.id: p.replicas for p in found.partitions}
    proposed = propose(current, list(dict.fromkeys(brokers)), racks, replication or found.replication)
    return [Planned(p.id, p.replicas, proposed[p.id], p.size) for p in found.partitions]


@query("/topics/{topic}/moves", "Moves of a topic's partitions that are under way")
async def list_moves(context: Context, topic: str) -> list[Move]:
    found = await context.cluster.topic(topic)
    wanted = [TopicPartition(topic, p.id) for p in found.partitions]
    under_way = await context.admin.list_partition_reassignments(wanted, timeout=10)
    sizes = await _sizes(context, {tp: move.adding_replicas for tp, move in under_way.items()})
    leaders = {p.id: p.size for p in found.partitions}
    moves = []
    for tp, move in sorted(under_way.items()):
        total = (leaders.get(tp.partition) or 0) * len(move.adding_replicas)
        there = [sizes.get((tp, broker)) for broker in move.adding_replicas]
        known = sum(size for size in there if size is not None)
        done = None if not total or None in there else min(1.0, known / total)
        moves.append(Move(tp.partition, move.replicas, move.adding_replicas, move.removing_replicas, done))
    return moves


async def _sizes(
    context: Context, adding: dict[TopicPartition, tuple[int, ...]]
) -> dict[tuple[TopicPartition, int], int]:
    """Of the replicas that are being made."""
    brokers = {broker for some in adding.values() for broker in some}
    if not brokers:
        return {}
    try:
        found = await context.admin.describe_log_dirs(brokers, list(adding), timeout=5)
    except KafkaError as error:
        found = getattr(error, "results", {})
    return {
        (tp, broker): max(info.size for info in infos)
        for broker, dirs in found.items()
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
    found = await fresh_topic(cluster, topic)
    check_seen(seen, assignment_of(found))
    nodes = (await cluster.state()).nodes
    current = {TopicPartition(topic, p.id): p.replicas for p in found.partitions}
    wanted: dict[TopicPartition, tuple[int, ...]] = {}
    for key, text in plan.items():
        number, brokers = parse_replicas(key, text)
        tp = TopicPartition(topic, number)
        if tp not in current:
            raise Refused(f"there is no partition {number}")
        gone = [broker for broker in brokers if broker not in nodes and broker not in current[tp]]
        if gone:
            raise Refused(f"partition {number}: broker {gone[0]} is not in the cluster")
        if brokers != current[tp]:
            wanted[tp] = brokers
    if not wanted:
        raise Refused("nothing would move")
    under_way = await context.admin.list_partition_reassignments(list(current))
    if under_way:
        raise Refused("partitions of this topic are being moved already: wait, or cancel that first", 409)
    if throttle is not None:
        # Noted before it is set: a throttle that nobody remembers would stay.
        await _remember(cluster, topic, True)
        await context.admin.throttle_replication(throttle, under_way, wanted, current)
    await context.admin.alter_partition_reassignments(wanted)
    cluster.changed()
    many = "s" if len(wanted) > 1 else ""
    return Done(f"{len(wanted)} partition{many} began to move", topic_address(context, topic) + "/move")


@action("/topics/{topic}/moves/cancel", "Call off the moves of a topic's partitions", role=Role.ADMIN)
async def cancel_moves(context: Context, topic: str) -> Done:
    found = await context.cluster.topic(topic)
    wanted = [TopicPartition(topic, p.id) for p in found.partitions]
    under_way = await context.admin.list_partition_reassignments(wanted)
    if not under_way:
        raise Refused("nothing is being moved any more", 409)
    await context.admin.alter_partition_reassignments(dict.fromkeys(under_way))
    context.cluster.changed()
    many = "s" if len(under_way) > 1 else ""
    return Done(f"the move of {len(under_way)} partition{many} was called off", topic_address(context, topic) + "/move")


# --- throttles that were set from here


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
    """After a sample: the throttle of a topic whose moves are over is taken away."""
    if not cluster.throttled or cluster.error or cluster.sample is None:
        return
    try:
        busy = {tp.topic for tp in await cluster.admin.list_partition_reassignments(timeout=10)}
        for topic in sorted(cluster.throttled - busy):
            here = [topic] if topic in cluster.sample.topics else []
            # Brokers have one rate for all: it goes with the last move.
            brokers = [] if busy else list(cluster.sample.nodes)
            await cluster.admin.clear_throttles(brokers, here, timeout=10)
            if not busy:
                await _remember(cluster, topic, False)
    except KafkaError as error:
        log.info("the throttle of a move stays for now: %s", error)


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
    found = []
    for text in view.request.query_params.getlist("brokers"):
        if text.isascii() and text.isdigit() and len(text) < 10:
            found.append(int(text))
    return found
