"""`kavka leader-election` (`kafka-leader-election`) and the deprecated
`kafka-preferred-replica-election`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kavka.cli.connecting import COMMAND_CONFIG, JSON, admin_for, connection_options
from kavka.cli.options import Arguments, Command, Option, UsageError
from kavka.cli.output import print_json
from kavka.cli.partitions import partition_entries, read_json
from kavka.cli.tool import ToolError, fail, reason, run
from kavka.common.types import TopicPartition

if TYPE_CHECKING:
    from kavka.client.admin import Admin
    from kavka.common.errors import KafkaError

FILE_HELP = 'A file with partitions: {"partitions": [{"topic": "foo", "partition": 1}]}.'

COMMAND = Command(
    "leader-election",
    "Elect leaders: the preferred replica (the first in the list), or any live replica if no in-sync replica is alive.",
    (
        Option(
            "election-type",
            "preferred: elect the preferred replica if another replica leads. unclean: elect a leader if there is "
            "none; records may be lost.",
            "election type",
            choices=("PREFERRED", "UNCLEAN"),
            ignore_case=True,
            required=True,
        ),
        Option("topic", "The topic of the partition.", "topic name", completes="topic"),
        Option("partition", "The partition.", "partition id", int),
        Option("path-to-json-file", FILE_HELP, "Path to JSON file", completes="file"),
        Option("all-topic-partitions", "All partitions that need an election."),
        Option("admin.config", "Same as --command-config.", "config file", deprecated=True, completes="file"),
        JSON,
        *connection_options(),
    ),
    examples=(
        "kavka leader-election --bootstrap-server localhost:9092 --election-type preferred --all-topic-partitions",
        "kavka leader-election --bootstrap-server localhost:9092 --election-type preferred --topic a --partition 2",
    ),
)

PREFERRED_COMMAND = Command(
    "preferred-replica-election",
    "Elect the preferred replica (the first in the list) of the given or all partitions. Deprecated: use "
    "kafka-leader-election --election-type preferred.",
    (
        Option("path-to-json-file", FILE_HELP, "list of partitions", completes="file"),
        Option("admin.config", "Same as --command-config.", "config file", deprecated=True, completes="file"),
        JSON,
        *connection_options(),
    ),
    examples=("kavka preferred-replica-election --bootstrap-server localhost:9092",),
)


def main(argv: list[str]) -> int:
    return run(COMMAND, argv, _body)


def preferred_main(argv: list[str]) -> int:
    return run(PREFERRED_COMMAND, argv, _preferred_body)


def read_partitions(path: str) -> list[TopicPartition]:
    partitions: list[TopicPartition] = []
    for tp, _entry, _location in partition_entries(read_json(path), path):
        if tp in partitions:
            raise ToolError(f"Replica election data contains duplicate partitions: {tp}")
        partitions.append(tp)
    return partitions


def _body(args: Arguments) -> int:
    scopes = [name for name in ("topic", "all-topic-partitions", "path-to-json-file") if name in args]
    if len(scopes) != 1:
        raise UsageError(
            "One and only one of the following options is required: topic, all-topic-partitions, path-to-json-file"
        )
    partitions: list[TopicPartition] | None = None
    if "topic" in args:
        if "partition" not in args:
            raise UsageError("Missing required option(s): partition")
        partitions = [TopicPartition(args["topic"], args["partition"])]
    elif "partition" in args:
        raise UsageError("Option partition is only allowed if topic is used")
    elif "path-to-json-file" in args:
        partitions = read_partitions(args["path-to-json-file"])
    with admin_for(args, config=_config_option(args)) as admin:
        return _elect(admin, args, args["election-type"], partitions)


def _config_option(args: Arguments) -> str:
    args.forbid("admin.config", "command-config")
    return "admin.config" if "admin.config" in args else COMMAND_CONFIG.name


def _preferred_body(args: Arguments) -> int:
    partitions = read_partitions(args["path-to-json-file"]) if "path-to-json-file" in args else None
    with admin_for(args, config=_config_option(args)) as admin:
        return _elect(admin, args, "PREFERRED", partitions)


def _elect(admin: Admin, args: Arguments, election_type: str, partitions: list[TopicPartition] | None) -> int:
    from kavka.client.admin.types import ElectionType
    from kavka.common.errors import ErrorCode

    results = admin.elect_leaders(ElectionType[election_type], partitions)
    elected = sorted(tp for tp, error in results.items() if error is None)
    not_needed = sorted(
        tp for tp, error in results.items() if error is not None and error.code is ErrorCode.ELECTION_NOT_NEEDED
    )
    failed: dict[TopicPartition, KafkaError] = {
        tp: error for tp, error in sorted(results.items()) if error is not None and tp not in not_needed
    }
    if args["json"]:
        outcomes = dict.fromkeys(elected, "elected") | dict.fromkeys(not_needed, "not needed")
        outcomes |= {tp: reason(error) for tp, error in failed.items()}
        print_json([{"topic": tp.topic, "partition": tp.partition, "result": outcomes[tp]} for tp in sorted(outcomes)])
    else:
        if elected:
            print(f"Successfully completed leader election ({election_type}) for partitions {_listed(elected)}")
        if not_needed:
            print(f"Valid replica already elected for partitions {_listed(not_needed)}")
        for tp, error in failed.items():
            print(f"Error completing leader election ({election_type}) for partition: {tp}: {reason(error)}")
    return fail(f"{len(failed)} replica(s) could not be elected") if failed else 0


def _listed(partitions: list[TopicPartition]) -> str:
    return ", ".join(map(str, partitions))
