"""The asyncio consumer against a real broker."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from kavka import ConcurrentAccess, OffsetAndMetadata, TopicPartition, Wakeup
from kavka.aio import Consumer
from kavka.client.errors import ClientClosed, IllegalState
from tests.support.our_consumer import fill, group_settings, make_topic, numbers


async def read(consumer: Consumer, count: int, timeout: float = 30.0) -> list[Any]:
    records: list[Any] = []
    async with asyncio.timeout(timeout):
        while len(records) < count:
            records += await consumer.poll(0.2)
    return records


@contextlib.asynccontextmanager
async def assigned(servers: str, topic: str, **settings: Any) -> AsyncIterator[Consumer]:
    async with Consumer(bootstrap_servers=servers, auto_offset_reset="earliest", **settings) as consumer:
        await consumer.assign([(topic, 0)])
        yield consumer


def test_a_group_is_read_with_async_for(servers: str, topic: str, protocol: str) -> None:
    fill(servers, topic, numbers(100))
    events: list[Any] = []

    async def main() -> None:
        async def on_assigned(partitions: set[TopicPartition]) -> None:
            await asyncio.sleep(0.01)
            events.append(("assigned", partitions))

        settings = group_settings(protocol) | {"group_id": f"g-{topic}"}
        async with Consumer(bootstrap_servers=servers, **settings) as consumer:
            await consumer.subscribe(
                [topic], on_assigned=on_assigned, on_revoked=lambda p: events.append(("revoked", p))
            )
            values = []
            async for record in consumer:
                values.append(record.value)
                if len(values) == 60:
                    break
            assert values == numbers(60)
            await consumer.commit_sync()
            tp = TopicPartition(topic, 0)
            assert (await consumer.committed([tp]))[tp] == OffsetAndMetadata(60, "", 0)
            assert await consumer.position(tp) == 60
            assert await consumer.lag(tp) == await consumer.current_lag(tp) == 40
            assert consumer.group_metadata().member_id
        async with Consumer(bootstrap_servers=servers, **settings) as consumer:
            await consumer.subscribe([topic])
            assert [r.value for r in await read(consumer, 40)] == numbers(40, 60)

    asyncio.run(main())
    partitions = {TopicPartition(topic, 0)}
    assert events == [("assigned", partitions), ("revoked", partitions)]


def test_methods_of_the_blocking_consumer_are_available(servers: str, topic: str) -> None:
    fill(servers, topic, numbers(20))

    async def main() -> None:
        tp = TopicPartition(topic, 0)
        async with assigned(servers, topic, group_id=f"g-{topic}") as consumer:
            assert len(await read(consumer, 20)) == 20
            await consumer.seek(tp, 5)
            assert (await read(consumer, 1))[0].offset == 5
            await consumer.seek_to_beginning()
            assert await consumer.position(tp) == 0
            await consumer.seek_to_end([tp])
            assert await consumer.position(tp) == 20
            assert await consumer.lag(tp) == 0
            await consumer.pause([tp])
            assert consumer.paused() == {tp}
            await consumer.resume([tp])
            assert await consumer.beginning_offsets([tp]) == {tp: 0}
            assert await consumer.end_offsets([tp]) == {tp: 20}
            assert (await consumer.offsets_for_times({tp: 0}))[tp].offset == 0  # type: ignore[union-attr]
            assert topic in await consumer.list_topics()
            assert len(await consumer.partitions_for(topic)) == 1
            callbacks: list[Any] = []
            await consumer.commit_async({tp: 3}, lambda offsets, error: callbacks.append((offsets, error)))
            while not callbacks:
                await consumer.poll(0.1)
            assert callbacks == [({tp: OffsetAndMetadata(3)}, None)]
            await consumer.seek(tp, 0)
            batch = await consumer.poll_arrow(10)
            assert batch is not None and batch["value"].to_pylist() == numbers(20)
            await consumer.seek(tp, 0)
            batch = await consumer.poll_arrow(10, views=True)
            assert batch is not None and batch["value"].to_pylist() == numbers(20)
            assert consumer.metrics()["records-consumed-total"] >= 40
            assert consumer.assignment() == {tp}
            await consumer.unsubscribe()
            with pytest.raises(IllegalState):
                await consumer.poll()

    asyncio.run(main())


def test_a_cancelled_poll_loses_no_record(servers: str, topic: str, protocol: str) -> None:
    async def main() -> None:
        settings = group_settings(protocol) | {"group_id": f"g-{topic}"}
        async with Consumer(bootstrap_servers=servers, **settings) as consumer:
            await consumer.subscribe([topic])
            for _ in range(30):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.01):
                        await consumer.poll(5)
            await asyncio.to_thread(fill, servers, topic, numbers(300))
            records: list[Any] = []
            deadline = time.monotonic() + 30
            while len(records) < 300 and time.monotonic() < deadline:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.02):
                        records += await consumer.poll(5, max_records=7)
            assert [r.value for r in records] == numbers(300)

    asyncio.run(main())


def test_a_concurrent_poll_is_rejected_and_wakeup_ends_the_first(servers: str, topic: str) -> None:
    make_topic(servers, topic)

    async def main() -> None:
        async with assigned(servers, topic) as consumer:
            pending_poll = asyncio.create_task(consumer.poll(30))
            await asyncio.sleep(0.2)
            with pytest.raises(ConcurrentAccess):
                await consumer.poll()
            # Other calls are allowed during a poll.
            assert await consumer.position((topic, 0)) == 0
            consumer.wakeup()
            with pytest.raises(Wakeup):
                await pending_poll
            pending_poll = asyncio.create_task(consumer.poll(30))
            await asyncio.sleep(0.1)
            await consumer.close()
            with pytest.raises(ClientClosed):
                await pending_poll

    asyncio.run(main())


def test_a_consumer_that_is_not_started_raises_an_error(topic: str) -> None:
    async def main() -> None:
        consumer = Consumer(bootstrap_servers="127.0.0.1:1")
        with pytest.raises(IllegalState, match="not started"):
            await consumer.assign([(topic, 0)])
        await consumer.close()
        with pytest.raises(ClientClosed):
            await consumer.poll()

    asyncio.run(main())


def test_members_on_one_event_loop_share_a_topic(servers: str, topic: str, protocol: str) -> None:
    make_topic(servers, topic, 4)

    async def main() -> None:
        settings = group_settings(protocol, "cooperative-sticky") | {"group_id": f"g-{topic}"}
        records: list[Any] = []

        async def member() -> None:
            async with Consumer(bootstrap_servers=servers, **settings) as consumer:
                await consumer.subscribe([topic])
                while len(records) < 1000:
                    records.extend(await consumer.poll(0.1))

        members = [asyncio.create_task(member()) for _ in range(3)]
        await asyncio.sleep(1.0)
        await asyncio.to_thread(fill, servers, topic, numbers(1000))
        async with asyncio.timeout(40):
            await asyncio.gather(*members)
        assert sorted(r.value for r in records) == sorted(numbers(1000))

    asyncio.run(main())


def test_a_record_whose_handler_is_cancelled_is_not_committed(servers: str, topic: str, protocol: str) -> None:
    fill(servers, topic, numbers(100))
    settings = group_settings(protocol) | {"group_id": f"g-{topic}", "bootstrap_servers": servers}

    async def main() -> None:
        handling = asyncio.Event()

        async def handle() -> None:
            async with Consumer(**settings) as consumer:
                await consumer.subscribe([topic])
                async for record in consumer:
                    if record.offset == 25:
                        handling.set()
                        await asyncio.sleep(3600)

        task = asyncio.create_task(handle())
        async with asyncio.timeout(60):
            await asyncio.wait({task, asyncio.ensure_future(handling.wait())}, return_when=asyncio.FIRST_COMPLETED)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with Consumer(**settings) as other:
            tp = TopicPartition(topic, 0)
            assert (await other.committed([tp]))[tp] == OffsetAndMetadata(25, "", 0)

    asyncio.run(main())
