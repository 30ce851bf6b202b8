"""ConsumerGroupHeartbeat: joining, heartbeats, assignments, leaving."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from kavka.common.errors import ErrorCode, KafkaError
from kavka.coordinator.group.consumer.config import Timing
from kavka.coordinator.group.consumer.state import GroupState, MemberState
from kavka.coordinator.operations import Outcome
from tests.unit.coordinator.consumer.harness import (
    HEARTBEAT_INTERVAL_MS,
    REBALANCE,
    SESSION,
    ConsumerHarness,
    assigned,
    topic_id,
)
from tests.unit.coordinator.harness import GROUP


def joined(harness: ConsumerHarness, name: str = "m", **fields: Any) -> Any:
    options: dict[str, Any] = {"owned": (), "topics": ("t",), "rebalance_timeout_ms": REBALANCE}
    return harness.beat(name, 0, **(options | fields))


# ---- joining


def test_the_first_member_gets_all_partitions_with_its_first_response() -> None:
    harness = ConsumerHarness({"t": 3})
    response = joined(harness)
    assert response.error_code == 0
    assert response.member_id == "m"
    assert response.member_epoch == 1
    assert response.heartbeat_interval_ms == HEARTBEAT_INTERVAL_MS
    assert assigned(harness, response) == {("t", 0), ("t", 1), ("t", 2)}
    assert harness.state == "Stable"


def test_before_version_1_the_coordinator_creates_the_member_id() -> None:
    harness = ConsumerHarness({"t": 1})
    response = joined(harness, "", version=0)
    assert len(response.member_id) == 36
    assert list(harness.group.members) == [response.member_id]


def test_a_missing_topic_is_assigned_when_it_is_created() -> None:
    harness = ConsumerHarness()
    member = harness.member("t")
    assert member.owned == set()
    assert (member.epoch, harness.state) == (1, "Stable")
    harness.topics.set("t", 2)
    harness.heartbeat_until_stable(member)
    assert member.owned == {("t", 0), ("t", 1)}
    assert member.epoch == 2


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"group": ""}, "GroupId can't be empty."),
        ({"instance_id": ""}, "InstanceId can't be empty."),
        ({"rack_id": " "}, "RackId can't be empty."),
        ({"rebalance_timeout_ms": -1}, "RebalanceTimeoutMs must be provided in first request."),
        ({"owned": None}, "TopicPartitions must be empty when (re-)joining."),
        ({"owned": [("t", 0)]}, "TopicPartitions must be empty when (re-)joining."),
        (
            {"topics": None},
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        ),
    ],
)
def test_an_incomplete_first_request_is_refused(fields: dict[str, Any], message: str) -> None:
    harness = ConsumerHarness({"t": 1})
    response = joined(harness, **fields)
    assert ErrorCode(response.error_code) is ErrorCode.INVALID_REQUEST
    assert response.error_message == message
    assert harness.log == []
    assert harness.timers.timers == {}


@pytest.mark.parametrize(
    ("epoch", "member_id", "instance_id", "message"),
    [
        (1, "", None, "MemberId can't be empty."),
        (-1, "", None, "MemberId can't be empty."),
        (-2, "m", None, "InstanceId can't be null."),
        (-3, "m", None, "MemberEpoch is invalid."),
    ],
)
def test_invalid_epochs_are_refused(epoch: int, member_id: str, instance_id: str | None, message: str) -> None:
    response = ConsumerHarness().beat(member_id, epoch, instance_id=instance_id)
    assert ErrorCode(response.error_code) is ErrorCode.INVALID_REQUEST
    assert response.error_message == message


def test_an_unknown_assignor_is_refused() -> None:
    response = joined(ConsumerHarness({"t": 1}), server_assignor="sticky")
    assert ErrorCode(response.error_code) is ErrorCode.UNSUPPORTED_ASSIGNOR
    assert "uniform, range" in response.error_message


def test_the_request_is_unsupported_if_the_protocol_is_disabled() -> None:
    harness = ConsumerHarness({"t": 1}, enabled=False)
    assert ErrorCode(joined(harness).error_code) is ErrorCode.UNSUPPORTED_VERSION


def test_a_full_group_accepts_only_its_members() -> None:
    harness = ConsumerHarness({"t": 2}, max_size=1)
    member = harness.member("t")
    assert ErrorCode(joined(harness, "other").error_code) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert member.join() is ErrorCode.NONE
    assert list(harness.group.members) == [member.name]


# ---- epochs


def test_an_epoch_that_is_not_the_members_is_fenced() -> None:
    harness = ConsumerHarness({"t": 2})
    member = harness.member("t")
    for count in (3, 4, 5):
        harness.topics.set("t", count)
        harness.heartbeat_until_stable(member)
    assert member.epoch == 4
    for epoch in (5, 2, 1):
        response = harness.beat(member.name, epoch, owned=())
        assert ErrorCode(response.error_code) is ErrorCode.FENCED_MEMBER_EPOCH, epoch


def test_an_unknown_member_gets_an_error() -> None:
    harness = ConsumerHarness({"t": 1})
    assert ErrorCode(harness.beat("m", 3).error_code) is ErrorCode.GROUP_ID_NOT_FOUND
    harness.member("t")
    assert ErrorCode(harness.beat("m", 3).error_code) is ErrorCode.UNKNOWN_MEMBER_ID
    assert ErrorCode(harness.beat("m", -1).error_code) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_whose_response_was_lost_may_send_the_previous_epoch() -> None:
    harness = ConsumerHarness({"t": 4})
    member = harness.member("t")
    epoch = member.epoch
    harness.topics.set("t", 6)
    lost = harness.beat(member.name, epoch)
    assert (lost.member_epoch, len(assigned(harness, lost))) == (epoch + 1, 6)
    # The member reports its partitions and owns only assigned partitions: it continues.
    response = harness.beat(member.name, epoch, owned=sorted(member.owned))
    assert (response.error_code, response.member_epoch) == (0, epoch + 1)
    # If it does not report its partitions, or owns other partitions, it is fenced.
    for owned in (None, [("other", 0)], [("t", 77)]):
        response = harness.beat(member.name, epoch, owned=owned)
        assert ErrorCode(response.error_code) is ErrorCode.FENCED_MEMBER_EPOCH, owned


def test_a_fenced_member_rejoins_with_its_id_and_gets_its_partitions_again() -> None:
    harness = ConsumerHarness({"t": 4})
    first, second = harness.member("t"), harness.member("t")
    harness.heartbeat_until_stable(first, second)
    previously_owned, group_epoch = set(first.owned), harness.group.epoch
    assert first.join() is ErrorCode.NONE
    assert first.owned == previously_owned
    assert harness.group.epoch == group_epoch


# ---- contents of a response


def test_a_heartbeat_that_changes_nothing_writes_nothing_and_has_no_assignment() -> None:
    harness = ConsumerHarness({"t": 3})
    member = harness.member("t")
    written = len(harness.log)
    response = harness.beat(member.name, member.epoch)
    assert response.assignment is None
    assert response.member_epoch == member.epoch
    assert len(harness.log) == written


def test_the_response_to_a_full_request_contains_the_assignment() -> None:
    harness = ConsumerHarness({"t": 2})
    member = harness.member("t")
    response = harness.beat(
        member.name, member.epoch, owned=sorted(member.owned), topics=("t",), rebalance_timeout_ms=REBALANCE
    )
    assert assigned(harness, response) == member.owned


def test_an_empty_assignment_is_sent() -> None:
    harness = ConsumerHarness({"t": 1})
    member = harness.member("t")
    response = harness.beat(member.name, member.epoch, topics=(), owned=[("t", 0)])
    assert response.assignment is not None and response.assignment.topic_partitions == []


# ---- rebalancing


def test_a_partition_is_assigned_only_after_the_old_owner_has_revoked_it() -> None:
    harness = ConsumerHarness({"t": 2})
    first = harness.member("t")
    second = harness.member("t")
    assert (second.owned, second.current.state) == (set(), MemberState.UNRELEASED_PARTITIONS)
    assert harness.state == "Reconciling"
    response = harness.beat(first.name, first.epoch, owned=sorted(first.owned))
    assert first.current.state == MemberState.UNREVOKED_PARTITIONS
    assert response.member_epoch == 1
    second.beat()
    assert second.owned == set()
    # The first member still owns both partitions.
    harness.beat(first.name, 1, owned=sorted(first.owned))
    second.beat()
    assert second.owned == set()
    retained = assigned(harness, response)
    assert len(retained) == 1
    released = harness.beat(first.name, 1, owned=sorted(retained))
    assert released.member_epoch == 2
    assert second.beat()
    assert second.owned == {("t", 0), ("t", 1)} - retained
    assert harness.state == "Stable"


def test_a_member_that_waits_for_partitions_gets_a_shorter_heartbeat_interval() -> None:
    harness = ConsumerHarness({"t": 2})
    first = harness.member("t")
    second = harness.member("t")
    assert (first.interval, second.interval) == (HEARTBEAT_INTERVAL_MS, 1_000)
    harness.heartbeat_until_stable(first, second)
    second.beat()
    assert second.interval == HEARTBEAT_INTERVAL_MS


def test_added_partitions_increment_the_epoch_and_are_assigned() -> None:
    harness = ConsumerHarness({"t": 2})
    members = [harness.member("t") for _ in range(2)]
    harness.heartbeat_until_stable(*members)
    epoch = harness.group.epoch
    harness.topics.set("t", 6)
    harness.heartbeat_until_stable(*members)
    assert harness.group.epoch == epoch + 1
    assert [len(member.owned) for member in members] == [3, 3]


def test_a_new_topic_without_subscribers_does_not_change_the_group() -> None:
    harness = ConsumerHarness({"t": 2})
    member = harness.member("t")
    written = len(harness.log)
    harness.topics.set("other", 5)
    member.beat()
    assert (len(harness.log), harness.group.epoch) == (written, 1)


def test_a_deleted_topic_is_revoked() -> None:
    harness = ConsumerHarness({"a": 1, "b": 1})
    member = harness.member("a", "b")
    assert len(member.owned) == 2
    harness.topics.remove("b")
    harness.heartbeat_until_stable(member)
    assert member.owned == {("a", 0)}
    assert list(harness.group.owners) == [topic_id("a")]


def test_unsubscribed_topics_are_revoked_at_once() -> None:
    harness = ConsumerHarness({"a": 2, "b": 2}, assignment_interval_ms=1_000)
    member = harness.member("a", "b")
    harness.clock.ms += 10
    response = harness.beat(member.name, member.epoch, topics=("a",), owned=sorted(member.owned))
    # The target is computed later, but unsubscribed topics are revoked at once.
    assert harness.state == "Assigning"
    assert assigned(harness, response) == {("a", 0), ("a", 1)}
    assert member.current.state == MemberState.UNREVOKED_PARTITIONS


def test_targets_are_computed_at_most_once_per_interval() -> None:
    harness = ConsumerHarness({"t": 4}, assignment_interval_ms=1_000)
    first = harness.member("t")
    harness.clock.ms += 500
    second = harness.member("t")
    assert harness.state == "Assigning"
    assert (second.epoch, second.owned, second.interval) == (1, set(), 1_000)
    harness.clock.ms += 500
    harness.heartbeat_until_stable(first, second)
    assert [len(first.owned), len(second.owned)] == [2, 2]


def test_settings_of_a_group_apply_at_once_and_only_to_this_group() -> None:
    harness = ConsumerHarness({"t": 2})
    member, other = harness.member("t"), joined(harness, "other", group="other")
    harness.advance(10_000)
    harness.timings[GROUP] = Timing(session_timeout_ms=20_000, heartbeat_interval_ms=7_000)
    harness.shard.consumer.on_settings(GROUP)
    harness.advance(19_999)
    member.beat()
    other = harness.beat("other", other.member_epoch, group="other")
    assert (member.interval, other.heartbeat_interval_ms) == (7_000, HEARTBEAT_INTERVAL_MS)
    harness.advance(20_000)
    assert harness.state == "Empty"
    assert list(harness.shard.groups["other"].members) == ["other"]


def test_a_shorter_session_timeout_applies_to_silent_members() -> None:
    harness = ConsumerHarness({"t": 2})
    harness.member("t")
    harness.timings[GROUP] = Timing(session_timeout_ms=20_000)
    harness.shard.consumer.on_settings(GROUP)
    harness.advance(20_000)
    assert harness.state == "Empty"
    harness.shard.consumer.on_settings("nothing")


def test_the_session_timeout_of_a_group_applies_after_a_restart() -> None:
    harness = ConsumerHarness({"t": 2})
    harness.member("t")
    harness.timings[GROUP] = Timing(session_timeout_ms=20_000)
    harness.restart()
    harness.advance(20_000)
    assert harness.state == "Empty"


def test_the_assignment_interval_can_be_set_per_group() -> None:
    harness = ConsumerHarness({"t": 4}, assignment_interval_ms=1_000)
    harness.timings[GROUP] = Timing(assignment_interval_ms=0)
    first = harness.member("t")
    harness.clock.ms += 10
    second = harness.member("t")
    harness.heartbeat_until_stable(first, second)
    assert [len(first.owned), len(second.owned)] == [2, 2]


def test_members_may_choose_the_assignor_and_the_majority_wins() -> None:
    harness = ConsumerHarness({"a": 3, "b": 3})
    members = [harness.member("a", "b", server_assignor="range") for _ in range(2)]
    members.append(harness.member("a", "b", server_assignor="uniform"))
    harness.heartbeat_until_stable(*members)
    for member in members:
        numbers = Counter(partition for _, partition in member.owned)
        assert set(numbers.values()) == {2}
    epoch = harness.group.epoch
    for member in members[:2]:
        member.beat(server_assignor="uniform")
    assert harness.group.epoch > epoch
    assert harness.shard.describe_consumer(GROUP).assignor_name == "uniform"


# ---- leaving and timeouts


def test_partitions_of_a_member_that_leaves_are_assigned_to_other_members() -> None:
    harness = ConsumerHarness({"t": 4})
    first, second = harness.member("t"), harness.member("t")
    harness.heartbeat_until_stable(first, second)
    response = harness.beat(second.name, -1)
    assert (response.error_code, response.member_epoch) == (0, -1)
    assert list(harness.group.members) == [first.name]
    harness.heartbeat_until_stable(first)
    assert len(first.owned) == 4


def test_a_group_without_members_is_empty_and_its_epoch_increases() -> None:
    harness = ConsumerHarness({"t": 1})
    member = harness.member("t")
    member.leave()
    assert (harness.state, harness.group.epoch) == ("Empty", 2)
    assert harness.timers.timers == {}
    member.join()
    assert (harness.state, member.epoch) == ("Stable", 3)


def test_a_member_without_heartbeats_is_removed_after_its_session_timeout() -> None:
    harness = ConsumerHarness({"t": 2})
    first, second = harness.member("t"), harness.member("t")
    harness.heartbeat_until_stable(first, second)
    harness.advance(SESSION - 1)
    assert len(harness.group.members) == 2
    first.beat()
    harness.advance(1)
    assert list(harness.group.members) == [first.name]
    harness.heartbeat_until_stable(first)
    assert len(first.owned) == 2
    response = harness.beat(second.name, second.epoch)
    assert ErrorCode(response.error_code) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_does_not_revoke_in_time_is_removed() -> None:
    harness = ConsumerHarness({"t": 2})
    first = harness.member("t", rebalance_ms=20_000)
    second = harness.member("t")
    harness.beat(first.name, first.epoch, owned=sorted(first.owned))
    for _ in range(4):
        harness.advance(5_000)
        harness.beat(first.name, first.epoch)
        second.beat()
    assert list(harness.group.members) == [second.name]
    harness.heartbeat_until_stable(second)
    assert len(second.owned) == 2


def test_a_member_that_revoked_in_time_stays() -> None:
    harness = ConsumerHarness({"t": 2})
    first = harness.member("t", rebalance_ms=20_000)
    second = harness.member("t")
    harness.heartbeat_until_stable(first, second)
    for _ in range(8):
        harness.advance(5_000)
        first.beat()
        second.beat()
    assert len(harness.group.members) == 2


def test_session_and_rebalance_timeouts_apply_after_a_restart() -> None:
    harness = ConsumerHarness({"t": 2})
    first = harness.member("t", rebalance_ms=20_000)
    second = harness.member("t")
    harness.beat(first.name, first.epoch, owned=sorted(first.owned))
    harness.restart()
    for _ in range(4):
        harness.advance(5_000)
        harness.beat(first.name, first.epoch)
        second.beat()
    assert list(harness.group.members) == [second.name]
    harness.restart()
    harness.advance(SESSION)
    assert harness.state == "Empty"


def test_a_member_whose_removal_cannot_be_written_is_removed_later() -> None:
    harness = ConsumerHarness({"t": 1})
    harness.member("t")
    harness.failure = ErrorCode.NOT_ENOUGH_REPLICAS
    with pytest.raises(KafkaError):
        harness.advance(SESSION)
    assert len(harness.group.members) == 1
    harness.failure = None
    harness.advance(1_000)
    assert harness.state == "Empty"


def test_a_change_of_topics_is_detected_again_after_a_failed_write() -> None:
    harness = ConsumerHarness({"t": 1})
    member = harness.member("t")
    harness.topics.set("t", 2)
    harness.failure = ErrorCode.NOT_ENOUGH_REPLICAS
    assert harness.beat(member.name, member.epoch).error_code
    harness.failure = None
    harness.heartbeat_until_stable(member)
    assert len(member.owned) == 2


# ---- static members


def test_a_static_member_that_leaves_temporarily_keeps_its_partitions() -> None:
    harness = ConsumerHarness({"t": 4})
    static, other = harness.member("t", instance_id="i"), harness.member("t")
    harness.heartbeat_until_stable(static, other)
    previously_owned, epoch = set(static.owned), harness.group.epoch
    static.leave()
    assert harness.group.members[static.name].epoch == -2
    other.beat()
    assert len(other.owned) == 2
    back = harness.member("t", instance_id="i")
    assert back.owned == previously_owned
    assert harness.group.epoch == epoch
    assert set(harness.group.members) == {other.name, back.name}
    response = harness.beat(static.name, epoch, instance_id="i")
    assert ErrorCode(response.error_code) is ErrorCode.FENCED_INSTANCE_ID


def test_an_absent_static_member_is_removed_after_its_session_timeout() -> None:
    harness = ConsumerHarness({"t": 2})
    static, other = harness.member("t", instance_id="i"), harness.member("t")
    harness.heartbeat_until_stable(static, other)
    static.leave()
    harness.advance(SESSION - 1)
    other.beat()
    harness.advance(1)
    harness.heartbeat_until_stable(other)
    assert len(other.owned) == 2


def test_an_instance_id_in_use_is_refused() -> None:
    harness = ConsumerHarness({"t": 1})
    harness.member("t", instance_id="i")
    response = joined(harness, "other", instance_id="i")
    assert ErrorCode(response.error_code) is ErrorCode.UNRELEASED_INSTANCE_ID


def test_a_static_member_may_leave_permanently() -> None:
    harness = ConsumerHarness({"t": 1})
    static = harness.member("t", instance_id="i")
    assert ErrorCode(harness.beat(static.name, -1, instance_id="j").error_code) is ErrorCode.UNKNOWN_MEMBER_ID
    assert ErrorCode(harness.beat("x", -1, instance_id="i").error_code) is ErrorCode.FENCED_INSTANCE_ID
    harness.beat(static.name, -1, instance_id="i")
    assert harness.state == "Empty"
    assert harness.group.static_members == {}


def test_a_static_member_that_rejoins_with_other_topics_gets_their_partitions() -> None:
    harness = ConsumerHarness({"a": 1, "b": 1})
    static = harness.member("a", instance_id="i")
    static.leave()
    back = harness.member("b", instance_id="i")
    harness.heartbeat_until_stable(back)
    assert back.owned == {("b", 0)}


# ---- patterns


def test_a_pattern_is_resolved_by_the_coordinator_with_the_first_heartbeat() -> None:
    harness = ConsumerHarness({"foo-1": 1, "foo-2": 1, "bar": 1})
    member = harness.member(pattern="foo.*")
    assert member.owned == {("foo-1", 0), ("foo-2", 0)}
    harness.topics.set("foo-3", 1)
    harness.heartbeat_until_stable(member)
    assert ("foo-3", 0) in member.owned
    harness.topics.remove("foo-1")
    harness.heartbeat_until_stable(member)
    assert member.owned == {("foo-2", 0), ("foo-3", 0)}


def test_topic_names_and_a_pattern_are_combined() -> None:
    harness = ConsumerHarness({"foo-1": 1, "bar": 1})
    member = harness.member("bar", pattern="foo.*")
    assert member.owned == {("foo-1", 0), ("bar", 0)}


def test_an_unused_pattern_is_removed() -> None:
    harness = ConsumerHarness({"foo-1": 1, "bar": 1})
    first, second = harness.member(pattern="foo.*"), harness.member(pattern="foo.*")
    harness.heartbeat_until_stable(first, second)
    first.beat(pattern="", topics=("bar",))
    assert "foo.*" in harness.group.patterns
    harness.heartbeat_until_stable(first, second)
    assert (first.owned, second.owned) == ({("bar", 0)}, {("foo-1", 0)})
    second.leave()
    assert harness.group.patterns == {}


@pytest.mark.parametrize("pattern", ["(", "a**", "(?=a)", r"(a)\1", "a{1,2000}"])
def test_an_invalid_pattern_is_refused_and_changes_nothing(pattern: str) -> None:
    harness = ConsumerHarness({"a": 1})
    response = joined(harness, topics=None, pattern=pattern)
    assert ErrorCode(response.error_code) is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert (harness.log, harness.shard.groups, harness.timers.timers) == ([], {}, {})


def test_patterns_survive_a_restart() -> None:
    harness = ConsumerHarness({"foo-1": 1})
    member = harness.member(pattern="foo.*")
    harness.restart()
    written, epoch = len(harness.log), member.epoch
    member.beat()
    assert (len(harness.log), member.epoch) == (written, epoch)
    assert harness.group.subscribes_to("foo-1")


# ---- groups


def test_a_group_survives_a_restart() -> None:
    harness = ConsumerHarness({"t": 5})
    members = [harness.member("t"), harness.member("t", instance_id="i"), harness.member("t", rack_id="r")]
    before = [vars_of(harness.group)]
    harness.restart()
    before.append(vars_of(harness.group))
    assert before[0] == before[1]
    harness.heartbeat_until_stable(*members)
    assert Counter(partition for member in members for partition in member.owned) == Counter(("t", n) for n in range(5))


def vars_of(group: Any) -> dict[str, Any]:
    return {name: getattr(group, name) for name in group.__slots__}


def test_undoing_a_change_restores_the_group() -> None:
    harness = ConsumerHarness({"t": 3})
    first = harness.member("t")
    harness.heartbeat_until_stable(first)
    group = harness.group
    before = vars_of(group.copy())

    def replay_and_undo(outcome: Outcome) -> Any:
        for record in outcome.records:
            harness.shard.replay(record)
        harness.shard.journal.undo()
        return outcome.response

    harness.submit = replay_and_undo  # type: ignore[method-assign]
    harness.member("t", instance_id="i")
    first.beat(topics=())
    harness.beat(first.name, -1)
    assert harness.group is group
    assert vars_of(group) == before


def test_an_empty_group_can_be_deleted_with_all_its_records() -> None:
    harness = ConsumerHarness({"t": 1, "foo": 1})
    member = harness.member("t", pattern="f.*")
    assert _code(harness, "delete_group", GROUP) is ErrorCode.NON_EMPTY_GROUP
    member.leave()
    harness.submit(harness.shard.delete_group(GROUP))
    assert harness.shard.groups == {}
    last_values: dict[bytes, bytes | None] = {}
    for key, value in harness.log:
        last_values[key] = value
    assert set(last_values.values()) == {None}
    harness.restart()
    assert harness.shard.groups == {}


def _code(harness: ConsumerHarness, operation: str, *args: Any) -> ErrorCode:
    try:
        harness.submit(getattr(harness.shard, operation)(*args))
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


def test_groups_are_listed_by_state_and_type() -> None:
    harness = ConsumerHarness({"t": 1})
    harness.member("t")
    (listed,) = harness.shard.list(frozenset(), frozenset())
    assert (listed.group_state, listed.group_type, listed.protocol_type) == ("Stable", "consumer", "consumer")
    assert harness.shard.list(frozenset(["stable"]), frozenset(["consumer"]))
    assert not harness.shard.list(frozenset(["empty"]), frozenset())
    assert not harness.shard.list(frozenset(), frozenset(["classic"]))
    assert GroupState(listed.group_state) is GroupState.STABLE


def test_a_description_has_current_and_target_assignments() -> None:
    harness = ConsumerHarness({"t": 2})
    first = harness.member("t", instance_id="i", rack_id="r")
    second = harness.member("t")
    described = harness.shard.describe_consumer(GROUP)
    assert (described.group_state, described.group_epoch, described.assignment_epoch) == ("Reconciling", 2, 2)
    described_first, described_second = described.members
    assert (
        described_first.member_id,
        described_first.instance_id,
        described_first.rack_id,
        described_first.member_type,
    ) == (first.name, "i", "r", 1)
    assert [t.partitions for t in described_first.assignment.topic_partitions] == [[0, 1]]
    assert [t.topic_name for t in described_first.target_assignment.topic_partitions] == ["t"]
    assert described_second.assignment.topic_partitions == []
    assert [len(t.partitions) for t in described_second.target_assignment.topic_partitions] == [1]
    assert described_second.member_id == second.name
    assert _code(harness, "describe_consumer", "other") is ErrorCode.GROUP_ID_NOT_FOUND


def test_describe_groups_does_not_find_a_consumer_group() -> None:
    harness = ConsumerHarness({"t": 1})
    harness.member("t")
    assert _code(harness, "describe", GROUP) is ErrorCode.GROUP_ID_NOT_FOUND
