"""Every znode of an Apache Kafka 3.9.1 cluster is decoded and encoded to the same bytes. Only the
order of the partitions of a topic with more than four partitions may differ."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from kavka.common.types import TopicPartition
from kavka.metadata import paths

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "znodes" / "3.9.1.json"

Reencode = Callable[[re.Match[str], bytes], bytes]


def _producer_id_block(_match: re.Match[str], data: bytes) -> bytes:
    block = paths.ProducerIdBlock.decode(data)
    assert block is not None
    return block.encode()


KINDS: tuple[tuple[str, Reencode], ...] = (
    (r"/brokers/ids/(\d+)", lambda m, data: paths.BrokerRegistration.decode(int(m[1]), data).encode()),
    (r"/brokers/topics/([^/]+)", lambda m, data: paths.TopicNode.decode(m[1], data).encode()),
    (
        r"/brokers/topics/([^/]+)/partitions/(\d+)/state",
        lambda m, data: paths.PartitionStateNode.decode(TopicPartition(m[1], int(m[2])), data).encode(),
    ),
    (r"/cluster/id", lambda m, data: paths.encode_cluster_id(paths.decode_cluster_id(data))),
    (r"/config/(?:topics|brokers)/[^/]+", lambda m, data: paths.encode_config(paths.decode_config(data))),
    (
        r"/config/changes/config_change_\d{10}",
        lambda m, data: paths.encode_config_change(paths.decode_config_change(data)),
    ),
    (r"/controller", lambda m, data: paths.ControllerNode.decode(data).encode()),
    (r"/controller_epoch", lambda m, data: paths.encode_epoch(paths.decode_epoch(data))),
    (r"/latest_producer_id_block", _producer_id_block),
    (r"/feature", lambda m, data: paths.encode_features(*paths.decode_features(data))),
)


def nodes() -> list[tuple[str, str]]:
    snapshots = json.loads(GOLDEN.read_text()).values()
    contents = {(path, node["data"]) for snapshot in snapshots for path, node in snapshot.items()}
    return sorted((path, data) for path, data in contents if data is not None)


@pytest.mark.parametrize(("path", "data"), nodes())
def test_znode_of_apache_kafka_round_trips(path: str, data: str) -> None:
    for pattern, reencode in KINDS:
        if match := re.fullmatch(pattern, path):
            encoded = reencode(match, data.encode()).decode()
            if path == "/brokers/topics/many":
                # Kafka writes maps of more than four partitions in the order of a hash table.
                assert json.loads(encoded) == json.loads(data)
                encoded, data = (re.sub(r'"partitions":\{.*?\}', "", text) for text in (encoded, data))
            assert encoded == data
            return
    pytest.fail(f"unknown path {path}")


def test_persistent_paths_are_those_of_a_new_cluster() -> None:
    new_cluster = json.loads(GOLDEN.read_text())["started"]
    empty = {path for path, node in new_cluster.items() if node["data"] is None}
    expected = {path for persistent in paths.PERSISTENT_PATHS for path in _with_parents(persistent)}
    assert empty == expected | {"/cluster"}


def _with_parents(path: str) -> list[str]:
    names = path.split("/")
    return ["/".join(names[: end + 1]) for end in range(1, len(names))]
