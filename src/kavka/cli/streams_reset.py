"""`kavka streams-application-reset` (`kafka-streams-application-reset`): reset a streams
application.

The output is that of Kafka 3.9's tool. As in Kafka's tool, offsets are reset before internal topics
are deleted, so that the tool can be run again after an interruption.
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
    "Reset a stopped streams application: reset the offsets of its input topics and delete its internal topics. "
    "KafkaStreams.clean_up() deletes its local state, which is also necessary.",
    (
        Option("application-id", "The application.id.", "id", required=True, completes="group"),
        Option(
            "bootstrap-server",
            "Bootstrap brokers: host:port, separated by commas.",
            "server to connect to",
            default="localhost:9092",
        ),
        Option("input-topics", "Input topics, reset to their earliest offsets by default.", "list",
               separator=",", completes="topic"),
        Option("intermediate-topics", "Topics that the application writes and reads, reset to their latest offsets.",
               "list", separator=",", completes="topic"),
        Option("internal-topics", "Internal topics to delete; by default all.", "list", separator=",",
               completes="topic"),
        Option("to-earliest", "Reset input topics to their earliest offsets."),
        Option("to-latest", "Reset input topics to their latest offsets."),
        Option("to-offset", "Reset input topics to this offset.", "offset", int),
        Option("shift-by", "Shift the offsets by this number, which may be negative; from the latest offset if "
               "there is no committed one.", "number-of-offsets", int),
        TO_DATETIME,
        BY_DURATION,
        Option("from-file", "Reset to the offsets in a CSV file: topic,partition,offset.", "path to CSV file",
               completes="file"),
        Option("dry-run", "Show the actions without performing them."),
        Option("force", "Remove active members from the group of the application."),
        Option("config-file", "A file with settings of the admin client.", "file name", aliases=("command-config",),
               completes="file"),
        TIMEOUT,
        Option("bootstrap-servers", "Same as --bootstrap-server.", "urls", deprecated=True),
    ),
    error="ERROR: ",
    examples=(
        "kavka streams-application-reset --bootstrap-server localhost:9092 --application-id wordCountApp "
        "--input-topics orders --dry-run",
    ),
)  # fmt: skip

_INTERNAL_TOPIC = re.compile(
    r"(-changelog|-repartition|-subscription-registration-topic|-subscription-response-topic"
    r"|.-KTABLE-FK-JOIN-SUBSCRIPTION-(REGISTRATION|RESPONSE)-[0-9]+-topic)\Z"
)


def main(argv: list[str]) -> int:
    return run(COMMAND, argv, _body)


def _body(args: Arguments) -> int:
    for index, way in enumerate(WAYS):
        args.forbid(way, *WAYS[index + 1 :])
    is_dry_run, application = "dry-run" in args, args["application-id"]
    servers = args.first("bootstrap-server", "bootstrap-servers") or args["bootstrap-server"]
    with admin_for(args, config="config-file", servers=servers) as admin:
        _check_stopped(admin, application, "force" in args, is_dry_run)
        if is_dry_run:
            print("----Dry run displays the actions which will be performed when running Streams Reset Tool----")
        reset_code = _reset(admin, args, application, is_dry_run)
        delete_code = _delete_internal_topics(admin, args, application, is_dry_run)
    if not is_dry_run:
        note(COMMAND.name, "the state in state.dir remains: delete it with KafkaStreams.clean_up()")
    return reset_code or delete_code


# --- members


def _check_stopped(admin: Admin, application: str, force: bool, is_dry_run: bool) -> None:
    """Raise ToolError if the application is running. With `force`, remove active members from its
    group instead."""
    try:
        job = jobs.read(application)
    except jobs.JobError:
        job = None
    if job is not None and job["running"]:
        # Kavka's streams jobs do not join the group, so the check below does not cover them.
        raise ToolError(
            f"{application} is running on this machine (process {job['pid']}): stop it first with kavka pipeline stop "
            f"{application}"
        )
    if admin.group_state(application) in INACTIVE:
        return
    members = admin.describe_consumer_groups([application])[application].members
    if not force:
        listed = ", ".join(f"{m.member_id} (client {m.client_id!r}, host {m.host})" for m in members)
        raise ToolError(
            f"Consumer group '{application}' is still active and has following members: [{listed}]. Make sure to stop "
            "all running application instances before running the reset tool. You can use option '--force' to remove "
            "active members from the group."
        )
    print(f"Force deleting all active members in the group: {application}")
    if not is_dry_run:
        admin.remove_members_from_consumer_group(application)


# --- offsets


def _reset(admin: Admin, args: Arguments, application: str, is_dry_run: bool) -> int:
    """Reset the offsets of the input and intermediate topics. Return 1 if a topic does not
    exist."""
    input_topics, intermediate_topics = args["input-topics"], args["intermediate-topics"]
    if not input_topics and not intermediate_topics:
        print("No input or intermediate topics specified. Skipping seek.")
        return 0
    if input_topics:
        print(f"Reset-offsets for input topics {_listed(input_topics)}")
    if intermediate_topics:
        print(f"Seek-to-end for intermediate topics {_listed(intermediate_topics)}")
    topics = {topic.name: topic for topic in described_topics(admin, [*input_topics, *intermediate_topics])}
    missing = [[name for name in names if name not in topics] for names in (input_topics, intermediate_topics)]
    for role, names, space in zip(("input", "intermediate"), missing, (" ", ""), strict=True):
        if names:
            print(f"Following {role} topics are not found, skipping them")
            print("\n".join(f"Topic:{space}{name}" for name in names))

    def partitions(names: list[str]) -> list[TopicPartition]:
        existing = [topics[name] for name in set(names) if name in topics]
        return sorted(TopicPartition(topic.name, info.partition) for topic in existing for info in topic.partitions)

    offsets: Offsets = {}
    inputs, intermediates = partitions(input_topics), partitions(intermediate_topics)
    if inputs:
        print(f"Following input topics offsets will be reset to (for consumer group {application})")
        offsets |= _plan(admin, args, application, inputs)
        print("\n".join(f"Topic: {tp.topic} Partition: {tp.partition} Offset: {offsets[tp]}" for tp in inputs))
    if intermediates:
        print(f"Following intermediate topics offsets will be reset to end (for consumer group {application})")
        print("\n".join(f"Topic: {name}" for name in dict.fromkeys(tp.topic for tp in intermediates)))
        offsets |= admin.plan_offset_reset(application, "to-latest", intermediates).offsets
    if offsets:
        if not is_dry_run:
            admin.alter_consumer_group_offsets(application, offsets)
        print("Done.")
    return 1 if any(missing) else 0


def _plan(admin: Admin, args: Arguments, application: str, partitions: list[TopicPartition]) -> Offsets:
    way = next((name for name in WAYS if name in args), "to-earliest")
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
        print(_moved_text(moved))
    return plan.offsets


def _moved_text(moved: MovedOffset) -> str:
    comparison = "lower than earliest" if moved.requested < moved.offset else "higher than latest"
    return f"New offset ({moved.requested}) is {comparison} offset. Value will be set to {moved.offset}"


def _from_file(path: str, application: str, partitions: list[TopicPartition]) -> Offsets:
    offsets = read_plan(path, [application]).get(application, {})
    missing, unexpected = sorted(set(partitions) - set(offsets)), sorted(set(offsets) - set(partitions))
    if missing:
        raise ToolError(f"{path} has no offsets for {', '.join(map(str, missing))}")
    if unexpected:
        raise ToolError(f"{path} has {', '.join(map(str, unexpected))}, which is not in --input-topics")
    return offsets


# --- internal topics


def is_internal_topic(topic: str, application: str) -> bool:
    """Return whether a topic has the name of an internal topic of the application."""
    return topic.startswith(f"{application}-") and _INTERNAL_TOPIC.search(topic) is not None


def _delete_internal_topics(admin: Admin, args: Arguments, application: str, is_dry_run: bool) -> int:
    """Delete the internal topics of the application. Return 1 if a topic cannot be deleted."""
    from kavka.client.admin import AdminError

    internal = sorted(name for name in admin.list_topics() if is_internal_topic(name, application))
    chosen = args["internal-topics"]
    if not set(chosen) <= set(internal):
        raise ToolError(
            "Invalid topic specified in the --internal-topics option. Ensure that the topics specified are all "
            "internal topics. Do a dry run without the --internal-topics option to see the list of all internal topics "
            "that can be deleted."
        )
    topics = chosen or internal
    print(f"Deleting {'specified' if chosen else 'inferred'} internal topics {_listed(topics)}")
    try:
        if topics and not is_dry_run:
            admin.delete_topics(topics)
    except AdminError as error:
        for name, cause in error.errors.items():
            fail(f"ERROR: cannot delete topic {name}: {reason(cause)}")
        return 1
    print("Done.")
    return 0


def _listed(names: list[str]) -> str:
    return f"[{', '.join(names)}]"
