"""The controller's orders on failing disks."""

from __future__ import annotations

import asyncio
import errno
import os
import threading

from kavka.common import turns
from kavka.common.errors import ErrorCode
from kavka.common.types import TopicPartition
from kavka.replication.partition_state import LeaderAndIsr, PartitionOrder, ReplicaStop
from kavka.storage import log_manager
from kavka.storage.log import Log
from kavka.storage.partition_metadata import read_topic_id
from tests.unit.api.records_world import RecordsWorld, batch, codes, in_records_world

STORAGE_ERROR = 56
TP = TopicPartition("t", 0)


async def lead(world: RecordsWorld, epoch: int) -> ErrorCode:
    """Make the broker leader of partition 0 of "t" in that epoch."""
    state = LeaderAndIsr(leader=0, leader_epoch=epoch, isr=frozenset((0,)), replicas=(0,))
    order = PartitionOrder(TP, world.partition("t").topic_id, state)
    return (await world.replicas.become_leader_or_follower(1, [order]))[0]


async def stop(world: RecordsWorld, delete: bool) -> ErrorCode:
    return (await world.replicas.stop_replicas(1, [ReplicaStop(TP, -1, delete)]))[0]


def test_a_log_that_cannot_start_an_epoch_is_offline_until_it_can(tmp_path, monkeypatch):
    def full(self, epoch):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def body(world: RecordsWorld) -> None:
        notifications = []
        partition = await world.create("t")
        world.replicas.on_leadership.append(lambda _, leads: notifications.append(leads))
        pending = world.fetch(("t", 0, 0), max_wait_ms=60_000)
        with monkeypatch.context() as patched:
            patched.setattr(Log, "start_epoch", full)
            assert await lead(world, 1) == STORAGE_ERROR
            assert codes(await pending) == [STORAGE_ERROR]
            assert codes(world.produce(("t", 0, bytes(batch())))) == [STORAGE_ERROR]
        assert not world.failed
        assert await lead(world, 1) == 0
        assert codes(world.produce(("t", 0, bytes(batch())))) == [0]
        assert partition.log.epochs.latest == 1
        assert notifications == [False, True]

    in_records_world(tmp_path, body)


def test_a_partition_in_a_failed_directory_cannot_be_led_stopped_or_deleted(tmp_path):
    async def body(world: RecordsWorld) -> None:
        partition = await world.create("t")
        world.log_manager.report_failure(partition.log, OSError(errno.EIO, "Input/output error"))
        assert await lead(world, 1) == STORAGE_ERROR
        assert await stop(world, delete=False) == STORAGE_ERROR
        assert await stop(world, delete=True) == STORAGE_ERROR
        assert codes(world.produce(("t", 0, bytes(batch())))) == [STORAGE_ERROR]

    in_records_world(tmp_path, body, dirs=("one", "two"))


def test_an_online_partition_is_stopped_and_deleted(tmp_path):
    async def body(world: RecordsWorld) -> None:
        partition = await world.create("t")
        folder = partition.log.dir
        assert await stop(world, delete=True) == 0
        assert not folder.exists()
        assert ("t", 0) not in world.replicas.partitions

    in_records_world(tmp_path, body)


def test_new_partitions_are_created_while_requests_are_served(tmp_path, monkeypatch):
    files_synced_on_loop = []
    real = os.fsync

    def fsync(fd):
        if threading.current_thread() is threading.main_thread():
            files_synced_on_loop.append(os.readlink(f"/proc/self/fd/{fd}"))
        real(fd)

    async def body(world: RecordsWorld) -> None:
        monkeypatch.setattr(os, "fsync", fsync)
        partition = await world.create("t", 20)
        assert files_synced_on_loop == []
        topic_ids = {read_topic_id(str(world.partition("t", number).log.dir)) for number in range(20)}
        assert topic_ids == {partition.topic_id}
        assert codes(world.produce(("t", 7, bytes(batch())))) == [0]
        assert partition.log.segments.has_unsynced_dir_entries, "the first flush syncs the folder"

    in_records_world(tmp_path, body)


def test_partitions_are_created_although_their_folders_could_not_be_created_first(tmp_path, monkeypatch):
    def fail(folders):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    async def body(world: RecordsWorld) -> None:
        monkeypatch.setattr(log_manager, "create_folders", fail)
        partition = await world.create("t", 3)
        assert read_topic_id(str(partition.log.dir)) == partition.topic_id
        assert codes(world.produce(("t", 2, bytes(batch())))) == [0]

    in_records_world(tmp_path, body)


def test_orders_for_many_partitions_are_divided_over_turns(tmp_path, monkeypatch):
    monkeypatch.setattr(turns, "MAX_STEP_S", -1.0)

    async def body(world: RecordsWorld) -> None:
        partition = await world.create("t", 20)
        state = LeaderAndIsr(leader=0, leader_epoch=1, isr=frozenset((0,)), replicas=(0,))
        orders = [PartitionOrder(TopicPartition("t", index), partition.topic_id, state) for index in range(20)]
        applied = asyncio.create_task(world.replicas.become_leader_or_follower(1, orders))
        progress = []
        while not applied.done():
            await asyncio.sleep(0)
            progress.append(sum(replica.leader_epoch for replica in world.replicas.partitions.values()))
        assert await applied == [0] * 20
        # Requests are served between the partitions.
        assert set(progress) >= set(range(1, 20))

    in_records_world(tmp_path, body)
