"""Samples each cluster periodically: often while a user views it, otherwise rarely.

The rare samples are for alerts and history. The pause after a sample is at least ten times the
sample's duration (up to MAX_PAUSE_S), so that the load on the brokers is low.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Awaitable, Callable, Sequence

from kavka.console.cluster import ClusterHandle

logger = logging.getLogger(__name__)

VIEWED_INTERVAL_S, UNVIEWED_INTERVAL_S = 2.0, 30.0
GROUPS_VIEWED_INTERVAL_S = 5.0
HISTORY_INTERVAL_S = 60.0
VIEWED_FOR_S = 10.0
"""How long a cluster counts as viewed after a request."""
PAUSE_FACTOR = 10
MAX_PAUSE_S = 120.0
CHECK_INTERVAL_S = 0.5

RATES = ("messages_in", "bytes_in", "messages_out", "bytes_out")

Callback = Callable[[ClusterHandle], Awaitable[None]]


class Sampler:
    """Owns a task per cluster, which calls `callbacks` after every sample."""

    def __init__(self, clusters: list[ClusterHandle], callbacks: Sequence[Callback]) -> None:
        self.clusters = clusters
        self.callbacks = callbacks
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._run(cluster)) for cluster in self.clusters]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, cluster: ClusterHandle) -> None:
        while True:
            try:
                await self._sample(cluster)
            except Exception:
                logger.exception("Cannot sample cluster %s", cluster.name)
            await _pause(cluster)

    async def _sample(self, cluster: ClusterHandle) -> None:
        await cluster.refresh()
        sample = cluster.sample
        if sample is not None and not cluster.error:
            interval = GROUPS_VIEWED_INTERVAL_S if is_viewed(cluster) else UNVIEWED_INTERVAL_S
            interval = max(interval, min(cluster.groups_duration * PAUSE_FACTOR, MAX_PAUSE_S))
            if time.time() - sample.groups_at >= interval - CHECK_INTERVAL_S:
                await cluster.refresh_groups()
            try:
                await _write_history(cluster)
            except sqlite3.Error as error:
                logger.error("Cannot write the history of cluster %s: %s", cluster.name, error)
        for callback in self.callbacks:
            try:
                await callback(cluster)
            except Exception:
                logger.exception("A sample callback failed for cluster %s", cluster.name)


async def _pause(cluster: ClusterHandle) -> None:
    """Sleep until the next sample is due. The pause becomes shorter when a user opens a page."""
    began = time.monotonic()
    duration = cluster.sample.weight if cluster.sample is not None else 0.0
    while True:
        await asyncio.sleep(CHECK_INTERVAL_S)
        interval = VIEWED_INTERVAL_S if is_viewed(cluster) else UNVIEWED_INTERVAL_S
        if time.monotonic() - began >= max(interval, min(duration * PAUSE_FACTOR, MAX_PAUSE_S)):
            return


async def _write_history(cluster: ClusterHandle) -> None:
    """Once a minute, write the group lags and the mean rates to the history."""
    sample = cluster.sample
    if sample is None or sample.at - cluster.history_at < HISTORY_INTERVAL_S - CHECK_INTERVAL_S:
        return
    recent_rates = [rates for rates in cluster.rates if rates.at > cluster.history_at]
    cluster.history_at = sample.at
    values = {f"lag/{name}": float(group.lag) for name, group in sample.groups.items() if group.lag is not None}
    for series in RATES if recent_rates else ():
        values[series] = sum(getattr(rates, series) for rates in recent_rates) / len(recent_rates)
    await cluster.store.add_history(cluster.name, sample.at, values)


def is_viewed(cluster: ClusterHandle) -> bool:
    return time.monotonic() - cluster.viewed_at < VIEWED_FOR_S
