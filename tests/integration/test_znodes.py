"""The znodes of a Kavka cluster equal those of Apache Kafka 3.9.1, in every node and field.

The golden copies come from a real cluster (tests/support/znodes.py creates them). Not compared:

- the order of fields in maps by partition or setting, which in Kafka is that of a hash table
- the features in a broker's registration: Kafka 3.9.1 with ZooKeeper has none
- the leader epoch of a topic that is being deleted
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import znodes
from tests.support.cluster import KavkaCluster
from tests.support.zookeeper import ZooKeeper

pytestmark = [pytest.mark.java, pytest.mark.slow]

UNORDERED = ("partitions", "adding_replicas", "removing_replicas", "config")


def content(path: str, node: znodes.Node | None, is_deleted: bool) -> Any:
    """The content of a node that is compared."""
    if node is None:
        return "missing"
    data = node["data"]
    if data is None or not data.startswith("{"):
        return node
    pairs = json.loads(data, object_pairs_hook=list)
    ignored = ("features",) if path.startswith("/brokers/ids/") else ("leader_epoch",) if is_deleted else ()
    return node["ephemeral"], [
        (name, "…" if name in ignored else dict(value) if name in UNORDERED and isinstance(value, list) else value)
        for name, value in pairs
    ]


@pytest.mark.timeout(300)
def test_every_node_after_every_step_equals_that_of_apache_kafka(java_parts: None, tmp_path: Path) -> None:
    golden: dict[str, znodes.Picture] = json.loads(znodes.GOLDEN.read_text())
    with (
        ZooKeeper(tmp_path / "zookeeper") as zookeeper,
        KavkaCluster(tmp_path / "cluster", zookeeper, overrides=znodes.SETTINGS, start=False) as cluster,
    ):
        actual = znodes.snapshots(cluster)
    assert list(actual) == list(golden)
    differences: list[str] = []
    for step, expected in golden.items():
        for path in sorted(expected.keys() | actual[step].keys()):
            is_deleted = path.startswith("/brokers/topics/many/") and "/admin/delete_topics/many" in expected
            apache_node, node = expected.get(path), actual[step].get(path)
            if content(path, apache_node, is_deleted) != content(path, node, is_deleted):
                differences.append(f"{step}: {path}\n  Apache {apache_node}\n  Kavka  {node}")
    assert not differences, "\n".join(differences)
