"""Transactions across brokers: markers to the leaders of partitions, questions to the coordinators of transactions.

What one turn of the loop has for a broker goes to it in one request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kavka.common.errors import ErrorCode, KafkaError, known_code
from kavka.common.types import TopicPartition, by_topic
from kavka.coordinator.transaction.markers import Done, Marker, Results
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

log = logging.getLogger(__name__)

CHANNEL = "transactions"
# With these codes a coordinator says that a partition is not in the transaction.
_NOT_IN_IT = (ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE)


class _Markers(NamedTuple):
    marker: Marker
    partitions: list[TopicPartition]
    done: Done


class _Question(NamedTuple):
    transaction: AddPartitionsToTxnTransaction
    answer: asyncio.Future[frozenset[TopicPartition]]


class RemoteTransactions:
    """Implements `coordinator.transaction.service.TransactionChannel`."""

    def __init__(self, peers: Peers, timeout_s: float) -> None:
        self._peers = peers
        self._timeout_s = timeout_s
        self._markers: dict[int, list[_Markers]] = {}
        self._questions: dict[int, list[_Question]] = {}
        self._sending: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        for task in self._sending:
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)

    # ---- markers

    def write_markers(self, broker_id: int, marker: Marker, partitions: list[TopicPartition], done: Done) -> None:
        waiting = self._markers.setdefault(broker_id, [])
        if not waiting:
            self._soon(lambda: self._send_markers(broker_id, self._markers.pop(broker_id)))
        waiting.append(_Markers(marker, partitions, done))

    async def _send_markers(self, broker_id: int, waiting: list[_Markers]) -> None:
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
                    transaction_version=entry.marker.version,
                )
                for entry in waiting
            ]
        )
        try:
            response: WriteTxnMarkersResponse = await self._ask(broker_id, request)
            results = [
                {
                    TopicPartition(topic.name, partition.partition_index): known_code(partition.error_code)
                    for topic in marker.topics
                    for partition in topic.partitions
                }
                for marker in response.markers
            ]
        except Exception as error:
            # Whoever waits must hear of it, whatever it is: nobody else tries again.
            results = [dict.fromkeys(entry.partitions, _failure(broker_id, error).code) for entry in waiting]
        missing: Results = {}
        for position, entry in enumerate(waiting):
            found = results[position] if position < len(results) else missing
            entry.done({tp: found.get(tp, ErrorCode.UNKNOWN_SERVER_ERROR) for tp in entry.partitions})

    # ---- questions

    async def admit(
        self,
        broker_id: int,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Sequence[TopicPartition],
        add: bool,
    ) -> frozenset[TopicPartition]:
        question = _Question(
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
        waiting = self._questions.setdefault(broker_id, [])
        if not waiting:
            self._soon(lambda: self._send_questions(broker_id, self._questions.pop(broker_id)))
        waiting.append(question)
        return await question.answer

    async def _send_questions(self, broker_id: int, waiting: list[_Question]) -> None:
        # A transactional id can be in a request once: what is asked twice goes with the next one.
        now: dict[str, _Question] = {}
        later: list[_Question] = []
        for question in waiting:
            if question.transaction.transactional_id in now:
                later.append(question)
            else:
                now[question.transaction.transactional_id] = question
        try:
            response: AddPartitionsToTxnResponse = await self._ask(
                broker_id, AddPartitionsToTxnRequest(transactions=[q.transaction for q in now.values()])
            )
            if response.error_code:
                raise KafkaError(known_code(response.error_code))
            results = {result.transactional_id: result for result in response.results_by_transaction}
            for name, question in now.items():
                _answer(question.answer, results.get(name))
        except Exception as error:
            failure = _failure(broker_id, error)
            for question in now.values():
                if not question.answer.done():
                    question.answer.set_exception(failure)
        except asyncio.CancelledError:
            for question in waiting:
                question.answer.cancel()
            raise
        if later:
            await self._send_questions(broker_id, later)

    # ----

    async def _ask(self, broker_id: int, request: Any) -> Any:
        return await self._peers.ask(broker_id, request, channel=CHANNEL, timeout=self._timeout_s)

    def _soon(self, start: Callable[[], Any]) -> None:
        """Begin when this turn of the loop is over."""

        async def run() -> None:
            await start()

        task = asyncio.ensure_future(run())
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)


def _failure(broker_id: int, error: Exception) -> KafkaError:
    if isinstance(error, KafkaError):
        return error
    log.error("A request to broker %d about transactions failed", broker_id, exc_info=error)
    return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error))


def _answer(answer: asyncio.Future[frozenset[TopicPartition]], result: AddPartitionsToTxnResult | None) -> None:
    if answer.done():
        return
    if result is None:
        answer.set_exception(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR))
        return
    missing = set()
    failures = []
    for topic in result.topic_results:
        for partition in topic.results_by_partition:
            code = known_code(partition.partition_error_code)
            if code in _NOT_IN_IT:
                missing.add(TopicPartition(topic.name, partition.partition_index))
            elif code is not ErrorCode.NONE:
                failures.append(code)
    if failures:
        # Why the others were not even tried is told by one of them.
        answer.set_exception(KafkaError(min(failures, key=lambda code: code is ErrorCode.OPERATION_NOT_ATTEMPTED)))
    else:
        answer.set_result(frozenset(missing))
