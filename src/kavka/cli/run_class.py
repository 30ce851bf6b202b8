"""`kavka run-class` (`kafka-run-class`): run a tool by its Java class name in Kafka.

Older documentation of Kafka runs tools without a script this way, for example GetOffsetShell.
"""

from __future__ import annotations

from kavka.cli.options import Command, Positional
from kavka.cli.tool import fail, run

# The keys have no package, because the packages of the classes differ between releases.
CLASSES = {
    "AclCommand": "acls",
    "BrokerApiVersionsCommand": "broker-api-versions",
    "ClusterTool": "cluster",
    "ConfigCommand": "configs",
    "ConsoleConsumer": "console-consumer",
    "ConsoleProducer": "console-producer",
    "ConsumerGroupCommand": "consumer-groups",
    "ConsumerPerformance": "consumer-perf-test",
    "DelegationTokenCommand": "delegation-tokens",
    "DeleteRecordsCommand": "delete-records",
    "DumpLogSegments": "dump-log",
    "FeatureCommand": "features",
    "GetOffsetShell": "get-offsets",
    "GroupsCommand": "groups",
    "Kafka": "server",
    "LeaderElectionCommand": "leader-election",
    "LogDirsCommand": "log-dirs",
    "PreferredReplicaLeaderElectionCommand": "preferred-replica-election",
    "ProducerPerformance": "producer-perf-test",
    "ReassignPartitionsCommand": "reassign-partitions",
    "ReplicaVerificationTool": "replica-verification",
    "StreamsResetter": "streams-application-reset",
    "TopicCommand": "topics",
    "TransactionsCommand": "transactions",
    "VerifiableConsumer": "verifiable-consumer",
    "VerifiableProducer": "verifiable-producer",
}

COMMAND = Command(
    "run-class",
    "Run a tool by its Java class name in Kafka. All further arguments are passed to the tool.",
    positionals=(Positional("class", "For example kafka.tools.GetOffsetShell."),),
    examples=("kavka run-class kafka.tools.GetOffsetShell --broker-list localhost:9092 --topic orders --time -1",),
)


def main(argv: list[str]) -> int:
    from kavka.cli import main as cli

    if not argv or argv[0].startswith("-"):
        return run(COMMAND, argv, lambda args: 1)
    tool = CLASSES.get(argv[0].rpartition(".")[2])
    if tool is None:
        return fail(f"kavka run-class: there is no tool for {argv[0]}")
    return cli.main([tool, *argv[1:]])
