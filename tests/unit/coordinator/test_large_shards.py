"""The event loop serves other requests while a large shard is loaded and unloaded."""

from __future__ import annotations

import asyncio

from kavka.broker.workers import Workers
from kavka.common.clock import SystemClock
from kavka.common.errors import ErrorCode, KafkaError
from kavka.coordinator.group import records
from kavka.coordinator.group.config import GroupConfig
from kavka.coordinator.group.records import CommittedOffset, OffsetRecord
from kavka.coordinator.group.shard import GroupShard
from kavka.coordinator.runtime import Runtime
from kavka.records.builder import plain_batch
from tests.support.turns import MAX_TURN_S, TurnMeter
from tests.unit.coordinator.fakes import FakeLog, FakePartition
from tests.unit.coordinator.harness import NO_TOPICS

GROUPS = 30_000
TOPIC = "__consumer_offsets"


def log_of_groups() -> FakeLog:
    log = FakeLog()
    now = SystemClock().now_ms()
    offsets = [
        records.encode(OffsetRecord(f"group-{n}", "topic", partition, CommittedOffset(n, 0, "", now, -1)))
        for n in range(GROUPS)
        for partition in range(3)
    ]
    for start in range(0, len(offsets), 10_000):
        log.append(memoryview(plain_batch(offsets[start : start + 10_000], now, 0)), 0)
    log.high_watermark = log.end_offset
    return log


def test_a_large_shard_is_loaded_and_unloaded_in_short_turns() -> None:
    log = log_of_groups()

    async def scenario() -> None:
        loop, workers, clock = asyncio.get_running_loop(), Workers(1), SystemClock()
        runtime: Runtime[GroupShard] = Runtime(
            TOPIC,
            lambda timers: GroupShard(clock, timers, GroupConfig(), NO_TOPICS),
            loop=loop,
            clock=clock,
            run_in_worker=workers.post,
        )
        partition = FakePartition(0, TOPIC, log)
        async with TurnMeter() as meter:
            runtime.on_leadership(partition, True)  # type: ignore[arg-type]
            while runtime.is_loading:
                await asyncio.sleep(0.02)
        shard = runtime.host(0).shard
        assert (len(shard.groups), shard.offsets.count()) == (GROUPS, 3 * GROUPS)
        assert meter.longest_s <= MAX_TURN_S, meter.longest_s
        groups = shard.groups
        async with TurnMeter() as meter:
            runtime.on_leadership(partition, False)  # type: ignore[arg-type]
            while groups:
                await asyncio.sleep(0.02)
        assert meter.longest_s <= MAX_TURN_S, meter.longest_s
        try:
            runtime.host(0)
        except KafkaError as error:
            assert error.code is ErrorCode.NOT_COORDINATOR
        workers.close()

    asyncio.run(scenario())
