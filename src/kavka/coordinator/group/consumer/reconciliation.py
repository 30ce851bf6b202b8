"""[pure] The next step of a member on its way from what it has to what it shall have.

The rules
- What a member has and shall not have any more it is asked to give up (`UNREVOKED_PARTITIONS`). It stays at its epoch
  until it reports to own none of that; meanwhile it is given nothing.
- Then it comes to the epoch of the target and is given what is free. If all is: `STABLE`. If somebody else still has
  some of it: `UNRELEASED_PARTITIONS`, and it is given the rest when that becomes free.
- Topics that it does not subscribe to (any more) do not count, even where the target is behind and still has them.

    from \\ to     STABLE  UNREVOKED  UNRELEASED
    STABLE           x         x          x        there is a newer target, or it subscribes to less
    UNREVOKED        x         x          x        it has given up all it was asked for
    UNRELEASED       x         x          x        looked at with every heartbeat
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

# What a request says that a member has: objects with `topic_id` and `partitions`. None: it does not say.
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
        # A newer coordinator has left a state that is not known here: begin anew.
        raise KafkaError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            "The state of the member is not known. The member must abandon all its partitions and rejoin.",
        )
    return _towards(member, target_epoch, target, subscribes, owner, reported)


def _towards(
    member: Member,
    target_epoch: int,
    target: Partitions,
    subscribes: Callable[[UUID], bool],
    owner: Callable[[UUID, int], str | None],
    reported: Reported,
) -> Current:
    current = member.current
    kept: Owned = {}
    revoking: Owned = {}
    for topic_id, partitions in current.assigned.items():
        wanted = target.get(topic_id, frozenset()) if subscribes(topic_id) else frozenset()
        stay = {index: epoch for index, epoch in partitions.items() if index in wanted}
        go = {index: epoch for index, epoch in partitions.items() if index not in wanted}
        if stay:
            kept[topic_id] = stay
        if go:
            revoking[topic_id] = go
    if revoking and _reports_any(reported, revoking):
        return Current(current.epoch, current.epoch, UNREVOKED, kept, revoking)
    waits = False
    for topic_id, partitions_wanted in target.items():
        if not subscribes(topic_id):
            continue
        have = kept.get(topic_id, {})
        new: dict[int, int] = {}
        for index in partitions_wanted:
            if index in have:
                continue
            has_it = owner(topic_id, index)
            # What it gives up itself is free again for it.
            if has_it is None or has_it == member.member_id:
                new[index] = target_epoch
            else:
                waits = True
        if new:
            kept[topic_id] = {**have, **new}
    return Current(target_epoch, current.epoch, UNRELEASED if waits else STABLE, kept, {})


def _without_unsubscribed(current: Current, subscribes: Callable[[UUID], bool], reported: Reported) -> Current:
    """It subscribes to less: give that up at once, whatever the target."""
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
    """Whether a member still has any of these, as far as one knows."""
    if reported is None:
        return True
    for topic in reported:
        partitions = owned.get(topic.topic_id)
        if partitions and any(index in partitions for index in topic.partitions):
            return True
    return False


def reports_only(reported: Reported, owned: Owned) -> bool:
    """Whether a member says what it has, and has nothing but what it was given."""
    if reported is None:
        return False
    return all(
        topic.topic_id in owned and all(index in owned[topic.topic_id] for index in topic.partitions)
        for topic in reported
    )


def partitions_of(owned: Owned) -> set[tuple[UUID, int]]:
    return {(topic_id, index) for topic_id, partitions in owned.items() for index in partitions}
