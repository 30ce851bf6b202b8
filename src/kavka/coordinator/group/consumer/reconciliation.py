"""[pure] The next step of a member from its current assignment to its target.

The rules
- A member revokes assigned partitions that are not in its target (`UNREVOKED_PARTITIONS`). It stays
  at its epoch and gets no new partitions until it reports that it owns none of them.
- Then it advances to the epoch of the target and gets the free partitions of its target. It is
  `STABLE` if that is all of them. If other members still own some, it is `UNRELEASED_PARTITIONS`
  and gets them when they are free.
- Topics that the member no longer subscribes to are ignored, even if an older target has them.

    from \\ to     STABLE  UNREVOKED  UNRELEASED
    STABLE           x         x          x        newer target, or fewer subscribed topics
    UNREVOKED        x         x          x        all revocations are acknowledged
    UNRELEASED       x         x          x        checked with every heartbeat
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from kavka.common.errors import ErrorCode, KafkaError
from kavka.coordinator.group.consumer.records import Current, Owned, Partitions
from kavka.coordinator.group.consumer.state import Member, MemberState

STABLE = MemberState.STABLE
UNREVOKED = MemberState.UNREVOKED_PARTITIONS
UNRELEASED = MemberState.UNRELEASED_PARTITIONS

# The partitions that a request reports as owned: objects with `topic_id` and `partitions`. None:
# not reported.
Reported = Sequence[Any] | None


def reconcile(
    member: Member,
    target_epoch: int,
    target: Partitions,
    *,
    subscribes: Callable[[UUID], bool],
    owner: Callable[[UUID, int], str | None],
    reported: Reported,
    subscription_changed: bool = False,
) -> Current:
    current = member.current
    state = current.state
    if state == STABLE:
        if current.epoch == target_epoch:
            return _without_unsubscribed(current, subscribes, reported) if subscription_changed else current
    elif state == UNREVOKED:
        if _reports_any(reported, current.revoking):
            return _without_unsubscribed(current, subscribes, reported) if subscription_changed else current
    elif state != UNRELEASED and (reported is None or len(reported) > 0):
        # A newer coordinator has written a state that is unknown here: start over.
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
    reported: Reported,
) -> Current:
    current = member.current
    assigned: Owned = {}
    revoking: Owned = {}
    for topic_id, partitions in current.assigned.items():
        target_indexes = target.get(topic_id, frozenset()) if subscribes(topic_id) else frozenset()
        retained = {index: epoch for index, epoch in partitions.items() if index in target_indexes}
        revoked = {index: epoch for index, epoch in partitions.items() if index not in target_indexes}
        if retained:
            assigned[topic_id] = retained
        if revoked:
            revoking[topic_id] = revoked
    if revoking and _reports_any(reported, revoking):
        return Current(current.epoch, current.epoch, UNREVOKED, assigned, revoking)
    is_waiting = False
    for topic_id, target_partitions in target.items():
        if not subscribes(topic_id):
            continue
        retained_here = assigned.get(topic_id, {})
        new: dict[int, int] = {}
        for index in target_partitions:
            if index in retained_here:
                continue
            owner_id = owner(topic_id, index)
            # The member may keep partitions that it was about to revoke.
            if owner_id is None or owner_id == member.member_id:
                new[index] = target_epoch
            else:
                is_waiting = True
        if new:
            assigned[topic_id] = {**retained_here, **new}
    return Current(target_epoch, current.epoch, UNRELEASED if is_waiting else STABLE, assigned, {})


def _without_unsubscribed(current: Current, subscribes: Callable[[UUID], bool], reported: Reported) -> Current:
    """Revoke unsubscribed topics at once, whatever the target."""
    dropped = [topic_id for topic_id in current.assigned if not subscribes(topic_id)]
    if not dropped:
        return current
    assigned = {topic_id: owned for topic_id, owned in current.assigned.items() if topic_id not in dropped}
    revoking = dict(current.revoking)
    for topic_id in dropped:
        revoking[topic_id] = {**revoking.get(topic_id, {}), **current.assigned[topic_id]}
    if _reports_any(reported, revoking):
        return Current(current.epoch, current.epoch, UNREVOKED, assigned, revoking)
    return current._replace(previous_epoch=current.epoch, assigned=assigned, revoking={})


def _reports_any(reported: Reported, owned: Owned) -> bool:
    """Whether the member may still own any of these partitions."""
    if reported is None:
        return True
    for topic in reported:
        partitions = owned.get(topic.topic_id)
        if partitions and any(index in partitions for index in topic.partitions):
            return True
    return False


def reports_only(reported: Reported, owned: Owned) -> bool:
    """Whether the member reports its partitions, and owns only assigned ones."""
    if reported is None:
        return False
    return all(
        topic.topic_id in owned and all(index in owned[topic.topic_id] for index in topic.partitions)
        for topic in reported
    )


def partitions_of(owned: Owned) -> set[tuple[UUID, int]]:
    return {(topic_id, index) for topic_id, partitions in owned.items() for index in partitions}
