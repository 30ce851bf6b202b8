"""Transactions of the producer, with an in-memory broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kavka.client.errors import IllegalState, KafkaTimeout
from kavka.client.producer.transactions import TRANSITIONS, State, Transactions
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from kavka.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from kavka.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from kavka.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from kavka.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from tests.unit.client.producer.fake_broker import Bench


def test_transaction_begins_while_the_coordinator_is_not_in_the_metadata() -> None:
    async def work() -> None:
        async with Bench(transactional_id="t") as bench:
            transactions = bench.core.require_transactions()
            await transactions.init(10)
            bench.cluster.nodes = {}
            transactions.begin()
            assert transactions.state is State.IN_TRANSACTION

    asyncio.run(work())


class Coordinator:
    """Responds to the requests of a transaction, and records them in `events`. A request in `held`
    waits for its event."""

    def __init__(self, bench: Bench) -> None:
        self.events: list[str] = []
        self.held: dict[str, asyncio.Event] = {}
        bench.cluster.request = self.request  # type: ignore[method-assign]

    def hold(self, name: str) -> asyncio.Event:
        self.held[name] = asyncio.Event()
        return self.held[name]

    async def request(self, node_id: int | None, request: Any, **options: Any) -> Any:
        name = type(request).__name__.removesuffix("Request")
        self.events.append(name)
        if name in self.held:
            await self.held[name].wait()
        await asyncio.sleep(0)
        self.events.append(f"{name} done")
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

    async def until(self, event: str) -> None:
        async with asyncio.timeout(60):
            while event not in self.events:
                await asyncio.sleep(0.001)


@asynccontextmanager
async def begun() -> AsyncIterator[tuple[Bench, Coordinator, Transactions]]:
    """A producer in a transaction."""
    async with Bench(transactional_id="t") as bench:
        coordinator = Coordinator(bench)
        transactions = bench.core.require_transactions()
        await transactions.init(60)
        transactions.begin()
        yield bench, coordinator, transactions


def test_commit_that_timed_out_and_completed_may_be_repeated() -> None:
    async def work() -> None:
        async with Bench(transactional_id="t") as bench:
            coordinator = Coordinator(bench)
            transactions = bench.core.require_transactions()
            response = coordinator.hold("InitProducerId")
            with pytest.raises(KafkaTimeout, match="may be called again"):
                await transactions.init(0.01)
            response.set()
            await coordinator.until("InitProducerId done")
            await bench.settle()
            await transactions.init(60)
            with pytest.raises(IllegalState):
                await transactions.init(60)
            transactions.begin()
            bench.send(b"a")
            await bench.respond_all()
            response = coordinator.hold("EndTxn")
            with pytest.raises(KafkaTimeout, match="may be called again"):
                await transactions.end(True, 0.01)
            response.set()
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


def test_only_the_commit_is_allowed_after_it_timed_out() -> None:
    async def work() -> None:
        async with begun() as (bench, coordinator, transactions):
            bench.send(b"a")
            await bench.respond_all()
            response = coordinator.hold("EndTxn")
            with pytest.raises(KafkaTimeout, match="may be called again"):
                await transactions.end(True, 0.01)
            message = "is being committed or was committed: call commit_transaction again until it returns"
            with pytest.raises(IllegalState, match=message):
                await transactions.end(False, 60)
            with pytest.raises(IllegalState, match=message):
                bench.send(b"b")
            response.set()
            await coordinator.until("EndTxn done")
            await bench.settle()
            with pytest.raises(IllegalState, match="commit_transaction timed out and has completed since"):
                await transactions.end(False, 60)
            await transactions.end(True, 60)
            assert coordinator.events.count("EndTxn") == 1

    asyncio.run(work())


def test_abort_waits_for_add_partitions() -> None:
    async def work() -> None:
        async with begun() as (bench, coordinator, transactions):
            response = coordinator.hold("AddPartitionsToTxn")
            bench.send(b"a")
            await coordinator.until("AddPartitionsToTxn")
            abort = asyncio.create_task(transactions.end(False, 60))
            await bench.settle()
            response.set()
            await abort
            # The coordinator has an open transaction. Without EndTxn it would time out and fence
            # the producer.
            assert coordinator.events[-4:] == ["AddPartitionsToTxn", "AddPartitionsToTxn done", "EndTxn", "EndTxn done"]
            assert transactions.state is State.READY

    asyncio.run(work())


def test_prepared_transaction_includes_records_sent_during_prepare() -> None:
    async def work() -> None:
        async with begun() as (bench, coordinator, transactions):
            response = coordinator.hold("TxnOffsetCommit")
            offsets = asyncio.create_task(transactions.send_offsets({TopicPartition("t", 0): 5}, "g", 60))
            await coordinator.until("TxnOffsetCommit")
            prepared = asyncio.create_task(transactions.prepare(60))
            await bench.settle()
            late = bench.send(b"late")
            response.set()
            await offsets
            await bench.settle()
            assert not prepared.done()
            await bench.respond_all()
            assert await prepared is not None
            assert late.succeeded() and transactions.state is State.PREPARED
            with pytest.raises(IllegalState):
                bench.send(b"too late")

    asyncio.run(work())


def test_abort_waits_for_offset_commits_that_timed_out() -> None:
    async def work() -> None:
        async with begun() as (bench, coordinator, transactions):
            response = coordinator.hold("TxnOffsetCommit")
            with pytest.raises(KafkaTimeout, match="send_offsets_to_transaction did not complete"):
                await transactions.send_offsets({TopicPartition("t", 0): 5}, "g", 0.05)
            abort = asyncio.create_task(transactions.end(False, 60))
            await bench.settle()
            response.set()
            await abort
            # Offsets after EndTxn would belong to the next transaction.
            assert coordinator.events[-3:] == ["TxnOffsetCommit done", "EndTxn", "EndTxn done"]

    asyncio.run(work())


def test_abort_that_timed_out_during_offset_commits_may_be_repeated() -> None:
    async def work() -> None:
        async with begun() as (bench, coordinator, transactions):
            response = coordinator.hold("TxnOffsetCommit")
            offsets = asyncio.create_task(transactions.send_offsets({TopicPartition("t", 0): 5}, "g", 60))
            await coordinator.until("TxnOffsetCommit")
            with pytest.raises(KafkaTimeout, match="may be called again"):
                await transactions.end(False, 0.01)
            response.set()
            await offsets
            await coordinator.until("EndTxn done")
            await bench.settle()
            await transactions.end(False, 60)
            transactions.begin()

    asyncio.run(work())


def test_offsets_that_fail_after_a_timeout_fail_the_commit() -> None:
    async def work() -> None:
        async with begun() as (bench, coordinator, transactions):
            response = asyncio.Event()

            async def reject_offsets(node_id: int | None, request: Any, **options: Any) -> Any:
                if not isinstance(request, TxnOffsetCommitRequest):
                    return await coordinator.request(node_id, request)
                await response.wait()
                raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)

            bench.cluster.request = reject_offsets  # type: ignore[method-assign]
            with pytest.raises(KafkaTimeout):
                await transactions.send_offsets({TopicPartition("t", 0): 5}, "g", 0.05)
            commit = asyncio.create_task(transactions.end(True, 60))
            await bench.settle()
            response.set()
            with pytest.raises(KafkaError, match="must be aborted"):
                await commit
            assert "EndTxn" not in coordinator.events
            await transactions.end(False, 60)
            assert "EndTxn done" in coordinator.events

    asyncio.run(work())


def test_producer_fenced_during_a_commit_has_a_fatal_error() -> None:
    async def work() -> None:
        async with begun() as (bench, _, transactions):
            bench.send(b"a")
            commit = asyncio.create_task(transactions.end(True, 60))
            await bench.respond("PRODUCER_FENCED")
            with pytest.raises(KafkaError) as raised:
                await commit
            assert raised.value.code == ErrorCode.PRODUCER_FENCED
            assert transactions.state is State.FATAL_ERROR

    asyncio.run(work())


def test_close_waits_for_a_commit_in_progress() -> None:
    async def work() -> None:
        async with begun() as (bench, coordinator, transactions):
            bench.send(b"a")
            await bench.respond_all()
            response = coordinator.hold("EndTxn")
            with pytest.raises(KafkaTimeout):
                await transactions.end(True, 0.01)
            closing = asyncio.create_task(bench.core.close(60))
            await bench.settle()
            assert not bench.cluster.closed
            response.set()
            await closing
            assert transactions.state is State.READY
            assert coordinator.events[-1] == "EndTxn done"

    asyncio.run(work())


def test_every_state_is_reachable_and_only_the_table_allows_transitions() -> None:
    reachable = {State.UNINITIALIZED}
    for _ in State:
        reachable |= {target for state in reachable for target in TRANSITIONS[state]}
    assert reachable == set(State) == set(TRANSITIONS)

    async def work() -> None:
        async with Bench(transactional_id="t") as bench:
            transactions = bench.core.require_transactions()
            for source in State:
                for target in State:
                    transactions.state = source
                    if target in TRANSITIONS[source]:
                        transactions._transition(target)
                        assert transactions.state is target
                    else:
                        with pytest.raises(IllegalState, match="cannot be"):
                            transactions._transition(target)
                        assert transactions.state is source
            transactions.state = State.READY

    asyncio.run(work())


def test_fatal_error_between_commit_call_and_its_start_stays_fatal() -> None:
    async def work() -> None:
        async with begun() as (_, coordinator, transactions):
            commit = asyncio.create_task(transactions.end(True, 60))
            await asyncio.sleep(0)
            transactions.fail(KafkaError(ErrorCode.PRODUCER_FENCED))
            with pytest.raises(KafkaError) as raised:
                await commit
            assert raised.value.code == ErrorCode.PRODUCER_FENCED
            assert transactions.state is State.FATAL_ERROR
            assert "EndTxn" not in coordinator.events

    asyncio.run(work())
