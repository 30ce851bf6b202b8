"""The output of Apache's tools for a sequence of commands on a cluster.

`python -m tests.support.cluster_tools` creates tests/golden/cluster-tools.json with a cluster of
Apache Kafka 3.9.1.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path

from kavka.client.admin import Admin
from tests.support.apache import LAST_WITH_ZOOKEEPER
from tests.support.cluster import ApacheCluster, Cluster
from tests.support.java_client import run_tool
from tests.support.processes import wait_until
from tests.support.zookeeper import ZooKeeper

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "cluster-tools.json"

REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
ELECT = "org.apache.kafka.tools.LeaderElectionCommand"

Outputs = list[dict[str, str]]


class Operator:
    """Runs Apache's tools on a cluster and records their output."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.outputs: Outputs = []

    def run(self, tool: str, *args: str) -> str:
        servers = self.cluster.brokers[0].bootstrap_servers
        result = run_tool(LAST_WITH_ZOOKEEPER, tool, "--bootstrap-server", servers, *args, check=False)
        return result.stdout + result.stderr

    def run_and_record(self, tool: str, *args: str) -> None:
        command = " ".join([tool.rpartition(".")[2], *(arg.replace(str(self.folder), "") for arg in args)])
        self.outputs.append({"command": command, "output": _normalized(self.run(tool, *args), self.cluster)})

    def file(self, name: str, content: object) -> str:
        path = self.folder / name
        path.write_text(json.dumps(content))
        return str(path)


def _normalized(text: str, cluster: Cluster) -> str:
    """Replace values that differ from run to run by constants."""
    text = re.sub(r"(TopicId: )[\w-]{22}", r"\1AAAAAAAAAAAAAAAAAAAAAA", text)
    for number, broker in cluster.brokers.items():
        for path in broker.log_dirs:
            text = text.replace(str(path), f"/logs-{number}")
        text = text.replace(broker.bootstrap_servers, f"broker-{number}")
    return text


def session(cluster: Cluster, folder: Path) -> Outputs:
    operator = Operator(cluster, folder)
    run_and_record = operator.run_and_record
    moves = {
        "version": 1,
        "partitions": [
            {"topic": "t", "partition": 0, "replicas": [2, 1]},
            {"topic": "t", "partition": 1, "replicas": [1, 2]},
        ],
    }
    plan = operator.file("plan.json", moves)
    run_and_record(
        "topics", "--create", "--topic", "t", "--replica-assignment", "0:1,1:2,2:0", "--config", "retention.ms=60000"
    )
    run_and_record("topics", "--create", "--topic", "u", "--partitions", "2", "--replication-factor", "4")
    run_and_record(
        "configs", "--alter", "--entity-type", "topics", "--entity-name", "t", "--add-config", "max.message.bytes=2000"
    )
    run_and_record("configs", "--describe", "--entity-type", "topics", "--entity-name", "t")
    run_and_record("log-dirs", "--describe", "--topic-list", "t")
    run_and_record(REASSIGN, "--execute", "--reassignment-json-file", plan)
    with Admin({"bootstrap.servers": cluster.bootstrap_servers}) as admin:
        wait_until(lambda: not admin.list_partition_reassignments(), timeout=120, what="the moves", interval=0.2)
    run_and_record(REASSIGN, "--verify", "--reassignment-json-file", plan)
    run_and_record(REASSIGN, "--list")
    run_and_record(ELECT, "--election-type", "preferred", "--topic", "t", "--partition", "0")
    run_and_record("topics", "--describe", "--topic", "t")
    cluster.kill(2)
    cluster.wait_for_metadata()
    run_and_record("topics", "--describe", "--under-replicated-partitions")
    run_and_record(ELECT, "--election-type", "preferred", "--topic", "t", "--partition", "0")
    run_and_record(REASSIGN, "--execute", "--reassignment-json-file", plan)
    run_and_record("topics", "--delete", "--topic", "t")
    run_and_record("topics", "--list")
    return operator.outputs


def main() -> int:
    with (
        tempfile.TemporaryDirectory() as folder,
        ZooKeeper(Path(folder) / "zookeeper") as zookeeper,
        ApacheCluster(Path(folder) / "cluster", zookeeper) as cluster,
    ):
        outcomes = session(cluster, Path(folder))
    GOLDEN.write_text(json.dumps(outcomes, indent=1, ensure_ascii=False) + "\n")
    print(f"{GOLDEN}: {len(outcomes)} commands")
    return 0


if __name__ == "__main__":
    sys.exit(main())
