"""`kavka cluster`: a whole cluster on this machine, ZooKeeper and brokers, in a folder.

`kafka-cluster` is the same tool by Kafka's name: what it asks a cluster is in `cluster_info.py`.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from kavka.cli.cluster_folder import ClusterFolder, Member
from kavka.cli.cluster_info import CLUSTER_SUBCOMMANDS, ask_cluster
from kavka.cli.options import Arguments, Command, Option, Positional, UsageError
from kavka.cli.output import at_terminal, print_json, print_table
from kavka.cli.tool import ToolError, run

BROKERS = 3
BROKER_PORT = 9092
ZOOKEEPER_PORT = 2181

_FOLDER = Option("dir", "The folder of the cluster.", "directory", default="kavka-cluster", completes="directory")
_NUMBER = (Positional("N", "The broker's id.", completes=""),)
_JSON = Option("json", "Print JSON.")

COMMAND = Command(
    "cluster",
    "A cluster on this machine: one ZooKeeper and some brokers, each with its own port, data and log file. Everything "
    "of it is in ./kavka-cluster.",
    (_FOLDER,),
    subcommands=(
        Command(
            "up",
            "Start the cluster, or what of it does not run. The data of an earlier life is still there.",
            (
                Option("brokers", "How many brokers; more than before adds new ones.", "number", int,
                       default_text=f"as before, else {BROKERS}"),
                Option("port", "Of the first broker; the others have the next ones.", "port", int,
                       default_text=f"as before, else {BROKER_PORT}"),
                Option("zookeeper-port", "Of the ZooKeeper.", "port", int, ZOOKEEPER_PORT),
                Option("override", "A setting of every broker, kept for later starts.", "name=value", repeated=True),
            ),
            examples=("kavka cluster up --brokers 3",),
        ),
        Command("status", "Show each broker: id, address, whether it runs.", (_JSON,)),
        Command("kill", "End a broker at once, as kill -9 does.", positionals=_NUMBER),
        Command("start", "Start a broker that does not run.", positionals=_NUMBER),
        Command("stop", "Stop a broker: it hands over what it leads first.", positionals=_NUMBER),
        Command(
            "down",
            "Stop all of it. The data stays for the next up.",
            (Option("delete-data", "Remove the folder with everything in it, too."),),
        ),
        *CLUSTER_SUBCOMMANDS,
    ),
    examples=("kavka cluster up --brokers 3", "kavka cluster status", "kavka cluster kill 1", "kavka cluster down"),
)  # fmt: skip


def main(argv: list[str]) -> int:
    return run(COMMAND, argv, _body)


def _body(args: Arguments) -> int | None:
    if any(args.subcommand == command.name for command in CLUSTER_SUBCOMMANDS):
        ask_cluster(args)
        return 0
    match args.subcommand:
        case "up":
            return _up(args)
        case "down":
            return _down(args)
        case "status":
            return _status(args)
    return _one(args)


def _up(args: Arguments) -> int:
    brokers = args["brokers"]
    if brokers is not None and brokers < 1:
        raise UsageError("--brokers must be at least 1")
    folder = ClusterFolder(Path(args["dir"]))
    with folder.locked(make=True):
        if not folder.members:
            folder.plan_zookeeper(args["zookeeper-port"])
            brokers = brokers or BROKERS
        known = len(folder.brokers)
        if brokers is not None and brokers < known:
            raise ToolError(f"the cluster in {folder.path} has {known} brokers; it cannot be made smaller")
        first = args["port"] or (folder.brokers[0].port if known else BROKER_PORT)
        folder.plan_brokers(brokers or known, first, args["override"])
        folder.start(folder.members)
        for broker in folder.brokers:
            print(f"broker {broker.id} at {broker.address}, its log is {broker.log_file}")
        print(f"The cluster is up: --bootstrap-server {','.join(broker.address for broker in folder.brokers)}")
    return 0


def _down(args: Arguments) -> int:
    folder = _existing(args)
    with folder.locked():
        running = [member for member in folder.members if member.alive]
        folder.stop(folder.brokers)
        folder.stop([folder.zookeeper])
        names = ", ".join(member.name for member in running)
        print(f"stopped {names}" if names else "nothing of the cluster was running")
    if args["delete-data"]:
        shutil.rmtree(folder.path)
        print(f"{folder.path} is removed")
    return 0


def _status(args: Arguments) -> int:
    folder = _existing(args)
    controller = folder.controller()
    if args["json"]:
        print_json([_described(member, controller) for member in folder.members])
    elif at_terminal():
        rows = [
            (
                member.name,
                member.address,
                "running" if member.alive else "stopped",
                "controller" if _leads(member, controller) else "",
                member.pid if member.alive else None,
                member.log_file,
            )
            for member in folder.members
        ]
        colours = {"running": ("green",), "stopped": ("red",)}
        print_table(
            ("NAME", "ADDRESS", "STATE", "ROLE", "PROCESS", "LOG"),
            rows,
            right=("PROCESS",),
            styled=lambda heading, cell: colours.get(cell, ()) if heading == "STATE" else (),
        )
    else:
        for member in folder.members:
            state = f"running as process {member.pid}" if member.alive else "stopped"
            role = ", controller" if _leads(member, controller) else ""
            print(f"{member.name} at {member.address}: {state}{role}, log {member.log_file}")
    return 0 if all(member.alive for member in folder.members) else 1


def _leads(member: Member, controller: int | None) -> bool:
    """A killed broker's claim to be the controller outlives it by a session."""
    return member.id is not None and member.id == controller and member.alive


def _described(member: Member, controller: int | None) -> dict[str, object]:
    return {
        "name": member.name,
        "id": member.id,
        "address": member.address,
        "running": member.alive,
        "pid": member.pid if member.alive else None,
        "controller": _leads(member, controller),
        "log": str(member.log_file),
    }


def _one(args: Arguments) -> int:
    folder = _existing(args)
    number = args.positionals[0]
    with folder.locked():
        broker = next((each for each in folder.brokers if str(each.id) == number), None)
        if broker is None:
            known = ", ".join(str(each.id) for each in folder.brokers)
            raise ToolError(f"there is no broker {number}; the cluster has {known}")
        if args.subcommand == "start":
            if broker.alive:
                raise ToolError(f"broker {number} runs already, as process {broker.pid}")
            if not folder.zookeeper.alive:
                raise ToolError("the ZooKeeper of the cluster does not run; kavka cluster up starts everything")
            folder.start([broker])
            print(f"broker {number} runs as process {broker.pid} at {broker.address}")
            return 0
        if not broker.alive:
            raise ToolError(f"broker {number} does not run")
        pid = broker.pid
        if args.subcommand == "kill":
            broker.kill()
            print(f"killed broker {number} (process {pid})")
        else:
            folder.stop([broker])
            print(f"stopped broker {number} (process {pid})")
    return 0


def _existing(args: Arguments) -> ClusterFolder:
    folder = ClusterFolder(Path(args["dir"]))
    if not folder.members:
        raise ToolError(f"there is no cluster in {folder.path}; kavka cluster up makes one")
    return folder
