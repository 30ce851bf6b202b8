"""What a consumer is, whoever waits for it: a thread (`consumer.py`) or a coroutine (`aio.py`).

A poll is: `attend` where `attention` is set, then `take`, then wait for `signal` where there was nothing, and again.
`attend` runs on the loop and does what only a poll may do: it carries out the errands that rebalances have left, calls
the program's functions, raises what went wrong in the background. `take` runs in the program's thread.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

from kavka.client.cluster import Cluster
from kavka.client.config import ClientConfig
from kavka.client.connections import because
from kavka.client.consumer import assignors
from kavka.client.consumer.buffer import FetchBuffer
from kavka.client.consumer.classic import ClassicMember
from kavka.client.consumer.commits import Commits
from kavka.client.consumer.coordinator import Coordinator
from kavka.client.consumer.errors import NoOffsetForPartition
from kavka.client.consumer.fetcher import Fetcher
from kavka.client.consumer.interceptors import Interceptors
from kavka.client.consumer.member import Member
from kavka.client.consumer.metrics import ConsumerMetrics
from kavka.client.consumer.modern import ModernMember
from kavka.client.consumer.offsets import EARLIEST, LATEST, OffsetLookup
from kavka.client.consumer.positions import Positions
from kavka.client.consumer.subscription import Mode, PartitionState, Subscriptions
from kavka.client.consumer.unread import Unread
from kavka.client.errors import ClientClosed, IllegalState, KafkaTimeout
from kavka.client.metadata import PartitionMetadata, TopicMetadata, topic_metadata
from kavka.client.serializers import make_deserializer
from kavka.client.types import ConsumerGroupMetadata, OffsetAndMetadata, OffsetAndTimestamp
from kavka.common.config import ConfigError
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic

log = logging.getLogger(__name__)

T = TypeVar("T")

CallUser = Callable[..., Awaitable[Any]]

# An errand that needs no network is done within this time, even in a poll that may not wait at all.
_SHORT = 0.02
# Seconds to leave the group for a consumer that the program dropped.
_ABANDONED = 5.0
_HOPELESS = (ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
_CLASSIC_ONLY = ("partition.assignment.strategy", "heartbeat.interval.ms", "session.timeout.ms")


class ConsumerCore:
    """`call_user(function, *args)` calls a function of the program's where the program waits, and awaits what it
    returns; `signal()` says that a poll which waits has something to do; `on_room()` is called by who takes."""

    def __init__(
        self, config: ClientConfig, call_user: CallUser, signal: Callable[[], object], on_room: Callable[[], object]
    ) -> None:
        _check(config)
        self.config = config
        self.cluster = Cluster(config, allow_auto_create=config["allow.auto.create.topics"])
        self.subscriptions = Subscriptions()
        self.metrics = ConsumerMetrics()
        self.coordinator = Coordinator(config, self.cluster, self.metrics)
        self.interceptors = Interceptors(config["interceptor.classes"], config.originals)
        self._key, key = make_deserializer("key.deserializer", config["key.deserializer"], config.originals)
        self._value, value = make_deserializer("value.deserializer", config["value.deserializer"], config.originals)
        self.buffer = FetchBuffer(key, value, on_room)
        self.unread = Unread()
        self.buffer.under_way = self.unread.under_way
        self.attention = True
        """There is something for the next poll to do before it takes records."""
        self.last_poll = time.monotonic()
        self.in_poll = False
        self.closing = False
        self.closed = False
        self.group_id: str | None = config["group.id"]
        self.call_user = call_user
        self._signal = signal
        self.commits = Commits(
            config, self.coordinator, self.subscriptions, self.interceptors, self.unread, call_user, self.want_poll,
            self._rebalancing,
        )  # fmt: skip
        self.auto_commit = self.commits.auto
        self._default_timeout = config.seconds("default.api.timeout.ms")
        self._exclude_internal = config["exclude.internal.topics"]
        lookup = self.lookup = OffsetLookup(config, self.cluster)
        self.fetcher = Fetcher(
            config, self.cluster, self.subscriptions, self.buffer, self.metrics, signal, self._on_problem
        )
        self.positions = Positions(
            config, self.cluster, self.subscriptions, self.coordinator, lookup, self.errand, self.fail,
            self.fetcher.kick,
        )  # fmt: skip
        self.member: Member | None = None
        if self.group_id is not None:
            modern = config["group.protocol"].lower() == "consumer"
            self.member = ModernMember(config, self) if modern else ClassicMember(config, self)
            self.coordinator.membership = self.member
        self._errands: deque[tuple[Callable[[], Awaitable[Any]], asyncio.Future[Any]]] = deque()
        self._errand: asyncio.Task[None] | None = None
        self._telling = False
        self._errors: deque[BaseException] = deque()
        self._problems: dict[PartitionState, tuple[int, KafkaError]] = {}
        """By partition the last error that a poll has to handle, with the version of the position it is about."""

    # --- start and stop

    async def start(self) -> None:
        await self.cluster.start()
        self.fetcher.start()
        self.cluster.on_update(self._on_metadata)

    async def close(self, timeout: float, leave_group: bool | None = None) -> None:
        """Commit what was polled, leave the group, end. What takes longer than `timeout` is left undone."""
        if self.closing:
            return
        self.closing = True
        deadline = time.monotonic() + timeout
        try:
            await self._end_errand(deadline)
            await self.commits.settle(deadline)
            if self.member is not None:
                if self.auto_commit and not self.subscriptions.by_group:
                    await self.commit_positions(deadline)
                await self._in_time(self.member.leave(deadline, tell_group=leave_group), deadline)
            await self.commits.tell()
            await self.fetcher.close(max(0.0, deadline - time.monotonic()))
        except KafkaError as error:
            log.info("The consumer's end: %s", error)
        finally:
            self.closed = True
            await self.positions.stop()
            self.commits.cancel()
            await self.cluster.close()
            self.interceptors.close()
            for one in (self._key, self._value):
                close = getattr(one, "close", None)
                if callable(close):
                    close()
        self._raise_failure(ignore=(KafkaError,))

    async def abandon(self, timeout: float | None = None) -> None:
        """The program dropped the consumer: leave the group. Whether it has handled what it polled is not known, so
        nothing is committed."""
        self.auto_commit = False
        await self.close(_ABANDONED if timeout is None else timeout)

    async def _in_time(self, work: Awaitable[T], deadline: float) -> T | None:
        try:
            async with asyncio.timeout(max(0.01, deadline - time.monotonic()) + 0.5):
                return await work
        except TimeoutError:
            log.warning("The consumer was closed without having left its group in time")
            return None

    def check_open(self) -> None:
        if self.closed:
            raise ClientClosed("the consumer is closed")

    def deadline(self, timeout: float | None) -> float:
        return time.monotonic() + (self._default_timeout if timeout is None else timeout)

    # --- for the parts of the consumer

    async def commit_positions(self, deadline: float) -> None:
        await self.commits.commit_consumed(deadline)

    def _rebalancing(self) -> bool:
        return self.member is not None and self.subscriptions.by_group and self.member.rebalancing

    def want_poll(self) -> None:
        self.attention = True
        self._signal()

    def fail(self, error: BaseException) -> None:
        self._errors.append(error)
        self.want_poll()

    async def errand(self, work: Callable[[], Awaitable[T]]) -> T:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._errands.append((work, future))
        self.want_poll()
        return await future

    async def tell(self, what: str, partitions: Collection[TopicPartition]) -> None:
        listener = self.subscriptions.listener
        if listener is None:
            return
        function = getattr(listener, f"on_partitions_{what}", None)
        if function is None and what == "lost":
            function = getattr(listener, "on_partitions_revoked", None)
        if function is not None:
            self._telling = True
            try:
                await self.call_user(function, set(partitions))
            finally:
                self._telling = False

    def assignment_changed(self) -> None:
        self._follow_topics()
        self.commits.assigned()
        self.positions.start()
        self.fetcher.kick()

    def _follow_topics(self) -> None:
        subscriptions = self.subscriptions
        self.cluster.all_topics = subscriptions.mode is Mode.PATTERN
        assigned = {tp.topic for tp in subscriptions.partitions}
        self.cluster.set_topics(subscriptions.topics | subscriptions.group_topics | assigned)

    def _on_metadata(self, cluster: Cluster) -> None:
        subscriptions = self.subscriptions
        if subscriptions.mode is Mode.PATTERN and cluster.complete:
            names = [t.name for t in cluster.topics.values() if not (t.is_internal and self._exclude_internal)]
            if subscriptions.match(names) and self.member is not None:
                self.member.subscription_changed()
        for topic in subscriptions.topics:
            code = cluster.topic_errors.get(topic)
            if code in _HOPELESS:
                self.fail(KafkaError(code, f"topic {topic}: {code.name.lower().replace('_', ' ')}"))
        self.positions.on_metadata()
        if self.member is not None:
            self.member.on_metadata()

    def _on_problem(self, state: PartitionState, version: int, error: KafkaError) -> None:
        self._problems[state] = version, error
        self.want_poll()

    # --- poll

    def polled(self) -> None:
        """At the beginning of a poll, by who polls: what earlier ones returned is done with now."""
        self.unread.polled()
        now = self.last_poll = time.monotonic()
        self.metrics.polls += 1
        self.metrics.last_poll = now
        if now >= self.commits.next_auto:
            self.attention = True

    async def attend(self, deadline: float, *, nested: bool = False) -> None:
        """What a poll has to do beside taking records. Waits for errands, not for records. `nested`: it is a poll in a
        function of the program's that another poll has called."""
        self.attention = False
        self._raise_failure()
        if self.subscriptions.mode is Mode.NONE:
            raise IllegalState("the consumer reads nothing: subscribe to topics, or assign partitions to it")
        await self.commits.tell()
        if self.member is not None:
            self.member.poll()
        self._solve_problems()
        self.commits.commit_if_due()
        self.positions.start()
        await self._do_errands(deadline, nested)
        self._raise_failure()

    def _raise_failure(self, ignore: tuple[type[BaseException], ...] = ()) -> None:
        while self._errors:
            error = self._errors.popleft()
            if not isinstance(error, ignore) and not self._is_over(error):
                # What is wrong may be so still.
                self.attention = True
                raise error

    def _is_over(self, error: BaseException) -> bool:
        """An offset that was missing, and that the program has given since."""
        if not isinstance(error, NoOffsetForPartition):
            return False
        states = [self.subscriptions.partitions.get(tp) for tp in error.partitions]
        return not any(state is not None and state.position < 0 and state.reset is None for state in states)

    async def _do_errands(self, deadline: float, nested: bool = False) -> None:
        while self._errand is not None or self._errands:
            if self._errand is None:
                work, future = self._errands.popleft()
                if future.done():
                    continue
                self._errand = asyncio.create_task(_do(work, future), name="kavka-errand")
            errand = self._errand
            await asyncio.wait({errand}, timeout=max(_SHORT, deadline - time.monotonic()))
            while self._telling and not nested:
                # The program is in its listener, and takes its own time. What it is told of is so when the poll
                # returns: the assignment does not change between two calls.
                await asyncio.wait({errand}, timeout=_SHORT)
            if not errand.done():
                self.attention = True
                return
            if self._errand is errand:
                self._errand = None

    async def _end_errand(self, deadline: float) -> None:
        """What a poll has begun, and had no time to finish, is finished before the membership ends: both would tell the
        program of the same partitions. Not where it waits for a function of the program's, which may be what calls."""
        errand = self._errand
        if errand is None or self._telling:
            return
        await asyncio.wait({errand}, timeout=max(0.0, deadline - time.monotonic()))
        errand.cancel()
        await asyncio.gather(errand, return_exceptions=True)
        if self._errand is errand:
            self._errand = None

    def _solve_problems(self) -> None:
        while self._problems:
            state = next(iter(self._problems))
            version, error = self._problems.pop(state)
            # This one may raise; the next poll handles the others.
            self.attention |= bool(self._problems)
            if state.version != version or not state.assigned:
                continue
            if error.code != ErrorCode.OFFSET_OUT_OF_RANGE:
                raise error
            # What was fetched before is handed out first; if it is still so then, it will be told again.
            if state.position == state.next_offset:
                self.positions.reset(state)

    def take(self, limit: int) -> Any:
        return self.buffer.take(limit)

    # --- what to read

    def subscribe(self, topics: Iterable[str], listener: Any) -> None:
        names = [topics] if isinstance(topics, str) else list(topics)
        for name in names:
            if not isinstance(name, str) or not name.strip():
                raise ValueError(f"{name!r} is not the name of a topic")
        self._need_group()
        self.subscriptions.subscribe(names, listener)
        self._subscribed()

    def subscribe_pattern(self, pattern: str | re.Pattern[str], listener: Any) -> None:
        self._need_group()
        on_server = isinstance(self.member, ModernMember) and isinstance(pattern, str)
        try:
            compiled = pattern if on_server or not isinstance(pattern, str) else re.compile(pattern)
        except re.error as error:
            raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None
        self.subscriptions.subscribe_pattern(compiled, listener, on_server=on_server)
        self._subscribed()

    def _subscribed(self) -> None:
        self._follow_topics()
        if self.subscriptions.mode is Mode.PATTERN:
            self.cluster.request_update()
        if self.member is not None:
            self.member.subscription_changed()
        self.want_poll()

    def _need_group(self) -> None:
        if self.group_id is None:
            raise IllegalState("group.id is not set: without a group, partitions can only be assigned")

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        wanted = list(partitions)
        if not wanted:
            await self.unsubscribe()
            return
        if self.auto_commit and self.subscriptions.partitions:
            self.commits.commit_later(None)
        self.subscriptions.assign(wanted)
        self.assignment_changed()
        self.want_poll()

    async def unsubscribe(self) -> None:
        if self.member is not None and self.subscriptions.by_group:
            deadline = self.deadline(None)
            await self._end_errand(deadline)
            await self.member.leave(deadline)
        elif self.auto_commit and self.subscriptions.partitions:
            self.commits.commit_later(None)
        self.subscriptions.unsubscribe()
        self._follow_topics()
        self.attention = True
        self._raise_failure(ignore=(KafkaError,))

    def pause(self, partitions: Iterable[TopicPartition], paused: bool) -> None:
        for state in [self.subscriptions.state(tp) for tp in partitions]:
            state.paused = paused
        if not paused:
            self.buffer.resume()
            self.fetcher.kick()
            self._signal()

    # --- positions

    def seek(self, tp: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        state = self.subscriptions.state(tp)
        epoch = -1
        if isinstance(offset, tuple):
            epoch = -1 if offset.leader_epoch is None else offset.leader_epoch
            offset = offset.offset
        if offset < 0:
            raise ValueError(f"an offset cannot be {offset}")
        state.held = False
        state.seek(offset, epoch)
        state.leader_epoch = -1
        self.positions.on_metadata()
        self.fetcher.kick()

    def seek_to(self, partitions: Collection[TopicPartition], when: int) -> None:
        for state in [self.subscriptions.state(tp) for tp in partitions or list(self.subscriptions.partitions)]:
            state.held = False
            state.seek_to_time(when)
        self.positions.start()

    async def position(self, tp: TopicPartition, deadline: float) -> int:
        # Looked up anew each time: it may be taken away meanwhile.
        while (state := self.subscriptions.state(tp)).position < 0:
            self._raise_failure()
            left = deadline - time.monotonic()
            if left <= 0:
                reason = because(self.cluster.connect_error())
                raise KafkaTimeout(f"the position of {tp} was not found in time{reason}")
            await self.positions.wait(left)
        return state.position

    async def lag(self, partitions: Collection[TopicPartition], deadline: float) -> dict[TopicPartition, int]:
        states = [self.subscriptions.state(tp) for tp in partitions or list(self.subscriptions.partitions)]
        committed = self.fetcher.read_committed
        for state in states:
            await self.position(state.tp, deadline)
        unknown = {state.tp: LATEST for state in states if state.lag(committed) is None}
        ends = await self.lookup.at_times(unknown, deadline) if unknown else {}
        result: dict[TopicPartition, int] = {}
        for state in states:
            known = state.lag(committed)
            ahead = max(0, ends[state.tp].offset - state.position) if known is None else known
            result[state.tp] = ahead + self._not_given_out(state)
        return result

    def known_lag(self, partition: TopicPartition) -> int | None:
        """As of the last fetch."""
        state = self.subscriptions.state(partition)
        known = state.lag(self.fetcher.read_committed)
        return None if known is None else known + self._not_given_out(state)

    def _not_given_out(self, state: PartitionState) -> int:
        """Offsets that an iteration has taken, and not given to the program yet."""
        first = self.unread.first().get(state.tp)
        return 0 if first is None else max(0, state.position - first)

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int], deadline: float
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        for tp, when in times.items():
            if when < 0:
                raise ValueError(f"the time for {tp} cannot be {when}")
        found = await self._lookup(times, deadline)
        return {
            tp: None
            if one.offset < 0
            else OffsetAndTimestamp(one.offset, one.timestamp, one.leader_epoch if one.leader_epoch >= 0 else None)
            for tp, one in found.items()
        }

    async def edge_offsets(
        self, partitions: Iterable[TopicPartition], when: int, deadline: float
    ) -> dict[TopicPartition, int]:
        found = await self._lookup(dict.fromkeys(partitions, when), deadline)
        return {tp: one.offset for tp, one in found.items()}

    async def _lookup(self, times: Mapping[TopicPartition, int], deadline: float) -> Any:
        if not times:
            return {}
        try:
            return await self.lookup.at_times(times, deadline)
        finally:
            self._follow_topics()

    # --- the rest

    def group_metadata(self) -> ConsumerGroupMetadata:
        self.commits.check_group()
        assert self.member is not None
        return self.member.metadata()

    def enforce_rebalance(self, reason: str | None) -> None:
        if self.member is None or not self.subscriptions.by_group:
            raise IllegalState("this consumer has no group to rebalance: it was given its partitions")
        self.member.rejoin(reason or "the program wants it")

    async def topic_names(self, deadline: float) -> dict[str, list[PartitionMetadata]]:
        topics = await self._metadata(None, deadline)
        return {topic.name: list(topic.partitions) for topic in topics}

    async def partitions_for(self, topic: str, deadline: float) -> list[PartitionMetadata]:
        known = self.cluster.topics.get(topic)
        if known is None:
            try:
                known = await self.cluster.topic(topic, max(0.0, deadline - time.monotonic()))
            finally:
                self._follow_topics()
        return list(known.partitions)

    async def _metadata(self, names: list[str] | None, deadline: float) -> list[TopicMetadata]:
        topics = None if names is None else [MetadataRequestTopic(name=name) for name in names]
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        response = await self.coordinator.retrying(
            lambda timeout: self.cluster.request(None, request, timeout=timeout), deadline, "asking for topics"
        )
        return [topic_metadata(topic) for topic in response.topics if topic.name and not topic.error_code]

    def all_metrics(self) -> dict[str, float]:
        seconds = max(time.monotonic() - self.metrics.started, 0.001)
        lags = [
            lag
            for state in self.subscriptions.partitions.values()
            if (lag := state.lag(self.fetcher.read_committed)) is not None
        ]
        connections = self.cluster.connections()
        return {
            "records-consumed-total": self.buffer.records,
            "records-consumed-rate": self.buffer.records / seconds,
            "bytes-consumed-total": self.buffer.bytes,
            "bytes-consumed-rate": self.buffer.bytes / seconds,
            "records-lag-max": max(lags, default=0),
            "assigned-partitions": len(self.subscriptions.partitions),
            "poll-total": self.metrics.polls,
            **dict(self.metrics.items()),
            "connection-count": len(connections),
            "connection-creation-total": self.cluster.connections_opened,
            "outgoing-byte-total": sum(c.bytes_out for c in connections),
            "incoming-byte-total": sum(c.bytes_in for c in connections),
        }


async def _do(work: Callable[[], Awaitable[Any]], future: asyncio.Future[Any]) -> None:
    try:
        result = await work()
    except BaseException as error:
        if not future.done():
            future.set_exception(error)
        return
    if not future.done():
        future.set_result(result)


def _check(config: ClientConfig) -> None:
    if config["group.id"] is None and config.given("enable.auto.commit") and config["enable.auto.commit"]:
        raise ConfigError("enable.auto.commit", "it needs a group.id")
    if config["group.protocol"].lower() == "consumer":
        for name in _CLASSIC_ONLY:
            if config.given(name):
                raise ConfigError(name, "it cannot be set with group.protocol=consumer: the broker decides")
        return
    if config.given("group.remote.assignor"):
        raise ConfigError("group.remote.assignor", "it is for group.protocol=consumer")
    if config["group.id"] is None and config.given(assignors.NAME):
        # A member of a group loads them itself.
        assignors.load(config[assignors.NAME], config.originals)


SEEK_BEGINNING, SEEK_END = EARLIEST, LATEST
