"""The controller's orders on disks that do not obey."""

from __future__ import annotations

import errno
import os

from kavka.protocol.messages.leader_and_isr import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from kavka.protocol.messages.stop_replica import StopReplicaPartitionState, StopReplicaRequest, StopReplicaTopicState
from kavka.storage.leader_epochs import LeaderEpochs
from tests.unit.api.records_world import RecordsWorld, batch, codes, in_records_world

STORAGE_ERROR = 56


async def lead(world: RecordsWorld, epoch: int) -> int:
    """Lead partition 0 of "t" in that epoch; the order's error code."""
    state = LeaderAndIsrPartitionState(partition_index=0, leader=0, leader_epoch=epoch, isr=[0], replicas=[0])
    topic = LeaderAndIsrTopicState(topic_name="t", topic_id=world.partition("t").topic_id, partition_states=[state])
    answer = await world.replicas.become_leader_or_follower(
        LeaderAndIsrRequest(controller_epoch=1, topic_states=[topic])
    )
    return answer.topics[0].partition_errors[0].error_code


async def stop(world: RecordsWorld, delete: bool) -> int:
    state = StopReplicaPartitionState(partition_index=0, delete_partition=delete)
    topic = StopReplicaTopicState(topic_name="t", partition_states=[state])
    answer = await world.replicas.stop_replicas(StopReplicaRequest(controller_epoch=1, topic_states=[topic]))
    return answer.partition_errors[0].error_code


def test_an_epoch_that_the_disk_has_no_room_for_is_an_error_until_there_is(tmp_path, monkeypatch):
    def full(self, **more):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def body(world: RecordsWorld) -> None:
        told = []
        partition = await world.create("t")
        world.replicas.on_leadership.append(lambda _, leads: told.append(leads))
        waiting = world.fetch(("t", 0, 0), max_wait_ms=60_000)
        with monkeypatch.context() as patched:
            patched.setattr(LeaderEpochs, "save", full)
            assert await lead(world, 1) == STORAGE_ERROR
            assert codes(await waiting) == [STORAGE_ERROR]
            assert codes(world.produce(("t", 0, bytes(batch())))) == [STORAGE_ERROR]
        assert not world.failed
        assert await lead(world, 1) == 0
        assert codes(world.produce(("t", 0, bytes(batch())))) == [0]
        assert partition.log.latest_epoch == 1
        assert told == [False, True]

    in_records_world(tmp_path, body)


def test_a_partition_in_a_directory_that_failed_can_neither_be_led_nor_stopped_nor_deleted(tmp_path):
    async def body(world: RecordsWorld) -> None:
        partition = await world.create("t")
        world.log_manager.note_failure(partition.log, OSError(errno.EIO, "Input/output error"))
        assert await lead(world, 1) == STORAGE_ERROR
        assert await stop(world, delete=False) == STORAGE_ERROR
        assert await stop(world, delete=True) == STORAGE_ERROR
        assert codes(world.produce(("t", 0, bytes(batch())))) == [STORAGE_ERROR]

    in_records_world(tmp_path, body, dirs=("one", "two"))


def test_a_partition_that_is_well_is_stopped_and_deleted(tmp_path):
    async def body(world: RecordsWorld) -> None:
        partition = await world.create("t")
        folder = partition.log.dir
        assert await stop(world, delete=True) == 0
        assert not folder.exists()
        assert ("t", 0) not in world.replicas.partitions

    in_records_world(tmp_path, body)
