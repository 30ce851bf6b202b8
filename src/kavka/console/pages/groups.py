"""Consumer groups: members, lag, and committed offsets."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated

from starlette.responses import Response

from kavka.client.admin.base import AdminError
from kavka.client.admin.resets import INACTIVE, WAYS, BadReset, Offsets, read_offsets_csv
from kavka.client.admin.types import ConsumerGroupDescription
from kavka.common.errors import ErrorCode
from kavka.common.types import TopicPartition
from kavka.console.auth import Role
from kavka.console.context import Context, check_confirmation, check_seen, fingerprint
from kavka.console.errors import Refused, reason
from kavka.console.registry import Bounds, Chart, Done, action, query
from kavka.console.state import Sample
from kavka.console.views import Pager, View, page

DEFAULT_MINUTES, MAX_MINUTES = 60, 14 * 24 * 60
MAX_FILE = 500_000
TIMEOUT_S = 10.0

Way = Enum("Way", {way.upper().replace("-", "_"): way for way in WAYS})  # type: ignore[misc]


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group. `lag` is None without committed offsets, or if the coordinator did not respond."""

    group: str
    state: str
    type: str
    """The protocol of the group: classic or consumer."""
    protocol_type: str
    coordinator: int | None
    topics: int
    partitions: int
    lag: int | None


@dataclass(frozen=True, slots=True)
class MemberRow:
    """A member of a group with its assignment."""

    member: str
    client: str
    host: str
    instance: str | None
    """The group.instance.id of a static member."""
    rack: str | None
    epoch: int | None
    topics: list[str]
    partitions: list[str]
    target: list[str] | None
    """The target assignment (consumer protocol), if it differs from the current one."""
    lag: int


@dataclass(frozen=True, slots=True)
class OffsetRow:
    """A partition of a group with its committed offset and its owner."""

    topic: str
    partition: int
    committed: int | None
    metadata: str
    start: int | None
    end: int | None
    lag: int | None
    member: str
    client: str
    host: str


@dataclass(frozen=True, slots=True)
class GroupDetails:
    """A group with its members and offsets."""

    group: str
    state: str
    type: str
    protocol_type: str
    assignor: str
    coordinator: str
    epoch: int | None
    target_epoch: int | None
    lag: int | None
    members: list[MemberRow]
    offsets: list[OffsetRow]
    may_reset: bool
    """Whether offsets can be set: the group has no members."""
    seen: str
    """The fingerprint of the state, for actions."""


@dataclass(frozen=True, slots=True)
class PlanRow:
    """A partition of a reset with its current and new offset."""

    topic: str
    partition: int
    committed: int | None
    new: int
    change: int | None


@dataclass(frozen=True, slots=True)
class ResetPlan:
    """The offsets that a reset would set; `offsets` has them as lines of topic,partition,offset for
    `set_group_offsets`."""

    message: str
    rows: list[PlanRow]
    offsets: str
    seen: str
    warnings: list[str] = field(default_factory=list)


# --- queries


@query("/groups", "All groups with their lag")
async def list_groups(
    context: Context,
    search: Annotated[str, "Part of a name"] = "",
    state: Annotated[str, "Only those in this state"] = "",
) -> list[GroupRow]:
    sample = await context.cluster.state(groups=True)
    return group_rows(sample, search, state)


def group_rows(sample: Sample, search: str = "", state: str = "") -> list[GroupRow]:
    pattern = search.strip().lower()
    return [
        GroupRow(
            group.id,
            group.state,
            group.type,
            group.protocol_type,
            group.coordinator if group.coordinator >= 0 else None,
            len({tp.topic for tp in group.offsets or ()}),
            len(group.offsets or ()),
            group.lag if group.offsets else None,
        )
        for group in sample.groups.values()
        if pattern in group.id.lower() and (not state or group.state == state)
    ]


@query("/groups/one", "One group: members, assignment, offsets, lag")
async def describe_group(context: Context, group: Annotated[str, "Its name"]) -> GroupDetails:
    sample = await context.cluster.state()
    description = await _described(context, group)
    committed = await context.admin.list_consumer_group_offsets(group, timeout=TIMEOUT_S)
    owner = {tp: member for member in description.members for tp in member.assignment}
    starts = {TopicPartition(p.topic, p.id): p.start for p in sample.partitions}
    ends = sample.ends
    rows = []
    for tp in sorted(set(committed) | set(owner)):
        at = committed.get(tp)
        offset = at.offset if at is not None else None
        end = ends.get(tp)
        member = owner.get(tp)
        rows.append(
            OffsetRow(
                tp.topic,
                tp.partition,
                offset,
                at.metadata if at is not None else "",
                starts.get(tp),
                end,
                None if offset is None or end is None else max(0, end - offset),
                member.member_id if member else "",
                member.client_id if member else "",
                member.host if member else "",
            )
        )
    lag_of: dict[str, int] = {}
    for row in rows:
        lag_of[row.member] = lag_of.get(row.member, 0) + (row.lag or 0)
    lags = [row.lag for row in rows if row.lag is not None]
    return GroupDetails(
        group,
        description.state,
        description.type,
        description.protocol_type,
        description.assignor,
        f"{description.coordinator.id} ({description.coordinator.host}:{description.coordinator.port})",
        description.group_epoch,
        description.target_assignment_epoch,
        sum(lags) if lags else None,
        [
            MemberRow(
                m.member_id,
                m.client_id,
                m.host,
                m.group_instance_id,
                m.rack_id,
                m.member_epoch,
                sorted(m.subscribed_topics) or ([m.subscribed_pattern] if m.subscribed_pattern else []),
                _ranges(m.assignment),
                None
                if m.target_assignment is None or m.target_assignment == m.assignment
                else _ranges(m.target_assignment),
                lag_of.get(m.member_id, 0),
            )
            for m in sorted(description.members, key=lambda m: (m.client_id, m.member_id))
        ],
        rows,
        description.state in INACTIVE,
        _seen(description.state, {tp: at.offset for tp, at in committed.items() if at is not None}),
    )


async def _described(context: Context, group: str) -> ConsumerGroupDescription:
    try:
        description = (await context.admin.describe_consumer_groups([group], timeout=TIMEOUT_S))[group]
    except AdminError as error:
        if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
            raise Refused(f"there is no group '{group}'", 404) from None
        raise
    if description.state == "Dead":
        raise Refused(f"there is no group '{group}'", 404)
    return description


def _ranges(partitions: frozenset[TopicPartition]) -> list[str]:
    """A text per topic: `topic: 0-3, 7`."""
    topics: dict[str, list[int]] = {}
    for tp in sorted(partitions):
        topics.setdefault(tp.topic, []).append(tp.partition)
    return [f"{topic}: {_numbers(ids)}" for topic, ids in topics.items()]


def _numbers(ids: list[int]) -> str:
    runs: list[list[int]] = []
    for number in ids:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _seen(state: str, offsets: Offsets) -> str:
    return fingerprint(state in INACTIVE, sorted(offsets.items()))


@query("/groups/lag", "The lag of a group over time")
async def group_lag(
    context: Context,
    group: str,
    minutes: Annotated[int, "How far back", Bounds(1, MAX_MINUTES)] = DEFAULT_MINUTES,
) -> Chart:
    cluster = context.cluster
    points = [
        (float(at), value)
        for at, value in await cluster.store.history(cluster.name, f"lag/{group}", time.time() - minutes * 60)
    ]
    sample = cluster.sample
    now = sample.groups.get(group) if sample is not None else None
    if sample is not None and now is not None and now.lag is not None and sample.groups_at:
        points.append((sample.groups_at, float(now.lag)))
    return Chart([at for at, _ in points], {"lag": [value for _, value in points]})


# --- actions


@action("/groups/plan", "What a reset of a group's offsets would set; nothing is changed")
async def plan_group_reset(
    context: Context,
    group: str,
    way: Annotated[Way, ", ".join(WAYS)],
    value: Annotated[str, "The offset, number, time (ISO 8601) or duration (PnDTnHnMnS) of ways that take one"] = "",
    topics: Annotated[str, "As topic or topic:0,1,2, one to a line; all that the group has offsets for if empty"] = "",
    file: Annotated[str, "Of from-file: lines of topic,partition,offset", Bounds(0, MAX_FILE)] = "",
) -> ResetPlan:
    name = str(way.value)
    await _check_inactive(context, group)
    scope = await _scope(context, topics) if topics.strip() else None
    target: str | Offsets | None = value.strip()
    if name == "from-file":
        target = _lines(file, group, "file")
        scope = None
    elif name in ("to-offset", "shift-by", "to-datetime", "by-duration") and not target:
        raise Refused(f"{name} takes a value", field="value")
    try:
        plan = await context.admin.plan_offset_reset(group, name, scope, target)
    except ValueError as error:
        raise Refused(str(error), field="topics" if isinstance(error, BadReset) and scope else "value") from None
    if not plan.offsets:
        raise Refused("the group has no offsets: name the topics", field="topics")
    committed = await _committed(context, group)
    rows = [
        PlanRow(tp.topic, tp.partition, committed.get(tp), new, None if tp not in committed else new - committed[tp])
        for tp, new in sorted(plan.offsets.items())
    ]
    warnings = [str(moved) for moved in plan.moved]
    warnings += [f"{tp} has nothing of that time or later: it goes to its end" for tp in plan.later]
    return ResetPlan(
        f"{len(rows)} offsets would be set; nothing is set yet",
        rows,
        "".join(f"{row.topic},{row.partition},{row.new}\n" for row in rows),
        _seen("Empty", committed),
        warnings,
    )


@action("/groups/offsets", "Set the offsets of a group that nobody is in")
async def set_group_offsets(
    context: Context,
    group: str,
    offsets: Annotated[str, "Lines of topic,partition,offset", Bounds(1, MAX_FILE)],
    seen: str = "",
) -> Done:
    state = await _check_inactive(context, group)
    target = _lines(offsets, group, "offsets")
    check_seen(seen, _seen(state, await _committed(context, group)))
    try:
        plan = await context.admin.plan_offset_reset(group, "from-file", None, target)
    except BadReset as error:
        raise Refused(str(error), field="offsets") from None
    await context.admin.alter_consumer_group_offsets(group, plan.offsets)
    context.cluster.changed()
    return Done(f"{len(plan.offsets)} offsets of {group} are set", _address(context, group))


@action("/groups/offsets/delete", "Forget a group's offsets for a topic that it does not consume now")
async def delete_group_offsets(context: Context, group: str, topic: str, confirm: str, seen: str = "") -> Done:
    committed = await _committed(context, group)
    partitions = [tp for tp in committed if tp.topic == topic]
    if not partitions:
        raise Refused(f"{group} has no offsets for '{topic}'", 404, "topic")
    check_confirmation(typed=confirm, name=topic, seen=seen, now=_seen(await _state(context, group), committed))
    await context.admin.delete_consumer_group_offsets(group, partitions)
    context.cluster.changed()
    return Done(f"the offsets of {group} for {topic} are forgotten", _address(context, group))


@action("/groups/delete", "Delete a group that nobody is in, and its offsets", role=Role.ADMIN)
async def delete_group(context: Context, group: str, confirm: str, seen: str = "") -> Done:
    state = await _check_inactive(context, group)
    check_confirmation(typed=confirm, name=group, seen=seen, now=_seen(state, await _committed(context, group)))
    await context.admin.delete_consumer_groups([group])
    context.cluster.changed()
    return Done(f"group {group} is deleted", f"/c/{context.cluster.name}/groups")


async def _state(context: Context, group: str) -> str:
    return await context.admin.group_state(group)


async def _check_inactive(context: Context, group: str) -> str:
    state = await _state(context, group)
    if state not in INACTIVE:
        raise Refused(f"{group} is {state}: this takes a group that nobody is in. Stop its members first", 409)
    return state


async def _committed(context: Context, group: str) -> Offsets:
    offsets = await context.admin.list_consumer_group_offsets(group)
    return {tp: at.offset for tp, at in offsets.items() if at is not None}


async def _scope(context: Context, text: str) -> list[TopicPartition]:
    """Parse lines of `topic` or `topic:0,1,2`."""
    partitions: set[TopicPartition] = set()
    for line in text.splitlines():
        topic, colon, numbers = (piece.strip() for piece in line.strip().rpartition(":"))
        if not colon:
            topic, numbers = numbers, ""
        if not topic:
            continue
        if colon:
            try:
                partitions |= {TopicPartition(topic, int(number)) for number in numbers.split(",")}
            except ValueError:
                raise Refused(f"'{line.strip()[:60]}' is not topic:partition,…", field="topics") from None
            continue
        try:
            described = (await context.admin.describe_topics([topic]))[topic]
        except AdminError as error:
            raise Refused(f"{topic}: {reason(error)}", 404, "topics") from None
        partitions |= {TopicPartition(topic, info.partition) for info in described.partitions}
    return sorted(partitions)


def _lines(text: str, group: str, field: str) -> Offsets:
    try:
        offsets = read_offsets_csv(text.splitlines(), [group], "the file").get(group, {})
    except BadReset as error:
        raise Refused(str(error), field=field) from None
    if not offsets:
        raise Refused("there is no line topic,partition,offset for this group", field=field)
    return offsets


def _address(context: Context, group: str) -> str:
    from urllib.parse import quote

    return f"/c/{context.cluster.name}/groups/one?group={quote(group, safe='')}"


# --- pages


@page("/groups", "Groups", nav="Groups")
async def groups_page(view: View) -> Response:
    sample = await view.context.cluster.state(groups=True)
    rows = group_rows(sample, view.text("search"), view.text("state"))
    sort = view.text("sort", "group")
    if sort == "lag":
        rows.sort(key=lambda row: (-(row.lag if row.lag is not None else -1), row.group))
    elif sort == "state":
        rows.sort(key=lambda row: (row.state, row.group))
    return view.render(
        "groups.html",
        pager=Pager(view, rows),
        total=len(sample.groups),
        states=sorted({group.state for group in sample.groups.values()}),
        sort=sort,
    )


@page("/groups/one", "Group")
async def group_page(view: View) -> Response:
    name = view.text("group")
    minutes = view.number("minutes", DEFAULT_MINUTES, 1, MAX_MINUTES)
    group = await describe_group(view.context, name)
    return view.render(
        "group.html",
        group=group,
        minutes=minutes,
        ways=WAYS,
        topics=sorted({row.topic for row in group.offsets}),
        may_operate=view.context.user.role >= Role.OPERATE,
        may_delete=view.context.user.role >= Role.ADMIN,
    )
