"""Producers and transactions: describing, ending, aborting and fencing them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from kavka.client.admin.base import AdminBase, Outcome, as_list, by_partition, gather
from kavka.client.admin.types import (
    AbortTransactionSpec,
    ProducerState,
    TransactionDescription,
    TransactionListing,
)
from kavka.client.cluster import TRANSACTION
from kavka.client.errors import UnsupportedVersion, error_of
from kavka.client.metadata import Node
from kavka.client.types import PreparedTransaction
from kavka.common.errors import KafkaError
from kavka.common.types import TopicPartition, by_topic
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from kavka.protocol.messages.describe_transactions import DescribeTransactionsRequest
from kavka.protocol.messages.end_txn import EndTxnRequest
from kavka.protocol.messages.init_producer_id import InitProducerIdRequest
from kavka.protocol.messages.list_transactions import ListTransactionsRequest
from kavka.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

# Later versions of EndTxn bump the epoch (transaction.version 2).
MAX_FIRST_PROTOCOL_END_TXN_VERSION = 4


class Transactions(AdminBase):
    async def describe_producers(
        self, partitions: Iterable[TopicPartition], *, broker_id: int | None = None, timeout: float | None = None
    ) -> dict[TopicPartition, list[ProducerState]]:
        """Return the active producers of each partition and the start offset of their open
        transaction. Reads the state of the leader, or of the replica on `broker_id`."""

        async def send(
            node_id: int, node_partitions: list[TopicPartition]
        ) -> Outcome[TopicPartition, list[ProducerState]]:
            topics = [TopicRequest(name=name, partition_indexes=ids) for name, ids in by_topic(node_partitions).items()]
            response = await self._request(node_id, DescribeProducersRequest(topics=topics))
            return by_partition(response.topics, _states_of)

        requested = [TopicPartition(*tp) for tp in partitions]
        if broker_id is None:
            return await self._each_leader(requested, send, timeout)

        async def attempt(remaining: list[TopicPartition]) -> Outcome[TopicPartition, list[ProducerState]]:
            await self._brokers()
            return await gather({broker_id: remaining}, send)

        return await self._each(requested, attempt, timeout)

    async def list_transactions(
        self,
        *,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        longer_than_ms: int | None = None,
        pattern: str | None = None,
        timeout: float | None = None,
    ) -> list[TransactionListing]:
        """Return the transactions of all coordinators that match the filters. Raises AdminError
        with UnsupportedVersion if a broker does not support a filter."""

        async def attempt(brokers: list[int]) -> Outcome[int, list[TransactionListing]]:
            done: dict[int, list[TransactionListing]] = {}
            errors: dict[int, KafkaError] = {}
            for broker in brokers:
                try:
                    connection = await self.cluster.connection(broker, timeout=self._request_timeout)
                    version = connection.version_of(ApiKey.LIST_TRANSACTIONS)
                    if (longer_than_ms is not None and version < 1) or (pattern is not None and version < 2):
                        raise UnsupportedVersion(
                            f"{connection.name} does not support longer_than_ms or pattern in ListTransactions"
                        )
                    request = ListTransactionsRequest(
                        state_filters=list(states), producer_id_filters=list(producer_ids)
                    )
                    if longer_than_ms is not None:
                        request.duration_filter = longer_than_ms
                    if pattern is not None:
                        request.transactional_id_pattern = pattern
                    response = await connection.send(request, version=version, timeout=self._request_timeout)
                    if response.error_code:
                        raise error_of(response.error_code)
                    done[broker] = [
                        TransactionListing(t.transactional_id, t.producer_id, t.transaction_state, broker)
                        for t in response.transaction_states
                    ]
                except KafkaError as error:
                    errors[broker] = error
            return done, errors

        by_broker = await self._each_broker(None, attempt, timeout)
        return sorted(listing for listings in by_broker.values() for listing in listings)

    async def describe_transactions(
        self, transactional_ids: Iterable[str] | str, *, timeout: float | None = None
    ) -> dict[str, TransactionDescription]:
        """Return the state, producer and partitions of transactional ids."""

        async def send(node: Node, ids: list[str]) -> Outcome[str, TransactionDescription]:
            response = await self._request(node.id, DescribeTransactionsRequest(transactional_ids=ids))
            done: dict[str, TransactionDescription] = {}
            errors: dict[str, KafkaError] = {}
            for state in response.transaction_states:
                if state.error_code:
                    errors[state.transactional_id] = error_of(state.error_code)
                    continue
                done[state.transactional_id] = TransactionDescription(
                    state.transactional_id,
                    node,
                    state.transaction_state,
                    state.producer_id,
                    state.producer_epoch,
                    state.transaction_timeout_ms,
                    _or_none(state.transaction_start_time_ms),
                    frozenset(TopicPartition(topic.topic, p) for topic in state.topics for p in topic.partitions),
                )
            return done, errors

        return await self._each_coordinator(as_list(transactional_ids, str), TRANSACTION, send, timeout)

    async def abort_transaction(self, spec: AbortTransactionSpec, *, timeout: float | None = None) -> None:
        """Abort a hanging transaction in one partition without its coordinator, so that it no
        longer blocks read_committed consumers. Use it only for a transaction that no coordinator
        will end."""
        partition = TopicPartition(*spec.partition)

        async def send(node_id: int, node_partitions: list[TopicPartition]) -> Outcome[TopicPartition, None]:
            marker = WritableTxnMarker(
                producer_id=spec.producer_id,
                producer_epoch=spec.producer_epoch,
                transaction_result=False,
                coordinator_epoch=spec.coordinator_epoch,
                topics=[WritableTxnMarkerTopic(name=partition.topic, partition_indexes=[partition.partition])],
            )
            response = await self._request(node_id, WriteTxnMarkersRequest(markers=[marker]))
            codes = [p.error_code for m in response.markers for t in m.topics for p in t.partitions]
            if codes != [0]:
                return {}, {partition: error_of(codes[0] if codes else -1)}
            return {partition: None}, {}

        await self._each_leader([partition], send, timeout)

    async def end_transactions(
        self, prepared: Iterable[PreparedTransaction], *, commit: bool = True, timeout: float | None = None
    ) -> None:
        """Commit or abort prepared transactions. Their producers may be in any process, or closed.

        Repeating a commit or an abort has no effect. If the transaction had the other outcome, or
        its transactional id was used again, the error is INVALID_TXN_STATE, PRODUCER_FENCED or
        INVALID_PRODUCER_EPOCH. If the transactional id has expired, the error is
        INVALID_PRODUCER_ID_MAPPING."""
        transactions = list(prepared)
        by_id = {transaction.transactional_id: transaction for transaction in transactions}
        if len(by_id) < len(transactions):
            raise ValueError("a transactional id can have only one transaction at a time")

        async def end(node: Node, name: str) -> int:
            transaction = by_id[name]
            request = EndTxnRequest(
                transactional_id=name,
                producer_id=transaction.producer_id,
                producer_epoch=transaction.producer_epoch,
                committed=commit,
            )
            max_version = None if transaction.second_protocol else MAX_FIRST_PROTOCOL_END_TXN_VERSION
            response = await self._request(node.id, request, max_version)
            code: int = response.error_code
            return code

        async def send(node: Node, ids: list[str]) -> Outcome[str, None]:
            codes = await asyncio.gather(*(end(node, name) for name in ids))
            outcomes = dict(zip(ids, codes, strict=True))
            return {name: None for name, code in outcomes.items() if not code}, {
                name: error_of(code) for name, code in outcomes.items() if code
            }

        await self._each_coordinator(by_id, TRANSACTION, send, timeout)

    async def fence_producers(
        self, transactional_ids: Iterable[str] | str, *, timeout: float | None = None
    ) -> dict[str, tuple[int, int]]:
        """Fence the current producers with these transactional ids, and abort their open
        transactions. Returns the new producer id and epoch of each transactional id."""

        async def send(node: Node, ids: list[str]) -> Outcome[str, tuple[int, int]]:
            done: dict[str, tuple[int, int]] = {}
            errors: dict[str, KafkaError] = {}
            for name in ids:
                # The timeout is not used, because no transaction begins.
                request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
                response = await self._request(node.id, request)
                if response.error_code:
                    errors[name] = error_of(response.error_code)
                else:
                    done[name] = response.producer_id, response.producer_epoch
            return done, errors

        return await self._each_coordinator(as_list(transactional_ids, str), TRANSACTION, send, timeout)

    async def force_terminate_transaction(self, transactional_id: str, *, timeout: float | None = None) -> None:
        """Abort the open or prepared transaction of this transactional id, and fence its
        producer."""
        await self.fence_producers(transactional_id, timeout=timeout)


def _states_of(partition: Any) -> list[ProducerState]:
    return [
        ProducerState(
            s.producer_id,
            s.producer_epoch,
            s.last_sequence,
            s.last_timestamp,
            _or_none(s.coordinator_epoch),
            _or_none(s.current_txn_start_offset),
        )
        for s in partition.active_producers
    ]


def _or_none(number: int) -> int | None:
    return None if number < 0 else number
