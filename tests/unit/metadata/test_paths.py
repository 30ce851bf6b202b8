"""Contents of znodes. The bytes were read from an Apache Kafka 3.9.1 cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kavka.common.types import TopicPartition, uuid_text
from kavka.metadata import paths
from kavka.metadata.paths import (
    BrokerRegistration,
    ControllerNode,
    EndPoint,
    MalformedNode,
    PartitionStateNode,
    ProducerIdBlock,
    ReplicaAssignment,
    TopicNode,
)

T1 = TopicPartition("t1", 0)

GOLDEN: list[tuple[bytes, Any, Callable[[Any], bytes], Callable[[bytes], Any]]] = [
    (
        b'{"features":{},"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT","INT":"PLAINTEXT"},'
        b'"endpoints":["PLAINTEXT://localhost:19391","INT://localhost:19392"],"rack":"r1","jmx_port":-1,'
        b'"port":19391,"host":"localhost","version":5,"timestamp":"1794732762160"}',
        BrokerRegistration(
            0,
            (EndPoint("PLAINTEXT", "PLAINTEXT", "localhost", 19391), EndPoint("INT", "PLAINTEXT", "localhost", 19392)),
            1794732762160,
            "r1",
        ),
        BrokerRegistration.encode,
        lambda data: BrokerRegistration.decode(0, data),
    ),
    (
        b'{"features":{},"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},'
        b'"endpoints":["PLAINTEXT://localhost:19391"],"jmx_port":-1,"port":19391,"host":"localhost","version":5,'
        b'"timestamp":"1794732696950"}',
        BrokerRegistration(0, (EndPoint("PLAINTEXT", "PLAINTEXT", "localhost", 19391),), 1794732696950),
        BrokerRegistration.encode,
        lambda data: BrokerRegistration.decode(0, data),
    ),
    (
        b'{"version":2,"brokerid":0,"timestamp":"1794732697032","kraftControllerEpoch":-1}',
        ControllerNode(0, 1794732697032),
        ControllerNode.encode,
        ControllerNode.decode,
    ),
    (b"1", 1, paths.encode_epoch, paths.decode_epoch),
    (
        b'{"partitions":{"0":[0],"1":[0],"2":[0]},"topic_id":"mn0jinagR8WB-SpyGf9w8A","adding_replicas":{},'
        b'"removing_replicas":{},"version":3}',
        TopicNode(
            paths.topic_id_from_text("mn0jinagR8WB-SpyGf9w8A"),
            {0: ReplicaAssignment((0,)), 1: ReplicaAssignment((0,)), 2: ReplicaAssignment((0,))},
        ),
        TopicNode.encode,
        lambda data: TopicNode.decode("t1", data),
    ),
    (
        b'{"controller_epoch":1,"leader":-1,"version":1,"leader_epoch":1,"isr":[0]}',
        PartitionStateNode(-1, 1, (0,), 1),
        PartitionStateNode.encode,
        lambda data: PartitionStateNode.decode(T1, data),
    ),
    (
        b'{"version":1,"config":{"cleanup.policy":"compact","retention.ms":"1000"}}',
        {"cleanup.policy": "compact", "retention.ms": "1000"},
        paths.encode_config,
        paths.decode_config,
    ),
    (
        b'{"version":2,"entity_path":"brokers/<default>"}',
        "brokers/<default>",
        paths.encode_config_change,
        paths.decode_config_change,
    ),
    (
        b'{"version":"1","id":"C_AtECe4SGyv8WgkJB6nmA"}',
        "C_AtECe4SGyv8WgkJB6nmA",
        paths.encode_cluster_id,
        paths.decode_cluster_id,
    ),
    (
        b'{"version":1,"broker":0,"block_start":"0","block_end":"999"}',
        ProducerIdBlock(0, 0, 999),
        ProducerIdBlock.encode,
        ProducerIdBlock.decode,
    ),
]


@pytest.mark.parametrize(("data", "value", "encode", "decode"), GOLDEN, ids=[g[0][:40].decode() for g in GOLDEN])
def test_znode_bytes_match_kafka(data: bytes, value: Any, encode: Any, decode: Any) -> None:
    assert encode(value) == data
    assert decode(data) == value


def test_feature_znode_matches_kafka() -> None:
    assert paths.encode_features({}) == b'{"features":{},"version":2,"status":1}'
    assert paths.decode_features(b'{"features":{"f":3},"version":2,"status":0}') == ({"f": 3}, False)


def test_paths_match_kafka() -> None:
    assert paths.broker(3) == "/brokers/ids/3"
    assert paths.partition_state(TopicPartition("t", 7)) == "/brokers/topics/t/partitions/7/state"
    assert paths.topic_config("t") == "/config/topics/t"
    assert paths.broker_config(None) == "/config/brokers/<default>"
    assert paths.broker_config(2) == "/config/brokers/2"
    assert paths.delete_topic("t") == "/admin/delete_topics/t"
    assert paths.consumer_offset("g", TopicPartition("t", 0)) == "/consumers/g/offsets/t/0"


def test_reassigned_partition_has_adding_and_removing_replicas() -> None:
    node = TopicNode(paths.random_topic_id(), {0: ReplicaAssignment((2, 1, 0), (2,), (0,)), 1: ReplicaAssignment((1,))})
    data = node.encode()
    assert b'"adding_replicas":{"0":[2]},"removing_replicas":{"0":[0]}' in data
    assert TopicNode.decode("t", data) == node
    assert node.partitions[0].is_being_reassigned and not node.partitions[1].is_being_reassigned


def test_znodes_of_old_releases_are_decoded() -> None:
    old_topic = TopicNode.decode("t", b'{"version":1,"partitions":{"1":[1,0],"0":[0,1]}}')
    assert old_topic == TopicNode(None, {0: ReplicaAssignment((0, 1)), 1: ReplicaAssignment((1, 0))})
    old_broker = BrokerRegistration.decode(1, b'{"version":1,"host":"h","port":9092,"jmx_port":9999,"timestamp":"5"}')
    assert old_broker.end_points == (EndPoint("PLAINTEXT", "PLAINTEXT", "h", 9092),)
    change = b'{"version":1,"entity_type":"topics","entity_name":"t"}'
    assert paths.decode_config_change(change) == "topics/t"


def test_broker_without_plaintext_has_no_host_for_old_clients() -> None:
    data = BrokerRegistration(0, (EndPoint("TLS", "SSL", "::1", 9093),), 1).encode()
    assert b'"endpoints":["TLS://[::1]:9093"]' in data
    assert b'"port":-1,"host":null' in data
    assert BrokerRegistration.decode(0, data).end_points == (EndPoint("TLS", "SSL", "::1", 9093),)


def test_leader_recovery_state_is_written_only_while_recovering() -> None:
    recovering = PartitionStateNode(0, 1, (0,), 1, paths.RECOVERING)
    assert b'"leader_recovery_state":1' in recovering.encode()
    assert PartitionStateNode.decode(T1, recovering.encode()) == recovering


def test_partition_lists_and_reassignments_round_trip() -> None:
    tps = [TopicPartition("a", 0), TopicPartition("b", 3)]
    assert paths.encode_partitions(tps[:1]) == b'{"version":1,"partitions":[{"topic":"a","partition":0}]}'
    assert paths.decode_partitions(paths.encode_partitions(tps)) == tps
    moves = {tps[0]: (1, 2), tps[1]: (0,)}
    assert paths.decode_reassignment(paths.encode_reassignment(moves)) == moves
    assert paths.decode_log_dir_event(paths.encode_log_dir_event(4)) == 4


def test_empty_producer_id_block_decodes_to_none() -> None:
    assert ProducerIdBlock.decode(None) is None


@pytest.mark.parametrize("data", [None, b"", b"[]", b"{}", b"\xff", b'{"version":1,"leader":"x"}'])
def test_malformed_data_raises_malformed_node(data: bytes | None) -> None:
    with pytest.raises(MalformedNode):
        PartitionStateNode.decode(T1, data)
    with pytest.raises(MalformedNode):
        BrokerRegistration.decode(0, data)
    with pytest.raises(MalformedNode):
        paths.decode_partitions(data)


@given(st.binary(max_size=60))
def test_arbitrary_bytes_decode_or_raise_malformed_node(data: bytes) -> None:
    for decode in (
        lambda d: TopicNode.decode("t", d),
        lambda d: PartitionStateNode.decode(T1, d),
        lambda d: BrokerRegistration.decode(0, d),
        paths.decode_epoch,
        ProducerIdBlock.decode,
    ):
        with contextlib.suppress(MalformedNode):
            decode(data)


def test_text_of_topic_id_does_not_start_with_dash() -> None:
    ids = {paths.random_topic_id() for _ in range(500)}
    assert len(ids) == 500
    for topic_id in ids:
        text = uuid_text(topic_id)
        assert len(text) == 22 and not text.startswith("-")
        assert paths.topic_id_from_text(text) == topic_id


def test_names_are_sanitized_as_in_kafka() -> None:
    assert paths.sanitize("a b*c/d~") == "a%20b%2Ac%2Fd%7E"
    assert paths.desanitize(paths.sanitize("žluť/ü *")) == "žluť/ü *"
