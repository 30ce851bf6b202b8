"""A cluster of the console: its admin client, its last sample and its rates."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from kavka.client.admin.aio import Admin
from kavka.common.errors import KafkaError
from kavka.common.types import TopicPartition
from kavka.console.errors import Refused, reason
from kavka.console.masks import MaskTable
from kavka.console.probe import take_groups, take_sample
from kavka.console.settings import ClusterSettings
from kavka.console.state import Group, Sample, Topic
from kavka.console.store import Store

logger = logging.getLogger(__name__)

# The maximum age of a sample for a page. The sampler takes a sample every two seconds while a user
# views the cluster.
MAX_AGE_S = 3.0
GROUPS_MAX_AGE_S = 6.0
# A sample of a large cluster may be older: the sampler pauses for ten times the sample's duration.
MAX_AGE_FACTOR = 12.0
MAX_REFRESH_WAIT_S = 0.5
CONDITION_TIMEOUT_S = 5.0
MAX_RECENT_RATES = 900
"""The maximum number of rates in memory: half an hour at a sample every two seconds."""

CLIENT_DEFAULTS = {
    "client.id": "kavka-console",
    "request.timeout.ms": "15000",
    "default.api.timeout.ms": "30000",
    "socket.connection.setup.timeout.ms": "3000",
    "socket.connection.setup.timeout.max.ms": "5000",
}


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates per second since the previous sample. The outgoing rates are derived from committed
    offsets. `bytes_out` is estimated from the mean message size of each topic, because Kafka does
    not report it."""

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
    """Owns the admin client, the last sample and the rates of a cluster. Only the event loop may
    call it. `sample` is None until the cluster has responded once."""

    def __init__(self, settings: ClusterSettings, store: Store) -> None:
        self.settings = settings
        self.name = settings.name
        self.store = store
        self.masks = MaskTable(settings.own)
        self.admin = Admin({**CLIENT_DEFAULTS, **settings.client})
        self.sample: Sample | None = None
        self.error = ""
        self.error_since = 0.0
        self.rates: deque[Rates] = deque(maxlen=MAX_RECENT_RATES)
        self.topic_rates: dict[str, tuple[float, float]] = {}
        """Incoming messages and bytes per second, by topic."""
        self.alerts: tuple[ActiveAlert, ...] = ()
        """The raised alerts; `alerts.py` sets them."""
        self.throttled: set[str] = set()
        """Topics whose reassignment this console throttled, until it removes the throttle."""
        self.viewed_at = 0.0
        """When a user last viewed the cluster (monotonic time)."""
        self.history_at = 0.0
        """The time of the last point in the history."""
        self.groups_duration = 0.0
        """The duration of the last sample of the groups in seconds, 0 if a request failed."""
        self._sample_task: asyncio.Task[None] | None = None
        self._groups_task: asyncio.Task[None] | None = None
        self._out_rates = (0.0, 0.0)
        """Outgoing messages and bytes per second."""
        self._ends: dict[TopicPartition, int] = {}
        """The last known end offsets, also of partitions without a leader."""
        self._is_stale = self._groups_are_stale = False
        self._seen_brokers: set[int] | None = None
        self._listeners: list[Callable[[], None]] = []

    async def start(self) -> None:
        await self.admin.start()

    async def close(self) -> None:
        for task in (self._sample_task, self._groups_task):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        await self.admin.close()

    # --- state

    def mark_viewed(self) -> None:
        """Record that a user views this cluster, so that it is sampled often."""
        self.viewed_at = time.monotonic()

    async def state(self, *, groups: bool = False) -> Sample:
        """Return the last sample, or a new sample if the last one is too old. `groups` also
        refreshes the groups. Raises Refused if the cluster has never responded.

        While the cluster does not respond, the last sample is returned, and `error` is the reason.
        The wait for a new sample is short: a page with older data is better than a page that does
        not load.
        """
        self.mark_viewed()
        if self._is_stale:
            await self.refresh()
        elif self.sample is None:
            await asyncio.wait({self._begin_sample()}, timeout=MAX_REFRESH_WAIT_S if self.error else None)
        elif time.time() - self.sample.at > max(MAX_AGE_S, self.sample.weight * MAX_AGE_FACTOR):
            await asyncio.wait({self._begin_sample()}, timeout=MAX_REFRESH_WAIT_S)
        sample = self.sample
        if sample is None:
            raise Refused(f"no broker responds at {self.settings.servers}: {self.error}", 503)
        max_age = max(GROUPS_MAX_AGE_S, self.groups_duration * MAX_AGE_FACTOR)
        if groups and (self._groups_are_stale or time.time() - sample.groups_at > max_age) and not self.error:
            has_old_groups = sample.groups_at and not self._groups_are_stale
            await asyncio.wait({self._begin_groups()}, timeout=MAX_REFRESH_WAIT_S if has_old_groups else None)
            sample = self.sample or sample
        return sample

    async def topic(self, name: str, *, groups: bool = False) -> Topic:
        """Return the topic. Raises Refused (404) if it does not exist."""
        topic = (await self.state(groups=groups)).topics.get(name)
        if topic is None:
            raise Refused(f"there is no topic '{name}'", 404)
        return topic

    def mark_stale(self) -> None:
        """Let the next call of `state` take a new sample, after an action changed the cluster."""
        self._is_stale = self._groups_are_stale = True

    async def wait_until(self, condition: Callable[[Sample], bool]) -> None:
        """Wait until a sample shows the effect of an action, at most CONDITION_TIMEOUT_S."""
        deadline = time.monotonic() + CONDITION_TIMEOUT_S
        while time.monotonic() < deadline:
            self.mark_stale()
            sample = await self.state()
            if condition(sample) or self.error:
                return
            await asyncio.sleep(0.1)

    def on_sample(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after every successful or failed sample. Returns a function that removes
        the listener."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    # --- samples: one at a time, shared by all callers

    async def refresh(self) -> None:
        """Take a sample, or wait for the running one. If the running sample began before a change,
        wait for its end and take another sample."""
        if self._is_stale and self._sample_task is not None and not self._sample_task.done():
            await asyncio.wait({self._sample_task})
        await asyncio.wait({self._begin_sample()})

    async def refresh_groups(self) -> None:
        """Sample the groups, or wait for the running sample of the groups."""
        await asyncio.wait({self._begin_groups()})

    def _begin_sample(self) -> asyncio.Task[None]:
        if self._sample_task is None or self._sample_task.done():
            self._sample_task = asyncio.create_task(self._take_sample())
        return self._sample_task

    def _begin_groups(self) -> asyncio.Task[None]:
        if self._groups_task is None or self._groups_task.done():
            self._groups_task = asyncio.create_task(self._take_groups())
        return self._groups_task

    async def _take_sample(self) -> None:
        self._is_stale = False
        try:
            sample = await take_sample(self.admin)
        except (KafkaError, TimeoutError) as error:
            self._set_error(reason(error))
        except Exception as error:
            logger.exception("Cannot sample cluster %s", self.name)
            self._set_error(f"a response could not be processed ({type(error).__name__})")
        else:
            self.error = ""
            previous, self.sample = self.sample, await self._with_history(sample)
            self._ends = {tp: end for tp, end in self._ends.items() if tp.topic in sample.topics} | sample.ends
            if previous is not None:
                self._record_rates(previous, self.sample)
        for listener in list(self._listeners):
            listener()

    def _set_error(self, error: str) -> None:
        if not self.error:
            self.error_since = time.time()
        self.error = error

    async def _with_history(self, sample: Sample) -> Sample:
        """Return the sample with the last groups and all brokers that were ever seen."""
        if self._seen_brokers is None:
            self._seen_brokers = await self.store.seen_brokers(self.name)
        new_brokers = sample.nodes.keys() - self._seen_brokers
        if new_brokers:
            self._seen_brokers |= new_brokers
            await self.store.add_brokers(self.name, new_brokers)
        groups, groups_at = (self.sample.groups, self.sample.groups_at) if self.sample is not None else ({}, 0.0)
        return sample.with_changes(groups=groups, groups_at=groups_at, seen_brokers=frozenset(self._seen_brokers))

    async def forget_broker(self, broker: int) -> None:
        await self.store.forget_broker(self.name, broker)
        if self._seen_brokers is not None:
            self._seen_brokers.discard(broker)
        self.mark_stale()

    async def _take_groups(self) -> None:
        if self.sample is None:
            return
        self._groups_are_stale = False
        began = time.monotonic()
        try:
            groups, problems = await take_groups(self.admin, self.sample, self._ends)
        except Exception:
            logger.exception("Cannot sample the groups of cluster %s", self.name)
            return
        self.groups_duration = 0.0 if problems else time.monotonic() - began
        # A new sample may have been taken meanwhile.
        sample, at = self.sample, time.time()
        if problems:
            # Keep the last state of groups whose coordinator did not respond: alerts depend on it.
            for name, last_group in sample.groups.items():
                if name not in groups or groups[name].offsets is None:
                    groups[name] = last_group
        self._record_out_rates(sample, groups, at)
        other_problems = [problem for problem in sample.problems if "group" not in problem]
        self.sample = sample.with_changes(
            groups=groups, groups_at=at, problems=tuple(dict.fromkeys([*other_problems, *problems]))
        )

    # --- rates

    def _record_rates(self, previous: Sample, sample: Sample) -> None:
        seconds = sample.at - previous.at
        if seconds <= 0:
            return
        self.topic_rates = {}
        for name, topic in sample.topics.items():
            messages, size = _growth(topic, previous.topics.get(name))
            if messages or size:
                self.topic_rates[name] = messages / seconds, size / seconds
        messages_in = sum(messages for messages, _ in self.topic_rates.values())
        bytes_in = sum(size for _, size in self.topic_rates.values())
        self.rates.append(Rates(sample.at, messages_in, bytes_in, *self._out_rates))

    def _record_out_rates(self, previous: Sample, groups: dict[str, Group], at: float) -> None:
        seconds = at - previous.groups_at
        if not previous.groups_at or seconds <= 0:
            return
        messages = size = 0.0
        for name, group in groups.items():
            previous_group = previous.groups.get(name)
            if previous_group is None or not previous_group.offsets or not group.offsets:
                continue
            for tp, offset in group.offsets.items():
                consumed = offset - previous_group.offsets.get(tp, offset)
                if consumed > 0:
                    messages += consumed
                    topic = previous.topics.get(tp.topic)
                    if topic is not None and topic.size and topic.messages:
                        size += consumed * topic.size / topic.messages
        self._out_rates = messages / seconds, size / seconds


def _growth(topic: Topic, previous: Topic | None) -> tuple[int, int]:
    """Return the messages and bytes that were added to a topic since the previous sample. All
    messages of a new topic or partition are new."""
    is_new = previous is None or previous.id != topic.id
    previous_partitions = {} if previous is None or is_new else {p.id: p for p in previous.partitions}
    messages = size = 0
    for p in topic.partitions:
        previous_partition = previous_partitions.get(p.id)
        if previous_partition is None:
            messages += p.messages or 0
            size += p.size or 0
            continue
        if p.end is not None and previous_partition.end is not None:
            messages += max(0, p.end - previous_partition.end)
        # A smaller log was cleaned or truncated. The log of another leader may differ in size.
        if p.size is not None and previous_partition.size is not None and p.leader == previous_partition.leader:
            size += max(0, p.size - previous_partition.size)
    return messages, size
