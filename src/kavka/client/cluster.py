"""A client's view of the cluster: connections to the brokers, and metadata that a background task
refreshes.

    cluster = Cluster(config)
    await cluster.start()
    topic = await cluster.topic("orders", timeout=60)
    connection = await cluster.connection(topic.partitions[0].leader)
    response = await connection.send(request, timeout=30)

All methods must run on the event loop that ran `start`. Other threads may read `topics`, `nodes`,
`topic_errors` and `version`: these are replaced, never changed in place.
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
from kavka.client.config import ClientConfig
from kavka.client.connection import Connection
from kavka.client.connections import MAIN, Connections, cause_of
from kavka.client.errors import AuthenticationFailed, KafkaTimeout, error_of
from kavka.client.metadata import Node, TopicMetadata, error_code, topic_metadata, with_leader
from kavka.common.backoff import Backoff
from kavka.common.errors import ErrorCode, KafkaError
from kavka.protocol.messages.find_coordinator import FindCoordinatorRequest
from kavka.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from kavka.protocol.primitives import ZERO_UUID, TopMessage

logger = logging.getLogger(__name__)

GROUP, TRANSACTION, SHARE = 0, 1, 2
"""Key types of `find_coordinator`."""
# The first version of FindCoordinator with a list of keys.
MIN_KEY_LIST_VERSION = 4

# Errors of a topic that are not retriable.
_FATAL_TOPIC_ERRORS = frozenset({ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.TOPIC_AUTHORIZATION_FAILED})


class Cluster(Connections):
    """Owns the metadata of the topics in use, and the task that refreshes it."""

    def __init__(self, config: ClientConfig, *, allow_auto_create: bool = False, client_id: str | None = None) -> None:
        super().__init__(config, config["client.id"] if client_id is None else client_id)
        self.topics: dict[str, TopicMetadata] = {}
        self.topic_names: dict[UUID, str] = {}
        self.topic_errors: dict[str, ErrorCode] = {}
        """The error of each requested topic that is not in `topics`, from the last response."""
        self.cluster_id: str | None = None
        self.controller_id = -1
        self.version = 0
        """Increases with every change of the metadata."""
        self.allow_auto_create = allow_auto_create
        self.all_topics = False
        """Whether to request all topics of the cluster, for subscriptions by pattern, instead of
        only the topics of `add_topic`."""
        self.complete = False
        """Whether the last response had all topics of the cluster."""
        self._used_topics: dict[str, float] = {}
        self._new_topics: set[str] = set()
        self._refresh = asyncio.Event()
        self._waiters: set[asyncio.Future[None]] = set()
        self._listeners: list[Callable[[Cluster], None]] = []
        self._task: asyncio.Task[None] | None = None
        self._last_attempt = float("-inf")
        self._last_success = float("-inf")
        self._failures = 0
        self._incomplete_updates = 0
        self._rejection: AuthenticationFailed | None = None
        """Why no broker accepts this client; None after a success."""
        self._authentication_callbacks: list[Callable[[AuthenticationFailed], None]] = []
        self._max_age = config.seconds("metadata.max.age.ms")
        self._retry = Backoff(config["retry.backoff.ms"], config["retry.backoff.max.ms"])
        self._request_timeout = config.seconds("request.timeout.ms")
        self._max_topic_idle: float | None = (
            config.seconds("metadata.max.idle.ms") if "metadata.max.idle.ms" in config else None
        )
        self._rebootstrap_allowed = config["metadata.recovery.strategy"].lower() == "rebootstrap"
        self._rebootstrap_trigger = config.seconds("metadata.recovery.rebootstrap.trigger.ms")
        self._bootstrap()

    # --- start and stop

    async def start(self) -> None:
        """Start the task that refreshes metadata, without waiting for a broker. The running event
        loop becomes the cluster's event loop."""
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
        """Send a request to a broker (None for any broker) and return the response. Raises
        KafkaError and does not retry.

        `timeout` covers connecting and the request; the default is `request.timeout.ms`.
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
        """Return the open connection with the fewest requests in flight. If there is none, connect
        to one broker after another until a connection succeeds. Raises KafkaTimeout after `timeout`
        seconds."""
        self.check_usable()
        deadline = None if timeout is None else self._now() + timeout
        failure: KafkaError | None = None
        while True:
            open_connections = [
                link.connection
                for (_, channel), link in self._links.items()
                if link.connection is not None and channel == MAIN
            ]
            if open_connections:
                return min(open_connections, key=lambda connection: connection.in_flight)
            remaining = None if deadline is None else deadline - self._now()
            if remaining is not None and remaining <= 0:
                reason = cause_of(self.connect_error() or failure)
                raise KafkaTimeout(f"no broker could be reached within {timeout:g} s{reason}")
            try:
                return await self.connection(self._next_broker(), timeout=remaining)
            except KafkaError as error:
                if self.closed:
                    raise
                failure = error
                if isinstance(error, AuthenticationFailed) and self._has_only_failures():
                    raise
                self._maybe_rebootstrap()

    def _has_only_failures(self) -> bool:
        """Whether the last attempt to connect failed at every broker."""
        return all(self.is_unreachable(node_id) for node_id in self.nodes)

    def _next_broker(self) -> int:
        """Return the id of a broker that was not lost or, if there is none, of the broker whose
        backoff ends first."""
        if not self.nodes:
            self._bootstrap()

        def order(node_id: int) -> tuple[float, float]:
            link = self._links.get((node_id, MAIN))
            return (link.retry_at if link is not None and self.is_lost(node_id) else 0.0), random.random()

        return min(self.nodes, key=order)

    async def find_coordinator(self, key: str, key_type: int = GROUP, *, timeout: float | None = None) -> Node:
        """Return the coordinator of a group or a transactional id. Retries while no coordinator is
        available.

        Raises KafkaTimeout, or a KafkaError that is not retriable (authorization).
        """
        limit = self._request_timeout if timeout is None else timeout
        deadline = self._now() + limit
        failures = 0
        while True:
            try:
                return await self._request_coordinator(key, key_type, max(0.001, deadline - self._now()))
            except KafkaError as error:
                failures += 1
                wait = self._retry.delay(failures)
                if not error.retriable or self.closed:
                    raise
                if self._now() + wait >= deadline:
                    raise KafkaTimeout(f"no coordinator for {key} within {limit:g} s: {error}") from error
                await asyncio.sleep(wait)

    async def _request_coordinator(self, key: str, key_type: int, timeout: float) -> Node:
        connection = await self.any_connection(timeout=timeout)
        api_version = connection.version_of(FindCoordinatorRequest.API_KEY)
        request = FindCoordinatorRequest(key_type=key_type)
        if api_version >= MIN_KEY_LIST_VERSION:
            request.coordinator_keys = [key]
        else:
            request.key = key
        response = await connection.send(request, timeout=min(timeout, self._request_timeout), version=api_version)
        coordinator = response.coordinators[0] if api_version >= MIN_KEY_LIST_VERSION else response
        if coordinator.error_code:
            raise error_of(coordinator.error_code, coordinator.error_message)
        # Only Metadata responses have the rack.
        broker = self.nodes.get(coordinator.node_id)
        node = Node(coordinator.node_id, coordinator.host, coordinator.port, None if broker is None else broker.rack)
        self.add_node(node)
        return node

    # --- metadata: topics in use

    def add_topic(self, name: str) -> None:
        """Include this topic in the metadata. A new topic is requested immediately."""
        if name not in self._used_topics:
            self._new_topics.add(name)
            self._refresh.set()
        self._used_topics[name] = self._now()

    def set_topics(self, names: Iterable[str]) -> None:
        """Include exactly these topics, for example a consumer's subscription."""
        topics = set(names)
        for name in list(self._used_topics):
            if name not in topics:
                del self._used_topics[name]
        for name in topics:
            self.add_topic(name)

    def request_update(self) -> int:
        """Request new metadata soon. Returns the current version, for `wait_for_update`."""
        self._refresh.set()
        return self.version

    async def wait_for_update(self, version_seen: int, timeout: float | None = None) -> None:
        """Wait until `version` is higher than `version_seen`. Raises KafkaTimeout after `timeout`
        seconds, and AuthenticationFailed if no broker accepts the client."""
        try:
            async with asyncio.timeout(timeout):
                while self.version <= version_seen:
                    self.check_usable()
                    if self._rejection is not None:
                        raise self._rejection
                    waiter = self._loop.create_future()
                    self._waiters.add(waiter)
                    try:
                        await waiter
                    finally:
                        self._waiters.discard(waiter)
        except TimeoutError:
            raise KafkaTimeout(f"no metadata within {timeout:g} s{cause_of(self.connect_error())}") from None

    async def topic(self, name: str, timeout: float) -> TopicMetadata:
        """Return the metadata of the topic. Waits up to `timeout` seconds for it. Raises
        KafkaTimeout, or the error of the topic if it is not retriable."""
        metadata = self.topics.get(name)
        if metadata is not None:
            return metadata
        self.add_topic(name)
        deadline = self._now() + timeout
        while True:
            version = self.request_update()
            try:
                await self.wait_for_update(version, max(0.0, deadline - self._now()))
            except KafkaTimeout:
                reason = self.topic_errors.get(name)
                cause = f": {reason.name.lower().replace('_', ' ')}" if reason else cause_of(self.connect_error())
                raise KafkaTimeout(f"no metadata of topic {name} within {timeout:g} s{cause}") from None
            metadata = self.topics.get(name)
            if metadata is not None:
                return metadata
            reason = self.topic_errors.get(name)
            if reason in _FATAL_TOPIC_ERRORS:
                raise KafkaError(reason, f"{name}: {reason.name.lower().replace('_', ' ')}")

    async def leader(self, topic: str, partition: int, timeout: float) -> int:
        """Return the broker id of the partition's leader. Waits up to `timeout` seconds for it.
        Raises KafkaTimeout, or the error of the topic if it is not retriable."""
        deadline = self._now() + timeout
        while True:
            partitions = (await self.topic(topic, max(0.0, deadline - self._now()))).partitions
            if partition < len(partitions) and partitions[partition].leader in self.nodes:
                return partitions[partition].leader
            try:
                await self.wait_for_update(self.request_update(), max(0.0, deadline - self._now()))
            except KafkaTimeout:
                reason = cause_of(self.connect_error())
                raise KafkaTimeout(f"no leader of {topic}-{partition} within {timeout:g} s{reason}") from None

    def leader_of(self, topic: str, partition: int) -> int:
        """Return the broker id of the leader in the current metadata, or -1 if there is none."""
        metadata = self.topics.get(topic)
        if metadata is None or partition >= len(metadata.partitions):
            return -1
        return metadata.partitions[partition].leader

    def on_update(self, listener: Callable[[Cluster], None]) -> None:
        """Call `listener(cluster)` on the event loop after every change of the metadata."""
        self._listeners.append(listener)

    def on_authentication_failed(self, callback: Callable[[AuthenticationFailed], None]) -> None:
        """Call `callback(error)` on the event loop whenever a metadata request fails because the
        client cannot authenticate."""
        self._authentication_callbacks.append(callback)

    def add_node(self, node: Node) -> None:
        """Add a broker from a response other than Metadata."""
        if self.nodes.get(node.id) != node:
            self.nodes = {**self.nodes, node.id: node}
            self._drop_moved()

    def update_leader(self, topic: str, partition: int, leader: int, leader_epoch: int, nodes: Iterable[Node]) -> bool:
        """Apply the leader that a produce or fetch response returned with an error. Returns whether
        the metadata changed."""
        current = self.topics.get(topic)
        if current is None or leader < 0:
            return False
        for node in nodes:
            self.add_node(node)
        changed = with_leader(current, partition, leader, leader_epoch)
        if changed is current or leader not in self.nodes:
            return False
        self.topics = {**self.topics, topic: changed}
        self._publish()
        return True

    # --- metadata: the background task

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
                logger.log(level, "Cannot refresh the metadata: %s", error)
                if isinstance(error, AuthenticationFailed):
                    self._rejection = error
                    self._wake_waiters()
                    for callback in self._authentication_callbacks:
                        callback(error)
                self._maybe_rebootstrap()
                self._refresh.set()
            except Exception:
                self._failures += 1
                logger.exception("Cannot process a metadata response")
                self._refresh.set()

    async def _wait_for_work(self) -> None:
        """Wait up to 10 s for a requested or due refresh, and then for the end of the backoff."""
        age = self._max_age - (self._now() - self._last_success)
        if not self._refresh.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(max(age, 0.0), 10.0)):
                    await self._refresh.wait()
        # Back off if the last refresh was recent, unless this refresh is for new topics.
        while self._failures or not (self._new_topics or (self.all_topics and not self.complete)):
            wait = self._last_attempt + self._retry.delay(max(1, self._failures)) - self._now()
            if wait <= 0:
                return
            await asyncio.sleep(min(wait, 0.05))

    async def _update(self) -> None:
        self._refresh.clear()
        self._last_attempt = self._now()
        # Request all topics in use, or only the new topics if the metadata of the others is fresh.
        is_full = (
            self.all_topics
            or not self._new_topics
            or self._now() - self._last_success >= self._max_age
            or not self.version
        )
        new_topics, self._new_topics = self._new_topics, set()
        names = (
            None
            if self.all_topics
            else sorted(self._used_topics)
            if is_full
            else sorted(new_topics & self._used_topics.keys())
        )
        try:
            connection = await self.any_connection(timeout=self._request_timeout)
            api_version = connection.version_of(MetadataRequest.API_KEY)
            response = await connection.send(
                self._metadata_request(names, api_version), timeout=self._request_timeout, version=api_version
            )
        except BaseException:
            self._new_topics |= new_topics
            raise
        if response.error_code == ErrorCode.REBOOTSTRAP_REQUIRED:
            self._rebootstrap()
            raise error_of(response.error_code)
        if not response.brokers:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"{connection.name} returned no brokers")
        self._failures = 0
        self._rejection = None
        self._last_success = self._now()
        self._apply(response, names)

    def _metadata_request(self, names: list[str] | None, api_version: int) -> MetadataRequest:
        request = MetadataRequest(allow_auto_topic_creation=self.allow_auto_create or api_version < 4)
        if names is None:
            # Version 0 requests all topics with an empty list, later versions with null.
            request.topics = [] if api_version == 0 else None
        else:
            request.topics = [MetadataRequestTopic(name=name) for name in names]
        return request

    def _apply(self, response: MetadataResponse, names: list[str] | None) -> None:
        self.nodes = {b.node_id: Node(b.node_id, b.host, b.port, b.rack) for b in response.brokers}
        self.cluster_id = response.cluster_id
        self.controller_id = response.controller_id
        topics: dict[str, TopicMetadata] = {}
        errors: dict[str, ErrorCode] = {}
        for topic in response.topics:
            name = topic.name or ""
            code = error_code(topic.error_code)
            if code in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE) and topic.partitions:
                topics[name] = topic_metadata(topic, self.topics.get(name))
            else:
                errors[name] = code
        # A response for some topics does not change the other topics.
        if names is not None:
            other_topics = self._used_topics.keys() - set(names)
            topics = {name: t for name, t in self.topics.items() if name in other_topics} | topics
            errors = {name: code for name, code in self.topic_errors.items() if name in other_topics} | errors
        self.complete = names is None
        self.topics = topics
        self.topic_errors = errors
        self.topic_names = {t.topic_id: name for name, t in topics.items() if t.topic_id != ZERO_UUID}
        failed_leaders = {-1, *filter(self.is_lost, self.nodes)}
        if set(errors.values()) - _FATAL_TOPIC_ERRORS or any(
            p.leader in failed_leaders for t in topics.values() for p in t.partitions
        ):
            # A topic or leader is missing, or the leader has failed: a new one may appear soon, so
            # retry with backoff.
            self._incomplete_updates += 1
            self._loop.call_later(self._retry.delay(self._incomplete_updates), self._refresh.set)
        else:
            self._incomplete_updates = 0
        self._drop_moved()
        self._publish()

    def _publish(self) -> None:
        """Increase the version, call the listeners, and wake the waiters."""
        self.version += 1
        for listener in self._listeners:
            try:
                listener(self)
            except Exception:
                logger.exception("A metadata listener failed")
        self._wake_waiters()

    def _wake_waiters(self) -> None:
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _forget_idle_topics(self) -> None:
        if self._max_topic_idle is None or self.all_topics:
            return
        used_before = self._now() - self._max_topic_idle
        idle = [name for name, used in self._used_topics.items() if used < used_before]
        for name in idle:
            del self._used_topics[name]
        if idle:
            self.topics = {name: t for name, t in self.topics.items() if name in self._used_topics}

    def _maybe_rebootstrap(self) -> None:
        """Return to `bootstrap.servers` if no broker can be reached, or if no refresh has succeeded
        for metadata.recovery.rebootstrap.trigger.ms."""
        if not self._rebootstrap_allowed or not self.version or any(node_id < 0 for node_id in self.nodes):
            return
        reachable = [
            node_id
            for node_id in self.nodes
            if (link := self._links.get((node_id, MAIN))) is None or link.connection is not None or not link.failures
        ]
        is_overdue = self._now() - self._last_success > max(self._rebootstrap_trigger, self._max_age)
        if not reachable or (is_overdue and self._failures):
            self._rebootstrap()

    def _rebootstrap(self) -> None:
        logger.info("No broker can be reached; reconnecting to bootstrap.servers")
        self._bootstrap()
        self._drop_moved()
