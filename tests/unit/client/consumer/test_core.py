"""The consumer without a broker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from kavka.client.consumer.classic import ClassicMember
from kavka.client.consumer.consumer import Consumer
from kavka.client.consumer.core import ConsumerCore
from kavka.client.consumer.member_states import MemberState
from kavka.client.consumer_config import consumer_config
from kavka.client.errors import IllegalState
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition as TP
from kavka.protocol.messages.heartbeat import HeartbeatResponse


@asynccontextmanager
async def consumer(**settings: Any) -> AsyncIterator[ConsumerCore]:
    """A consumer of a cluster that cannot be reached."""

    async def call(function: Any, *args: Any) -> Any:
        return function(*args)

    config = consumer_config({"bootstrap.servers": "127.0.0.1:1"}, settings)
    core = ConsumerCore(config, call, lambda: None, lambda: None)
    await core.start()
    try:
        yield core
    finally:
        await core.close(0.01)


def test_waiting_for_a_position_ends_when_the_partition_is_unassigned() -> None:
    async def work() -> None:
        async with consumer() as core:
            await core.assign([TP("t", 0)])
            waiting = asyncio.create_task(core.queries.position(TP("t", 0), time.monotonic() + 5))
            await asyncio.sleep(0.01)
            await core.assign([TP("t", 1)])
            await core.positions.stop()
            with pytest.raises(IllegalState, match="t-0 is not assigned"):
                await waiting

    asyncio.run(work())


def test_each_partition_error_is_raised_by_one_poll() -> None:
    async def work() -> None:
        async with consumer() as core:
            await core.assign([TP("t", 0), TP("t", 1)])
            for partition in (0, 1, 0):
                state = core.subscriptions.partitions[TP("t", partition)]
                error = KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"partition {partition}")
                core._on_fetch_error(state, state.version, error)
            for partition in (0, 1):
                assert core.has_poll_work
                with pytest.raises(KafkaError, match=f"partition {partition}"):
                    await core.run_poll_work(time.monotonic())
            await core.run_poll_work(time.monotonic())

    asyncio.run(work())


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("end", ["close", "unsubscribe"])
def test_partitions_are_revoked_once_if_the_consumer_closes_during_a_rebalance(protocol: str, end: str) -> None:
    async def work() -> None:
        async with consumer(group_id="g", group_protocol=protocol, request_timeout_ms=10) as core:
            notified: list[Collection[TP]] = []

            class Listener:
                def on_partitions_revoked(self, partitions: Collection[TP]) -> None:
                    notified.append(partitions)

                on_partitions_lost = on_partitions_revoked

            core.subscribe(["t"], Listener())
            core.subscriptions.set_partitions([TP("t", 0)])
            assert core.member is not None
            core.member.generation = 1
            committing, committed = asyncio.Event(), asyncio.Event()

            async def commit(deadline: float) -> None:
                committing.set()
                await committed.wait()

            core.commit_positions = commit  # type: ignore[method-assign]
            give_up = partial(core.member._give_up, [TP("t", 0)], "revoked")
            revocation = asyncio.create_task(core.run_in_poll(give_up))
            await asyncio.sleep(0)
            await core.poll_tasks.run(0)
            await committing.wait()
            ending = asyncio.create_task(core.close(30) if end == "close" else core.unsubscribe())
            await asyncio.sleep(0.05)
            committed.set()
            await asyncio.gather(revocation, ending, return_exceptions=True)
            assert notified == [{TP("t", 0)}]
            assert not core.subscriptions.partitions

    asyncio.run(work())


def test_listener_may_unsubscribe() -> None:
    async def work() -> None:
        async with consumer(group_id="g") as core:

            class Listener:
                async def on_partitions_assigned(self, partitions: Collection[TP]) -> None:
                    await core.unsubscribe()

            async def call(function: Any, *args: Any) -> Any:
                return await function(*args)

            core.call_user = call
            core.subscribe(["t"], Listener())
            core.has_poll_work = False
            asyncio.get_running_loop().create_task(
                core.run_in_poll(lambda: core.notify_listener("assigned", [TP("t", 0)]))
            )
            await asyncio.sleep(0)
            async with asyncio.timeout(20):
                await core.poll_tasks.run(time.monotonic() + 60)
            assert not core.subscriptions.uses_group

    asyncio.run(work())


@pytest.mark.parametrize(
    ("code", "keeps_id"),
    [
        (ErrorCode.FENCED_INSTANCE_ID, True),
        (ErrorCode.ILLEGAL_GENERATION, True),
        (ErrorCode.UNKNOWN_MEMBER_ID, False),
    ],
)
@pytest.mark.parametrize("source", ["heartbeat", "commit"])
def test_replaced_static_member_keeps_its_id(code: ErrorCode, keeps_id: bool, source: str) -> None:
    async def work() -> None:
        async with consumer(group_id="g", group_instance_id="i") as core:
            core.subscribe(["t"], None)
            member = core.member
            assert isinstance(member, ClassicMember)
            member.generation, member.member_id, member.state = 3, "m", MemberState.STABLE

            async def respond(*args: Any, **keywords: Any) -> HeartbeatResponse:
                return HeartbeatResponse(error_code=code)

            core.coordinator.send = respond  # type: ignore[method-assign]
            if source == "heartbeat":
                await member._heartbeat()
            else:
                member.on_request_failed(member.identity(), code)
            # With its id the member is fenced again; without it, it would replace the new instance.
            assert (member.generation, member.member_id) == (-1, "m" if keeps_id else "")

    asyncio.run(work())


@pytest.mark.parametrize("between_polls", [False, True], ids=["in a poll", "between two polls"])
def test_partitions_are_removed_when_the_listener_returns(between_polls: bool) -> None:
    revoked: list[Collection[TP]] = []

    def on_revoked(partitions: Collection[TP]) -> None:
        time.sleep(0.1)
        revoked.append(partitions)
        # A nested poll does not wait for the listener.
        reader.poll(0.0)

    with Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "enable.auto.commit": between_polls}) as reader:
        reader.subscribe(["t"], on_revoked=on_revoked, on_lost=lambda partitions: None)
        core = reader._core
        committed = asyncio.Event()

        async def commit(deadline: float) -> None:
            await committed.wait()

        core.commit_positions = commit  # type: ignore[method-assign]

        def start_revocation() -> None:
            core.subscriptions.set_partitions([TP("t", 0)])
            assert core.member is not None
            asyncio.get_running_loop().create_task(
                core.run_in_poll(partial(core.member._give_up, [TP("t", 0)], "revoked"))
            )

        reader._call_on_loop(start_revocation)
        deadline = time.monotonic() + 60
        while between_polls and not core.poll_tasks.is_in_listener and time.monotonic() < deadline:
            if not core.poll_tasks.is_running:
                reader.poll(0.0)
            else:
                reader._io.call_soon(committed.set)
                time.sleep(0.001)
        while not revoked and time.monotonic() < deadline:
            reader.poll(0.0)
        # The assignment does not change between two polls.
        reader.pause(reader.assignment())
        assert revoked == [{TP("t", 0)}]
        assert reader.assignment() == set()
        reader.close(0.1)
