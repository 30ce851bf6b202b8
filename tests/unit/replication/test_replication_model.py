"""Random histories of one partition on three brokers: leaders change, connections break, brokers
die and lose the ends of their files. In every history, committed records keep their offset, readers
below the high watermark see the same record at an offset, and in the end all logs have the same
bytes."""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kavka.records.batch import batches
from kavka.records.reader import batch_records
from kavka.replication.settings import ReplicationSettings
from kavka.storage.log_config import LogConfig
from tests.support.logs import build
from tests.unit.replication.replicas_world import World, run_with_virtual_clock

BROKERS = (0, 1, 2)
SETTINGS = ReplicationSettings(fetch_backoff_s=0.001, fetch_wait_max_ms=50, lag_time_max_s=1000.0)

brokers = st.sampled_from(BROKERS)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("produce"), st.integers(1, 4), st.sampled_from((-1, -1, 1))),
        st.tuples(st.just("turns"), st.integers(1, 30)),
        st.tuples(st.just("wait"), st.integers(1, 15)),
        st.tuples(st.just("elect"), brokers, st.booleans()),
        st.tuples(st.just("shrink")),
        st.tuples(st.just("disconnect"), brokers, brokers),
        st.tuples(st.just("reconnect")),
        st.tuples(st.just("kill"), brokers, st.integers(0, 400), st.booleans()),
        st.tuples(st.just("start"), brokers),
    ),
    min_size=5,
    max_size=40,
)


class History:
    """Runs operations on a world like a correct controller, and checks the invariants."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.numbers = itertools.count()
        self.pending: list[tuple[Any, list[bytes]]] = []
        self.leader_of: dict[Any, int] = {}  # by pending produce
        self.acknowledged: dict[int, bytes] = {}
        self.readable: dict[int, bytes] = {}

    async def run(self, operation: tuple[Any, ...]) -> None:
        await getattr(self, f"do_{operation[0]}")(*operation[1:])
        self.check()

    async def do_produce(self, count: int, acks: int) -> None:
        world = self.world
        if world.leader in world.nodes:
            values = [b"%d" % next(self.numbers) for _ in range(count)]
            data = build([(None, value) for value in values], timestamp=int(time.time() * 1000))
            result = world.produce(data, acks)
            if isinstance(result, asyncio.Future):
                self.pending.append((result, values))
                self.leader_of[result] = world.leader
            elif acks == -1:
                self._acknowledge(result, values)

    def _acknowledge(self, response: Any, values: list[bytes]) -> None:
        [result] = response.responses[0].partition_responses
        if result.error_code == 0:
            for n, value in enumerate(values):
                assert self.acknowledged.setdefault(result.base_offset + n, value) == value

    async def do_turns(self, count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(0)

    async def do_wait(self, milliseconds: int) -> None:
        await asyncio.sleep(milliseconds / 1000)

    async def do_elect(self, broker_id: int, sends_to_all: bool) -> None:
        """Elect another leader of the ISR. Some brokers get the order later."""
        world = self.world
        live = [b for b in world.isr if b in world.nodes]
        if live:
            leader = broker_id if broker_id in live else live[0]
            receivers = list(world.nodes) if sends_to_all else sorted({leader, *list(world.nodes)[:1]})
            await world.elect(leader, to=receivers)

    async def do_shrink(self) -> None:
        world = self.world
        if world.leader in world.nodes:
            world.partition(world.leader).leader_role.shrink_isr(world.now() + 10_000)
            await self.do_turns(10)

    async def do_disconnect(self, broker_id: int, other: int) -> None:
        if broker_id != other:
            self.world.disconnect((broker_id, other))

    async def do_reconnect(self) -> None:
        self.world.reconnect()

    async def do_kill(self, broker_id: int, lost_bytes: int, loses_epochs: bool) -> None:
        """The broker dies and loses the end of its last file. The controller removes it from the
        ISR and elects another leader. The only member of the ISR loses nothing, because no other
        broker has all records."""
        world = self.world
        if broker_id not in world.nodes:
            return
        is_only_member = world.isr == [broker_id]
        await world.kill(broker_id)
        self.pending = [(pending, values) for pending, values in self.pending if self.leader_of[pending] != broker_id]
        if not is_only_member:
            damage(world.folder / str(broker_id) / "t-0", lost_bytes, loses_epochs)
            world.isr = [b for b in world.isr if b != broker_id]
            if world.leader == broker_id:
                live = [b for b in world.isr if b in world.nodes]
                world.leader_epoch += 1
                world.leader = live[0] if live else -1
            world.partition_epoch += 1
            await world.send_order(world.nodes)
        elif world.leader == broker_id:
            world.leader, world.leader_epoch = -1, world.leader_epoch + 1
            world.partition_epoch += 1
            await world.send_order(world.nodes)

    async def do_start(self, broker_id: int) -> None:
        world = self.world
        if broker_id not in world.nodes:
            world.start(broker_id)
            if world.leader < 0 and broker_id in world.isr:
                await world.elect(broker_id)
            else:
                await world.send_order([broker_id])

    def check(self) -> None:
        """Check the readable records of every broker, and collect the acknowledged produces."""
        for pending, values in list(self.pending):
            if pending.done():
                self.pending.remove((pending, values))
                if not pending.cancelled():
                    self._acknowledge(pending.result(), values)
        for broker_id in self.world.nodes:
            for offset, value in records(self.world, broker_id).items():
                assert self.readable.setdefault(offset, value) == value, f"offset {offset} on broker {broker_id}"

    async def end(self) -> None:
        world = self.world
        world.reconnect()
        for broker_id in BROKERS:
            await self.do_start(broker_id)
        if world.leader < 0:
            await world.elect(world.isr[0])
        await world.send_order(world.nodes)
        await world.until(lambda: sorted(world.isr) == sorted(BROKERS), "all in sync")
        await world.until_caught_up()
        self.check()
        assert not self.pending
        readable = records(world, world.leader)
        for offset, value in self.acknowledged.items():
            assert readable.get(offset) == value, f"offset {offset} was acknowledged"
        assert len({contents(world, b) for b in BROKERS}) == 1
        assert len({tuple(epochs_with_records(world, b)) for b in BROKERS}) == 1


def damage(folder: Path, size: int, loses_epochs: bool) -> None:
    """Damage files that were not flushed, as a power loss does."""
    last = max(folder.glob("*.log"), default=None)
    if last is not None:
        os.truncate(last, max(0, last.stat().st_size - size))
    if loses_epochs:
        epochs = folder / "leader-epoch-checkpoint"
        if size % 2:
            epochs.unlink(missing_ok=True)
        else:
            epochs.write_bytes(b"")


def contents(world: World, broker_id: int) -> bytes:
    log = world.log(broker_id)
    return b"".join(segment.file.read(0, segment.size) for segment in log.segments)


def epochs_with_records(world: World, broker_id: int) -> list[tuple[int, int]]:
    """The epochs of the log's batches. A leader stores its epoch at once, a follower with the first
    batch of that epoch."""
    batch_epochs = {batch.leader_epoch for batch in batches(contents(world, broker_id))}
    return [entry for entry in world.log(broker_id).epochs.entries if entry[0] in batch_epochs]


def records(world: World, broker_id: int) -> dict[int, bytes]:
    """The values that a consumer of this replica can read, by offset."""
    if ("t", 0) not in world.nodes[broker_id].replicas.partitions:
        return {}
    log = world.log(broker_id)
    values: dict[int, bytes] = {}
    for segment in log.segments:
        for data in batches(segment.file.read(0, segment.size)):
            for record in batch_records(data):
                if record.offset < log.high_watermark:
                    values[record.offset] = bytes(record.value)
    return values


async def play(folder: Path, history: list[tuple[Any, ...]]) -> None:
    config = replace(LogConfig(), segment_bytes=600, index_interval_bytes=100)
    world = World(folder, BROKERS, SETTINGS, config)
    try:
        await world.elect(0, isr=list(BROKERS))
        player = History(world)
        for operation in history:
            await player.run(operation)
        await player.end()
    finally:
        for broker_id in list(world.nodes):
            await world.kill(broker_id)


@pytest.mark.timeout(1800)
@settings(
    max_examples=int(os.environ.get("KAVKA_REPLICATION_HISTORIES", "60")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(operations)
@example(
    # The high watermark reaches a follower only with a diverging epoch.
    [
        ("elect", 2, False),
        ("wait", 7),
        ("elect", 0, False),
        ("produce", 2, 1),
        ("turns", 29),
        ("elect", 0, True),
        ("wait", 9),
        ("elect", 1, False),
        ("produce", 2, 1),
        ("elect", 0, False),
        ("elect", 0, True),
        ("reconnect",),
    ]
)
def test_acknowledged_records_survive_every_history(history):
    with tempfile.TemporaryDirectory(prefix="replication-model-") as folder:
        run_with_virtual_clock(asyncio.wait_for(play(Path(folder), history), 600))
