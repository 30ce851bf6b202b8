"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup in every state of a classic group."""

from __future__ import annotations

import itertools

import pytest

from kavka.common.errors import ErrorCode
from kavka.coordinator.group.state import TRANSITIONS, ClassicGroup, State
from tests.unit.coordinator.harness import DELAY, REBALANCE, SESSION, Harness, subscription


@pytest.fixture
def group() -> Harness:
    return Harness()


# ---- joining


def test_a_new_member_gets_an_id_first_and_becomes_a_member_when_it_joins_with_the_id(group: Harness) -> None:
    first = group.join(client="kavka")
    assert first.code is ErrorCode.MEMBER_ID_REQUIRED
    assert first.response.member_id.startswith("kavka-")
    assert not group.group.members
    assert group.join(first.response.member_id).is_pending
    assert list(group.group.members) == [first.response.member_id]


def test_before_version_4_a_new_member_joins_at_once(group: Harness) -> None:
    assert group.join(version=3).is_pending
    assert len(group.group.members) == 1


def test_an_unused_member_id_expires_after_the_session_timeout(group: Harness) -> None:
    member_id = group.join().response.member_id
    group.advance(SESSION)
    assert group.join(member_id).code is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_rebalance_waits_for_clients_that_have_a_member_id_but_have_not_joined(group: Harness) -> None:
    (first,) = group.stable()
    pending = group.join()
    rejoined = group.join(first, protocols=(("range", subscription("other")),))
    assert rejoined.is_pending
    joined = group.join(pending.response.member_id)
    assert not rejoined.is_pending
    assert not joined.is_pending


def test_the_first_rebalance_of_a_group_waits_for_more_members(group: Harness) -> None:
    pending = group.join_new()
    group.advance(DELAY - 1)
    assert pending.is_pending
    group.advance(1)
    assert pending.code is ErrorCode.NONE
    assert pending.response.generation_id == 1


def test_each_new_member_delays_the_first_rebalance_up_to_the_rebalance_timeout() -> None:
    group = Harness()
    first = group.join_new(rebalance=10_000)
    for _ in range(4):
        group.advance(2_500)
        if first.is_pending:
            group.join_new(rebalance=10_000)
    assert not first.is_pending
    assert group.clock.ms == 10_000


def test_without_an_initial_delay_a_single_member_starts_a_generation_at_once() -> None:
    group = Harness(initial_rebalance_delay_ms=0)
    pending = group.join_new()
    group.advance(0)
    assert pending.response.generation_id == 1


def test_the_leader_gets_the_metadata_of_all_members_and_followers_get_the_leader_id(group: Harness) -> None:
    first = group.join_new(protocols=(("range", b"one"),))
    second = group.join_new(protocols=(("range", b"two"),))
    group.advance(2 * DELAY)
    leader, follower = first.response, second.response
    assert leader.leader == follower.leader == leader.member_id
    assert {m.member_id: m.metadata for m in leader.members} == {leader.member_id: b"one", follower.member_id: b"two"}
    assert follower.members == []
    assert (leader.protocol_type, leader.protocol_name) == ("consumer", "range")


def test_a_session_timeout_out_of_bounds_is_refused(group: Harness) -> None:
    for session in (5_999, 1_800_001, -1):
        assert group.join(session=session).code is ErrorCode.INVALID_SESSION_TIMEOUT
    assert group.shard.groups == {}


def test_an_empty_group_id_is_refused(group: Harness) -> None:
    assert group.join(group="").code is ErrorCode.INVALID_GROUP_ID
    assert group.sync("m", 1, group="").code is ErrorCode.INVALID_GROUP_ID
    assert group.heartbeat("m", 1, group="") is ErrorCode.INVALID_GROUP_ID


def test_a_member_id_in_a_missing_group_is_unknown(group: Harness) -> None:
    assert group.join("unknown").code is ErrorCode.UNKNOWN_MEMBER_ID
    assert group.shard.groups == {}


def test_the_first_member_must_send_a_protocol_type_and_a_protocol(group: Harness) -> None:
    assert group.join(protocol_type="").code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert group.join(protocols=()).code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert group.shard.groups == {}


def test_a_member_without_a_common_protocol_is_refused(group: Harness) -> None:
    group.stable()
    assert group.join(protocols=(("sticky", b""),)).code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert group.join(protocol_type="connect").code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert group.state == "Stable"


def test_the_common_protocol_with_the_most_votes_is_selected(group: Harness) -> None:
    preferences = (("a", "b", "c"), ("b", "a"), ("b", "c", "a"))
    pending_joins = [group.join_new(protocols=tuple((name, b"") for name in names)) for names in preferences]
    group.wait_for(pending_joins[0])
    assert {pending.response.protocol_name for pending in pending_joins} == {"b"}


def test_a_group_changes_its_assignor_by_a_rolling_update(group: Harness) -> None:
    """As documented: first all members support both assignors, then they drop the old one."""
    both = (("cooperative-sticky", b""), ("range", b""))
    first, second = group.stable(2, protocols=(("range", b""),))
    for step in (both, (("cooperative-sticky", b""),)):
        for changing, other in ((first, second), (second, first)):
            pending_joins = {changing: group.join(changing, protocols=step)}
            previous = group.group.members[other].protocols
            pending_joins[other] = group.join(other, protocols=previous)
            group.finish_sync(list(pending_joins.values()))
    assert group.group.protocol == "cooperative-sticky"


def test_a_rejoin_with_the_same_metadata_starts_a_rebalance_only_for_the_leader(
    group: Harness,
) -> None:
    leader, follower = group.stable(2)
    again = group.join(follower)
    assert again.response.generation_id == 1
    assert again.response.members == []
    assert group.state == "Stable"
    assert group.join(leader).is_pending
    assert group.state == "PreparingRebalance"


def test_a_rejoin_with_other_metadata_starts_a_rebalance(group: Harness) -> None:
    _, follower = group.stable(2)
    assert group.join(follower, protocols=(("range", subscription("new")),)).is_pending
    assert group.state == "PreparingRebalance"


def test_a_member_that_repeats_its_join_gets_the_same_response(group: Harness) -> None:
    pending_joins = [group.join_new(), group.join_new()]
    group.advance(2 * DELAY)
    leader, follower = (pending.response.member_id for pending in pending_joins)
    assert group.state == "CompletingRebalance"
    assert len(group.join(leader).response.members) == 2
    assert group.join(follower).response.generation_id == 1
    assert group.state == "CompletingRebalance"


def test_a_rejoin_with_other_metadata_during_a_rebalance_starts_another_rebalance(group: Harness) -> None:
    pending_joins = [group.join_new(), group.join_new()]
    group.advance(2 * DELAY)
    leader, follower = (pending.response.member_id for pending in pending_joins)
    waiting = group.sync(follower, 1)
    assert waiting.is_pending
    assert group.join(leader, protocols=(("range", b"changed"),)).is_pending
    assert waiting.code is ErrorCode.REBALANCE_IN_PROGRESS
    assert group.state == "PreparingRebalance"


def test_a_second_join_of_a_member_replaces_the_pending_join(group: Harness) -> None:
    group.stable(2)
    leader = group.group.leader_id
    first = group.join(leader)
    second = group.join(leader)
    assert first.code is ErrorCode.REBALANCE_IN_PROGRESS
    assert second.is_pending
    assert group.group.awaiting_join_count == 1


def test_a_member_that_does_not_join_within_the_rebalance_timeout_is_removed(group: Harness) -> None:
    first, second = group.stable(2, session=REBALANCE * 2)
    pending = group.join(first)
    group.advance(REBALANCE - 1)
    assert pending.is_pending
    group.advance(1)
    assert pending.response.generation_id == 2
    assert list(group.group.members) == [first]
    assert group.heartbeat(second, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_another_member_becomes_leader_when_the_leader_leaves(group: Harness) -> None:
    leader, follower = group.stable(2)
    pending = group.join(follower, protocols=(("range", b"new"),))
    group.leave((leader, None))
    assert pending.response.leader == follower
    assert [m.member_id for m in pending.response.members] == [follower]


def test_the_longest_rebalance_timeout_of_the_members_applies(group: Harness) -> None:
    short = group.join_new(rebalance=10_000, session=1_000_000)
    group.join_new(rebalance=200_000, session=1_000_000)
    group.advance(2 * DELAY)
    group.sync(short.response.member_id, 1, {})
    pending = group.join(short.response.member_id, rebalance=10_000, session=1_000_000)
    group.advance(150_000)
    assert pending.is_pending
    group.advance(50_000)
    assert pending.code is ErrorCode.NONE


def test_version_0_uses_the_session_timeout_as_rebalance_timeout(group: Harness) -> None:
    group.join(version=0, session=7_000, rebalance=-1)
    (member,) = group.group.members.values()
    assert member.rebalance_timeout_ms == 7_000


def test_a_new_member_that_waits_for_five_minutes_is_removed(group: Harness) -> None:
    (member,) = group.stable(rebalance=1_000_000, session=1_000_000)
    new_member = group.join_new(rebalance=1_000_000)
    group.advance(299_999)
    assert new_member.is_pending
    group.advance(1)
    assert new_member.code is ErrorCode.UNKNOWN_MEMBER_ID
    assert list(group.group.members) == [member]


# ---- the maximum size of a group


def test_a_full_group_refuses_new_members() -> None:
    group = Harness(max_size=2)
    group.stable(2)
    refused = group.join()
    assert refused.code is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert refused.response.member_id == ""
    assert group.state == "Stable"


def test_only_the_first_members_join_when_more_join_than_the_maximum_size() -> None:
    group = Harness(max_size=2)
    pending_joins = [group.join(version=3) for _ in range(3)]
    assert pending_joins[2].code is ErrorCode.GROUP_MAX_SIZE_REACHED
    group.advance(2 * DELAY)
    assert [a.code for a in pending_joins[:2]] == [ErrorCode.NONE] * 2


def test_a_loaded_group_above_the_maximum_size_refuses_the_last_members_that_rejoin() -> None:
    group = Harness()
    members = group.stable(3)
    group.config = type(group.config)(initial_rebalance_delay_ms=DELAY, max_size=2)
    group.restart()
    assert group.state == "PreparingRebalance"
    first, second = group.join(members[0]), group.join(members[1])
    assert group.join(members[2]).code is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert [first.code, second.code] == [ErrorCode.NONE] * 2


# ---- syncing


def test_members_get_their_assignments_when_the_record_is_committed(group: Harness) -> None:
    pending_joins = [group.join_new(), group.join_new()]
    group.advance(2 * DELAY)
    leader, follower = (pending.response.member_id for pending in pending_joins)
    follower_sync = group.sync(follower, 1)
    assert follower_sync.is_pending
    group.hold = True
    leader_sync = group.sync(leader, 1, {leader: b"L", follower: b"F"})
    assert follower_sync.is_pending
    assert leader_sync.is_pending
    group.release()
    assert (leader_sync.response.assignment, follower_sync.response.assignment) == (b"L", b"F")
    assert follower_sync.response.protocol_name == "range"
    assert group.state == "Stable"


def test_a_failed_write_of_the_assignment_fails_all_members_and_starts_a_rebalance(group: Harness) -> None:
    pending_joins = [group.join_new(), group.join_new()]
    group.advance(2 * DELAY)
    leader, follower = (pending.response.member_id for pending in pending_joins)
    follower_sync = group.sync(follower, 1)
    group.failure = ErrorCode.COORDINATOR_NOT_AVAILABLE
    leader_sync = group.sync(leader, 1, {leader: b"L", follower: b"F"})
    assert leader_sync.code is follower_sync.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert group.state == "PreparingRebalance"
    assert all(member.assignment == b"" for member in group.group.members.values())


def test_a_too_large_assignment_is_a_server_error(group: Harness) -> None:
    pending = group.join_new()
    group.advance(DELAY)
    group.failure = ErrorCode.MESSAGE_TOO_LARGE
    assert group.sync(pending.response.member_id, 1, {}).code is ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_rebalance_that_starts_during_the_write_discards_the_assignment(group: Harness) -> None:
    leader, follower = group.stable(2)
    group.join(leader)
    group.join(follower)
    group.hold = True
    leader_sync = group.sync(leader, 2, {leader: b"new"})
    group.leave((follower, None))
    assert leader_sync.code is ErrorCode.REBALANCE_IN_PROGRESS
    group.release()
    assert group.state == "PreparingRebalance"


def test_assignments_of_followers_are_ignored(group: Harness) -> None:
    pending_joins = [group.join_new(), group.join_new()]
    group.advance(2 * DELAY)
    leader, follower = (pending.response.member_id for pending in pending_joins)
    forged = group.sync(follower, 1, {leader: b"forged", follower: b"everything"})
    assert forged.is_pending
    assert group.sync(leader, 1, {leader: b"L", follower: b"F"}).response.assignment == b"L"
    assert forged.response.assignment == b"F"


def test_an_assignment_for_an_unknown_member_is_ignored(group: Harness) -> None:
    pending = group.join_new()
    group.advance(DELAY)
    member = pending.response.member_id
    assert group.sync(member, 1, {member: b"assigned", "unknown": b"ignored"}).response.assignment == b"assigned"
    group.restart()
    assert list(group.group.members) == [member]


def test_a_member_that_the_leader_omits_gets_an_empty_assignment(group: Harness) -> None:
    pending_joins = [group.join_new(), group.join_new()]
    group.advance(2 * DELAY)
    leader, follower = (pending.response.member_id for pending in pending_joins)
    group.sync(leader, 1, {leader: b"L"})
    assert group.sync(follower, 1).response.assignment == b""


def test_a_member_of_a_stable_group_may_repeat_its_sync(group: Harness) -> None:
    (member,) = group.stable()
    assert group.sync(member, 1).response.assignment == b"0"


def test_an_invalid_sync_is_refused(group: Harness) -> None:
    (member,) = group.stable()
    assert group.sync("unknown", 1).code is ErrorCode.UNKNOWN_MEMBER_ID
    assert group.sync(member, 0).code is ErrorCode.ILLEGAL_GENERATION
    assert group.sync(member, 2).code is ErrorCode.ILLEGAL_GENERATION
    assert group.sync(member, 1, protocol=("consumer", "sticky")).code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert group.sync(member, 1, protocol=("connect", "range")).code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert group.sync(member, 1, version=4, protocol=(None, None)).code is ErrorCode.NONE
    assert group.sync(member, 1, group="other").code is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_sync_while_members_are_joining_gets_rebalance_in_progress(group: Harness) -> None:
    leader, follower = group.stable(2)
    group.join(leader)
    assert group.sync(follower, 1).code is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_member_that_does_not_sync_within_the_rebalance_timeout_is_removed(group: Harness) -> None:
    pending_joins = [group.join_new(session=1_000_000), group.join_new(session=1_000_000)]
    group.advance(2 * DELAY)
    leader, follower = (pending.response.member_id for pending in pending_joins)
    group.sync(leader, 1, {})
    assert group.state == "Stable"
    group.advance(REBALANCE)
    assert group.heartbeat(leader, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert list(group.group.members) == [leader]
    assert group.sync(follower, 1).code is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_leader_that_repeats_its_sync_gets_two_responses(group: Harness) -> None:
    pending = group.join_new()
    group.advance(DELAY)
    member = pending.response.member_id
    group.hold = True
    first = group.sync(member, 1, {member: b"x"})
    second = group.sync(member, 1, {member: b"x"})
    group.release()
    assert first.code is ErrorCode.REBALANCE_IN_PROGRESS
    assert second.response.assignment == b"x"


# ---- heartbeats and sessions


def test_a_member_without_heartbeats_is_removed_after_its_session_timeout(group: Harness) -> None:
    silent, alive = group.stable(2)
    for _ in range(4):
        group.advance(SESSION / 4)
        group.heartbeat(alive, 1)
    assert silent not in group.group.members
    assert group.heartbeat(alive, 1) is ErrorCode.REBALANCE_IN_PROGRESS


def test_heartbeats_extend_the_session(group: Harness) -> None:
    (member,) = group.stable()
    for _ in range(50):
        group.advance(SESSION - 1)
        assert group.heartbeat(member, 1) is ErrorCode.NONE


def test_a_heartbeat_of_an_unknown_member_or_an_old_generation_is_refused(group: Harness) -> None:
    (member,) = group.stable()
    assert group.heartbeat("unknown", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert group.heartbeat(member, 0) is ErrorCode.ILLEGAL_GENERATION
    assert group.heartbeat(member, 1, group="other") is ErrorCode.UNKNOWN_MEMBER_ID
    group.leave((member, None))
    assert group.heartbeat(member, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_heartbeat_between_join_and_sync_is_accepted(group: Harness) -> None:
    pending = group.join_new()
    group.advance(DELAY)
    assert group.state == "CompletingRebalance"
    assert group.heartbeat(pending.response.member_id, 1) is ErrorCode.NONE


def test_the_session_of_a_member_with_a_pending_join_does_not_expire(group: Harness) -> None:
    first, second = group.stable(2)
    waiting = group.join(first)
    for _ in range(5):
        group.advance(SESSION - 1)
        group.heartbeat(second, 1)
    assert waiting.is_pending
    assert group.join(second).code is ErrorCode.NONE
    assert waiting.code is ErrorCode.NONE


def test_a_group_is_empty_and_in_the_next_generation_when_its_last_session_expires(group: Harness) -> None:
    group.stable()
    group.advance(SESSION)
    assert group.state == "Empty"
    assert group.group.generation == 2
    group.restart()
    assert (group.state, group.group.generation, group.group.members) == ("Empty", 2, {})


# ---- leaving


def test_a_member_that_leaves_starts_a_rebalance(group: Harness) -> None:
    first, second = group.stable(2)
    response = group.leave((second, None))
    assert (response.error_code, [m.error_code for m in response.members]) == (0, [0])
    assert group.heartbeat(first, 1) is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_group_is_empty_when_its_last_member_leaves(group: Harness) -> None:
    (member,) = group.stable()
    group.leave((member, None))
    assert group.state == "Empty"
    assert group.group.leader_id is None
    assert group.group.protocol is None
    assert group.group.protocol_type == "consumer"


def test_several_members_leave_at_once_and_each_gets_an_error_code(group: Harness) -> None:
    first, second, _ = group.stable(3)
    response = group.leave((first, None), ("unknown", None), (second, "no-such-instance"))
    codes = [ErrorCode(m.error_code) for m in response.members]
    assert codes == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.UNKNOWN_MEMBER_ID]
    assert response.error_code == 0
    assert len(group.group.members) == 2


def test_before_version_3_the_response_has_the_error_of_the_only_member(group: Harness) -> None:
    (member,) = group.stable()
    assert group.leave(("unknown", None), version=2).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert group.leave((member, None), version=0).error_code == 0
    assert group.leave((member, None), version=1, group="other").error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_pending_member_may_leave(group: Harness) -> None:
    (first,) = group.stable()
    pending = group.join().response.member_id
    waiting = group.join(first)
    assert waiting.is_pending
    assert group.leave((pending, None)).members[0].error_code == 0
    assert waiting.code is ErrorCode.NONE


def test_a_pending_join_fails_when_the_member_leaves(group: Harness) -> None:
    first, second = group.stable(2)
    waiting = group.join(first)
    group.leave((first, None))
    assert waiting.code is ErrorCode.UNKNOWN_MEMBER_ID
    group.join(second)
    syncing = group.sync(second, 2, {})
    assert syncing.code is ErrorCode.NONE


def test_each_member_gets_an_error_when_it_leaves_a_missing_group(group: Harness) -> None:
    response = group.leave(("m", None), group="other")
    assert [m.error_code for m in response.members] == [ErrorCode.UNKNOWN_MEMBER_ID]


# ---- restarts of the coordinator


def test_a_stable_group_continues_after_a_restart_of_the_coordinator(group: Harness) -> None:
    first, second = group.stable(2)
    group.restart()
    assert group.heartbeat(first, 1) is ErrorCode.NONE
    assert group.sync(second, 1).response.assignment == b"1"
    assert group.group.leader_id == first
    described = group.shard.describe("a-group")
    assert (described.group_state, described.protocol_data) == ("Stable", "range")
    assert described.members[0].client_host == "/127.0.0.1"


def test_sessions_expire_after_a_restart_of_the_coordinator(group: Harness) -> None:
    group.stable(2)
    group.restart()
    group.advance(SESSION)
    assert group.state == "Empty"


def test_a_restart_during_a_rebalance_restores_the_previous_generation(group: Harness) -> None:
    first, second = group.stable(2)
    group.join(first)
    group.join(second)
    assert group.group.generation == 2
    group.restart()
    assert group.group.generation == 1
    assert group.sync(first, 2, {}).code is ErrorCode.ILLEGAL_GENERATION
    pending_joins = [group.join(first), group.join(second, protocols=(("range", b"changed"),))]
    group.finish_sync(pending_joins)
    assert group.group.generation == 2


def test_pending_requests_get_not_coordinator_when_the_coordinator_moves(group: Harness) -> None:
    first, _ = group.stable(2)
    joining = group.join(first)
    shard = group.shard
    shard.on_unloaded(ErrorCode.NOT_COORDINATOR)
    assert joining.code is ErrorCode.NOT_COORDINATOR
    assert group.timers.timers == {}
    assert shard.groups == {}


def test_a_group_with_metadata_that_cannot_be_parsed_is_served(group: Harness) -> None:
    (member,) = group.stable(protocols=(("range", b"\x00"),))
    assert group.group.subscribed_topics is None
    assert group.heartbeat(member, 1) is ErrorCode.NONE


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
