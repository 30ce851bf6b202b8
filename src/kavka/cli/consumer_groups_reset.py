"""`kavka consumer-groups --reset-offsets`."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

from kavka.cli.consumer_groups import chosen_groups
from kavka.cli.options import Arguments, UsageError
from kavka.cli.output import at_terminal, print_json, print_table
from kavka.cli.partitions import named_partitions
from kavka.cli.resetting import Plan, read_plan
from kavka.cli.tool import ToolError, fail, note, reason
from kavka.client.admin.resets import INACTIVE, WAYS, NoSuchPartitions, Offsets
from kavka.common.types import TopicPartition

if TYPE_CHECKING:
    from kavka.client.admin import Admin


def reset(admin: Admin, args: Arguments) -> int:
    """Show the new offsets of the groups, commit them with --execute, and return the exit code."""
    way = _way(args)
    if not args.first("all-topics", "topic") and way != "from-file":
        raise UsageError("One of the reset scopes should be defined: --all-topics, --topic.")
    if "execute" not in args and "dry-run" not in args:
        note("consumer-groups", "no offset is changed without --execute; --dry-run hides this note")
    groups = chosen_groups(admin, args)
    code = 0
    plan: Plan = {}
    from_file = read_plan(args["from-file"], groups) if way == "from-file" else {}
    for group in groups:
        state = admin.group_state(group)
        if state not in INACTIVE:
            code = fail(
                f"Error: Assignments can only be reset if the group '{group}' is inactive, "
                f"but the current state is {state}."
            )
            continue
        if way == "from-file":
            plan[group] = _plan(admin, group, way, None, from_file.get(group, {}))
        else:
            plan[group] = _plan(admin, group, way, _scope(admin, args), args[way])
        if "execute" in args and plan[group]:
            admin.alter_consumer_group_offsets(group, plan[group])
    _show(plan, args, len(groups))
    return code


def _way(args: Arguments) -> str:
    ways = [way for way in WAYS if way in args]
    if len(ways) != 1:
        listed = ", ".join(f"[{way}]" for way in WAYS)
        raise UsageError(f"Option [reset-offsets] takes exactly one of these options: {listed}")
    return ways[0]


def _scope(admin: Admin, args: Arguments) -> list[TopicPartition] | None:
    """Return the named partitions; None for all partitions with committed offsets of the group."""
    if "all-topics" in args:
        return None
    partitions, unknown = named_partitions(admin, args["topic"])
    if unknown:
        name, cause = next(iter(unknown.items()))
        raise ToolError(f"Executing consumer group command failed due to {name}: {reason(cause)}")
    return partitions


def _plan(admin: Admin, group: str, way: str, scope: list[TopicPartition] | None, value: Any) -> Offsets:
    """Return the new offset of each partition, and print warnings. Raise ToolError or UsageError if
    the reset is not possible."""
    try:
        plan = admin.plan_offset_reset(group, way, scope, value)
    except NoSuchPartitions as error:
        raise ToolError(f"Executing consumer group command failed due to {error}") from None
    except ValueError as error:
        raise UsageError(str(error)) from None
    for tp in plan.later:
        print(f"\nWarn: Partition {tp.partition} from topic {tp.topic} is empty. Falling back to latest known offset.")
    for moved in plan.moved:
        note("consumer-groups", str(moved))
    return plan.offsets


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
        print_table(("GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"), rows, right_aligned=("PARTITION", "NEW-OFFSET"))
    else:
        # As in Kafka, the column fits all groups of the plan, including groups without new offsets.
        group_width = max([15, *map(len, plan)])
        topic_width = max([15, *(len(row[1]) for row in rows)])
        lines = [("GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"), *rows]
        print("".join(f"\n{g:<{group_width}} {t:<{topic_width}} {p!s:<10} {o}" for g, t, p, o in lines))
