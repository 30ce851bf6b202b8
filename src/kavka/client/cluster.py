"""The cluster as a client sees it: connections to its brokers, and metadata that is kept up to date.

    cluster = Cluster(config)
    await cluster.start()
    topic = await cluster.topic("orders", timeout=60)
    connection = await cluster.connection(topic.partitions[0].leader)
    response = await connection.send(request, timeout=30)

Everything belongs to the loop that `start` ran on, but for reads of `topics`, `nodes`, `topic_errors` and `version`:
those are replaced, never changed in place, so other threads may read them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

from kavka.client.addresses import canonical_servers
from kavka.client.backoff import Backoff
from kavka.client.config import ClientConfig, parse_servers
from kavka.client.connection import Connection
from kavka.client.connections import MAIN, Connections, because
from kavka.client.errors import KafkaTimeout, error_of
from kavka.client.metadata import Node, TopicMetadata, error_code, topic_metadata, with_leader
from kavka.common.errors import ErrorCode, KafkaError
from kavka.protocol.messages.find_coordinator import FindCoordinatorRequest
from kavka.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from kavka.protocol.primitives import ZERO_UUID, TopMessage

log = logging.getLogger(__name__)

GROUP, TRANSACTION, SHARE = 0, 1, 2
"""What `find_coordinator` looks for."""

# Errors of a topic that no waiting cures.
_HOPELESS = frozenset({ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.TOPIC_AUTHORIZATION_FAILED})


class Cluster(Connections):
    def __init__(self, config: ClientConfig, *, allow_auto_create: bool = False, client_id: str | None = None) -> None:
        super().__init__(config, config["client.id"] if client_id is None else client_id)
        self.topics: dict[str, TopicMetadata] = {}
        self.topic_names: dict[UUID, str] = {}
        self.topic_errors: dict[str, ErrorCode] = {}
        """Why a topic that was asked for is not in `topics`, from the last answer."""
        self.cluster_id: str | None = None
        self.controller_id = -1
        self.version = 0
        """Grows with every answer."""
        self.allow_auto_create = allow_auto_create
        self.all_topics = False
        """Ask for every topic of the cluster, not only those of `add_topic`; for subscriptions by pattern."""
        self.complete = False
        """Whether `topics` are all of the cluster's: the last answer was to that question."""
        self._servers = parse_servers(config["bootstrap.servers"])
        self._wanted: dict[str, float] = {}
        self._new: set[str] = set()
        self._refresh = asyncio.Event()
        self._waiters: set[asyncio.Future[None]] = set()
        self._listeners: list[Callable[[Cluster], None]] = []
        self._task: asyncio.Task[None] | None = None
        self._last_attempt = float("-inf")
        self._last_success = float("-inf")
        self._failures = 0
        self._leaderless = 0
        self._max_age = config.seconds("metadata.max.age.ms")
        self._retry = Backoff(config["retry.backoff.ms"], config["retry.backoff.max.ms"])
        self._request_timeout = config.seconds("request.timeout.ms")
        self._topic_idle: float | None = (
            config.seconds("metadata.max.idle.ms") if "metadata.max.idle.ms" in config else None
        )
        self._rebootstrap_allowed = config["metadata.recovery.strategy"].lower() == "rebootstrap"
        self._rebootstrap_after = config.seconds("metadata.recovery.rebootstrap.trigger.ms")
        self._bootstrap()

    # --- start and stop

    async def start(self) -> None:
        """Begin to keep metadata up to date; does not wait for a broker. Called on the loop that owns the cluster."""
        if self._task is None and self.config["client.dns.lookup"] == "resolve_canonical_bootstrap_servers_only":
            timeout = self.config.seconds("socket.connection.setup.timeout.ms")
            self._servers = await canonical_servers(self._servers, timeout)
            self._bootstrap()
        if self._task is None:
            self._loop = asyncio.get_running_loop()
            self.started = True
            self._task = asyncio.create_task(self._maintain(), name="kavka-metadata")

    async def close(self) -> None:
        """Close every connection. Requests in flight fail."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.close_connections()
        self._wake_waiters()

    # --- requests

    async def request(
        self,
        node_id: int | None,
        request: TopMessage,
        *,
        timeout: float | None = None,
        max_version: int | None = None,
        channel: str = MAIN,
    ) -> Any:
        """Send to one broker (None: any) and wait for the response object. No retries: KafkaError tells what happened.

        `timeout` is for connecting and answering together, `request.timeout.ms` if not given.
        """
        limit = self._request_timeout if timeout is None else timeout
        deadline = self._now() + limit
        if node_id is None:
            connection = await self.any_connection(timeout=limit)
        else:
            connection = await self.connection(node_id, channel, timeout=limit)
        pause = connection.throttled_until - self._now()
        if pause > 0:
            await asyncio.sleep(min(pause, max(0.0, deadline - self._now())))
        return await connection.send(request, timeout=max(0.001, deadline - self._now()), max_version=max_version)

    async def any_connection(self, *, timeout: float | None = None) -> Connection:
        """To the broker with the least to do; tries one after the other until one can be reached."""
        self.check_usable()
        deadline = None if timeout is None else self._now() + timeout
        failure: KafkaError | None = None
        while True:
            open_now = [
                link.connection
                for (_, channel), link in self._links.items()
                if link.connection is not None and channel == MAIN
            ]
            if open_now:
                return min(open_now, key=lambda connection: connection.in_flight)
            left = None if deadline is None else deadline - self._now()
            if left is not None and left <= 0:
                reason = because(self.connect_error() or failure)
                raise KafkaTimeout(f"no broker could be reached within {timeout:g} s{reason}")
            try:
                return await self.connection(self._next_to_try(), timeout=left)
            except KafkaError as error:
                if self.closed:
                    raise
                failure = error
                self._maybe_rebootstrap()

    def _next_to_try(self) -> int:
        """The broker that failed longest ago, or any that did not."""
        if not self.nodes:
            self._bootstrap()

        def order(node_id: int) -> tuple[float, float]:
            link = self._links.get((node_id, MAIN))
            return (0.0 if link is None else link.retry_at if link.failures else 0.0), random.random()

        return min(self.nodes, key=order)

    async def find_coordinator(self, key: str, key_type: int = GROUP, *, timeout: float | None = None) -> Node:
        """The broker that coordinates a group or a transactional id; tries again while there is none yet.

        Raises KafkaTimeout, or KafkaError where trying again is no use (authorization).
        """
        limit = self._request_timeout if timeout is None else timeout
        deadline = self._now() + limit
        failures = 0
        while True:
            try:
                return await self._ask_for_coordinator(key, key_type, max(0.001, deadline - self._now()))
            except KafkaError as error:
                failures += 1
                wait = self._retry.delay(failures)
                if not error.retriable or self.closed:
                    raise
                if self._now() + wait >= deadline:
                    raise KafkaTimeout(f"no coordinator for {key} within {limit:g} s: {error}") from error
                await asyncio.sleep(wait)

    async def _ask_for_coordinator(self, key: str, key_type: int, timeout: float) -> Node:
        connection = await self.any_connection(timeout=timeout)
        version = connection.version_of(FindCoordinatorRequest.API_KEY)
        request = FindCoordinatorRequest(key_type=key_type)
        if version >= 4:
            request.coordinator_keys = [key]
        else:
            request.key = key
        response = await connection.send(request, timeout=min(timeout, self._request_timeout), version=version)
        answer = response.coordinators[0] if version >= 4 else response
        if answer.error_code:
            raise error_of(answer.error_code, answer.error_message)
        # The response has no racks; Metadata has.
        known = self.nodes.get(answer.node_id)
        node = Node(answer.node_id, answer.host, answer.port, None if known is None else known.rack)
        self.add_node(node)
        return node

    # --- metadata: what is asked for

    def add_topic(self, name: str) -> None:
        """From now on, metadata is to have this topic. A new one is asked for without delay."""
        if name not in self._wanted:
            self._new.add(name)
            self._refresh.set()
        self._wanted[name] = self._now()

    def set_topics(self, names: Iterable[str]) -> None:
        """These topics and no others are wanted (a consumer's subscription)."""
        wanted = set(names)
        for name in list(self._wanted):
            if name not in wanted:
                del self._wanted[name]
        for name in wanted:
            self.add_topic(name)

    def touch_topic(self, name: str) -> None:
        """The topic is still in use: it stays in the metadata for another `metadata.max.idle.ms`."""
        self.add_topic(name)

    def request_update(self) -> int:
        """Ask for new metadata soon; returns the version to wait beyond (`wait_for_update`)."""
        self._refresh.set()
        return self.version

    async def wait_for_update(self, beyond: int, timeout: float | None = None) -> None:
        """Until `version` is higher than `beyond`. Raises KafkaTimeout."""
        try:
            async with asyncio.timeout(timeout):
                while self.version <= beyond:
                    self.check_usable()
                    waiter = self._loop.create_future()
                    self._waiters.add(waiter)
                    try:
                        await waiter
                    finally:
                        self._waiters.discard(waiter)
        except TimeoutError:
            raise KafkaTimeout(f"no metadata within {timeout:g} s{because(self.connect_error())}") from None

    async def topic(self, name: str, timeout: float) -> TopicMetadata:
        """The topic's metadata, waited for if it is not there. KafkaTimeout, or what the broker says of the topic."""
        found = self.topics.get(name)
        if found is not None:
            return found
        self.add_topic(name)
        deadline = self._now() + timeout
        while True:
            version = self.request_update()
            try:
                await self.wait_for_update(version, max(0.0, deadline - self._now()))
            except KafkaTimeout:
                reason = self.topic_errors.get(name)
                said = f": {reason.name.lower().replace('_', ' ')}" if reason else because(self.connect_error())
                raise KafkaTimeout(f"no metadata of topic {name} within {timeout:g} s{said}") from None
            found = self.topics.get(name)
            if found is not None:
                return found
            reason = self.topic_errors.get(name)
            if reason in _HOPELESS:
                raise KafkaError(reason, f"{name}: {reason.name.lower().replace('_', ' ')}")

    async def leader(self, topic: str, partition: int, timeout: float) -> int:
        """The id of the partition's leader, waited for. KafkaTimeout if there is none in time."""
        deadline = self._now() + timeout
        while True:
            found = await self.topic(topic, max(0.0, deadline - self._now()))
            if partition < len(found.partitions) and found.partitions[partition].leader in self.nodes:
                return found.partitions[partition].leader
            try:
                await self.wait_for_update(self.request_update(), max(0.0, deadline - self._now()))
            except KafkaTimeout:
                reason = because(self.connect_error())
                raise KafkaTimeout(f"no leader of {topic}-{partition} within {timeout:g} s{reason}") from None

    def leader_of(self, topic: str, partition: int) -> int:
        """The id of the leader that is known now, -1 where there is none."""
        found = self.topics.get(topic)
        if found is None or partition >= len(found.partitions):
            return -1
        return found.partitions[partition].leader

    def on_update(self, listener: Callable[[Cluster], None]) -> None:
        """`listener(cluster)` is called on the loop after every change of the metadata."""
        self._listeners.append(listener)

    def add_node(self, node: Node) -> None:
        """A broker that an answer other than Metadata named."""
        if self.nodes.get(node.id) != node:
            self.nodes = {**self.nodes, node.id: node}
            self._drop_moved()

    def update_leader(self, topic: str, partition: int, leader: int, leader_epoch: int, nodes: Iterable[Node]) -> bool:
        """A produce or fetch answer that refuses names the new leader: no need to ask. Returns whether it was news."""
        known = self.topics.get(topic)
        if known is None or leader < 0:
            return False
        for node in nodes:
            self.add_node(node)
        changed = with_leader(known, partition, leader, leader_epoch)
        if changed is known or leader not in self.nodes:
            return False
        self.topics = {**self.topics, topic: changed}
        self._updated()
        return True

    # --- metadata: how it is kept

    def _bootstrap(self) -> None:
        self.nodes = {-1 - i: Node(-1 - i, host, port) for i, (host, port) in enumerate(self._servers)}

    async def _maintain(self) -> None:
        while True:
            try:
                await self._wait_for_work()
                self._close_idle()
                self._forget_idle_topics()
                if self._refresh.is_set() or self._now() - self._last_success >= self._max_age:
                    await self._update()
            except KafkaError as error:
                self._failures += 1
                level = logging.WARNING if self._failures in (5, 50, 500) else logging.DEBUG
                log.log(level, "No metadata: %s", error)
                self._maybe_rebootstrap()
                self._refresh.set()
            except Exception:
                self._failures += 1
                log.exception("Metadata could not be taken in")
                self._refresh.set()

    async def _wait_for_work(self) -> None:
        """Until a refresh is wanted and may be made, or it is time to look around."""
        age = self._max_age - (self._now() - self._last_success)
        if not self._refresh.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(max(age, 0.0), 10.0)):
                    await self._refresh.wait()
        # One that follows another closely waits, except for what nobody has asked for before.
        while self._failures or not (self._new or (self.all_topics and not self.complete)):
            wait = self._last_attempt + self._retry.delay(max(1, self._failures)) - self._now()
            if wait <= 0:
                return
            await asyncio.sleep(min(wait, 0.05))

    async def _update(self) -> None:
        self._refresh.clear()
        self._last_attempt = self._now()
        # All of them, unless only new topics are missing and the rest is fresh.
        full = self.all_topics or not self._new or self._now() - self._last_success >= self._max_age or not self.version
        new, self._new = self._new, set()
        names = None if self.all_topics else sorted(self._wanted) if full else sorted(new & self._wanted.keys())
        try:
            connection = await self.any_connection(timeout=self._request_timeout)
            version = connection.version_of(MetadataRequest.API_KEY)
            response = await connection.send(
                self._metadata_request(names, version), timeout=self._request_timeout, version=version
            )
        except BaseException:
            self._new |= new
            raise
        if response.error_code == ErrorCode.REBOOTSTRAP_REQUIRED:
            self._rebootstrap()
            raise error_of(response.error_code)
        if not response.brokers:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"{connection.name} knows of no broker")
        self._failures = 0
        self._last_success = self._now()
        self._take(response, names)

    def _metadata_request(self, names: list[str] | None, version: int) -> MetadataRequest:
        request = MetadataRequest(allow_auto_topic_creation=self.allow_auto_create or version < 4)
        if names is None:
            # In version 0 all topics are an empty list, later none.
            request.topics = [] if version == 0 else None
        else:
            request.topics = [MetadataRequestTopic(name=name) for name in names]
        return request

    def _take(self, response: MetadataResponse, names: list[str] | None) -> None:
        self.nodes = {b.node_id: Node(b.node_id, b.host, b.port, b.rack) for b in response.brokers}
        self.cluster_id = response.cluster_id
        self.controller_id = response.controller_id
        topics: dict[str, TopicMetadata] = {}
        errors: dict[str, ErrorCode] = {}
        for answer in response.topics:
            name = answer.name or ""
            code = error_code(answer.error_code)
            if code in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE) and answer.partitions:
                topics[name] = topic_metadata(answer, self.topics.get(name))
            else:
                errors[name] = code
        # A partial answer says nothing of the topics that were not asked for.
        if names is not None:
            asked = set(names)
            kept = {name: t for name, t in self.topics.items() if name not in asked and name in self._wanted}
            topics = {**kept, **topics}
            errors = {**{n: c for n, c in self.topic_errors.items() if n not in asked and n in self._wanted}, **errors}
        self.complete = names is None
        self.topics = topics
        self.topic_errors = errors
        self.topic_names = {t.topic_id: name for name, t in topics.items() if t.topic_id != ZERO_UUID}
        if set(errors.values()) - _HOPELESS or any(p.leader < 0 for t in topics.values() for p in t.partitions):
            # Somebody will make it, or lead it, soon; asked for less and less often.
            self._leaderless += 1
            self._loop.call_later(self._retry.delay(self._leaderless), self._refresh.set)
        else:
            self._leaderless = 0
        self._drop_moved()
        self._updated()

    def _updated(self) -> None:
        self.version += 1
        for listener in self._listeners:
            try:
                listener(self)
            except Exception:
                log.exception("A listener to metadata failed")
        self._wake_waiters()

    def _wake_waiters(self) -> None:
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _forget_idle_topics(self) -> None:
        if self._topic_idle is None or self.all_topics:
            return
        before = self._now() - self._topic_idle
        idle = [name for name, used in self._wanted.items() if used < before]
        for name in idle:
            del self._wanted[name]
        if idle:
            self.topics = {name: t for name, t in self.topics.items() if name in self._wanted}

    def _maybe_rebootstrap(self) -> None:
        """Begin again with `bootstrap.servers` when no broker that is known can be reached, or for too long already."""
        if not self._rebootstrap_allowed or not self.version or any(node_id < 0 for node_id in self.nodes):
            return
        reachable = [
            node_id
            for node_id in self.nodes
            if (link := self._links.get((node_id, MAIN))) is None or link.connection is not None or not link.failures
        ]
        too_long = self._now() - self._last_success > max(self._rebootstrap_after, self._max_age)
        if not reachable or (too_long and self._failures):
            self._rebootstrap()

    def _rebootstrap(self) -> None:
        log.info("No known broker can be reached, beginning again with bootstrap.servers")
        self._bootstrap()
        self._drop_moved()
