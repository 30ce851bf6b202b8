"""Static members: a member with the same `group.instance.id` replaces the previous member."""

from __future__ import annotations

import pytest

from kavka.common.errors import ErrorCode
from tests.unit.coordinator.harness import REBALANCE, SESSION, Harness, PendingResponse, subscription


@pytest.fixture
def group() -> Harness:
    return Harness()


def stable(group: Harness, *instances: str, **options: object) -> list[str]:
    pending_joins = [group.join(instance_id=instance, **options) for instance in instances]  # type: ignore[arg-type]
    group.wait_for(pending_joins[0])
    ids = [pending.response.member_id for pending in pending_joins]
    assignments = {member: instance.encode() for member, instance in zip(ids, instances, strict=True)}
    for member, instance in zip(ids, instances, strict=True):
        group.sync(member, pending_joins[0].response.generation_id, assignments, instance_id=instance)
    assert group.state == "Stable"
    return ids


def test_a_static_member_joins_with_one_request_and_gets_an_id_with_its_instance_id(group: Harness) -> None:
    pending = group.join(instance_id="one")
    assert pending.is_pending
    assert next(iter(group.group.members)).startswith("one-")


def test_a_restarted_static_member_rejoins_without_a_rebalance(group: Harness) -> None:
    first, second = stable(group, "one", "two")
    rejoined = group.join(instance_id="two")
    assert rejoined.code is ErrorCode.NONE
    assert rejoined.response.member_id != second
    assert rejoined.response.generation_id == 1
    assert rejoined.response.skip_assignment is False
    assert group.state == "Stable"
    assert group.sync(rejoined.response.member_id, 1, instance_id="two").response.assignment == b"two"
    assert group.heartbeat(first, 1, "one") is ErrorCode.NONE


def test_all_requests_of_the_replaced_member_are_fenced(group: Harness) -> None:
    (old,) = stable(group, "one")
    group.join(instance_id="one")
    assert group.heartbeat(old, 1, "one") is ErrorCode.FENCED_INSTANCE_ID
    assert group.sync(old, 1, instance_id="one").code is ErrorCode.FENCED_INSTANCE_ID
    assert group.join(old, instance_id="one").code is ErrorCode.FENCED_INSTANCE_ID
    assert group.leave((old, "one")).members[0].error_code == ErrorCode.FENCED_INSTANCE_ID
    refused = group.commit({("t", 0): 1}, member_id=old, generation=1, instance_id="one")
    assert refused == {("t", 0): ErrorCode.FENCED_INSTANCE_ID}
    assert group.heartbeat(old, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_an_unknown_instance_id_is_an_unknown_member(group: Harness) -> None:
    (member,) = stable(group, "one")
    assert group.heartbeat(member, 1, "other") is ErrorCode.UNKNOWN_MEMBER_ID
    assert group.join(member, instance_id="other").code is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_restarted_leader_of_version_9_stays_leader_and_skips_the_assignment(group: Harness) -> None:
    stable(group, "one", "two")
    rejoined = group.join(instance_id="one").response
    assert rejoined.skip_assignment is True
    assert rejoined.leader == rejoined.member_id
    assert len(rejoined.members) == 2


def test_the_response_to_a_restarted_leader_of_an_older_version_names_the_old_leader(group: Harness) -> None:
    (old, _) = stable(group, "one", "two")
    rejoined = group.join(instance_id="one", version=8).response
    assert (rejoined.leader, rejoined.members) == (old, [])
    assert group.group.leader_id == rejoined.member_id


def test_a_new_member_id_is_committed_before_the_response(group: Harness) -> None:
    stable(group, "one")
    group.hold = True
    rejoined = group.join(instance_id="one")
    assert rejoined.is_pending
    group.release()
    group.restart()
    assert group.heartbeat(rejoined.response.member_id, 1, "one") is ErrorCode.NONE


def test_the_old_member_continues_when_the_new_member_id_cannot_be_written(group: Harness) -> None:
    (old,) = stable(group, "one")
    group.failure = ErrorCode.NOT_COORDINATOR
    rejoined = group.join(instance_id="one", session=SESSION * 2)
    assert rejoined.code is ErrorCode.NOT_COORDINATOR
    group.failure = None
    assert group.heartbeat(old, 1, "one") is ErrorCode.NONE
    assert group.group.members[old].session_timeout_ms == SESSION
    assert group.group.awaiting_join_count == 0


def test_a_static_member_that_rejoins_with_another_subscription_starts_no_rebalance(
    group: Harness,
) -> None:
    stable(group, "one", "two")
    rejoined = group.join(instance_id="two", protocols=(("range", subscription("other")),))
    assert rejoined.code is ErrorCode.NONE
    assert group.state == "Stable"


def test_a_static_member_that_rejoins_with_other_protocols_starts_a_rebalance(group: Harness) -> None:
    both = (("range", b""), ("sticky", b""))
    stable(group, "one", protocols=both)
    rejoined = group.join(instance_id="one", protocols=(("sticky", b""),))
    assert rejoined.response.generation_id == 2
    assert rejoined.response.protocol_name == "sticky"


def test_a_static_member_that_rejoins_during_a_rebalance_starts_another_rebalance(group: Harness) -> None:
    pending_joins = [group.join(instance_id="one"), group.join(instance_id="two")]
    group.wait_for(pending_joins[0])
    assert group.state == "CompletingRebalance"
    assert group.join(instance_id="two").is_pending
    assert group.state == "PreparingRebalance"
    assert group.join(pending_joins[0].response.member_id, instance_id="one").response.generation_id == 2


def test_a_replaced_member_with_a_pending_request_is_fenced(group: Harness) -> None:
    member_id, _ = stable(group, "one", "two")
    waiting = group.join(member_id, instance_id="one")
    assert waiting.is_pending
    assert group.join(instance_id="one").is_pending
    assert waiting.code is ErrorCode.FENCED_INSTANCE_ID


def test_a_static_member_that_misses_a_rebalance_stays_until_its_session_expires(group: Harness) -> None:
    pending_joins = [group.join(instance_id=name, session=REBALANCE * 3) for name in ("one", "two")]
    group.wait_for(pending_joins[0])
    first, second = (pending.response.member_id for pending in pending_joins)
    group.sync(first, 1, {}, instance_id="one")
    group.sync(second, 1, instance_id="two")
    rejoined = group.join(first, instance_id="one", session=REBALANCE * 3)
    group.advance(REBALANCE)
    assert rejoined.response.generation_id == 2
    assert second in group.group.members


def test_a_rebalance_with_only_absent_static_members_waits_for_their_sessions(group: Harness) -> None:
    first, second = stable(group, "one", "two", session=REBALANCE * 4)
    group.leave((second, "two"))
    assert group.state == "PreparingRebalance"
    group.advance(REBALANCE)
    assert group.state == "PreparingRebalance"
    assert first in group.group.members
    group.advance(REBALANCE * 4)
    assert group.state == "Empty"


def test_a_static_member_can_be_removed_by_its_instance_id(group: Harness) -> None:
    stable(group, "one", "two")
    response = group.leave(("", "one"), ("", "three"))
    assert [m.error_code for m in response.members] == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
    assert list(group.group.static_members) == ["two"]


def test_a_pending_member_id_cannot_become_static(group: Harness) -> None:
    pending: PendingResponse = group.join()
    assert group.join(pending.response.member_id, instance_id="one").code is ErrorCode.UNKNOWN_MEMBER_ID


def test_static_members_survive_a_restart_of_the_coordinator(group: Harness) -> None:
    member_id, _ = stable(group, "one", "two")
    group.restart()
    assert group.heartbeat(member_id, 1, "one") is ErrorCode.NONE
    assert group.join(instance_id="one").code is ErrorCode.NONE
    assert group.state == "Stable"
