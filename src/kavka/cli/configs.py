"""`kavka configs` (`kafka-configs`): show and change settings of topics, brokers, loggers and
groups, and quotas of users, clients and addresses (`configs_quotas.py`)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from kavka.cli import configs_quotas, configs_scram
from kavka.cli.connecting import JSON, admin_for, connection_options, read_properties
from kavka.cli.options import Arguments, Command, Option, UsageError
from kavka.cli.output import at_terminal, print_json, style
from kavka.cli.tool import ToolError, run

if TYPE_CHECKING:
    from kavka.client.admin import Admin
    from kavka.client.admin.types import ConfigEntry, ConfigResource

ENTITY_TYPES = ("topics", "brokers", "broker-loggers", "groups", "client-metrics")

# Options that combine --entity-type and --entity-name, in the order in which Apache's tool reads
# them.
SHORT_OPTIONS = {
    "topic": "topics",
    "client": "clients",
    "user": "users",
    "broker": "brokers",
    "broker-logger": "broker-loggers",
    "ip": "ips",
    "client-metrics": "client-metrics",
    "group": "groups",
}
SHORT_DEFAULT_OPTIONS = {f"{entity}-defaults": f"{entity}s" for entity in ("client", "user", "broker", "ip")}

COMMAND = Command(
    "configs",
    "Show and change the dynamic settings of topics, brokers, loggers of brokers, and groups, and the quotas of "
    "users, clients and IP addresses, and SCRAM credentials of users.",
    (
        Option("describe", "Show settings."),
        Option("alter", "Change settings."),
        Option(
            "entity-type",
            "The type of entity. users and clients can be combined.",
            "type",
            repeated=True,
            choices=(*ENTITY_TYPES, *configs_quotas.ENTITY_TYPES),
        ),
        Option(
            "entity-name",
            "A topic, broker id, group, user, client id or IP address, for each --entity-type.",
            "name",
            repeated=True,
        ),
        Option("entity-default", "The default for all brokers, users, clients or addresses without their own value."),
        Option("all", "Also show settings that have their default value."),
        Option("add-config", "Settings to set: k1=v1,k2=[v21,v22],k3=v3.", "k1=v1,…"),
        Option("add-config-file", "A properties file with settings to set.", "file", completes="file"),
        Option("delete-config", "Settings to reset to their defaults: k1,k2.", "k1,…", separator=","),
        Option("topic", "Short for --entity-type topics --entity-name.", "name", completes="topic"),
        Option("broker", "Short for --entity-type brokers --entity-name.", "id"),
        Option("broker-defaults", "Short for --entity-type brokers --entity-default."),
        Option("broker-logger", "Short for --entity-type broker-loggers --entity-name.", "id"),
        Option("group", "Short for --entity-type groups --entity-name.", "id", completes="group"),
        Option("client-metrics", "Short for --entity-type client-metrics --entity-name.", "name"),
        Option("client", "Short for --entity-type clients --entity-name.", "id"),
        Option("client-defaults", "Short for --entity-type clients --entity-default."),
        Option("user", "Short for --entity-type users --entity-name.", "name"),
        Option("user-defaults", "Short for --entity-type users --entity-default."),
        Option("ip", "Short for --entity-type ips --entity-name.", "address"),
        Option("ip-defaults", "Short for --entity-type ips --entity-default."),
        JSON,
        *connection_options(),
        Option("force", "Has no effect: the tool never prompts.", deprecated=True),
    ),
    error="Error while executing config command : ",
    examples=(
        "kavka configs --bootstrap-server localhost:9092 --describe --entity-type topics --entity-name orders --all",
        "kavka configs --bootstrap-server localhost:9092 --alter --topic orders --add-config retention.ms=3600000",
        "kavka configs --bootstrap-server localhost:9092 --alter --broker-defaults --add-config log.cleaner.threads=2",
        "kavka configs --bootstrap-server localhost:9092 --alter --group g --delete-config consumer.session.timeout.ms",
        "kavka configs --bootstrap-server localhost:9092 --alter --user alice --client app --add-config "
        "producer_byte_rate=1048576",
        "kavka configs --bootstrap-server localhost:9092 --describe --entity-type users --entity-type clients",
        "kavka configs --bootstrap-server localhost:9092 --alter --user alice --add-config "
        "'SCRAM-SHA-256=[iterations=8192,password=secret]'",
    ),
)


def main(argv: list[str]) -> int:
    return run(COMMAND, argv, _body)


def _body(args: Arguments) -> None:
    if ("describe" in args) == ("alter" in args):
        raise UsageError("Command must include exactly one action: --describe, --alter")
    types, names = _entities(args)
    if set(types) & set(configs_quotas.ENTITY_TYPES):
        configs_quotas.check_entities(types, names, "alter" in args)
        added, deleted = _changes(args) if "alter" in args else ({}, [])
        with admin_for(args) as admin:
            if configs_scram.applies(types, added, deleted):
                configs_scram.alter(admin, names[0], added, deleted)
            elif "alter" in args:
                configs_quotas.alter(admin, types, names, added, deleted)
            else:
                _describe_users(admin, types, names, as_json=bool(args["json"]))
        return
    entity_type, name = _single_entity(types, names)
    if "alter" in args:
        if name is None:
            raise UsageError("At least one entity name or default must be specified with --alter")
        added, deleted = _changes(args)
        with admin_for(args) as admin:
            _alter(admin, entity_type, name, added, deleted)
        return
    with admin_for(args) as admin:
        _describe(admin, args, entity_type, name)


def _describe_users(admin: Admin, types: list[str], names: list[str], *, as_json: bool) -> None:
    """Print the quotas of users, clients or addresses, and the SCRAM credentials of users."""
    credentials = configs_scram.credentials_of(admin, types, names)
    if as_json:
        print_json([*configs_quotas.described(admin, types, names), *configs_scram.as_json(credentials)])
        return
    configs_quotas.describe(admin, types, names)
    configs_scram.print_credentials(credentials)


def _changes(args: Arguments) -> tuple[dict[str, str], list[str]]:
    """Return the settings to set, and the names of the settings to delete."""
    if not args.first("add-config", "add-config-file", "delete-config"):
        raise UsageError(
            "At least one of --add-config, --add-config-file, or --delete-config must be specified with --alter"
        )
    args.forbid("add-config", "add-config-file")
    added = parse_pairs(args["add-config"]) if "add-config" in args else {}
    if "add-config-file" in args:
        added |= read_properties(args["add-config-file"])
    return added, [key.strip() for key in args["delete-config"]]


def _entities(args: Arguments) -> tuple[list[str], list[str]]:
    """Return the types and the names of the entities. A name is "" for the default entity."""
    types = list(args["entity-type"])
    values = iter(args["entity-name"])
    names: list[str] = [
        next(values) if option == "entity-name" else ""
        for option in args.order
        if option in ("entity-name", "entity-default")
    ]
    for option, entity_type in SHORT_OPTIONS.items():
        if option in args:
            types.append(entity_type)
            names.append(args[option])
    for option, entity_type in SHORT_DEFAULT_OPTIONS.items():
        if option in args:
            types.append(entity_type)
            names.append("")
    if not types:
        raise UsageError("At least one entity type must be specified")
    return types, names


def _single_entity(types: list[str], names: list[str]) -> tuple[str, str | None]:
    """Return the type and the name of the entity. The name is None if the command line has none.
    Raise UsageError for an invalid combination."""
    if len(types) > 1 or len(names) > 1:
        raise UsageError("Only one entity type and one name can be specified at a time")
    entity_type, name = types[0], names[0] if names else None
    if name == "" and entity_type != "brokers":
        raise UsageError(f"{entity_type} have no default settings: a name is required")
    if entity_type in ("brokers", "broker-loggers") and name and not name.isdigit():
        raise UsageError(f"The entity name for {entity_type} must be a valid integer broker id, found: {name}")
    return entity_type, name


def parse_pairs(text: str) -> dict[str, str]:
    """Parse `k1=v1,k2=[a,b]`. Brackets protect commas and equals signs in a value, and are
    removed. Raise ToolError for text of another format."""
    outside_brackets = r"(?=[^\]]*(?:\[|$))"
    pairs = {}
    for pair in re.split("," + outside_brackets, text):
        pieces = re.split(r"\s*=\s*" + outside_brackets, pair)
        if len(pieces) != 2 or not pieces[0].strip():
            raise ToolError('Invalid entity config: all configs to be added must be in the format "key=val".')
        pairs[pieces[0].strip()] = re.sub(r"[\[\]]", "", pieces[1]).strip()
    return pairs


def _resource(entity_type: str, name: str) -> ConfigResource:
    from kavka.client.admin.types import ConfigResource, ResourceType

    types = {
        "topics": ResourceType.TOPIC,
        "brokers": ResourceType.BROKER,
        "broker-loggers": ResourceType.BROKER_LOGGER,
        "groups": ResourceType.GROUP,
        "client-metrics": ResourceType.CLIENT_METRICS,
    }
    return ConfigResource(types[entity_type], name)


def _entries(admin: Admin, entity_type: str, name: str, show_all: bool) -> list[ConfigEntry]:
    """Return the settings of an entity, sorted by name.

    Without `show_all`, return only the dynamic settings of a topic, broker or group. Raise
    ToolError if the broker is offline.
    """
    from kavka.client.admin.types import ConfigSource

    resource = _resource(entity_type, name)
    _check_broker(admin, entity_type, name)
    entries = admin.describe_configs(resource, include_synonyms=True)[resource].values()
    dynamic = {
        "topics": ConfigSource.DYNAMIC_TOPIC_CONFIG,
        "brokers": ConfigSource.DYNAMIC_BROKER_CONFIG if name else ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG,
        "groups": ConfigSource.DYNAMIC_GROUP_CONFIG,
    }.get(entity_type)
    if not show_all and dynamic is not None:
        entries = [entry for entry in entries if entry.source is dynamic]  # type: ignore[assignment]
    return sorted(entries, key=lambda entry: entry.name)


def _check_broker(admin: Admin, entity_type: str, name: str) -> None:
    """Raise ToolError if the broker is offline. A request to an offline broker would wait for the
    timeout."""
    if entity_type in ("brokers", "broker-loggers") and name:
        broker_ids = [node.id for node in admin.describe_cluster().nodes]
        if int(name) not in broker_ids:
            raise ToolError(
                f"there is no broker {name}; the brokers of the cluster are {', '.join(map(str, broker_ids))}"
            )


def _alter(admin: Admin, entity_type: str, name: str, added: dict[str, str], deleted: list[str]) -> None:
    from kavka.client.admin.types import AlterConfigOp

    # As in Kafka's tool, only the broker checks the settings of groups and client metrics.
    if deleted and entity_type not in ("groups", "client-metrics"):
        existing = {
            entry.name for entry in _entries(admin, entity_type, name, show_all=entity_type == "broker-loggers")
        }
        unknown = [key for key in deleted if key not in existing]
        if unknown:
            raise ToolError(f"Invalid config(s): {','.join(unknown)}")
    _check_broker(admin, entity_type, name)
    changes = [AlterConfigOp(key, value) for key, value in added.items()]
    changes += [AlterConfigOp.delete(key) for key in deleted]
    admin.incremental_alter_configs({_resource(entity_type, name): changes})
    if name:
        print(f"Completed updating config for {_singular(entity_type)} {name}.")
    else:
        print(f"Completed updating default config for {entity_type} in the cluster.")


def _entity_names(admin: Admin, entity_type: str) -> list[str]:
    match entity_type:
        case "topics":
            return sorted(admin.list_topics(list_internal=True))
        case "brokers" | "broker-loggers":
            broker_ids = [str(node.id) for node in sorted(admin.describe_cluster().nodes)]
            return [*broker_ids, ""] if entity_type == "brokers" else broker_ids
        case "groups":
            return sorted(_configured_entities(admin, entity_type) | _running_groups(admin))
        case _:
            return sorted(_configured_entities(admin, entity_type))


def _configured_entities(admin: Admin, entity_type: str) -> set[str]:
    """Return the entities with dynamic settings; an empty set if the broker cannot list groups."""
    from kavka.common.errors import ErrorCode, KafkaError

    resource_type = _resource(entity_type, "").type
    try:
        resources = admin.list_config_resources([resource_type])
        return {resource.name for resource in resources if resource.type is resource_type}
    except KafkaError as error:
        if entity_type == "groups" and error.code is ErrorCode.UNSUPPORTED_VERSION:
            return set()
        raise


def _running_groups(admin: Admin) -> set[str]:
    return {group.group_id for group in admin.list_groups()}


def _describe(admin: Admin, args: Arguments, entity_type: str, name: str | None) -> None:
    show_all = bool(args["all"])
    described = []
    for entity in [name] if name is not None else _entity_names(admin, entity_type):
        entries = _entries(admin, entity_type, entity, show_all)
        if args["json"]:
            described.append(_as_json(entity_type, entity, entries))
            continue
        if name and entity_type == "groups" and not entries and name not in _running_groups(admin):
            print(f"The group '{name}' doesn't exist and doesn't have dynamic config.")
            continue
        if entity:
            print(
                style(f"{'All' if show_all else 'Dynamic'} configs for {_singular(entity_type)} {entity} are:", "bold")
            )
        else:
            print(style(f"Default configs for {entity_type} in the cluster are:", "bold"))
        for line in _coloured_lines(entries) if at_terminal() else map(_plain_line, entries):
            print(line)
    if args["json"]:
        print_json(described)


def _plain_line(entry: ConfigEntry) -> str:
    synonyms = ", ".join(f"{s.source.name}:{s.name}={_text(s.value)}" for s in entry.synonyms)
    sensitive = "true" if entry.is_sensitive else "false"
    return f"  {entry.name}={_text(entry.value)} sensitive={sensitive} synonyms={{{synonyms}}}"


def _singular(entity_type: str) -> str:
    return entity_type.removesuffix("s")


def _text(value: str | None) -> str:
    return "null" if value is None else value


def _coloured_lines(entries: Iterable[ConfigEntry]) -> Iterable[str]:
    """Format settings for a terminal, with the source of each value."""
    entries = list(entries)
    width = max((len(f"{entry.name}={_text(entry.value)}") for entry in entries), default=0)
    for entry in entries:
        text = f"{entry.name}={_text(entry.value)}"
        source = entry.source.name.lower().replace("_", " ").removesuffix(" config")
        is_set = entry.source.name.startswith(("DYNAMIC", "STATIC"))
        yield f"  {style(text.ljust(min(width, 70)), *(('cyan',) if is_set else ()))}  {style(source, 'dim')}"


def _as_json(entity_type: str, name: str, entries: Iterable[ConfigEntry]) -> dict[str, Any]:
    return {
        "type": entity_type,
        "name": name or None,
        "configs": [
            {
                "name": entry.name,
                "value": entry.value,
                "source": entry.source.name,
                "sensitive": entry.is_sensitive,
                "readOnly": entry.is_read_only,
                "synonyms": [{"name": s.name, "value": s.value, "source": s.source.name} for s in entry.synonyms],
            }
            for entry in entries
        ],
    }
