"""Random operations and faults of members, network and coordinator. No partition has two owners."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule

from kavka.common.errors import ErrorCode
from kavka.coordinator.group.consumer.state import ConsumerGroup, MemberState
from tests.unit.coordinator.consumer.harness import (
    REBALANCE,
    SESSION,
    ConsumerHarness,
    NamedPartition,
    assigned,
)
from tests.unit.coordinator.harness import GROUP

TOPICS = ("a", "b", "c")


class Consumer:
    """A consumer that receives an assignment, revokes partitions and takes over partitions in
    separate steps."""

    def __init__(self, harness: ConsumerHarness, name: str, instance_id: str | None, topics: tuple[str, ...]) -> None:
        self.harness = harness
        self.name = name
        self.instance_id = instance_id
        self.topics = topics
        self.pattern: str | None = None
        self.epoch = 0
        self.owned: set[NamedPartition] = set()
        self.target: set[NamedPartition] = set()  # The last assignment.
        self.sends_all_fields = True  # Whether the next heartbeat has all fields.
        self.reported: set[NamedPartition] = set()
        self.is_running = True

    @property
    def is_member(self) -> bool:
        """Whether the group has this consumer as a member, and the consumer has not left."""
        group = self.harness.shard.groups.get(GROUP)
        member = group.members.get(self.name) if group is not None else None
        return member is not None and self.epoch > 0 and member.epoch != -2

    def beat(self, lost: bool = False) -> None:
        fields: dict[str, Any] = {"instance_id": self.instance_id}
        joins = self.epoch == 0
        if joins:
            self.owned.clear()
            self.target.clear()
        if joins or self.sends_all_fields:
            fields |= {"topics": self.topics, "pattern": self.pattern, "rebalance_timeout_ms": REBALANCE}
        if joins or self.sends_all_fields or self.owned != self.reported:
            fields["owned"] = sorted(self.owned)
        reported = set(self.owned)
        response = self.harness.beat(self.name, self.epoch, **fields)
        if lost:
            self.sends_all_fields = True
            return
        code = ErrorCode(response.error_code)
        if code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND):
            self.epoch = 0
            self.owned.clear()
            return
        if code in (ErrorCode.FENCED_INSTANCE_ID, ErrorCode.UNRELEASED_INSTANCE_ID):
            self.stop()
            return
        if code is ErrorCode.NOT_ENOUGH_REPLICAS:
            self.sends_all_fields = True
            return
        assert code is ErrorCode.NONE, (code, response.error_message)
        if "owned" in fields:
            self.reported = reported
        self.sends_all_fields = False
        self.epoch = response.member_epoch
        if response.assignment is not None:
            self.target = assigned(self.harness, response)

    def revoke(self) -> None:
        self.owned &= self.target

    def take(self) -> None:
        self.owned = set(self.target)

    def stop(self) -> None:
        self.is_running = False
        self.epoch = 0
        self.owned.clear()


class Groups(RuleBasedStateMachine):
    consumers = Bundle("consumers")

    @initialize(target=consumers, interval_ms=st.sampled_from([0, 0, 1_000]), count=st.integers(1, 3))
    def begin(self, interval_ms: int, count: int) -> Any:
        self.harness = ConsumerHarness({"a": 3, "b": 2}, assignment_interval_ms=interval_ms)
        self.members: list[Consumer] = []
        return multiple(*(self._start(("a", "b"), None, None) for _ in range(count)))

    def _start(self, topics: tuple[str, ...], instance_id: str | None, pattern: str | None) -> Consumer:
        consumer = Consumer(self.harness, f"m{len(self.members)}", instance_id, topics)
        consumer.pattern = pattern
        self.members.append(consumer)
        consumer.beat()
        consumer.take()
        return consumer

    # ---- members

    @rule(
        target=consumers,
        topics=st.sampled_from([("a",), ("a", "b"), ("a", "b", "c"), ("c",), ()]),
        instance_id=st.sampled_from([None, None, "i1", "i2"]),
        pattern=st.sampled_from([None, None, None, "[ab]", ".*"]),
    )
    def start(self, topics: tuple[str, ...], instance_id: str | None, pattern: str | None) -> Any:
        if sum(member.is_running for member in self.members) >= 5:
            return multiple()
        return self._start(topics, instance_id, pattern)

    def _pick(self, number: int) -> Consumer | None:
        running = [member for member in self.members if member.is_running]
        return running[number % len(running)] if running else None

    @rule(number=st.integers(0, 4), next_step=st.sampled_from(["", "revoke", "take", "take"]))
    def beat(self, number: int, next_step: str) -> None:
        consumer = self._pick(number)
        if consumer is None:
            return
        consumer.beat()
        if next_step:
            consumer.revoke()
        if next_step == "take":
            consumer.take()

    @rule(number=st.integers(0, 4), waits=st.booleans())
    def all_send_heartbeats(self, number: int, waits: bool) -> None:
        """Send heartbeats of all members. With `waits`, one member does not revoke partitions."""
        slow = self._pick(number)
        for _ in range(3):
            for member in self.members:
                if member.is_running:
                    member.beat()
                    if member is not slow or not waits:
                        member.revoke()
                        member.take()

    @rule(number=st.integers(0, 4))
    def a_response_is_lost(self, number: int) -> None:
        consumer = self._pick(number)
        if consumer is not None:
            consumer.beat(lost=True)

    @rule(number=st.integers(0, 4))
    def revoke_only(self, number: int) -> None:
        consumer = self._pick(number)
        if consumer is not None:
            consumer.revoke()

    @rule(number=st.integers(0, 4))
    def take_only(self, number: int) -> None:
        consumer = self._pick(number)
        if consumer is not None and consumer.epoch > 0:
            consumer.take()

    @rule(
        consumer=consumers,
        topics=st.lists(st.sampled_from(TOPICS), unique=True).map(tuple),
        pattern=st.sampled_from(["", "c|a"]),
    )
    def subscribe(self, consumer: Consumer, topics: tuple[str, ...], pattern: str) -> None:
        consumer.topics, consumer.pattern = topics, pattern
        consumer.sends_all_fields = True

    @rule(consumer=consumers)
    def crash(self, consumer: Consumer) -> None:
        consumer.stop()

    @rule(consumer=consumers, permanently=st.booleans())
    def leave(self, consumer: Consumer, permanently: bool) -> None:
        if consumer.is_running and consumer.epoch > 0:
            epoch = -1 if permanently or consumer.instance_id is None else -2
            consumer.owned.clear()
            self.harness.beat(consumer.name, epoch, instance_id=consumer.instance_id)
            consumer.stop()

    # ---- time, topics and the coordinator

    @rule(ms=st.sampled_from([100, 1_000, 5_000, 5_000, 20_000, SESSION]))
    def time_passes(self, ms: int) -> None:
        self.harness.advance(ms)

    @rule(number=st.integers(0, 4))
    def one_member_exceeds_its_rebalance_timeout(self, number: int) -> None:
        slow = self._pick(number)
        for _ in range(REBALANCE // 10_000 + 1):
            self.harness.advance(10_000)
            for member in self.members:
                if member.is_running:
                    member.beat()
                    if member is not slow:
                        member.revoke()
                        member.take()

    @rule(name=st.sampled_from(TOPICS), count=st.integers(0, 6))
    def topic_changes(self, name: str, count: int) -> None:
        existing = self.harness.topics.get(name)
        if count == 0:
            if existing is not None:
                self.harness.topics.remove(name)
        elif existing is None or count > existing.partitions:
            self.harness.topics.set(name, count)

    @rule()
    def coordinator_restarts(self) -> None:
        tables = _tables(self.harness.shard.groups.get(GROUP))
        self.harness.restart()
        assert _tables(self.harness.shard.groups.get(GROUP)) == tables

    @rule(consumer=consumers)
    def a_write_fails(self, consumer: Consumer) -> None:
        if consumer.is_running:
            self.harness.failure = ErrorCode.NOT_ENOUGH_REPLICAS
            consumer.beat()
            self.harness.failure = None

    @rule()
    def the_group_becomes_stable(self) -> None:
        """Check that a group whose members send heartbeats becomes stable, and that every partition
        has an owner."""
        running = [member for member in self.members if member.is_running]
        for _ in range(4):
            # The sessions of stopped members expire.
            self.harness.advance(SESSION // 4 + 1)
            self._round(running)
        for _ in range(30):
            self.harness.advance(1_000)
            self._round(running)
        self._check_settled([member for member in running if member.is_running])

    def _round(self, running: list[Consumer]) -> None:
        for member in running:
            if member.is_running:
                member.beat()
                member.revoke()
                member.take()

    def _check_settled(self, running: list[Consumer]) -> None:
        group = self.harness.shard.groups.get(GROUP)
        if not running:
            assert group is None or group.is_empty
            return
        assert group is not None and group.state_name == "Stable", group and group.state_name
        owned = sorted(partition for member in running for partition in member.owned)
        subscribed = group.subscribed_topics()
        expected = [
            (name, index)
            for name in sorted(self.harness.topics.names())
            if name in subscribed
            for index in range(self.harness.topics.get(name).partitions)  # type: ignore[union-attr]
        ]
        assert owned == expected

    # ---- invariants

    @invariant()
    def no_partition_has_two_owners(self) -> None:
        owner: dict[NamedPartition, str] = {}
        for member in getattr(self, "members", ()):
            if member.is_running and member.is_member:
                for partition in member.owned:
                    assert owner.setdefault(partition, member.name) == member.name, (
                        partition,
                        owner[partition],
                        member.name,
                    )

    @invariant()
    def the_tables_agree(self) -> None:
        harness = getattr(self, "harness", None)
        group = harness.shard.groups.get(GROUP) if harness is not None else None
        if group is None:
            return
        owners = {}
        for member in group.members.values():
            current = member.current
            for owned in (current.assigned, current.revoking):
                for topic_uuid, partitions in owned.items():
                    for index in partitions:
                        assert (topic_uuid, index) not in owners
                        owners[(topic_uuid, index)] = member.member_id
            assert current.epoch <= group.epoch
            assert bool(current.revoking) == (current.state == MemberState.UNREVOKED_PARTITIONS) or current.epoch < 0
        assert owners == {
            (topic_uuid, index): m for topic_uuid, by_index in group.owners.items() for index, m in by_index.items()
        }
        assert group.assignment_epoch <= group.epoch
        target = [
            (entry, index) for assigned in group.target.values() for entry in assigned for index in assigned[entry]
        ]
        assert len(target) == len(set(target))


def _tables(group: ConsumerGroup | None) -> Any:
    if group is None:
        return None
    return {name: getattr(group, name) for name in group.__slots__}


TestGroups = Groups.TestCase
TestGroups.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
