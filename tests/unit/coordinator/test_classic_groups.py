"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup in every state of a classic group."""

from __future__ import annotations

import itertools

import pytest

from kavka.common.errors import ErrorCode
from kavka.coordinator.group.state import TRANSITIONS, ClassicGroup, State
from tests.unit.coordinator.harness import DELAY, REBALANCE, SESSION, Harness, subscription


@pytest.fixture
def harness() -> Harness:
    return Harness()


# ---- joining


def test_a_new_member_gets_an_id_first_and_becomes_a_member_when_it_joins_with_the_id(harness: Harness) -> None:
    first = harness.join(client="kavka")
    assert first.code is ErrorCode.MEMBER_ID_REQUIRED
    assert first.response.member_id.startswith("kavka-")
    assert not harness.group.members
    assert harness.join(first.response.member_id).is_pending
    assert list(harness.group.members) == [first.response.member_id]


def test_before_version_4_a_new_member_joins_at_once(harness: Harness) -> None:
    assert harness.join(version=3).is_pending
    assert len(harness.group.members) == 1


def test_an_unused_member_id_expires_after_the_session_timeout(harness: Harness) -> None:
    member_id = harness.join().response.member_id
    harness.advance(SESSION)
    assert harness.join(member_id).code is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_rebalance_waits_for_clients_that_have_a_member_id_but_have_not_joined(harness: Harness) -> None:
    (first,) = harness.stable()
    pending = harness.join()
    rejoined = harness.join(first, protocols=(("range", subscription("other")),))
    assert rejoined.is_pending
    joined = harness.join(pending.response.member_id)
    assert not rejoined.is_pending
    assert not joined.is_pending


def test_the_first_rebalance_of_a_group_waits_for_more_members(harness: Harness) -> None:
    pending = harness.join_new()
    harness.advance(DELAY - 1)
    assert pending.is_pending
    harness.advance(1)
    assert pending.code is ErrorCode.NONE
    assert pending.response.generation_id == 1


def test_each_new_member_delays_the_first_rebalance_up_to_the_rebalance_timeout() -> None:
    harness = Harness()
    first = harness.join_new(rebalance=10_000)
    for _ in range(4):
        harness.advance(2_500)
        if first.is_pending:
            harness.join_new(rebalance=10_000)
    assert not first.is_pending
    assert harness.clock.ms == 10_000


def test_without_an_initial_delay_a_single_member_starts_a_generation_at_once() -> None:
    harness = Harness(initial_rebalance_delay_ms=0)
    pending = harness.join_new()
    harness.advance(0)
    assert pending.response.generation_id == 1


def test_the_leader_gets_the_metadata_of_all_members_and_followers_get_the_leader_id(harness: Harness) -> None:
    first = harness.join_new(protocols=(("range", b"one"),))
    second = harness.join_new(protocols=(("range", b"two"),))
    harness.advance(2 * DELAY)
    leader, follower = first.response, second.response
    assert leader.leader == follower.leader == leader.member_id
    assert {m.member_id: m.metadata for m in leader.members} == {leader.member_id: b"one", follower.member_id: b"two"}
    assert follower.members == []
    assert (leader.protocol_type, leader.protocol_name) == ("consumer", "range")


def test_a_session_timeout_out_of_bounds_is_refused(harness: Harness) -> None:
    for session in (5_999, 1_800_001, -1):
        assert harness.join(session=session).code is ErrorCode.INVALID_SESSION_TIMEOUT
    assert harness.shard.groups == {}


def test_an_empty_group_id_is_refused(harness: Harness) -> None:
    assert harness.join(group="").code is ErrorCode.INVALID_GROUP_ID
    assert harness.sync("m", 1, group="").code is ErrorCode.INVALID_GROUP_ID
    assert harness.heartbeat("m", 1, group="") is ErrorCode.INVALID_GROUP_ID


def test_a_member_id_in_a_missing_group_is_unknown(harness: Harness) -> None:
    assert harness.join("unknown").code is ErrorCode.UNKNOWN_MEMBER_ID
    assert harness.shard.groups == {}


def test_the_first_member_must_send_a_protocol_type_and_a_protocol(harness: Harness) -> None:
    assert harness.join(protocol_type="").code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert harness.join(protocols=()).code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert harness.shard.groups == {}


def test_a_member_without_a_common_protocol_is_refused(harness: Harness) -> None:
    harness.stable()
    assert harness.join(protocols=(("sticky", b""),)).code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert harness.join(protocol_type="connect").code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert harness.state == "Stable"


def test_the_common_protocol_with_the_most_votes_is_selected(harness: Harness) -> None:
    preferences = (("a", "b", "c"), ("b", "a"), ("b", "c", "a"))
    pending_joins = [harness.join_new(protocols=tuple((name, b"") for name in names)) for names in preferences]
    harness.wait_for(pending_joins[0])
    assert {pending.response.protocol_name for pending in pending_joins} == {"b"}


def test_a_group_changes_its_assignor_with_two_rolling_restarts(harness: Harness) -> None:
    """As Kafka documents: the first restart adds the new assignor, the second removes the old."""
    both = (("cooperative-sticky", b""), ("range", b""))
    first, second = harness.stable(2, protocols=(("range", b""),))
    for step in (both, (("cooperative-sticky", b""),)):
        for changing, other in ((first, second), (second, first)):
            pending_joins = {changing: harness.join(changing, protocols=step)}
            previous = harness.group.members[other].protocols
            pending_joins[other] = harness.join(other, protocols=previous)
            harness.finish_sync(list(pending_joins.values()))
    assert harness.group.protocol == "cooperative-sticky"


def test_a_rejoin_with_the_same_metadata_starts_a_rebalance_only_for_the_leader(
    harness: Harness,
) -> None:
    leader, follower = harness.stable(2)
    again = harness.join(follower)
    assert again.response.generation_id == 1
    assert again.response.members == []
    assert harness.state == "Stable"
    assert harness.join(leader).is_pending
    assert harness.state == "PreparingRebalance"


def test_a_rejoin_with_other_metadata_starts_a_rebalance(harness: Harness) -> None:
    _, follower = harness.stable(2)
    assert harness.join(follower, protocols=(("range", subscription("new")),)).is_pending
    assert harness.state == "PreparingRebalance"


def test_a_member_that_repeats_its_join_gets_the_same_response(harness: Harness) -> None:
    pending_joins = [harness.join_new(), harness.join_new()]
    harness.advance(2 * DELAY)
    leader, follower = (pending.response.member_id for pending in pending_joins)
    assert harness.state == "CompletingRebalance"
    assert len(harness.join(leader).response.members) == 2
    assert harness.join(follower).response.generation_id == 1
    assert harness.state == "CompletingRebalance"


def test_a_rejoin_with_other_metadata_during_a_rebalance_starts_another_rebalance(harness: Harness) -> None:
    pending_joins = [harness.join_new(), harness.join_new()]
    harness.advance(2 * DELAY)
    leader, follower = (pending.response.member_id for pending in pending_joins)
    waiting = harness.sync(follower, 1)
    assert waiting.is_pending
    assert harness.join(leader, protocols=(("range", b"changed"),)).is_pending
    assert waiting.code is ErrorCode.REBALANCE_IN_PROGRESS
    assert harness.state == "PreparingRebalance"


def test_a_second_join_of_a_member_replaces_the_pending_join(harness: Harness) -> None:
    harness.stable(2)
    leader = harness.group.leader_id
    first = harness.join(leader)
    second = harness.join(leader)
    assert first.code is ErrorCode.REBALANCE_IN_PROGRESS
    assert second.is_pending
    assert harness.group.awaiting_join_count == 1


def test_a_member_that_does_not_join_within_the_rebalance_timeout_is_removed(harness: Harness) -> None:
    first, second = harness.stable(2, session=REBALANCE * 2)
    pending = harness.join(first)
    harness.advance(REBALANCE - 1)
    assert pending.is_pending
    harness.advance(1)
    assert pending.response.generation_id == 2
    assert list(harness.group.members) == [first]
    assert harness.heartbeat(second, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_another_member_becomes_leader_when_the_leader_leaves(harness: Harness) -> None:
    leader, follower = harness.stable(2)
    pending = harness.join(follower, protocols=(("range", b"new"),))
    harness.leave((leader, None))
    assert pending.response.leader == follower
    assert [m.member_id for m in pending.response.members] == [follower]


def test_the_longest_rebalance_timeout_of_the_members_applies(harness: Harness) -> None:
    short = harness.join_new(rebalance=10_000, session=1_000_000)
    harness.join_new(rebalance=200_000, session=1_000_000)
    harness.advance(2 * DELAY)
    harness.sync(short.response.member_id, 1, {})
    pending = harness.join(short.response.member_id, rebalance=10_000, session=1_000_000)
    harness.advance(150_000)
    assert pending.is_pending
    harness.advance(50_000)
    assert pending.code is ErrorCode.NONE


def test_version_0_uses_the_session_timeout_as_rebalance_timeout(harness: Harness) -> None:
    harness.join(version=0, session=7_000, rebalance=-1)
    (member,) = harness.group.members.values()
    assert member.rebalance_timeout_ms == 7_000


def test_a_new_member_that_waits_for_five_minutes_is_removed(harness: Harness) -> None:
    (member,) = harness.stable(rebalance=1_000_000, session=1_000_000)
    new_member = harness.join_new(rebalance=1_000_000)
    harness.advance(299_999)
    assert new_member.is_pending
    harness.advance(1)
    assert new_member.code is ErrorCode.UNKNOWN_MEMBER_ID
    assert list(harness.group.members) == [member]


# ---- the maximum size of a group


def test_a_full_group_refuses_new_members() -> None:
    harness = Harness(max_size=2)
    harness.stable(2)
    refused = harness.join()
    assert refused.code is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert refused.response.member_id == ""
    assert harness.state == "Stable"


def test_only_the_first_members_join_when_more_join_than_the_maximum_size() -> None:
    harness = Harness(max_size=2)
    pending_joins = [harness.join(version=3) for _ in range(3)]
    assert pending_joins[2].code is ErrorCode.GROUP_MAX_SIZE_REACHED
    harness.advance(2 * DELAY)
    assert [pending.code for pending in pending_joins[:2]] == [ErrorCode.NONE] * 2


def test_a_loaded_group_above_the_maximum_size_refuses_the_last_members_that_rejoin() -> None:
    harness = Harness()
    members = harness.stable(3)
    harness.config = type(harness.config)(initial_rebalance_delay_ms=DELAY, max_size=2)
    harness.restart()
    assert harness.state == "PreparingRebalance"
    first, second = harness.join(members[0]), harness.join(members[1])
    assert harness.join(members[2]).code is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert [first.code, second.code] == [ErrorCode.NONE] * 2


# ---- syncing


def test_members_get_their_assignments_when_the_record_is_committed(harness: Harness) -> None:
    pending_joins = [harness.join_new(), harness.join_new()]
    harness.advance(2 * DELAY)
    leader, follower = (pending.response.member_id for pending in pending_joins)
    follower_sync = harness.sync(follower, 1)
    assert follower_sync.is_pending
    harness.hold = True
    leader_sync = harness.sync(leader, 1, {leader: b"L", follower: b"F"})
    assert follower_sync.is_pending
    assert leader_sync.is_pending
    harness.release()
    assert (leader_sync.response.assignment, follower_sync.response.assignment) == (b"L", b"F")
    assert follower_sync.response.protocol_name == "range"
    assert harness.state == "Stable"


def test_a_failed_write_of_the_assignment_fails_all_members_and_starts_a_rebalance(harness: Harness) -> None:
    pending_joins = [harness.join_new(), harness.join_new()]
    harness.advance(2 * DELAY)
    leader, follower = (pending.response.member_id for pending in pending_joins)
    follower_sync = harness.sync(follower, 1)
    harness.failure = ErrorCode.COORDINATOR_NOT_AVAILABLE
    leader_sync = harness.sync(leader, 1, {leader: b"L", follower: b"F"})
    assert leader_sync.code is follower_sync.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert harness.state == "PreparingRebalance"
    assert all(member.assignment == b"" for member in harness.group.members.values())


def test_a_too_large_assignment_is_a_server_error(harness: Harness) -> None:
    pending = harness.join_new()
    harness.advance(DELAY)
    harness.failure = ErrorCode.MESSAGE_TOO_LARGE
    assert harness.sync(pending.response.member_id, 1, {}).code is ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_rebalance_that_starts_during_the_write_discards_the_assignment(harness: Harness) -> None:
    leader, follower = harness.stable(2)
    harness.join(leader)
    harness.join(follower)
    harness.hold = True
    leader_sync = harness.sync(leader, 2, {leader: b"new"})
    harness.leave((follower, None))
    assert leader_sync.code is ErrorCode.REBALANCE_IN_PROGRESS
    harness.release()
    assert harness.state == "PreparingRebalance"


def test_assignments_of_followers_are_ignored(harness: Harness) -> None:
    pending_joins = [harness.join_new(), harness.join_new()]
    harness.advance(2 * DELAY)
    leader, follower = (pending.response.member_id for pending in pending_joins)
    forged = harness.sync(follower, 1, {leader: b"forged", follower: b"everything"})
    assert forged.is_pending
    assert harness.sync(leader, 1, {leader: b"L", follower: b"F"}).response.assignment == b"L"
    assert forged.response.assignment == b"F"


def test_an_assignment_for_an_unknown_member_is_ignored(harness: Harness) -> None:
    pending = harness.join_new()
    harness.advance(DELAY)
    member = pending.response.member_id
    assert harness.sync(member, 1, {member: b"assigned", "unknown": b"ignored"}).response.assignment == b"assigned"
    harness.restart()
    assert list(harness.group.members) == [member]


def test_a_member_that_the_leader_omits_gets_an_empty_assignment(harness: Harness) -> None:
    pending_joins = [harness.join_new(), harness.join_new()]
    harness.advance(2 * DELAY)
    leader, follower = (pending.response.member_id for pending in pending_joins)
    harness.sync(leader, 1, {leader: b"L"})
    assert harness.sync(follower, 1).response.assignment == b""


def test_a_member_of_a_stable_group_may_repeat_its_sync(harness: Harness) -> None:
    (member,) = harness.stable()
    assert harness.sync(member, 1).response.assignment == b"0"


def test_an_invalid_sync_is_refused(harness: Harness) -> None:
    (member,) = harness.stable()
    assert harness.sync("unknown", 1).code is ErrorCode.UNKNOWN_MEMBER_ID
    assert harness.sync(member, 0).code is ErrorCode.ILLEGAL_GENERATION
    assert harness.sync(member, 2).code is ErrorCode.ILLEGAL_GENERATION
    assert harness.sync(member, 1, protocol=("consumer", "sticky")).code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert harness.sync(member, 1, protocol=("connect", "range")).code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert harness.sync(member, 1, version=4, protocol=(None, None)).code is ErrorCode.NONE
    assert harness.sync(member, 1, group="other").code is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_sync_while_members_are_joining_gets_rebalance_in_progress(harness: Harness) -> None:
    leader, follower = harness.stable(2)
    harness.join(leader)
    assert harness.sync(follower, 1).code is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_member_that_does_not_sync_within_the_rebalance_timeout_is_removed(harness: Harness) -> None:
    pending_joins = [harness.join_new(session=1_000_000), harness.join_new(session=1_000_000)]
    harness.advance(2 * DELAY)
    leader, follower = (pending.response.member_id for pending in pending_joins)
    harness.sync(leader, 1, {})
    assert harness.state == "Stable"
    harness.advance(REBALANCE)
    assert harness.heartbeat(leader, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert list(harness.group.members) == [leader]
    assert harness.sync(follower, 1).code is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_second_sync_of_the_leader_replaces_the_pending_sync(harness: Harness) -> None:
    pending = harness.join_new()
    harness.advance(DELAY)
    member = pending.response.member_id
    harness.hold = True
    first = harness.sync(member, 1, {member: b"x"})
    second = harness.sync(member, 1, {member: b"x"})
    harness.release()
    assert first.code is ErrorCode.REBALANCE_IN_PROGRESS
    assert second.response.assignment == b"x"


# ---- heartbeats and sessions


def test_a_member_without_heartbeats_is_removed_after_its_session_timeout(harness: Harness) -> None:
    silent, alive = harness.stable(2)
    for _ in range(4):
        harness.advance(SESSION / 4)
        harness.heartbeat(alive, 1)
    assert silent not in harness.group.members
    assert harness.heartbeat(alive, 1) is ErrorCode.REBALANCE_IN_PROGRESS


def test_heartbeats_extend_the_session(harness: Harness) -> None:
    (member,) = harness.stable()
    for _ in range(50):
        harness.advance(SESSION - 1)
        assert harness.heartbeat(member, 1) is ErrorCode.NONE


def test_a_heartbeat_of_an_unknown_member_or_an_old_generation_is_refused(harness: Harness) -> None:
    (member,) = harness.stable()
    assert harness.heartbeat("unknown", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert harness.heartbeat(member, 0) is ErrorCode.ILLEGAL_GENERATION
    assert harness.heartbeat(member, 1, group="other") is ErrorCode.UNKNOWN_MEMBER_ID
    harness.leave((member, None))
    assert harness.heartbeat(member, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_heartbeat_between_join_and_sync_is_accepted(harness: Harness) -> None:
    pending = harness.join_new()
    harness.advance(DELAY)
    assert harness.state == "CompletingRebalance"
    assert harness.heartbeat(pending.response.member_id, 1) is ErrorCode.NONE


def test_the_session_of_a_member_with_a_pending_join_does_not_expire(harness: Harness) -> None:
    first, second = harness.stable(2)
    waiting = harness.join(first)
    for _ in range(5):
        harness.advance(SESSION - 1)
        harness.heartbeat(second, 1)
    assert waiting.is_pending
    assert harness.join(second).code is ErrorCode.NONE
    assert waiting.code is ErrorCode.NONE


def test_a_group_is_empty_and_in_the_next_generation_when_its_last_session_expires(harness: Harness) -> None:
    harness.stable()
    harness.advance(SESSION)
    assert harness.state == "Empty"
    assert harness.group.generation == 2
    harness.restart()
    assert (harness.state, harness.group.generation, harness.group.members) == ("Empty", 2, {})


# ---- leaving


def test_a_member_that_leaves_starts_a_rebalance(harness: Harness) -> None:
    first, second = harness.stable(2)
    response = harness.leave((second, None))
    assert (response.error_code, [m.error_code for m in response.members]) == (0, [0])
    assert harness.heartbeat(first, 1) is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_group_is_empty_when_its_last_member_leaves(harness: Harness) -> None:
    (member,) = harness.stable()
    harness.leave((member, None))
    assert harness.state == "Empty"
    assert harness.group.leader_id is None
    assert harness.group.protocol is None
    assert harness.group.protocol_type == "consumer"


def test_several_members_leave_at_once_and_each_gets_an_error_code(harness: Harness) -> None:
    first, second, _ = harness.stable(3)
    response = harness.leave((first, None), ("unknown", None), (second, "no-such-instance"))
    codes = [ErrorCode(m.error_code) for m in response.members]
    assert codes == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.UNKNOWN_MEMBER_ID]
    assert response.error_code == 0
    assert len(harness.group.members) == 2


def test_before_version_3_the_response_has_the_error_of_the_only_member(harness: Harness) -> None:
    (member,) = harness.stable()
    assert harness.leave(("unknown", None), version=2).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert harness.leave((member, None), version=0).error_code == 0
    assert harness.leave((member, None), version=1, group="other").error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_pending_member_may_leave(harness: Harness) -> None:
    (first,) = harness.stable()
    pending = harness.join().response.member_id
    waiting = harness.join(first)
    assert waiting.is_pending
    assert harness.leave((pending, None)).members[0].error_code == 0
    assert waiting.code is ErrorCode.NONE


def test_a_pending_join_fails_when_the_member_leaves(harness: Harness) -> None:
    first, second = harness.stable(2)
    waiting = harness.join(first)
    harness.leave((first, None))
    assert waiting.code is ErrorCode.UNKNOWN_MEMBER_ID
    harness.join(second)
    syncing = harness.sync(second, 2, {})
    assert syncing.code is ErrorCode.NONE


def test_each_member_gets_an_error_when_it_leaves_a_missing_group(harness: Harness) -> None:
    response = harness.leave(("m", None), group="other")
    assert [m.error_code for m in response.members] == [ErrorCode.UNKNOWN_MEMBER_ID]


# ---- restarts of the coordinator


def test_a_stable_group_continues_after_a_restart_of_the_coordinator(harness: Harness) -> None:
    first, second = harness.stable(2)
    harness.restart()
    assert harness.heartbeat(first, 1) is ErrorCode.NONE
    assert harness.sync(second, 1).response.assignment == b"1"
    assert harness.group.leader_id == first
    described = harness.shard.describe("a-group")
    assert (described.group_state, described.protocol_data) == ("Stable", "range")
    assert described.members[0].client_host == "/127.0.0.1"


def test_sessions_expire_after_a_restart_of_the_coordinator(harness: Harness) -> None:
    harness.stable(2)
    harness.restart()
    harness.advance(SESSION)
    assert harness.state == "Empty"


def test_a_restart_during_a_rebalance_restores_the_previous_generation(harness: Harness) -> None:
    first, second = harness.stable(2)
    harness.join(first)
    harness.join(second)
    assert harness.group.generation == 2
    harness.restart()
    assert harness.group.generation == 1
    assert harness.sync(first, 2, {}).code is ErrorCode.ILLEGAL_GENERATION
    pending_joins = [harness.join(first), harness.join(second, protocols=(("range", b"changed"),))]
    harness.finish_sync(pending_joins)
    assert harness.group.generation == 2


def test_pending_requests_get_not_coordinator_when_the_coordinator_moves(harness: Harness) -> None:
    first, _ = harness.stable(2)
    joining = harness.join(first)
    shard = harness.shard
    list(shard.on_unloaded(ErrorCode.NOT_COORDINATOR))
    assert joining.code is ErrorCode.NOT_COORDINATOR
    assert harness.timers.timers == {}
    assert shard.groups == {}


def test_a_group_with_metadata_that_cannot_be_parsed_is_served(harness: Harness) -> None:
    (member,) = harness.stable(protocols=(("range", b"\x00"),))
    assert harness.group.subscribed_topics is None
    assert harness.heartbeat(member, 1) is ErrorCode.NONE


# ---- transitions


@pytest.mark.parametrize(("start", "end"), list(itertools.product(State, State)))
def test_a_group_allows_only_the_transitions_of_the_table(start: State, end: State) -> None:
    group = ClassicGroup("g", 1)
    group.state = start
    if end in TRANSITIONS[start]:
        group.transition(end, 2)
        assert (group.state, group.state_timestamp) == (end, 2)
    else:
        with pytest.raises(RuntimeError):
            group.transition(end, 2)
        assert (group.state, group.state_timestamp) == (start, 1)
