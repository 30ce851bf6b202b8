"""Each node of a real cluster of Apache Kafka 3.9.1, read and written again by us: the same bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from kavka.common.types import TopicPartition
from kavka.metadata import paths

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "znodes" / "3.9.1.json"

Again = Callable[[re.Match[str], bytes], bytes]


def _producer_id_block(_found: re.Match[str], data: bytes) -> bytes:
    block = paths.ProducerIdBlock.decode(data)
    assert block is not None
    return block.encode()


KINDS: tuple[tuple[str, Again], ...] = (
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
    found = {
        (path, node["data"]) for picture in json.loads(GOLDEN.read_text()).values() for path, node in picture.items()
    }
    return sorted((path, data) for path, data in found if data is not None)


@pytest.mark.parametrize(("path", "data"), nodes())
def test_a_node_of_apaches_is_written_again_as_it_was_read(path: str, data: str) -> None:
    for pattern, again in KINDS:
        if found := re.fullmatch(pattern, path):
            written = again(found, data.encode()).decode()
            if path == "/brokers/topics/many":
                # Of a map by partition, Kafka's order beyond four is that of a hash table.
                assert json.loads(written) == json.loads(data)
                written, data = re.sub(r'"partitions":\{.*?\}', "", written), re.sub(r'"partitions":\{.*?\}', "", data)
            assert written == data
            return
    pytest.fail(f"nobody here knows what {path} is")


def test_the_nodes_that_are_always_there_are_those_of_a_new_cluster() -> None:
    new = json.loads(GOLDEN.read_text())["started"]
    empty = {path for path, node in new.items() if node["data"] is None}
    expected = {path for always in paths.ALWAYS_THERE for path in _with_parents(always)}
    assert empty == expected | {"/cluster"}


def _with_parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[: end + 1]) for end in range(1, len(parts))]
