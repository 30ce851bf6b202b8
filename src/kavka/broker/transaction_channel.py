"""Transactions across brokers: writes markers at partition leaders, and adds or verifies partitions
at transaction coordinators.

All markers for a broker in one turn of the event loop are sent in one request. All verifications
are sent in another request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kavka.common.errors import ErrorCode, KafkaError, known_code
from kavka.common.types import TopicPartition, by_topic
from kavka.coordinator.transaction.markers import Marker, OnResults, Results
from kavka.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from kavka.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from kavka.replication.peers import Peers

logger = logging.getLogger(__name__)

CHANNEL = "transactions"
# A coordinator returns these codes for a partition that is not in the transaction.
_NOT_IN_TRANSACTION = (ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE)


class _Markers(NamedTuple):
    """Pending markers of a transaction. `on_results` is called with the error code of each
    partition."""

    marker: Marker
    partitions: list[TopicPartition]
    on_results: OnResults


class _Verification(NamedTuple):
    """A pending call of `add_or_verify`. `missing` is the future of the partitions that are not in
    the transaction."""

    transaction: AddPartitionsToTxnTransaction
    missing: asyncio.Future[frozenset[TopicPartition]]


class RemoteTransactions:
    """Implements `coordinator.transaction.service.TransactionChannel`. Owns the pending markers and
    verifications by broker, and the requests in flight."""

    def __init__(self, peers: Peers, timeout_s: float) -> None:
        self._peers = peers
        self._timeout_s = timeout_s
        self._markers: dict[int, list[_Markers]] = {}
        self._verifications: dict[int, list[_Verification]] = {}
        self._sending: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        for task in self._sending:
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)

    # ---- markers

    def write_markers(
        self, broker_id: int, marker: Marker, partitions: list[TopicPartition], on_results: OnResults
    ) -> None:
        pending = self._markers.setdefault(broker_id, [])
        if not pending:
            self._start_after_turn(lambda: self._send_markers(broker_id, self._markers.pop(broker_id)))
        pending.append(_Markers(marker, partitions, on_results))

    async def _send_markers(self, broker_id: int, pending: list[_Markers]) -> None:
        request = WriteTxnMarkersRequest(
            markers=[
                WritableTxnMarker(
                    producer_id=entry.marker.producer_id,
                    producer_epoch=entry.marker.epoch,
                    transaction_result=entry.marker.commit,
                    topics=[
                        WritableTxnMarkerTopic(name=name, partition_indexes=indexes)
                        for name, indexes in by_topic(entry.partitions).items()
                    ],
                    coordinator_epoch=entry.marker.coordinator_epoch,
                    transaction_version=entry.marker.transaction_version,
                )
                for entry in pending
            ]
        )
        try:
            response: WriteTxnMarkersResponse = await self._send(broker_id, request)
            results = [
                {
                    TopicPartition(topic.name, partition.partition_index): known_code(partition.error_code)
                    for topic in marker.topics
                    for partition in topic.partitions
                }
                for marker in response.markers
            ]
        except Exception as error:
            # The coordinator retries only after an error code, so report every failure.
            results = [dict.fromkeys(entry.partitions, _failure(broker_id, error).code) for entry in pending]
        for index, entry in enumerate(pending):
            codes: Results = results[index] if index < len(results) else {}
            entry.on_results({tp: codes.get(tp, ErrorCode.UNKNOWN_SERVER_ERROR) for tp in entry.partitions})

    # ---- verifications

    async def add_or_verify(
        self,
        broker_id: int,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Sequence[TopicPartition],
        add: bool,
    ) -> frozenset[TopicPartition]:
        verification = _Verification(
            AddPartitionsToTxnTransaction(
                transactional_id=transactional_id,
                producer_id=producer_id,
                producer_epoch=epoch,
                verify_only=not add,
                topics=[
                    AddPartitionsToTxnTopic(name=name, partitions=indexes)
                    for name, indexes in by_topic(partitions).items()
                ],
            ),
            asyncio.get_running_loop().create_future(),
        )
        pending = self._verifications.setdefault(broker_id, [])
        if not pending:
            self._start_after_turn(lambda: self._send_verifications(broker_id, self._verifications.pop(broker_id)))
        pending.append(verification)
        return await verification.missing

    async def _send_verifications(self, broker_id: int, pending: list[_Verification]) -> None:
        # A transactional id may be in a request only once. A second verification is sent in another
        # request.
        verifications: dict[str, _Verification] = {}
        postponed: list[_Verification] = []
        for verification in pending:
            if verifications.setdefault(verification.transaction.transactional_id, verification) is not verification:
                postponed.append(verification)
        try:
            request = AddPartitionsToTxnRequest(
                transactions=[verification.transaction for verification in verifications.values()]
            )
            response: AddPartitionsToTxnResponse = await self._send(broker_id, request)
            if response.error_code:
                raise KafkaError(known_code(response.error_code))
            results = {result.transactional_id: result for result in response.results_by_transaction}
            for transactional_id, verification in verifications.items():
                _complete(verification.missing, results.get(transactional_id))
        except Exception as error:
            failure = _failure(broker_id, error)
            for verification in verifications.values():
                if not verification.missing.done():
                    verification.missing.set_exception(failure)
        except asyncio.CancelledError:
            for verification in pending:
                verification.missing.cancel()
            raise
        if postponed:
            await self._send_verifications(broker_id, postponed)

    # ----

    async def _send(self, broker_id: int, request: Any) -> Any:
        return await self._peers.send(broker_id, request, channel=CHANNEL, timeout=self._timeout_s)

    def _start_after_turn(self, start: Callable[[], Any]) -> None:
        """Start a coroutine at the end of this turn of the event loop."""

        async def run() -> None:
            await start()

        task = asyncio.ensure_future(run())
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)


def _failure(broker_id: int, error: Exception) -> KafkaError:
    if isinstance(error, KafkaError):
        return error
    logger.error("A transaction request to broker %d failed", broker_id, exc_info=error)
    return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error))


def _complete(future: asyncio.Future[frozenset[TopicPartition]], result: AddPartitionsToTxnResult | None) -> None:
    if future.done():
        return
    if result is None:
        future.set_exception(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR))
        return
    missing = set()
    failures = []
    for topic in result.topic_results:
        for partition in topic.results_by_partition:
            code = known_code(partition.partition_error_code)
            if code in _NOT_IN_TRANSACTION:
                missing.add(TopicPartition(topic.name, partition.partition_index))
            elif code is not ErrorCode.NONE:
                failures.append(code)
    if failures:
        # Prefer the code that is the reason why other partitions were not attempted.
        future.set_exception(KafkaError(min(failures, key=lambda code: code is ErrorCode.OPERATION_NOT_ATTEMPTED)))
    else:
        future.set_result(frozenset(missing))
