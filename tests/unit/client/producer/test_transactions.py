"""Transactions of the producer, with a broker in memory."""

from __future__ import annotations

import asyncio

from kavka.client.producer.transactions import State
from tests.unit.client.producer.fake_broker import Bench


def test_a_transaction_begins_though_the_coordinator_is_not_in_the_metadata_just_now() -> None:
    async def work() -> None:
        async with Bench(transactional_id="t") as bench:
            transactions = bench.core.need_transactions()
            await transactions.init(10)
            bench.cluster.nodes = {}
            transactions.begin()
            assert transactions.state is State.IN_TRANSACTION

    asyncio.run(work())
