"""Markers and verifications between brokers: batching and results."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kavka.broker.transaction_channel import RemoteTransactions
from kavka.client.errors import Disconnected
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.coordinator.transaction.markers import Marker
from kavka.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from kavka.protocol.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersResponse,
)

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


class FakePeers:
    def __init__(self, respond: Any) -> None:
        self.requests: list[tuple[int, Any]] = []
        self._respond = respond

    async def send(self, broker_id: int, request: Any, **_: Any) -> Any:
        self.requests.append((broker_id, request))
        response = self._respond(request)
        if isinstance(response, Exception):
            raise response
        return response


def written(request: Any, code: ErrorCode = ErrorCode.NONE) -> WriteTxnMarkersResponse:
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            WritableTxnMarkerPartitionResult(partition_index=index, error_code=int(code))
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )


def admitted(request: AddPartitionsToTxnRequest, **codes: ErrorCode) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(
        results_by_transaction=[
            AddPartitionsToTxnResult(
                transactional_id=transaction.transactional_id,
                topic_results=[
                    AddPartitionsToTxnTopicResult(
                        name=topic.name,
                        results_by_partition=[
                            AddPartitionsToTxnPartitionResult(
                                partition_index=index,
                                partition_error_code=int(codes.get(f"{topic.name}{index}", ErrorCode.NONE)),
                            )
                            for index in topic.partitions
                        ],
                    )
                    for topic in transaction.topics
                ],
            )
            for transaction in request.transactions
        ]
    )


def run(body: Any, respond: Any) -> FakePeers:
    peers = FakePeers(respond)

    async def main() -> None:
        channel = RemoteTransactions(peers, 5.0)  # type: ignore[arg-type]
        await asyncio.wait_for(body(channel), 10)
        await channel.close()

    asyncio.run(main())
    return peers


def test_markers_of_one_turn_are_one_request_per_broker():
    results: list[Any] = []

    async def body(channel: RemoteTransactions) -> None:
        channel.write_markers(1, Marker(7, 0, True, 3), [A0, A1], results.append)
        channel.write_markers(1, Marker(8, 2, False, 3, 2), [B0], results.append)
        channel.write_markers(2, Marker(7, 0, True, 3), [B0], results.append)
        while len(results) < 3:
            await asyncio.sleep(0.001)

    peers = run(body, written)
    assert [broker for broker, _ in peers.requests] == [1, 2]
    first = peers.requests[0][1].markers
    assert [(m.producer_id, m.producer_epoch, m.transaction_result, m.transaction_version) for m in first] == [
        (7, 0, True, 0),
        (8, 2, False, 2),
    ]
    assert {A0: ErrorCode.NONE, A1: ErrorCode.NONE} in results


@pytest.mark.parametrize(
    ("respond", "code"),
    [
        (lambda request: Disconnected("gone"), ErrorCode.NETWORK_EXCEPTION),
        (lambda request: written(request, ErrorCode.NOT_LEADER_OR_FOLLOWER), ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (lambda request: WriteTxnMarkersResponse(), ErrorCode.UNKNOWN_SERVER_ERROR),
        (lambda request: ValueError("malformed response"), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_every_partition_gets_a_code_for_any_response(respond, code):
    results: list[Any] = []

    async def body(channel: RemoteTransactions) -> None:
        channel.write_markers(1, Marker(7, 0, True, 3), [A0, B0], results.append)
        while not results:
            await asyncio.sleep(0.001)

    run(body, respond)
    assert results == [{A0: code, B0: code}]


def test_admit_returns_partitions_not_in_transaction():
    async def body(channel: RemoteTransactions) -> None:
        missing, other = await asyncio.gather(
            channel.add_or_verify(1, "t", 7, 0, [A0, A1], False), channel.add_or_verify(1, "u", 8, 0, [B0], True)
        )
        assert missing == {A1}
        assert other == frozenset()

    peers = run(body, lambda request: admitted(request, a1=ErrorCode.TRANSACTION_ABORTABLE))
    ((_, request),) = peers.requests
    assert [(t.transactional_id, t.verify_only) for t in request.transactions] == [("t", True), ("u", False)]


def test_same_transaction_twice_is_sent_in_two_requests():
    async def body(channel: RemoteTransactions) -> None:
        await asyncio.gather(
            channel.add_or_verify(1, "t", 7, 0, [A0], False), channel.add_or_verify(1, "t", 7, 0, [A1], False)
        )

    peers = run(body, admitted)
    assert [len(request.transactions) for _, request in peers.requests] == [1, 1]


@pytest.mark.parametrize(
    ("respond", "code"),
    [
        (lambda request: Disconnected("gone"), ErrorCode.NETWORK_EXCEPTION),
        (lambda request: admitted(request, a0=ErrorCode.PRODUCER_FENCED), ErrorCode.PRODUCER_FENCED),
        (
            lambda request: AddPartitionsToTxnResponse(error_code=int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)),
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ),
        (lambda request: AddPartitionsToTxnResponse(), ErrorCode.UNKNOWN_SERVER_ERROR),
        (lambda request: ValueError("malformed response"), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_other_responses_raise_error(respond, code):
    async def body(channel: RemoteTransactions) -> None:
        with pytest.raises(KafkaError) as raised:
            await channel.add_or_verify(1, "t", 7, 0, [A0], False)
        assert raised.value.code is code

    run(body, respond)


def test_error_explains_why_other_partitions_were_not_attempted():
    """The coordinator does not know the topic yet: with this code the producer retries."""
    codes = {"a0": ErrorCode.OPERATION_NOT_ATTEMPTED, "a1": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}

    async def body(channel: RemoteTransactions) -> None:
        with pytest.raises(KafkaError) as raised:
            await channel.add_or_verify(1, "t", 7, 0, [A0, A1], True)
        assert raised.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run(body, lambda request: admitted(request, **codes))
