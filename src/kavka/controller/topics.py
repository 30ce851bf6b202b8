"""Creation, growth and deletion of topics on request: validates, then writes to the tree.

The controller sees the change in the tree like any other and executes it. The calls here wait until
this broker's metadata shows it, or until they time out.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from kavka.common.config import ConfigError
from kavka.common.errors import ErrorCode, KafkaError
from kavka.controller import topic_names
from kavka.controller.assignment import assign
from kavka.controller.controller import Controller
from kavka.metadata import paths
from kavka.metadata.dynamic_config import DynamicConfig
from kavka.metadata.paths import ReplicaAssignment, TopicNode
from kavka.metadata.store import (
    BadVersion,
    Check,
    Create,
    MetadataStore,
    NodeExists,
    NoNode,
    Op,
    SetData,
    StoreUnavailable,
)
from kavka.replication.metadata_cache import MetadataCache

USE_DEFAULT = -1
# More in one request would keep the controller, and on a single node the whole broker, busy for
# minutes.
MAX_NEW_PARTITIONS = 10_000
# A request may name tens of thousands of topics: yield to the loop after this many.
TOPICS_PER_TURN = 200


@dataclass(slots=True)
class NewTopic:
    """A topic to create: either counts (-1 for the broker's default), or the replicas of each
    partition."""

    name: str
    partitions: int = USE_DEFAULT
    replication_factor: int = USE_DEFAULT
    assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)
    configs: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(slots=True)
class TopicOutcome:
    """The result for one topic. With `error`, nothing was changed."""

    name: str
    error: KafkaError | None = None
    topic_id: UUID | None = None
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class MorePartitions:
    """A topic to grow to `count` partitions, with the replicas of the new ones if `assignments` is
    set."""

    name: str
    count: int
    assignments: Sequence[Sequence[int]] | None = None


@dataclass(eq=False, repr=False)
class Topics:
    _controller: Controller
    _store: MetadataStore
    _configs: DynamicConfig
    _cache: MetadataCache

    # ---- create

    async def create_topics(
        self, topics: Sequence[NewTopic], *, timeout_ms: int, validate_only: bool = False
    ) -> list[TopicOutcome]:
        """One outcome for each topic, in order. Topics with the same name are all refused."""
        self._check_active()
        names = Counter(topic.name for topic in topics)
        outcomes: list[TopicOutcome] = []
        for topic in topics:
            if len(outcomes) % TOPICS_PER_TURN == TOPICS_PER_TURN - 1:
                await asyncio.sleep(0)
            if names[topic.name] > 1:
                error = KafkaError(ErrorCode.INVALID_REQUEST, f"Topic '{topic.name}' is in the request more than once.")
                outcomes.append(TopicOutcome(topic.name, error))
            else:
                outcomes.append(await self._create(topic, validate_only))
        if not validate_only:
            await self._wait(outcomes, timeout_ms, self._is_led)
        return outcomes

    async def _create(self, topic: NewTopic, validate_only: bool) -> TopicOutcome:
        try:
            assignment, configs = self._checked(topic)
            topic_id = None if validate_only else await self._write_topic(topic.name, assignment, configs)
        except KafkaError as error:
            return TopicOutcome(topic.name, error)
        except StoreUnavailable as error:
            return TopicOutcome(topic.name, self._unavailable(error))
        return TopicOutcome(topic.name, None, topic_id, len(assignment), len(assignment[0]), configs)

    def _checked(self, topic: NewTopic) -> tuple[dict[int, tuple[int, ...]], dict[str, str]]:
        """The replicas of each partition and the settings of the new topic; raises KafkaError if it
        is invalid."""
        name, context = topic.name, self._controller.context
        if name == topic_names.CLUSTER_METADATA_TOPIC:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"'{name}' is reserved.")
        if name in context.topics:
            going = name in context.topics_to_delete
            raise KafkaError(
                ErrorCode.TOPIC_ALREADY_EXISTS,
                f"Topic '{name}' is still being deleted." if going else f"Topic '{name}' exists already.",
            )
        topic_names.check(name)
        topic_names.check_collision(name, context.topics)
        configs = {config: value for config, value in topic.configs.items() if value is not None}
        if len(configs) < len(topic.configs):
            without = ", ".join(config for config, value in topic.configs.items() if value is None)
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"There is no value for {without}.")
        if topic.assignments:
            if topic.partitions != USE_DEFAULT or topic.replication_factor != USE_DEFAULT:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    "Give either the number of partitions and the replication factor, or the replicas of each "
                    "partition, not both.",
                )
            assignment = self._checked_assignment(topic.assignments)
        else:
            values = self._configs.broker.values
            partitions = values["num.partitions"] if topic.partitions == USE_DEFAULT else topic.partitions
            factor = topic.replication_factor
            if factor == USE_DEFAULT:
                factor = values["default.replication.factor"]
            _check_not_too_many(partitions)
            assignment = assign(context.racks(), partitions, factor)
        try:
            self._configs.broker.check_topic(configs)
        except ConfigError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from error
        return assignment, configs

    def _checked_assignment(self, assignments: Mapping[int, Sequence[int]]) -> dict[int, tuple[int, ...]]:
        if sorted(assignments) != list(range(len(assignments))):
            raise _bad_assignment("The partitions must be numbered from 0 on, without a gap.")
        factor = len(assignments[0])
        for partition in range(len(assignments)):
            self._check_replicas(partition, assignments[partition], factor)
        return {partition: tuple(assignments[partition]) for partition in range(len(assignments))}

    def _check_replicas(self, partition: int, replicas: Sequence[int], factor: int) -> None:
        if not replicas:
            raise _bad_assignment(f"Partition {partition} has no replicas.")
        if len(set(replicas)) != len(replicas):
            raise _bad_assignment(f"Partition {partition} names a broker twice.")
        if len(replicas) != factor:
            raise _bad_assignment(
                f"All partitions must have as many replicas: partition {partition} has {len(replicas)}, not {factor}."
            )
        unknown = [broker for broker in replicas if broker not in self._controller.context.brokers]
        if unknown:
            raise _bad_assignment(f"Partition {partition} names broker {unknown[0]}, which does not exist.")

    async def _write_topic(
        self, name: str, assignment: Mapping[int, tuple[int, ...]], configs: Mapping[str, str]
    ) -> UUID:
        self._configs.forget_topic(name)
        topic_id = paths.random_id()
        node = TopicNode(topic_id, {p: ReplicaAssignment(replicas) for p, replicas in assignment.items()})
        config_path, config_data = paths.topic_config(name), paths.encode_config(configs)
        while True:
            # Settings of an earlier topic with this name may exist, or be written or removed
            # concurrently.
            left_over = await self._store.exists(config_path) is not None
            config: Op = SetData(config_path, config_data) if left_over else Create(config_path, config_data)
            try:
                await self._store.multi([self._fence(), config, Create(paths.topic(name), node.encode())])
                return topic_id
            except (NodeExists, NoNode) as error:
                if error.path == paths.topic(name):
                    raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' exists already.") from error
                if error.path != config_path:
                    raise _not_controller() from error
            except BadVersion as error:
                raise _not_controller() from error

    def _is_led(self, outcome: TopicOutcome) -> bool:
        return self._cache.has_leaders(outcome.name, outcome.partitions)

    # ---- delete

    async def delete_topics(self, names: Sequence[str], *, timeout_ms: int) -> list[TopicOutcome]:
        self._check_active()
        outcomes: list[TopicOutcome] = []
        for name in names:
            outcomes.append(await self._mark(name))
            if not len(outcomes) % TOPICS_PER_TURN:
                await asyncio.sleep(0)
        await self._wait(outcomes, timeout_ms, lambda outcome: self._is_deleted(outcome.name))
        return outcomes

    async def _mark(self, name: str) -> TopicOutcome:
        topic = self._controller.context.topics.get(name)
        if topic is None:
            error = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic '{name}'.")
            return TopicOutcome(name, error)
        try:
            await self._store.create(paths.delete_topic(name))
        except NodeExists:
            # It is already marked; both callers wait for the deletion.
            pass
        except StoreUnavailable as error:
            return TopicOutcome(name, self._unavailable(error))
        return TopicOutcome(name, None, topic.topic_id)

    def _is_deleted(self, name: str) -> bool:
        """Clients no longer see the topic, and its nodes are removed unless that waits for a
        broker."""
        context = self._controller.context
        is_blocked = name in context.topics_not_deletable_now
        return name not in self._cache.topics and (name not in context.topics or is_blocked)

    # ---- grow

    async def create_partitions(
        self, topics: Sequence[MorePartitions], *, timeout_ms: int, validate_only: bool = False
    ) -> list[TopicOutcome]:
        self._check_active()
        names = Counter(topic.name for topic in topics)
        outcomes = []
        for topic in topics:
            try:
                if names[topic.name] > 1:
                    raise KafkaError(
                        ErrorCode.INVALID_REQUEST, f"Topic '{topic.name}' is in the request more than once."
                    )
                await self._add_partitions_to(topic, validate_only)
                outcomes.append(TopicOutcome(topic.name, partitions=topic.count))
            except KafkaError as error:
                outcomes.append(TopicOutcome(topic.name, error))
            except StoreUnavailable as error:
                outcomes.append(TopicOutcome(topic.name, self._unavailable(error)))
        if not validate_only:
            await self._wait(outcomes, timeout_ms, self._is_led)
        return outcomes

    async def _add_partitions_to(self, requested: MorePartitions, validate_only: bool) -> None:
        name = requested.name
        if name in self._controller.context.topics_to_delete:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' is being deleted.")
        try:
            data, stat = await self._store.get(paths.topic(name))
        except (NoNode, ValueError):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic '{name}'.")
        node = TopicNode.decode(name, data)
        if any(assignment.is_being_reassigned for assignment in node.partitions.values()):
            raise KafkaError(ErrorCode.REASSIGNMENT_IN_PROGRESS, f"Partitions of topic '{name}' are being moved.")
        added = self._added_partitions(requested, node)
        if validate_only:
            return
        extended = TopicNode(node.topic_id, {**node.partitions, **{p: ReplicaAssignment(r) for p, r in added.items()}})
        try:
            await self._store.multi([self._fence(), SetData(paths.topic(name), extended.encode(), stat.version)])
        except (BadVersion, NoNode) as error:
            if error.path == paths.CONTROLLER_EPOCH:
                raise _not_controller() from error
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Topic '{name}' was changed at the same time.") from error

    def _added_partitions(self, requested: MorePartitions, node: TopicNode) -> dict[int, tuple[int, ...]]:
        existing = len(node.partitions)
        if requested.count <= existing:
            detail = "" if requested.count == existing else ", and cannot get fewer"
            message = f"Topic '{requested.name}' already has {existing} partitions{detail}."
            raise KafkaError(ErrorCode.INVALID_PARTITIONS, message)
        first = node.partitions[0].replicas
        _check_not_too_many(requested.count - existing)
        if requested.assignments is None:
            racks = self._controller.context.racks()
            start = next((i for i, broker in enumerate(sorted(racks)) if broker >= first[0]), 0)
            return assign(racks, requested.count - existing, len(first), fixed_start=start, first_partition=existing)
        if len(requested.assignments) != requested.count - existing:
            missing = requested.count - existing
            raise _bad_assignment(
                f"{missing} new partitions need as many assignments, not {len(requested.assignments)}."
            )
        added = {}
        for partition, replicas in enumerate(requested.assignments, start=existing):
            self._check_replicas(partition, replicas, len(first))
            added[partition] = tuple(replicas)
        return added

    # ----

    def _check_active(self) -> None:
        if not self._controller.is_active:
            raise _not_controller()

    def _unavailable(self, error: StoreUnavailable) -> KafkaError:
        """With its session, this broker has lost the controllership: clients must ask another
        broker."""
        if not self._controller.is_active:
            return _not_controller()
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))

    def _fence(self) -> Check:
        return Check(paths.CONTROLLER_EPOCH, self._controller.context.epoch_version)

    async def _wait(
        self, outcomes: Sequence[TopicOutcome], timeout_ms: int, done: Callable[[TopicOutcome], bool]
    ) -> None:
        waiting = [outcome for outcome in outcomes if outcome.error is None]
        if not waiting:
            return
        if timeout_ms > 0:
            await self._controller.wait_until(lambda: all(map(done, waiting)), timeout_ms / 1000)
        for outcome in waiting:
            if timeout_ms <= 0 or not done(outcome):
                outcome.error = KafkaError(
                    ErrorCode.REQUEST_TIMED_OUT, "It was accepted, but was not done everywhere in time."
                )


def _bad_assignment(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)


def _not_controller() -> KafkaError:
    return KafkaError(ErrorCode.NOT_CONTROLLER, "This broker is not the controller.")


def _check_not_too_many(partitions: int) -> None:
    if partitions > MAX_NEW_PARTITIONS:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION, f"{partitions} new partitions; no more than {MAX_NEW_PARTITIONS} at a time."
        )
