"""Leaders and followers with real logs and real handlers, in one process."""

from __future__ import annotations

import asyncio
import errno
import os
from dataclasses import replace
from types import SimpleNamespace

import pytest

from kavka.client.errors import Disconnected
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.protocol.messages.alter_partition import AlterPartitionResponse
from kavka.replication import purgatory
from kavka.replication.fetcher_states import FetcherState
from kavka.replication.followed_partitions import FollowedPartitions
from kavka.replication.follower import FollowerRole
from kavka.replication.partition_state import CommittedIsr, PendingExpandIsr
from kavka.storage.producer_replay import PastProducers
from tests.unit.replication.replicas_world import QUICK, World, batch, in_world


def test_followers_copy_byte_for_byte_and_acks_all_waits_for_them(tmp_path):
    async def body(world: World) -> None:
        await world.elect(0, isr=[0, 1, 2])
        for n in range(20):
            result = await world.produce_and_wait(3, size=100)
            assert (result.error_code, result.base_offset) == (0, 3 * n)
            assert all(world.log(b).end_offset == 3 * n + 3 for b in (0, 1, 2))
        await world.until_caught_up()
        assert len(set(world.digests().values())) == 1

    in_world(tmp_path, body)


def test_a_record_is_committed_when_every_isr_member_has_it(tmp_path):
    async def body(world: World) -> None:
        world.disconnect((0, 2))
        await world.elect(0, isr=[0, 1, 2])
        pending = world.produce(batch())
        await world.until(lambda: world.log(1).end_offset == 1)
        await asyncio.sleep(0.05)
        assert not pending.done()
        assert world.log(0).high_watermark == 0
        world.reconnect()
        assert (await pending).responses[0].partition_responses[0].error_code == 0
        assert world.log(0).high_watermark == 1

    in_world(tmp_path, body)


def fail_as_if_a_segment_was_deleted(past: PastProducers) -> None:
    raise FileNotFoundError(errno.ENOENT, "deleted")


@pytest.mark.parametrize("replay", ["on the loop", "in a worker", "in a worker that fails"])
def test_a_new_leader_has_all_acknowledged_records_and_the_previous_leader_truncates(tmp_path, monkeypatch, replay):
    if replay != "on the loop":
        monkeypatch.setattr("kavka.storage.log.MAX_REPLAYED_ON_LOOP_BYTES", -1)
    if replay == "in a worker that fails":
        monkeypatch.setattr(PastProducers, "run", fail_as_if_a_segment_was_deleted)

    async def body(world: World) -> None:
        await world.elect(0, isr=[0, 1, 2])
        for _ in range(5):
            await world.produce_and_wait()
        world.disconnect((0, 1), (0, 2))
        uncommitted = world.produce(batch(4))  # no follower fetches it
        await world.elect(1, isr=[1, 2], to=[1, 2])
        assert (await world.produce_and_wait(2)).error_code == 0
        assert world.log(0).end_offset == 9
        world.reconnect()
        await world.send_order([0])
        assert (await uncommitted).responses[0].partition_responses[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        await world.until(lambda: world.log(0).end_offset == 7)
        await world.until(lambda: world.isr == [0, 1, 2])
        await world.until_caught_up()
        assert len(set(world.digests().values())) == 1

    in_world(tmp_path, body)


class WaitingRole(SimpleNamespace):
    """A follower role whose truncation waits for a worker."""

    def __init__(self, log: object) -> None:
        super().__init__(is_active=True, pending_truncation=object(), truncations=[])
        self.partition = SimpleNamespace(log=log, topic_partition=TopicPartition("t", 0))

    def prepare(self, log: object) -> None:
        return None

    def truncate_to(self, log: object, offset: int, past: object) -> None:
        self.truncations.append((log, offset))


def waiting_partitions(resumed: list[object]) -> FollowedPartitions:
    partitions = FollowedPartitions.__new__(FollowedPartitions)
    partitions._resume = resumed.append  # type: ignore[method-assign]
    return partitions


def test_a_log_that_moved_during_its_truncation_is_fetched_again() -> None:
    resumed: list[object] = []
    role = WaitingRole(log="moved")
    waiting_partitions(resumed)._on_producers_read(role, "old", 5, role.pending_truncation, None)
    assert (role.truncations, resumed, role.pending_truncation) == ([], [role], None)


def test_only_the_last_truncation_of_a_partition_is_applied() -> None:
    resumed: list[object] = []
    role, earlier = WaitingRole(log="log"), object()
    partitions = waiting_partitions(resumed)
    partitions._on_producers_read(role, "log", 5, earlier, None)
    assert (role.truncations, resumed) == ([], [])

    async def leader_offset(role: object, timestamp: int) -> int:
        return 0

    partitions._leader_offset = leader_offset  # type: ignore[method-assign]
    asyncio.run(partitions._move_into_range(role, -2))
    assert (role.truncations, resumed) == ([], []), "a late lookup resumed a partition whose truncation is pending"
    partitions._on_producers_read(role, "log", 7, role.pending_truncation, None)
    assert (role.truncations, resumed) == ([("log", 7)], [role])


def test_copied_records_are_acknowledged_when_the_new_leader_commits_them(tmp_path):
    async def body(world: World) -> None:
        world.disconnect((0, 2))
        await world.elect(0, isr=[0, 1, 2])
        pending = world.produce(batch(3))
        await world.until(lambda: world.log(1).end_offset == 3)
        assert not pending.done()
        await world.elect(1)
        result = (await pending).responses[0].partition_responses[0]
        assert (result.error_code, result.base_offset) == (0, 0)
        assert not world.partition(0).pending_appends
        await world.until_caught_up()
        assert {world.log(broker_id).end_offset for broker_id in (0, 1, 2)} == {3}

    in_world(tmp_path, body)


def test_a_produce_fails_after_the_leader_change_timeout_or_without_a_leader(tmp_path, monkeypatch):
    async def body(world: World) -> None:
        for leader in (1, -1):
            monkeypatch.setattr(purgatory, "LEADER_CHANGE_TIMEOUT_S", 1.0 if leader == 1 else 3600)
            await world.elect(0, isr=[0, 1, 2])
            world.disconnect((0, 1), (0, 2))
            pending = world.produce(batch(), timeout_ms=3_600_000)
            await world.elect(leader, to=[0])
            result = (await pending).responses[0].partition_responses[0]
            assert (result.error_code, result.base_offset) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
            assert not world.partition(0).pending_appends
            world.reconnect()

    in_world(tmp_path, body)


def test_a_killed_broker_restarts_and_catches_up(tmp_path):
    async def body(world: World) -> None:
        await world.elect(0, isr=[0, 1, 2])
        await world.produce_and_wait(5)
        await world.kill(0)
        await world.elect(1, isr=[1, 2])
        await world.produce_and_wait(5)
        world.start(0)
        await world.send_order([0])
        await world.until(lambda: 0 in world.isr)
        await world.until_caught_up()
        assert world.log(0).end_offset == 10
        assert len(set(world.digests().values())) == 1

    in_world(tmp_path, body)


def test_a_lagging_follower_leaves_and_rejoins_the_isr(tmp_path):
    async def body(world: World) -> None:
        await world.elect(0, isr=[0, 1, 2])
        await world.produce_and_wait()
        world.disconnect((0, 2))
        pending = world.produce(batch())
        await world.until(lambda: world.isr == [0, 1], "out of the ISR")
        assert (await pending).responses[0].partition_responses[0].error_code == 0
        assert world.partition(0).isr == {0, 1}
        assert world.partition(0).is_under_replicated
        world.reconnect()
        await world.until(lambda: world.isr == [0, 1, 2], "back in the ISR")
        await world.until_caught_up()
        assert not world.partition(0).is_under_replicated

    in_world(tmp_path, body, settings=replace(QUICK, lag_time_max_s=0.3))


def test_below_min_isr_acks_all_is_refused_and_the_high_watermark_stays(tmp_path):
    async def body(world: World) -> None:
        await world.elect(0, isr=[0])
        result = await world.produce_and_wait()
        assert result.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert world.produce(batch(), acks=1).responses[0].partition_responses[0].error_code == 0
        assert world.log(0).high_watermark == 0
        assert world.partition(0).is_under_min_isr
        world.refuse = lambda isr: None
        await world.until(lambda: world.log(0).high_watermark == 1)
        assert not world.partition(0).is_under_min_isr

    async def with_refused_followers(world: World) -> None:
        world.refuse = lambda isr: ErrorCode.INELIGIBLE_REPLICA
        await body(world)

    in_world(tmp_path, with_refused_followers, min_insync_replicas=2)


def test_records_appended_below_min_isr_get_an_error_after_the_append(tmp_path):
    async def body(world: World) -> None:
        await world.elect(0, isr=[0, 1])
        world.disconnect((0, 1))
        pending = world.produce(batch())
        await asyncio.sleep(0.01)
        # The follower leaves the ISR when the record is committed.
        partition = world.partition(0)
        partition.isr_state = CommittedIsr(frozenset((0,)), frozenset((0,)))
        partition.log.set_high_watermark(1)
        partition.check_pending()
        code = (await pending).responses[0].partition_responses[0].error_code
        assert code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND

    in_world(tmp_path, body, brokers=(0, 1), min_insync_replicas=2)


def test_truncation_on_a_full_disk_fails_the_produce_whose_records_it_removed(tmp_path, monkeypatch):
    async def body(world: World) -> None:
        await world.elect(0, isr=[0, 1])
        await world.produce_and_wait()
        await world.until_caught_up()
        world.disconnect((0, 1))
        pending = world.produce(batch())
        await world.elect(1, isr=[1], to=[1])
        for _ in range(3):
            await world.produce_and_wait()
        manager = world.nodes[0].log_manager
        truncate = manager.truncate_to

        def truncate_on_full_disk(tp: TopicPartition, offset: int, *args: object) -> None:
            monkeypatch.setattr(manager, "truncate_to", truncate)
            truncate(tp, offset)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(manager, "truncate_to", truncate_on_full_disk)
        world.reconnect()
        await world.send_order([0])
        code = (await pending).responses[0].partition_responses[0].error_code
        assert code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        await world.until_caught_up()
        assert len(set(world.digests().values())) == 1

    in_world(tmp_path, body, brokers=(0, 1))


@pytest.mark.parametrize("code", [ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED])
def test_a_refused_isr_change_is_proposed_again_by_the_next_fetch(tmp_path, code):
    async def body(world: World) -> None:
        world.refuse = lambda isr: code if len(world.isr_requests) < 3 else None
        await world.elect(0, isr=[0])
        await world.until(lambda: world.isr == [0, 1])
        assert world.isr_requests == [(0, [0, 1])] * 3
        assert world.partition(0).isr == {0, 1}

    in_world(tmp_path, body, brokers=(0, 1))


def test_an_ineligible_follower_does_not_hold_the_high_watermark_back(tmp_path):
    async def body(world: World) -> None:
        await world.elect(0, isr=[0, 1, 2])
        await world.produce_and_wait()
        # During a controlled shutdown a broker is out of the ISR and still fetches. It may not join
        # again.
        world.refuse = lambda isr: ErrorCode.INELIGIBLE_REPLICA if 2 in isr else None
        await world.elect(0, isr=[0, 1])
        await world.until(lambda: world.partition(0).leader_role.followers[2].is_ineligible)
        world.disconnect((0, 2), (1, 2))
        assert (await world.produce_and_wait()).error_code == 0
        world.reconnect()
        world.refuse = lambda isr: None
        await world.until(lambda: world.isr == [0, 1, 2])
        assert not world.partition(0).leader_role.followers[2].is_ineligible

    in_world(tmp_path, body)


def test_a_dead_follower_outside_the_isr_does_not_hold_the_high_watermark_back(tmp_path):
    async def body(world: World) -> None:
        world.refuse = lambda isr: ErrorCode.OPERATION_NOT_ATTEMPTED if 2 in isr else None
        await world.elect(0, isr=[0, 1])
        await world.until(lambda: world.isr_requests)
        partition = world.partition(0)
        world.disconnect((0, 2), (1, 2))
        pending = world.produce(batch())
        await world.until(lambda: partition.leader_role.followers[1].end_offset == 1)
        assert not pending.done()
        node = world.nodes[0]
        del node.cache.brokers[2]
        node.replicas.on_brokers_removed()
        assert (await pending).responses[0].partition_responses[0].error_code == 0

    in_world(tmp_path, body)


@pytest.mark.parametrize(
    "code", [ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.NEW_LEADER_ELECTED]
)
def test_after_a_refusal_for_stale_state_the_maximal_isr_counts_until_the_next_order(tmp_path, code):
    async def body(world: World) -> None:
        world.refuse = lambda isr: code
        await world.elect(0, isr=[0])
        await world.until(lambda: world.isr_requests)
        partition = world.partition(0)
        await asyncio.sleep(0.1)
        assert len(world.isr_requests) == 1
        assert partition.isr == {0}
        assert partition.maximal_isr == {0, 1}
        world.refuse = lambda isr: None
        await world.elect(0)
        await world.until(lambda: world.isr == [0, 1])

    in_world(tmp_path, body, brokers=(0, 1))


def test_a_pending_expand_makes_the_high_watermark_wait_for_the_new_member(tmp_path):
    async def body(world: World) -> None:
        may_respond = asyncio.Event()
        alter_partition = world.alter_partition

        async def delayed_response(request):
            await may_respond.wait()
            return await alter_partition(request)

        world.nodes[0].isr_changes._send = delayed_response
        await world.elect(0, isr=[0])
        partition = world.partition(0)
        await world.until(lambda: isinstance(partition.isr_state, PendingExpandIsr))
        world.disconnect((0, 1))
        await asyncio.sleep(0.3)
        pending = world.produce(batch())
        await asyncio.sleep(0.05)
        assert not pending.done()
        may_respond.set()
        await world.until(lambda: world.isr == [0, 1])
        await asyncio.sleep(0.05)
        assert not pending.done()
        world.reconnect()
        assert (await pending).responses[0].partition_responses[0].error_code == 0

    in_world(tmp_path, body, brokers=(0, 1))


def test_an_isr_change_is_retried_while_the_controller_is_unreachable(tmp_path):
    async def body(world: World) -> None:
        alter_partition = world.alter_partition
        failures = [Disconnected("closed"), KafkaError(ErrorCode.NOT_CONTROLLER), 77, ErrorCode.STALE_BROKER_EPOCH]

        async def fail_first(request):
            if failures:
                failure = failures.pop(0)
                if isinstance(failure, Exception):
                    raise failure
                return AlterPartitionResponse(error_code=int(failure))
            return await alter_partition(request)

        world.nodes[0].isr_changes._send = fail_first
        await world.elect(0, isr=[0])
        await world.until(lambda: world.isr == [0, 1])
        assert not failures

    in_world(tmp_path, body, brokers=(0, 1))


def test_delete_records_waits_for_the_live_replicas(tmp_path):
    async def body(world: World) -> None:
        await world.elect(0, isr=[0, 1, 2])
        for _ in range(5):
            await world.produce_and_wait(2)
        result = await world.delete_records(7)
        assert (result.error_code, result.low_watermark) == (0, 7)
        assert [world.log(b).start_offset for b in (0, 1, 2)] == [7, 7, 7]
        world.disconnect((0, 2))
        result = await world.delete_records(8, timeout_ms=100)
        assert (result.error_code, result.low_watermark) == (ErrorCode.REQUEST_TIMED_OUT, 7)
        await world.kill(2)
        result = await world.delete_records(9)
        assert (result.error_code, result.low_watermark) == (0, 9)

    in_world(tmp_path, body)


def test_a_follower_starts_in_the_middle_of_a_batch_like_its_leader(tmp_path):
    async def body(world: World) -> None:
        world.disconnect((0, 1))
        await world.elect(0, isr=[0])
        for _ in range(3):
            await world.produce_and_wait(10)
        assert world.log(0).delete_records_before(15) == 15
        world.reconnect()
        await world.until(lambda: world.isr == [0, 1])
        await world.until_caught_up()
        assert world.log(1).start_offset == 15
        assert world.log(1).segments[0].base_offset == 10

    in_world(tmp_path, body, brokers=(0, 1))


def test_a_follower_behind_the_leaders_start_offset_restarts_its_log(tmp_path):
    async def body(world: World) -> None:
        await world.elect(0, isr=[0, 1])
        await world.produce_and_wait(5)
        await world.until_caught_up()
        world.disconnect((0, 1))
        await world.elect(0, isr=[0])
        for _ in range(4):
            await world.produce_and_wait(5)
        world.log(0).roll()
        await world.produce_and_wait(5)
        world.log(0).delete_records_before(20)
        world.log(0).delete_old_segments()
        world.reconnect()
        await world.until(lambda: world.isr == [0, 1])
        await world.until_caught_up()
        assert world.log(1).start_offset == 20
        assert world.log(1).end_offset == 30

    in_world(tmp_path, body, brokers=(0, 1))


@pytest.mark.parametrize("in_worker", [False, True])
def test_after_an_unclean_election_a_longer_follower_truncates(tmp_path, monkeypatch, in_worker):
    if in_worker:
        monkeypatch.setattr("kavka.storage.log.MAX_REPLAYED_ON_LOOP_BYTES", -1)

    async def body(world: World) -> None:
        await world.elect(0, isr=[0, 1])
        await world.produce_and_wait(5)
        await world.until_caught_up()
        world.disconnect((0, 1))
        await world.elect(0, isr=[0])
        await world.produce_and_wait(10)
        await world.elect(1, isr=[1])  # broker 1 lacks the ten records
        world.reconnect()
        await world.until(lambda: world.isr == [0, 1])
        await world.produce_and_wait(1)
        await world.until_caught_up()
        assert [world.log(b).end_offset for b in (0, 1)] == [6, 6]
        assert len(set(world.digests().values())) == 1

    in_world(tmp_path, body, brokers=(0, 1))


def test_a_follower_with_a_different_log_converges_to_the_leaders(tmp_path):
    """The follower's log is longer, and has epochs that the leader's log lacks."""

    async def body(world: World) -> None:
        world.disconnect((0, 1))
        for _ in range(4):
            await world.elect(0, isr=[0], to=[0])
            await world.produce_and_wait(5)
        world.leader_epoch = 1
        for _ in range(5):
            await world.elect(1, isr=[1], to=[1])
            await world.produce_and_wait(2)
        world.reconnect()
        await world.send_order([0])
        # The follower ignores the high watermark in a response with a diverging epoch.
        await world.until(lambda: world.isr == [0, 1])
        await world.until_caught_up()
        assert world.log(0).end_offset == 10
        assert world.log(0).epochs.entries == world.log(1).epochs.entries
        assert len(set(world.digests().values())) == 1

    in_world(tmp_path, body, brokers=(0, 1))


def test_a_full_disk_of_a_follower_delays_only_its_partition(tmp_path, monkeypatch):
    async def body(world: World) -> None:
        await world.elect(0, isr=[0, 1])
        await world.produce_and_wait()
        await world.until_caught_up()
        full = world.log(1).active_segment.file.fd
        real = os.pwritev

        def pwritev(fd, *more):
            if fd == full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(fd, *more)

        monkeypatch.setattr(os, "pwritev", pwritev)
        pending = world.produce(batch())
        await asyncio.sleep(0.1)
        assert not pending.done()
        assert world.log(1).end_offset == 1
        assert not world.nodes[1].failed_dirs
        monkeypatch.undo()
        assert (await pending).responses[0].partition_responses[0].error_code == 0
        await world.until_caught_up()
        assert len(set(world.digests().values())) == 1

    in_world(tmp_path, body, brokers=(0, 1))


def test_a_corrupt_batch_is_fetched_again(tmp_path, monkeypatch):
    async def body(world: World) -> None:
        await world.elect(0, isr=[0, 1])
        await world.produce_and_wait()
        broken = []
        real = FollowerRole.append

        def append(role, log, records):
            if len(broken) < 3:
                bad = bytearray(records)
                bad[-1] ^= 1
                broken.append(bad)
                records = memoryview(bad)
            real(role, log, records)

        monkeypatch.setattr(FollowerRole, "append", append)
        assert (await world.produce_and_wait(3)).error_code == 0
        assert len(broken) == 3
        await world.until_caught_up()
        assert len(set(world.digests().values())) == 1

    in_world(tmp_path, body, brokers=(0, 1))


def test_a_follower_with_flush_messages_1_acknowledges_only_flushed_records(tmp_path):
    async def body(world: World) -> None:
        await world.elect(0, isr=[0, 1])
        for n in range(5):
            assert (await world.produce_and_wait(2)).error_code == 0
            assert world.log(1).flushed_offset == 2 * n + 2
        await world.until_caught_up()

    in_world(tmp_path, body, brokers=(0, 1), flush_messages=1)


def test_a_session_that_the_leader_has_lost_is_restarted(tmp_path):
    async def body(world: World) -> None:
        await world.elect(0, isr=[0, 1])
        await world.produce_and_wait()
        world.nodes[0].broker.fetch_sessions._sessions.clear()
        assert (await world.produce_and_wait()).error_code == 0
        await world.until_caught_up()

    in_world(tmp_path, body, brokers=(0, 1))


def test_a_new_leader_has_no_latest_offset_before_its_high_watermark_is_current(tmp_path):
    async def body(world: World) -> None:
        await world.elect(0, isr=[0, 1])
        await world.produce_and_wait(5)
        world.log(1).set_high_watermark(0)
        world.disconnect((0, 1))
        await world.elect(1, isr=[0, 1], to=[1])
        assert world.list_offsets(-1).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
        assert world.list_offsets(-2).offset == 0
        assert world.list_offsets(-1, version=4).error_code == ErrorCode.LEADER_NOT_AVAILABLE
        assert world.list_offsets(-1, replica_id=0).offset == 5
        world.reconnect()
        await world.send_order([0])
        await world.until(lambda: world.log(1).high_watermark == 5)
        assert world.list_offsets(-1).offset == 5

    in_world(tmp_path, body, brokers=(0, 1))


def test_a_fetch_without_a_replica_or_with_another_epoch_is_not_recorded(tmp_path):
    async def body(world: World) -> None:
        await world.elect(0, isr=[0])
        await world.elect(0)
        assert world.fetch_as(7, 0, epoch=1).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert world.fetch_as(1, 0, epoch=0).error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert world.fetch_as(1, 0, epoch=2).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert world.fetch_as(1, 5, epoch=1).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert world.partition(0).leader_role.followers[1].end_offset == -1
        assert world.fetch_as(1, 0, epoch=1, broker_epoch=9).error_code == 0
        assert world.partition(0).leader_role.followers[1].end_offset == 0
        world.produce(batch(), acks=1)
        # A fetch that was sent before the broker restarted arrives late.
        assert world.fetch_as(1, 1, epoch=1, broker_epoch=8).error_code == 0
        assert world.partition(0).leader_role.followers[1].end_offset == 0

    in_world(tmp_path, body, brokers=(0,), replicas=(0, 1))


def test_an_order_older_than_an_accepted_isr_change_has_no_effect(tmp_path):
    async def body(world: World) -> None:
        await world.elect(0, isr=[0])
        await world.until(lambda: world.partition(0).isr == {0, 1})
        world.isr, world.partition_epoch = [0], world.partition_epoch - 1
        await world.send_order([0])
        assert world.partition(0).isr == {0, 1}

    in_world(tmp_path, body, brokers=(0, 1))


def test_an_order_that_repeats_the_state_keeps_a_pending_isr_change(tmp_path):
    async def body(world: World) -> None:
        may_respond = asyncio.Event()
        alter_partition = world.alter_partition

        async def delayed_response(request):
            response = await alter_partition(request)
            await may_respond.wait()
            return response

        world.nodes[0].isr_changes._send = delayed_response
        await world.elect(0, isr=[0])
        partition = world.partition(0)
        await world.until(lambda: world.isr == [0, 1])
        # The controller has committed the change. An older order arrives only now.
        world.isr, world.partition_epoch = [0], world.partition_epoch - 1
        await world.send_order([0])
        assert partition.maximal_isr == {0, 1}
        world.isr, world.partition_epoch = [0, 1], world.partition_epoch + 1
        may_respond.set()
        await world.until(lambda: partition.isr == {0, 1})
        assert partition.partition_epoch == world.partition_epoch

    in_world(tmp_path, body, brokers=(0, 1))


def test_a_new_partition_does_not_wait_for_a_held_fetch(tmp_path):
    async def body(world: World) -> None:
        await world.elect(0, isr=[0, 1])
        await world.produce_and_wait()
        fetcher = world.nodes[1].replicas.fetchers[0]
        await world.until(lambda: world.log(1).end_offset == 1 and fetcher.state is FetcherState.FETCHING)
        started = world.now()
        await world.elect(0)  # the follower restarts its session for the new epoch
        assert (await world.produce_and_wait()).error_code == 0
        assert world.now() - started < 1

    in_world(tmp_path, body, brokers=(0, 1), settings=replace(QUICK, fetch_wait_max_ms=30_000))


def test_a_flush_delays_only_the_next_request(tmp_path):
    """The leader would hold a request that is sent before the flush for 30 seconds."""

    async def body(world: World) -> None:
        await world.elect(0, isr=[0, 1])
        started = world.now()
        for _ in range(3):
            assert (await world.produce_and_wait()).error_code == 0
        assert world.log(1).flushed_offset == 3
        assert world.now() - started < 1

    in_world(tmp_path, body, brokers=(0, 1), settings=replace(QUICK, fetch_wait_max_ms=30_000), flush_messages=1)
