"""`kavka cluster`: run ZooKeeper and brokers on this machine, with all files in one folder.

`kafka-cluster` is the same tool. `cluster_info.py` has the subcommands of Kafka's own tool.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from kavka.cli.cluster_folder import ClusterFolder, Member
from kavka.cli.cluster_info import CLUSTER_SUBCOMMANDS, query_cluster
from kavka.cli.options import Arguments, Command, Option, Positional
from kavka.cli.output import at_terminal, print_json, print_table
from kavka.cli.supervisor import parse_count
from kavka.cli.tool import ToolError, log_to_stderr, run

DEFAULT_BROKERS = 3
DEFAULT_BROKER_PORT = 9092
DEFAULT_ZOOKEEPER_PORT = 2181

_FOLDER = Option("dir", "The folder of the cluster.", "directory", default="kavka-cluster", completes="directory")
_BROKER_ID = (Positional("N", "The broker's id."),)
_JSON = Option("json", "Print JSON.")
_MEMBERS = (
    Option("brokers", "Number of brokers; auto means one per core. A larger number than before adds brokers.",
           "number", default_text=f"as before, else {DEFAULT_BROKERS}"),
    Option("port", "Port of the first broker. The other brokers use the next ports.", "port", int,
           default_text=f"as before, else {DEFAULT_BROKER_PORT}"),
    Option("zookeeper-port", "Port of the ZooKeeper server.", "port", int, DEFAULT_ZOOKEEPER_PORT),
    Option("override", "A setting of every broker, saved for later starts.", "name=value", repeated=True),
)  # fmt: skip

COMMAND = Command(
    "cluster",
    "Run a local cluster: one ZooKeeper server and some brokers, each with its own port, data and log file. All files "
    "are in ./kavka-cluster.",
    (_FOLDER,),
    subcommands=(
        Command(
            "up",
            "Start all servers of the cluster that are not running. Existing data is kept.",
            _MEMBERS,
            examples=("kavka cluster up --brokers 3",),
        ),
        Command(
            "run",
            "Start all servers and stay in the foreground: restart a broker that dies, and stop all servers at the "
            "end, with Ctrl-C or SIGTERM.",
            (
                *_MEMBERS,
                Option("metrics-port", "Serve the metrics of all brokers on this port of localhost.", "port", int),
            ),
            examples=("kavka cluster run --brokers auto",),
        ),
        Command("status", "Show the id, address and state of each server.", (_JSON,)),
        Command("kill", "Kill a broker with SIGKILL.", positionals=_BROKER_ID),
        Command("start", "Start a broker.", positionals=_BROKER_ID),
        Command("stop", "Stop a broker with a controlled shutdown.", positionals=_BROKER_ID),
        Command(
            "down",
            "Stop all servers. The data is kept.",
            (Option("delete-data", "Also delete the folder of the cluster."),),
        ),
        *CLUSTER_SUBCOMMANDS,
    ),
    examples=("kavka cluster up --brokers 3", "kavka cluster status", "kavka cluster kill 1", "kavka cluster down"),
)  # fmt: skip


def main(argv: list[str]) -> int:
    return run(COMMAND, argv, _body)


def _body(args: Arguments) -> int | None:
    if any(args.subcommand == command.name for command in CLUSTER_SUBCOMMANDS):
        query_cluster(args)
        return 0
    match args.subcommand:
        case "up":
            return _up(args)
        case "run":
            return _run(args)
        case "down":
            return _down(args)
        case "status":
            return _status(args)
    return _change_broker(args)


def _up(args: Arguments) -> int:
    count = _broker_count(args)
    folder = ClusterFolder(Path(args["dir"]))
    with folder.locked(create=True):
        _plan(folder, args, count)
        folder.start(folder.members)
        _print_brokers(folder)
    return 0


def _run(args: Arguments) -> int:
    count = _broker_count(args)
    log_to_stderr("INFO")
    folder = ClusterFolder(Path(args["dir"]))
    with folder.locked(create=True):
        _plan(folder, args, count)
    folder.run(lambda: _print_brokers(folder), args["metrics-port"])
    return 0


def _broker_count(args: Arguments) -> int | None:
    text = args["brokers"]
    return None if text is None else parse_count("--brokers", text)


def _plan(folder: ClusterFolder, args: Arguments, count: int | None) -> None:
    """Add the members that are missing, and write the configuration of all."""
    if not folder.members:
        folder.plan_zookeeper(args["zookeeper-port"])
        count = count or DEFAULT_BROKERS
    existing = len(folder.brokers)
    if count is not None and count < existing:
        raise ToolError(f"the cluster in {folder.path} has {existing} brokers; brokers cannot be removed")
    first_port = args["port"] or (folder.brokers[0].port if existing else DEFAULT_BROKER_PORT)
    folder.plan_brokers(count or existing, first_port, args["override"])


def _print_brokers(folder: ClusterFolder) -> None:
    for broker in folder.brokers:
        print(f"broker {broker.id} at {broker.address}, log {broker.log_file}")
    addresses = ",".join(broker.address for broker in folder.brokers)
    print(f"The cluster is up: --bootstrap-server {addresses}", flush=True)


def _down(args: Arguments) -> int:
    folder = _existing_cluster(args)
    with folder.locked():
        running_members = [member for member in folder.members if member.is_alive]
        folder.stop(folder.brokers)
        folder.stop([folder.zookeeper])
        names = ", ".join(member.name for member in running_members)
        print(f"stopped {names}" if names else "no server of the cluster was running")
    if args["delete-data"]:
        shutil.rmtree(folder.path)
        print(f"deleted {folder.path}")
    return 0


def _status(args: Arguments) -> int:
    folder = _existing_cluster(args)
    controller = folder.controller()
    if args["json"]:
        print_json([_as_json(member, controller) for member in folder.members])
    elif at_terminal():
        rows = [
            (
                member.name,
                member.address,
                "running" if member.is_alive else "stopped",
                "controller" if _is_controller(member, controller) else "",
                member.pid if member.is_alive else None,
                member.log_file,
            )
            for member in folder.members
        ]
        colours = {"running": ("green",), "stopped": ("red",)}
        print_table(
            ("NAME", "ADDRESS", "STATE", "ROLE", "PROCESS", "LOG"),
            rows,
            right_aligned=("PROCESS",),
            cell_styles=lambda heading, cell: colours.get(cell, ()) if heading == "STATE" else (),
        )
    else:
        for member in folder.members:
            state = f"running as process {member.pid}" if member.is_alive else "stopped"
            role = ", controller" if _is_controller(member, controller) else ""
            print(f"{member.name} at {member.address}: {state}{role}, log {member.log_file}")
    return 0 if all(member.is_alive for member in folder.members) else 1


def _is_controller(member: Member, controller: int | None) -> bool:
    """Return whether the member is the controller and is running. The znode of a killed controller
    remains until its session expires."""
    return member.id is not None and member.id == controller and member.is_alive


def _as_json(member: Member, controller: int | None) -> dict[str, object]:
    return {
        "name": member.name,
        "id": member.id,
        "address": member.address,
        "running": member.is_alive,
        "pid": member.pid if member.is_alive else None,
        "controller": _is_controller(member, controller),
        "log": str(member.log_file),
    }


def _change_broker(args: Arguments) -> int:
    folder = _existing_cluster(args)
    broker_id = args.positionals[0]
    with folder.locked():
        broker = next((candidate for candidate in folder.brokers if str(candidate.id) == broker_id), None)
        if broker is None:
            broker_ids = ", ".join(str(candidate.id) for candidate in folder.brokers)
            raise ToolError(f"there is no broker {broker_id}; the brokers of the cluster are {broker_ids}")
        if args.subcommand == "start":
            if broker.is_alive:
                raise ToolError(f"broker {broker_id} is already running as process {broker.pid}")
            if not folder.zookeeper.is_alive:
                raise ToolError("the ZooKeeper server is not running; kavka cluster up starts all servers")
            folder.start([broker])
            print(f"broker {broker_id} is running as process {broker.pid} at {broker.address}")
            return 0
        if not broker.is_alive:
            raise ToolError(f"broker {broker_id} is not running")
        pid = broker.pid
        if args.subcommand == "kill":
            broker.kill()
            print(f"killed broker {broker_id} (process {pid})")
        else:
            folder.stop([broker])
            print(f"stopped broker {broker_id} (process {pid})")
    return 0


def _existing_cluster(args: Arguments) -> ClusterFolder:
    folder = ClusterFolder(Path(args["dir"]))
    if not folder.members:
        raise ToolError(f"there is no cluster in {folder.path}; kavka cluster up creates one")
    return folder
