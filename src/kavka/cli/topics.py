"""`kavka topics` (`kafka-topics`): create, list, describe, alter and delete topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kavka.cli.connecting import JSON, admin_for, connection_options
from kavka.cli.names import INTERNAL_TOPICS, TopicFilter
from kavka.cli.options import Arguments, Command, Option
from kavka.cli.output import print_json
from kavka.cli.tool import ToolError, note, run

if TYPE_CHECKING:
    from kavka.client.admin import Admin

COLLISION_WARNING = (
    "WARNING: Due to limitations in metric names, topics with a period ('.') or underscore ('_') could collide. "
    "To avoid issues it is best to use either, but not both."
)
MAX_REPLICATION_FACTOR = 32767

COMMAND = Command(
    "topics",
    "Create, list, describe and delete topics, or add partitions. kafka-configs changes their settings.",
    (
        Option("create", "Create a topic."),
        Option("list", "List topics."),
        Option("describe", "Show partitions, leaders, replicas and settings."),
        Option("alter", "Increase the number of partitions."),
        Option("delete", "Delete topics with all their records."),
        Option(
            "topic",
            "The topic. Except with --create, a regular expression for the whole name; commas separate alternatives.",
            "topic",
            completes="topic",
        ),
        Option("topic-id", "The id of the topic to describe.", "topic-id"),
        Option(
            "partitions",
            "The number of partitions of a new topic, or with --alter the increased number (which changes the "
            "partitions of keys). By default the broker's default.",
            "# of partitions",
            int,
            aliases=("partition",),
        ),
        Option(
            "replication-factor",
            "The replication factor of a new topic. By default the broker's default.",
            "replication factor",
            int,
        ),
        Option(
            "replica-assignment",
            "The brokers of each partition: replicas separated by colons, partitions by commas, for example 0:1,1:2.",
            "broker_id_for_part1_replica1 : broker_id_for_part1_replica2 , …",
        ),
        Option(
            "config",
            "A setting of the new topic. With --alter, a setting of an existing topic (deprecated: use kafka-configs).",
            "name=value",
            repeated=True,
        ),
        Option("if-exists", "Alter, delete or describe a topic only if it exists. A missing topic is not an error."),
        Option("if-not-exists", "Create a topic only if it does not exist. An existing topic is not an error."),
        Option("exclude-internal", "Exclude internal topics from --list and --describe."),
        Option("topics-with-overrides", "Describe only topics with non-default settings."),
        Option("under-replicated-partitions", "Describe only under-replicated partitions."),
        Option("unavailable-partitions", "Describe only partitions without a live leader."),
        Option("under-min-isr-partitions", "Describe only partitions with an ISR below the minimum."),
        Option("at-min-isr-partitions", "Describe only partitions with an ISR equal to the minimum."),
        Option(
            "partition-size-limit-per-response",
            "Maximum number of partitions in a response (brokers since 3.8).",
            "maximum number of partitions per response",
            int,
            2000,
        ),
        Option("delete-config", "With --alter: a setting to reset.", "name", repeated=True, deprecated=True),
        Option("disable-rack-aware", "Has no effect: the brokers place replicas.", deprecated=True),
        Option("force", "Has no effect: the tool never prompts.", deprecated=True),
        JSON,
        *connection_options(),
    ),
    actions=("list", "describe", "create", "alter", "delete"),
    error="Error while executing topic command : ",
    examples=(
        "kavka topics --bootstrap-server localhost:9092 --create --topic orders --partitions 3",
        "kavka topics --bootstrap-server localhost:9092 --describe --topic orders",
        "kavka topics --bootstrap-server localhost:9092 --list",
    ),
)

FILTERS = (
    "under-replicated-partitions",
    "unavailable-partitions",
    "under-min-isr-partitions",
    "at-min-isr-partitions",
)


def main(argv: list[str]) -> int:
    return run(COMMAND, argv, _body)


def _body(args: Arguments) -> int | None:
    _check(args)
    with admin_for(args) as admin:
        match args.action():
            case "create":
                _create(admin, args)
            case "list":
                _list(admin, args)
            case "describe":
                from kavka.cli.topics_describe import describe

                describe(admin, args)
            case "alter":
                _alter(admin, args)
            case "delete":
                _delete(admin, args)
    return 0


def _check(args: Arguments) -> None:
    """Raise UsageError for the combinations of options that Kafka's tool rejects."""
    if "create" in args:
        args.require("topic")
    if "alter" in args:
        args.require("topic", *(() if args.first("config", "delete-config") else ("partitions",)))
    if "delete" in args:
        args.require("topic")
    allowed = {
        "config": ("create", "alter"),
        "delete-config": ("alter",),
        "partitions": ("create", "alter"),
        "replication-factor": ("create",),
        "replica-assignment": ("create", "alter"),
        "if-not-exists": ("create",),
        "if-exists": ("alter", "delete", "describe"),
        "exclude-internal": ("list", "describe"),
        "topics-with-overrides": ("describe",),
        "topic-id": ("describe",),
        "json": ("list", "describe"),
        **{name: ("describe",) for name in FILTERS},
    }
    for name, actions in allowed.items():
        args.forbid(name, *(action for action in COMMAND.actions if action not in actions))
    args.forbid("topics-with-overrides", *FILTERS)
    if "create" in args:
        args.forbid("replica-assignment", "partitions", "replication-factor")


def matching_topics(admin: Admin, args: Arguments, *, must_exist: bool) -> list[str]:
    """Return the topics that match `--topic`, or all topics if that option is absent. Raise
    ToolError if `must_exist` is set and no topic matches."""
    pattern = args["topic"]
    exclude = bool(args["exclude-internal"])
    names = sorted(admin.list_topics(list_internal=True))
    if pattern is None:
        return [name for name in names if not (exclude and name in INTERNAL_TOPICS)]
    topic_filter = TopicFilter(pattern)
    matches = [name for name in names if topic_filter.allows(name, exclude_internal=exclude)]
    if must_exist and pattern and not matches:
        raise ToolError(f"Topic '{pattern}' does not exist as expected")
    return matches


def parse_assignment(text: str) -> dict[int, list[int]]:
    """Parse text such as `0:1,1:2` and return the brokers of each partition. Raise ToolError for an
    invalid assignment."""
    assignment: dict[int, list[int]] = {}
    for partition, entry in enumerate(text.split(",")):
        try:
            brokers = [int(piece) for piece in entry.split(":")]
        except ValueError:
            raise ToolError(f"'{entry}' in --replica-assignment is not a list of broker ids such as 0:1:2") from None
        duplicates = ",".join(str(broker) for broker in sorted(set(brokers)) if brokers.count(broker) > 1)
        if duplicates:
            raise ToolError(f"Partition replica lists may not contain duplicate entries: {duplicates}")
        assignment[partition] = brokers
        if len(brokers) != len(assignment[0]):
            raise ToolError(f"Partition {partition} has different replication factor: {brokers}")
    return assignment


def _configs(pairs: list[str]) -> dict[str, Any]:
    configs = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise ToolError('Invalid topic config: all configs to be added must be in the format "key=val".')
        configs[name.strip()] = value.strip()
    return configs


def _create(admin: Admin, args: Arguments) -> None:
    from kavka.client.admin import AdminError
    from kavka.client.admin.types import NewTopic
    from kavka.common.errors import ErrorCode

    name = args["topic"]
    configs = _configs(args["config"])
    assignment = parse_assignment(args["replica-assignment"]) if "replica-assignment" in args else None
    if "." in name or "_" in name:
        print(COLLISION_WARNING)
    factor, partitions = args["replication-factor"], args["partitions"]
    if factor is not None and not 0 < factor <= MAX_REPLICATION_FACTOR:
        raise ToolError(f"The replication factor must be between 1 and {MAX_REPLICATION_FACTOR} inclusive")
    if partitions is not None and partitions < 1:
        raise ToolError("The partitions must be greater than 0")
    try:
        admin.create_topics([NewTopic(name, partitions, factor, assignment, configs)])
    except AdminError as error:
        if error.code is ErrorCode.TOPIC_ALREADY_EXISTS and args["if-not-exists"]:
            return
        raise
    print(f"Created topic {name}.")


def _list(admin: Admin, args: Arguments) -> None:
    names = matching_topics(admin, args, must_exist=False)
    if args["json"]:
        print_json(names)
    elif names:
        print("\n".join(names))


def _alter(admin: Admin, args: Arguments) -> None:
    from kavka.client.admin.types import NewPartitions

    names = matching_topics(admin, args, must_exist=not args["if-exists"])
    if not names:
        return
    if args.first("config", "delete-config"):
        _alter_configs(admin, args, names)
    total = args["partitions"]
    if total is None:
        return
    new_partitions = dict.fromkeys(names, NewPartitions(total))
    if "replica-assignment" in args:
        assignment = parse_assignment(args["replica-assignment"])
        for name, description in admin.describe_topics(names).items():
            existing = len(description.partitions)
            new_partitions[str(name)] = NewPartitions(
                total, [assignment[p] for p in sorted(assignment) if p >= existing]
            )
    admin.create_partitions(new_partitions)


def _alter_configs(admin: Admin, args: Arguments, names: list[str]) -> None:
    """Change the settings of topics, as Kafka's tool did until 2.x."""
    from kavka.client.admin.types import AlterConfigOp, ConfigResource

    note("topics", "--alter --config is deprecated: use kafka-configs --alter --topic … --add-config")
    changes = [AlterConfigOp(name, value) for name, value in _configs(args["config"]).items()]
    changes += [AlterConfigOp.delete(name) for name in args["delete-config"]]
    admin.incremental_alter_configs({ConfigResource.topic(name): changes for name in names})
    for name in names:
        print(f"Updated config for topic {name}.")


def _delete(admin: Admin, args: Arguments) -> None:
    names = matching_topics(admin, args, must_exist=not args["if-exists"])
    if names:
        admin.delete_topics(names)
