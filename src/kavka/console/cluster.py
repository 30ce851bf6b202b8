"""A cluster of the console: its admin client, its last sample, its rates."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import zip_longest

from kavka.client.admin.aio import Admin
from kavka.common.errors import KafkaError
from kavka.common.types import TopicPartition
from kavka.console.errors import Refused, reason
from kavka.console.probe import take_groups, take_sample
from kavka.console.settings import ClusterSettings
from kavka.console.state import Group, Sample, Topic
from kavka.console.store import Store

logger = logging.getLogger(__name__)

# The maximum age of a sample for a page. The sampler takes one every two seconds while a user views
# the cluster.
FRESH_S = 3.0
GROUPS_FRESH_S = 6.0
# A sample of a large cluster may be older: the sampler rests ten times as long as a sample takes.
FRESH_FACTOR = 12.0
SHORT_WAIT_S = 0.5
SETTLE_S = 5.0
RECENT_POINTS = 900
"""The number of rates in memory: half an hour at a sample every two seconds."""

CLIENT_DEFAULTS = {
    "client.id": "kavka-console",
    "request.timeout.ms": "15000",
    "default.api.timeout.ms": "30000",
    "socket.connection.setup.timeout.ms": "3000",
    "socket.connection.setup.timeout.max.ms": "5000",
}


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates per second since the previous sample. `out` is derived from committed offsets. Its
    bytes are estimated from the mean message size of each topic, because Kafka does not report
    them."""

    at: float
    messages_in: float
    bytes_in: float
    messages_out: float
    bytes_out: float


@dataclass(frozen=True, slots=True)
class ActiveAlert:
    """A raised alert as pages show it."""

    rule: int
    subject: str
    text: str
    began: float
    severe: bool


class ClusterHandle:
    """Owns the admin client, the samples and the rates of a cluster. Only the event loop may call
    it. `sample` is None until the cluster has responded once."""

    def __init__(self, settings: ClusterSettings, store: Store) -> None:
        self.settings = settings
        self.name = settings.name
        self.store = store
        self.admin = Admin({**CLIENT_DEFAULTS, **settings.client})
        self.sample: Sample | None = None
        self.error = ""
        self.error_since = 0.0
        self.rates: deque[Rates] = deque(maxlen=RECENT_POINTS)
        self.topic_rates: dict[str, tuple[float, float]] = {}
        """Incoming messages and bytes per second, by topic."""
        self.alerts: tuple[ActiveAlert, ...] = ()
        """The raised alerts; `alerts.py` sets them."""
        self.throttled: set[str] = set()
        """Topics whose reassignment this console throttled, until it removes the throttle."""
        self.viewed_at = 0.0
        """When a user last viewed the cluster (monotonic time)."""
        self.history_at = 0.0
        """When the last point of history was written."""
        self._sampling: asyncio.Task[None] | None = None
        self._grouping: asyncio.Task[None] | None = None
        self._out = (0.0, 0.0)
        self._ends: dict[TopicPartition, int] = {}
        """The last known end offsets, also of partitions without a leader."""
        self._stale = self._groups_stale = False
        self.groups_took = 0.0
        self._seen: set[int] | None = None
        self._listeners: list[Callable[[], None]] = []

    async def start(self) -> None:
        await self.admin.start()

    async def close(self) -> None:
        for task in (self._sampling, self._grouping):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        await self.admin.close()

    # --- state

    def look(self) -> None:
        """Record that a user views this cluster, so that it is sampled often."""
        self.viewed_at = time.monotonic()

    async def state(self, *, groups: bool = False) -> Sample:
        """The last sample, or a new one if it is too old. Raises Refused if the cluster has never
        responded.

        While the cluster does not respond, this is the last sample, and `error` has the reason.
        `groups`: with current groups.
        """
        self.look()
        if self._stale:
            await self.refresh()
        elif self.sample is None:
            await self._wait_for(self._begin_sample(), SHORT_WAIT_S if self.error else None)
        elif time.time() - self.sample.at > max(FRESH_S, self.sample.weight * FRESH_FACTOR):
            await self._wait_for(self._begin_sample(), SHORT_WAIT_S)
        sample = self.sample
        if sample is None:
            raise Refused(f"no broker answers at {self.settings.servers}: {self.error}", 503)
        fresh = max(GROUPS_FRESH_S, self.groups_took * FRESH_FACTOR)
        if groups and (self._groups_stale or time.time() - sample.groups_at > fresh) and not self.error:
            waiting_is_due = self._groups_stale or not sample.groups_at
            await self._wait_for(self._begin_groups(), None if waiting_is_due else SHORT_WAIT_S)
            sample = self.sample or sample
        return sample

    @staticmethod
    async def _wait_for(task: asyncio.Task[None], limit: float | None) -> None:
        """Wait at most `limit`: an older sample is better than a page that does not load."""
        await asyncio.wait({task}, timeout=limit)

    async def topic(self, name: str, *, groups: bool = False) -> Topic:
        """The topic. Raises Refused (404) if it does not exist."""
        topic = (await self.state(groups=groups)).topics.get(name)
        if topic is None:
            raise Refused(f"there is no topic '{name}'", 404)
        return topic

    def changed(self) -> None:
        """An action changed the cluster: the next call of `state` takes a new sample."""
        self._stale = self._groups_stale = True

    async def settle(self, condition: Callable[[Sample], bool]) -> None:
        """Wait after an action until the samples show its effect, or a few seconds have passed."""
        deadline = time.monotonic() + SETTLE_S
        while time.monotonic() < deadline:
            self.changed()
            sample = await self.state()
            if condition(sample) or self.error:
                return
            await asyncio.sleep(0.1)

    def on_sample(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after every successful or failed sample. Returns a function that removes
        it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    # --- samples: one at a time, shared by all callers

    async def refresh(self) -> None:
        """Take a sample. If one was started before a change, wait for it and take another one."""
        if self._stale and self._sampling is not None and not self._sampling.done():
            await self._wait_for(self._sampling, None)
        await self._wait_for(self._begin_sample(), None)

    async def refresh_groups(self) -> None:
        await self._wait_for(self._begin_groups(), None)

    def _begin_sample(self) -> asyncio.Task[None]:
        if self._sampling is None or self._sampling.done():
            self._sampling = asyncio.create_task(self._sample())
        return self._sampling

    def _begin_groups(self) -> asyncio.Task[None]:
        if self._grouping is None or self._grouping.done():
            self._grouping = asyncio.create_task(self._group())
        return self._grouping

    async def _sample(self) -> None:
        self._stale = False
        try:
            sample = await take_sample(self.admin)
        except (KafkaError, TimeoutError) as error:
            if not self.error:
                self.error_since = time.time()
            self.error = reason(error)
        except Exception as error:
            logger.exception("Cannot sample cluster %s", self.name)
            if not self.error:
                self.error_since = time.time()
            self.error = f"the answers could not be understood ({type(error).__name__})"
        else:
            self.error = ""
            previous, self.sample = self.sample, await self._with_history(sample)
            self._ends = {tp: end for tp, end in self._ends.items() if tp.topic in sample.topics} | sample.ends
            if previous is not None:
                self._record_rates(previous, self.sample)
        for listener in list(self._listeners):
            listener()

    async def _with_history(self, sample: Sample) -> Sample:
        if self._seen is None:
            self._seen = await self.store.seen_brokers(self.name)
        new = sample.nodes.keys() - self._seen
        if new:
            self._seen |= new
            await self.store.add_brokers(self.name, new)
        old = self.sample
        groups, groups_at = (old.groups, old.groups_at) if old is not None else ({}, 0.0)
        return replace(sample, groups=groups, groups_at=groups_at, seen_brokers=frozenset(self._seen))

    async def forget_broker(self, broker: int) -> None:
        await self.store.forget_broker(self.name, broker)
        if self._seen is not None:
            self._seen.discard(broker)
        self.changed()

    async def _group(self) -> None:
        sample = self.sample
        if sample is None:
            return
        self._groups_stale = False
        began = time.monotonic()
        try:
            groups, problems = await take_groups(self.admin, sample, self._ends)
        except Exception:
            logger.exception("Cannot sample the groups of cluster %s", self.name)
            return
        self.groups_took = 0.0 if problems else time.monotonic() - began
        before, at = self.sample, time.time()
        if before is None:
            return
        if problems:
            # Keep the last state of groups whose coordinator did not respond: alerts depend on it.
            for name, old in before.groups.items():
                if name not in groups or groups[name].offsets is None:
                    groups[name] = old
        self._record_out(before, groups, at)
        other_problems = [p for p in before.problems if "group" not in p]
        self.sample = replace(
            before, groups=groups, groups_at=at, problems=tuple(dict.fromkeys([*other_problems, *problems]))
        )

    # --- rates

    def _record_rates(self, before: Sample, now: Sample) -> None:
        seconds = now.at - before.at
        if seconds <= 0:
            return
        total_messages = total_bytes = 0.0
        rates = {}
        for name, topic in now.topics.items():
            old = before.topics.get(name)
            old_partitions = old.partitions if old is not None and old.id == topic.id else ()
            messages = size = 0
            for p, q in zip_longest(topic.partitions, old_partitions):
                if p is None:
                    continue
                if q is None:
                    # The partition is new, so all its messages are new.
                    messages += p.messages or 0
                    size += p.size or 0
                    continue
                if p.end is not None and q.end is not None:
                    messages += max(0, p.end - q.end)
                # A smaller log was cleaned or truncated; the log of another leader may differ in
                # size.
                if p.size is not None and q.size is not None and p.leader == q.leader:
                    size += max(0, p.size - q.size)
            if messages or size:
                rates[name] = messages / seconds, size / seconds
                total_messages += messages / seconds
                total_bytes += size / seconds
        self.topic_rates = rates
        self.rates.append(Rates(now.at, total_messages, total_bytes, *self._out))

    def _record_out(self, before: Sample, groups: dict[str, Group], at: float) -> None:
        seconds = at - before.groups_at
        if not before.groups_at or seconds <= 0:
            return
        messages = size = 0.0
        for name, group in groups.items():
            old = before.groups.get(name)
            if old is None or not old.offsets or not group.offsets:
                continue
            for tp, offset in group.offsets.items():
                moved = offset - old.offsets.get(tp, offset)
                if moved > 0:
                    messages += moved
                    topic = before.topics.get(tp.topic)
                    if topic is not None and topic.size and topic.messages:
                        size += moved * topic.size / topic.messages
        self._out = messages / seconds, size / seconds
