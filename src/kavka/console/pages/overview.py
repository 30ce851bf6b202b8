"""The overview of a cluster."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from starlette.responses import Response

from kavka.console.cluster import ClusterHandle
from kavka.console.context import Context
from kavka.console.registry import Bounds, Chart, query
from kavka.console.state import Sample
from kavka.console.views import View, page

DEFAULT_MINUTES = 15
MAX_MINUTES = 14 * 24 * 60


@dataclass(frozen=True, slots=True)
class BrokerDisk:
    """The disk usage of a broker."""

    broker: int
    size: int | None
    """The size of all replicas in bytes."""
    total: int | None
    usable: int | None

    @property
    def share(self) -> float | None:
        return None if not self.total or self.usable is None else 1 - self.usable / self.total


@dataclass(frozen=True, slots=True)
class Overview:
    """A summary of a cluster. `offline`, `under_replicated` and `not_preferred` count partitions.
    `gone` lists the missing brokers."""

    at: float
    error: str
    """Why the cluster does not respond. The other fields are then from the time `at`."""
    cluster_id: str
    controller: int | None
    brokers: list[int]
    gone: list[int]
    topics: int
    internal_topics: int
    partitions: int
    replicas: int
    offline: int
    under_replicated: int
    not_preferred: int
    size: int | None
    messages_in: float | None
    bytes_in: float | None
    messages_out: float | None
    bytes_out: float | None
    disks: list[BrokerDisk]
    problems: list[str]


class Unit(Enum):
    MESSAGES = "messages"
    BYTES = "bytes"


@dataclass(frozen=True, slots=True)
class ClusterListing:
    """A cluster of this console."""

    name: str
    """The name in the URLs of pages and operations."""
    servers: str
    error: str
    """Why the cluster does not respond."""


@query("/clusters", "List the clusters of this console", everywhere=True)
async def list_clusters(context: Context) -> list[ClusterListing]:
    return [ClusterListing(cluster.name, cluster.settings.servers, cluster.error) for cluster in context.clusters]


@query("/overview", "Summarize the cluster")
async def overview(context: Context) -> Overview:
    cluster = context.cluster
    return summary(cluster, await cluster.state())


def summary(cluster: ClusterHandle, sample: Sample) -> Overview:
    partitions = sample.partitions
    rates = cluster.rates[-1] if cluster.rates else None
    internal = sum(topic.internal for topic in sample.topics.values())
    return Overview(
        at=sample.at,
        error=cluster.error,
        cluster_id=sample.cluster_id,
        controller=sample.controller if sample.controller in sample.nodes else None,
        brokers=list(sample.nodes),
        gone=list(sample.missing_brokers),
        topics=len(sample.topics) - internal,
        internal_topics=internal,
        partitions=len(partitions),
        replicas=sum(len(p.replicas) for p in partitions),
        offline=len(sample.offline),
        under_replicated=len(sample.under_replicated),
        not_preferred=sum(topic.not_preferred for topic in sample.topics.values()),
        size=sum(size for broker in sample.nodes if (size := sample.disk_of(broker)) is not None),
        messages_in=rates.messages_in if rates else None,
        bytes_in=rates.bytes_in if rates else None,
        messages_out=rates.messages_out if rates else None,
        bytes_out=rates.bytes_out if rates else None,
        disks=[_disk(sample, broker) for broker in sample.nodes],
        problems=list(sample.problems),
    )


def _disk(sample: Sample, broker: int) -> BrokerDisk:
    """Return the fullest disk of a broker, with the size of all its replicas. Several log
    directories may share a disk."""
    dirs = [d for d in sample.dirs.get(broker, ()) if d.total and d.usable is not None]
    fullest = max(dirs, key=lambda d: d.used_share or 0.0, default=None)
    return BrokerDisk(
        broker, sample.disk_of(broker), fullest.total if fullest else None, fullest.usable if fullest else None
    )


@query("/rates", "Chart incoming and outgoing messages or bytes per second")
async def rates(
    context: Context,
    unit: Annotated[Unit, "messages or bytes"] = Unit.MESSAGES,
    minutes: Annotated[int, "The last minutes to show", Bounds(1, MAX_MINUTES)] = DEFAULT_MINUTES,
) -> Chart:
    """The incoming rate is the growth of the partitions. The outgoing rate is derived from the
    committed offsets of consumer groups, so consumers without a group are not counted. Outgoing
    bytes are estimated from the mean message size of each topic."""
    cluster = context.cluster
    since = time.time() - minutes * 60
    series_in, series_out = f"{unit.value}_in", f"{unit.value}_out"
    recent = [(r.at, getattr(r, series_in), getattr(r, series_out)) for r in cluster.rates if r.at >= since]
    points: list[tuple[float, float | None, float | None]] = []
    first_recent = recent[0][0] if recent else time.time()
    if first_recent - since > 60:
        history_in = await cluster.store.history(cluster.name, series_in, since)
        history_out = dict(await cluster.store.history(cluster.name, series_out, since))
        points = [(float(at), value, history_out.get(at)) for at, value in history_in if at < first_recent]
    points += recent
    return Chart([p[0] for p in points], {"in": [p[1] for p in points], "out": [p[2] for p in points]})


@page("/overview", "Overview", nav="Overview", icon="layout-dashboard")
async def overview_page(view: View) -> Response:
    minutes = view.number("minutes", DEFAULT_MINUTES, 1, MAX_MINUTES)
    return view.render("overview.html", overview=await overview(view.context), minutes=minutes)
