"""The list of all tools. Each is a file beside this one, imported only when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kavka.cli.options import Command


class Tool(NamedTuple):
    name: str
    group: str
    help: str
    module: str
    """Has `main`, called with the arguments after the name, which returns the exit code; and `COMMAND`, the table."""
    main: str = "main"
    table: str = "COMMAND"
    aliases: tuple[str, ...] = ()
    scripts: tuple[str, ...] | None = None
    """Its names under bin/, without .sh: `kafka-` and its own, unless it has others."""

    @property
    def script_names(self) -> tuple[str, ...]:
        return (f"kafka-{self.name}",) if self.scripts is None else self.scripts


BROKER, TOPICS, RECORDS, GROUPS = "Brokers", "Topics and settings", "Records", "Groups and transactions"
CLUSTER, PIPELINE, CONNECT = "Clusters and ZooKeeper", "Streams", "Connect"
MIRROR = "Mirroring"
REPLICAS, PERFORMANCE, SHELL = "Replicas and disks", "Measuring and verifying", "This command"

TOOLS = (
    Tool(
        "server", BROKER, "start a broker", "kavka.cli.server",
        aliases=("server-start",), scripts=("kafka-server-start",),
    ),
    Tool(
        "server-stop", BROKER, "stop the brokers that were started from here", "kavka.cli.server",
        main="stop_main", table="STOP_COMMAND",
    ),
    Tool("cluster", CLUSTER, "a cluster on this machine: ZooKeeper and brokers", "kavka.cli.cluster"),
    Tool(
        "zookeeper-server-start", CLUSTER, "start a ZooKeeper server", "kavka.cli.zookeeper_server",
        scripts=("zookeeper-server-start",),
    ),
    Tool(
        "zookeeper-server-stop", CLUSTER, "stop the ZooKeeper servers that were started from here",
        "kavka.cli.zookeeper_server", main="stop_main", table="STOP_COMMAND", scripts=("zookeeper-server-stop",),
    ),
    Tool(
        "zkServer", CLUSTER, "start, stop or ask a ZooKeeper server", "kavka.cli.zookeeper_server",
        main="zkserver_main", table="ZKSERVER_COMMAND", scripts=("zkServer",),
    ),
    Tool(
        "zookeeper-shell", CLUSTER, "look at what is in a ZooKeeper", "kavka.cli.zookeeper_shell",
        scripts=("zookeeper-shell",),
    ),
    Tool("topics", TOPICS, "create, list, describe, alter and delete topics", "kavka.cli.topics"),
    Tool("configs", TOPICS, "show and change the settings of topics, brokers and groups", "kavka.cli.configs"),
    Tool("consumer-groups", GROUPS, "list, describe and delete groups, reset offsets", "kavka.cli.consumer_groups"),
    Tool(
        "groups", GROUPS, "list groups of every kind", "kavka.cli.consumer_groups",
        main="groups_main", table="GROUPS_COMMAND",
    ),
    Tool("transactions", GROUPS, "show transactions, find and end those that hang", "kavka.cli.transactions"),
    Tool("delete-records", RECORDS, "delete the oldest records of partitions", "kavka.cli.delete_records"),
    Tool("log-dirs", REPLICAS, "show what lies in the log directories of brokers", "kavka.cli.log_dirs"),
    Tool("leader-election", REPLICAS, "elect leaders", "kavka.cli.leader_election"),
    Tool(
        "preferred-replica-election", REPLICAS, "elect preferred leaders (the older tool)",
        "kavka.cli.leader_election", main="preferred_main", table="PREFERRED_COMMAND",
    ),
    Tool("reassign-partitions", REPLICAS, "move partitions between brokers and disks", "kavka.cli.reassign_partitions"),
    Tool(
        "broker-api-versions", BROKER, "show which requests brokers serve", "kavka.cli.cluster_info",
        main="api_versions_main", table="API_VERSIONS_COMMAND",
    ),
    Tool(
        "features", BROKER, "show and set the levels of features", "kavka.cli.cluster_info",
        main="features_main", table="FEATURES_COMMAND",
    ),
    Tool("console-producer", RECORDS, "send lines of standard input", "kavka.cli.console_producer"),
    Tool("console-consumer", RECORDS, "print the records of topics", "kavka.cli.console_consumer"),
    Tool("console", BROKER, "a cluster on a web page", "kavka.cli.console"),
    Tool(
        "console-user", BROKER, "who may log in to the console", "kavka.cli.console",
        main="user_main", table="USER_COMMAND", scripts=(),
    ),
    Tool("get-offsets", RECORDS, "first and last offsets of partitions", "kavka.cli.get_offsets"),
    Tool("dump-log", RECORDS, "show what is in the files of a log", "kavka.cli.dump_log"),
    Tool("producer-perf-test", PERFORMANCE, "how fast records can be sent", "kavka.cli.producer_perf_test"),
    Tool("consumer-perf-test", PERFORMANCE, "how fast records can be read", "kavka.cli.consumer_perf_test"),
    Tool("verifiable-producer", PERFORMANCE, "send numbers, print outcomes as JSON", "kavka.cli.verifiable_producer"),
    Tool("verifiable-consumer", PERFORMANCE, "print what a consumer sees as JSON", "kavka.cli.verifiable_consumer"),
    Tool("replica-verification", REPLICAS, "compare replicas with one another", "kavka.cli.replica_verification"),
    Tool("run-class", SHELL, "a tool by the name of its Java class in Kafka", "kavka.cli.run_class"),
    Tool("mirror-maker", MIRROR, "mirror topics of a cluster into another (MirrorMaker 1)", "kavka.cli.mirror_maker"),
    Tool(
        "connect-mirror-maker", MIRROR, "mirror clusters into one another, with groups (MirrorMaker 2)",
        "kavka.cli.mirror_maker", main="connect_main", table="CONNECT_COMMAND", scripts=("connect-mirror-maker",),
    ),
    Tool("pipeline", PIPELINE, "run streams jobs on Spark, show and stop them", "kavka.cli.pipeline", scripts=()),
    Tool(
        "streams-application-reset", PIPELINE, "let a streams application begin anew", "kavka.cli.streams_reset",
    ),
    Tool(
        "connect-standalone", CONNECT, "run connectors in one process", "kavka.cli.connect",
        scripts=("connect-standalone",),
    ),
    Tool(
        "connect-distributed", CONNECT, "run a worker of a group that is managed over REST", "kavka.cli.connect",
        main="distributed_main", table="DISTRIBUTED_COMMAND", scripts=("connect-distributed",),
    ),
    Tool("completion", SHELL, "make bash or zsh complete what you type", "kavka.cli.completion", scripts=()),
)  # fmt: skip

_KRAFT = "it is about KRaft's metadata log, and clusters here keep theirs in ZooKeeper, or embedded"
_SECURITY = "there is no security here yet"
_SHARE = "there are no share groups here"

# Tools of Kafka 3.9 and 4.3 that are not here, by the names of their scripts, and what to do instead.
MISSING = {
    "kafka-acls": f"{_SECURITY}, and so no ACLs",
    "kafka-delegation-tokens": f"{_SECURITY}, and so no tokens",
    "zookeeper-security-migration": f"{_SECURITY}, and so no ACLs in ZooKeeper",
    "kafka-storage": "nothing has to be formatted: a broker makes its directories and its cluster id when it starts",
    "kafka-metadata-quorum": f"{_KRAFT}; who is controller: zookeeper-shell HOST get /controller",
    "kafka-metadata-shell": f"{_KRAFT}; zookeeper-shell shows what is in ZooKeeper",
    "kafka-share-groups": _SHARE,
    "kafka-console-share-consumer": f"{_SHARE}; console-consumer reads with a group of consumers",
    "kafka-share-consumer-perf-test": f"{_SHARE}; consumer-perf-test measures a group of consumers",
    "kafka-verifiable-share-consumer": f"{_SHARE}; verifiable-consumer is of a group of consumers",
    "kafka-streams-groups": "streams applications are groups of consumers here: consumer-groups shows them",
    "kafka-client-metrics": "brokers here take no metrics of clients",
    "kafka-jmx": "there is no JMX: metrics.listener serves a broker's metrics, for Prometheus",
    "kafka-e2e-latency": "producer-perf-test prints latencies up to the acknowledgement",
    "connect-plugin-path": "connectors are Python classes, found by their names (docs/connect.md)",
    "trogdor": "it is for tests of Kafka itself",
}


def why_missing(name: str) -> str | None:
    """Why a tool of Kafka's is not here; None where Kafka has none of that name."""
    full = name.removesuffix(".sh")
    return MISSING.get(full) or MISSING.get(f"kafka-{full}")


def find(name: str) -> Tool | None:
    """By its name, by Kafka's (`kafka-server-start.sh`), or by Kafka's without the `kafka-` or the `.sh`."""
    full = name.removesuffix(".sh")
    plain = full.removeprefix("kafka-")
    for tool in TOOLS:
        if plain == tool.name or plain in tool.aliases or full in tool.script_names:
            return tool
    return None


def table_of(tool: Tool) -> Command:
    from importlib import import_module

    found: Command = getattr(import_module(tool.module), tool.table)
    return found


def groups() -> Iterator[tuple[str, list[Tool]]]:
    """Tools by what they are for."""
    for group in dict.fromkeys(tool.group for tool in TOOLS):
        yield group, [tool for tool in TOOLS if tool.group == group]
