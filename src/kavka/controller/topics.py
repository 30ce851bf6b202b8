"""Handles requests to create, extend and delete topics: validates them, then writes to the znode
tree.

The controller's watches fire on the change, and the controller executes it. A call waits until this
broker's metadata contains the change, or until the timeout.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from kavka.common.config import ConfigError
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.turns import over_turns
from kavka.controller import topic_names
from kavka.controller.assignment import assign
from kavka.controller.controller import Controller, not_controller
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
# More partitions in one request would block the controller, and on a single node the broker, for
# minutes.
MAX_NEW_PARTITIONS = 10_000

# Called before a change with the number of its partitions. Raises THROTTLING_QUOTA_EXCEEDED if the
# client's quota does not permit the change.
RecordMutations = Callable[[int], None]


def no_quota(partitions: int) -> None:
    """Permit every change."""


@dataclass(slots=True)
class NewTopic:
    """A topic to create, with counts (-1 for the broker's default) or with the replicas of each
    partition."""

    name: str
    partitions: int = USE_DEFAULT
    replication_factor: int = USE_DEFAULT
    assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)
    configs: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(slots=True)
class TopicOutcome:
    """The result for one topic. After REQUEST_TIMED_OUT or an error of the metadata store, the
    change may still take effect. After any other error nothing was changed."""

    name: str
    error: KafkaError | None = None
    topic_id: UUID | None = None
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class MorePartitions:
    """A topic to extend to `count` partitions. `assignments` are the replicas of the added
    partitions."""

    name: str
    count: int
    assignments: Sequence[Sequence[int]] | None = None


@dataclass(eq=False, repr=False)
class Topics:
    """Handles CreateTopics, DeleteTopics and CreatePartitions on the active controller."""

    _controller: Controller
    _store: MetadataStore
    _configs: DynamicConfig
    _cache: MetadataCache

    # ---- create

    async def create_topics(
        self,
        topics: Sequence[NewTopic],
        *,
        timeout_ms: int,
        validate_only: bool = False,
        record: RecordMutations = no_quota,
    ) -> list[TopicOutcome]:
        """Create the topics. Returns the outcome of each topic, in order. A name that is in the
        request more than once is rejected. Raises NOT_CONTROLLER."""
        self._check_active()
        names = Counter(topic.name for topic in topics)
        outcomes: list[TopicOutcome] = []
        async for topic in over_turns(topics):
            outcomes.append(await self._attempt(topic.name, names, self._create, topic, validate_only, record))
        if not validate_only:
            await self._wait(outcomes, timeout_ms, self._has_leaders)
        return outcomes

    async def _create(self, topic: NewTopic, validate_only: bool, record: RecordMutations) -> TopicOutcome:
        assignment, configs = self._checked_topic(topic)
        topic_id = None
        if not validate_only:
            record(len(assignment))
            topic_id = await self._write_topic(topic.name, assignment, configs)
        return TopicOutcome(topic.name, None, topic_id, len(assignment), len(assignment[0]), configs)

    def _checked_topic(self, topic: NewTopic) -> tuple[dict[int, tuple[int, ...]], dict[str, str]]:
        """Return the replicas of each partition and the settings of a new topic. Raises KafkaError
        if the topic is invalid."""
        name, context = topic.name, self._controller.context
        if name == topic_names.CLUSTER_METADATA_TOPIC:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"'{name}' is reserved.")
        if name in context.topics:
            state = "is being deleted" if name in context.topics_to_delete else "already exists"
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' {state}.")
        topic_names.check(name)
        topic_names.check_collision(name, context.topics_by_metric_name)
        configs = {config: value for config, value in topic.configs.items() if value is not None}
        if len(configs) < len(topic.configs):
            without_value = ", ".join(config for config, value in topic.configs.items() if value is None)
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"The request has no value for {without_value}.")
        if topic.assignments:
            if topic.partitions != USE_DEFAULT or topic.replication_factor != USE_DEFAULT:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    "The number of partitions and the replication factor must be -1 if replicas are assigned.",
                )
            assignment = self._checked_assignment(topic.assignments)
        else:
            values = self._configs.broker.values
            partitions = values["num.partitions"] if topic.partitions == USE_DEFAULT else topic.partitions
            factor = topic.replication_factor
            if factor == USE_DEFAULT:
                factor = values["default.replication.factor"]
            _check_partition_count(partitions)
            assignment = assign(context.racks(), partitions, factor)
        try:
            self._configs.broker.check_topic(configs)
        except ConfigError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from error
        return assignment, configs

    def _checked_assignment(self, assignments: Mapping[int, Sequence[int]]) -> dict[int, tuple[int, ...]]:
        if sorted(assignments) != list(range(len(assignments))):
            raise _bad_assignment("The partitions must be numbered consecutively from 0.")
        factor = len(assignments[0])
        for partition in range(len(assignments)):
            self._check_replicas(partition, assignments[partition], factor)
        return {partition: tuple(assignments[partition]) for partition in range(len(assignments))}

    def _check_replicas(self, partition: int, replicas: Sequence[int], factor: int) -> None:
        if not replicas:
            raise _bad_assignment(f"Partition {partition} has no replicas.")
        if len(set(replicas)) != len(replicas):
            raise _bad_assignment(f"Partition {partition} has two replicas on the same broker.")
        if len(replicas) != factor:
            raise _bad_assignment(
                f"All partitions must have {factor} replicas; partition {partition} has {len(replicas)}."
            )
        unknown = [broker for broker in replicas if broker not in self._controller.context.brokers]
        if unknown:
            raise _bad_assignment(f"Partition {partition} has a replica on the unknown broker {unknown[0]}.")

    async def _write_topic(
        self, name: str, assignment: Mapping[int, tuple[int, ...]], configs: Mapping[str, str]
    ) -> UUID:
        self._configs.forget_topic(name)
        topic_id = paths.random_topic_id()
        node = TopicNode(topic_id, {p: ReplicaAssignment(replicas) for p, replicas in assignment.items()})
        config_path, config_data = paths.topic_config(name), paths.encode_config(configs)
        while True:
            # Settings of an earlier topic with this name may exist, or be written or removed
            # concurrently.
            has_settings = await self._store.exists(config_path) is not None
            config: Op = SetData(config_path, config_data) if has_settings else Create(config_path, config_data)
            try:
                await self._store.multi([self._fence(), config, Create(paths.topic(name), node.encode())])
                return topic_id
            except (NodeExists, NoNode) as error:
                if error.path == paths.topic(name):
                    raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.") from error
                if error.path != config_path:
                    raise not_controller() from error
            except BadVersion as error:
                raise not_controller() from error

    def _has_leaders(self, outcome: TopicOutcome) -> bool:
        return self._cache.has_leaders(outcome.name, outcome.partitions)

    # ---- delete

    async def delete_topics(
        self, names: Sequence[str], *, timeout_ms: int, record: RecordMutations = no_quota
    ) -> list[TopicOutcome]:
        self._check_active()
        outcomes: list[TopicOutcome] = []
        async for name in over_turns(names):
            outcomes.append(await self._attempt(name, Counter(), self._mark_for_deletion, name, record))
        await self._wait(outcomes, timeout_ms, lambda outcome: self._is_deleted(outcome.name))
        return outcomes

    async def _mark_for_deletion(self, name: str, record: RecordMutations) -> TopicOutcome:
        topic = self._controller.context.topics.get(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic '{name}'.")
        record(len(topic.partitions))
        # If the topic is already marked, both callers wait for the deletion.
        with suppress(NodeExists):
            await self._store.create(paths.delete_topic(name))
        return TopicOutcome(name, None, topic.topic_id)

    def _is_deleted(self, name: str) -> bool:
        """Whether clients no longer see the topic and its nodes are removed. A deletion that waits
        for a broker counts as complete."""
        context = self._controller.context
        is_blocked = name in context.topics_not_deletable_now
        return name not in self._cache.topics and (name not in context.topics or is_blocked)

    # ---- create partitions

    async def create_partitions(
        self,
        topics: Sequence[MorePartitions],
        *,
        timeout_ms: int,
        validate_only: bool = False,
        record: RecordMutations = no_quota,
    ) -> list[TopicOutcome]:
        self._check_active()
        names = Counter(topic.name for topic in topics)
        outcomes: list[TopicOutcome] = []
        async for topic in over_turns(topics):
            outcomes.append(await self._attempt(topic.name, names, self._add_partitions, topic, validate_only, record))
        if not validate_only:
            await self._wait(outcomes, timeout_ms, self._has_leaders)
        return outcomes

    async def _add_partitions(
        self, requested: MorePartitions, validate_only: bool, record: RecordMutations
    ) -> TopicOutcome:
        name = requested.name
        if name in self._controller.context.topics_to_delete:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' is being deleted.")
        try:
            data, stat = await self._store.get(paths.topic(name))
        except (NoNode, ValueError):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic '{name}'.")
        node = TopicNode.decode(name, data)
        if any(assignment.is_being_reassigned for assignment in node.partitions.values()):
            raise KafkaError(ErrorCode.REASSIGNMENT_IN_PROGRESS, f"Partitions of topic '{name}' are being reassigned.")
        added = self._added_partitions(requested, node)
        outcome = TopicOutcome(name, partitions=requested.count)
        if validate_only:
            return outcome
        record(len(added))
        extended = TopicNode(node.topic_id, {**node.partitions, **{p: ReplicaAssignment(r) for p, r in added.items()}})
        try:
            await self._store.multi([self._fence(), SetData(paths.topic(name), extended.encode(), stat.version)])
        except (BadVersion, NoNode) as error:
            if error.path == paths.CONTROLLER_EPOCH:
                raise not_controller() from error
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Topic '{name}' was changed concurrently.") from error
        return outcome

    def _added_partitions(self, requested: MorePartitions, node: TopicNode) -> dict[int, tuple[int, ...]]:
        existing = len(node.partitions)
        if requested.count <= existing:
            detail = "" if requested.count == existing else "; the number cannot be reduced"
            message = f"Topic '{requested.name}' already has {existing} partitions{detail}."
            raise KafkaError(ErrorCode.INVALID_PARTITIONS, message)
        count = requested.count - existing
        first_replicas = node.partitions[0].replicas
        _check_partition_count(count)
        if requested.assignments is None:
            racks = self._controller.context.racks()
            start = next((i for i, broker in enumerate(sorted(racks)) if broker >= first_replicas[0]), 0)
            return assign(racks, count, len(first_replicas), fixed_start=start, first_partition=existing)
        if len(requested.assignments) != count:
            raise _bad_assignment(f"{count} assignments are required, not {len(requested.assignments)}.")
        added = {}
        for partition, replicas in enumerate(requested.assignments, start=existing):
            self._check_replicas(partition, replicas, len(first_replicas))
            added[partition] = tuple(replicas)
        return added

    # ----

    async def _attempt(
        self, name: str, names: Counter[str], change: Callable[..., Awaitable[TopicOutcome]], *args: Any
    ) -> TopicOutcome:
        """Return the outcome of `change(*args)`, or an outcome with its error. `names` counts the
        names in the request."""
        try:
            if names[name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"Topic '{name}' is in the request more than once.")
            return await change(*args)
        except KafkaError as error:
            # The traceback of a stored error would keep the frames alive.
            return TopicOutcome(name, error.with_traceback(None))
        except StoreUnavailable as error:
            return TopicOutcome(name, self._store_error(error))

    def _check_active(self) -> None:
        if not self._controller.is_active:
            raise not_controller()

    def _store_error(self, error: StoreUnavailable) -> KafkaError:
        """Return the error for the client. A broker that has lost its session is no longer the
        controller, so clients must send the request to another broker."""
        if not self._controller.is_active:
            return not_controller()
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))

    def _fence(self) -> Check:
        return Check(paths.CONTROLLER_EPOCH, self._controller.context.epoch_version)

    async def _wait(
        self, outcomes: Sequence[TopicOutcome], timeout_ms: int, is_complete: Callable[[TopicOutcome], bool]
    ) -> None:
        pending = [outcome for outcome in outcomes if outcome.error is None]
        if not pending:
            return
        if timeout_ms > 0:
            incomplete = pending[::-1]

            def are_complete() -> bool:
                # Called for every change of the metadata: a complete topic is not checked again.
                while incomplete and is_complete(incomplete[-1]):
                    incomplete.pop()
                return not incomplete

            await self._controller.wait_until(are_complete, timeout_ms / 1000)
        for outcome in pending:
            if timeout_ms <= 0 or not is_complete(outcome):
                outcome.error = KafkaError(
                    ErrorCode.REQUEST_TIMED_OUT, "The change was accepted, but did not complete before the timeout."
                )


def _bad_assignment(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)


def _check_partition_count(partitions: int) -> None:
    if partitions > MAX_NEW_PARTITIONS:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"A request can create at most {MAX_NEW_PARTITIONS} partitions, not {partitions}.",
        )
