"""`kavka reassign-partitions` (`kafka-reassign-partitions`): move partitions to other brokers or other directories."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from kavka.cli.connecting import BOOTSTRAP, COMMAND_CONFIG, DEFAULT_TIMEOUT_MS, JSON, ZOOKEEPER, admin_for
from kavka.cli.names import ids
from kavka.cli.options import Arguments, Command, Option, UsageError
from kavka.cli.output import Progress, print_json
from kavka.cli.reassign_plan import Plan, as_reassignment_json, propose, read_plan, read_topics
from kavka.cli.reassign_throttle import clear_throttles, throttle_log_dirs, throttle_replication
from kavka.cli.tool import ToolError, reason, run
from kavka.common.types import TopicPartition

if TYPE_CHECKING:
    from kavka.client.admin import Admin
    from kavka.client.admin.types import PartitionReassignment, TopicPartitionReplica

MOVE_TIMEOUT_MS = 10_000
RETRY_S = 0.1
WATCH_S = 1.0

ALREADY = (
    "Cannot execute because there is an existing partition assignment.  Use --additional to override this and create a "
    "new partition assignment in addition to the existing one. The --additional flag can also be used to change the "
    "throttle by resubmitting the current reassignment."
)
VERIFY_LATER = (
    "Warning: You must run --verify periodically, until the reassignment completes, to ensure the throttle is removed."
)

COMMAND = Command(
    "reassign-partitions",
    "Move partitions to other brokers, or replicas to other log directories of their broker: generate a plan, execute "
    "it, verify how far it is, cancel it.",
    (
        Option("generate", "Propose where the partitions of topics could go. Nothing is moved."),
        Option("execute", "Begin to move as --reassignment-json-file says."),
        Option("verify", "Show how far it is; when all is done, remove the throttle."),
        Option("cancel", "Call off what --reassignment-json-file names and is not done."),
        Option("list", "List all moves that are under way."),
        Option(
            "reassignment-json-file",
            'The plan: {"version": 1, "partitions": [{"topic": "foo", "partition": 1, "replicas": [1, 2, 3], '
            '"log_dirs": ["any", "/data/1", "any"]}]}. The log_dirs may be left out.',
            "manual assignment json file path",
            completes="file",
        ),
        Option(
            "topics-to-move-json-file",
            'For --generate: {"version": 1, "topics": [{"topic": "foo"}]}.',
            "topics to reassign json file path",
            completes="file",
        ),
        Option("broker-list", "For --generate: the brokers that are to have the partitions, as 0,1,2.", "brokerlist"),
        Option("disable-rack-aware", "For --generate: do not spread replicas over racks."),
        Option("throttle", "At most so many bytes per second between brokers.", "B/s", int, -1, default_text="none"),
        Option(
            "replica-alter-log-dirs-throttle",
            "At most so many bytes per second between the directories of a broker.",
            "B/s",
            int,
            -1,
            default_text="none",
        ),
        Option("additional", "Move these beside others that are being moved; or change the throttle of those."),
        Option("disallow-replication-factor-change", "Refuse a plan that gives a partition more or fewer replicas."),
        Option("preserve-throttles", "Leave throttles as they are."),
        Option("watch", "With --verify: wait until all is done, and show how far it is."),
        Option(
            "timeout",
            "How long to wait until moves between directories can begin, in milliseconds.",
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

NEEDS = {
    "generate": ("topics-to-move-json-file", "broker-list"),
    "execute": ("reassignment-json-file",),
    "verify": ("reassignment-json-file",),
    "cancel": ("reassignment-json-file",),
    "list": (),
}
MAY = {
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
ALWAYS = ("bootstrap-server", "command-config", "zookeeper")


def main(argv: list[str]) -> int:
    return run(COMMAND, argv, _body)


def _body(args: Arguments) -> int | None:
    action = args.action()
    args.require(*NEEDS[action])
    for name in sorted(args.given):
        if name not in (action, *NEEDS[action], *MAY[action], *ALWAYS):
            raise UsageError(f'Option "[{name}]" can\'t be used with action "[{action}]"')
    plan = None if action in ("generate", "list") else read_plan(args["reassignment-json-file"])
    topics = read_topics(args["topics-to-move-json-file"]) if action == "generate" else []
    servers = args["bootstrap-server"]
    with admin_for(
        args, servers=servers, client_id="reassign-partitions-tool", default_api_timeout_ms=DEFAULT_TIMEOUT_MS
    ) as admin:
        if action == "list":
            return _list(admin, args)
        if plan is None:
            return _generate(admin, args, topics)
        match action:
            case "execute":
                return _execute(admin, args, plan)
            case "verify":
                return _verify(admin, args, plan)
            case _:
                return _cancel(admin, args, plan)


# --- generate


def _generate(admin: Admin, args: Arguments, topics: list[str]) -> int:
    try:
        brokers = [int(piece) for piece in args["broker-list"].split(",")]
    except ValueError:
        raise UsageError("--broker-list takes the ids of brokers, separated by commas") from None
    doubled = sorted({broker for broker in brokers if brokers.count(broker) > 1})
    if doubled:
        raise ToolError(f"Broker list contains duplicate entries: {doubled}")
    current = _current(admin, topics)
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


def _current(admin: Admin, topics: Iterable[str]) -> dict[TopicPartition, list[int]]:
    """The replicas of all partitions of these topics."""
    from kavka.client.admin import AdminError
    from kavka.common.errors import ErrorCode

    try:
        found = admin.describe_topics(sorted(set(topics)))
    except AdminError as error:
        name = next(iter(error.errors))
        if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise ToolError(f"Topic {name} not found.") from None
        raise
    return {
        TopicPartition(description.name, info.partition): [node.id for node in info.replicas]
        for description in found.values()
        for info in description.partitions
    }


# --- execute


def _execute(admin: Admin, args: Arguments, plan: Plan) -> int:
    from kavka.client.admin import AdminError

    plan.check()
    under_way = admin.list_partition_reassignments()
    if under_way and not args["additional"]:
        raise ToolError(ALREADY)
    alive = {node.id for node in admin.describe_cluster().nodes}
    for broker in sorted({broker for replicas in plan.replicas.values() for broker in replicas}):
        if broker not in alive:
            raise ToolError(f"Unknown broker id {broker}")
    everything = _current(admin, {tp.topic for tp in plan.replicas})
    missing = sorted(tp for tp in plan.replicas if tp not in everything)
    if missing:
        raise ToolError(f"Unable to find partition: {', '.join(map(str, missing))}")
    current = {tp: everything[tp] for tp in plan.replicas}
    if args["disallow-replication-factor-change"]:
        for tp, replicas in plan.replicas.items():
            there = under_way.get(tp)
            before = len(there.replicas) - len(there.adding_replicas) if there else len(current[tp])
            if len(replicas) != before:
                raise ToolError(f"the plan changes the replication factor of {tp} from {before} to {len(replicas)}")
    print(
        f"Current partition replica assignment\n\n{as_reassignment_json(current)}\n\n"
        "Save this to use as the --reassignment-json-file option during rollback"
    )
    if args["throttle"] >= 0 or args["replica-alter-log-dirs-throttle"] >= 0:
        print(VERIFY_LATER)
        if args["throttle"] >= 0:
            throttle_replication(admin, args["throttle"], under_way, plan.replicas, current)
        if args["replica-alter-log-dirs-throttle"] >= 0:
            throttle_log_dirs(admin, args["replica-alter-log-dirs-throttle"], plan.directories)
    try:
        admin.alter_partition_reassignments(plan.replicas)
    except AdminError as error:
        raise ToolError(_each("Error reassigning partition(s)", error)) from None
    many = "" if len(plan.replicas) == 1 else "s"
    print(f"Successfully started partition reassignment{many} for {','.join(map(str, sorted(plan.replicas)))}")
    if plan.directories:
        _move(admin, plan.directories, args["timeout"] / 1000)
    return 0


def _each(what: str, error: BaseException) -> str:
    errors = getattr(error, "errors", {})
    return f"{what}: " + "; ".join(f"{tp}: {reason(why)}" for tp, why in sorted(errors.items()))


def _move(admin: Admin, moves: Mapping[TopicPartitionReplica, str], timeout: float) -> None:
    """Have replicas moved to other directories, as soon as they are on their brokers."""
    from kavka.client.admin import AdminError
    from kavka.common.errors import ErrorCode

    deadline = time.monotonic() + timeout
    left = dict(moves)
    while left:
        failed = set()
        try:
            admin.alter_replica_log_dirs(left)
        except AdminError as error:
            failed = set(error.errors)
            for replica, why in error.errors.items():
                if why.code is not ErrorCode.REPLICA_NOT_AVAILABLE:
                    raise ToolError(f"Failed to alter dir for {_replica(replica)}: {reason(why)}") from None
        for replica in sorted(left, key=_by_broker):
            if replica not in failed:
                print(
                    f"Successfully started moving log directory to {left.pop(replica)} for replica "
                    f"{replica.topic}-{replica.partition} with broker {replica.broker_id} "
                )
        if left and time.monotonic() >= deadline:
            many = "" if len(left) == 1 else "s"
            shown = ",".join(_replica(replica) for replica in sorted(left, key=_by_broker))
            raise ToolError(f"Timed out before log directory move{many} could be started for: {shown}")
        if left:
            time.sleep(RETRY_S)


def _by_broker(replica: TopicPartitionReplica) -> tuple[int, str, int]:
    return replica.broker_id, replica.topic, replica.partition


def _replica(replica: TopicPartitionReplica) -> str:
    return f"{replica.topic}-{replica.partition}-{replica.broker_id}"


# --- verify


def _verify(admin: Admin, args: Arguments, plan: Plan) -> int:
    if args["watch"]:
        _watch(admin, plan)
    under_way = admin.list_partition_reassignments()
    states = _partition_states(admin, plan, under_way)
    moves = _move_states(admin, plan.directories)
    if args["json"]:
        print_json(
            {
                "partitions": [
                    {"topic": tp.topic, "partition": tp.partition, "done": done, "status": said}
                    for tp, (done, said) in states.items()
                ],
                "replicas": [
                    {"topic": r.topic, "partition": r.partition, "broker": r.broker_id, "done": done, "status": said}
                    for r, (done, said) in moves.items()
                ],
            }
        )
    else:
        print("\n".join(["Status of partition reassignment:", *(said for _, said in states.values())]))
        print("\n".join(said for _, said in moves.values()))
    if not under_way and all(done for done, _ in moves.values()) and not args["preserve-throttles"]:
        clear_throttles(admin, plan.replicas, quiet=bool(args["json"]))
    return 0


def _partition_states(
    admin: Admin, plan: Plan, under_way: Mapping[TopicPartition, PartitionReassignment]
) -> dict[TopicPartition, tuple[bool, str]]:
    from kavka.cli.partitions import described_topics

    topics = {tp.topic for tp in plan.replicas if tp not in under_way}
    current = {
        TopicPartition(description.name, info.partition): [node.id for node in info.replicas]
        for description in described_topics(admin, topics)
        for info in description.partitions
    }
    states = {}
    for tp, wanted in sorted(plan.replicas.items()):
        if tp in under_way:
            states[tp] = False, f"Reassignment of partition {tp} is still in progress."
        elif current.get(tp, []) == wanted:
            states[tp] = True, f"Reassignment of partition {tp} is completed."
        else:
            states[tp] = (
                True,
                (
                    f"There is no active reassignment of partition {tp}, but replica set is "
                    f"{ids(current.get(tp, []))} rather than {ids(wanted)}."
                ),
            )
    return states


def _places(
    admin: Admin, replicas: Iterable[TopicPartitionReplica]
) -> dict[TopicPartitionReplica, tuple[str | None, str | None]]:
    """The directory in which each replica is, and the one to which it is being moved."""
    from kavka.client.admin.types import TopicPartitionReplica

    wanted = list(replicas)
    if not wanted:
        return {}
    brokers = sorted({replica.broker_id for replica in wanted})
    found = admin.describe_log_dirs(brokers, sorted({TopicPartition(r.topic, r.partition) for r in wanted}))
    places: dict[TopicPartitionReplica, tuple[str | None, str | None]] = {}
    for broker, directories in found.items():
        for path, description in directories.items():
            for tp, infos in description.replicas.items():
                replica = TopicPartitionReplica(tp.topic, tp.partition, broker)
                now, later = places.get(replica, (None, None))
                for info in infos:
                    now, later = (now, path) if info.is_future else (path, later)
                places[replica] = now, later
    return places


def _move_states(
    admin: Admin, wanted: Mapping[TopicPartitionReplica, str]
) -> dict[TopicPartitionReplica, tuple[bool, str]]:
    places = _places(admin, wanted)
    states = {}
    for replica in sorted(wanted, key=_by_broker):
        name, path = f"{replica.topic}-{replica.partition}", wanted[replica]
        now, later = places.get(replica, (None, None))
        if now is None:
            states[replica] = (
                True,
                (
                    f"Partition {name} is not found in any live log dir on broker {replica.broker_id}. "
                    "There is likely an offline log directory on the broker."
                ),
            )
        elif later is None:
            if now == path:
                states[replica] = True, f"Reassignment of replica {_replica(replica)} completed successfully."
            else:
                states[replica] = (
                    True,
                    (
                        f"Partition {name} on broker {replica.broker_id} is not being moved from log dir {now} to {path}."
                    ),
                )
        elif later == path:
            states[replica] = False, f"Reassignment of replica {_replica(replica)} is still in progress."
        else:
            states[replica] = (
                False,
                (
                    f"Partition {name} on broker {replica.broker_id} is being moved to log dir {later} instead of {path}."
                ),
            )
    return states


def _watch(admin: Admin, plan: Plan) -> None:
    """Wait until nothing of the plan is under way."""
    total = len(plan.replicas) + len(plan.directories)
    with Progress() as progress:
        while True:
            under_way = admin.list_partition_reassignments(list(plan.replicas))
            busy = [str(tp) for tp in sorted(under_way)]
            busy += [_replica(r) for r, (done, _) in _move_states(admin, plan.directories).items() if not done]
            if not busy:
                return
            shown = ", ".join(busy[:3]) + (" …" if len(busy) > 3 else "")
            progress.show(f"{total - len(busy)} of {total} done; moving {shown}", now=True)
            time.sleep(WATCH_S)


# --- cancel, list


def _cancel(admin: Admin, args: Arguments, plan: Plan) -> int:
    from kavka.client.admin import AdminError

    found = admin.list_partition_reassignments(list(plan.replicas))
    active = sorted(tp for tp, r in found.items() if r.adding_replicas or r.removing_replicas)
    if active:
        many = "" if len(active) == 1 else "s"
        try:
            admin.alter_partition_reassignments(dict.fromkeys(active))
        except AdminError as error:
            raise ToolError(_each(f"Error cancelling partition reassignment{many}", error)) from None
        print(f"Successfully cancelled partition reassignment{many} for: {','.join(map(str, active))}")
    else:
        print("None of the specified partition reassignments are active.")
    places = _places(admin, plan.directories)
    back = {replica: now for replica, (now, later) in places.items() if now and later and replica in plan.directories}
    if back:
        _move(admin, back, args["timeout"] / 1000)
    else:
        # Kafka's tool ends no line here.
        print("None of the specified partition moves are active.", end="")
    if not args["preserve-throttles"]:
        clear_throttles(admin, plan.replicas)
    return 0


def _list(admin: Admin, args: Arguments) -> int:
    found = sorted(admin.list_partition_reassignments().items())
    if args["json"]:
        print_json(
            [
                {
                    "topic": tp.topic,
                    "partition": tp.partition,
                    "replicas": list(move.replicas),
                    "adding": list(move.adding_replicas),
                    "removing": list(move.removing_replicas),
                }
                for tp, move in found
            ]
        )
        return 0
    if not found:
        print("No partition reassignments found.")
        return 0
    print("Current partition reassignments:")
    for tp, move in found:
        adding = f" adding: {ids(move.adding_replicas)}." if move.adding_replicas else ""
        removing = f" removing: {ids(move.removing_replicas)}." if move.removing_replicas else ""
        print(f"{tp}: replicas: {ids(move.replicas)}.{adding}{removing}")
    return 0
