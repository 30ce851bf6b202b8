"""Leaders and followers with real logs and real handlers, in one process."""

from __future__ import annotations

import asyncio
import errno
import os
from dataclasses import replace

import pytest

from kavka.client.errors import Disconnected
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.protocol.messages.alter_partition import AlterPartitionResponse
from kavka.replication import follower as follower_module
from kavka.replication import waiting as waiting_module
from tests.unit.replication.replicas_world import QUICK, World, batch, in_world


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


def test_what_the_old_leader_had_passed_on_is_acknowledged_when_its_successor_commits_it(tmp_path):
    async def body(world: World) -> None:
        world.cut.add(frozenset((0, 2)))
        await world.elect(0, isr=[0, 1, 2])
        waiting = world.produce(batch(3))
        await world.until(lambda: world.log(1).end_offset == 3)
        assert not waiting.done()
        await world.elect(1)
        answer = (await waiting).responses[0].partition_responses[0]
        assert (answer.error_code, answer.base_offset) == (0, 0)
        assert not world.partition(0).produce_waiters
        await world.caught_up()
        assert {world.log(one).end_offset for one in (0, 1, 2)} == {3}

    in_world(tmp_path, body)


def test_what_became_of_a_batch_is_not_waited_for_longer_than_its_bound_nor_where_nobody_leads(tmp_path, monkeypatch):
    async def body(world: World) -> None:
        for leader in (1, -1):
            monkeypatch.setattr(waiting_module, "LONGEST_DOUBT_S", 0.05 if leader == 1 else 3600)
            await world.elect(0, isr=[0, 1, 2])
            world.cut |= {frozenset((0, 1)), frozenset((0, 2))}
            waiting = world.produce(batch(), timeout_ms=3_600_000)
            await world.elect(leader, to=[0])
            answer = (await waiting).responses[0].partition_responses[0]
            assert (answer.error_code, answer.base_offset) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
            assert not world.partition(0).produce_waiters
            world.cut.clear()

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


def test_a_follower_that_lags_leaves_the_isr_and_comes_back(tmp_path):
    async def body(world: World) -> None:
        await world.elect(0, isr=[0, 1, 2])
        await world.committed()
        world.cut.add(frozenset((0, 2)))
        waiting = world.produce(batch())
        await world.until(lambda: world.isr == [0, 1], "out of the ISR")
        assert (await waiting).responses[0].partition_responses[0].error_code == 0
        assert world.partition(0).isr == {0, 1}
        assert world.partition(0).is_under_replicated
        world.cut.clear()
        await world.until(lambda: world.isr == [0, 1, 2], "back in the ISR")
        await world.caught_up()
        assert not world.partition(0).is_under_replicated

    in_world(tmp_path, body, settings=replace(QUICK, lag_time_max_s=0.3))


def test_with_too_few_in_sync_acks_all_is_refused_and_nothing_more_is_committed(tmp_path):
    async def body(world: World) -> None:
        await world.elect(0, isr=[0])
        answer = await world.committed()
        assert answer.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert world.produce(batch(), acks=1).responses[0].partition_responses[0].error_code == 0
        assert world.log(0).high_watermark == 0
        assert world.partition(0).is_under_min_isr
        world.refuse = lambda isr: None
        await world.until(lambda: world.log(0).high_watermark == 1)
        assert not world.partition(0).is_under_min_isr

    async def nobody_joins(world: World) -> None:
        world.refuse = lambda isr: ErrorCode.INELIGIBLE_REPLICA
        await body(world)

    in_world(tmp_path, nobody_joins, min_insync_replicas=2)


def test_what_was_appended_while_too_few_were_left_in_sync_is_told_so(tmp_path):
    async def body(world: World) -> None:
        await world.elect(0, isr=[0, 1])
        world.cut.add(frozenset((0, 1)))
        waiting = world.produce(batch())
        await asyncio.sleep(0.01)
        # The follower has it, and the ISR is about to lose it, at the same time.
        partition = world.partition(0)
        follower = partition.followers[1]
        partition.isr = partition.maximal_isr = frozenset((0,))
        partition.log.set_high_watermark(1)
        partition.wake()
        assert follower.broker_id == 1
        code = (await waiting).responses[0].partition_responses[0].error_code
        assert code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND

    in_world(tmp_path, body, brokers=(0, 1), min_insync_replicas=2)


def test_what_was_cut_on_a_full_disk_is_not_acknowledged_by_what_came_in_its_place(tmp_path, monkeypatch):
    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def body(world: World) -> None:
        await world.elect(0, isr=[0, 1])
        await world.committed()
        await world.caught_up()
        world.cut.add(frozenset((0, 1)))
        waiting = world.produce(batch())
        await world.elect(1, isr=[1], to=[1])
        for _ in range(3):
            await world.committed()
        manager = world.nodes[0].log_manager
        truncate = manager.truncate_to

        def truncate_without_room(tp: TopicPartition, offset: int) -> None:
            monkeypatch.setattr(manager, "truncate_to", truncate)
            truncate(tp, offset)
            no_room()

        monkeypatch.setattr(manager, "truncate_to", truncate_without_room)
        world.cut.clear()
        await world.tell([0])
        code = (await waiting).responses[0].partition_responses[0].error_code
        assert code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        await world.caught_up()
        assert len(set(world.digests().values())) == 1

    in_world(tmp_path, body, brokers=(0, 1))


@pytest.mark.parametrize("code", [ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED])
def test_a_change_of_the_isr_that_was_refused_is_proposed_again_by_the_next_fetch(tmp_path, code):
    async def body(world: World) -> None:
        world.refuse = lambda isr: code if len(world.isr_requests) < 3 else None
        await world.elect(0, isr=[0])
        await world.until(lambda: world.isr == [0, 1])
        assert world.isr_requests == [(0, [0, 1])] * 3
        assert world.partition(0).isr == {0, 1}

    in_world(tmp_path, body, brokers=(0, 1))


def test_a_follower_that_may_not_join_since_it_is_about_to_stop_holds_nothing_back(tmp_path):
    async def body(world: World) -> None:
        await world.elect(0, isr=[0, 1, 2])
        await world.committed()
        # As for a broker that stops in good order: it is out of the ISR, fetches still, and may not come back.
        world.refuse = lambda isr: ErrorCode.INELIGIBLE_REPLICA if 2 in isr else None
        await world.elect(0, isr=[0, 1])
        await world.until(lambda: world.partition(0).followers[2].refused)
        world.cut |= {frozenset((0, 2)), frozenset((1, 2))}
        assert (await world.committed()).error_code == 0
        world.cut.clear()
        world.refuse = lambda isr: None
        await world.until(lambda: world.isr == [0, 1, 2])
        assert not world.partition(0).followers[2].refused

    in_world(tmp_path, body)


def test_a_follower_outside_of_the_isr_that_dies_holds_nothing_back_even_if_nobody_fetches_or_appends(tmp_path):
    async def body(world: World) -> None:
        world.refuse = lambda isr: ErrorCode.OPERATION_NOT_ATTEMPTED if 2 in isr else None
        await world.elect(0, isr=[0, 1])
        await world.until(lambda: world.isr_requests)
        partition = world.partition(0)
        world.cut |= {frozenset((0, 2)), frozenset((1, 2))}
        waiting = world.produce(batch())
        await world.until(lambda: partition.followers[1].end_offset == 1)
        assert not waiting.done()
        node = world.nodes[0]
        node.cache.brokers = {number: info for number, info in node.cache.brokers.items() if number != 2}
        node.replicas.brokers_gone()
        assert (await waiting).responses[0].partition_responses[0].error_code == 0

    in_world(tmp_path, body)


@pytest.mark.parametrize(
    "code", [ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.NEW_LEADER_ELECTED]
)
def test_after_a_refusal_that_says_we_know_too_little_the_larger_isr_counts_until_the_next_order(tmp_path, code):
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


def test_while_the_controller_has_not_answered_the_high_watermark_waits_for_the_new_member_too(tmp_path):
    async def body(world: World) -> None:
        answer = asyncio.Event()
        ask = world.alter_partition

        async def later(request):
            await answer.wait()
            return await ask(request)

        world.nodes[0].isr_changes._send = later
        await world.elect(0, isr=[0])
        partition = world.partition(0)
        await world.until(lambda: partition.pending_isr is not None)
        world.cut.add(frozenset((0, 1)))
        await asyncio.sleep(0.3)
        waiting = world.produce(batch())
        await asyncio.sleep(0.05)
        assert not waiting.done()
        answer.set()
        await world.until(lambda: world.isr == [0, 1])
        await asyncio.sleep(0.05)
        assert not waiting.done()
        world.cut.clear()
        assert (await waiting).responses[0].partition_responses[0].error_code == 0

    in_world(tmp_path, body, brokers=(0, 1))


def test_a_controller_that_cannot_be_reached_is_asked_again(tmp_path):
    async def body(world: World) -> None:
        ask = world.alter_partition
        failures = [Disconnected("gone"), KafkaError(ErrorCode.NOT_CONTROLLER), 77, ErrorCode.STALE_BROKER_EPOCH]

        async def trouble(request):
            if failures:
                failure = failures.pop(0)
                if isinstance(failure, Exception):
                    raise failure
                return AlterPartitionResponse(error_code=int(failure))
            return await ask(request)

        world.nodes[0].isr_changes._send = trouble
        await world.elect(0, isr=[0])
        await world.until(lambda: world.isr == [0, 1])
        assert not failures

    in_world(tmp_path, body, brokers=(0, 1))


def test_deleting_records_waits_for_the_replicas_that_live(tmp_path):
    async def body(world: World) -> None:
        await world.elect(0, isr=[0, 1, 2])
        for _ in range(5):
            await world.committed(2)
        waiting = world.delete_records(7)
        answer = await waiting
        assert (answer.error_code, answer.low_watermark) == (0, 7)
        assert [world.log(b).start_offset for b in (0, 1, 2)] == [7, 7, 7]
        world.cut.add(frozenset((0, 2)))
        answer = await world.delete_records(8, timeout_ms=100)
        assert (answer.error_code, answer.low_watermark) == (ErrorCode.REQUEST_TIMED_OUT, 7)
        await world.kill(2)
        answer = await world.delete_records(9)
        assert (answer.error_code, answer.low_watermark) == (0, 9)

    in_world(tmp_path, body)


def test_a_follower_begins_in_the_middle_of_a_batch_when_the_leader_does(tmp_path):
    async def body(world: World) -> None:
        world.cut.add(frozenset((0, 1)))
        await world.elect(0, isr=[0])
        for _ in range(3):
            await world.committed(10)
        assert world.log(0).delete_records_before(15) == 15
        world.cut.clear()
        await world.until(lambda: world.isr == [0, 1])
        await world.caught_up()
        assert world.log(1).start_offset == 15
        assert world.log(1).segments[0].base_offset == 10

    in_world(tmp_path, body, brokers=(0, 1))


def test_a_follower_whose_records_the_leader_has_all_deleted_begins_anew(tmp_path):
    async def body(world: World) -> None:
        await world.elect(0, isr=[0, 1])
        await world.committed(5)
        await world.caught_up()
        world.cut.add(frozenset((0, 1)))
        await world.elect(0, isr=[0])
        for _ in range(4):
            await world.committed(5)
        world.log(0).roll()
        await world.committed(5)
        world.log(0).delete_records_before(20)
        world.log(0).delete_old_segments()
        world.cut.clear()
        await world.until(lambda: world.isr == [0, 1])
        await world.caught_up()
        assert world.log(1).start_offset == 20
        assert world.log(1).end_offset == 30

    in_world(tmp_path, body, brokers=(0, 1))


def test_after_an_unclean_election_a_longer_follower_loses_what_the_leader_lacks(tmp_path):
    async def body(world: World) -> None:
        await world.elect(0, isr=[0, 1])
        await world.committed(5)
        await world.caught_up()
        world.cut.add(frozenset((0, 1)))
        await world.elect(0, isr=[0])
        await world.committed(10)
        await world.elect(1, isr=[1])  # which lacks the ten
        world.cut.clear()
        await world.until(lambda: world.isr == [0, 1])
        await world.committed(1)
        await world.caught_up()
        assert [world.log(b).end_offset for b in (0, 1)] == [6, 6]
        assert len(set(world.digests().values())) == 1

    in_world(tmp_path, body, brokers=(0, 1))


def test_a_follower_with_another_log_altogether_is_brought_to_the_leaders(tmp_path):
    """Longer, with epochs that the leader never had."""

    async def body(world: World) -> None:
        world.cut.add(frozenset((0, 1)))
        for _ in range(4):
            await world.elect(0, isr=[0], to=[0])
            await world.committed(5)
        world.leader_epoch = 1
        for _ in range(5):
            await world.elect(1, isr=[1], to=[1])
            await world.committed(2)
        world.cut.clear()
        await world.tell([0])
        # Also the high watermark, which was told together with where the logs part, and had to be ignored then.
        await world.until(lambda: world.isr == [0, 1])
        await world.caught_up()
        assert world.log(0).end_offset == 10
        assert world.log(0).epochs.entries == world.log(1).epochs.entries
        assert len(set(world.digests().values())) == 1

    in_world(tmp_path, body, brokers=(0, 1))


def test_a_full_disk_of_a_follower_is_that_partitions_trouble_and_is_tried_again(tmp_path, monkeypatch):
    async def body(world: World) -> None:
        await world.elect(0, isr=[0, 1])
        await world.committed()
        await world.caught_up()
        full = world.log(1).active_segment.file.fd
        real = os.pwritev

        def pwritev(fd, *more):
            if fd == full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(fd, *more)

        monkeypatch.setattr(os, "pwritev", pwritev)
        waiting = world.produce(batch())
        await asyncio.sleep(0.1)
        assert not waiting.done()
        assert world.log(1).end_offset == 1
        assert not world.nodes[1].failed
        monkeypatch.undo()
        assert (await waiting).responses[0].partition_responses[0].error_code == 0
        await world.caught_up()
        assert len(set(world.digests().values())) == 1

    in_world(tmp_path, body, brokers=(0, 1))


def test_what_arrives_corrupt_is_asked_for_again(tmp_path, monkeypatch):
    async def body(world: World) -> None:
        await world.elect(0, isr=[0, 1])
        await world.committed()
        broken = []
        real = follower_module.append

        def append(partition, log_manager, records):
            if len(broken) < 3:
                bad = bytearray(records)
                bad[-1] ^= 1
                broken.append(bad)
                records = memoryview(bad)
            real(partition, log_manager, records)

        monkeypatch.setattr(follower_module, "append", append)
        assert (await world.committed(3)).error_code == 0
        assert len(broken) == 3
        await world.caught_up()
        assert len(set(world.digests().values())) == 1

    in_world(tmp_path, body, brokers=(0, 1))


def test_a_follower_that_flushes_every_message_says_only_what_is_on_disk(tmp_path):
    async def body(world: World) -> None:
        await world.elect(0, isr=[0, 1])
        for n in range(5):
            assert (await world.committed(2)).error_code == 0
            assert world.log(1).flushed_offset == 2 * n + 2
        await world.caught_up()

    in_world(tmp_path, body, brokers=(0, 1), flush_messages=1)


def test_a_session_that_the_leader_has_forgotten_is_begun_anew(tmp_path):
    async def body(world: World) -> None:
        await world.elect(0, isr=[0, 1])
        await world.committed()
        world.nodes[0].broker.fetch_sessions._sessions.clear()
        assert (await world.committed()).error_code == 0
        await world.caught_up()

    in_world(tmp_path, body, brokers=(0, 1))


def test_a_new_leader_asks_clients_to_come_back_for_the_end_until_it_knows_it(tmp_path):
    async def body(world: World) -> None:
        await world.elect(0, isr=[0, 1])
        await world.committed(5)
        world.log(1).set_high_watermark(0)
        world.cut.add(frozenset((0, 1)))
        await world.elect(1, isr=[0, 1], to=[1])
        assert world.list_offsets(-1).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
        assert world.list_offsets(-2).offset == 0
        assert world.list_offsets(-1, version=4).error_code == ErrorCode.LEADER_NOT_AVAILABLE
        assert world.list_offsets(-1, replica_id=0).offset == 5
        world.cut.clear()
        await world.tell([0])
        await world.until(lambda: world.log(1).high_watermark == 5)
        assert world.list_offsets(-1).offset == 5

    in_world(tmp_path, body, brokers=(0, 1))


def test_a_fetch_of_a_broker_that_has_no_replica_or_another_epoch_counts_for_nothing(tmp_path):
    async def body(world: World) -> None:
        await world.elect(0, isr=[0])
        await world.elect(0)
        assert world.fetch_as(7, 0, epoch=1).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert world.fetch_as(1, 0, epoch=0).error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert world.fetch_as(1, 0, epoch=2).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert world.fetch_as(1, 5, epoch=1).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert world.partition(0).followers[1].end_offset == -1
        assert world.fetch_as(1, 0, epoch=1, broker_epoch=9).error_code == 0
        assert world.partition(0).followers[1].end_offset == 0
        world.produce(batch(), acks=1)
        # One that was sent before that broker started again comes late.
        assert world.fetch_as(1, 1, epoch=1, broker_epoch=8).error_code == 0
        assert world.partition(0).followers[1].end_offset == 0

    in_world(tmp_path, body, brokers=(0,), replicas=(0, 1))


def test_an_order_that_is_older_than_the_answer_about_the_isr_changes_nothing(tmp_path):
    async def body(world: World) -> None:
        await world.elect(0, isr=[0])
        await world.until(lambda: world.partition(0).isr == {0, 1})
        world.isr, world.partition_epoch = [0], world.partition_epoch - 1
        await world.tell([0])
        assert world.partition(0).isr == {0, 1}

    in_world(tmp_path, body, brokers=(0, 1))


def test_an_order_that_says_nothing_new_does_not_end_a_change_of_the_isr_that_is_under_way(tmp_path):
    async def body(world: World) -> None:
        answer = asyncio.Event()
        ask = world.alter_partition

        async def later(request):
            response = await ask(request)
            await answer.wait()
            return response

        world.nodes[0].isr_changes._send = later
        await world.elect(0, isr=[0])
        partition = world.partition(0)
        await world.until(lambda: world.isr == [0, 1])
        # The controller has taken it. What it, or its successor, wrote before that arrives only now.
        world.isr, world.partition_epoch = [0], world.partition_epoch - 1
        await world.tell([0])
        assert partition.maximal_isr == {0, 1}
        world.isr, world.partition_epoch = [0, 1], world.partition_epoch + 1
        answer.set()
        await world.until(lambda: partition.isr == {0, 1})
        assert partition.partition_epoch == world.partition_epoch

    in_world(tmp_path, body, brokers=(0, 1))


def test_a_new_partition_does_not_wait_for_the_fetch_that_is_held_for_the_others(tmp_path):
    async def body(world: World) -> None:
        await world.elect(0, isr=[0, 1])
        await world.committed()
        fetcher = world.nodes[1].replicas.fetchers[0]
        await world.until(lambda: world.log(1).end_offset == 1 and fetcher._asked is not None)
        begun = asyncio.get_running_loop().time()
        await world.elect(0)  # a new epoch, for which the follower has to begin anew
        assert (await world.committed()).error_code == 0
        assert asyncio.get_running_loop().time() - begun < 20

    in_world(tmp_path, body, brokers=(0, 1), settings=replace(QUICK, fetch_wait_max_ms=30_000))


def test_a_partition_that_is_flushed_holds_up_only_the_next_request(tmp_path):
    """Not for as long as the leader may hold a request for the others."""

    async def body(world: World) -> None:
        await world.elect(0, isr=[0, 1])
        for _ in range(3):
            assert (await world.committed()).error_code == 0
        assert world.log(1).flushed_offset == 3

    in_world(tmp_path, body, brokers=(0, 1), settings=replace(QUICK, fetch_wait_max_ms=30_000), flush_messages=1)
