"""How the admin client asks: whom, how often, and what becomes of an answer in which some things failed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from time import monotonic
from typing import Any, TypeVar

from kavka.client.backoff import Backoff
from kavka.client.cluster import GROUP, Cluster
from kavka.client.config import ClientConfig
from kavka.client.connections import because
from kavka.client.errors import ClientClosed, KafkaTimeout, error_of
from kavka.client.metadata import Node
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from kavka.protocol.primitives import TopMessage

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
T = TypeVar("T")

# Errors that another attempt, perhaps with another broker, cures.
PASSING = frozenset(
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

FIRST_WITH_OPERATIONS = 8

# What one attempt gives: results and errors by key. A key in neither is asked for again.
Outcome = tuple[Mapping[K, V], Mapping[K, KafkaError]]


def by_partition(topics: Iterable[Any], value: Callable[[Any], V]) -> Outcome[TopicPartition, V]:
    """Of an answer's topics with their partitions: `value(partition)` of each, or its error."""
    done: dict[TopicPartition, V] = {}
    errors: dict[TopicPartition, KafkaError] = {}
    for topic in topics:
        for p in topic.partitions:
            tp = TopicPartition(topic.name, p.partition_index)
            if p.error_code:
                errors[tp] = error_of(p.error_code, getattr(p, "error_message", None))
            else:
                done[tp] = value(p)
    return done, errors


class AdminError(KafkaError):
    """Some of what was asked for failed. `errors` has those by key, `results` the rest; the code is the first
    error's."""

    def __init__(self, errors: Mapping[Any, KafkaError], results: Mapping[Any, Any]) -> None:
        self.errors = dict(errors)
        self.results = dict(results)
        key, first = next(iter(self.errors.items()))
        more = f" (and {len(self.errors) - 1} more)" if len(self.errors) > 1 else ""
        super().__init__(first.code, f"{_shown(key)}: {first.message}{more}")


def _shown(key: Any) -> str:
    if isinstance(key, TopicPartition):
        return str(key)
    return str(getattr(key, "name", key))


class AdminBase:
    """One cluster, no threads: the loop that `start` ran on."""

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
        """Close the connections. What is under way fails."""
        await self.cluster.close()

    def metrics(self) -> dict[str, float]:
        connections = self.cluster.connections()
        return {
            "connection-count": len(connections),
            "connection-creation-total": self.cluster.connections_opened,
            "request-total": sum(c.requests for c in connections),
            "requests-in-flight": sum(c.in_flight for c in connections),
            "outgoing-byte-total": sum(c.bytes_out for c in connections),
            "incoming-byte-total": sum(c.bytes_in for c in connections),
        }

    # --- attempts

    async def _each(
        self,
        keys: Iterable[K],
        attempt: Callable[[list[K]], Awaitable[Outcome[K, V]]],
        timeout: float | None,
        also_passing: frozenset[ErrorCode] = frozenset(),
    ) -> dict[K, V]:
        """Call `attempt` with what is left of `keys` until nothing is, or time or attempts are up. Raises AdminError if
        anything failed in the end."""
        left = list(dict.fromkeys(keys))
        results: dict[K, V] = {}
        errors: dict[K, KafkaError] = {}
        limit = self._timeout if timeout is None else timeout
        deadline = monotonic() + limit
        failures = 0
        while left:
            passing: dict[K, KafkaError] = {}
            try:
                async with asyncio.timeout_at(asyncio.get_running_loop().time() + max(0.0, deadline - monotonic())):
                    done, failed = await attempt(left)
            except TimeoutError as error:
                reason = because(self.cluster.connect_error())
                late = error if isinstance(error, KafkaError) else KafkaTimeout(f"no answer within {limit:g} s{reason}")
                done, failed = {}, dict.fromkeys(left, late)
            except KafkaError as error:
                done, failed = {}, dict.fromkeys(left, error)
            results.update(done)
            for key, why in failed.items():
                may_pass = why.code in PASSING or why.code in also_passing or isinstance(why, KafkaTimeout)
                if may_pass and failures < self._retries and not isinstance(why, ClientClosed):
                    passing[key] = why
                else:
                    errors[key] = why
            left = [key for key in left if key not in results and key not in errors]
            if not left:
                break
            failures += 1
            wait = self._backoff.delay(failures)
            if monotonic() + wait >= deadline:
                for key in left:
                    said = f": {passing[key].message}" if key in passing else ""
                    errors[key] = KafkaTimeout(f"not done within {limit:g} s{said}")
                break
            self.cluster.request_update()
            await asyncio.sleep(wait)
        if errors:
            raise AdminError(errors, results)
        return results

    async def _once(self, what: str, attempt: Callable[[], Awaitable[V]], timeout: float | None) -> V:
        """The same for something that has no parts; raises its error as it is."""

        async def one(keys: list[str]) -> Outcome[str, V]:
            return {what: await attempt()}, {}

        try:
            return (await self._each([what], one, timeout))[what]
        except AdminError as error:
            raise error.errors[what] from None

    async def _each_broker(
        self,
        brokers: Iterable[int] | None,
        attempt: Callable[[list[int]], Awaitable[Outcome[int, V]]],
        timeout: float | None,
    ) -> dict[int, V]:
        """The same for these brokers, or for all, where learning who they are is part of the time."""
        limit = self._timeout if timeout is None else timeout
        deadline = monotonic() + limit
        if brokers is None:
            brokers = await self._once("the brokers", self._brokers, limit)
        return await self._each(brokers, attempt, max(0.0, deadline - monotonic()))

    # --- whom to ask

    async def _ask(
        self, node_id: int | None, request: TopMessage, max_version: int | None = None, timeout: float | None = None
    ) -> Any:
        return await self.cluster.request(
            node_id, request, timeout=self._request_timeout if timeout is None else timeout, max_version=max_version
        )

    async def _controller(self) -> int:
        if self.cluster.version == 0:
            await self.cluster.wait_for_update(self.cluster.request_update(), self._request_timeout)
        found = self.cluster.controller_id
        if found not in self.cluster.nodes:
            self.cluster.request_update()
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "the cluster has no controller now")
        return found

    async def _brokers(self) -> list[int]:
        """The ids of all brokers."""
        if self.cluster.version == 0 or any(node_id < 0 for node_id in self.cluster.nodes):
            await self.cluster.wait_for_update(self.cluster.request_update(), self._request_timeout)
        return sorted(self.cluster.nodes)

    async def _metadata(
        self, topics: Iterable[MetadataRequestTopic] | None, include_operations: bool = False
    ) -> MetadataResponse:
        """Metadata as it is now, from any broker; never creates a topic."""
        connection = await self.cluster.any_connection(timeout=self._request_timeout)
        version = connection.version_of(MetadataRequest.API_KEY)
        request = MetadataRequest(allow_auto_topic_creation=version < 4)
        if include_operations and version >= FIRST_WITH_OPERATIONS:
            request.include_topic_authorized_operations = True
        if topics is None:
            request.topics = [] if version == 0 else None
        else:
            request.topics = list(topics)
        response: MetadataResponse = await connection.send(request, timeout=self._request_timeout, version=version)
        for broker in response.brokers:
            self.cluster.add_node(Node(broker.node_id, broker.host, broker.port, broker.rack))
        return response

    async def _by_leader(
        self, partitions: Sequence[TopicPartition]
    ) -> tuple[dict[int, list[TopicPartition]], dict[TopicPartition, KafkaError]]:
        """Partitions by the broker that leads them, and those without a leader with the reason."""
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
                errors.setdefault(tp, error_of(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no such partition"))
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
        ask: Callable[[int, list[TopicPartition]], Awaitable[Outcome[TopicPartition, V]]],
        timeout: float | None,
    ) -> dict[TopicPartition, V]:
        """`ask(leader, partitions)` for each broker that leads some of them, all at the same time."""

        async def attempt(left: list[TopicPartition]) -> Outcome[TopicPartition, V]:
            grouped, errors = await self._by_leader(left)
            return await gather(grouped, ask, errors)

        return await self._each(partitions, attempt, timeout)

    async def _each_coordinator(
        self,
        keys: Iterable[str],
        key_type: int,
        ask: Callable[[Node, list[str]], Awaitable[Outcome[str, V]]],
        timeout: float | None,
    ) -> dict[str, V]:
        """`ask(coordinator, keys)` for each broker that coordinates some of them."""

        async def attempt(left: list[str]) -> Outcome[str, V]:
            found = await asyncio.gather(*(self._coordinator(key, key_type) for key in left), return_exceptions=True)
            grouped: dict[Node, list[str]] = {}
            errors: dict[str, KafkaError] = {}
            for key, node in zip(left, found, strict=True):
                if isinstance(node, KafkaError):
                    errors[key] = node
                elif isinstance(node, BaseException):
                    raise node
                else:
                    grouped.setdefault(node, []).append(key)
            return await gather(grouped, ask, errors)

        return await self._each(keys, attempt, timeout)


async def gather(
    grouped: Mapping[T, list[K]],
    ask: Callable[[T, list[K]], Awaitable[Outcome[K, V]]],
    errors: Mapping[K, KafkaError] | None = None,
) -> Outcome[K, V]:
    """All groups at once; one that fails as a whole fails for each of its keys."""

    async def one(who: T, keys: list[K]) -> Outcome[K, V]:
        try:
            return await ask(who, keys)
        except KafkaError as error:
            return {}, dict.fromkeys(keys, error)

    results: dict[K, V] = {}
    failed: dict[K, KafkaError] = dict(errors or {})
    for done, wrong in await asyncio.gather(*(one(who, keys) for who, keys in grouped.items())):
        results.update(done)
        failed.update(wrong)
    return results, failed


def listed(one_or_many: Any, kinds: type | tuple[type, ...]) -> list[Any]:
    """Many values, or a single one in place of a list of it."""
    return [one_or_many] if isinstance(one_or_many, kinds) else list(one_or_many)


def milliseconds(seconds: float) -> int:
    return max(0, min(int(seconds * 1000), 0x7FFFFFFF))
