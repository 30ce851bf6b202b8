"""What a consumer does for the calls of a program, without a broker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from kavka.client.consumer.classic import ClassicMember, State
from kavka.client.consumer.consumer import Consumer
from kavka.client.consumer.core import ConsumerCore
from kavka.client.consumer_config import consumer_config
from kavka.client.errors import IllegalState
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition as TP
from kavka.protocol.messages.heartbeat import HeartbeatResponse


@asynccontextmanager
async def consumer(**settings: Any) -> AsyncIterator[ConsumerCore]:
    """Of a cluster that cannot be reached."""

    async def call(function: Any, *args: Any) -> Any:
        return function(*args)

    config = consumer_config({"bootstrap.servers": "127.0.0.1:1"}, settings)
    core = ConsumerCore(config, call, lambda: None, lambda: None)
    await core.start()
    try:
        yield core
    finally:
        await core.close(0.01)


def test_the_position_of_a_partition_that_is_taken_away_meanwhile_is_not_waited_for() -> None:
    async def work() -> None:
        async with consumer() as core:
            await core.assign([TP("t", 0)])
            waiting = asyncio.create_task(core.position(TP("t", 0), time.monotonic() + 5))
            await asyncio.sleep(0.01)
            await core.assign([TP("t", 1)])
            await core.positions.stop()
            with pytest.raises(IllegalState, match="t-0 is not assigned"):
                await waiting

    asyncio.run(work())


def test_every_partition_that_cannot_be_fetched_is_reported_once_by_one_poll_each() -> None:
    async def work() -> None:
        async with consumer() as core:
            await core.assign([TP("t", 0), TP("t", 1)])
            for partition in (0, 1, 0):
                state = core.subscriptions.partitions[TP("t", partition)]
                error = KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"partition {partition}")
                core._on_problem(state, state.version, error)
            for partition in (0, 1):
                assert core.attention
                with pytest.raises(KafkaError, match=f"partition {partition}"):
                    await core.attend(time.monotonic())
            await core.attend(time.monotonic())

    asyncio.run(work())


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("end", ["close", "unsubscribe"])
def test_what_a_poll_has_begun_to_give_up_is_given_up_once(protocol: str, end: str) -> None:
    async def work() -> None:
        async with consumer(group_id="g", group_protocol=protocol) as core:
            heard: list[Collection[TP]] = []

            class Listener:
                def on_partitions_revoked(self, partitions: Collection[TP]) -> None:
                    heard.append(partitions)

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
            given_up = asyncio.create_task(core.errand(give_up))
            await asyncio.sleep(0)
            await core._do_errands(0)
            await committing.wait()
            ending = asyncio.create_task(core.close(30) if end == "close" else core.unsubscribe())
            await asyncio.sleep(0.05)
            committed.set()
            await asyncio.gather(given_up, ending, return_exceptions=True)
            assert heard == [{TP("t", 0)}]
            assert not core.subscriptions.partitions

    asyncio.run(work())


def test_a_listener_may_unsubscribe() -> None:
    async def work() -> None:
        async with consumer(group_id="g") as core:

            class Listener:
                async def on_partitions_assigned(self, partitions: Collection[TP]) -> None:
                    await core.unsubscribe()

            async def call(function: Any, *args: Any) -> Any:
                return await function(*args)

            core.call_user = call
            core.subscribe(["t"], Listener())
            core.attention = False
            asyncio.get_running_loop().create_task(core.errand(lambda: core.tell("assigned", [TP("t", 0)])))
            await asyncio.sleep(0)
            async with asyncio.timeout(20):
                await core._do_errands(time.monotonic() + 60)
            assert not core.subscriptions.by_group

    asyncio.run(work())


@pytest.mark.parametrize(
    ("code", "kept"),
    [
        (ErrorCode.FENCED_INSTANCE_ID, True),
        (ErrorCode.ILLEGAL_GENERATION, True),
        (ErrorCode.UNKNOWN_MEMBER_ID, False),
    ],
)
@pytest.mark.parametrize("heard_by", ["heartbeat", "commit"])
def test_a_static_member_that_another_has_replaced_does_not_throw_that_one_out(
    code: ErrorCode, kept: bool, heard_by: str
) -> None:
    async def work() -> None:
        async with consumer(group_id="g", group_instance_id="i") as core:
            core.subscribe(["t"], None)
            member = core.member
            assert isinstance(member, ClassicMember)
            member.generation, member.member_id, member.state = 3, "m", State.STABLE

            async def answer(*request: Any, **more: Any) -> HeartbeatResponse:
                return HeartbeatResponse(error_code=code)

            core.coordinator.send = answer  # type: ignore[method-assign]
            if heard_by == "heartbeat":
                await member._heartbeat()
            else:
                member.refused(member.identity(), code)
            # With its id it is told so again; without one it would be taken for the instance that comes back.
            assert (member.generation, member.member_id) == (-1, "m" if kept else "")

    asyncio.run(work())


@pytest.mark.parametrize("between", [False, True], ids=["in a poll", "between two polls"])
def test_when_a_poll_has_told_the_listener_of_partitions_they_are_gone(between: bool) -> None:
    told: list[Collection[TP]] = []

    def on_revoked(partitions: Collection[TP]) -> None:
        time.sleep(0.1)
        told.append(partitions)
        # A poll in a listener does not wait for the listener.
        reader.poll(0.0)

    with Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "enable.auto.commit": between}) as reader:
        reader.subscribe(["t"], on_revoked=on_revoked, on_lost=lambda partitions: None)
        core = reader._core
        committed = asyncio.Event()

        async def commit(deadline: float) -> None:
            await committed.wait()

        core.commit_positions = commit  # type: ignore[method-assign]

        def begin() -> None:
            core.subscriptions.set_partitions([TP("t", 0)])
            assert core.member is not None
            asyncio.get_running_loop().create_task(core.errand(partial(core.member._give_up, [TP("t", 0)], "revoked")))

        reader._on_loop(begin)
        deadline = time.monotonic() + 60
        while between and not core._telling and time.monotonic() < deadline:
            if not core._errand:
                reader.poll(0.0)
            else:
                reader._io.call_soon(committed.set)
                time.sleep(0.001)
        while not told and time.monotonic() < deadline:
            reader.poll(0.0)
        # What is assigned between two polls does not change.
        reader.pause(reader.assignment())
        assert told == [{TP("t", 0)}]
        assert reader.assignment() == set()
        reader.close(0.1)
