"""The znodes of our cluster equal those of Apache Kafka 3.9.1: node for node, field for field.

The golden copies come from a real cluster (tests/support/znodes.py creates them). Not compared:

- the order of fields in maps by partition or setting: Kafka's is that of a hash table
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

HASHED = ("partitions", "adding_replicas", "removing_replicas", "config")


def content(path: str, node: znodes.Node | None, deleted: bool) -> Any:
    if node is None:
        return "nothing"
    data = node["data"]
    if data is None or not data.startswith("{"):
        return node
    pairs = json.loads(data, object_pairs_hook=list)
    left_out = ("features",) if path.startswith("/brokers/ids/") else ("leader_epoch",) if deleted else ()
    return node["ephemeral"], [
        (name, "…" if name in left_out else dict(value) if name in HASHED and isinstance(value, list) else value)
        for name, value in pairs
    ]


@pytest.mark.timeout(300)
def test_every_node_after_every_step_is_as_apaches_cluster_has_it(java_parts: None, tmp_path: Path) -> None:
    golden: dict[str, znodes.Picture] = json.loads(znodes.GOLDEN.read_text())
    with (
        ZooKeeper(tmp_path / "zookeeper") as zookeeper,
        KavkaCluster(tmp_path / "cluster", zookeeper, overrides=znodes.SETTINGS, start=False) as cluster,
    ):
        ours = znodes.snapshots(cluster)
    assert list(ours) == list(golden)
    different: list[str] = []
    for step, expected in golden.items():
        for path in sorted(expected.keys() | ours[step].keys()):
            deleted = path.startswith("/brokers/topics/many/") and "/admin/delete_topics/many" in expected
            theirs, mine = expected.get(path), ours[step].get(path)
            if content(path, theirs, deleted) != content(path, mine, deleted):
                different.append(f"{step}: {path}\n  Apache {theirs}\n  Kavka  {mine}")
    assert not different, "\n".join(different)
