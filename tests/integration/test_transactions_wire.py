"""Every request of transactions in every version, valid and invalid: the error codes equal those of
Kafka, and an invalid request changes nothing."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from kavka.common.errors import ErrorCode
from kavka.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from kavka.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from kavka.protocol.messages.api_versions import ApiVersionsRequest
from kavka.protocol.messages.describe_transactions import DescribeTransactionsRequest
from kavka.protocol.messages.end_txn import EndTxnRequest
from kavka.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kavka.protocol.messages.find_coordinator import FindCoordinatorRequest
from kavka.protocol.messages.init_producer_id import InitProducerIdRequest
from kavka.protocol.messages.list_transactions import ListTransactionsRequest
from kavka.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from kavka.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from kavka.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kavka.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from kavka.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from kavka.records.builder import BatchBuilder
from kavka.records.record import Record
from tests.support import wire
from tests.support.messages import Messages
from tests.support.processes import wait_until
from tests.support.targets import KAVKA, Target

pytestmark = pytest.mark.timeout(60)

NONE = ErrorCode.NONE
ADDS_IMPLICITLY = 12


class Producer(NamedTuple):
    id: int
    epoch: int


class Broker:
    """Sends the requests of a transaction. Each method returns error codes."""

    def __init__(self, messages: Messages, topic: str, name: str) -> None:
        self.messages = messages
        self.call = messages.call
        self.topic = topic
        self.name = name
        self.group = f"group-{name}"

    def find(self, version: int = 4, key: str | None = None, kind: int = 1) -> Any:
        if version < 4:
            return self.call(FindCoordinatorRequest(key=key or self.name, key_type=kind), version)
        request = FindCoordinatorRequest(coordinator_keys=[key or self.name], key_type=kind)
        return self.call(request, version).coordinators[0]

    def init(
        self, version: int = 5, name: str | None = "", timeout: int = 60_000, of: Producer = Producer(-1, -1)
    ) -> tuple[ErrorCode, Producer]:
        request = InitProducerIdRequest(
            transactional_id=self.name if name == "" else name, transaction_timeout_ms=timeout
        )
        if version >= 3:
            request.producer_id, request.producer_epoch = of
        response = self.call(request, version)
        return ErrorCode(response.error_code), Producer(response.producer_id, response.producer_epoch)

    def ready(self) -> Producer:
        """Waits for both coordinators, and returns an initialised producer."""
        for kind, key in ((1, self.name), (0, self.group)):
            wait_until(
                lambda kind=kind, key=key: self.find(4, key, kind).error_code == 0, timeout=30, what="a coordinator"
            )
        wait_until(lambda: self.init(5, f"{self.name}-probe")[0] is NONE, timeout=30, what="the coordinator's log")
        producers: list[Producer] = []

        def is_initialised() -> bool:
            code, producer = self.init()
            producers.append(producer)
            return code is NONE

        wait_until(is_initialised, timeout=30, what="a producer id")
        return producers[-1]

    def add(
        self, producer: Producer, partitions: dict[str, list[int]], version: int = 3, name: str | None = None
    ) -> dict[tuple[str, int], ErrorCode]:
        topics = [AddPartitionsToTxnTopic(name=topic, partitions=partition) for topic, partition in partitions.items()]
        name = self.name if name is None else name
        response = self.call(
            AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=name,
                v3_and_below_producer_id=producer.id,
                v3_and_below_producer_epoch=producer.epoch,
                v3_and_below_topics=topics,
            ),
            version,
        )
        return _by_partition(response.results_by_topic_v3_and_below)

    def add_many(self, *transactions: AddPartitionsToTxnTransaction, version: int = 5) -> dict[str, Any]:
        response = self.call(AddPartitionsToTxnRequest(transactions=list(transactions)), version)
        assert response.error_code == 0
        return {
            result.transactional_id: _by_partition(result.topic_results) for result in response.results_by_transaction
        }

    def add_offsets(self, producer: Producer, version: int = 3, name: str | None = None) -> ErrorCode:
        response = self.call(
            AddOffsetsToTxnRequest(
                transactional_id=self.name if name is None else name,
                producer_id=producer.id,
                producer_epoch=producer.epoch,
                group_id=self.group,
            ),
            version,
        )
        return ErrorCode(response.error_code)

    def commit_offset(
        self,
        producer: Producer,
        offset: int = 7,
        version: int = 3,
        topic: str | None = None,
        partition: int = 0,
        **member: Any,
    ) -> ErrorCode:
        request = TxnOffsetCommitRequest(
            transactional_id=self.name,
            group_id=self.group,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            topics=[
                TxnOffsetCommitRequestTopic(
                    name=topic or self.topic,
                    partitions=[
                        TxnOffsetCommitRequestPartition(
                            partition_index=partition, committed_offset=offset, committed_metadata=""
                        )
                    ],
                )
            ],
            **member,
        )
        return ErrorCode(self.call(request, version).topics[0].partitions[0].error_code)

    def committed_offset(self) -> int:
        topics = [OffsetFetchRequestTopic(name=self.topic, partition_indexes=[0])]
        response = self.call(OffsetFetchRequest(group_id=self.group, topics=topics), 5)
        return int(response.topics[0].partitions[0].committed_offset)

    def produce(
        self,
        producer: Producer,
        sequence: int = 0,
        version: int = 11,
        partition: int = 0,
        name: str | None = "",
        transactional: bool = True,
    ) -> ErrorCode:
        builder = BatchBuilder(
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
        builder.append(Record(timestamp=1_700_000_000_000, key=None, value=b"value"))
        request = ProduceRequest(
            transactional_id=self.name if name == "" else name,
            acks=-1,
            timeout_ms=10_000,
            topic_data=[
                TopicProduceData(
                    name=self.topic,
                    topic_id=self.topic_id(),
                    partition_data=[PartitionProduceData(index=partition, records=builder.build())],
                )
            ],
        )
        return ErrorCode(self.call(request, version).responses[0].partition_responses[0].error_code)

    def topic_id(self) -> uuid.UUID:
        response = self.call(MetadataRequest(topics=[MetadataRequestTopic(name=self.topic)]), 12)
        topic_id: uuid.UUID = response.topics[0].topic_id
        return topic_id

    def end(
        self, producer: Producer, commit: bool, version: int = 4, name: str | None = None
    ) -> tuple[ErrorCode, Producer]:
        response = self.call(
            EndTxnRequest(
                transactional_id=self.name if name is None else name,
                producer_id=producer.id,
                producer_epoch=producer.epoch,
                committed=commit,
            ),
            version,
        )
        return ErrorCode(response.error_code), Producer(response.producer_id, response.producer_epoch)

    def end_and_wait(self, producer: Producer, commit: bool, version: int = 4) -> Producer:
        """Ends the transaction and waits for its markers: Kafka responds before they are written.
        Returns the producer for the next transaction."""
        code, next_producer = self.end(producer, commit, version)
        assert code is NONE
        wait_until(lambda: self.state().startswith("Complete"), timeout=10, what="the end of the transaction")
        return next_producer

    def described(self, name: str | None = None) -> Any:
        request = DescribeTransactionsRequest(transactional_ids=[self.name if name is None else name])
        return self.call(request, 0).transaction_states[0]

    def state(self) -> str:
        return str(self.described().transaction_state)

    def offsets(self, partition: int = 0) -> tuple[int, int, int]:
        """Returns (high watermark, last stable offset, number of aborted transactions)."""
        partition_request = FetchPartition(partition=partition, fetch_offset=0, partition_max_bytes=1 << 20)
        request = FetchRequest(isolation_level=1, topics=[FetchTopic(topic=self.topic, partitions=[partition_request])])
        data = self.call(request, 11).responses[0].partitions[0]
        return data.high_watermark, data.last_stable_offset, len(data.aborted_transactions or [])


def _by_partition(topics: Any) -> dict[tuple[str, int], ErrorCode]:
    return {
        (topic.name, result.partition_index): ErrorCode(result.partition_error_code)
        for topic in topics
        for result in topic.results_by_partition
    }


@pytest.fixture
def broker(target: Target, topic: str) -> Iterator[Broker]:
    assert wire.create_topic(target.address, topic, 2) == 0
    with Messages(target.address) as messages:
        yield Broker(messages, topic, f"id-{uuid.uuid4().hex[:10]}")


@pytest.fixture
def producer(broker: Broker) -> Producer:
    return broker.ready()


# ---- features and coordinators


def test_transaction_version_2_is_announced_as_a_feature(broker: Broker) -> None:
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    for version in (3, 4):
        response = broker.call(request, version)
        finalized = {feature.name: feature.max_version_level for feature in response.finalized_features}
        assert finalized["transaction.version"] == 2
        assert response.finalized_features_epoch >= 0
        supported = {
            feature.name: (feature.min_version, feature.max_version) for feature in response.supported_features
        }
        # Versions before 4 cannot represent a minimum level of 0.
        assert supported.get("transaction.version") == ((0, 2) if version == 4 else None)


@pytest.mark.parametrize("version", range(1, 7))
def test_the_coordinator_of_an_id_is_found(broker: Broker, producer: Producer, version: int) -> None:
    coordinator = broker.find(version)
    assert (coordinator.error_code, coordinator.port) == (0, broker.messages._socket.getpeername()[1])


# ---- initialising


@pytest.mark.parametrize("version", range(6))
def test_an_id_is_initialised_again_with_a_higher_epoch(broker: Broker, producer: Producer, version: int) -> None:
    assert broker.init(version) == (NONE, Producer(producer.id, producer.epoch + 1))


@pytest.mark.parametrize("version", range(6))
def test_each_producer_without_a_transactional_id_gets_a_new_producer_id(
    broker: Broker, producer: Producer, version: int
) -> None:
    results = [broker.init(version, None, 0) for _ in range(3)]
    assert {code for code, _ in results} == {NONE}
    assert len({producer.id for _, producer in results}) == 3
    assert {producer.epoch for _, producer in results} == {0}


def test_invalid_init_producer_id_requests_are_rejected(broker: Broker, producer: Producer) -> None:
    no_producer = Producer(-1, -1)
    assert broker.init(name=None, of=Producer(5, -1)) == (ErrorCode.INVALID_REQUEST, no_producer)
    assert broker.init(of=Producer(-1, 3)) == (ErrorCode.INVALID_REQUEST, no_producer)
    assert broker.init(of=Producer(producer.id, -1)) == (ErrorCode.INVALID_REQUEST, no_producer)
    assert broker.init(timeout=0) == (ErrorCode.INVALID_TRANSACTION_TIMEOUT, no_producer)
    assert broker.init(timeout=-1) == (ErrorCode.INVALID_TRANSACTION_TIMEOUT, no_producer)
    assert broker.init(timeout=900_001) == (ErrorCode.INVALID_TRANSACTION_TIMEOUT, no_producer)
    invalid = Producer(producer.id, producer.epoch + 7)
    assert broker.init(4, of=invalid) == (ErrorCode.PRODUCER_FENCED, no_producer)
    assert broker.init(3, of=invalid) == (ErrorCode.INVALID_PRODUCER_EPOCH, no_producer)
    assert broker.described().producer_epoch == producer.epoch


def test_init_producer_id_aborts_an_open_transaction(broker: Broker, producer: Producer) -> None:
    broker.add(producer, {broker.topic: [0]})
    assert broker.produce(producer) is NONE
    assert broker.init()[0] is ErrorCode.CONCURRENT_TRANSACTIONS
    wait_until(lambda: broker.init()[0] is NONE, timeout=10, what="the aborted transaction")
    assert broker.offsets() == (2, 2, 1)
    assert broker.produce(producer, 1) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert broker.end(producer, True)[0] is ErrorCode.PRODUCER_FENCED
    assert broker.end(producer, True, 1)[0] is ErrorCode.INVALID_PRODUCER_EPOCH


# ---- partitions


@pytest.mark.parametrize("version", range(4))
def test_partitions_are_added(broker: Broker, producer: Producer, version: int) -> None:
    expected = {(broker.topic, 0): NONE, (broker.topic, 1): NONE}
    assert broker.add(producer, {broker.topic: [0, 1]}, version) == expected
    assert broker.add(producer, {broker.topic: [0, 1]}, version) == expected, "a repeated request changes nothing"
    description = broker.described()
    assert (description.transaction_state, description.producer_id, description.producer_epoch) == (
        "Ongoing",
        *producer,
    )
    assert sorted(description.topics[0].partitions) == [0, 1]


@pytest.mark.parametrize("version", [0, 3])
def test_no_partition_is_added_if_any_is_unknown(broker: Broker, producer: Producer, version: int) -> None:
    unknown, not_attempted = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OPERATION_NOT_ATTEMPTED
    results = broker.add(producer, {broker.topic: [0, 9], "nowhere": [0]}, version)
    assert results == {(broker.topic, 0): not_attempted, (broker.topic, 9): unknown, ("nowhere", 0): unknown}
    assert broker.state() == "Empty"


def test_partitions_of_an_invalid_producer_are_rejected(broker: Broker, producer: Producer) -> None:
    partitions = {broker.topic: [0]}
    tp = (broker.topic, 0)
    unmapped = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert broker.add(producer, partitions, name="another")[tp] is unmapped
    assert broker.add(Producer(producer.id + 1_000_000, 0), partitions)[tp] is unmapped
    invalid = Producer(producer.id, producer.epoch + 1)
    assert broker.add(invalid, partitions)[tp] is ErrorCode.PRODUCER_FENCED
    assert broker.add(invalid, partitions, 1)[tp] is ErrorCode.INVALID_PRODUCER_EPOCH
    assert broker.add(producer, partitions, name="")[tp] is ErrorCode.INVALID_REQUEST
    assert broker.state() == "Empty"


@pytest.mark.parametrize("version", [4, 5])
def test_brokers_add_and_verify_partitions_of_many_transactions_at_once(
    broker: Broker, producer: Producer, version: int
) -> None:
    def transaction(
        name: str, verify: bool, *partitions: int, topic: str | None = None
    ) -> AddPartitionsToTxnTransaction:
        return AddPartitionsToTxnTransaction(
            transactional_id=name,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            verify_only=verify,
            topics=[AddPartitionsToTxnTopic(name=topic or broker.topic, partitions=list(partitions))],
        )

    missing = ErrorCode.TRANSACTION_ABORTABLE if version == 5 else ErrorCode.INVALID_TXN_STATE
    first, second = (broker.topic, 0), (broker.topic, 1)
    results = broker.add_many(transaction(broker.name, True, 0), version=version)
    if version == 5:
        assert results == {broker.name: {first: missing}}
    results = broker.add_many(transaction(broker.name, False, 0), transaction("another", True, 0), version=version)
    assert results == {broker.name: {first: NONE}, "another": {first: ErrorCode.INVALID_PRODUCER_ID_MAPPING}}
    results = broker.add_many(transaction(broker.name, True, 0, 1), version=version)
    assert results[broker.name][first] is NONE
    assert results[broker.name][second] in (missing, ErrorCode.TRANSACTION_ABORTABLE)
    unknown = broker.add_many(transaction(broker.name, False, 0, topic="nowhere"), version=version)
    assert unknown == {broker.name: {("nowhere", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}}


# ---- producing


@pytest.mark.parametrize("version", [3, 8, 9, 11])
def test_records_are_accepted_in_partitions_that_were_added(broker: Broker, producer: Producer, version: int) -> None:
    broker.add(producer, {broker.topic: [0]})
    assert broker.produce(producer, 0, version) is NONE
    assert broker.produce(producer, 1, version) is NONE
    assert broker.offsets() == (2, 0, 0), "the open transaction is not stable"
    broker.end_and_wait(producer, True)
    assert broker.offsets() == (3, 3, 0)


@pytest.mark.parametrize(("version", "code"), [(9, ErrorCode.INVALID_TXN_STATE), (11, ErrorCode.TRANSACTION_ABORTABLE)])
def test_records_in_a_partition_that_was_not_added_are_rejected(
    broker: Broker, producer: Producer, version: int, code: ErrorCode
) -> None:
    assert broker.produce(producer, 0, version) is code
    broker.add(producer, {broker.topic: [1]})
    assert broker.produce(producer, 0, version) is code
    assert broker.offsets() == (0, 0, 0)


@pytest.mark.parametrize("version", [12, 13])
def test_newer_producers_add_a_partition_by_producing_to_it(broker: Broker, producer: Producer, version: int) -> None:
    assert broker.produce(producer, 0, version) is NONE
    assert broker.produce(producer, 1, version) is NONE
    assert broker.produce(producer, 0, version, partition=1) is NONE
    assert broker.state() == "Ongoing"
    assert sorted(broker.described().topics[0].partitions) == [0, 1]
    next_producer = broker.end_and_wait(producer, True, 5)
    assert next_producer == Producer(producer.id, producer.epoch + 1)
    assert broker.offsets(1) == (2, 2, 0)
    assert broker.produce(producer, 2, version) is ErrorCode.INVALID_PRODUCER_EPOCH, "the transaction has ended"
    assert broker.produce(next_producer, 0, version) is NONE


def test_a_late_batch_of_an_ended_transaction_is_rejected(broker: Broker, producer: Producer) -> None:
    """Otherwise the batch would start a transaction that no coordinator ends, and block all
    read_committed consumers of the partition."""
    broker.add(producer, {broker.topic: [0]})
    assert broker.produce(producer) is NONE
    broker.end_and_wait(producer, True)
    assert broker.produce(producer, 1) is ErrorCode.TRANSACTION_ABORTABLE
    assert broker.offsets() == (2, 2, 0)


def test_newer_producers_must_begin_with_sequence_zero(broker: Broker, producer: Producer) -> None:
    assert broker.produce(producer, 5, 12) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert broker.offsets() == (0, 0, 0)
    assert broker.produce(producer, 0, 12) is NONE


@pytest.mark.parametrize("version", [9, 11, 12])
def test_records_of_an_invalid_producer_are_rejected(broker: Broker, producer: Producer, version: int) -> None:
    broker.add(producer, {broker.topic: [0]})
    invalid = Producer(producer.id, producer.epoch + 1)
    assert broker.produce(invalid, 0, version) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert broker.produce(Producer(producer.id + 99, 0), 0, version) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert broker.produce(producer, 0, version, name=f"{broker.name}-unknown") is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert broker.offsets() == (0, 0, 0)


def test_a_transactional_batch_needs_its_transactional_id(broker: Broker, producer: Producer) -> None:
    broker.add(producer, {broker.topic: [0]})
    unauthorized = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert broker.produce(producer, 0, 9, name=None) is unauthorized
    assert broker.produce(Producer(-1, -1), -1, 9, name=None) in (unauthorized, ErrorCode.INVALID_RECORD)
    assert broker.offsets() == (0, 0, 0)


def test_a_non_transactional_batch_is_rejected_while_a_transaction_is_open(broker: Broker, producer: Producer) -> None:
    broker.add(producer, {broker.topic: [0]})
    assert broker.produce(producer) is NONE
    assert broker.produce(producer, 1, transactional=False, name=None) is ErrorCode.INVALID_TXN_STATE


def test_a_repeated_batch_is_written_once(broker: Broker, producer: Producer) -> None:
    broker.add(producer, {broker.topic: [0]})
    for _ in range(2):
        assert broker.produce(producer) is NONE
    assert broker.offsets()[0] == 1


# ---- offsets


@pytest.mark.parametrize("version", range(5))
def test_offsets_are_committed_with_the_transaction(broker: Broker, producer: Producer, version: int) -> None:
    assert broker.add_offsets(producer, min(version, 4)) is NONE
    assert broker.commit_offset(producer, 7, version) is NONE
    assert broker.committed_offset() == -1
    broker.end_and_wait(producer, True)
    wait_until(lambda: broker.committed_offset() == 7, timeout=5, what="the committed offset")
    assert broker.add_offsets(producer, min(version, 4)) is NONE
    assert broker.commit_offset(producer, 9, version) is NONE
    broker.end_and_wait(producer, False)
    assert broker.committed_offset() == 7


def test_newer_producers_add_the_group_by_committing_to_it(broker: Broker, producer: Producer) -> None:
    assert broker.commit_offset(producer, 7, 5) is NONE
    assert [description.topic for description in broker.described().topics] == ["__consumer_offsets"]
    broker.end_and_wait(producer, True, 5)
    wait_until(lambda: broker.committed_offset() == 7, timeout=5, what="the committed offset")


def test_invalid_offset_commits_are_rejected(broker: Broker, producer: Producer) -> None:
    assert broker.commit_offset(producer, version=3) is ErrorCode.INVALID_TXN_STATE
    assert broker.commit_offset(producer, version=4) is ErrorCode.TRANSACTION_ABORTABLE
    assert broker.add_offsets(producer) is NONE
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert broker.commit_offset(producer, topic="nowhere") is unknown
    assert broker.commit_offset(producer, partition=9) is unknown
    assert broker.commit_offset(Producer(producer.id, producer.epoch + 1)) in (
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
    )
    assert broker.commit_offset(producer, member_id="unknown", generation_id=3) in (
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
    )
    broker.end_and_wait(producer, True)
    assert broker.committed_offset() == -1


def test_offsets_of_an_invalid_producer_are_not_added(broker: Broker, producer: Producer) -> None:
    invalid = Producer(producer.id, producer.epoch + 1)
    assert broker.add_offsets(invalid) is ErrorCode.PRODUCER_FENCED
    assert broker.add_offsets(invalid, 1) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert broker.add_offsets(producer, name="another") is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert broker.state() == "Empty"


# ---- ending transactions


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", range(6))
def test_a_transaction_is_committed_or_aborted_in_all_partitions(
    broker: Broker, producer: Producer, version: int, commit: bool
) -> None:
    broker.add(producer, {broker.topic: [0, 1]})
    for partition in (0, 1):
        assert broker.produce(producer, partition=partition) is NONE
    next_producer = broker.end_and_wait(producer, commit, version)
    assert next_producer == (Producer(producer.id, producer.epoch + 1) if version == 5 else Producer(-1, -1))
    assert broker.state() == ("CompleteCommit" if commit else "CompleteAbort")
    for partition in (0, 1):
        assert broker.offsets(partition) == (2, 2, 0 if commit else 1)
    repeated = broker.end(producer, commit, version)
    assert repeated == (NONE, next_producer), "a repeated request changes nothing"
    assert broker.end(producer, not commit, version)[0] is ErrorCode.INVALID_TXN_STATE
    assert broker.offsets()[0] == 2


def test_invalid_end_requests_are_rejected(broker: Broker, producer: Producer) -> None:
    no_producer = Producer(-1, -1)
    assert broker.end(producer, True) == (ErrorCode.INVALID_TXN_STATE, no_producer)
    assert broker.end(producer, False) == (ErrorCode.INVALID_TXN_STATE, no_producer)
    assert broker.end(producer, True, 5) == (ErrorCode.INVALID_TXN_STATE, no_producer)
    assert broker.end(producer, True, name="another")[0] is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert broker.end(producer, True, name="")[0] is ErrorCode.INVALID_REQUEST
    invalid = Producer(producer.id, producer.epoch + 1)
    assert broker.end(invalid, True)[0] is ErrorCode.PRODUCER_FENCED
    assert broker.end(invalid, True, 5) == (ErrorCode.PRODUCER_FENCED, no_producer)
    assert broker.state() == "Empty"


def test_newer_producers_may_abort_a_transaction_without_partitions(broker: Broker, producer: Producer) -> None:
    code, next_producer = broker.end(producer, False, 5)
    assert (code, next_producer) == (NONE, Producer(producer.id, producer.epoch + 1))
    wait_until(lambda: broker.state() == "CompleteAbort", timeout=5, what="the abort")


# ---- markers


def _marker(broker: Broker, producer: Producer, commit: bool, *partitions: int, **fields: Any) -> WritableTxnMarker:
    topics = [WritableTxnMarkerTopic(name=broker.topic, partition_indexes=list(partitions))]
    return WritableTxnMarker(
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        transaction_result=commit,
        topics=topics,
        coordinator_epoch=fields.pop("coordinator_epoch", 0),
        **fields,
    )


@pytest.mark.parametrize("version", [1, 2])
def test_markers_from_another_broker_are_written(broker: Broker, producer: Producer, version: int) -> None:
    broker.add(producer, {broker.topic: [0]})
    assert broker.produce(producer) is NONE
    response = broker.call(WriteTxnMarkersRequest(markers=[_marker(broker, producer, False, 0, 9)]), version)
    codes = {p.partition_index: ErrorCode(p.error_code) for p in response.markers[0].topics[0].partitions}
    assert codes[0] is NONE
    assert codes[9] is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert broker.offsets() == (2, 2, 1)


def test_late_markers_are_rejected(broker: Broker, producer: Producer) -> None:
    _, producer = broker.init()
    broker.add(producer, {broker.topic: [0]})
    assert broker.produce(producer) is NONE

    def write(epoch: int = producer.epoch, **fields: Any) -> ErrorCode:
        marker = _marker(broker, Producer(producer.id, epoch), False, 0, **fields)
        response = broker.call(WriteTxnMarkersRequest(markers=[marker]), 2)
        return ErrorCode(response.markers[0].topics[0].partitions[0].error_code)

    assert write(epoch=producer.epoch - 1) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert write(transaction_version=2) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert broker.offsets() == (1, 0, 0)
    assert write(transaction_version=2, epoch=producer.epoch + 1, coordinator_epoch=5) is NONE
    assert write(epoch=producer.epoch + 1, coordinator_epoch=4) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert broker.offsets() == (2, 2, 1)


# ---- listing and describing


def test_transactions_are_listed_and_described(broker: Broker, producer: Producer) -> None:
    broker.add(producer, {broker.topic: [0]})

    def listed(version: int, **filters: Any) -> list[str]:
        response = broker.call(ListTransactionsRequest(**filters), version)
        assert response.error_code == 0
        return [
            state.transactional_id for state in response.transaction_states if state.transactional_id == broker.name
        ]

    for version in (0, 1, 2):
        assert listed(version) == [broker.name]
        assert listed(version, state_filters=["Ongoing"]) == [broker.name]
        assert listed(version, state_filters=["Empty"]) == []
        assert listed(version, producer_id_filters=[producer.id]) == [broker.name]
        assert listed(version, producer_id_filters=[producer.id + 1_000_000]) == []
    assert listed(1, duration_filter=0) == [broker.name]
    assert listed(1, duration_filter=600_000) == []
    assert listed(2, transactional_id_pattern="id-.*") == [broker.name]
    assert listed(2, transactional_id_pattern="id") == []
    response = broker.call(ListTransactionsRequest(state_filters=["Ongoing", "Nonsense"]), 0)
    assert response.unknown_state_filters == ["Nonsense"]
    response = broker.call(ListTransactionsRequest(transactional_id_pattern="("), 2)
    assert response.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert broker.described("unknown").error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert broker.described("").error_code == ErrorCode.INVALID_REQUEST


def test_write_txn_markers_version_0_is_supported_as_in_kafka_3_9(
    broker: Broker, producer: Producer, target_name: str
) -> None:
    if target_name != KAVKA:
        pytest.skip("Kafka 4 does not support version 0")
    response = broker.call(WriteTxnMarkersRequest(markers=[_marker(broker, producer, True, 0)]), 0)
    assert response.markers[0].topics[0].partitions[0].error_code == 0
