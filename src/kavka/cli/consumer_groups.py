"""`kavka consumer-groups` (`kafka-consumer-groups`): list, describe and delete groups, reset and delete their offsets.

What is printed is what Kafka 4.3's tool prints: that of 3.9 leaves out line ends and the topics of assignments.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from kavka.cli.connecting import JSON, admin_for, connection_options
from kavka.cli.options import Arguments, Command, Option, UsageError
from kavka.cli.output import at_terminal, print_json, print_table
from kavka.cli.resetting import BY_DURATION, TO_DATETIME
from kavka.cli.tool import ToolError, fail, reason, run
from kavka.client.admin.resets import WAYS

if TYPE_CHECKING:
    from kavka.client.admin import Admin
    from kavka.client.admin.types import GroupListing

STATES = ("Stable", "PreparingRebalance", "CompletingRebalance", "Empty", "Dead", "Assigning", "Reconciling")
TYPES = ("Classic", "Consumer")
OURS = ("consumer", "")
"""The protocols of consumers; groups under which only offsets are committed have none."""
DEFAULT_TIMEOUT_MS = 30_000

COMMAND = Command(
    "consumer-groups",
    "List, describe and delete groups of consumers; reset or delete the offsets that they have committed.",
    (
        Option("list", "List all groups; with --state or --type with those."),
        Option("describe", "Show the offsets and the lag of groups, their members or their state."),
        Option("delete", "Delete groups without members, and their offsets."),
        Option("reset-offsets", "Set the offsets of groups without members; shows them, and sets them with --execute."),
        Option("delete-offsets", "Forget the offsets of a group for topics that it does not consume now."),
        Option("validate-regex", "Say whether a pattern may be used to subscribe to topics.", "regex"),
        Option("group", "Which group.", "consumer group", repeated=True, completes="group"),
        Option("all-groups", "All groups."),
        Option("offsets", "Describe offsets and lag; this is what is shown if nothing else is said."),
        Option("members", "Describe the members."),
        Option(
            "state",
            "Describe the group's state; or list the groups with their state, or those in these states.",
            "state,…",
            optional=True,
        ),
        Option("type", "List the groups with their type, or those of these types.", "type,…", optional=True),
        Option("verbose", "Describe with everything that is known: epochs, assignments."),
        Option(
            "topic",
            "Which topics' offsets; topic:0,1,2 for some partitions of one.",
            "topic[:partition,…]",
            repeated=True,
            completes="topic",
        ),
        Option("all-topics", "The offsets of all topics for which the group has some."),
        Option("to-earliest", "To the first records that are still there."),
        Option("to-latest", "After the last records."),
        Option("to-current", "To the offsets that are committed now."),
        Option("to-offset", "To this offset.", "offset", int),
        Option("shift-by", "By so many records, forward or back.", "number-of-offsets", int),
        TO_DATETIME,
        BY_DURATION,
        Option("from-file", "To what a CSV file says, as --export makes it.", "path to CSV file", completes="file"),
        Option("dry-run", "Only show what would be set."),
        Option("execute", "Set it."),
        Option("export", "Print CSV: topic,partition,offset, with the group in front if there are several."),
        JSON,
        *connection_options(
            timeout=Option(
                "timeout",
                "How long to wait for the cluster, in milliseconds.",
                "timeout (ms)",
                int,
                DEFAULT_TIMEOUT_MS,
            )
        ),
        Option("new-consumer", "Has no effect: there are no others any more.", older=True),
    ),
    error="Error: ",
    examples=(
        "kavka consumer-groups --bootstrap-server localhost:9092 --list --state",
        "kavka consumer-groups --bootstrap-server localhost:9092 --describe --group billing",
        "kavka consumer-groups --bootstrap-server localhost:9092 --group billing --topic orders --reset-offsets "
        "--to-earliest --execute",
    ),
)

GROUPS_COMMAND = Command(
    "groups",
    "List groups of every kind, with their type and protocol.",
    (
        Option("list", "List the groups.", required=True),
        Option("group-type", "Only those of this type.", "type", choices=("classic", "consumer", "share", "streams")),
        Option("protocol", "Only those of this protocol.", "protocol"),
        Option("consumer", "Only groups of consumers, also those that nobody ever joined."),
        Option("share", "Only share groups; Kavka has none."),
        Option("streams", "Only streams groups; Kavka has none."),
        JSON,
        *connection_options(),
    ),
    examples=("kavka groups --bootstrap-server localhost:9092 --list",),
)

ACTIONS = ("list", "describe", "delete", "reset-offsets", "delete-offsets", "validate-regex")


def main(argv: list[str]) -> int:
    return run(COMMAND, argv, _body)


def groups_main(argv: list[str]) -> int:
    return run(GROUPS_COMMAND, argv, _list_all)


def _list_all(args: Arguments) -> None:
    chosen = [name for name in ("group-type", "consumer", "share", "streams") if name in args]
    for name in chosen:
        args.forbid(name, *(other for other in chosen if other != name))
    args.forbid("protocol", "consumer", "share", "streams")
    with admin_for(args) as admin:
        groups = admin.list_groups()
    kind = args["group-type"] or next((name for name in ("share", "streams") if name in args), None)
    if kind is not None:
        groups = [group for group in groups if (group.type or "").lower() == kind]
    if "protocol" in args:
        groups = [group for group in groups if group.protocol_type == args["protocol"]]
    if "consumer" in args:
        groups = [g for g in groups if _type(g) == "Consumer" or (_type(g) == "Classic" and g.protocol_type in OURS)]
    if args["json"]:
        print_json([{"group": g.group_id, "type": _type(g), "protocol": g.protocol_type} for g in groups])
        return
    headings, rows = ("GROUP", "TYPE", "PROTOCOL"), [(g.group_id, _type(g), g.protocol_type) for g in groups]
    if at_terminal():
        print_table(headings, rows)
        return
    width = max([20, *(len(group.group_id) for group in groups)])
    print(f"{'GROUP':<{width}} {'TYPE':<20} {'PROTOCOL':<20}")
    for name, of_type, protocol in rows:
        print(f"{name:<{width}} {of_type:<20} {protocol:<20} ")


def _body(args: Arguments) -> int | None:
    action = _check(args)
    if action == "validate-regex":
        return _validate_regex(args["validate-regex"])
    with admin_for(args) as admin:
        match action:
            case "list":
                _list(admin, args)
            case "describe":
                from kavka.cli.consumer_groups_describe import describe

                return describe(admin, args)
            case "reset-offsets":
                from kavka.cli.consumer_groups_reset import reset

                return reset(admin, args)
            case "delete":
                return _delete(admin, args)
            case "delete-offsets":
                return _delete_offsets(admin, args)
    return 0


def _check(args: Arguments) -> str:
    given = [action for action in ACTIONS if action in args]
    if len(given) != 1:
        shown = ", ".join(f"--{action}" for action in ACTIONS)
        raise UsageError(f"Command must include exactly one action: {shown}")
    action = given[0]
    one_of = {
        "describe": ("all-groups", "group"),
        "delete": ("all-groups", "group"),
        "reset-offsets": ("all-groups", "group"),
        "delete-offsets": ("group",),
    }.get(action, ())
    if one_of and not args.first(*one_of):
        raise UsageError(f"Option [{action}] takes one of these options: {', '.join(f'[{o}]' for o in one_of)}")
    allowed = {
        "group": ("describe", "delete", "reset-offsets", "delete-offsets"),
        "all-groups": ("describe", "delete", "reset-offsets"),
        "topic": ("reset-offsets", "delete-offsets"),
        "all-topics": ("reset-offsets",),
        "type": ("list",),
        "state": ("list", "describe"),
        "json": ("list", "describe", "reset-offsets"),
        **dict.fromkeys(("members", "offsets", "verbose"), ("describe",)),
        **dict.fromkeys((*WAYS, "dry-run", "execute", "export"), ("reset-offsets",)),
    }
    for name, actions in allowed.items():
        args.forbid(name, *(other for other in ACTIONS if other not in actions))
    args.forbid("all-groups", "group")
    args.forbid("all-topics", "topic")
    args.forbid("dry-run", "execute")
    if action == "describe" and sum(name in args for name in ("members", "offsets", "state")) > 1:
        raise UsageError("Option [describe] takes at most one of these options: [members], [offsets], [state]")
    if action == "describe" and args["state"]:
        raise UsageError("Option [describe] does not take a value for [state]")
    if action == "delete-offsets":
        args.require("topic")
        if len(args["group"]) != 1:
            raise UsageError("Option [delete-offsets] takes one group")
    return action


def _validate_regex(pattern: str) -> int:
    from kavka.common.regex import BadPattern, Pattern

    try:
        Pattern(pattern)
    except BadPattern as error:
        print(f"The regular expression `{pattern}` is invalid: {error}.")
        return 0
    print(f"The regular expression `{pattern}` is valid.")
    return 0


def _words(text: str | None, known: tuple[str, ...], what: str) -> list[str]:
    """Names from a list in any case, as Kafka spells them."""
    if not text:
        return []
    spelled = {name.lower(): name for name in known}
    found = [spelled.get(piece.strip().lower().replace("_", ""), "") for piece in text.split(",")]
    if "" in found:
        raise UsageError(f"Invalid {what} list '{text}'. Valid {what}s are: {', '.join(known)}")
    return found


def _list(admin: Admin, args: Arguments) -> None:
    states = _words(args["state"], STATES, "state")
    types = _words(args["type"], TYPES, "type")
    groups = admin.list_consumer_groups(states=states, types=types)
    with_state, with_type = "state" in args, "type" in args
    if args["json"]:
        print_json(
            [{"group": g.group_id, "type": _type(g), "state": g.state, "protocolType": g.protocol_type} for g in groups]
        )
        return
    if not with_state and not with_type:
        for group in groups:
            print(group.group_id)
        return
    headings = ["GROUP", *(["TYPE"] if with_type else []), *(["STATE"] if with_state else [])]
    rows = [
        [g.group_id, *([_type(g)] if with_type else []), *([g.state or "Unknown"] if with_state else [])]
        for g in groups
    ]
    if at_terminal():
        print_table(headings, rows, styled=state_styles)
        return
    width = max([15, *(len(g.group_id) for g in groups)]) + 10
    for row in (headings, *rows):
        print(f"{row[0]:<{width}}" + "".join(f" {cell:<20}" for cell in row[1:]))


def _type(group: GroupListing) -> str:
    return (group.type or "Unknown").capitalize()


def state_styles(heading: str, cell: str) -> tuple[str, ...]:
    if heading == "STATE":
        return ("green",) if cell == "Stable" else ("yellow",) if "ing" in cell else ()
    if heading == "LAG" and cell.isdigit() and int(cell):
        return ("yellow",)
    return ()


def chosen_groups(admin: Admin, args: Arguments) -> list[str]:
    if "all-groups" in args:
        return [group.group_id for group in admin.list_consumer_groups()]
    return list(dict.fromkeys(args["group"]))


def _delete(admin: Admin, args: Arguments) -> int:
    from kavka.client.admin import AdminError

    groups = chosen_groups(admin, args)
    if not groups:
        return 0
    errors = {}
    try:
        admin.delete_consumer_groups(groups)
    except AdminError as error:
        errors = error.errors
    done = [group for group in groups if group not in errors]
    quoted = ", ".join(f"'{group}'" for group in done)
    if not errors:
        print(f"Deletion of requested consumer groups ({quoted}) was successful.")
        return 0
    for group, why in errors.items():
        fail(f"Error: Group '{group}' could not be deleted due to: {reason(why)}")
    if done:
        print(f"\nThese consumer groups were deleted successfully: {quoted}")
    return 1


def _delete_offsets(admin: Admin, args: Arguments) -> int:
    from kavka.cli.partitions import named_partitions
    from kavka.client.admin import AdminError
    from kavka.common.errors import KafkaError

    group = args["group"][0]
    partitions, unknown = named_partitions(admin, args["topic"])
    status: dict[tuple[str, int], str] = {(name, -1): f"Error: {reason(why)}" for name, why in unknown.items()}
    failed = ""
    try:
        if partitions:
            admin.delete_consumer_group_offsets(group, partitions)
        status |= {(tp.topic, tp.partition): "Successful" for tp in partitions}
    except AdminError as error:
        for tp in partitions:
            why = error.errors.get(tp)
            status[tp.topic, tp.partition] = "Successful" if why is None else f"Error: {reason(why)}"
        failed = "Encountered some partition-level error, see the follow-up details."
    except KafkaError as error:
        # Of the group as a whole.
        status |= {(tp.topic, tp.partition): f"Error: {reason(error)}" for tp in partitions}
        failed = f"{reason(error)} ({group})"
    if failed:
        sys.stdout.flush()
        print(f"Error: {failed}", file=sys.stderr, flush=True)
    else:
        print(f"Request succeeded for deleting offsets from group {group}.")
    rows = [("TOPIC", "PARTITION", "STATUS")]
    rows += [(topic, "-" if p < 0 else str(p), said) for (topic, p), said in sorted(status.items())]
    width = max(15, *(len(topic) for topic, _ in status)) if status else 15
    print("".join(f"\n{topic:<{width}} {partition:<10} {said:<15}" for topic, partition, said in rows))
    if not failed and unknown:
        raise ToolError(f"there is no topic {', '.join(sorted(unknown))}")
    return 1 if failed else 0
