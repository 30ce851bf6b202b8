"""`kavka consumer-groups` (`kafka-consumer-groups`): list, describe and delete groups, reset and
delete their offsets.

The output is that of Kafka 4.3's tool. Kafka 3.9's tool omits line ends and the topics of
assignments.
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
CONSUMER_PROTOCOLS = ("consumer", "")
"""Protocol types of consumer groups. Groups that only commit offsets have an empty protocol
type."""
DEFAULT_TIMEOUT_MS = 30_000

COMMAND = Command(
    "consumer-groups",
    "List, describe and delete consumer groups; reset or delete their committed offsets.",
    (
        Option("list", "List all groups. --state and --type add columns or filter."),
        Option("describe", "Show the offsets and the lag of groups, their members or their state."),
        Option("delete", "Delete groups without members, and their offsets."),
        Option("reset-offsets", "Show new offsets for groups without members; commit them with --execute."),
        Option("delete-offsets", "Delete the offsets of a group for topics that it does not consume."),
        Option("validate-regex", "Check whether a pattern is valid for a subscription.", "regex"),
        Option("group", "The consumer group.", "consumer group", repeated=True, completes="group"),
        Option("all-groups", "All groups."),
        Option("offsets", "Describe offsets and lag (the default)."),
        Option("members", "Describe the members."),
        Option(
            "state",
            "With --describe: show the state. With --list: show the states, or list groups in these states.",
            "state,…",
            optional=True,
        ),
        Option("type", "With --list: show the types, or list groups of these types.", "type,…", optional=True),
        Option("verbose", "Also describe epochs and assignments."),
        Option(
            "topic",
            "The topics whose offsets to change; topic:0,1,2 selects partitions.",
            "topic[:partition,…]",
            repeated=True,
            completes="topic",
        ),
        Option("all-topics", "All topics with committed offsets of the group."),
        Option("to-earliest", "Reset to the earliest offsets."),
        Option("to-latest", "Reset to the latest offsets."),
        Option("to-current", "Reset to the committed offsets."),
        Option("to-offset", "Reset to this offset.", "offset", int),
        Option("shift-by", "Shift the offsets by this number, which may be negative.", "number-of-offsets", int),
        TO_DATETIME,
        BY_DURATION,
        Option("from-file", "Reset to the offsets in a CSV file from --export.", "path to CSV file", completes="file"),
        Option("dry-run", "Show the new offsets without committing them."),
        Option("execute", "Commit the new offsets."),
        Option("export", "Print CSV: topic,partition,offset, preceded by the group if there are several."),
        JSON,
        *connection_options(
            timeout=Option(
                "timeout",
                "Maximum time to wait for the cluster, in milliseconds.",
                "timeout (ms)",
                int,
                DEFAULT_TIMEOUT_MS,
            )
        ),
        Option("new-consumer", "Has no effect: it is the only consumer.", deprecated=True),
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
    "List groups of every type, with their type and protocol.",
    (
        Option("list", "List the groups.", required=True),
        Option("group-type", "Only groups of this type.", "type", choices=("classic", "consumer", "share", "streams")),
        Option("protocol", "Only groups of this protocol.", "protocol"),
        Option("consumer", "Only consumer groups, including groups that never had a member."),
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
    requested_type = args["group-type"] or next((name for name in ("share", "streams") if name in args), None)
    if requested_type is not None:
        groups = [group for group in groups if (group.type or "").lower() == requested_type]
    if "protocol" in args:
        groups = [group for group in groups if group.protocol_type == args["protocol"]]
    if "consumer" in args:
        groups = [
            g
            for g in groups
            if _type(g) == "Consumer" or (_type(g) == "Classic" and g.protocol_type in CONSUMER_PROTOCOLS)
        ]
    if args["json"]:
        print_json([{"group": g.group_id, "type": _type(g), "protocol": g.protocol_type} for g in groups])
        return
    headings, rows = ("GROUP", "TYPE", "PROTOCOL"), [(g.group_id, _type(g), g.protocol_type) for g in groups]
    if at_terminal():
        print_table(headings, rows)
        return
    width = max([20, *(len(group.group_id) for group in groups)])
    print(f"{'GROUP':<{width}} {'TYPE':<20} {'PROTOCOL':<20}")
    for name, group_type, protocol in rows:
        print(f"{name:<{width}} {group_type:<20} {protocol:<20} ")


def _body(args: Arguments) -> int:
    action = _check(args)
    if action == "validate-regex":
        _validate_regex(args["validate-regex"])
        return 0
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
    """Return the action. Raise UsageError for combinations of options that Kafka's tool rejects."""
    requested = [action for action in ACTIONS if action in args]
    if len(requested) != 1:
        listed = ", ".join(f"--{action}" for action in ACTIONS)
        raise UsageError(f"Command must include exactly one action: {listed}")
    action = requested[0]
    alternatives = {
        "describe": ("all-groups", "group"),
        "delete": ("all-groups", "group"),
        "reset-offsets": ("all-groups", "group"),
        "delete-offsets": ("group",),
    }.get(action, ())
    if alternatives and not args.first(*alternatives):
        listed = ", ".join(f"[{option}]" for option in alternatives)
        raise UsageError(f"Option [{action}] takes one of these options: {listed}")
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


def _validate_regex(pattern: str) -> None:
    from kavka.common.regex import Pattern, PatternError

    try:
        Pattern(pattern)
        print(f"The regular expression `{pattern}` is valid.")
    except PatternError as error:
        print(f"The regular expression `{pattern}` is invalid: {error}.")


def _parse_names(text: str | None, valid_names: tuple[str, ...], noun: str) -> list[str]:
    """Parse a list of names in any case, and return them in Kafka's spelling. Raise UsageError for
    an invalid name. `noun` names the list in the error."""
    if not text:
        return []
    spelling = {name.lower(): name for name in valid_names}
    names = [spelling.get(piece.strip().lower().replace("_", ""), "") for piece in text.split(",")]
    if "" in names:
        raise UsageError(f"Invalid {noun} list '{text}'. Valid {noun}s are: {', '.join(valid_names)}")
    return names


def _list(admin: Admin, args: Arguments) -> None:
    states = _parse_names(args["state"], STATES, "state")
    types = _parse_names(args["type"], TYPES, "type")
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
        print_table(headings, rows, cell_styles=state_styles)
        return
    width = max([15, *(len(g.group_id) for g in groups)]) + 10
    for row in (headings, *rows):
        print(f"{row[0]:<{width}}" + "".join(f" {cell:<20}" for cell in row[1:]))


def _type(group: GroupListing) -> str:
    return (group.type or "Unknown").capitalize()


def state_styles(heading: str, cell: str) -> tuple[str, ...]:
    """Return the styles of a cell: states and nonzero lags are coloured."""
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
    deleted = [group for group in groups if group not in errors]
    quoted = ", ".join(f"'{group}'" for group in deleted)
    if not errors:
        print(f"Deletion of requested consumer groups ({quoted}) was successful.")
        return 0
    for group, cause in errors.items():
        fail(f"Error: Group '{group}' could not be deleted due to: {reason(cause)}")
    if deleted:
        print(f"\nThese consumer groups were deleted successfully: {quoted}")
    return 1


def _delete_offsets(admin: Admin, args: Arguments) -> int:
    from kavka.cli.partitions import named_partitions
    from kavka.client.admin import AdminError
    from kavka.common.errors import KafkaError

    group = args["group"][0]
    partitions, unknown = named_partitions(admin, args["topic"])
    status: dict[tuple[str, int], str] = {(name, -1): f"Error: {reason(cause)}" for name, cause in unknown.items()}
    failure = ""
    try:
        if partitions:
            admin.delete_consumer_group_offsets(group, partitions)
        status |= {(tp.topic, tp.partition): "Successful" for tp in partitions}
    except AdminError as error:
        for tp in partitions:
            cause = error.errors.get(tp)
            status[tp.topic, tp.partition] = "Successful" if cause is None else f"Error: {reason(cause)}"
        failure = "Encountered some partition-level error, see the follow-up details."
    except KafkaError as error:
        # The request failed for the whole group.
        status |= {(tp.topic, tp.partition): f"Error: {reason(error)}" for tp in partitions}
        failure = f"{reason(error)} ({group})"
    if failure:
        sys.stdout.flush()
        print(f"Error: {failure}", file=sys.stderr, flush=True)
    else:
        print(f"Request succeeded for deleting offsets from group {group}.")
    rows = [("TOPIC", "PARTITION", "STATUS")]
    rows += [(topic, "-" if p < 0 else str(p), result) for (topic, p), result in sorted(status.items())]
    width = max(15, *(len(topic) for topic, _ in status)) if status else 15
    print("".join(f"\n{topic:<{width}} {partition:<10} {result:<15}" for topic, partition, result in rows))
    if not failure and unknown:
        raise ToolError(f"there is no topic {', '.join(sorted(unknown))}")
    return 1 if failure else 0
