"""A group shard with topics, and members of the consumer protocol."""

from __future__ import annotations

from collections.abc import KeysView, Sequence
from typing import Any
from uuid import UUID, uuid5

from kavka.common.errors import ErrorCode, KafkaError
from kavka.coordinator.group.consumer.config import ConsumerConfig, Timing
from kavka.coordinator.group.consumer.topics import Topic
from kavka.coordinator.group.shard import GroupShard
from kavka.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from tests.unit.coordinator.harness import GROUP, Harness

SESSION = 45_000
REBALANCE = 60_000
HEARTBEAT_INTERVAL_MS = 5_000
NAMESPACE = UUID(int=7)

NamedPartition = tuple[str, int]


def topic_id(name: str) -> UUID:
    return uuid5(NAMESPACE, name)


class FakeTopics:
    def __init__(self, **partitions: int) -> None:
        self.version = 1
        self._topics: dict[str, Topic] = {}
        for name, count in partitions.items():
            self.set(name, count)

    def set(self, name: str, partitions: int, racks: Sequence[Sequence[str]] = ()) -> None:
        self._topics[name] = Topic(name, topic_id(name), partitions, tuple(frozenset(r) for r in racks))
        self.version += 1

    def remove(self, name: str) -> None:
        del self._topics[name]
        self.version += 1

    def get(self, name: str) -> Topic | None:
        return self._topics.get(name)

    def name_of(self, searched_id: UUID) -> str | None:
        return next((name for name in self._topics if topic_id(name) == searched_id), None)

    def names(self) -> KeysView[str]:
        return self._topics.keys()


class ConsumerHarness(Harness):
    def __init__(self, topics: dict[str, int] | None = None, assignment_interval_ms: int = 0, **config: Any) -> None:
        self.topics = FakeTopics(**(topics or {}))
        # The timings of groups that override the default.
        self.timings: dict[str, Timing] = {}
        default = Timing(assignment_interval_ms=assignment_interval_ms)
        settings = {"timing": lambda group: self.timings.get(group, default), **config}
        super().__init__(consumer=ConsumerConfig(**settings), min_session_timeout_ms=1)
        self.member_count = 0

    def new_shard(self) -> GroupShard:
        return GroupShard(self.clock, self.timers, self.config, self.topics)

    def beat(
        self,
        member_id: str,
        epoch: int,
        *,
        owned: Sequence[NamedPartition] | None = None,
        topics: Sequence[str] | None = None,
        pattern: str | None = None,
        version: int = 1,
        client: str = "client",
        group: str = GROUP,
        **fields: Any,
    ) -> ConsumerGroupHeartbeatResponse:
        """Send a ConsumerGroupHeartbeat. Return the response, also if it is an error."""
        request = ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id=member_id,
            member_epoch=epoch,
            subscribed_topic_names=None if topics is None else list(topics),
            subscribed_topic_regex=pattern,
            topic_partitions=None if owned is None else as_topic_partitions(owned),
            **fields,
        )
        try:
            return self.submit(self.shard.consumer_heartbeat(request, version, client, "/127.0.0.1"))
        except KafkaError as error:
            return ConsumerGroupHeartbeatResponse(error_code=int(error.code), error_message=error.message)

    def member(self, *topics: str, **options: Any) -> Client:
        self.member_count += 1
        return Client(self, options.pop("name", f"member-{self.member_count}"), topics, **options)

    def heartbeat_until_stable(self, *members: Client, rounds: int = 20) -> None:
        """Send heartbeats of all members until the group is stable."""
        for _ in range(rounds):
            if not any([member.beat() for member in members]) and self.state == "Stable":
                return
        raise AssertionError(f"the group is still {self.state} after {rounds} rounds")


def as_topic_partitions(partitions: Sequence[NamedPartition]) -> list[TopicPartitions]:
    by_topic: dict[str, list[int]] = {}
    for name, index in partitions:
        by_topic.setdefault(name, []).append(index)
    return [TopicPartitions(topic_id=topic_id(name), partitions=indexes) for name, indexes in by_topic.items()]


class Client:
    """A member of the consumer protocol. It revokes and takes over partitions at once."""

    def __init__(
        self,
        harness: ConsumerHarness,
        name: str,
        topics: Sequence[str],
        *,
        pattern: str | None = None,
        instance_id: str | None = None,
        rebalance_ms: int = REBALANCE,
        **fields: Any,
    ) -> None:
        self.harness = harness
        self.name = name
        self.topics: Sequence[str] | None = topics if topics or pattern is None else None
        self.pattern = pattern
        self.instance_id = instance_id
        self.rebalance_ms = rebalance_ms
        self.fields = fields
        self.epoch = 0
        self.owned: set[NamedPartition] = set()
        self.reported_owned: set[NamedPartition] | None = None
        self.interval = 0
        self.join()

    def join(self) -> ErrorCode:
        self.owned.clear()
        self.epoch = 0
        response = self.harness.beat(
            self.name,
            0,
            owned=(),
            topics=self.topics,
            pattern=self.pattern,
            instance_id=self.instance_id,
            rebalance_timeout_ms=self.rebalance_ms,
            **self.fields,
        )
        self.reported_owned = set()
        self._apply(response)
        return ErrorCode(response.error_code)

    def beat(self, **fields: Any) -> bool:
        """Send a heartbeat. Return whether the epoch or the assignment changed. A fenced member
        joins again."""
        if self.owned != self.reported_owned:
            fields.setdefault("owned", sorted(self.owned))
        reported = set(self.owned)
        response = self.harness.beat(self.name, self.epoch, instance_id=self.instance_id, **fields)
        if response.error_code in (int(ErrorCode.FENCED_MEMBER_EPOCH), int(ErrorCode.UNKNOWN_MEMBER_ID)):
            self.join()
            return True
        assert response.error_code == 0, (response.error_code, response.error_message)
        previous_state = (self.epoch, set(self.owned))
        if "owned" in fields:
            self.reported_owned = reported
        self._apply(response)
        return previous_state != (self.epoch, self.owned)

    def _apply(self, response: ConsumerGroupHeartbeatResponse) -> None:
        if response.error_code:
            return
        self.epoch = response.member_epoch
        self.interval = response.heartbeat_interval_ms
        if response.assignment is not None:
            self.owned = assigned(self.harness, response)

    def subscribe(self, *topics: str) -> None:
        self.topics = topics
        self.beat(topics=topics)

    def leave(self) -> None:
        self.harness.beat(self.name, -2 if self.instance_id else -1, instance_id=self.instance_id)
        self.owned.clear()

    @property
    def current(self) -> Any:
        return self.harness.group.members[self.name].current


def assigned(harness: ConsumerHarness, response: ConsumerGroupHeartbeatResponse) -> set[NamedPartition]:
    assert response.assignment is not None
    return {
        (harness.topics.name_of(topic.topic_id) or "?", partition)
        for topic in response.assignment.topic_partitions
        for partition in topic.partitions
    }
