"""Apache's own tools at work on a cluster: what each prints, one after the other.

`python -m tests.support.cluster_tools` makes tests/golden/cluster-tools.json with a cluster of
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

Told = list[dict[str, str]]


class Operator:
    """An administrator of a cluster who records the output of the tools."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.outputs: Told = []

    def run(self, tool: str, *args: str) -> str:
        servers = self.cluster.brokers[0].bootstrap_servers
        done = run_tool(LAST_WITH_ZOOKEEPER, tool, "--bootstrap-server", servers, *args, check=False)
        return done.stdout + done.stderr

    def does(self, tool: str, *args: str) -> None:
        shown = " ".join([tool.rpartition(".")[2], *(arg.replace(str(self.folder), "") for arg in args)])
        self.outputs.append({"command": shown, "output": _settled(self.run(tool, *args), self.cluster)})

    def file(self, name: str, content: object) -> str:
        path = self.folder / name
        path.write_text(json.dumps(content))
        return str(path)


def _settled(text: str, cluster: Cluster) -> str:
    """Replace values that differ from run to run by constants."""
    text = re.sub(r"(TopicId: )[\w-]{22}", r"\1AAAAAAAAAAAAAAAAAAAAAA", text)
    for number, broker in cluster.brokers.items():
        for path in broker.log_dirs:
            text = text.replace(str(path), f"/logs-{number}")
        text = text.replace(broker.bootstrap_servers, f"broker-{number}")
    return text


def session(cluster: Cluster, folder: Path) -> Told:
    operator = Operator(cluster, folder)
    does = operator.does
    moves = {
        "version": 1,
        "partitions": [
            {"topic": "t", "partition": 0, "replicas": [2, 1]},
            {"topic": "t", "partition": 1, "replicas": [1, 2]},
        ],
    }
    plan = operator.file("plan.json", moves)
    does("topics", "--create", "--topic", "t", "--replica-assignment", "0:1,1:2,2:0", "--config", "retention.ms=60000")
    does("topics", "--create", "--topic", "u", "--partitions", "2", "--replication-factor", "4")
    does(
        "configs", "--alter", "--entity-type", "topics", "--entity-name", "t", "--add-config", "max.message.bytes=2000"
    )
    does("configs", "--describe", "--entity-type", "topics", "--entity-name", "t")
    does("log-dirs", "--describe", "--topic-list", "t")
    does(REASSIGN, "--execute", "--reassignment-json-file", plan)
    with Admin({"bootstrap.servers": cluster.bootstrap_servers}) as admin:
        wait_until(lambda: not admin.list_partition_reassignments(), timeout=120, what="the moves", interval=0.2)
    does(REASSIGN, "--verify", "--reassignment-json-file", plan)
    does(REASSIGN, "--list")
    does(ELECT, "--election-type", "preferred", "--topic", "t", "--partition", "0")
    does("topics", "--describe", "--topic", "t")
    cluster.kill(2)
    cluster.wait_until_known()
    does("topics", "--describe", "--under-replicated-partitions")
    does(ELECT, "--election-type", "preferred", "--topic", "t", "--partition", "0")
    does(REASSIGN, "--execute", "--reassignment-json-file", plan)
    does("topics", "--delete", "--topic", "t")
    does("topics", "--list")
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
