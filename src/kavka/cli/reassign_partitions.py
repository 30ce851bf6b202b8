"""`kavka reassign-partitions` (`kafka-reassign-partitions`): move partitions to other brokers or
log directories."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kavka.cli.connecting import BOOTSTRAP, COMMAND_CONFIG, DEFAULT_TIMEOUT_MS, JSON, ZOOKEEPER, admin_for
from kavka.cli.names import ids
from kavka.cli.options import Arguments, Command, Option, UsageError
from kavka.cli.output import print_json
from kavka.cli.reassign_execute import cancel, execute
from kavka.cli.reassign_plan import as_reassignment_json, current_replicas, propose, read_plan, read_topics
from kavka.cli.reassign_verify import verify
from kavka.cli.tool import ToolError, run

if TYPE_CHECKING:
    from kavka.client.admin import Admin

MOVE_TIMEOUT_MS = 10_000

COMMAND = Command(
    "reassign-partitions",
    "Move partitions to other brokers, or replicas to other log directories of their broker: generate, execute, verify "
    "or cancel a plan.",
    (
        Option("generate", "Propose a plan for the partitions of topics. Moves nothing."),
        Option("execute", "Start the reassignments in --reassignment-json-file."),
        Option("verify", "Show the progress of a plan. Removes the throttles once it is complete."),
        Option("cancel", "Cancel the active reassignments in --reassignment-json-file."),
        Option("list", "List all active reassignments."),
        Option(
            "reassignment-json-file",
            'The plan: {"version": 1, "partitions": [{"topic": "foo", "partition": 1, "replicas": [1, 2, 3], '
            '"log_dirs": ["any", "/data/1", "any"]}]}. log_dirs is optional.',
            "manual assignment json file path",
            completes="file",
        ),
        Option(
            "topics-to-move-json-file",
            'For --generate: {"version": 1, "topics": [{"topic": "foo"}]}.',
            "topics to reassign json file path",
            completes="file",
        ),
        Option("broker-list", "For --generate: the target brokers, for example 0,1,2.", "brokerlist"),
        Option("disable-rack-aware", "For --generate: do not spread replicas over racks."),
        Option("throttle", "Maximum bytes per second moved between brokers.", "B/s", int, -1, default_text="none"),
        Option(
            "replica-alter-log-dirs-throttle",
            "Maximum bytes per second moved between the log directories of a broker.",
            "B/s",
            int,
            -1,
            default_text="none",
        ),
        Option("additional", "Execute although other reassignments are active, or change their throttle."),
        Option("disallow-replication-factor-change", "Reject a plan that changes the replication factor."),
        Option("preserve-throttles", "Do not change the throttles."),
        Option("watch", "With --verify: show the progress until the plan is complete."),
        Option(
            "timeout",
            "Maximum time to wait until moves between log directories can start, in milliseconds.",
            "timeout (ms)",
            int,
            MOVE_TIMEOUT_MS,
        ),
        BOOTSTRAP,
        COMMAND_CONFIG,
        JSON,
        ZOOKEEPER,
    ),
    actions=("generate", "execute", "verify", "cancel", "list"),
    error="Error: ",
    examples=(
        "kavka reassign-partitions --bootstrap-server localhost:9092 --generate --topics-to-move-json-file topics.json "
        "--broker-list 1,2",
        "kavka reassign-partitions --bootstrap-server localhost:9092 --execute --reassignment-json-file plan.json "
        "--throttle 50000000",
        "kavka reassign-partitions --bootstrap-server localhost:9092 --verify --watch --reassignment-json-file p.json",
    ),
)

REQUIRED_OPTIONS = {
    "generate": ("topics-to-move-json-file", "broker-list"),
    "execute": ("reassignment-json-file",),
    "verify": ("reassignment-json-file",),
    "cancel": ("reassignment-json-file",),
    "list": (),
}
OPTIONAL_OPTIONS = {
    "generate": ("disable-rack-aware",),
    "execute": (
        "additional",
        "throttle",
        "replica-alter-log-dirs-throttle",
        "timeout",
        "disallow-replication-factor-change",
    ),
    "verify": ("preserve-throttles", "watch", "json"),
    "cancel": ("preserve-throttles", "timeout"),
    "list": ("json",),
}
COMMON_OPTIONS = ("bootstrap-server", "command-config", "zookeeper")


def main(argv: list[str]) -> int:
    return run(COMMAND, argv, _body)


def _body(args: Arguments) -> int | None:
    action = args.action()
    args.require(*REQUIRED_OPTIONS[action])
    for name in sorted(args.present):
        if name not in (action, *REQUIRED_OPTIONS[action], *OPTIONAL_OPTIONS[action], *COMMON_OPTIONS):
            raise UsageError(f'Option "[{name}]" can\'t be used with action "[{action}]"')
    plan = None if action in ("generate", "list") else read_plan(args["reassignment-json-file"])
    topics = read_topics(args["topics-to-move-json-file"]) if action == "generate" else []
    with admin_for(
        args,
        server_options=(BOOTSTRAP.name,),
        client_id="reassign-partitions-tool",
        default_api_timeout_ms=DEFAULT_TIMEOUT_MS,
    ) as admin:
        if action == "list":
            return _list(admin, args)
        if plan is None:
            return _generate(admin, args, topics)
        match action:
            case "execute":
                return execute(admin, args, plan)
            case "verify":
                return verify(admin, args, plan)
            case _:
                return cancel(admin, args, plan)


def _generate(admin: Admin, args: Arguments, topics: list[str]) -> int:
    try:
        brokers = [int(piece) for piece in args["broker-list"].split(",")]
    except ValueError:
        raise UsageError("--broker-list takes broker ids, separated by commas") from None
    duplicates = sorted({broker for broker in brokers if brokers.count(broker) > 1})
    if duplicates:
        raise ToolError(f"Broker list contains duplicate entries: {duplicates}")
    current = current_replicas(admin, topics)
    racks: dict[int, str | None] = {node.id: node.rack for node in admin.describe_cluster().nodes if node.id in brokers}
    if args["disable-rack-aware"]:
        racks = dict.fromkeys(racks, None)
    elif len({rack is None for rack in racks.values()}) > 1:
        raise ToolError(
            "Not all brokers have rack information. Add --disable-rack-aware in command line to make replica "
            "assignment without rack information."
        )
    proposed = propose(current, racks)
    print(f"Current partition replica assignment\n{as_reassignment_json(current)}\n")
    print(f"Proposed partition reassignment configuration\n{as_reassignment_json(proposed)}")
    return 0


def _list(admin: Admin, args: Arguments) -> int:
    reassignments = sorted(admin.list_partition_reassignments().items())
    if args["json"]:
        print_json(
            [
                {
                    "topic": tp.topic,
                    "partition": tp.partition,
                    "replicas": list(reassignment.replicas),
                    "adding": list(reassignment.adding_replicas),
                    "removing": list(reassignment.removing_replicas),
                }
                for tp, reassignment in reassignments
            ]
        )
        return 0
    if not reassignments:
        print("No partition reassignments found.")
        return 0
    print("Current partition reassignments:")
    for tp, reassignment in reassignments:
        adding = f" adding: {ids(reassignment.adding_replicas)}." if reassignment.adding_replicas else ""
        removing = f" removing: {ids(reassignment.removing_replicas)}." if reassignment.removing_replicas else ""
        print(f"{tp}: replicas: {ids(reassignment.replicas)}.{adding}{removing}")
    return 0
