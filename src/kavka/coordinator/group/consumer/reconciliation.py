"""[pure] The next step of a member from its current assignment to its target.

Rules:
- A member revokes assigned partitions that are not in its target (`UNREVOKED_PARTITIONS`). Until it
  reports that it no longer owns them, it keeps its epoch and gets no new partitions.
- Then the member advances to the epoch of the target and gets the free partitions of its target. If
  it has its whole target, it is `STABLE`. If other members still own partitions of its target, it
  is `UNRELEASED_PARTITIONS` and gets these partitions when they are free.
- Topics that the member no longer subscribes to count as not in its target, even if an older target
  has them.

When the next step is computed:
- `STABLE`: the target is newer than the member's epoch.
- `UNREVOKED_PARTITIONS`: the member reports that it owns none of the partitions that it revokes.
- `UNRELEASED_PARTITIONS`: with every heartbeat.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from kavka.common.errors import ErrorCode, KafkaError
from kavka.coordinator.group.consumer.records import CurrentAssignment, OwnedPartitions, Partitions
from kavka.coordinator.group.consumer.state import Member, MemberState

STABLE = MemberState.STABLE
UNREVOKED = MemberState.UNREVOKED_PARTITIONS
UNRELEASED = MemberState.UNRELEASED_PARTITIONS

# The partitions that a request reports as owned: structs with `topic_id` and `partitions`. None if
# the request does not report them.
ReportedPartitions = Sequence[Any] | None


def reconcile(
    member: Member,
    target_epoch: int,
    target: Partitions,
    *,
    subscribes: Callable[[UUID], bool],
    owner: Callable[[UUID, int], str | None],
    reported: ReportedPartitions,
    subscription_changed: bool = False,
) -> CurrentAssignment:
    """Return the member's next assignment. `owner` returns the id of the member that owns a
    partition, or None. Raises FENCED_MEMBER_EPOCH if the state of the member is unknown, unless the
    member reports that it owns no partitions."""
    current = member.current
    state = current.state
    has_target = state == STABLE and current.epoch == target_epoch
    if has_target or (state == UNREVOKED and _may_still_own_any(reported, current.revoking)):
        return _without_unsubscribed(current, subscribes, reported) if subscription_changed else current
    if state not in (STABLE, UNREVOKED, UNRELEASED) and (reported is None or len(reported) > 0):
        # A coordinator of a newer version has written this state. The member must rejoin.
        raise KafkaError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            "The state of the member is unknown. The member must abandon all its partitions and rejoin.",
        )
    return _next_step(member, target_epoch, target, subscribes, owner, reported)


def _next_step(
    member: Member,
    target_epoch: int,
    target: Partitions,
    subscribes: Callable[[UUID], bool],
    owner: Callable[[UUID, int], str | None],
    reported: ReportedPartitions,
) -> CurrentAssignment:
    current = member.current
    assigned: OwnedPartitions = {}
    revoking: OwnedPartitions = {}
    for topic_id, partitions in current.assigned.items():
        target_indexes = target.get(topic_id, frozenset()) if subscribes(topic_id) else frozenset()
        retained = {index: epoch for index, epoch in partitions.items() if index in target_indexes}
        revoked = {index: epoch for index, epoch in partitions.items() if index not in target_indexes}
        if retained:
            assigned[topic_id] = retained
        if revoked:
            revoking[topic_id] = revoked
    if revoking and _may_still_own_any(reported, revoking):
        return CurrentAssignment(current.epoch, current.epoch, UNREVOKED, assigned, revoking)
    is_waiting = False
    for topic_id, target_partitions in target.items():
        if not subscribes(topic_id):
            continue
        retained = assigned.get(topic_id, {})
        added: dict[int, int] = {}
        for index in target_partitions:
            if index in retained:
                continue
            owner_id = owner(topic_id, index)
            # The owner is this member if it has just revoked the partition: assign it again.
            if owner_id is None or owner_id == member.member_id:
                added[index] = target_epoch
            else:
                is_waiting = True
        if added:
            assigned[topic_id] = {**retained, **added}
    return CurrentAssignment(target_epoch, current.epoch, UNRELEASED if is_waiting else STABLE, assigned, {})


def _without_unsubscribed(
    current: CurrentAssignment, subscribes: Callable[[UUID], bool], reported: ReportedPartitions
) -> CurrentAssignment:
    """Return the assignment without unsubscribed topics. They are revoked at once, even if they are
    in the target."""
    unsubscribed = [topic_id for topic_id in current.assigned if not subscribes(topic_id)]
    if not unsubscribed:
        return current
    assigned = {topic_id: owned for topic_id, owned in current.assigned.items() if topic_id not in unsubscribed}
    revoking = dict(current.revoking)
    for topic_id in unsubscribed:
        revoking[topic_id] = {**revoking.get(topic_id, {}), **current.assigned[topic_id]}
    if _may_still_own_any(reported, revoking):
        return CurrentAssignment(current.epoch, current.epoch, UNREVOKED, assigned, revoking)
    return current._replace(previous_epoch=current.epoch, assigned=assigned, revoking={})


def _may_still_own_any(reported: ReportedPartitions, owned: OwnedPartitions) -> bool:
    """Return whether the member may still own any of these partitions."""
    return reported is None or any(
        index in owned.get(topic.topic_id, {}) for topic in reported for index in topic.partitions
    )


def reports_only(reported: ReportedPartitions, owned: OwnedPartitions) -> bool:
    """Return whether the member reports its partitions, and all of them are in `owned`."""
    return reported is not None and all(
        topic.topic_id in owned and all(index in owned[topic.topic_id] for index in topic.partitions)
        for topic in reported
    )


def partitions_of(owned: OwnedPartitions) -> set[tuple[UUID, int]]:
    return {(topic_id, index) for topic_id, partitions in owned.items() for index in partitions}
