"""Transactions of the producer, with a broker in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kavka.client.errors import IllegalState, KafkaTimeout
from kavka.client.producer.transactions import State, Transactions
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from kavka.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from kavka.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from kavka.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from kavka.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse
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


class Coordinator:
    """Answers what a transaction asks of it, in the order of `said`; a request named in `held` waits until it is let
    go."""

    def __init__(self, bench: Bench) -> None:
        self.said: list[str] = []
        self.held: dict[str, asyncio.Event] = {}
        bench.cluster.request = self.request  # type: ignore[method-assign]

    def hold(self, name: str) -> asyncio.Event:
        self.held[name] = asyncio.Event()
        return self.held[name]

    async def request(self, node_id: int | None, request: Any, **options: Any) -> Any:
        name = type(request).__name__.removesuffix("Request")
        self.said.append(name)
        if name in self.held:
            await self.held[name].wait()
        await asyncio.sleep(0)
        self.said.append(f"{name} done")
        if isinstance(request, InitProducerIdRequest):
            return InitProducerIdResponse(producer_id=7, producer_epoch=0)
        if isinstance(request, EndTxnRequest):
            return EndTxnResponse()
        if isinstance(request, AddOffsetsToTxnRequest):
            return AddOffsetsToTxnResponse()
        if isinstance(request, TxnOffsetCommitRequest):
            return TxnOffsetCommitResponse()
        assert isinstance(request, AddPartitionsToTxnRequest)
        return AddPartitionsToTxnResponse()

    async def until(self, what: str) -> None:
        async with asyncio.timeout(60):
            while what not in self.said:
                await asyncio.sleep(0.001)


@asynccontextmanager
async def begun() -> AsyncIterator[tuple[Bench, Coordinator, Transactions]]:
    """A producer in a transaction."""
    async with Bench(transactional_id="t") as bench:
        coordinator = Coordinator(bench)
        transactions = bench.core.need_transactions()
        await transactions.init(60)
        transactions.begin()
        yield bench, coordinator, transactions


def test_a_commit_that_took_too_long_and_was_done_meanwhile_may_be_repeated() -> None:
    async def work() -> None:
        async with Bench(transactional_id="t") as bench:
            coordinator = Coordinator(bench)
            transactions = bench.core.need_transactions()
            slow = coordinator.hold("InitProducerId")
            with pytest.raises(KafkaTimeout, match="may be called again"):
                await transactions.init(0.01)
            slow.set()
            await coordinator.until("InitProducerId done")
            await bench.settle()
            await transactions.init(60)
            with pytest.raises(IllegalState):
                await transactions.init(60)
            transactions.begin()
            bench.send(b"a")
            await bench.answer_all()
            slow = coordinator.hold("EndTxn")
            with pytest.raises(KafkaTimeout, match="may be called again"):
                await transactions.end(True, 0.01)
            slow.set()
            await coordinator.until("EndTxn done")
            await bench.settle()
            assert transactions.state is State.READY
            with pytest.raises(IllegalState):
                await transactions.end(False, 60)
            await transactions.end(True, 60)
            with pytest.raises(IllegalState):
                await transactions.end(True, 60)
            transactions.begin()

    asyncio.run(work())


def test_a_commit_that_took_too_long_is_repeated_and_nothing_else_is_allowed_meanwhile() -> None:
    async def work() -> None:
        async with begun() as (bench, coordinator, transactions):
            bench.send(b"a")
            await bench.answer_all()
            slow = coordinator.hold("EndTxn")
            with pytest.raises(KafkaTimeout, match="may be called again"):
                await transactions.end(True, 0.01)
            again = "is being committed, and may have been: call commit_transaction again until it returns"
            with pytest.raises(IllegalState, match=again):
                await transactions.end(False, 60)
            with pytest.raises(IllegalState, match=again):
                bench.send(b"b")
            slow.set()
            await coordinator.until("EndTxn done")
            await bench.settle()
            with pytest.raises(IllegalState, match="commit_transaction, which timed out, is done since"):
                await transactions.end(False, 60)
            await transactions.end(True, 60)
            assert coordinator.said.count("EndTxn") == 1

    asyncio.run(work())


def test_an_abort_waits_for_partitions_that_the_coordinator_is_just_told_of() -> None:
    async def work() -> None:
        async with begun() as (bench, coordinator, transactions):
            slow = coordinator.hold("AddPartitionsToTxn")
            bench.send(b"a")
            await coordinator.until("AddPartitionsToTxn")
            abort = asyncio.create_task(transactions.end(False, 60))
            await bench.settle()
            slow.set()
            await abort
            # The coordinator has begun a transaction: left open, it would be ended when too old, the producer fenced.
            assert coordinator.said[-4:] == ["AddPartitionsToTxn", "AddPartitionsToTxn done", "EndTxn", "EndTxn done"]
            assert transactions.state is State.READY

    asyncio.run(work())


def test_a_prepared_transaction_has_what_was_sent_while_it_was_prepared() -> None:
    async def work() -> None:
        async with begun() as (bench, coordinator, transactions):
            slow = coordinator.hold("TxnOffsetCommit")
            offsets = asyncio.create_task(transactions.send_offsets({TopicPartition("t", 0): 5}, "g", 60))
            await coordinator.until("TxnOffsetCommit")
            prepared = asyncio.create_task(transactions.prepare(60))
            await bench.settle()
            late = bench.send(b"late")
            slow.set()
            await offsets
            await bench.settle()
            assert not prepared.done()
            await bench.answer_all()
            assert await prepared is not None
            assert late.succeeded() and transactions.state is State.PREPARED
            with pytest.raises(IllegalState):
                bench.send(b"too late")

    asyncio.run(work())


def test_an_abort_waits_for_offsets_that_took_too_long() -> None:
    async def work() -> None:
        async with begun() as (bench, coordinator, transactions):
            slow = coordinator.hold("TxnOffsetCommit")
            with pytest.raises(KafkaTimeout, match="send_offsets_to_transaction took longer"):
                await transactions.send_offsets({TopicPartition("t", 0): 5}, "g", 0.05)
            abort = asyncio.create_task(transactions.end(False, 60))
            await bench.settle()
            slow.set()
            await abort
            # Offsets that came after the end would belong to the next transaction.
            assert coordinator.said[-3:] == ["TxnOffsetCommit done", "EndTxn", "EndTxn done"]

    asyncio.run(work())


def test_an_abort_that_took_too_long_may_be_repeated_though_offsets_were_sent_meanwhile() -> None:
    async def work() -> None:
        async with begun() as (bench, coordinator, transactions):
            slow = coordinator.hold("TxnOffsetCommit")
            offsets = asyncio.create_task(transactions.send_offsets({TopicPartition("t", 0): 5}, "g", 60))
            await coordinator.until("TxnOffsetCommit")
            with pytest.raises(KafkaTimeout, match="may be called again"):
                await transactions.end(False, 0.01)
            slow.set()
            await offsets
            await coordinator.until("EndTxn done")
            await bench.settle()
            await transactions.end(False, 60)
            transactions.begin()

    asyncio.run(work())


def test_offsets_that_failed_after_the_program_had_given_up_waiting_fail_the_commit() -> None:
    async def work() -> None:
        async with begun() as (bench, coordinator, transactions):
            slow = asyncio.Event()

            async def refuse(node_id: int | None, request: Any, **options: Any) -> Any:
                if not isinstance(request, TxnOffsetCommitRequest):
                    return await coordinator.request(node_id, request)
                await slow.wait()
                raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)

            bench.cluster.request = refuse  # type: ignore[method-assign]
            with pytest.raises(KafkaTimeout):
                await transactions.send_offsets({TopicPartition("t", 0): 5}, "g", 0.05)
            commit = asyncio.create_task(transactions.end(True, 60))
            await bench.settle()
            slow.set()
            with pytest.raises(KafkaError, match="must be aborted"):
                await commit
            assert "EndTxn" not in coordinator.said
            await transactions.end(False, 60)
            assert "EndTxn done" in coordinator.said

    asyncio.run(work())


def test_a_producer_that_is_fenced_while_it_commits_stays_of_no_use() -> None:
    async def work() -> None:
        async with begun() as (bench, _, transactions):
            bench.send(b"a")
            commit = asyncio.create_task(transactions.end(True, 60))
            await bench.answer("PRODUCER_FENCED")
            with pytest.raises(KafkaError) as raised:
                await commit
            assert raised.value.code == ErrorCode.PRODUCER_FENCED
            assert transactions.state is State.FATAL

    asyncio.run(work())


def test_to_close_a_producer_waits_for_the_commit_that_is_under_way() -> None:
    async def work() -> None:
        async with begun() as (bench, coordinator, transactions):
            bench.send(b"a")
            await bench.answer_all()
            slow = coordinator.hold("EndTxn")
            with pytest.raises(KafkaTimeout):
                await transactions.end(True, 0.01)
            closing = asyncio.create_task(bench.core.close(60))
            await bench.settle()
            assert not bench.cluster.closed
            slow.set()
            await closing
            assert transactions.state is State.READY
            assert coordinator.said[-1] == "EndTxn done"

    asyncio.run(work())
