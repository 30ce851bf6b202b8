"""Replication throttling, and the choice of the replica that a consumer reads from."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from kavka.replication.partition_state import CommittedIsr
from kavka.replication.read_replica import Candidate, choose
from kavka.replication.throttle import Throttle, is_throttled
from tests.unit.replication.replicas_world import QUICK, World, in_world


def test_a_quiet_time_allows_a_burst_that_expires_with_its_window():
    throttle = Throttle(100, max_samples=11, sample_s=1.0)
    assert not throttle.is_exceeded(0.0)
    throttle.record(1000, 0.0)
    assert throttle.measure(0.0) == 100
    assert not throttle.is_exceeded(0.0)
    throttle.record(60, 0.5)
    assert throttle.is_exceeded(0.5)
    assert not throttle.is_exceeded(11.5)
    assert throttle.measure(11.5) == 0


def test_a_steady_flow_is_measured_at_its_rate():
    throttle = Throttle(100, max_samples=11, sample_s=1.0)
    for n in range(200):
        throttle.record(10, n / 10)
    assert throttle.measure(20.0) == pytest.approx(100, rel=0.1)
    assert throttle.is_exceeded(20.0) == (throttle.measure(20.0) > 100)


@pytest.mark.parametrize(
    ("replicas", "partition", "broker", "expected"),
    [((), 0, 1, False), (("*",), 7, 1, True), (("0:1", "2:3"), 2, 3, True), (("0:1", "2:3"), 2, 1, False)],
)
def test_which_replicas_are_throttled(replicas, partition, broker, expected):
    assert is_throttled(replicas, partition, broker) is expected


def test_a_consumer_reads_in_its_rack_if_possible():
    leader = Candidate(100, 50.0, 0, "a")
    followers = [Candidate(90, 40.0, 1, "b"), Candidate(95, 30.0, 2, "b"), Candidate(95, 45.0, 3, "b")]
    assert choose("b", leader, followers) == 3
    assert choose("a", leader, followers) == 0
    assert choose("", leader, followers) == 0
    assert choose("c", leader, followers) == 0


@pytest.mark.parametrize("side", ["leader", "follower"])
def test_a_throttled_replica_catches_up_at_its_rate(tmp_path, side):
    rate = 20_000

    async def body(world: World) -> None:
        world.disconnect((0, 1))
        await world.elect(0, isr=[0])
        for _ in range(40):
            await world.produce_and_wait(1, size=1000)
        world.reconnect()
        started = world.now()
        await world.until(lambda: world.isr == [0, 1])
        # The window is one second, so the throttle permits a burst of one second's bytes.
        assert 40_000 / rate - 1.0 < world.now() - started < 40_000 / rate + 3.0
        # A follower in sync is not throttled.
        started = world.now()
        for _ in range(40):
            await world.produce_and_wait(1, size=1000)
        assert world.now() - started < 0.1

    settings = replace(
        QUICK,
        quota_sample_s=0.1,
        fetch_max_bytes=2000,
        fetch_wait_max_ms=20,
        **{f"{side}_throttled_rate": rate},
    )
    in_world(
        tmp_path, body, brokers=(0, 1), settings=settings, **{f"{side}_replication_throttled_replicas": ("0:0", "0:1")}
    )


def test_consumers_are_sent_to_a_follower_in_their_rack_and_can_read_there(tmp_path):
    async def body(world: World) -> None:
        await world.elect(0, isr=[0, 1])
        await world.produce_and_wait(3)
        await world.until_caught_up()
        # The leader learns the follower's position from its next fetch.
        await world.until(lambda: world.partition(0).leader_role.followers[1].end_offset == 3)
        read = world.fetch_in("rack-1", 0)
        assert read.preferred_read_replica == 1
        assert not read.records
        assert world.fetch_in("rack-0", 0).preferred_read_replica == -1
        assert world.fetch_in("rack-9", 0).preferred_read_replica == -1
        assert world.fetch_in("", 0).records
        follower_read = world.fetch_in("rack-1", 0, at=1)
        assert follower_read.preferred_read_replica == -1
        assert len(follower_read.records) == len(world.fetch_in("rack-0", 0).records)
        pending = world.fetch_in("rack-1", 3, at=1, max_wait_ms=10_000)
        await world.produce_and_wait(1)
        response = await asyncio.wait_for(pending, 10)
        assert len(response.responses[0].partitions[0].records)
        # A follower out of sync is not chosen.
        world.partition(0).isr_state = CommittedIsr(frozenset((0,)), frozenset((0,)))
        assert world.fetch_in("rack-1", 0).preferred_read_replica == -1

    in_world(tmp_path, body, brokers=(0, 1), settings=replace(QUICK, rack_aware=True))
