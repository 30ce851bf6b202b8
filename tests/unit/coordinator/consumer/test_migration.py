"""Migration of groups between the classic and the consumer protocol."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from kavka.common.errors import ErrorCode, KafkaError
from kavka.coordinator.group.consumer.embedded import read_assignment
from kavka.coordinator.operations import Outcome
from kavka.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolAssignmentTopicPartition,
    ConsumerProtocolSubscription,
    ConsumerProtocolSubscriptionTopicPartition,
)
from tests.unit.coordinator.consumer.harness import ConsumerHarness, NamedPartition
from tests.unit.coordinator.harness import GROUP, SESSION


def subscription(topics: tuple[str, ...] = ("t",), owned: set[NamedPartition] | None = None) -> bytes:
    """Encode a subscription of a cooperative consumer. Without `owned`, it is that of an eager
    consumer, which revokes all partitions before it joins."""
    message = ConsumerProtocolSubscription(topics=list(topics))
    if owned is None:
        return b"\x00\x00" + message.to_bytes(0)
    by_topic: dict[str, list[int]] = {}
    for name, index in sorted(owned):
        by_topic.setdefault(name, []).append(index)
    message.owned_partitions = [
        ConsumerProtocolSubscriptionTopicPartition(topic=name, partitions=indexes) for name, indexes in by_topic.items()
    ]
    return b"\x00\x01" + message.to_bytes(1)


def assignment(*partitions: NamedPartition, user_data: bytes | None = None) -> bytes:
    by_topic: dict[str, list[int]] = {}
    for name, index in partitions:
        by_topic.setdefault(name, []).append(index)
    message = ConsumerProtocolAssignment(
        assigned_partitions=[
            ConsumerProtocolAssignmentTopicPartition(topic=name, partitions=indexes)
            for name, indexes in by_topic.items()
        ],
        user_data=user_data,
    )
    return b"\x00\x00" + message.to_bytes(0)


class ClassicClient:
    """A member of the classic protocol. A cooperative member keeps its partitions while it
    joins."""

    def __init__(
        self, harness: ConsumerHarness, *topics: str, cooperative: bool = True, instance_id: str | None = None
    ) -> None:
        self.harness = harness
        self.topics = topics or ("t",)
        self.cooperative = cooperative
        self.instance_id = instance_id
        self.name = ""
        self.generation = -1
        self.owned: set[NamedPartition] = set()

    def protocols(self) -> tuple[tuple[str, bytes], ...]:
        if not self.cooperative:
            return (("range", subscription(self.topics)), ("roundrobin", subscription(self.topics)))
        return (("cooperative-sticky", subscription(self.topics, self.owned)), ("range", subscription(self.topics)))

    def join(self) -> Any:
        if not self.cooperative:
            self.owned.clear()
        pending = self.harness.join(self.name, protocols=self.protocols(), instance_id=self.instance_id)
        if pending.response is not None and pending.code is ErrorCode.MEMBER_ID_REQUIRED:
            self.name = pending.response.member_id
            pending = self.harness.join(self.name, protocols=self.protocols())
        return pending

    def joined(self, pending: Any) -> None:
        assert pending.code is ErrorCode.NONE, pending.code
        self.name, self.generation = pending.response.member_id, pending.response.generation_id

    def sync(self, assignments: dict[str, bytes] | None = None) -> ErrorCode:
        pending = self.harness.sync(
            self.name, self.generation, assignments, instance_id=self.instance_id, protocol=("consumer", None)
        )
        if pending.response is not None and pending.code is ErrorCode.NONE:
            self.apply_assignment(pending.response)
        return pending.code

    def apply_assignment(self, response: Any) -> None:
        owned = read_assignment(bytes(response.assignment), "", 0, self.harness.topics)
        self.owned = {
            (self.harness.topics.name_of(topic_uuid) or "?", i)
            for topic_uuid, indexes in owned.items()
            for i in indexes
        }

    def beat(self) -> ErrorCode:
        return self.harness.heartbeat(self.name, self.generation, self.instance_id)

    def heartbeat_and_rejoin(self) -> bool:
        """Send a heartbeat. If the response requires it, rejoin and sync. Return whether the member
        rejoined."""
        code = self.beat()
        if code is ErrorCode.NONE:
            return False
        assert code is ErrorCode.REBALANCE_IN_PROGRESS, code
        previously_owned = set(self.owned)
        self.joined(self.join())
        assert self.sync() is ErrorCode.NONE
        if self.cooperative and previously_owned - self.owned:
            self.joined(self.join())
            assert self.sync() is ErrorCode.NONE
        return True


def classic_group(harness: ConsumerHarness, count: int, **options: Any) -> list[ClassicClient]:
    """Create a stable classic group. Member n modulo `count` has partition n of topic t."""
    clients = [ClassicClient(harness, **options) for _ in range(count)]
    pending_joins = [client.join() for client in clients]
    harness.advance(harness.config.initial_rebalance_delay_ms)
    if any(pending.response is None for pending in pending_joins):
        harness.advance(harness.config.initial_rebalance_delay_ms)
    for client, pending in zip(clients, pending_joins, strict=True):
        client.joined(pending)
    topic = harness.topics.get("t")
    assert topic is not None
    assignments = {
        client.name: assignment(*(("t", p) for p in range(topic.partitions) if p % count == index))
        for index, client in enumerate(clients)
    }
    protocol = "cooperative-sticky" if clients[0].cooperative else "range"
    synced = [
        harness.sync(
            client.name,
            client.generation,
            assignments if client.name == pending.response.leader else None,
            protocol=("consumer", protocol),
        )
        for client, pending in zip(clients, pending_joins, strict=True)
    ]
    for client, pending in zip(clients, synced, strict=True):
        assert pending.code is ErrorCode.NONE
        client.apply_assignment(pending.response)
    assert harness.state == "Stable"
    return clients


def settle(harness: ConsumerHarness, classic: list[ClassicClient], new: list[Any], rounds: int = 20) -> None:
    for _ in range(rounds):
        changed = [client.heartbeat_and_rejoin() for client in classic] + [client.beat() for client in new]
        if not any(changed) and harness.state == "Stable":
            break
    owned = Counter(partition for client in (*classic, *new) for partition in client.owned)
    topic = harness.topics.get("t")
    assert topic is not None
    assert owned == Counter(("t", n) for n in range(topic.partitions))
    assert harness.state == "Stable"


# ---- empty groups


def test_an_empty_classic_group_becomes_a_consumer_group_and_keeps_its_offsets() -> None:
    harness = ConsumerHarness({"t": 1}, allows_upgrade=False)
    (client,) = classic_group(harness, 1)
    harness.commit({("t", 0): 7}, member_id=client.name, generation=client.generation)
    harness.leave((client.name, None))
    assert (harness.group.type, harness.state) == ("classic", "Empty")
    member = harness.member("t")
    assert (harness.group.type, harness.state) == ("consumer", "Stable")
    assert member.owned == {("t", 0)}
    assert harness.offset("t", 0) == 7
    harness.restart()
    assert (harness.group.type, harness.offset("t", 0)) == ("consumer", 7)


def test_a_group_with_only_offsets_becomes_a_consumer_group() -> None:
    harness = ConsumerHarness({"t": 1})
    harness.commit({("t", 0): 7})
    harness.member("t")
    assert harness.group.type == "consumer"
    assert harness.offset("t", 0) == 7


def test_an_empty_consumer_group_becomes_a_classic_group() -> None:
    harness = ConsumerHarness({"t": 2}, allows_downgrade=False)
    member = harness.member("t")
    harness.commit({("t", 0): 3}, member_id=member.name, generation=member.epoch)
    member.leave()
    (client,) = classic_group(harness, 1)
    assert harness.group.type == "classic"
    assert client.owned == {("t", 0), ("t", 1)}
    assert harness.offset("t", 0) == 3
    harness.restart()
    assert (harness.group.type, harness.state) == ("classic", "Stable")


# ---- upgrade


@pytest.mark.parametrize("cooperative", [True, False])
def test_members_of_both_protocols_share_the_partitions_after_an_upgrade(cooperative: bool) -> None:
    harness = ConsumerHarness({"t": 6})
    classic = classic_group(harness, 2, cooperative=cooperative)
    generation = classic[0].generation
    new = harness.member("t")
    assert harness.group.type == "consumer"
    assert harness.group.epoch == generation + 1
    # The classic members keep their partitions until the coordinator revokes them.
    assert new.owned == set()
    settle(harness, classic, [new])
    assert [len(client.owned) for client in (*classic, new)] == [2, 2, 2]
    described = harness.shard.describe_consumer(GROUP)
    assert sorted(member.member_type for member in described.members) == [0, 0, 1]


def test_a_group_is_upgraded_member_by_member() -> None:
    harness = ConsumerHarness({"t": 6})
    classic = classic_group(harness, 3)
    new: list[Any] = []
    while classic:
        new.append(harness.member("t"))
        settle(harness, classic, new)
        leaving = classic.pop()
        harness.leave((leaving.name, None))
        leaving.owned.clear()
        settle(harness, classic, new)
    assert (harness.group.type, len(harness.group.members)) == ("consumer", 3)
    harness.restart()
    settle(harness, [], new)


def test_a_member_with_a_pending_join_rejoins_the_upgraded_group() -> None:
    harness = ConsumerHarness({"t": 4})
    (first,) = classic_group(harness, 1)
    second = ClassicClient(harness)
    waiting = second.join()
    assert waiting.response is None
    new = harness.member("t")
    assert waiting.code is ErrorCode.REBALANCE_IN_PROGRESS
    second.joined(second.join())
    assert second.sync() is ErrorCode.NONE
    settle(harness, [first, second], [new])


def test_a_consumer_member_is_refused_if_upgrades_are_disabled() -> None:
    harness = ConsumerHarness({"t": 2}, allows_upgrade=False)
    (client,) = classic_group(harness, 1)
    response = harness.beat("m", 0, owned=(), topics=("t",), rebalance_timeout_ms=1_000)
    assert ErrorCode(response.error_code) is ErrorCode.GROUP_ID_NOT_FOUND
    assert "online upgrade is disabled" in (response.error_message or "")
    assert (harness.group.type, client.beat()) == ("classic", ErrorCode.NONE)


@pytest.mark.parametrize(
    ("assignor", "data"),
    [("mine", assignment(("t", 0), user_data=b"mine")), ("range", b"\xff\xff"), ("range", b"\x00\x00\x7f")],
)
def test_a_group_whose_assignments_cannot_be_parsed_stays_classic(assignor: str, data: bytes) -> None:
    harness = ConsumerHarness({"t": 2})
    pending = harness.join_new(protocols=((assignor, subscription()),))
    harness.advance(harness.config.initial_rebalance_delay_ms)
    name, generation = pending.response.member_id, pending.response.generation_id
    harness.sync(name, generation, {name: data}, protocol=("consumer", assignor))
    response = harness.beat("m", 0, owned=(), topics=("t",), rebalance_timeout_ms=1_000)
    assert ErrorCode(response.error_code) is ErrorCode.GROUP_ID_NOT_FOUND
    assert (harness.group.type, harness.heartbeat(name, generation)) == ("classic", ErrorCode.NONE)


def test_user_data_of_a_known_assignor_does_not_prevent_an_upgrade() -> None:
    harness = ConsumerHarness({"t": 2})
    (client,) = classic_group(harness, 1)
    harness.group.members[client.name].assignment = assignment(("t", 0), ("t", 1), user_data=b"librdkafka's")
    new = harness.member("t")
    settle(harness, [client], [new])


def test_a_group_of_another_protocol_type_stays_classic() -> None:
    harness = ConsumerHarness({"t": 2})
    harness.stable(1, protocol_type="connect")
    response = harness.beat("m", 0, owned=(), topics=("t",), rebalance_timeout_ms=1_000)
    assert ErrorCode(response.error_code) is ErrorCode.GROUP_ID_NOT_FOUND


def test_a_failed_write_of_an_upgrade_restores_the_classic_group() -> None:
    harness = ConsumerHarness({"t": 2})
    (client,) = classic_group(harness, 1)
    classic = harness.group

    def replay_and_undo(outcome: Outcome) -> Any:
        for record in outcome.records:
            harness.shard.replay(record)
        harness.shard.journal.undo()
        error = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
        if outcome.on_append is not None:
            outcome.on_append(error)
        raise error

    submit = harness.submit
    harness.submit = replay_and_undo  # type: ignore[method-assign]
    response = harness.beat("m", 0, owned=(), topics=("t",), rebalance_timeout_ms=1_000)
    harness.submit = submit  # type: ignore[method-assign]
    assert ErrorCode(response.error_code) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert harness.group is classic
    assert client.beat() is ErrorCode.NONE
    harness.advance(SESSION)
    assert harness.state == "Empty"


# ---- classic members of a consumer group


def test_a_classic_member_joins_a_consumer_group() -> None:
    harness = ConsumerHarness({"t": 4})
    new = harness.member("t")
    client = ClassicClient(harness)
    first = harness.join("", protocols=client.protocols())
    assert first.code is ErrorCode.MEMBER_ID_REQUIRED
    pending = client.join()
    assert (pending.response.leader, pending.response.members) == ("", [])
    assert pending.response.protocol_name == "cooperative-sticky"
    client.joined(pending)
    assert client.sync() is ErrorCode.NONE
    assert client.owned == set()
    settle(harness, [client], [new])
    assert (len(client.owned), len(new.owned)) == (2, 2)


def test_a_classic_member_must_rejoin_when_its_partitions_are_free() -> None:
    harness = ConsumerHarness({"t": 2})
    new = harness.member("t")
    client = ClassicClient(harness)
    client.joined(client.join())
    client.sync()
    assert client.beat() is ErrorCode.NONE
    new.beat()
    assert client.beat() is ErrorCode.NONE
    new.beat()
    assert client.beat() is ErrorCode.REBALANCE_IN_PROGRESS
    client.joined(client.join())
    assert client.sync() is ErrorCode.NONE
    assert len(client.owned) == 1


def test_invalid_requests_of_classic_members_are_refused() -> None:
    harness = ConsumerHarness({"t": 2})
    new = harness.member("t")
    client = ClassicClient(harness)
    client.joined(client.join())
    assert harness.heartbeat(client.name, client.generation + 1) is ErrorCode.ILLEGAL_GENERATION
    assert harness.heartbeat("other", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert harness.heartbeat(new.name, new.epoch) is ErrorCode.UNKNOWN_MEMBER_ID
    wrong = harness.sync(client.name, client.generation, protocol=("consumer", "range"))
    assert wrong.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    wrong = harness.sync(client.name, client.generation, protocol=("connect", None))
    assert wrong.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert harness.join("x", protocols=(("range", b"\x00"),)).code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert harness.join("x", protocol_type="connect").code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    no_common_protocol = harness.join("x", protocols=(("mine", subscription()),))
    assert no_common_protocol.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert len(harness.group.members) == 2


def test_a_classic_member_uses_the_session_timeout_of_its_join() -> None:
    harness = ConsumerHarness({"t": 2}, allows_downgrade=False)
    new = harness.member("t")
    client = ClassicClient(harness)
    client.joined(client.join())
    client.sync()
    harness.advance(SESSION - 1)
    assert client.name in harness.group.members
    harness.advance(1)
    assert list(harness.group.members) == [new.name]


def test_a_classic_member_that_does_not_sync_or_rejoin_in_time_is_removed() -> None:
    harness = ConsumerHarness({"t": 2})
    new = harness.member("t")
    client = ClassicClient(harness)
    client.joined(client.join())
    for _ in range(12):
        harness.advance(5_000)
        new.beat()
        client.beat()
    assert list(harness.group.members) == [new.name]
    client = ClassicClient(harness)
    client.joined(client.join())
    client.sync()
    settle(harness, [client], [new])
    harness.topics.set("t", 4)
    for _ in range(13):
        new.beat()
        client.beat()
        harness.advance(5_000)
    assert list(harness.group.members) == [new.name]


def test_commits_of_a_classic_member_need_its_generation() -> None:
    harness = ConsumerHarness({"t": 2})
    harness.member("t")
    client = ClassicClient(harness)
    client.joined(client.join())
    client.sync()
    fields = {"member_id": client.name, "generation": client.generation, "version": 8}
    assert set(harness.commit({("t", 0): 1}, **fields).values()) == {ErrorCode.NONE}
    assert set(harness.commit({("t", 0): 1}, **(fields | {"generation": 99})).values()) == {
        ErrorCode.ILLEGAL_GENERATION
    }


def test_an_administrator_may_remove_members_of_both_protocols() -> None:
    harness = ConsumerHarness({"t": 2}, allows_downgrade=False)
    new = harness.member("t", instance_id="i")
    client = ClassicClient(harness)
    client.joined(client.join())
    pending = harness.leave(("", "i"), (client.name, None), ("unknown", None), ("", "j"))
    codes = [ErrorCode(member.error_code) for member in pending.members]
    assert codes == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.UNKNOWN_MEMBER_ID]
    assert (harness.group.is_empty, new.name in harness.group.members) == (True, False)


def test_a_static_member_may_rejoin_with_the_other_protocol() -> None:
    harness = ConsumerHarness({"t": 2})
    other = harness.member("t")
    static = harness.member("t", instance_id="i")
    harness.heartbeat_until_stable(other, static)
    had = set(static.owned)
    client = ClassicClient(harness, instance_id="i", cooperative=False)
    client.joined(client.join())
    assert client.sync() is ErrorCode.NONE
    assert client.owned == had
    assert static.name not in harness.group.members
    back = harness.member("t", instance_id="i")
    assert back.owned == had
    assert client.beat() is ErrorCode.FENCED_INSTANCE_ID


# ---- downgrade


def test_a_group_becomes_classic_when_its_last_consumer_member_leaves() -> None:
    harness = ConsumerHarness({"t": 4})
    new = harness.member("t")
    clients = [ClassicClient(harness), ClassicClient(harness)]
    for client in clients:
        client.joined(client.join())
        client.sync()
    settle(harness, clients, [new])
    epoch = harness.group.epoch
    new.leave()
    assert (harness.group.type, harness.state) == ("classic", "PreparingRebalance")
    assert harness.group.generation == epoch
    for client in clients:
        assert client.beat() is ErrorCode.REBALANCE_IN_PROGRESS
    pending_joins = [client.join() for client in clients]
    for client, pending in zip(clients, pending_joins, strict=True):
        client.joined(pending)
    assert {client.generation for client in clients} == {epoch + 1}
    assert pending_joins[0].response.leader in {client.name for client in clients}


def test_a_downgraded_group_survives_a_restart() -> None:
    harness = ConsumerHarness({"t": 4})
    new = harness.member("t")
    client = ClassicClient(harness)
    client.joined(client.join())
    client.sync()
    settle(harness, [client], [new])
    new.leave()
    harness.restart()
    assert (harness.group.type, list(harness.group.members)) == ("classic", [client.name])
    assert (harness.state, client.beat()) == ("Stable", ErrorCode.NONE)


def test_a_group_becomes_classic_when_the_session_of_its_last_consumer_member_expires() -> None:
    harness = ConsumerHarness({"t": 4})
    new = harness.member("t")
    client = ClassicClient(harness)
    client.joined(client.join())
    client.sync()
    settle(harness, [client], [new])
    for _ in range(9):
        harness.advance(5_000)
        client.beat()
    assert harness.group.type == "classic"
    assert list(harness.group.members) == [client.name]


def test_a_group_stays_a_consumer_group_if_downgrades_are_disabled() -> None:
    harness = ConsumerHarness({"t": 4}, allows_downgrade=False)
    new = harness.member("t")
    client = ClassicClient(harness)
    client.joined(client.join())
    client.sync()
    settle(harness, [client], [new])
    new.leave()
    new.owned.clear()
    assert harness.group.type == "consumer"
    settle(harness, [client], [])
    assert len(client.owned) == 4


def static_and_classic_member() -> tuple[ConsumerHarness, ClassicClient, Any]:
    """Create a stable consumer group with a static consumer member "i" and a classic member."""
    harness = ConsumerHarness({"t": 4})
    static = harness.member("t", instance_id="i")
    client = ClassicClient(harness)
    client.joined(client.join())
    client.sync()
    settle(harness, [client], [static])
    return harness, client, static


def test_a_group_becomes_classic_when_a_classic_static_member_replaces_its_last_consumer_member() -> None:
    harness, client, _ = static_and_classic_member()
    back = ClassicClient(harness, instance_id="i")
    waiting = back.join()
    assert harness.group.type == "classic"
    assert waiting.response is None
    assert client.beat() is ErrorCode.REBALANCE_IN_PROGRESS
    client.joined(client.join())
    back.joined(waiting)
    assert set(harness.group.members) == {client.name, back.name}


def test_a_group_stays_a_consumer_group_if_the_replacing_static_member_has_no_common_protocol() -> None:
    harness, client, static = static_and_classic_member()
    refused = harness.join(instance_id="i", protocols=(("another", subscription()),))
    assert refused.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    for _ in range(20):
        harness.advance(SESSION / 2)
        client.beat()
        static.beat()
    harness.restart()
    assert (harness.group.type, set(harness.group.members)) == ("consumer", {client.name, static.name})


def test_a_failed_write_of_a_downgrade_restores_the_consumer_group() -> None:
    harness = ConsumerHarness({"t": 4})
    new = harness.member("t")
    client = ClassicClient(harness)
    client.joined(client.join())
    client.sync()
    settle(harness, [client], [new])
    group = harness.group
    outcome = harness.shard.consumer.fence(group, [group.members[new.name]])
    assert harness.group.type == "classic"
    harness.shard.journal.undo()
    assert outcome.on_append is not None
    outcome.on_append(KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS))
    assert harness.group is group
    settle(harness, [client], [new])
