"""The requests of a transactional producer to its transaction and group coordinators.

There are two transaction protocols. In the first (`transaction.version` below 2), the producer adds
each partition and group to the transaction before it writes to them, and its epoch changes only
after an error. In the second (`transaction.version` 2, KIP-890), the brokers add partitions and
groups, and every transaction has a new epoch, which the EndTxn response contains.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kavka.client.cluster import GROUP, TRANSACTION, Cluster
from kavka.client.config import ClientConfig
from kavka.client.errors import KafkaTimeout, error_of
from kavka.client.producer._append import PartitionQueue
from kavka.client.producer.sequences import Sequences
from kavka.client.types import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from kavka.common.backoff import Backoff
from kavka.common.errors import ErrorCode, KafkaError
from kavka.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from kavka.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from kavka.protocol.messages.end_txn import EndTxnRequest
from kavka.protocol.messages.init_producer_id import InitProducerIdRequest
from kavka.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from kavka.protocol.primitives import TopMessage

CHANNEL = "coordinator"
MAX_CLIENT_ADD_PARTITIONS_VERSION = 3
"""Only brokers send later versions of AddPartitionsToTxn."""
MAX_FIRST_PROTOCOL_END_TXN_VERSION = MAX_FIRST_PROTOCOL_OFFSET_COMMIT_VERSION = 4
"""The highest versions of EndTxn and TxnOffsetCommit in the first protocol."""

_COORDINATOR_MOVED = frozenset(
    {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NETWORK_EXCEPTION}
)


class TransactionRequests:
    """Sends requests for one transactional id, and retries them after retriable errors.

    Owns the cache of coordinators. Responses with a producer id and epoch update `sequences`. Only
    the event loop may call it.
    """

    def __init__(self, cluster: Cluster, config: ClientConfig, sequences: Sequences) -> None:
        self.transactional_id: str = config["transactional.id"]
        self.last_error: KafkaError | None = None
        """The retriable error of the last attempt, or None after a success."""
        self._cluster = cluster
        self._sequences = sequences
        self._transaction_timeout_ms: int = config["transaction.timeout.ms"]
        self._request_timeout = config.seconds("request.timeout.ms")
        self._backoff = Backoff(config["retry.backoff.ms"], config["retry.backoff.max.ms"])
        self._coordinators: dict[tuple[str, int], int] = {}

    def second_protocol(self, current: bool) -> bool:
        """Return whether the coordinator supports the second protocol. Returns `current` while
        there is no connection to the coordinator."""
        node_id = self._coordinators.get((self.transactional_id, TRANSACTION))
        # While all brokers are unreachable and the client bootstraps again, no node id is valid.
        if node_id is None or node_id not in self._cluster.nodes:
            return current
        connection = self._cluster.ready_connection(node_id, CHANNEL)
        if connection is None:
            return current
        return connection.features.get("transaction.version", 0) >= 2

    async def init_producer_id(self) -> None:
        has_id = self._sequences.has_producer_id
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self._transaction_timeout_ms,
            producer_id=self._sequences.producer_id if has_id else -1,
            producer_epoch=self._sequences.producer_epoch if has_id else -1,
        )
        response = await self._send(request, self.transactional_id, TRANSACTION, _error_code)
        self._sequences.set(response.producer_id, response.producer_epoch)

    async def add_partitions(self, queues: Iterable[PartitionQueue]) -> None:
        topics: dict[str, AddPartitionsToTxnTopic] = {}
        for queue in queues:
            topic = topics.setdefault(queue.topic, AddPartitionsToTxnTopic(name=queue.topic))
            topic.partitions.append(queue.partition)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self._sequences.producer_id,
            v3_and_below_producer_epoch=self._sequences.producer_epoch,
            v3_and_below_topics=list(topics.values()),
        )
        await self._send(
            request, self.transactional_id, TRANSACTION, _worst_of_partitions, MAX_CLIENT_ADD_PARTITIONS_VERSION
        )

    async def add_group(self, group: str) -> None:
        request = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self._sequences.producer_id,
            producer_epoch=self._sequences.producer_epoch,
            group_id=group,
        )
        await self._send(request, self.transactional_id, TRANSACTION, _error_code)

    async def commit_offsets(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        member: ConsumerGroupMetadata,
        second_protocol: bool,
    ) -> None:
        topics: dict[str, TxnOffsetCommitRequestTopic] = {}
        for (name, partition), value in offsets.items():
            offset = OffsetAndMetadata(value) if isinstance(value, int) else value
            topic = topics.setdefault(name, TxnOffsetCommitRequestTopic(name=name))
            topic.partitions.append(
                TxnOffsetCommitRequestPartition(
                    partition_index=partition,
                    committed_offset=offset.offset,
                    committed_leader_epoch=-1 if offset.leader_epoch is None else offset.leader_epoch,
                    committed_metadata=offset.metadata,
                )
            )
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=member.group_id,
            producer_id=self._sequences.producer_id,
            producer_epoch=self._sequences.producer_epoch,
            generation_id=member.generation_id,
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            topics=list(topics.values()),
        )
        max_version = None if second_protocol else MAX_FIRST_PROTOCOL_OFFSET_COMMIT_VERSION
        await self._send(request, member.group_id, GROUP, _worst_of_offsets, max_version)

    async def end_transaction(self, commit: bool, second_protocol: bool) -> None:
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self._sequences.producer_id,
            producer_epoch=self._sequences.producer_epoch,
            committed=commit,
        )
        max_version = None if second_protocol else MAX_FIRST_PROTOCOL_END_TXN_VERSION
        response = await self._send(request, self.transactional_id, TRANSACTION, _error_code, max_version)
        if response.producer_id >= 0 and response.producer_epoch >= 0:
            self._sequences.set(response.producer_id, response.producer_epoch)

    async def _send(
        self,
        request: TopMessage,
        key: str,
        key_type: int,
        code_of: Callable[[Any], int],
        max_version: int | None = None,
    ) -> Any:
        """Send a request to the coordinator and return the response. Retries after retriable
        errors, without a time limit; raises other errors."""
        failures = 0
        while True:
            try:
                node_id = self._coordinators.get((key, key_type))
                if node_id is None:
                    node_id = (await self._cluster.find_coordinator(key, key_type)).id
                    self._coordinators[key, key_type] = node_id
                response = await self._cluster.request(
                    node_id, request, max_version=max_version, timeout=self._request_timeout, channel=CHANNEL
                )
                code = code_of(response)
                if not code:
                    self.last_error = None
                    return response
                raise error_of(code)
            except KafkaError as error:
                if error.code in _COORDINATOR_MOVED or isinstance(error, KafkaTimeout):
                    self._coordinators.pop((key, key_type), None)
                if not error.retriable or self._cluster.closed:
                    raise
                self.last_error = error
                failures += 1
                # The coordinator completes the previous transaction within milliseconds.
                is_short_wait = error.code == ErrorCode.CONCURRENT_TRANSACTIONS and failures <= 10
                await asyncio.sleep(0.01 if is_short_wait else self._backoff.delay(failures))


def _error_code(response: Any) -> int:
    code: int = response.error_code
    return code


def _worst_of_partitions(response: Any) -> int:
    codes = [p.partition_error_code for t in response.results_by_topic_v3_and_below for p in t.results_by_partition]
    return _worst(codes)


def _worst_of_offsets(response: Any) -> int:
    return _worst([p.error_code for t in response.topics for p in t.partitions])


def _worst(codes: list[int]) -> int:
    """Return the error code to report (0 without errors), preferably one that is not retriable.
    OPERATION_NOT_ATTEMPTED is reported only if there is no other error."""
    errors = [code for code in codes if code]
    fatal = [code for code in errors if not error_of(code).retriable]
    causes = [code for code in fatal if code != ErrorCode.OPERATION_NOT_ATTEMPTED]
    return (causes or [c for c in errors if c != ErrorCode.OPERATION_NOT_ATTEMPTED] or errors or [0])[0]
