"""TxnOffsetCommit with a slow transaction coordinator."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kavka.api import txn_offset_commit
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.coordinator.transaction.markers import Marker
from kavka.coordinator.transaction.shard import ProducerIdAndEpoch
from kavka.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.unit.coordinator.transaction.node import OFFSETS, STATE, Node

ID = "an-id"
A = TopicPartition("a", 0)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A node that leads all partitions. `node.hold(STATE)` delays commits in the transaction log
    until `node.release(STATE)`."""
    node = Node(tmp_path)
    node.lead(STATE, flush_messages=1)
    for tp in (OFFSETS, A):
        node.lead(tp)
    return node


def start(node: Node, producer: ProducerIdAndEpoch, version: int = 5) -> Any:
    request = TxnOffsetCommitRequest(
        transactional_id=ID,
        group_id="g",
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        generation_id=-1,
        topics=[
            TxnOffsetCommitRequestTopic(
                name="a", partitions=[TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=5)]
            )
        ],
    )
    services = SimpleNamespace(
        groups=node.groups, transactions=node.transactions, settings=node.settings, metadata_cache=node.cache
    )
    return node.call(
        txn_offset_commit.handle, SimpleNamespace(broker=services, version=version, authorizer=None), request
    )


def code_of(node: Node, pending: Any) -> ErrorCode:
    try:
        response = node.run(pending)
    except KafkaError as error:
        return error.code
    return ErrorCode(response.topics[0].partitions[0].error_code)


@pytest.mark.parametrize(
    ("marker_epoch", "code"),
    [
        # The marker of the offsets' own transaction, which bumped the epoch.
        (1, ErrorCode.INVALID_PRODUCER_EPOCH),
        # A late marker of the previous transaction.
        (0, ErrorCode.NONE),
    ],
)
def test_a_marker_during_the_verification_ends_only_its_transaction(
    node: Node, marker_epoch: int, code: ErrorCode
) -> None:
    producer: ProducerIdAndEpoch = node.run(node.transactions.init_producer(ID, 60_000))
    node.hold(STATE)
    waiting = start(node, producer)
    node.call(waiting.send, None)
    done: list[Any] = []
    marker = Marker(producer.producer_id, marker_epoch, False, 1, 2)
    node.transactions.markers.local.write(marker, [OFFSETS], done.append)
    node.loop.run_ready()
    assert done == [{OFFSETS: ErrorCode.NONE}]
    node.release(STATE)
    assert code_of(node, waiting) is code
    assert node.groups.host("g").shard.offsets.is_unstable("g", "a", 0) is (code is ErrorCode.NONE)
