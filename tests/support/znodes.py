"""Snapshots of the znodes of a cluster after each step of a scenario.

`python -m tests.support.znodes` creates tests/golden/znodes/3.9.1.json from a cluster of Apache
Kafka 3.9.1.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from kavka.client.admin import Admin
from kavka.client.admin.types import ConfigResource, ElectionType, NewPartitions, NewTopic
from kavka.common.types import TopicPartition
from tests.support.cluster import ApacheCluster, Cluster
from tests.support.processes import wait_until
from tests.support.zookeeper import ZooKeeper

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "znodes" / "3.9.1.json"

SETTINGS: dict[str, object] = {
    "broker.rack": "r1",
    "auto.leader.rebalance.enable": "false",
    "auto.create.topics.enable": "false",
    # The ISR must not shrink while a snapshot is taken.
    "replica.lag.time.max.ms": 60_000,
}

Node = dict[str, Any]
Snapshot = dict[str, Node]


def snapshots(cluster: Cluster) -> dict[str, Snapshot]:
    """Start the cluster and run the scenario. Return the snapshots by the name of the step. Broker
    0 is the controller in all steps."""
    snapshots_by_step: dict[str, Snapshot] = {}
    cluster.start(0)
    cluster.start(1, 2)
    with _tree(cluster.zookeeper.connect) as tree, Admin({"bootstrap.servers": cluster.bootstrap_servers}) as admin:
        for name, step in _STEPS.items():
            step(cluster, tree, admin)
            snapshots_by_step[name] = snapshot(tree)
    return snapshots_by_step


def snapshot(tree: KazooClient) -> Snapshot:
    """Return all znodes except /zookeeper: their data as text, or None, and whether they are
    ephemeral."""
    znodes: Snapshot = {}

    def add(path: str) -> None:
        with contextlib.suppress(NoNodeError):
            data, stat = tree.get(path)
            if path != "/":
                znodes[path] = {
                    "data": None if data is None else _normalized(path, data.decode()),
                    "ephemeral": bool(stat.ephemeralOwner),
                }
            for child in sorted(tree.get_children(path)):
                child_path = f"{path.rstrip('/')}/{child}"
                if child_path != "/zookeeper":
                    add(child_path)

    add("/")
    return znodes


_REPLACEMENTS = (
    (re.compile(r'("timestamp":)"\d+"'), r'\1"0"'),
    (re.compile(r"(127\.0\.0\.1:)\d+"), r"\g<1>9092"),
    (re.compile(r'("port":)\d+'), r"\g<1>9092"),
    (re.compile(r'("topic_id":)"[\w-]{22}"'), r'\1"AAAAAAAAAAAAAAAAAAAAAA"'),
    (re.compile(r'("version":"1","id":)"[\w-]{22}"'), r'\1"AAAAAAAAAAAAAAAAAAAAAA"'),
)


def _normalized(path: str, data: str) -> str:
    """Replace values that differ from run to run by constants of the same form."""
    for pattern, replacement in _REPLACEMENTS:
        data = pattern.sub(replacement, data)
    if path == "/latest_producer_id_block":
        data = re.sub(r'("broker":)\d', r"\g<1>0", data)
    return data


@contextlib.contextmanager
def _tree(connect: str) -> Iterator[KazooClient]:
    client = KazooClient(connect, timeout=60)
    client.start(30)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def _state(tree: KazooClient, topic: str, partition: int) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads(tree.get(f"/brokers/topics/{topic}/partitions/{partition}/state")[0])
    except NoNodeError:
        return {}
    return document


def _wait_for(tree: KazooClient, topic: str, expected: dict[int, tuple[int, list[int]]]) -> None:
    """Wait until these partitions have the expected leader and ISR."""

    def is_expected() -> bool:
        states = {partition: _state(tree, topic, partition) for partition in expected}
        return all(
            state.get("leader") == expected[partition][0] and sorted(state["isr"]) == sorted(expected[partition][1])
            for partition, state in states.items()
        )

    wait_until(is_expected, timeout=90, what=f"leaders and ISR of {topic}: {expected}", interval=0.1)


def _wait_until_deleted(tree: KazooClient, path: str) -> None:
    wait_until(lambda: tree.exists(path) is None, timeout=90, what=f"deletion of {path}", interval=0.1)


def _do_nothing(_cluster: Cluster, _tree: KazooClient, _admin: Admin) -> None:
    pass


def _create_topics(_cluster: Cluster, tree: KazooClient, admin: Admin) -> None:
    configs = {"retention.ms": "3600000", "cleanup.policy": "compact,delete"}
    admin.create_topics([NewTopic("t", replica_assignments={0: [0, 1], 1: [1, 2], 2: [2, 0]}, configs=configs)])
    admin.create_topics([NewTopic("three", replica_assignments={0: [2, 0, 1]})])
    admin.create_topics([NewTopic("many", replica_assignments={p: [p % 3] for p in range(12)})])
    _wait_for(tree, "t", {0: (0, [0, 1]), 1: (1, [1, 2]), 2: (2, [2, 0])})
    _wait_for(tree, "three", {0: (2, [0, 1, 2])})
    _wait_for(tree, "many", {p: (p % 3, [p % 3]) for p in range(12)})


def _change_settings(_cluster: Cluster, _tree: KazooClient, admin: Admin) -> None:
    admin.incremental_alter_configs({ConfigResource.topic("t"): {"retention.ms": None, "max.message.bytes": "2000000"}})
    admin.incremental_alter_configs({ConfigResource.broker(1): {"log.cleaner.threads": "2"}})
    admin.incremental_alter_configs({ConfigResource.broker(): {"log.retention.ms": "86400000"}})
    admin.incremental_alter_configs({ConfigResource.topic("many"): {"segment.bytes": "1048576"}})
    admin.incremental_alter_configs({ConfigResource.topic("many"): {"segment.bytes": None}})


def _add_partitions(_cluster: Cluster, tree: KazooClient, admin: Admin) -> None:
    admin.create_partitions({"t": NewPartitions(4, [[0, 2]])})
    _wait_for(tree, "t", {3: (0, [0, 2])})


def _allocate_producer_ids(cluster: Cluster, tree: KazooClient, _admin: Admin) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "enable.idempotence": True})
    producer.produce("t", b"v", partition=0)
    assert producer.flush(60) == 0
    wait_until(lambda: bool(tree.get("/latest_producer_id_block")[0]), timeout=30, what="a block of producer ids")


def _kill_broker(cluster: Cluster, tree: KazooClient, _admin: Admin) -> None:
    cluster.kill(2)
    cluster.wait_for_metadata()
    _wait_for(tree, "t", {0: (0, [0, 1]), 1: (1, [1]), 2: (0, [0]), 3: (0, [0])})
    _wait_for(tree, "three", {0: (0, [0, 1])})
    _wait_for(tree, "many", {p: (-1 if p % 3 == 2 else p % 3, [p % 3]) for p in range(12)})


def _start_reassignment(cluster: Cluster, tree: KazooClient, admin: Admin) -> None:
    """Start a reassignment that does not complete, because the target broker is paused."""
    cluster.pause(2)
    admin.alter_partition_reassignments({TopicPartition("t", 0): [2, 0]})
    wait_until(
        lambda: json.loads(tree.get("/brokers/topics/t")[0])["adding_replicas"] == {"0": [2]},
        timeout=60, what="the start of the reassignment",
    )  # fmt: skip


def _delete_topic(_cluster: Cluster, tree: KazooClient, admin: Admin) -> None:
    admin.delete_topics(["many"])
    wait_until(lambda: tree.exists("/admin/delete_topics/many") is not None, timeout=60, what="the deletion marker")
    _wait_for(tree, "many", {p: (-1, [p % 3]) for p in range(12)})


def _restart_broker(cluster: Cluster, tree: KazooClient, _admin: Admin) -> None:
    cluster.start(2)
    _wait_until_deleted(tree, "/admin/delete_topics/many")
    _wait_until_deleted(tree, "/brokers/topics/many")
    _wait_for(tree, "t", {0: (0, [0, 2]), 1: (1, [1, 2]), 2: (0, [0, 2]), 3: (0, [0, 2])})
    _wait_for(tree, "three", {0: (0, [0, 1, 2])})
    wait_until(
        lambda: not json.loads(tree.get("/brokers/topics/t")[0])["removing_replicas"],
        timeout=60,
        what="the end of the reassignment",
    )


def _elect_leaders(_cluster: Cluster, tree: KazooClient, admin: Admin) -> None:
    admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition("t", 0), TopicPartition("three", 0)])
    _wait_for(tree, "t", {0: (2, [0, 2])})
    _wait_for(tree, "three", {0: (2, [0, 1, 2])})


def _stop_broker(cluster: Cluster, tree: KazooClient, _admin: Admin) -> None:
    cluster.stop(1)
    cluster.wait_for_metadata()
    _wait_for(tree, "t", {0: (2, [0, 2]), 1: (2, [2]), 2: (0, [0, 2]), 3: (0, [0, 2])})
    _wait_for(tree, "three", {0: (2, [0, 2])})


_STEPS: dict[str, Callable[[Cluster, KazooClient, Admin], None]] = {
    "started": _do_nothing,
    "topics created": _create_topics,
    "settings changed": _change_settings,
    "partitions added": _add_partitions,
    "producer ids allocated": _allocate_producer_ids,
    "partition being moved": _start_reassignment,
    "broker 2 died": _kill_broker,
    "topic marked for deletion": _delete_topic,
    "broker 2 returned": _restart_broker,
    "preferred leaders elected": _elect_leaders,
    "broker 1 stopped": _stop_broker,
}


def main() -> int:
    with (
        tempfile.TemporaryDirectory() as folder,
        ZooKeeper(Path(folder) / "zookeeper") as zookeeper,
        ApacheCluster(Path(folder) / "cluster", zookeeper, overrides=SETTINGS, start=False) as cluster,
    ):
        snapshots_by_step = snapshots(cluster)
    GOLDEN.parent.mkdir(parents=True, exist_ok=True)
    GOLDEN.write_text(json.dumps(snapshots_by_step, indent=1, ensure_ascii=False) + "\n")
    print(f"{GOLDEN}: {len(snapshots_by_step)} snapshots, {sum(map(len, snapshots_by_step.values()))} znodes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
