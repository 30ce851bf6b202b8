"""Samples each cluster periodically: often while a user views it, otherwise rarely.

The rare samples are for alerts and history. The pause after a sample is at least ten times its
duration, so that samples cost the brokers little.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Awaitable, Callable, Sequence

from kavka.console.cluster import ClusterHandle

logger = logging.getLogger(__name__)

WATCHED_S, UNWATCHED_S = 2.0, 30.0
GROUPS_WATCHED_S = 5.0
HISTORY_S = 60.0
WATCHED_FOR_S = 10.0
"""How long a cluster counts as viewed after a request."""
REST_FACTOR = 10
LONGEST_REST_S = 120.0
STEP_S = 0.5

RATES = ("messages_in", "bytes_in", "messages_out", "bytes_out")

Afterwards = Callable[[ClusterHandle], Awaitable[None]]


class Sampler:
    """Owns a task per cluster."""

    def __init__(self, clusters: list[ClusterHandle], afterwards: Sequence[Afterwards]) -> None:
        self.clusters = clusters
        self.afterwards = afterwards
        """Called after every sample: the alerts, and the removal of throttles."""
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._watch(cluster)) for cluster in self.clusters]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _watch(self, cluster: ClusterHandle) -> None:
        while True:
            try:
                await self._once(cluster)
            except Exception:
                logger.exception("Cannot sample cluster %s", cluster.name)
            await self._rest(cluster)

    async def _once(self, cluster: ClusterHandle) -> None:
        await cluster.refresh()
        sample = cluster.sample
        if sample is not None and not cluster.error:
            every = GROUPS_WATCHED_S if watched(cluster) else UNWATCHED_S
            every = max(every, min(cluster.groups_took * REST_FACTOR, LONGEST_REST_S))
            if time.time() - sample.groups_at >= every - STEP_S:
                await cluster.refresh_groups()
            try:
                await self._write_history(cluster)
            except sqlite3.Error as error:
                logger.error("Cannot write the history: %s", error)
        for work in self.afterwards:
            try:
                await work(cluster)
            except Exception:
                logger.exception("Cluster %s: a callback after a sample failed", cluster.name)

    async def _rest(self, cluster: ClusterHandle) -> None:
        """Sleep until the next sample is due, which is sooner when a user opens a page."""
        began = time.monotonic()
        took = cluster.sample.weight if cluster.sample is not None else 0.0
        while True:
            await asyncio.sleep(STEP_S)
            base = WATCHED_S if watched(cluster) else UNWATCHED_S
            if time.monotonic() - began >= max(base, min(took * REST_FACTOR, LONGEST_REST_S)):
                return

    async def _write_history(self, cluster: ClusterHandle) -> None:
        """Write a point of history every minute."""
        sample = cluster.sample
        if sample is None or sample.at - cluster.history_at < HISTORY_S - STEP_S:
            return
        recent = [rates for rates in cluster.rates if rates.at > cluster.history_at]
        cluster.history_at = sample.at
        values = {f"lag/{name}": float(group.lag) for name, group in sample.groups.items() if group.lag is not None}
        for series in RATES if recent else ():
            values[series] = sum(getattr(rates, series) for rates in recent) / len(recent)
        await cluster.store.add_history(cluster.name, sample.at, values)


def watched(cluster: ClusterHandle) -> bool:
    return time.monotonic() - cluster.viewed_at < WATCHED_FOR_S
