"""Tools that describe a cluster: `kafka-broker-api-versions`, `kafka-features`, and the subcommands
of Kafka's `kafka-cluster`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kavka.cli.connecting import COMMAND_CONFIG, JSON, TIMEOUT, admin_for, connection_options
from kavka.cli.options import Arguments, Command, Option
from kavka.cli.output import at_terminal, print_json, print_table, style
from kavka.cli.tool import ToolError, run

if TYPE_CHECKING:
    from kavka.client.admin import Admin
    from kavka.client.admin.types import FeatureMetadata

API_VERSIONS_COMMAND = Command(
    "broker-api-versions",
    "Show the versions of each API that the brokers support, and the version that this client would use.",
    (JSON, *connection_options()),
    examples=("kavka broker-api-versions --bootstrap-server localhost:9092",),
)

_CHANGE_OPTIONS = (
    Option("feature", "A feature and its level: name=level.", "name=level", repeated=True),
    Option(
        "metadata",
        "The metadata.version of a KRaft cluster: a release (4.0) or one of its levels (4.0-IV1).",
        "version",
    ),
    Option("dry-run", "Validate the change without making it."),
)

FEATURES_COMMAND = Command(
    "features",
    "Show and set the finalized feature levels of a cluster.",
    (JSON, *connection_options()),
    subcommands=(
        Command("describe", "Show the supported and the finalized level of each feature."),
        Command("upgrade", "Raise the level of features.", _CHANGE_OPTIONS),
        Command("downgrade", "Lower the level of features.", _CHANGE_OPTIONS),
        Command(
            "disable",
            "Set the level of features to zero.",
            (Option("feature", "A feature.", "name", repeated=True), _CHANGE_OPTIONS[2]),
        ),
    ),
    examples=("kavka features --bootstrap-server localhost:9092 describe",),
)

_CLUSTER_OPTIONS = (
    Option(
        "bootstrap-server",
        "Bootstrap brokers: host:port, separated by commas.",
        "host:port",
        aliases=("b",),
    ),
    Option("command-config", COMMAND_CONFIG.help, "file", aliases=("c",), completes="file"),
    Option("config", "Same as --command-config.", "file", deprecated=True, completes="file"),
    TIMEOUT,
)

CLUSTER_SUBCOMMANDS = (
    Command("cluster-id", "Print the id of a cluster.", _CLUSTER_OPTIONS),
    Command(
        "list-endpoints",
        "List the brokers of a cluster.",
        (
            *_CLUSTER_OPTIONS,
            JSON,
            Option("include-fenced-brokers", "Also show fenced brokers. Only KRaft clusters have them."),
        ),
    ),
    Command(
        "unregister",
        "Unregister a broker that was removed permanently. Only KRaft clusters need it.",
        (*_CLUSTER_OPTIONS, Option("id", "The broker's id.", "id", int, required=True, aliases=("i",))),
    ),
)

# The levels of metadata.version have names; the levels of other features are numbers.
_METADATA_VERSIONS = (
    "3.0-IV1", "3.1-IV0", "3.2-IV0", "3.3-IV0", "3.3-IV1", "3.3-IV2", "3.3-IV3", "3.4-IV0", "3.5-IV0", "3.5-IV1",
    "3.5-IV2", "3.6-IV0", "3.6-IV1", "3.6-IV2", "3.7-IV0", "3.7-IV1", "3.7-IV2", "3.7-IV3", "3.7-IV4", "3.8-IV0",
    "3.9-IV0", "4.0-IV0", "4.0-IV1", "4.0-IV2", "4.0-IV3", "4.1-IV0", "4.1-IV1", "4.2-IV0", "4.2-IV1", "4.3-IV0",
)  # fmt: skip
METADATA_VERSIONS = dict(enumerate(_METADATA_VERSIONS, start=1))


def api_versions_main(argv: list[str]) -> int:
    return run(API_VERSIONS_COMMAND, argv, _api_versions)


def features_main(argv: list[str]) -> int:
    return run(FEATURES_COMMAND, argv, _features)


# --- kafka-broker-api-versions


def _api_versions(args: Arguments) -> None:
    from kavka.protocol.api_keys import APIS, ApiKey

    with admin_for(args) as admin:
        nodes = {node.id: node for node in admin.describe_cluster().nodes}
        spans_by_node = admin.describe_api_versions(nodes)
    client_apis = {int(key): api for key, api in APIS.items()}
    names = {int(key): key.name.title().replace("_", "") for key in ApiKey}
    names |= {key: api.name for key, api in client_apis.items()}
    if args["json"]:
        print_json(
            [
                {
                    "id": node_id,
                    "host": nodes[node_id].host,
                    "port": nodes[node_id].port,
                    "rack": nodes[node_id].rack,
                    "apis": {
                        names.get(key, f"UNKNOWN({key})"): {"key": key, "min": span.min, "max": span.max}
                        for key, span in sorted(spans.items())
                    },
                }
                for node_id, spans in sorted(spans_by_node.items())
            ]
        )
        return
    for node_id, spans in sorted(spans_by_node.items()):
        node = nodes[node_id]
        lines = []
        for key in sorted(set(client_apis) | set(spans)):
            if key not in client_apis:
                lines.append(f"{names.get(key, 'UNKNOWN')}({key}): {_span(spans[key])} [unusable: node too new]")
                continue
            api = client_apis[key]
            if key not in spans:
                lines.append(f"{api.name}({key}): UNSUPPORTED")
                continue
            low, high = max(spans[key].min, api.min_version), min(spans[key].max, api.max_version)
            if low > high:
                usable = f"unusable: node too {'new' if spans[key].min > api.max_version else 'old'}"
            else:
                usable = f"usable: {high}"
            lines.append(f"{api.name}({key}): {_span(spans[key])} [{usable}]")
        rack = "null" if node.rack is None else node.rack
        print(style(f"{node.host}:{node.port} (id: {node.id} rack: {rack})", "bold") + " -> (")
        print("\t" + ",\n\t".join(lines) + "\n)")


def _span(span: tuple[int, int]) -> str:
    return str(span[0]) if span[0] == span[1] else f"{span[0]} to {span[1]}"


# --- kafka-features


def _features(args: Arguments) -> None:
    with admin_for(args) as admin:
        if args.subcommand == "describe":
            _describe_features(admin.describe_features(), args)
            return
        levels = _levels(args, admin)
        admin.update_features(levels, allow_downgrade=args.subcommand != "upgrade", validate_only=bool(args["dry-run"]))
    for name, level in levels.items():
        verb = "can be" if args["dry-run"] else "was"
        if args.subcommand == "disable":
            print(f"{name} {verb} disabled.")
        else:
            print(f"{name} {verb} {args.subcommand}d to {level}.")


def _levels(args: Arguments, admin: Admin) -> dict[str, int]:
    levels = {}
    for text in args["feature"]:
        name, equals, level = text.partition("=")
        if args.subcommand == "disable":
            levels[text] = 0
        elif not equals or not level.isdigit():
            raise ToolError(f"Can't parse feature=level string {text}: level must be a number")
        else:
            levels[name] = int(level)
    release = args.values.get("metadata")
    if release:
        if "metadata.version" not in admin.describe_features().supported:
            raise ToolError("this cluster has no metadata.version: only KRaft clusters have one")
        levels["metadata.version"] = _metadata_level(release)
    if not levels:
        raise ToolError(f"You must specify at least one feature to {args.subcommand}")
    return levels


def _metadata_level(release: str) -> int:
    """Return the level with a name such as 4.0-IV1, or the last level of a release such as 4.0."""
    matching = [level for level, name in METADATA_VERSIONS.items() if release in (name, name.partition("-")[0])]
    if not matching:
        names = ", ".join(METADATA_VERSIONS.values())
        raise ToolError(f"Unknown metadata.version '{release}'. Supported metadata.version are: {names}")
    return matching[-1]


def _level(name: str, level: int) -> str:
    return METADATA_VERSIONS.get(level, f"UNKNOWN {level}") if name == "metadata.version" else str(level)


def _describe_features(features: FeatureMetadata, args: Arguments) -> None:
    epoch = features.finalized_epoch
    rows = []
    for name in sorted({*features.supported, *features.finalized}):
        low, high = features.supported.get(name, (0, 0))
        level = features.finalized.get(name, (0, 0))[1]
        rows.append((name, _level(name, low), _level(name, high), _level(name, level), "-" if epoch is None else epoch))
    if args["json"]:
        names = ("feature", "supportedMinVersion", "supportedMaxVersion", "finalizedVersionLevel", "epoch")
        print_json([dict(zip(names, row, strict=True)) for row in rows])
    elif at_terminal():
        print_table(("FEATURE", "SUPPORTED FROM", "TO", "IN USE", "EPOCH"), rows)
    else:
        for name, low_text, high_text, level_text, epoch_text in rows:
            print(
                f"Feature: {name}\tSupportedMinVersion: {low_text}\tSupportedMaxVersion: {high_text}"
                f"\tFinalizedVersionLevel: {level_text}\tEpoch: {epoch_text}"
            )


# --- kafka-cluster


def query_cluster(args: Arguments) -> None:
    """Run a subcommand of Kafka's `kafka-cluster`."""
    config = "config" if "config" in args else "command-config"
    with admin_for(args, config=config) as admin:
        if args.subcommand == "unregister":
            _unregister(admin, args["id"])
            return
        description = admin.describe_cluster()
    if args.subcommand == "cluster-id":
        if description.cluster_id is None:
            raise ToolError("No cluster ID found. The Kafka version is probably too old.")
        print(f"Cluster ID: {description.cluster_id}")
        return
    nodes = description.nodes
    if args["json"]:
        print_json([{"id": n.id, "host": n.host, "port": n.port, "rack": n.rack} for n in nodes])
        return
    headings = ("ID", "HOST", "PORT", "RACK", "STATE", "ENDPOINT_TYPE")
    rows = [(n.id, n.host, n.port, "null" if n.rack is None else n.rack, "unfenced", "broker") for n in nodes]
    if at_terminal():
        print_table(headings, rows)
        return
    host = max([len("HOST"), *(len(n.host) for n in nodes)])
    rack = max([10, *(len(n.rack or "") for n in nodes)])
    for row in (headings, *rows):
        print(f"{row[0]:<10} {row[1]:<{host}} {row[2]:<10} {row[3]:<{rack}} {row[4]:<10} {row[5]:<15}")


def _unregister(admin: Admin, broker_id: int) -> None:
    from kavka.client.errors import UnsupportedVersion

    try:
        admin.unregister_broker(broker_id)
    except UnsupportedVersion:
        raise ToolError(
            "The target cluster does not support the broker unregistration API. It is not a KRaft cluster: the "
            f"registration of broker {broker_id} is removed when its session expires"
        ) from None
    print(f"Broker {broker_id} is no longer registered.")
