"""`kavka streams-application-reset` (`kafka-streams-application-reset`): let a streams application begin anew.

What is printed is what Kafka 3.9's tool prints. The order is Kafka's, too: offsets are set before the application's own
topics are deleted, so that the tool can be run again wherever it was cut short.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from kavka import jobs
from kavka.cli.connecting import TIMEOUT, admin_for
from kavka.cli.options import Arguments, Command, Option, UsageError
from kavka.cli.partitions import described_topics
from kavka.cli.resetting import BY_DURATION, TO_DATETIME, read_plan
from kavka.cli.tool import ToolError, fail, note, reason, run
from kavka.client.admin.resets import INACTIVE, BadReset, Offsets
from kavka.common.types import TopicPartition

if TYPE_CHECKING:
    from kavka.client.admin import Admin
    from kavka.client.admin.types import MovedOffset, OffsetReset

WAYS = ("to-offset", "to-datetime", "by-duration", "to-earliest", "to-latest", "from-file", "shift-by")

COMMAND = Command(
    "streams-application-reset",
    "Let a streams application that is stopped begin anew: its input topics where it is said, its own topics deleted. "
    "KafkaStreams.clean_up() forgets its state, which has to be done as well.",
    (
        Option("application-id", "Which application (application.id).", "id", required=True, completes="group"),
        Option(
            "bootstrap-server",
            "Brokers to begin with: host:port, separated by commas.",
            "server to connect to",
            default="localhost:9092",
        ),
        Option("input-topics", "Topics that it reads: to their first records, unless said otherwise.", "list",
               separator=",", completes="topic"),
        Option("intermediate-topics", "Topics that it both writes and reads: to their ends.", "list", separator=",",
               completes="topic"),
        Option("internal-topics", "Of its own topics, those to delete; all of them without.", "list", separator=",",
               completes="topic"),
        Option("to-earliest", "Input topics to the first records that are still there."),
        Option("to-latest", "Input topics after the last records."),
        Option("to-offset", "Input topics to this offset.", "offset", int),
        Option("shift-by", "By so many records, forward or back; from the end where nothing is committed.",
               "number-of-offsets", int),
        TO_DATETIME,
        BY_DURATION,
        Option("from-file", "To what a CSV file says: topic,partition,offset.", "path to CSV file", completes="file"),
        Option("dry-run", "Only show what would be done."),
        Option("force", "Throw members out of the application's group that are left over there."),
        Option("config-file", "A file with settings of the admin client.", "file name", aliases=("command-config",),
               completes="file"),
        TIMEOUT,
        Option("bootstrap-servers", "As --bootstrap-server.", "urls", older=True),
    ),
    error="ERROR: ",
    examples=(
        "kavka streams-application-reset --bootstrap-server localhost:9092 --application-id wordCountApp "
        "--input-topics orders --dry-run",
    ),
)  # fmt: skip

_OWN = re.compile(
    r"(-changelog|-repartition|-subscription-registration-topic|-subscription-response-topic"
    r"|.-KTABLE-FK-JOIN-SUBSCRIPTION-(REGISTRATION|RESPONSE)-[0-9]+-topic)\Z"
)


def main(argv: list[str]) -> int:
    return run(COMMAND, argv, _body)


def _body(args: Arguments) -> int:
    for number, way in enumerate(WAYS):
        args.forbid(way, *WAYS[number + 1 :])
    dry, application = "dry-run" in args, args["application-id"]
    servers = args.first("bootstrap-server", "bootstrap-servers") or args["bootstrap-server"]
    with admin_for(args, config="config-file", servers=servers) as admin:
        _check_stopped(admin, application, "force" in args, dry)
        if dry:
            print("----Dry run displays the actions which will be performed when running Streams Reset Tool----")
        code = _reset(admin, args, application, dry)
        deleted = _delete_own(admin, args, application, dry)
    if not dry:
        note(COMMAND.name, "the state in state.dir is still there: forget it with KafkaStreams.clean_up()")
    return code or deleted


# --- members


def _check_stopped(admin: Admin, application: str, force: bool, dry: bool) -> None:
    try:
        job = jobs.read(application)
    except jobs.JobError:
        job = None
    if job is not None and job["running"]:
        # Streams here are no members of their group, which could be asked for them.
        raise ToolError(
            f"{application} runs on this machine (process {job['pid']}): stop it first, kavka pipeline stop "
            f"{application}"
        )
    if admin.group_state(application) in INACTIVE:
        return
    members = admin.describe_consumer_groups([application])[application].members
    if not force:
        shown = ", ".join(f"{one.member_id} (client {one.client_id!r}, host {one.host})" for one in members)
        raise ToolError(
            f"Consumer group '{application}' is still active and has following members: [{shown}]. Make sure to stop "
            "all running application instances before running the reset tool. You can use option '--force' to remove "
            "active members from the group."
        )
    print(f"Force deleting all active members in the group: {application}")
    if not dry:
        admin.remove_members_from_consumer_group(application)


# --- offsets


def _reset(admin: Admin, args: Arguments, application: str, dry: bool) -> int:
    wanted, between = args["input-topics"], args["intermediate-topics"]
    if not wanted and not between:
        print("No input or intermediate topics specified. Skipping seek.")
        return 0
    if wanted:
        print(f"Reset-offsets for input topics {_listed(wanted)}")
    if between:
        print(f"Seek-to-end for intermediate topics {_listed(between)}")
    described = {one.name: one for one in described_topics(admin, [*wanted, *between])}
    gone = [[name for name in names if name not in described] for names in (wanted, between)]
    for kind, missing, space in zip(("input", "intermediate"), gone, (" ", ""), strict=True):
        if missing:
            print(f"Following {kind} topics are not found, skipping them")
            print("\n".join(f"Topic:{space}{name}" for name in missing))

    def partitions(names: list[str]) -> list[TopicPartition]:
        found = {name for name in names if name in described}
        return sorted(TopicPartition(name, one.partition) for name in found for one in described[name].partitions)

    offsets: Offsets = {}
    inputs, ends = partitions(wanted), partitions(between)
    if inputs:
        print(f"Following input topics offsets will be reset to (for consumer group {application})")
        offsets |= _planned(admin, args, application, inputs)
        print("\n".join(f"Topic: {tp.topic} Partition: {tp.partition} Offset: {offsets[tp]}" for tp in inputs))
    if ends:
        print(f"Following intermediate topics offsets will be reset to end (for consumer group {application})")
        print("\n".join(f"Topic: {name}" for name in dict.fromkeys(tp.topic for tp in ends)))
        offsets |= admin.plan_offset_reset(application, "to-latest", ends).offsets
    if offsets:
        if not dry:
            admin.alter_consumer_group_offsets(application, offsets)
        print("Done.")
    return 1 if any(gone) else 0


def _planned(admin: Admin, args: Arguments, application: str, partitions: list[TopicPartition]) -> Offsets:
    way = next((one for one in WAYS if one in args), "to-earliest")
    value: Any = args[way]
    try:
        if way == "from-file":
            value = _from_file(args["from-file"], application, partitions)
        elif way == "shift-by":
            current = admin.plan_offset_reset(application, "to-current", partitions).offsets
            way, value = "from-file", {tp: offset + args["shift-by"] for tp, offset in current.items()}
        plan: OffsetReset = admin.plan_offset_reset(application, way, partitions, value)
    except BadReset as error:
        raise ToolError(str(error)) from None
    except ValueError as error:
        raise UsageError(str(error)) from None
    for tp in plan.later:
        print(
            f"Partition {tp.partition} from topic {tp.topic} is empty, without a committed record. Falling back to "
            "latest known offset."
        )
    for moved in plan.moved:
        print(_told(moved))
    return plan.offsets


def _told(moved: MovedOffset) -> str:
    than = "lower than earliest" if moved.wanted < moved.offset else "higher than latest"
    return f"New offset ({moved.wanted}) is {than} offset. Value will be set to {moved.offset}"


def _from_file(path: str, application: str, partitions: list[TopicPartition]) -> Offsets:
    found = read_plan(path, [application]).get(application, {})
    missing, more = sorted(set(partitions) - set(found)), sorted(set(found) - set(partitions))
    if missing:
        raise ToolError(f"{path} says nothing of {', '.join(map(str, missing))}")
    if more:
        raise ToolError(f"{path} has {', '.join(map(str, more))}, which --input-topics does not name")
    return found


# --- the application's own topics


def is_own(topic: str, application: str) -> bool:
    """Whether a topic's name is one that a streams application gives to its own."""
    return topic.startswith(f"{application}-") and _OWN.search(topic) is not None


def _delete_own(admin: Admin, args: Arguments, application: str, dry: bool) -> int:
    from kavka.client.admin import AdminError

    own = sorted(name for name in admin.list_topics() if is_own(name, application))
    chosen = args["internal-topics"]
    if not set(chosen) <= set(own):
        raise ToolError(
            "Invalid topic specified in the --internal-topics option. Ensure that the topics specified are all "
            "internal topics. Do a dry run without the --internal-topics option to see the list of all internal topics "
            "that can be deleted."
        )
    wanted = chosen or own
    print(f"Deleting {'specified' if chosen else 'inferred'} internal topics {_listed(wanted)}")
    try:
        if wanted and not dry:
            admin.delete_topics(wanted)
    except AdminError as error:
        for name, why in error.errors.items():
            fail(f"ERROR: deleting topic {name}: {reason(why)}")
        return 1
    print("Done.")
    return 0


def _listed(names: list[str]) -> str:
    return f"[{', '.join(names)}]"
