"""Leaders and followers with real logs and real handlers, in one process."""

from __future__ import annotations

import asyncio

from kavka.common.errors import ErrorCode
from tests.unit.replication.replicas_world import World, batch, in_world


def test_followers_copy_byte_for_byte_and_acks_all_waits_for_them(tmp_path):
    async def body(world: World) -> None:
        await world.elect(0, isr=[0, 1, 2])
        for n in range(20):
            answer = await world.committed(3, size=100)
            assert (answer.error_code, answer.base_offset) == (0, 3 * n)
            assert all(world.log(b).end_offset == 3 * n + 3 for b in (0, 1, 2))
        await world.caught_up()
        assert len(set(world.digests().values())) == 1

    in_world(tmp_path, body)


def test_a_record_is_not_committed_before_every_member_of_the_isr_has_it(tmp_path):
    async def body(world: World) -> None:
        world.cut.add(frozenset((0, 2)))
        await world.elect(0, isr=[0, 1, 2])
        waiting = world.produce(batch())
        await world.until(lambda: world.log(1).end_offset == 1)
        await asyncio.sleep(0.05)
        assert not waiting.done()
        assert world.log(0).high_watermark == 0
        world.cut.clear()
        assert (await waiting).responses[0].partition_responses[0].error_code == 0
        assert world.log(0).high_watermark == 1

    in_world(tmp_path, body)


def test_a_new_leader_has_all_that_was_acknowledged_and_the_old_one_drops_what_was_not(tmp_path):
    async def body(world: World) -> None:
        await world.elect(0, isr=[0, 1, 2])
        for _ in range(5):
            await world.committed()
        world.cut |= {frozenset((0, 1)), frozenset((0, 2))}
        lost = world.produce(batch(4))  # nobody fetches it
        await world.elect(1, isr=[1, 2], to=[1, 2])
        assert (await world.committed(2)).error_code == 0
        assert world.log(0).end_offset == 9
        world.cut.clear()
        await world.tell([0])
        assert (await lost).responses[0].partition_responses[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        await world.until(lambda: world.log(0).end_offset == 7)
        await world.until(lambda: world.isr == [0, 1, 2])
        await world.caught_up()
        assert len(set(world.digests().values())) == 1

    in_world(tmp_path, body)


def test_a_killed_broker_comes_back_and_catches_up(tmp_path):
    async def body(world: World) -> None:
        await world.elect(0, isr=[0, 1, 2])
        await world.committed(5)
        await world.kill(0)
        await world.elect(1, isr=[1, 2])
        await world.committed(5)
        world.start(0)
        await world.tell([0])
        await world.until(lambda: 0 in world.isr)
        await world.caught_up()
        assert world.log(0).end_offset == 10
        assert len(set(world.digests().values())) == 1

    in_world(tmp_path, body)
