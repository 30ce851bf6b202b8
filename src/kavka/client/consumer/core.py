"""The consumer's state and logic, shared by the blocking (`consumer.py`) and the asyncio (`aio.py`)
consumer.

The application's thread calls `on_poll_started`, `unread` and the `take` methods of the buffer,
sets `in_poll` and `last_poll`, and may read the state. All other changes are made on the event
loop. A poll repeats three steps until it has records or its timeout expires:

1. If `has_poll_work` is set, call `run_poll_work` on the event loop: raise errors of background
   tasks, run commit callbacks, start the member's tasks (`member.poll`), reset positions that are
   out of range, start the automatic commit, and run the poll tasks (`poll_tasks.py`).
2. Take records from the buffer, in the application's thread.
3. If the buffer has no records, wait until `wake_poll` is called. The fetcher calls it for new
   records, and `request_poll` calls it for work of step 1.

Background tasks never change the assignment and never call functions of the application. They
leave such work to the next poll: poll tasks that they submit with `run_in_poll`, fetch errors
(`_on_fetch_error`), and the callbacks of commits (`Commits.run_callbacks`).

| task | started by | woken by | work for the next poll |
|---|---|---|---|
| heartbeats (`classic.py`, `modern.py`) | `member.poll` | its interval, a join | |
| rebalance, reconciliation (same files) | `member.poll` | responses | revocation, assignment |
| positions (`positions.py`) | assignment, seek, metadata | responses | reset after truncation |
| fetches (`fetcher.py`) | room in the buffer, metadata | responses | errors of partitions |
| commits (`commits.py`) | the application, the interval | responses | callbacks |
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Any, TypeVar

from kavka.client.cluster import Cluster
from kavka.client.config import ClientConfig
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
from kavka.client.consumer.offset_queries import OffsetQueries
from kavka.client.consumer.offsets import EARLIEST, LATEST, OffsetLookup
from kavka.client.consumer.poll_tasks import PollTasks
from kavka.client.consumer.positions import Positions
from kavka.client.consumer.subscription import Mode, PartitionState, Subscriptions
from kavka.client.consumer.unread import Unread
from kavka.client.errors import AuthenticationFailed, ClientClosed, IllegalState
from kavka.client.metadata import PartitionMetadata, topic_metadata
from kavka.client.serializers import make_deserializer
from kavka.client.types import ConsumerGroupMetadata, OffsetAndMetadata
from kavka.common.config import ConfigError
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.protocol.messages.metadata import MetadataRequest

logger = logging.getLogger(__name__)

T = TypeVar("T")

CallUser = Callable[..., Awaitable[Any]]

# Seconds that a consumer has to leave its group after the application dropped it.
_ABANDON_TIMEOUT_S = 5.0
_FATAL_TOPIC_ERRORS = (ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
_CLASSIC_PROTOCOL_SETTINGS = ("partition.assignment.strategy", "heartbeat.interval.ms", "session.timeout.ms")


class ConsumerCore:
    """Owns all parts of a consumer and wires them together.

    `call_user(function, *args)` calls a function of the application in the application's thread
    and awaits the result. `wake_poll()` wakes a poll that is waiting. `on_room()` is called in the
    application's thread when a poll has freed space in the buffer."""

    def __init__(
        self, config: ClientConfig, call_user: CallUser, wake_poll: Callable[[], object], on_room: Callable[[], object]
    ) -> None:
        _check_config(config)
        self.config = config
        self.cluster = Cluster(config, allow_auto_create=config["allow.auto.create.topics"])
        self.subscriptions = Subscriptions()
        self.metrics = ConsumerMetrics()
        self.coordinator = Coordinator(config, self.cluster, self.metrics)
        self.interceptors = Interceptors(config["interceptor.classes"], config.originals)
        self._key_deserializer, key = make_deserializer(
            "key.deserializer", config["key.deserializer"], config.originals
        )
        self._value_deserializer, value = make_deserializer(
            "value.deserializer", config["value.deserializer"], config.originals
        )
        self.buffer = FetchBuffer(key, value, on_room)
        self.unread = Unread()
        self.buffer.in_progress = self.unread.in_progress
        self.has_poll_work = True
        """Whether the next poll must call `run_poll_work` before it takes records."""
        self.last_poll = time.monotonic()
        self.in_poll = False
        self.closing = False
        self.closed = False
        self.group_id: str | None = config["group.id"]
        self.call_user = call_user
        self._wake_poll = wake_poll
        self.commits = Commits(
            config, self.coordinator, self.subscriptions, self.interceptors, self.unread, call_user, self.request_poll,
            self._is_rebalancing,
        )  # fmt: skip
        self.auto_commit = self.commits.is_auto_commit
        self._default_timeout = config.seconds("default.api.timeout.ms")
        self._exclude_internal = config["exclude.internal.topics"]
        lookup = OffsetLookup(config, self.cluster)
        self.fetcher = Fetcher(
            config, self.cluster, self.subscriptions, self.buffer, self.metrics, wake_poll, self._on_fetch_error
        )
        self.poll_tasks = PollTasks(self.request_poll)
        self.positions = Positions(
            config, self.cluster, self.subscriptions, self.coordinator, lookup, self.run_in_poll, self.fail,
            self.fetcher.wake,
        )  # fmt: skip
        self.queries = OffsetQueries(
            self.cluster, self.subscriptions, self.unread, self.positions, lookup, self.fetcher.read_committed,
            self._raise_failure, self._update_metadata_topics,
        )  # fmt: skip
        self.member: Member | None = None
        if self.group_id is not None:
            uses_consumer_protocol = config["group.protocol"].lower() == "consumer"
            self.member = ModernMember(config, self) if uses_consumer_protocol else ClassicMember(config, self)
            self.coordinator.membership = self.member
        self._errors: deque[BaseException] = deque()
        self._fetch_errors: dict[PartitionState, tuple[int, KafkaError]] = {}
        """The last fetch error of each partition, and the version of the partition's state when the
        fetch was sent."""

    # --- start and stop

    async def start(self) -> None:
        await self.cluster.start()
        self.fetcher.start()
        self.cluster.on_update(self._on_metadata)
        self.cluster.on_authentication_failed(self._on_authentication_failed)

    def _on_authentication_failed(self, error: AuthenticationFailed) -> None:
        # Every attempt to connect fails again. The next poll raises only one of the errors.
        if not self.closing and not any(isinstance(other, AuthenticationFailed) for other in self._errors):
            self.fail(error)

    async def close(self, timeout: float, leave_group: bool | None = None) -> None:
        """Commit the consumed positions if auto-commit is enabled, leave the group, and stop. Steps
        that do not complete within `timeout` seconds are skipped."""
        if self.closing:
            return
        self.closing = True
        deadline = time.monotonic() + timeout
        try:
            await self.poll_tasks.drain(deadline)
            await self.commits.wait_for_pending(deadline)
            if self.member is not None:
                if self.auto_commit and not self.subscriptions.uses_group:
                    await self.commit_positions(deadline)
                await self._leave_group(self.member, deadline, leave_group)
            await self.commits.run_callbacks()
            await self.fetcher.close(max(0.0, deadline - time.monotonic()))
        except KafkaError as error:
            logger.info("The consumer was not closed cleanly: %s", error)
        finally:
            self.closed = True
            await self.positions.stop()
            self.commits.cancel()
            await self.cluster.close()
            self.interceptors.close()
            for deserializer in (self._key_deserializer, self._value_deserializer):
                close = getattr(deserializer, "close", None)
                if callable(close):
                    close()
        self._raise_failure(ignore=(KafkaError,))

    async def abandon(self, timeout: float | None = None) -> None:
        """Close a consumer that the application dropped. Leaves the group without a commit, because
        the application may not have processed the polled records."""
        self.auto_commit = False
        await self.close(_ABANDON_TIMEOUT_S if timeout is None else timeout)

    async def _leave_group(self, member: Member, deadline: float, leave_group: bool | None) -> None:
        try:
            async with asyncio.timeout(max(0.01, deadline - time.monotonic()) + 0.5):
                await member.leave(deadline, leave_group=leave_group)
        except TimeoutError:
            logger.warning("The consumer did not leave group %s before the timeout of close", self.group_id)

    def check_open(self) -> None:
        if self.closed:
            raise ClientClosed("the consumer is closed")

    def deadline(self, timeout: float | None) -> float:
        return time.monotonic() + (self._default_timeout if timeout is None else timeout)

    # --- called by the parts of the consumer; `Host` in member.py documents these methods

    async def commit_positions(self, deadline: float) -> None:
        await self.commits.commit_consumed(deadline)

    def _is_rebalancing(self) -> bool:
        return self.member is not None and self.subscriptions.uses_group and self.member.is_rebalancing

    def request_poll(self) -> None:
        self.has_poll_work = True
        self._wake_poll()

    def fail(self, error: BaseException) -> None:
        self._errors.append(error)
        self.request_poll()

    async def run_in_poll(self, work: Callable[[], Awaitable[T]]) -> T:
        return await self.poll_tasks.submit(work)

    async def notify_listener(self, event: str, partitions: Collection[TopicPartition]) -> None:
        listener = self.subscriptions.listener
        if listener is None:
            return
        function = getattr(listener, f"on_partitions_{event}", None)
        if function is None and event == "lost":
            function = getattr(listener, "on_partitions_revoked", None)
        if function is not None:
            await self.poll_tasks.call_listener(self.call_user(function, set(partitions)))

    def on_assignment_changed(self) -> None:
        self._update_metadata_topics()
        self.commits.start_auto_commit()
        self.positions.start()
        self.fetcher.wake()

    def _update_metadata_topics(self) -> None:
        """Request metadata for the subscribed and the assigned topics."""
        subscriptions = self.subscriptions
        self.cluster.all_topics = subscriptions.mode is Mode.PATTERN
        assigned = {tp.topic for tp in subscriptions.partitions}
        self.cluster.set_topics(subscriptions.topics | subscriptions.group_topics | assigned)

    def _on_metadata(self, cluster: Cluster) -> None:
        subscriptions = self.subscriptions
        if subscriptions.mode is Mode.PATTERN and cluster.complete:
            names = [t.name for t in cluster.topics.values() if not (t.is_internal and self._exclude_internal)]
            if subscriptions.match(names) and self.member is not None:
                self.member.on_subscription_changed()
        for topic in subscriptions.topics:
            code = cluster.topic_errors.get(topic)
            if code in _FATAL_TOPIC_ERRORS:
                self.fail(KafkaError(code, f"topic {topic}: {code.name.lower().replace('_', ' ')}"))
        self.positions.on_metadata()
        if self.member is not None:
            self.member.on_metadata()

    def _on_fetch_error(self, state: PartitionState, version: int, error: KafkaError) -> None:
        self._fetch_errors[state] = version, error
        self.request_poll()

    # --- poll

    def on_poll_started(self) -> None:
        """Called in the application's thread when a poll starts. The records of earlier polls then
        count as processed."""
        self.unread.on_poll()
        now = self.last_poll = time.monotonic()
        self.metrics.polls += 1
        self.metrics.last_poll = now
        if now >= self.commits.next_auto_commit:
            self.has_poll_work = True

    async def run_poll_work(self, deadline: float, *, nested: bool = False) -> None:
        """Do the work of a poll, except for taking records. Waits for poll tasks until the
        deadline, not for records. Raises pending errors. `nested` is set if the caller is a poll
        inside a listener that another poll has called."""
        self.has_poll_work = False
        self._raise_failure()
        if self.subscriptions.mode is Mode.NONE:
            raise IllegalState("the consumer has no subscription: subscribe to topics, or assign partitions")
        await self.commits.run_callbacks()
        if self.member is not None:
            self.member.poll()
        self._handle_fetch_errors()
        self.commits.commit_if_due()
        self.positions.start()
        if not await self.poll_tasks.run(deadline, nested=nested):
            self.has_poll_work = True
        self._raise_failure()

    def _raise_failure(self, ignore: tuple[type[BaseException], ...] = ()) -> None:
        while self._errors:
            error = self._errors.popleft()
            if not isinstance(error, ignore) and not self._is_resolved(error):
                # The cause may persist: the next poll checks again.
                self.has_poll_work = True
                raise error

    def _is_resolved(self, error: BaseException) -> bool:
        """Whether the error reports partitions without an offset whose positions are now known."""
        if not isinstance(error, NoOffsetForPartition):
            return False
        states = [self.subscriptions.partitions.get(tp) for tp in error.partitions]
        return not any(state is not None and state.position < 0 and state.reset is None for state in states)

    def _handle_fetch_errors(self) -> None:
        while self._fetch_errors:
            state = next(iter(self._fetch_errors))
            version, error = self._fetch_errors.pop(state)
            # If this error is raised, the next poll handles the other errors.
            self.has_poll_work |= bool(self._fetch_errors)
            if state.version != version or not state.assigned:
                continue
            if error.code != ErrorCode.OFFSET_OUT_OF_RANGE:
                raise error
            # Polls first return the records that were fetched earlier. If the offset is still out
            # of range afterwards, the next fetch reports the error again.
            if state.position == state.next_offset:
                self.positions.reset(state)

    # --- subscription and assignment

    def subscribe(self, topics: Iterable[str], listener: Any) -> None:
        names = [topics] if isinstance(topics, str) else list(topics)
        for name in names:
            if not isinstance(name, str) or not name.strip():
                raise ValueError(f"{name!r} is not a topic name")
        self._require_group()
        self.subscriptions.subscribe(names, listener)
        self._on_subscription()

    def subscribe_pattern(self, pattern: str | re.Pattern[str], listener: Any) -> None:
        self._require_group()
        on_server = isinstance(self.member, ModernMember) and isinstance(pattern, str)
        try:
            compiled = pattern if on_server or not isinstance(pattern, str) else re.compile(pattern)
        except re.error as error:
            raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None
        self.subscriptions.subscribe_pattern(compiled, listener, on_server=on_server)
        self._on_subscription()

    def _on_subscription(self) -> None:
        self._update_metadata_topics()
        if self.subscriptions.mode is Mode.PATTERN:
            self.cluster.request_update()
        if self.member is not None:
            self.member.on_subscription_changed()
        self.request_poll()

    def _require_group(self) -> None:
        if self.group_id is None:
            raise IllegalState("group.id is not set: a consumer without a group can only assign partitions")

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        assigned = list(partitions)
        if not assigned:
            await self.unsubscribe()
            return
        if self.auto_commit and self.subscriptions.partitions:
            self.commits.commit_async(None)
        self.subscriptions.assign(assigned)
        self.on_assignment_changed()
        self.request_poll()

    async def unsubscribe(self) -> None:
        if self.member is not None and self.subscriptions.uses_group:
            deadline = self.deadline(None)
            await self.poll_tasks.drain(deadline)
            await self.member.leave(deadline)
        elif self.auto_commit and self.subscriptions.partitions:
            self.commits.commit_async(None)
        self.subscriptions.unsubscribe()
        self._update_metadata_topics()
        self.has_poll_work = True
        self._raise_failure(ignore=(KafkaError,))

    def set_paused(self, partitions: Iterable[TopicPartition], paused: bool) -> None:
        for state in [self.subscriptions.state(tp) for tp in partitions]:
            state.paused = paused
        if not paused:
            self.buffer.resume()
            self.fetcher.wake()
            self._wake_poll()

    # --- positions

    def seek(self, tp: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        state = self.subscriptions.state(tp)
        epoch = -1
        if isinstance(offset, tuple):
            epoch = -1 if offset.leader_epoch is None else offset.leader_epoch
            offset = offset.offset
        if offset < 0:
            raise ValueError(f"an offset cannot be negative: {offset}")
        state.held = False
        state.seek(offset, epoch)
        state.leader_epoch = -1
        self.positions.on_metadata()
        self.fetcher.wake()

    def seek_to_timestamp(self, partitions: Collection[TopicPartition], timestamp: int) -> None:
        for state in [self.subscriptions.state(tp) for tp in partitions or list(self.subscriptions.partitions)]:
            state.held = False
            state.seek_to_time(timestamp)
        self.positions.start()

    # --- the group and the cluster

    def group_metadata(self) -> ConsumerGroupMetadata:
        self.commits.check_group()
        assert self.member is not None
        return self.member.metadata()

    def enforce_rebalance(self, reason: str | None) -> None:
        if self.member is None or not self.subscriptions.uses_group:
            raise IllegalState("this consumer has no group to rebalance: it has no group.id or no subscription")
        self.member.rejoin(reason or "requested by the application")

    async def list_topics(self, deadline: float) -> dict[str, list[PartitionMetadata]]:
        request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
        response = await self.coordinator.with_retries(
            lambda timeout: self.cluster.request(None, request, timeout=timeout), deadline, "listing topics"
        )
        topics = [topic_metadata(topic) for topic in response.topics if topic.name and not topic.error_code]
        return {topic.name: list(topic.partitions) for topic in topics}

    async def partitions_for(self, topic: str, deadline: float) -> list[PartitionMetadata]:
        metadata = self.cluster.topics.get(topic)
        if metadata is None:
            try:
                metadata = await self.cluster.topic(topic, max(0.0, deadline - time.monotonic()))
            finally:
                self._update_metadata_topics()
        return list(metadata.partitions)

    def all_metrics(self) -> dict[str, float]:
        seconds = max(time.monotonic() - self.metrics.started, 0.001)
        connections = self.cluster.connections()
        return {
            "records-consumed-total": self.buffer.records,
            "records-consumed-rate": self.buffer.records / seconds,
            "bytes-consumed-total": self.buffer.bytes,
            "bytes-consumed-rate": self.buffer.bytes / seconds,
            "records-lag-max": self.queries.largest_lag(),
            "assigned-partitions": len(self.subscriptions.partitions),
            "poll-total": self.metrics.polls,
            **dict(self.metrics.items()),
            "connection-count": len(connections),
            "connection-creation-total": self.cluster.connections_opened,
            "outgoing-byte-total": sum(c.bytes_out for c in connections),
            "incoming-byte-total": sum(c.bytes_in for c in connections),
        }


def _check_config(config: ClientConfig) -> None:
    if config["group.id"] is None and config.is_explicit("enable.auto.commit") and config["enable.auto.commit"]:
        raise ConfigError("enable.auto.commit", "requires a group.id")
    if config["group.protocol"].lower() == "consumer":
        for name in _CLASSIC_PROTOCOL_SETTINGS:
            if config.is_explicit(name):
                raise ConfigError(name, "cannot be set with group.protocol=consumer: the broker sets it")
        return
    if config.is_explicit("group.remote.assignor"):
        raise ConfigError("group.remote.assignor", "requires group.protocol=consumer")
    if config["group.id"] is None and config.is_explicit(assignors.SETTING):
        # This call only validates the setting; a member of a group loads the assignors itself.
        assignors.load(config[assignors.SETTING], config.originals)


SEEK_BEGINNING, SEEK_END = EARLIEST, LATEST
