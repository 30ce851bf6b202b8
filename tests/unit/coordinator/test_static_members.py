"""Members with a `group.instance.id`: they come back in their place, and only one at a time may
have it."""

from __future__ import annotations

import pytest

from kavka.common.errors import ErrorCode
from tests.unit.coordinator.harness import REBALANCE, SESSION, Answer, Harness, subscription


@pytest.fixture
def group() -> Harness:
    return Harness()


def stable(group: Harness, *instances: str, **options: object) -> list[str]:
    answers = [group.join(instance_id=instance, **options) for instance in instances]  # type: ignore[arg-type]
    group.wait_for(answers[0])
    ids = [answer.response.member_id for answer in answers]
    assignments = {member: instance.encode() for member, instance in zip(ids, instances, strict=True)}
    for member, instance in zip(ids, instances, strict=True):
        group.sync(member, answers[0].response.generation_id, assignments, instance_id=instance)
    assert group.state == "Stable"
    return ids


def test_a_static_member_joins_in_one_step_under_an_id_made_of_its_name(group: Harness) -> None:
    answer = group.join(instance_id="one")
    assert answer.waits
    assert next(iter(group.group.members)).startswith("one-")


def test_a_restarted_static_member_is_back_without_a_rebalance(group: Harness) -> None:
    old, other = stable(group, "one", "two")
    back = group.join(instance_id="two")
    assert back.code is ErrorCode.NONE
    assert back.response.member_id != other
    assert back.response.generation_id == 1
    assert back.response.skip_assignment is False
    assert group.state == "Stable"
    assert group.sync(back.response.member_id, 1, instance_id="two").response.assignment == b"two"
    assert group.heartbeat(old, 1, "one") is ErrorCode.NONE


def test_the_one_before_is_fenced_in_whatever_it_does(group: Harness) -> None:
    (old,) = stable(group, "one")
    group.join(instance_id="one")
    assert group.heartbeat(old, 1, "one") is ErrorCode.FENCED_INSTANCE_ID
    assert group.sync(old, 1, instance_id="one").code is ErrorCode.FENCED_INSTANCE_ID
    assert group.join(old, instance_id="one").code is ErrorCode.FENCED_INSTANCE_ID
    assert group.leave((old, "one")).members[0].error_code == ErrorCode.FENCED_INSTANCE_ID
    refused = group.commit({("t", 0): 1}, member_id=old, generation=1, instance_id="one")
    assert refused == {("t", 0): ErrorCode.FENCED_INSTANCE_ID}
    assert group.heartbeat(old, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_an_instance_that_the_group_does_not_know_is_an_unknown_member(group: Harness) -> None:
    (member,) = stable(group, "one")
    assert group.heartbeat(member, 1, "other") is ErrorCode.UNKNOWN_MEMBER_ID
    assert group.join(member, instance_id="other").code is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_restarted_leader_of_version_9_leads_on_and_skips_the_assignment(group: Harness) -> None:
    stable(group, "one", "two")
    back = group.join(instance_id="one").response
    assert back.skip_assignment is True
    assert back.leader == back.member_id
    assert len(back.members) == 2


def test_a_restarted_leader_of_an_older_version_is_not_told_that_it_leads(group: Harness) -> None:
    (old, _) = stable(group, "one", "two")
    back = group.join(instance_id="one", version=8).response
    assert (back.leader, back.members) == (old, [])
    assert group.group.leader_id == back.member_id


def test_the_new_member_id_is_in_the_log_before_it_is_given_out(group: Harness) -> None:
    stable(group, "one")
    group.hold = True
    back = group.join(instance_id="one")
    assert back.waits
    group.release()
    group.restart()
    assert group.heartbeat(back.response.member_id, 1, "one") is ErrorCode.NONE


def test_when_the_new_member_id_cannot_be_written_the_old_member_continues(group: Harness) -> None:
    (old,) = stable(group, "one")
    group.failure = ErrorCode.NOT_COORDINATOR
    back = group.join(instance_id="one", session=SESSION * 2)
    assert back.code is ErrorCode.NOT_COORDINATOR
    group.failure = None
    assert group.heartbeat(old, 1, "one") is ErrorCode.NONE
    assert group.group.members[old].session_timeout_ms == SESSION
    assert group.group.awaiting_join_count == 0


def test_a_static_member_that_is_back_with_another_subscription_keeps_its_place_until_the_leader_rebalances(
    group: Harness,
) -> None:
    stable(group, "one", "two")
    back = group.join(instance_id="two", protocols=(("range", subscription("other")),))
    assert back.code is ErrorCode.NONE
    assert group.state == "Stable"


def test_a_static_member_that_is_back_with_other_protocols_starts_a_rebalance(group: Harness) -> None:
    both = (("range", b""), ("sticky", b""))
    stable(group, "one", protocols=both)
    back = group.join(instance_id="one", protocols=(("sticky", b""),))
    assert back.response.generation_id == 2
    assert back.response.protocol_name == "sticky"


def test_a_static_member_that_is_back_in_the_middle_of_a_rebalance_starts_it_over(group: Harness) -> None:
    answers = [group.join(instance_id="one"), group.join(instance_id="two")]
    group.wait_for(answers[0])
    assert group.state == "CompletingRebalance"
    assert group.join(instance_id="two").waits
    assert group.state == "PreparingRebalance"
    assert group.join(answers[0].response.member_id, instance_id="one").response.generation_id == 2


def test_a_replaced_member_with_a_pending_request_is_fenced(group: Harness) -> None:
    member_id, _ = stable(group, "one", "two")
    waiting = group.join(member_id, instance_id="one")
    assert waiting.waits
    assert group.join(instance_id="one").waits
    assert waiting.code is ErrorCode.FENCED_INSTANCE_ID


def test_a_static_member_that_misses_a_rebalance_stays_until_its_session_expires(group: Harness) -> None:
    answers = [group.join(instance_id=name, session=REBALANCE * 3) for name in ("one", "two")]
    group.wait_for(answers[0])
    first, second = (answer.response.member_id for answer in answers)
    group.sync(first, 1, {}, instance_id="one")
    group.sync(second, 1, instance_id="two")
    rejoined = group.join(first, instance_id="one", session=REBALANCE * 3)
    group.advance(REBALANCE)
    assert rejoined.response.generation_id == 2
    assert second in group.group.members


def test_when_only_absent_static_members_are_left_the_rebalance_waits_for_their_sessions(group: Harness) -> None:
    first, second = stable(group, "one", "two", session=REBALANCE * 4)
    group.leave((second, "two"))
    assert group.state == "PreparingRebalance"
    group.advance(REBALANCE)
    assert group.state == "PreparingRebalance"
    assert first in group.group.members
    group.advance(REBALANCE * 4)
    assert group.state == "Empty"


def test_a_static_member_can_be_removed_by_its_name_alone(group: Harness) -> None:
    stable(group, "one", "two")
    response = group.leave(("", "one"), ("", "three"))
    assert [m.error_code for m in response.members] == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
    assert list(group.group.static_members) == ["two"]


def test_a_pending_member_id_cannot_become_static(group: Harness) -> None:
    pending: Answer = group.join()
    assert group.join(pending.response.member_id, instance_id="one").code is ErrorCode.UNKNOWN_MEMBER_ID


def test_static_members_survive_a_restart_of_the_coordinator(group: Harness) -> None:
    member_id, _ = stable(group, "one", "two")
    group.restart()
    assert group.heartbeat(member_id, 1, "one") is ErrorCode.NONE
    assert group.join(instance_id="one").code is ErrorCode.NONE
    assert group.state == "Stable"
