"""Hanging transactions: transactions that are open in a partition, but unknown to all
coordinators."""

from __future__ import annotations

import time
from collections.abc import Iterable

from kavka.client.admin.base import AdminError
from kavka.client.admin.topics import Topics
from kavka.client.admin.transactions import Transactions
from kavka.client.admin.types import AbortTransactionSpec, OpenTransaction
from kavka.common.errors import ErrorCode
from kavka.common.types import TopicPartition

MAX_PARTITIONS_PER_REQUEST = 500
"""The maximum number of partitions in a DescribeProducers call."""


class Hanging(Topics, Transactions):
    async def find_open_transactions(
        self,
        partitions: Iterable[TopicPartition],
        *,
        older_than_ms: int = 0,
        broker_id: int | None = None,
        timeout: float | None = None,
    ) -> list[OpenTransaction]:
        """Return the open transactions in these partitions whose last write is older than
        `older_than_ms`, and whether they hang. Reads the state of the leaders, or of the replicas
        on `broker_id`."""
        requested = sorted(partitions)
        cutoff_ms = int(time.time() * 1000) - older_than_ms
        transactions: list[OpenTransaction] = []
        for first in range(0, len(requested), MAX_PARTITIONS_PER_REQUEST):
            chunk = requested[first : first + MAX_PARTITIONS_PER_REQUEST]
            described = await self.describe_producers(chunk, broker_id=broker_id, timeout=timeout)
            transactions += [
                OpenTransaction(tp, producer)
                for tp, producers in sorted(described.items())
                for producer in producers
                if producer.current_transaction_start_offset is not None and producer.last_timestamp < cutoff_ms
            ]
        return [t._replace(hangs=await self._is_hanging(t, timeout)) for t in transactions]

    async def find_transaction(
        self, partition: TopicPartition, start_offset: int, *, timeout: float | None = None
    ) -> AbortTransactionSpec | None:
        """Return the argument of `abort_transaction` for the transaction that starts at this
        offset, or None if there is no such transaction."""
        for producer in (await self.describe_producers([partition], timeout=timeout))[partition]:
            if producer.current_transaction_start_offset == start_offset:
                # A producer has no coordinator epoch before its first transaction marker. 0 is the
                # lowest epoch.
                return AbortTransactionSpec(
                    partition, producer.producer_id, producer.producer_epoch, producer.coordinator_epoch or 0
                )
        return None

    async def _is_hanging(self, transaction: OpenTransaction, timeout: float | None) -> bool:
        """Whether no coordinator has this partition in a transaction of this producer."""
        listed = await self.list_transactions(producer_ids=[transaction.producer.producer_id], timeout=timeout)
        if not listed:
            return True
        try:
            described = await self.describe_transactions([t.transactional_id for t in listed], timeout=timeout)
        except AdminError as error:
            if any(failure.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND for failure in error.errors.values()):
                raise
            described = error.results
        return not any(transaction.partition in t.partitions for t in described.values())
