"""Transactions that hang: open in a partition, and no coordinator knows of them any more."""

from __future__ import annotations

import time
from collections.abc import Iterable

from kavka.client.admin.base import AdminError
from kavka.client.admin.topics import Topics
from kavka.client.admin.transactions import Transactions
from kavka.client.admin.types import AbortTransactionSpec, OpenTransaction
from kavka.common.errors import ErrorCode
from kavka.common.types import TopicPartition

MOST_AT_ONCE = 500


class Hanging(Topics, Transactions):
    async def find_open_transactions(
        self,
        partitions: Iterable[TopicPartition],
        *,
        older_than_ms: int = 0,
        broker_id: int | None = None,
        timeout: float | None = None,
    ) -> list[OpenTransaction]:
        """What is open in these partitions with nothing written for `older_than_ms`, and which of it hangs; as their
        leaders know it, or the broker that is named."""
        wanted = sorted(partitions)
        oldest = int(time.time() * 1000) - older_than_ms
        found: list[OpenTransaction] = []
        for first in range(0, len(wanted), MOST_AT_ONCE):
            some = wanted[first : first + MOST_AT_ONCE]
            described = await self.describe_producers(some, broker_id=broker_id, timeout=timeout)
            found += [
                OpenTransaction(tp, p)
                for tp, producers in sorted(described.items())
                for p in producers
                if p.current_transaction_start_offset is not None and p.last_timestamp < oldest
            ]
        return [one._replace(hangs=await self._nobody_ends(one, timeout)) for one in found]

    async def find_transaction(
        self, partition: TopicPartition, start_offset: int, *, timeout: float | None = None
    ) -> AbortTransactionSpec | None:
        """What `abort_transaction` takes, for the transaction that is open in a partition from this offset on."""
        for p in (await self.describe_producers([partition], timeout=timeout))[partition]:
            if p.current_transaction_start_offset == start_offset:
                # One that hung before its producer ended any has no epoch of a coordinator: 0 is before all others.
                return AbortTransactionSpec(partition, p.producer_id, p.producer_epoch, p.coordinator_epoch or 0)
        return None

    async def _nobody_ends(self, one: OpenTransaction, timeout: float | None) -> bool:
        """Whether no coordinator has this partition in a transaction of this producer."""
        listed = await self.list_transactions(producer_ids=[one.producer.producer_id], timeout=timeout)
        if not listed:
            return True
        try:
            described = await self.describe_transactions([t.transactional_id for t in listed], timeout=timeout)
        except AdminError as error:
            if any(why.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND for why in error.errors.values()):
                raise
            described = error.results
        return not any(one.partition in transaction.partitions for transaction in described.values())
