"""`kavka log-dirs` (`kafka-log-dirs`): show the replicas in the log directories of brokers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kavka.cli.connecting import BOOTSTRAP, COMMAND_CONFIG, JSON, TIMEOUT, ZOOKEEPER, admin_for
from kavka.cli.options import Arguments, Command, Option
from kavka.cli.output import at_terminal, print_json, print_table
from kavka.cli.tool import ToolError, run

if TYPE_CHECKING:
    from kavka.client.admin.types import LogDirDescription

COMMAND = Command(
    "log-dirs",
    "Show the partitions in each log directory of the brokers, and their size.",
    (
        Option("describe", "Show the directories.", required=True),
        Option("broker-list", "Only these brokers: 0,1,2.", "Broker list", separator=","),
        Option("topic-list", "Only these topics: topic1,topic2.", "Topic list", separator=",", completes="topic"),
        BOOTSTRAP,
        COMMAND_CONFIG,
        TIMEOUT,
        JSON,
        ZOOKEEPER,
    ),
    examples=("kavka log-dirs --bootstrap-server localhost:9092 --describe --topic-list orders",),
)


def main(argv: list[str]) -> int:
    return run(COMMAND, argv, _body)


def _body(args: Arguments) -> None:
    try:
        requested = [int(piece) for piece in args["broker-list"] if piece]
    except ValueError:
        raise ToolError("--broker-list takes broker ids, separated by commas") from None
    topics = {piece for piece in args["topic-list"] if piece}
    with admin_for(args, server_options=(BOOTSTRAP.name,)) as admin:
        existing = [node.id for node in admin.describe_cluster().nodes]
        unknown = [broker for broker in requested if broker not in existing]
        if unknown:
            raise ToolError(
                f"ERROR: The given brokers do not exist from --broker-list: {','.join(map(str, unknown))}. "
                f"Current existent brokers: {','.join(map(str, existing))}"
            )
        brokers = sorted(set(requested)) or sorted(existing)
        is_plain = not args["json"] and not at_terminal()
        if is_plain:
            print("Querying brokers for log directories information", flush=True)
        directories_by_broker = admin.describe_log_dirs(brokers)
    if is_plain:
        print(f"Received log directory information from brokers {','.join(map(str, brokers))}")
        print(json.dumps(_as_json(directories_by_broker, topics), separators=(",", ":")))
    elif args["json"]:
        print_json(_as_json(directories_by_broker, topics))
    else:
        _show(directories_by_broker, topics)


def _as_json(directories_by_broker: dict[int, dict[str, LogDirDescription]], topics: set[str]) -> dict[str, Any]:
    return {
        "brokers": [
            {
                "broker": broker,
                "logDirs": [
                    {
                        "partitions": [
                            {
                                "partition": str(tp),
                                "size": replica.size,
                                "offsetLag": replica.offset_lag,
                                "isFuture": replica.is_future,
                            }
                            for tp, replicas in sorted(description.replicas.items())
                            if not topics or tp.topic in topics
                            for replica in replicas
                        ],
                        "error": None if description.error is None else description.error.code.name,
                        "logDir": path,
                    }
                    for path, description in sorted(directories.items())
                ],
            }
            for broker, directories in sorted(directories_by_broker.items())
        ],
        "version": 1,
    }


def size_text(size: int) -> str:
    """Format a size in bytes with a binary unit."""
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if amount < 1024 or unit == "TiB":
            break
        amount /= 1024
    return f"{size} B" if unit == "B" else f"{amount:.1f} {unit}"


def _show(directories_by_broker: dict[int, dict[str, LogDirDescription]], topics: set[str]) -> None:
    rows: list[tuple[object, ...]] = []
    for broker, directories in sorted(directories_by_broker.items()):
        for path, description in sorted(directories.items()):
            if description.error is not None:
                rows.append((broker, path, description.error.message, None, None, None))
            for tp, replicas in sorted(description.replicas.items()):
                for replica in replicas:
                    if not topics or tp.topic in topics:
                        future = "moving here" if replica.is_future else None
                        rows.append((broker, path, str(tp), size_text(replica.size), replica.offset_lag, future))
    print_table(
        ("BROKER", "DIRECTORY", "PARTITION", "SIZE", "LAG", "NOTE"), rows, right_aligned=("BROKER", "SIZE", "LAG")
    )
