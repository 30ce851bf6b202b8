"""The list of all tools. A tool's module is imported only when the tool runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kavka.cli.options import Command


class Tool(NamedTuple):
    """A tool: its name, the group in `kavka --help`, and the module with its `main` function and
    its option table."""

    name: str
    group: str
    help: str
    module: str
    main: str = "main"
    """Function that takes the arguments after the tool's name and returns the exit code."""
    table: str = "COMMAND"
    aliases: tuple[str, ...] = ()
    scripts: tuple[str, ...] | None = None
    """Names under bin/, without .sh. The default is the tool's name with the prefix `kafka-`."""

    @property
    def script_names(self) -> tuple[str, ...]:
        return (f"kafka-{self.name}",) if self.scripts is None else self.scripts


BROKER, TOPICS, RECORDS, GROUPS = "Brokers", "Topics and settings", "Records", "Groups and transactions"
CLUSTER, PIPELINE, CONNECT, MIRROR = "Clusters and ZooKeeper", "Streams", "Connect", "Mirroring"
REPLICAS, PERFORMANCE, SHELL = "Replicas and disks", "Performance and verification", "This command"

TOOLS = (
    Tool(
        "server", BROKER, "start a broker", "kavka.cli.server",
        aliases=("server-start",), scripts=("kafka-server-start",),
    ),
    Tool(
        "server-stop", BROKER, "stop the brokers of this installation", "kavka.cli.server",
        main="stop_main", table="STOP_COMMAND",
    ),
    Tool("cluster", CLUSTER, "run a local cluster of ZooKeeper and brokers", "kavka.cli.cluster"),
    Tool(
        "zookeeper-server-start", CLUSTER, "start a ZooKeeper server", "kavka.cli.zookeeper_server",
        scripts=("zookeeper-server-start",),
    ),
    Tool(
        "zookeeper-server-stop", CLUSTER, "stop the ZooKeeper servers of this installation",
        "kavka.cli.zookeeper_server", main="stop_main", table="STOP_COMMAND", scripts=("zookeeper-server-stop",),
    ),
    Tool(
        "zkServer", CLUSTER, "start, stop or query a ZooKeeper server", "kavka.cli.zookeeper_server",
        main="zkserver_main", table="ZKSERVER_COMMAND", scripts=("zkServer",),
    ),
    Tool(
        "zookeeper-shell", CLUSTER, "read and change znodes", "kavka.cli.zookeeper_shell",
        scripts=("zookeeper-shell",),
    ),
    Tool("registry", BROKER, "run a schema registry for development", "kavka.cli.registry", scripts=()),
    Tool("security", BROKER, "create the files of a secured broker", "kavka.cli.security", scripts=()),
    Tool("topics", TOPICS, "create, list, describe, alter and delete topics", "kavka.cli.topics"),
    Tool("configs", TOPICS, "show and change settings of topics, brokers and groups", "kavka.cli.configs"),
    Tool("acls", TOPICS, "list, add and remove ACLs", "kavka.cli.acls"),
    Tool(
        "delegation-tokens", TOPICS, "create, renew, expire and describe delegation tokens",
        "kavka.cli.delegation_tokens",
    ),
    Tool("consumer-groups", GROUPS, "list, describe and delete groups, reset offsets", "kavka.cli.consumer_groups"),
    Tool(
        "groups", GROUPS, "list groups of every type", "kavka.cli.consumer_groups",
        main="groups_main", table="GROUPS_COMMAND",
    ),
    Tool("transactions", GROUPS, "show transactions, find and abort hanging ones", "kavka.cli.transactions"),
    Tool("delete-records", RECORDS, "delete the oldest records of partitions", "kavka.cli.delete_records"),
    Tool("log-dirs", REPLICAS, "show the replicas in the log directories of brokers", "kavka.cli.log_dirs"),
    Tool("leader-election", REPLICAS, "elect leaders", "kavka.cli.leader_election"),
    Tool(
        "preferred-replica-election", REPLICAS, "elect preferred leaders (deprecated)",
        "kavka.cli.leader_election", main="preferred_main", table="PREFERRED_COMMAND",
    ),
    Tool("reassign-partitions", REPLICAS, "move partitions between brokers and disks", "kavka.cli.reassign_partitions"),
    Tool(
        "broker-api-versions", BROKER, "show the API versions that brokers support", "kavka.cli.cluster_info",
        main="api_versions_main", table="API_VERSIONS_COMMAND",
    ),
    Tool(
        "features", BROKER, "show and set feature levels", "kavka.cli.cluster_info",
        main="features_main", table="FEATURES_COMMAND",
    ),
    Tool("console-producer", RECORDS, "send lines of standard input as records", "kavka.cli.console_producer"),
    Tool("console-consumer", RECORDS, "print the records of topics", "kavka.cli.console_consumer"),
    Tool("console", BROKER, "run the web console", "kavka.cli.console"),
    Tool(
        "console-user", BROKER, "manage the users of the console", "kavka.cli.console",
        main="user_main", table="USER_COMMAND", scripts=(),
    ),
    Tool("get-offsets", RECORDS, "print offsets of partitions", "kavka.cli.get_offsets"),
    Tool("dump-log", RECORDS, "print the contents of log files", "kavka.cli.dump_log"),
    Tool("producer-perf-test", PERFORMANCE, "measure the throughput of a producer", "kavka.cli.producer_perf_test"),
    Tool("consumer-perf-test", PERFORMANCE, "measure the throughput of a consumer", "kavka.cli.consumer_perf_test"),
    Tool("verifiable-producer", PERFORMANCE, "send numbers, print results as JSON", "kavka.cli.verifiable_producer"),
    Tool("verifiable-consumer", PERFORMANCE, "print consumer events as JSON", "kavka.cli.verifiable_consumer"),
    Tool("replica-verification", REPLICAS, "compare the replicas of partitions", "kavka.cli.replica_verification"),
    Tool("run-class", SHELL, "run a tool by its Java class name in Kafka", "kavka.cli.run_class"),
    Tool("mirror-maker", MIRROR, "mirror topics to another cluster (MirrorMaker 1)", "kavka.cli.mirror_maker"),
    Tool(
        "connect-mirror-maker", MIRROR, "mirror clusters, including groups (MirrorMaker 2)",
        "kavka.cli.mirror_maker", main="connect_main", table="CONNECT_COMMAND", scripts=("connect-mirror-maker",),
    ),
    Tool("pipeline", PIPELINE, "run streams jobs on Spark, show and stop them", "kavka.cli.pipeline", scripts=()),
    Tool("streams-application-reset", PIPELINE, "reset a streams application", "kavka.cli.streams_reset"),
    Tool(
        "connect-standalone", CONNECT, "run connectors in one process", "kavka.cli.connect",
        scripts=("connect-standalone",),
    ),
    Tool(
        "connect-distributed", CONNECT, "run a worker of a Connect cluster", "kavka.cli.connect",
        main="distributed_main", table="DISTRIBUTED_COMMAND", scripts=("connect-distributed",),
    ),
    Tool("quickstart", SHELL, "try Kavka step by step in one terminal", "kavka.cli.quickstart", scripts=()),
    Tool("doctor", SHELL, "check this machine and say what to change", "kavka.cli.doctor", scripts=()),
    Tool(
        "config-files", SHELL, "list, print or copy the configuration files", "kavka.cli.config_files", scripts=()
    ),
    Tool("completion", SHELL, "print a completion script for bash or zsh", "kavka.cli.completion", scripts=()),
)  # fmt: skip

_KRAFT = "it reads KRaft's metadata log; Kavka stores metadata in ZooKeeper or an embedded database"
_SHARE = "Kavka has no share groups"

# Tools of Kafka 3.9 and 4.3 that Kavka does not have, by script name: the reason and an
# alternative.
MISSING = {
    "zookeeper-security-migration": "brokers set the ACLs of the znodes that they create (zookeeper.set.acl=true)",
    "kafka-storage": "no formatting is needed: a broker creates its log directories and its cluster id at startup",
    "kafka-metadata-quorum": f"{_KRAFT}; to find the controller: zookeeper-shell HOST get /controller",
    "kafka-metadata-shell": f"{_KRAFT}; zookeeper-shell reads the znodes",
    "kafka-share-groups": _SHARE,
    "kafka-console-share-consumer": f"{_SHARE}; console-consumer reads with a consumer group",
    "kafka-share-consumer-perf-test": f"{_SHARE}; consumer-perf-test measures a consumer group",
    "kafka-verifiable-share-consumer": f"{_SHARE}; verifiable-consumer uses a consumer group",
    "kafka-streams-groups": "streams applications are consumer groups in Kavka: consumer-groups shows them",
    "kafka-client-metrics": "Kavka brokers do not collect client metrics",
    "kafka-jmx": "Kavka has no JMX: metrics.listener serves a broker's metrics for Prometheus",
    "kafka-e2e-latency": "producer-perf-test prints the latency up to the acknowledgement",
    "connect-plugin-path": "connectors are Python classes, located by name (docs/connect.md)",
    "trogdor": "it tests Kafka itself",
}

# Kafka and ZooKeeper have these scripts only with `.sh`.
_ONLY_SH = frozenset({"zkServer"})


def commands() -> list[str]:
    """Return the names of Kafka's scripts, which bin/ and an installation have. setup.py calls this
    without the dependencies: this module imports only the standard library."""
    scripts = [name for tool in TOOLS for name in tool.script_names]
    plain = [name for name in scripts if name not in _ONLY_SH]
    return sorted(plain + [f"{name}.sh" for name in (*scripts, *MISSING)])


def why_missing(name: str) -> str | None:
    """Return the reason why Kavka does not have this Kafka tool; None if MISSING has no such
    tool."""
    script = name.removesuffix(".sh")
    return MISSING.get(script) or MISSING.get(f"kafka-{script}")


def find(name: str) -> Tool | None:
    """Find a tool by its name or by Kafka's script name, with or without `kafka-` and `.sh`.
    Return None if there is none."""
    script = name.removesuffix(".sh")
    short = script.removeprefix("kafka-")
    for tool in TOOLS:
        if short == tool.name or short in tool.aliases or script in tool.script_names:
            return tool
    return None


def table_of(tool: Tool) -> Command:
    """Import the module of a tool and return its option table."""
    from importlib import import_module

    command: Command = getattr(import_module(tool.module), tool.table)
    return command


def groups() -> Iterator[tuple[str, list[Tool]]]:
    """Yield each group and its tools."""
    for group in dict.fromkeys(tool.group for tool in TOOLS):
        yield group, [tool for tool in TOOLS if tool.group == group]
