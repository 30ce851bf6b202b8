"""Produce in a transaction: which partitions the producer may write to, also with a slow
coordinator."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kavka.api import produce
from kavka.api.produce import ConnectionMustClose
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.coordinator.transaction.markers import Marker
from kavka.coordinator.transaction.shard import ProducerIdAndEpoch
from kavka.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kavka.storage.producer_state import NO_PRODUCER
from tests.support.logs import build, stored_records
from tests.unit.coordinator.transaction.node import STATE, Node

ID = "an-id"
A, B = TopicPartition("a", 0), TopicPartition("a", 1)
NONE = ErrorCode.NONE


class Broker:
    def __init__(self, node: Node) -> None:
        self.node = node

    def init(self) -> ProducerIdAndEpoch:
        producer = self.node.run(self.node.transactions.init_producer(ID, 60_000))
        assert isinstance(producer, ProducerIdAndEpoch)
        return producer

    def request(
        self,
        producer: ProducerIdAndEpoch,
        *partitions: TopicPartition,
        sequence: int = 0,
        acks: int = -1,
        transactional: bool = True,
        name: str | None = ID,
        value: bytes = b"x",
    ) -> ProduceRequest:
        batches = [
            PartitionProduceData(
                index=tp.partition,
                records=memoryview(
                    build(
                        [(None, value)],
                        self.node.clock.now_ms(),
                        producer_id=producer.producer_id,
                        producer_epoch=producer.epoch,
                        base_sequence=sequence,
                        transactional=transactional,
                    )
                ),
            )
            for tp in partitions
        ]
        return ProduceRequest(
            transactional_id=name,
            acks=acks,
            timeout_ms=1000,
            topic_data=[TopicProduceData(name=partitions[0].topic, partition_data=batches)],
        )

    def start(self, request: ProduceRequest, version: int = 12) -> Any:
        node = self.node
        services = SimpleNamespace(
            replica_manager=node.replicas,
            transactions=node.transactions,
            settings=node.settings,
            metadata_cache=node.cache,
        )
        ctx = SimpleNamespace(broker=services, version=version, listener="PLAINTEXT", authorizer=None)
        return node.call(produce.handle, ctx, request)

    def send(self, request: ProduceRequest, version: int = 12) -> list[ErrorCode]:
        """The error codes of the response, which must be immediate."""
        response = self.start(request, version)
        assert not asyncio.iscoroutine(response) and not asyncio.isfuture(response)
        return codes(response)

    def values(self, tp: TopicPartition) -> int:
        return sum(record.value == b"x" for record in stored_records(self.node.log(tp)))


def codes(response: Any) -> list[ErrorCode]:
    return [ErrorCode(result.error_code) for result in response.responses[0].partition_responses]


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    node = Node(tmp_path)
    for tp in (STATE, A, B):
        node.lead(tp)
    return Broker(node)


@pytest.fixture
def slow(tmp_path: Path) -> Broker:
    """A broker whose coordinator's log is committed only when a test releases it."""
    node = Node(tmp_path)
    node.lead(STATE, flush_messages=1)
    for tp in (A, B):
        node.lead(tp)
    return Broker(node)


def test_a_single_node_adds_a_partition_without_waiting(broker: Broker) -> None:
    producer = broker.init()
    assert broker.send(broker.request(producer, A, B)) == [NONE, NONE]
    assert broker.node.state(ID) == "Ongoing"
    assert (broker.values(A), broker.values(B)) == (1, 1)
    length = broker.node.log(STATE).end_offset
    assert broker.send(broker.request(producer, A, sequence=1)) == [NONE]
    assert broker.node.log(STATE).end_offset == length, "a partition is verified once"


def test_the_admission_of_a_producer_ends_with_its_request(broker: Broker) -> None:
    producer = broker.init()
    assert broker.send(broker.request(producer, A)) == [NONE]
    for tp in (A, B):
        assert broker.node.log(tp).producer_states.admitted_producer_id == NO_PRODUCER
    refused = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert broker.send(broker.request(producer, B, name=None)) == [refused]
    assert broker.values(B) == 0


def test_admitted_partitions_are_written_while_others_are_refused(broker: Broker) -> None:
    producer = broker.init()
    broker.node.run(broker.node.transactions.add_partitions(ID, producer.producer_id, producer.epoch, [A]))
    assert broker.send(broker.request(producer, A, B), version=11) == [NONE, ErrorCode.TRANSACTION_ABORTABLE]
    assert (broker.values(A), broker.values(B)) == (1, 0)
    unknown = TopicPartition("a", 9)
    codes = broker.send(broker.request(producer, unknown, A, sequence=1))
    assert codes == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NONE]


def test_without_verification_older_producers_are_admitted(broker: Broker) -> None:
    producer = broker.init()
    assert broker.send(broker.request(producer, A), version=9) == [ErrorCode.INVALID_TXN_STATE]
    broker.node.settings.transaction_partition_verification_enable = False
    assert broker.send(broker.request(producer, A), version=9) == [NONE]
    assert broker.send(broker.request(producer, B), version=12) == [NONE]
    partitions = broker.node.transactions.host(ID).shard.transactions[ID].partitions
    assert partitions == {B}, "from v12 on, partitions are added even without verification"


def test_the_batches_of_a_request_must_have_the_same_producer(broker: Broker) -> None:
    producer = broker.init()
    request = broker.request(producer, A)
    other = broker.request(ProducerIdAndEpoch(producer.producer_id + 1, 0), B)
    request.topic_data[0].partition_data += other.topic_data[0].partition_data
    assert broker.send(request) == [NONE, ErrorCode.INVALID_PRODUCER_ID_MAPPING]
    nobody = broker.request(ProducerIdAndEpoch(-1, -1), B, sequence=-1)
    assert broker.send(nobody) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]


def test_a_coordinator_that_moved_or_loads_is_a_retriable_error(broker: Broker) -> None:
    producer = broker.init()
    broker.node.resign(STATE)
    for version in (9, 12):
        assert broker.send(broker.request(producer, A), version) == [ErrorCode.NOT_ENOUGH_REPLICAS]
    assert broker.values(A) == 0


def test_a_coordinator_on_another_broker_verifies_the_partitions(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = broker.init()
    broker.node.resign(STATE)
    verifications = []

    async def add_or_verify(*args: Any) -> frozenset[TopicPartition]:
        verifications.append(args)
        return frozenset({B})

    monkeypatch.setattr(broker.node.channel, "add_or_verify", add_or_verify)
    response = broker.node.run(broker.start(broker.request(producer, A, B)))
    assert codes(response) == [NONE, ErrorCode.TRANSACTION_ABORTABLE]
    assert verifications == [(5, ID, producer.producer_id, 0, [A, B], True)]


def test_partitions_without_transactional_batches_are_not_verified(broker: Broker) -> None:
    producer = broker.init()
    assert broker.send(broker.request(producer, A, transactional=False)) == [NONE]
    assert broker.node.state(ID) == "Empty"


# ---- while the coordinator's log is not committed


def test_records_are_written_after_the_coordinator_has_added_their_partition(slow: Broker) -> None:
    producer = slow.init()
    slow.node.hold(STATE)
    request = slow.request(producer, A)
    received = request.topic_data[0].partition_data[0].records
    waiting = slow.start(request)
    assert asyncio.iscoroutine(waiting), "the connection's next request waits"
    assert slow.node.call(waiting.send, None) is not None
    assert received is not None
    received[:] = bytes(len(received))
    assert slow.values(A) == 0
    slow.node.release(STATE)
    response = slow.node.run(waiting)
    assert codes(response) == [NONE]
    assert slow.values(A) == 1, "the records were copied, because the receive buffer is reused"


def test_nothing_is_written_to_a_partition_that_cannot_be_added(slow: Broker) -> None:
    producer = slow.init()
    slow.node.hold(STATE)
    waiting = slow.start(slow.request(producer, A))
    slow.node.call(waiting.send, None)
    slow.node.resign(STATE)
    response = slow.node.run(waiting)
    assert codes(response) == [ErrorCode.NOT_ENOUGH_REPLICAS]
    assert slow.values(A) == 0
    assert slow.node.log(A).producer_states.admitted_producer_id == NO_PRODUCER


@pytest.mark.parametrize(
    ("marker_epoch", "code"),
    [
        # The marker of the records' own transaction, which bumped the epoch.
        (1, ErrorCode.INVALID_PRODUCER_EPOCH),
        # A late marker of the previous transaction.
        (0, NONE),
    ],
)
def test_a_marker_during_the_verification_ends_only_its_transaction(
    slow: Broker, marker_epoch: int, code: ErrorCode
) -> None:
    producer = slow.init()
    slow.node.hold(STATE)
    waiting = slow.start(slow.request(producer, A))
    slow.node.call(waiting.send, None)
    done: list[Any] = []
    slow.node.transactions.markers.local.write(
        Marker(producer.producer_id, marker_epoch, False, 1, 2), [A], done.append
    )
    assert done == [{A: NONE}]
    slow.node.release(STATE)
    assert codes(slow.node.run(waiting)) == [code]
    assert slow.values(A) == (1 if code is NONE else 0)


def test_acks_0_does_not_wait_for_the_coordinator(slow: Broker) -> None:
    producer = slow.init()
    slow.node.hold(STATE)
    with pytest.raises(ConnectionMustClose):
        slow.start(slow.request(producer, A, acks=0))
    assert slow.values(A) == 0


def test_a_produce_waits_while_the_previous_transaction_ends(broker: Broker) -> None:
    node = broker.node
    producer = broker.init()
    assert broker.send(broker.request(producer, A)) == [NONE]
    node.replicas.partitions[A].leader_id = -1
    node.publish_leader(A, -1)
    following = node.run(
        node.transactions.end(ID, producer.producer_id, producer.epoch, True, 2, lambda outcome: outcome)
    )
    assert node.state(ID) == "PrepareCommit"
    response = node.run(broker.start(broker.request(following, B)), wait_ms=500)
    assert codes(response) == [ErrorCode.CONCURRENT_TRANSACTIONS]
    assert broker.send(broker.request(following, B), version=11) == [ErrorCode.NOT_ENOUGH_REPLICAS]
    waiting = broker.start(broker.request(following, B))
    node.lead(A, epoch=2)
    node.loop.advance(1100)
    assert node.state(ID) == "CompleteCommit"
    assert codes(node.run(waiting, wait_ms=500)) == [NONE]
    assert broker.values(B) == 1


def test_an_error_of_the_coordinator_is_set_for_every_partition_to_verify(broker: Broker) -> None:
    producer = broker.init()
    broker.init()
    assert broker.send(broker.request(producer, A, B)) == [ErrorCode.INVALID_PRODUCER_EPOCH] * 2
    with pytest.raises(KafkaError):
        broker.node.transactions.add_or_verify("another", producer.producer_id, 0, [A], add=True)
