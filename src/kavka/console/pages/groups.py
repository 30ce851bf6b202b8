"""Consumer groups: members, lag and committed offsets."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any
from urllib.parse import quote

from starlette.responses import Response

from kavka.client.admin.base import AdminError
from kavka.client.admin.resets import INACTIVE, WAYS, BadReset, Offsets, read_offsets_csv
from kavka.client.admin.types import ConsumerGroupDescription
from kavka.client.types import OffsetAndMetadata
from kavka.common.errors import ErrorCode
from kavka.common.types import TopicPartition
from kavka.console.auth import Role
from kavka.console.context import Context, check_confirmation, check_seen, fingerprint
from kavka.console.errors import Refused, reason
from kavka.console.registry import Bounds, Chart, Done, action, query
from kavka.console.state import Sample
from kavka.console.views import Pager, View, page

DEFAULT_MINUTES, MAX_MINUTES = 60, 14 * 24 * 60
MAX_FILE_CHARACTERS = 500_000
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
    """The offsets that a reset would set. `offsets` is the input for `set_group_offsets`: lines of
    topic,partition,offset."""

    message: str
    rows: list[PlanRow]
    offsets: str
    seen: str
    warnings: list[str] = field(default_factory=list)


# --- queries


@query("/groups", "List all groups with their lag", topics=())
async def list_groups(
    context: Context,
    search: Annotated[str, "Part of a name"] = "",
    state: Annotated[str, "Only groups in this state"] = "",
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


@query("/groups/one", "Describe a group: members, assignment, offsets and lag")
async def describe_group(context: Context, group: Annotated[str, "The name of the group"]) -> GroupDetails:
    sample = await context.cluster.state()
    description = await _describe(context, group)
    committed = await context.admin.list_consumer_group_offsets(group, timeout=TIMEOUT_S)
    rows = _offset_rows(sample, description, committed)
    lag_by_member: Counter[str] = Counter()
    for row in rows:
        lag_by_member[row.member] += row.lag or 0
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
                lag_by_member[m.member_id],
            )
            for m in sorted(description.members, key=lambda m: (m.client_id, m.member_id))
        ],
        rows,
        description.state in INACTIVE,
        _seen(description.state, {tp: commit.offset for tp, commit in committed.items() if commit is not None}),
    )


def _offset_rows(
    sample: Sample, description: ConsumerGroupDescription, committed: Mapping[TopicPartition, OffsetAndMetadata | None]
) -> list[OffsetRow]:
    """Return a row for each partition that is assigned or has a committed offset."""
    owners = {tp: member for member in description.members for tp in member.assignment}
    starts = {TopicPartition(p.topic, p.id): p.start for p in sample.partitions}
    rows = []
    for tp in sorted({*committed, *owners}):
        commit, end, owner = committed.get(tp), sample.ends.get(tp), owners.get(tp)
        rows.append(
            OffsetRow(
                tp.topic,
                tp.partition,
                commit.offset if commit else None,
                commit.metadata if commit else "",
                starts.get(tp),
                end,
                None if commit is None or end is None else max(0, end - commit.offset),
                owner.member_id if owner else "",
                owner.client_id if owner else "",
                owner.host if owner else "",
            )
        )
    return rows


async def _describe(context: Context, group: str) -> ConsumerGroupDescription:
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
    """Return a text per topic: `topic: 0-3, 7`."""
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
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _seen(state: str, offsets: Offsets) -> str:
    return fingerprint(state in INACTIVE, sorted(offsets.items()))


@query("/groups/lag", "Chart the lag of a group over time")
async def group_lag(
    context: Context,
    group: str,
    minutes: Annotated[int, "The last minutes to show", Bounds(1, MAX_MINUTES)] = DEFAULT_MINUTES,
) -> Chart:
    cluster = context.cluster
    points = [
        (float(at), value)
        for at, value in await cluster.store.history(cluster.name, f"lag/{group}", time.time() - minutes * 60)
    ]
    sample = cluster.sample
    current = sample.groups.get(group) if sample is not None else None
    if sample is not None and current is not None and current.lag is not None and sample.groups_at:
        points.append((sample.groups_at, float(current.lag)))
    return Chart([at for at, _ in points], {"lag": [value for _, value in points]})


# --- actions


@action("/groups/plan", "Preview a reset of a group's offsets without changing them")
async def plan_group_reset(
    context: Context,
    group: str,
    way: Annotated[Way, ", ".join(WAYS)],
    value: Annotated[str, "The offset, number, time (ISO 8601) or duration (PnDTnHnMnS), if the way has a value"] = "",
    topics: Annotated[str, "Lines of topic or topic:0,1,2. Default: all topics with committed offsets"] = "",
    file: Annotated[str, "For from-file: lines of topic,partition,offset", Bounds(0, MAX_FILE_CHARACTERS)] = "",
) -> ResetPlan:
    name = str(way.value)
    await _check_inactive(context, group)
    scope = await _scope(context, topics) if topics.strip() else None
    target: str | Offsets | None = value.strip()
    if name == "from-file":
        target = _parse_offsets(file, group, "file")
        scope = None
    elif name in ("to-offset", "shift-by", "to-datetime", "by-duration") and not target:
        raise Refused(f"{name} requires a value", field="value")
    try:
        plan = await context.admin.plan_offset_reset(group, name, scope, target)
    except ValueError as error:
        raise Refused(str(error), field="topics" if isinstance(error, BadReset) and scope else "value") from None
    if not plan.offsets:
        raise Refused("the group has no committed offsets: enter the topics", field="topics")
    committed = await _committed(context, group)
    rows = [
        PlanRow(tp.topic, tp.partition, committed.get(tp), offset, offset - committed[tp] if tp in committed else None)
        for tp, offset in sorted(plan.offsets.items())
    ]
    warnings = [str(moved) for moved in plan.moved]
    warnings += [f"{tp} has no message of that time or later: its offset is set to its end" for tp in plan.later]
    return ResetPlan(
        f"{len(rows)} offsets would be set; nothing has been changed yet",
        rows,
        "".join(f"{row.topic},{row.partition},{row.new}\n" for row in rows),
        _seen("Empty", committed),
        warnings,
    )


@action("/groups/offsets", "Set the offsets of a group without members")
async def set_group_offsets(
    context: Context,
    group: str,
    offsets: Annotated[str, "Lines of topic,partition,offset", Bounds(1, MAX_FILE_CHARACTERS)],
    seen: str = "",
) -> Done:
    state = await _check_inactive(context, group)
    target = _parse_offsets(offsets, group, "offsets")
    check_seen(seen, _seen(state, await _committed(context, group)))
    try:
        plan = await context.admin.plan_offset_reset(group, "from-file", None, target)
    except BadReset as error:
        raise Refused(str(error), field="offsets") from None
    await context.admin.alter_consumer_group_offsets(group, plan.offsets)
    context.cluster.mark_stale()
    return Done(f"{len(plan.offsets)} offsets of {group} were set", _address(context, group))


@action("/groups/offsets/delete", "Delete a group's offsets of a topic that it does not consume")
async def delete_group_offsets(context: Context, group: str, topic: str, confirm: str, seen: str = "") -> Done:
    committed = await _committed(context, group)
    partitions = [tp for tp in committed if tp.topic == topic]
    if not partitions:
        raise Refused(f"{group} has no offsets for '{topic}'", 404, "topic")
    state = await context.admin.group_state(group)
    check_confirmation(typed=confirm, name=topic, seen=seen, current=_seen(state, committed))
    await context.admin.delete_consumer_group_offsets(group, partitions)
    context.cluster.mark_stale()
    return Done(f"the offsets of {group} for {topic} were deleted", _address(context, group))


@action("/groups/delete", "Delete a group without members, and its offsets", role=Role.ADMIN)
async def delete_group(context: Context, group: str, confirm: str, seen: str = "") -> Done:
    state = await _check_inactive(context, group)
    check_confirmation(typed=confirm, name=group, seen=seen, current=_seen(state, await _committed(context, group)))
    await context.admin.delete_consumer_groups([group])
    context.cluster.mark_stale()
    return Done(f"group {group} was deleted", f"/c/{context.cluster.name}/groups")


async def _check_inactive(context: Context, group: str) -> str:
    """Return the state of the group. Raises Refused (409) if the group has members."""
    state = await context.admin.group_state(group)
    if state not in INACTIVE:
        raise Refused(f"{group} is {state}: it must have no members. Stop them first", 409)
    return state


async def _committed(context: Context, group: str) -> Offsets:
    offsets = await context.admin.list_consumer_group_offsets(group)
    return {tp: commit.offset for tp, commit in offsets.items() if commit is not None}


async def _scope(context: Context, text: str) -> list[TopicPartition]:
    """Parse lines of `topic` or `topic:0,1,2`. Raises Refused for an invalid line or an unknown
    topic."""
    partitions: set[TopicPartition] = set()
    for line in text.splitlines():
        topic, colon, numbers = (text.strip() for text in line.strip().rpartition(":"))
        if not colon:
            topic, numbers = numbers, ""
        if not topic:
            continue
        if colon:
            try:
                partitions |= {TopicPartition(topic, int(number)) for number in numbers.split(",")}
            except ValueError:
                raise Refused(f"expected topic:partition,…, not '{line.strip()[:60]}'", field="topics") from None
            continue
        try:
            description = (await context.admin.describe_topics([topic]))[topic]
        except AdminError as error:
            raise Refused(f"{topic}: {reason(error)}", 404, "topics") from None
        partitions |= {TopicPartition(topic, info.partition) for info in description.partitions}
    return sorted(partitions)


def _parse_offsets(text: str, group: str, field: str) -> Offsets:
    """Parse lines of topic,partition,offset. `field` is the input that contains them. Raises
    Refused if they are invalid or if there are none."""
    try:
        offsets = read_offsets_csv(text.splitlines(), [group], "the file").get(group, {})
    except BadReset as error:
        raise Refused(str(error), field=field) from None
    if not offsets:
        raise Refused("there is no line of topic,partition,offset for this group", field=field)
    return offsets


def _address(context: Context, group: str) -> str:
    return f"/c/{context.cluster.name}/groups/one?group={quote(group, safe='')}"


# --- pages

SORT_KEYS: dict[str, Callable[[GroupRow], Any]] = {
    "group": lambda row: row.group,
    "state": lambda row: row.state,
    "lag": lambda row: -1 if row.lag is None else row.lag,
}


@page("/groups", "Groups", nav="Groups", icon="users", section="Data", topics=())
async def groups_page(view: View) -> Response:
    sample = await view.context.cluster.state(groups=True)
    rows = group_rows(sample, view.text("search"), view.text("state"))
    sort = view.text("sort", "group")
    sort_key = SORT_KEYS.get(sort.removeprefix("-"))
    if sort_key is None:
        raise Refused(f"sort must be one of {', '.join(SORT_KEYS)}, not '{sort[:60]}'", field="sort")
    rows.sort(key=lambda row: row.group)
    rows.sort(key=sort_key, reverse=sort.startswith("-"))
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
