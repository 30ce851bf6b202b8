"""Advice for a new topic: partitions, replicas and the space that its retention takes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from starlette.responses import Response

from kavka.console.auth import Role
from kavka.console.context import Context
from kavka.console.formats import count_text
from kavka.console.pages.topics import MAX_PARTITIONS
from kavka.console.registry import OPERATIONS, Bounds, query
from kavka.console.views import View, page

HOUR_S = 3600
MAX_SHARE = 0.7
"""The share of the free space above which the advice has a warning."""


@dataclass(frozen=True, slots=True)
class Advice:
    """`size` is the space of all replicas at the end of the retention. `free` is the free space of
    all disks, None if the brokers do not report it. `explanation` has a line per value."""

    partitions: int
    replication: int
    min_insync_replicas: int
    retention_ms: int
    size: int
    free: int | None
    explanation: list[str]
    warnings: list[str]


@query("/topic-advice", "Compute partitions, replicas and the space of a new topic from its load")
async def topic_advice(
    context: Context,
    rate: Annotated[float, "MB per second that producers send, compressed", Bounds(0, 1e6)],
    consumer_rate: Annotated[float, "MB per second that one consumer processes", Bounds(0.001, 1e6)],
    consumers: Annotated[int, "Consumers of a group that work at the same time", Bounds(1, 10_000)] = 1,
    hours: Annotated[float, "Hours for which messages are kept", Bounds(0.1, 1e6)] = 168,
) -> Advice:
    sample = await context.cluster.state()
    # Directories and brokers of a machine may share a disk, which is recognized by its size.
    free = {
        (node.host, directory.total): directory.usable
        for node in sample.nodes.values()
        for directory in sample.dirs.get(node.id, ())
        if directory.usable is not None
    }
    return advise(rate, consumer_rate, consumers, hours, len(sample.nodes), sum(free.values()) if free else None)


def advise(rate: float, consumer_rate: float, consumers: int, hours: float, brokers: int, free: int | None) -> Advice:
    """Return the advice for a cluster with this number of live brokers."""
    needed = max(1, math.ceil(rate / consumer_rate))
    partitions = min(max(needed, consumers), MAX_PARTITIONS)
    replication = max(1, min(3, brokers))
    min_insync = max(1, replication - 1)
    size = round(rate * 1e6 * hours * HOUR_S) * replication
    explanation = [
        f"{rate:g} MB/s need {count_text(needed, 'partition')}, if a consumer processes {consumer_rate:g} MB/s.",
        f"A group of {count_text(consumers, 'consumer')} uses at least as many partitions.",
        f"{count_text(replication, 'replica')} of each partition: {count_text(brokers, 'live broker')}.",
        f"With acks=all, an acknowledged message is on at least {count_text(min_insync, 'broker')}.",
    ]
    warnings = []
    if replication < 3:
        warnings.append("With fewer than three brokers, the loss of one broker stops producers or loses messages.")
    if free is not None and size > free * MAX_SHARE:
        warnings.append("The messages need more than 70 % of the free space of all disks: shorten the retention.")
    return Advice(partitions, replication, min_insync, round(hours * HOUR_S * 1000), size, free, explanation, warnings)


@page("/topics-new", "New topic", role=Role.OPERATE)
async def new_topic_page(view: View) -> Response:
    names = ("rate", "consumer_rate", "consumers", "hours")
    values = {"rate": "1", "consumer_rate": "5", "consumers": "1", "hours": "168"}
    values.update({name: view.text(name) for name in names if view.text(name)})
    advice = await topic_advice(view.context, **OPERATIONS["topic_advice"].arguments({}, values))
    return view.render("topic_new.html", values=values, advice=advice)
