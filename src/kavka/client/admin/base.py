"""The base class of the admin client: chooses the broker of a request, retries, and reports partial
failures."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from time import monotonic
from typing import Any, TypeVar

from kavka.client.cluster import GROUP, Cluster
from kavka.client.config import ClientConfig
from kavka.client.connections import cause_of
from kavka.client.errors import ClientClosed, KafkaTimeout, error_of
from kavka.client.metadata import Node
from kavka.common.backoff import Backoff
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from kavka.protocol.primitives import TopMessage

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
T = TypeVar("T")

# Errors after which a request is retried, perhaps with another broker.
RETRIABLE = frozenset(
    {
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    }
)

MIN_AUTHORIZED_OPERATIONS_VERSION = 8

# Results and errors of one attempt, by key. A key in neither is retried.
Outcome = tuple[Mapping[K, V], Mapping[K, KafkaError]]


def by_partition(topics: Iterable[Any], value: Callable[[Any], V]) -> Outcome[TopicPartition, V]:
    """Return `value(partition)`, or the error, of each partition in the topics of a response."""
    results: dict[TopicPartition, V] = {}
    errors: dict[TopicPartition, KafkaError] = {}
    for topic in topics:
        for partition in topic.partitions:
            tp = TopicPartition(topic.name, partition.partition_index)
            if partition.error_code:
                errors[tp] = error_of(partition.error_code, getattr(partition, "error_message", None))
            else:
                results[tp] = value(partition)
    return results, errors


def by_key(items: Sequence[Any], key: Callable[[Any], K], value: Callable[[Any], V]) -> Outcome[K, V]:
    """Return `value(item)`, or the error, of each item of a response, by `key(item)`."""
    results = {key(item): value(item) for item in items if not item.error_code}
    failed = [item for item in items if item.error_code]
    return results, {key(item): error_of(item.error_code, getattr(item, "error_message", None)) for item in failed}


class AdminError(KafkaError):
    """Some items of a call failed. `errors` has the errors of these items by key, and `results` has
    the results of the other items. The error code is the code of the first error."""

    def __init__(self, errors: Mapping[Any, KafkaError], results: Mapping[Any, Any]) -> None:
        self.errors = dict(errors)
        self.results = dict(results)
        key, first = next(iter(self.errors.items()))
        suffix = f" (and {len(self.errors) - 1} more)" if len(self.errors) > 1 else ""
        super().__init__(first.code, f"{_describe_key(key)}: {first.message}{suffix}")


def _describe_key(key: Any) -> str:
    if isinstance(key, TopicPartition):
        return str(key)
    return str(getattr(key, "name", key))


class AdminBase:
    """Owns the connections to one cluster. Only the event loop that ran `start` may call it."""

    def __init__(self, config: ClientConfig) -> None:
        self.config = config
        self.cluster = Cluster(config)
        self._timeout = config.seconds("default.api.timeout.ms")
        self._request_timeout = config.seconds("request.timeout.ms")
        self._retries: int = config["retries"]
        self._backoff = Backoff(config["retry.backoff.ms"], config["retry.backoff.max.ms"])

    async def start(self) -> None:
        await self.cluster.start()

    async def close(self) -> None:
        """Close the connections. Calls in progress fail."""
        await self.cluster.close()

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the connections, by Kafka's names."""
        connections = self.cluster.connections()
        return {
            "connection-count": len(connections),
            "connection-creation-total": self.cluster.connections_opened,
            "request-total": sum(c.requests for c in connections),
            "requests-in-flight": sum(c.in_flight for c in connections),
            "outgoing-byte-total": sum(c.bytes_out for c in connections),
            "incoming-byte-total": sum(c.bytes_in for c in connections),
        }

    def connect_error(self) -> KafkaError | None:
        """Return the last error of a failed attempt to connect, or None while any connection is
        open."""
        return self.cluster.connect_error()

    # --- attempts

    async def _each(
        self,
        keys: Iterable[K],
        attempt: Callable[[list[K]], Awaitable[Outcome[K, V]]],
        timeout: float | None,
        also_retriable: frozenset[ErrorCode] = frozenset(),
    ) -> dict[K, V]:
        """Call `attempt` with the remaining keys until no key remains, or until the timeout or the
        maximum number of retries is reached. Returns the results by key. Raises AdminError if a key
        failed."""
        remaining = list(dict.fromkeys(keys))
        results: dict[K, V] = {}
        errors: dict[K, KafkaError] = {}
        limit = self._timeout if timeout is None else timeout
        deadline = monotonic() + limit
        failures = 0
        while remaining:
            retriable: dict[K, KafkaError] = {}
            try:
                async with asyncio.timeout_at(asyncio.get_running_loop().time() + max(0.0, deadline - monotonic())):
                    done, failed = await attempt(remaining)
            except TimeoutError as error:
                reason = cause_of(self.cluster.connect_error())
                timeout_error = (
                    error if isinstance(error, KafkaError) else KafkaTimeout(f"no response within {limit:g} s{reason}")
                )
                done, failed = {}, dict.fromkeys(remaining, timeout_error)
            except KafkaError as error:
                done, failed = {}, dict.fromkeys(remaining, error)
            results.update(done)
            for key, failure in failed.items():
                is_retriable = (
                    failure.code in RETRIABLE or failure.code in also_retriable or isinstance(failure, KafkaTimeout)
                )
                if is_retriable and failures < self._retries and not isinstance(failure, ClientClosed):
                    retriable[key] = failure
                else:
                    errors[key] = failure
            remaining = [key for key in remaining if key not in results and key not in errors]
            if not remaining:
                break
            failures += 1
            wait = self._backoff.delay(failures)
            if monotonic() + wait >= deadline:
                for key in remaining:
                    cause = f": {retriable[key].message}" if key in retriable else ""
                    errors[key] = KafkaTimeout(f"timed out after {limit:g} s{cause}")
                break
            self.cluster.request_update()
            await asyncio.sleep(wait)
        if errors:
            raise AdminError(errors, results)
        return results

    async def _once(self, operation: str, attempt: Callable[[], Awaitable[V]], timeout: float | None) -> V:
        """Like `_each`, for a call without items. Returns the result, or raises the error itself
        instead of AdminError."""

        async def attempt_single(keys: list[str]) -> Outcome[str, V]:
            return {operation: await attempt()}, {}

        try:
            return (await self._each([operation], attempt_single, timeout))[operation]
        except AdminError as error:
            raise error.errors[operation] from None

    async def _each_broker(
        self,
        brokers: Iterable[int] | None,
        attempt: Callable[[list[int]], Awaitable[Outcome[int, V]]],
        timeout: float | None,
    ) -> dict[int, V]:
        """Like `_each`, for these brokers, or for all brokers if `brokers` is None. The timeout
        includes the lookup of the brokers."""
        limit = self._timeout if timeout is None else timeout
        deadline = monotonic() + limit
        if brokers is None:
            brokers = await self._once("the brokers", self._brokers, limit)
        return await self._each(brokers, attempt, max(0.0, deadline - monotonic()))

    # --- brokers, leaders and coordinators

    async def _request(
        self, node_id: int | None, request: TopMessage, max_version: int | None = None, timeout: float | None = None
    ) -> Any:
        return await self.cluster.request(
            node_id, request, timeout=self._request_timeout if timeout is None else timeout, max_version=max_version
        )

    async def _controller(self) -> int:
        if self.cluster.version == 0:
            await self.cluster.wait_for_update(self.cluster.request_update(), self._request_timeout)
        controller = self.cluster.controller_id
        if controller not in self.cluster.nodes:
            self.cluster.request_update()
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "the cluster currently has no controller")
        return controller

    async def _brokers(self) -> list[int]:
        """Return the ids of all brokers."""
        if self.cluster.version == 0 or any(node_id < 0 for node_id in self.cluster.nodes):
            await self.cluster.wait_for_update(self.cluster.request_update(), self._request_timeout)
        return sorted(self.cluster.nodes)

    async def _metadata(
        self, topics: Iterable[MetadataRequestTopic] | None, include_operations: bool = False
    ) -> MetadataResponse:
        """Request metadata from any broker. Creates no topics, except with version 3 of the request
        or older."""
        connection = await self.cluster.any_connection(timeout=self._request_timeout)
        api_version = connection.version_of(MetadataRequest.API_KEY)
        request = MetadataRequest(allow_auto_topic_creation=api_version < 4)
        if include_operations and api_version >= MIN_AUTHORIZED_OPERATIONS_VERSION:
            request.include_topic_authorized_operations = True
        if topics is None:
            request.topics = [] if api_version == 0 else None
        else:
            request.topics = list(topics)
        response: MetadataResponse = await connection.send(request, timeout=self._request_timeout, version=api_version)
        for broker in response.brokers:
            self.cluster.add_node(Node(broker.node_id, broker.host, broker.port, broker.rack))
        return response

    async def _by_leader(
        self, partitions: Sequence[TopicPartition]
    ) -> tuple[dict[int, list[TopicPartition]], dict[TopicPartition, KafkaError]]:
        """Return the partitions by leader, and an error for each partition without a leader."""
        names = sorted({tp.topic for tp in partitions})
        response = await self._metadata(MetadataRequestTopic(name=name) for name in names)
        leaders: dict[TopicPartition, int] = {}
        errors: dict[TopicPartition, KafkaError] = {}
        for topic in response.topics:
            if topic.error_code:
                errors.update({tp: error_of(topic.error_code) for tp in partitions if tp.topic == topic.name})
            for partition in topic.partitions:
                leaders[TopicPartition(topic.name or "", partition.partition_index)] = partition.leader_id
        grouped: dict[int, list[TopicPartition]] = {}
        for tp in partitions:
            leader = leaders.get(tp)
            if leader is None:
                errors.setdefault(tp, error_of(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the partition does not exist"))
            elif leader < 0:
                errors[tp] = error_of(ErrorCode.LEADER_NOT_AVAILABLE)
            else:
                grouped.setdefault(leader, []).append(tp)
        return grouped, errors

    async def _coordinator(self, key: str, key_type: int = GROUP) -> Node:
        return await self.cluster.find_coordinator(key, key_type, timeout=self._request_timeout)

    async def _each_leader(
        self,
        partitions: Iterable[TopicPartition],
        send: Callable[[int, list[TopicPartition]], Awaitable[Outcome[TopicPartition, V]]],
        timeout: float | None,
    ) -> dict[TopicPartition, V]:
        """Call `send(leader, partitions)` for all leaders concurrently."""

        async def attempt(remaining: list[TopicPartition]) -> Outcome[TopicPartition, V]:
            grouped, errors = await self._by_leader(remaining)
            return await gather(grouped, send, errors)

        return await self._each(partitions, attempt, timeout)

    async def _each_coordinator(
        self,
        keys: Iterable[str],
        key_type: int,
        send: Callable[[Node, list[str]], Awaitable[Outcome[str, V]]],
        timeout: float | None,
    ) -> dict[str, V]:
        """Call `send(coordinator, keys)` for all coordinators concurrently."""

        async def attempt(remaining: list[str]) -> Outcome[str, V]:
            coordinators = await asyncio.gather(
                *(self._coordinator(key, key_type) for key in remaining), return_exceptions=True
            )
            grouped: dict[Node, list[str]] = {}
            errors: dict[str, KafkaError] = {}
            for key, node in zip(remaining, coordinators, strict=True):
                if isinstance(node, KafkaError):
                    errors[key] = node
                elif isinstance(node, BaseException):
                    raise node
                else:
                    grouped.setdefault(node, []).append(key)
            return await gather(grouped, send, errors)

        return await self._each(keys, attempt, timeout)


async def gather(
    grouped: Mapping[T, list[K]],
    send: Callable[[T, list[K]], Awaitable[Outcome[K, V]]],
    errors: Mapping[K, KafkaError] | None = None,
) -> Outcome[K, V]:
    """Call `send(target, keys)` for all targets concurrently, and merge the outcomes. If a call
    fails, all its keys fail."""

    async def send_group(target: T, keys: list[K]) -> Outcome[K, V]:
        try:
            return await send(target, keys)
        except KafkaError as error:
            return {}, dict.fromkeys(keys, error)

    results: dict[K, V] = {}
    failed: dict[K, KafkaError] = dict(errors or {})
    for done, group_errors in await asyncio.gather(*(send_group(target, keys) for target, keys in grouped.items())):
        results.update(done)
        failed.update(group_errors)
    return results, failed


def as_list(values: Any, types: type | tuple[type, ...]) -> list[Any]:
    """Return the values as a list. A single value of one of `types` becomes a list with one
    item."""
    return [values] if isinstance(values, types) else list(values)


def milliseconds(seconds: float) -> int:
    return max(0, min(int(seconds * 1000), 0x7FFFFFFF))
