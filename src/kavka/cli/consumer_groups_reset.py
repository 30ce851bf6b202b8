"""`kavka consumer-groups --reset-offsets`."""

from __future__ import annotations

import csv
import io
import re
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from kavka.cli.consumer_groups import WAYS, chosen_groups
from kavka.cli.options import Arguments, UsageError
from kavka.cli.output import at_terminal, print_json, print_table
from kavka.cli.partitions import named_partitions
from kavka.cli.tool import ToolError, fail, note, reason
from kavka.client.admin.base import AdminError
from kavka.client.admin.types import OffsetSpec
from kavka.common.errors import ErrorCode
from kavka.common.types import TopicPartition

if TYPE_CHECKING:
    from kavka.client.admin import Admin

INACTIVE = ("Empty", "Dead")
Offsets = dict[TopicPartition, int]
Plan = dict[str, Offsets]

_DURATION = re.compile(
    r"([-+]?)P(?:([-+]?\d+)D)?(T(?:([-+]?\d+)H)?(?:([-+]?\d+)M)?(?:([-+]?\d+(?:\.\d{0,9})?)S)?)?", re.IGNORECASE
)


def reset(admin: Admin, args: Arguments) -> int:
    way = _way(args)
    if not args.first("all-topics", "topic") and way != "from-file":
        raise UsageError("One of the reset scopes should be defined: --all-topics, --topic.")
    if "execute" not in args and "dry-run" not in args:
        note("consumer-groups", "nothing is set without --execute; --dry-run says that this is meant")
    groups = chosen_groups(admin, args)
    code = 0
    plan: Plan = {}
    from_file = _read_plan(args["from-file"], groups) if way == "from-file" else {}
    for group in groups:
        state = _state(admin, group)
        if state not in INACTIVE:
            code = fail(
                f"Error: Assignments can only be reset if the group '{group}' is inactive, "
                f"but the current state is {state}."
            )
            continue
        if way == "from-file":
            wanted = from_file.get(group, {})
            plan[group] = _within(admin, wanted)
        else:
            plan[group] = _offsets(admin, args, way, group, _scope(admin, args, group))
        if "execute" in args and plan[group]:
            admin.alter_consumer_group_offsets(group, plan[group])
    _show(plan, args, len(groups))
    return code


def _way(args: Arguments) -> str:
    given = [way for way in WAYS if way in args]
    if len(given) != 1:
        shown = ", ".join(f"[{way}]" for way in WAYS)
        raise UsageError(f"Option [reset-offsets] takes exactly one of these options: {shown}")
    return given[0]


def _state(admin: Admin, group: str) -> str:
    try:
        return admin.describe_consumer_groups([group])[group].state
    except AdminError as error:
        if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
            return "Dead"
        raise


def _scope(admin: Admin, args: Arguments, group: str) -> list[TopicPartition]:
    if "all-topics" in args:
        return sorted(admin.list_consumer_group_offsets(group))
    partitions, unknown = named_partitions(admin, args["topic"])
    if unknown:
        name, why = next(iter(unknown.items()))
        raise ToolError(f"Executing consumer group command failed due to {name}: {reason(why)}")
    return partitions


def _offsets(admin: Admin, args: Arguments, way: str, group: str, partitions: list[TopicPartition]) -> Offsets:
    """Where each partition is to go on."""
    _check_exist(admin, partitions)
    match way:
        case "to-earliest":
            return _at(admin, partitions, OffsetSpec.earliest())
        case "to-latest":
            return _at(admin, partitions, OffsetSpec.latest())
        case "to-offset":
            return _within(admin, dict.fromkeys(partitions, int(args["to-offset"])))
        case "to-datetime":
            return _at_time(admin, partitions, milliseconds_of(args["to-datetime"]))
        case "by-duration":
            return _at_time(admin, partitions, int(time.time() * 1000) - duration_ms(args["by-duration"]))
        case "shift-by":
            return _within(admin, _shifted(admin, group, partitions, int(args["shift-by"])))
        case _:
            return _current(admin, group, partitions)


def _check_exist(admin: Admin, partitions: Iterable[TopicPartition]) -> None:
    wanted = sorted(partitions)
    found, unknown = named_partitions(admin, sorted({tp.topic for tp in wanted}))
    missing = [tp for tp in wanted if tp not in set(found)]
    if missing or unknown:
        raise ToolError(
            "Executing consumer group command failed due to The partitions "
            f'"{",".join(map(str, missing))}" do not exist'
        )


def _at(admin: Admin, partitions: Iterable[TopicPartition], spec: OffsetSpec) -> Offsets:
    specs = dict.fromkeys(partitions, spec)
    return {tp: found.offset for tp, found in admin.list_offsets(specs).items()} if specs else {}


def _at_time(admin: Admin, partitions: list[TopicPartition], timestamp: int) -> Offsets:
    found = _at(admin, partitions, OffsetSpec.for_timestamp(max(0, timestamp)))
    later = [tp for tp in partitions if found[tp] < 0]
    for tp in later:
        print(f"\nWarn: Partition {tp.partition} from topic {tp.topic} is empty. Falling back to latest known offset.")
    return found | _at(admin, later, OffsetSpec.latest())


def _shifted(admin: Admin, group: str, partitions: list[TopicPartition], by: int) -> Offsets:
    committed = admin.list_consumer_group_offsets(group, partitions)
    shifted = {}
    for tp in partitions:
        at = committed.get(tp)
        if at is None:
            raise UsageError(f"Cannot shift offset for partition {tp} since there is no current committed offset")
        shifted[tp] = at.offset + by
    return shifted


def _current(admin: Admin, group: str, partitions: list[TopicPartition]) -> Offsets:
    """What is committed; the end where nothing is."""
    committed = admin.list_consumer_group_offsets(group, partitions)
    found = {tp: at.offset for tp, at in committed.items() if at is not None}
    return {tp: found[tp] for tp in partitions if tp in found} | _at(
        admin, [tp for tp in partitions if tp not in found], OffsetSpec.latest()
    )


def _within(admin: Admin, wanted: Mapping[TopicPartition, int]) -> Offsets:
    """Offsets that the partitions do not have become the nearest that they have."""
    _check_exist(admin, wanted)
    earliest, latest = _at(admin, wanted, OffsetSpec.earliest()), _at(admin, wanted, OffsetSpec.latest())
    inside = {}
    for tp, offset in wanted.items():
        inside[tp] = min(max(offset, earliest[tp]), latest[tp])
        if inside[tp] != offset:
            than = "lower than earliest" if offset < earliest[tp] else "higher than latest"
            note(
                "consumer-groups",
                f"New offset ({offset}) is {than} offset for topic partition {tp}. Value will be set to {inside[tp]}",
            )
    return inside


# --- times


def milliseconds_of(text: str) -> int:
    """YYYY-MM-DDThh:mm:ss.sss with or without a zone; without one it is UTC."""
    if "T" not in text:
        raise UsageError("Error parsing timestamp. It does not contain a 'T' according to ISO8601 format")
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"'{text}' is not a time: YYYY-MM-DDThh:mm:ss.sss is expected") from None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def duration_ms(text: str) -> int:
    """PnDTnHnMnS."""
    match = _DURATION.fullmatch(text)
    if match is None or not any(match.group(2, 4, 5, 6)) or match.group(3) in ("T", "t"):
        raise UsageError(f"'{text}' is not a duration: PnDTnHnMnS is expected, as P1DT12H or PT30M")
    days, hours, minutes, seconds = (float(piece or 0) for piece in match.group(2, 4, 5, 6))
    total = round((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000)
    return -total if match.group(1) == "-" else total


# --- files


def _read_plan(path: str, groups: list[str]) -> Plan:
    """topic,partition,offset for one group; group,topic,partition,offset for several."""
    columns = 3 if len(groups) == 1 else 4
    plan: Plan = {}
    with open(path, encoding="utf-8", newline="") as file:
        reader = csv.reader(file)
        for row in reader:
            if not row:
                continue
            where = f"{path}: line {reader.line_num}"
            expected = "topic,partition,offset" if columns == 3 else "group,topic,partition,offset"
            if len(row) not in (3, 4) or (len(row) == 3 and columns == 4):
                raise ToolError(f"{where}: {expected} is expected")
            group = groups[0] if len(row) == 3 else row[0]
            try:
                partition, offset = int(row[-2]), int(row[-1])
            except ValueError:
                raise ToolError(f"{where}: {expected} is expected, with numbers in the last two") from None
            plan.setdefault(group, {})[TopicPartition(row[-3], partition)] = offset
    return plan


def _show(plan: Plan, args: Arguments, groups: int) -> None:
    rows = [(group, *tp, offset) for group, offsets in plan.items() for tp, offset in sorted(offsets.items())]
    if args["json"]:
        names = ("group", "topic", "partition", "newOffset")
        print_json([dict(zip(names, row, strict=True)) for row in rows])
    elif "export" in args:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(row if groups > 1 else row[1:] for row in rows)
        print(text.getvalue())
    elif at_terminal():
        print_table(("GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"), rows, right=("PARTITION", "NEW-OFFSET"))
    else:
        group_width = max([15, *(len(row[0]) for row in rows)])
        topic_width = max([15, *(len(row[1]) for row in rows)])
        shown = [("GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"), *rows]
        print("".join(f"\n{g:<{group_width}} {t:<{topic_width}} {p!s:<10} {o}" for g, t, p, o in shown))
