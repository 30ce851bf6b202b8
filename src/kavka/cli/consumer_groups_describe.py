"""`kavka consumer-groups --describe`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from kavka.cli.consumer_groups import chosen_groups, state_styles
from kavka.cli.options import Arguments
from kavka.cli.output import at_terminal, print_json, print_table
from kavka.cli.tool import fail, reason
from kavka.client.admin.base import AdminError
from kavka.client.admin.types import ConsumerGroupDescription, OffsetSpec
from kavka.client.types import OffsetAndMetadata
from kavka.common.errors import ErrorCode
from kavka.common.types import TopicPartition

if TYPE_CHECKING:
    from kavka.client.admin import Admin

MISSING = "-"
DEAD = "Dead"


class Row(NamedTuple):
    """The offsets of a partition and the member that consumes it."""

    group: str
    partition: TopicPartition
    committed: OffsetAndMetadata | None
    end_offset: int | None
    member: str
    host: str
    client: str

    @property
    def lag(self) -> int | None:
        if self.committed is None or self.committed.offset == -1 or self.end_offset is None:
            return None
        return self.end_offset - self.committed.offset


Show = Callable[[ConsumerGroupDescription, list[Row], bool], None]
AsJson = Callable[[ConsumerGroupDescription, list[Row]], dict[str, Any]]


def describe(admin: Admin, args: Arguments) -> int:
    """Print the offsets, members or states of the groups, and return the exit code."""
    groups = chosen_groups(admin, args)
    if not groups:
        if args["json"]:
            print_json([])
        return 0
    descriptions, code = _existing_groups(admin, groups)
    verbose = bool(args["verbose"])
    show: Show = _show_offsets
    as_json: AsJson = _offsets_json
    if "members" in args:
        show, as_json = _show_members, _members_json
    elif "state" in args:
        show, as_json = _show_state, _state_json
    rows = {group.group_id: _offset_rows(admin, group) if show is _show_offsets else [] for group in descriptions}
    if args["json"]:
        print_json([as_json(group, rows[group.group_id]) for group in descriptions])
        return code
    for group in descriptions:
        _print_warning(group)
        show(group, rows[group.group_id], verbose)
    return code


def _existing_groups(admin: Admin, groups: list[str]) -> tuple[list[ConsumerGroupDescription], int]:
    """Return the groups that exist, sorted by name, and the exit code. Print an error for every
    other group."""
    code = 0
    try:
        descriptions = admin.describe_consumer_groups(groups)
    except AdminError as error:
        descriptions = error.results
        for name, cause in error.errors.items():
            is_missing = cause.code is ErrorCode.GROUP_ID_NOT_FOUND
            problem = "does not exist." if is_missing else f"failed: {reason(cause)}"
            code = fail(f"Error: Consumer group '{name}' {problem}")
    existing = []
    for name, description in sorted(descriptions.items()):
        if description.state == DEAD:
            code = fail(f"Error: Consumer group '{name}' does not exist.")
        else:
            existing.append(description)
    return existing, code


def _print_warning(group: ConsumerGroupDescription) -> None:
    """Warn on standard error, as Kafka does, if the group is empty or rebalancing."""
    warning = ""
    if group.state == "Empty":
        warning = f"\nConsumer group '{group.group_id}' has no active members."
    elif group.state != "Stable":
        warning = f"\nWarning: Consumer group '{group.group_id}' is rebalancing."
    if warning:
        sys.stdout.flush()
        print(warning, file=sys.stderr, flush=True)


# --- offsets


def _offset_rows(admin: Admin, group: ConsumerGroupDescription) -> list[Row]:
    """Return a row for each assigned partition, then for each partition with a committed offset and
    no member. The rows of members with the most partitions come first."""
    committed = admin.list_consumer_group_offsets(group.group_id)
    assigned = {tp for member in group.members for tp in member.assignment}
    ends = end_offsets(admin, assigned | set(committed))

    def rows(partitions: Iterable[TopicPartition], *member: str) -> list[Row]:
        return [Row(group.group_id, tp, committed.get(tp), ends.get(tp), *member) for tp in sorted(partitions)]

    members = sorted((m for m in group.members if m.assignment), key=lambda m: -len(m.assignment))
    consumed = [row for m in members for row in rows(m.assignment, m.member_id, m.host, m.client_id)]
    return consumed + rows(set(committed) - assigned, MISSING, MISSING, MISSING)


def end_offsets(admin: Admin, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the log end offset of each partition. Partitions without a leader and partitions whose
    lookup failed are omitted."""
    specs = dict.fromkeys(sorted(partitions), OffsetSpec.latest())
    if not specs:
        return {}
    leaderless = _without_leader(admin, specs)
    specs = {tp: spec for tp, spec in specs.items() if tp not in leaderless}
    try:
        listed = admin.list_offsets(specs) if specs else {}
    except AdminError as error:
        listed = error.results
    return {tp: result.offset for tp, result in listed.items()}


def _without_leader(admin: Admin, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
    try:
        descriptions: dict[Any, Any] = admin.describe_topics(sorted({tp.topic for tp in partitions}))
    except AdminError as error:
        descriptions = error.results
    with_leader = {
        TopicPartition(str(name), info.partition)
        for name, description in descriptions.items()
        for info in description.partitions
        if info.leader is not None
    }
    return {tp for tp in partitions if tp not in with_leader}


def _or_missing(value: object) -> str:
    return MISSING if value is None else str(value)


def _show_offsets(group: ConsumerGroupDescription, rows: list[Row], verbose: bool) -> None:
    if not rows:
        return
    headings = ["GROUP", "TOPIC", "PARTITION", *(["LEADER-EPOCH"] if verbose else [])]
    headings += ["CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CONSUMER-ID", "HOST", "CLIENT-ID"]
    table = []
    for row in rows:
        cells = [row.group, row.partition.topic, str(row.partition.partition)]
        if verbose:
            cells.append(_or_missing(row.committed.leader_epoch if row.committed else None))
        cells += [_or_missing(row.committed.offset if row.committed else None), _or_missing(row.end_offset)]
        table.append([*cells, _or_missing(row.lag), row.member, row.host, row.client])
    if at_terminal():
        right_aligned = ("PARTITION", "LEADER-EPOCH", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG")
        print_table(headings, table, right_aligned=right_aligned, cell_styles=state_styles)
        print()
        return
    fixed_widths = {"PARTITION": 10, "LEADER-EPOCH": 15, "CURRENT-OFFSET": 15, "LOG-END-OFFSET": 15, "LAG": 15}
    _print_columns(headings, table, lambda i, heading: fixed_widths.get(heading) or _widest(table, i, 15))


def _print_columns(headings: list[str], table: list[list[str]], width: Callable[[int, str], int]) -> None:
    """Print a blank line and a table. All columns except the last are padded."""
    widths = [width(i, heading) for i, heading in enumerate(headings[:-1])]
    print()
    for row in (headings, *table):
        print(" ".join([*(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=False)), row[-1]]))


def _widest(table: list[list[str]], column: int, min_width: int) -> int:
    return max([min_width, *(len(row[column]) for row in table)])


def _offsets_json(group: ConsumerGroupDescription, rows: list[Row]) -> dict[str, Any]:
    return {
        "group": group.group_id,
        "state": group.state,
        "partitions": [
            {
                "topic": row.partition.topic,
                "partition": row.partition.partition,
                "currentOffset": row.committed.offset if row.committed else None,
                "leaderEpoch": row.committed.leader_epoch if row.committed else None,
                "logEndOffset": row.end_offset,
                "lag": row.lag,
                "consumerId": None if row.member == MISSING else row.member,
                "host": None if row.host == MISSING else row.host,
                "clientId": None if row.client == MISSING else row.client,
            }
            for row in rows
        ],
    }


# --- members


def assignment_text(partitions: Iterable[TopicPartition] | None) -> str:
    """Format partitions as `topic:0,1;other:2`."""
    partition_ids_by_topic: dict[str, list[int]] = {}
    for tp in sorted(partitions or ()):
        partition_ids_by_topic.setdefault(tp.topic, []).append(tp.partition)
    return (
        ";".join(
            f"{topic}:{','.join(map(str, partition_ids))}" for topic, partition_ids in partition_ids_by_topic.items()
        )
        or MISSING
    )


def _show_members(group: ConsumerGroupDescription, _rows: list[Row], verbose: bool) -> None:
    has_static_members = any(member.group_instance_id for member in group.members)
    headings = ["GROUP", "CONSUMER-ID", *(["GROUP-INSTANCE-ID"] if has_static_members else [])]
    headings += ["HOST", "CLIENT-ID", "#PARTITIONS"]
    if verbose:
        headings += ["CURRENT-EPOCH", "CURRENT-ASSIGNMENT", "TARGET-EPOCH", "TARGET-ASSIGNMENT"]
    is_upgrading = verbose and {True, False} <= {member.upgraded for member in group.members}
    if is_upgrading:
        headings.append("UPGRADED")
    table = []
    for member in group.members:
        cells = [group.group_id, member.member_id]
        cells += [member.group_instance_id or ""] if has_static_members else []
        cells += [member.host, member.client_id, str(len(member.assignment))]
        if verbose:
            cells += [_or_missing(member.member_epoch), assignment_text(member.assignment)]
            cells += [_or_missing(group.target_assignment_epoch), assignment_text(member.target_assignment)]
        if is_upgrading:
            cells.append(_or_missing(None if member.upgraded is None else str(member.upgraded).lower()))
        table.append(cells)
    if at_terminal():
        print_table(headings, table, right_aligned=("#PARTITIONS",))
        print()
        return
    min_widths = {"GROUP-INSTANCE-ID": 17, "CURRENT-ASSIGNMENT": 20, "TARGET-ASSIGNMENT": 20}
    fixed_widths = {"#PARTITIONS": 15, "CURRENT-EPOCH": 15, "TARGET-EPOCH": 15}
    widths = [
        fixed_widths.get(heading) or _widest(table, i, min_widths.get(heading, 15))
        for i, heading in enumerate(headings)
    ]
    if is_upgrading:
        widths[-1] = 0
    print()
    for row in (headings, *table):
        print(" ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)) + ("" if verbose else " "))


def _members_json(group: ConsumerGroupDescription, _rows: list[Row]) -> dict[str, Any]:
    def as_json(partitions: Iterable[TopicPartition] | None) -> list[dict[str, Any]] | None:
        if partitions is None:
            return None
        return [{"topic": tp.topic, "partition": tp.partition} for tp in sorted(partitions)]

    return {
        "group": group.group_id,
        "state": group.state,
        "members": [
            {
                "consumerId": member.member_id,
                "groupInstanceId": member.group_instance_id,
                "host": member.host,
                "clientId": member.client_id,
                "epoch": member.member_epoch,
                "assignment": as_json(member.assignment),
                "targetAssignment": as_json(member.target_assignment),
                "upgraded": member.upgraded,
            }
            for member in group.members
        ],
    }


# --- state


def _show_state(group: ConsumerGroupDescription, _rows: list[Row], verbose: bool) -> None:
    node = group.coordinator
    headings = ["GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE"]
    cells = [group.group_id, f"{node.host}:{node.port}  ({node.id})", group.assignor or MISSING, group.state]
    if verbose:
        headings += ["GROUP-EPOCH", "TARGET-ASSIGNMENT-EPOCH"]
        cells += [_or_missing(group.group_epoch), _or_missing(group.target_assignment_epoch)]
    headings.append("#MEMBERS")
    cells.append(str(len(group.members)))
    if at_terminal():
        print_table(headings, [cells], cell_styles=state_styles)
        print()
        return
    min_widths = {"GROUP": 15, "COORDINATOR (ID)": 25}
    fixed_widths = {"ASSIGNMENT-STRATEGY": 20, "STATE": 20, "GROUP-EPOCH": 15, "TARGET-ASSIGNMENT-EPOCH": 25}
    _print_columns(
        headings, [cells], lambda i, heading: fixed_widths.get(heading) or max(min_widths[heading], len(cells[i]))
    )


def _state_json(group: ConsumerGroupDescription, _rows: list[Row]) -> dict[str, Any]:
    node = group.coordinator
    return {
        "group": group.group_id,
        "state": group.state,
        "type": group.type,
        "assignor": group.assignor or None,
        "coordinator": {"id": node.id, "host": node.host, "port": node.port},
        "groupEpoch": group.group_epoch,
        "targetAssignmentEpoch": group.target_assignment_epoch,
        "members": len(group.members),
    }
