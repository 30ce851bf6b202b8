"""Produce on real logs: failures of one or several partitions, pending requests, memory."""

from __future__ import annotations

import asyncio
import os

import pytest

from kavka.api.produce import ConnectionMustClose, PostponedBatch
from kavka.protocol.messages.produce import PartitionProduceData, PartitionProduceResponse, ProduceRequest
from kavka.records.limits import SMALL_BATCH_BYTES
from kavka.replication.partition import Partition
from tests.unit.api.records_world import RecordsWorld, batch, codes, in_records_world, produced

STORAGE_ERROR, UNKNOWN_TOPIC, CORRUPT = 56, 3, 2


def break_writes(monkeypatch, code: int, *partitions: Partition) -> None:
    broken = {partition.log.active_segment.file.fd for partition in partitions}
    real = os.pwritev

    def pwritev(fd, buffers, offset, *flags):
        if fd in broken:
            raise OSError(code, os.strerror(code))
        return real(fd, buffers, offset, *flags)

    monkeypatch.setattr(os, "pwritev", pwritev)


def test_an_error_of_one_partition_does_not_affect_the_others(tmp_path):
    async def body(world: RecordsWorld) -> None:
        await world.create("a")
        corrupt = batch()
        corrupt[-1] ^= 1
        good = bytes(batch(3))
        response = world.produce(("a", 0, good), ("b", 0, good), ("a", 0, bytes(corrupt)), ("a", 0, good))
        assert codes(response) == [0, UNKNOWN_TOPIC, CORRUPT, 0]
        assert [result.base_offset for result in produced(response)] == [0, -1, -1, 3]

    in_records_world(tmp_path, body)


def test_an_unexpected_error_of_one_partition_does_not_affect_the_others(tmp_path, monkeypatch):
    async def body(world: RecordsWorld) -> None:
        first = await world.create("a", partitions=2)

        def broken(*args, **more):
            raise ZeroDivisionError

        monkeypatch.setattr(world.partition("a", 1).log, "stage_as_leader", broken)
        good = bytes(batch())
        assert codes(world.produce(("a", 0, good), ("a", 1, good))) == [0, -1]
        assert first.log.high_watermark == 1

    in_records_world(tmp_path, body)


def test_all_partitions_of_a_failed_disk_get_its_error_and_nothing_stays_staged(tmp_path, monkeypatch):
    async def body(world: RecordsWorld) -> None:
        first = await world.create("a", partitions=2)
        second = world.partition("a", 1)
        logs = [first.log, second.log]
        good = bytes(batch())
        break_writes(monkeypatch, 5, first, second)
        assert codes(world.produce(("a", 0, good), ("a", 1, good))) == [STORAGE_ERROR, STORAGE_ERROR]
        assert not any(log.end_offset > log.written_end for log in logs)
        assert first.log is None and second.log is None
        assert len(world.failed) == 1
        assert codes(world.produce(("a", 0, good))) == [STORAGE_ERROR]

    in_records_world(tmp_path, body)


def test_a_write_with_an_unexpected_error_is_rolled_back(tmp_path, monkeypatch):
    async def body(world: RecordsWorld) -> None:
        partition = await world.create("a")
        world.append("a")
        good = bytes(batch())

        def broken(*args):
            raise ZeroDivisionError

        with monkeypatch.context() as patched:
            patched.setattr(type(partition.log.active_segment.file), "append", broken)
            assert codes(world.produce(("a", 0, good))) == [STORAGE_ERROR]
        assert partition.log.end_offset == partition.log.written_end
        assert partition.log.end_offset == 1
        assert produced(world.produce(("a", 0, good)))[0].base_offset == 1

    in_records_world(tmp_path, body)


def test_with_acks_0_an_error_closes_the_connection_after_the_other_writes(tmp_path):
    async def body(world: RecordsWorld) -> None:
        partition = await world.create("a")
        good = bytes(batch())
        assert world.produce(("a", 0, good), acks=0) is None
        with pytest.raises(ConnectionMustClose):
            world.produce(("a", 0, good), ("b", 0, good), acks=0)
        assert partition.log.high_watermark == 2

    in_records_world(tmp_path, body)


def test_with_flush_messages_1_the_response_waits_for_the_flush(tmp_path):
    async def body(world: RecordsWorld) -> None:
        partition = await world.create("a", flush_messages=1)
        waiting = world.produce(("a", 0, bytes(batch())))
        assert isinstance(waiting, asyncio.Future)
        assert partition.log.flushed_offset == 0
        assert codes(await waiting) == [0]
        assert partition.log.flushed_offset == partition.log.high_watermark == 1

    in_records_world(tmp_path, body)


def test_a_pending_request_does_not_keep_the_bytes_of_its_records(tmp_path, monkeypatch):
    decoded = []
    decode = ProduceRequest.decode
    monkeypatch.setattr(ProduceRequest, "decode", lambda *args: decoded.append(decode(*args)) or decoded[-1])

    async def body(world: RecordsWorld) -> None:
        await world.create("a", flush_messages=1)
        waiting = world.produce(("a", 0, bytes(batch())))
        assert decoded[0][0].topic_data[0].partition_data[0].records is None
        await waiting

    in_records_world(tmp_path, body)


def test_a_cancelled_produce_leaves_the_purgatory(tmp_path):
    async def body(world: RecordsWorld) -> None:
        await world.create("a", partitions=2, flush_messages=1)
        waiting = world.produce(("a", 0, bytes(batch())), ("a", 1, bytes(batch())))
        assert world.pending_requests() == 2
        waiting.cancel()
        await asyncio.sleep(0)
        assert not world.pending_requests()

    in_records_world(tmp_path, body)


def test_a_failed_flush_fails_all_pending_results_of_its_partition(tmp_path, monkeypatch):
    async def body(world: RecordsWorld) -> None:
        await world.create("a", flush_messages=1)

        def broken(fd):
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(os, "fdatasync", broken)
        good = bytes(batch())
        waiting = world.produce(("a", 0, good), ("a", 0, good))
        assert codes(await waiting) == [STORAGE_ERROR, STORAGE_ERROR]
        assert not world.pending_requests()
        assert len(world.failed) == 1
        monkeypatch.undo()

    in_records_world(tmp_path, body)


def test_with_flush_before_visible_records_become_visible_after_the_flush(tmp_path):
    async def body(world: RecordsWorld) -> None:
        partition = await world.create("a", flush_before_visible=True)
        reading = world.fetch(("a", 0, 0), max_wait_ms=10_000)
        assert codes(world.produce(("a", 0, bytes(batch())))) == [0]
        assert partition.log.high_watermark == 0
        await reading
        assert partition.log.high_watermark == partition.log.flushed_offset == 1
        assert codes(await world.produce(("a", 0, bytes(batch())), acks=-1)) == [0]
        assert partition.log.flushed_offset == 2

    in_records_world(tmp_path, body)


def test_records_become_visible_when_the_flush_setting_is_removed(tmp_path):
    async def body(world: RecordsWorld) -> None:
        partition = await world.create("a", flush_before_visible=True)
        posted = []
        partition.run_in_worker = lambda *job: posted.append(job)
        world.append("a")
        reading = world.fetch(("a", 0, 0), max_wait_ms=10_000)
        assert partition.log.high_watermark == 0 and len(posted) == 1
        del world.configs["a"]
        world.log_manager.update_config("a", world.log_manager.config_for("a"))
        world.replicas.on_topic_config_changed("a")
        assert codes(await reading) == [0]
        assert partition.log.high_watermark == 1

    in_records_world(tmp_path, body)


def large() -> bytes:
    return bytes(batch(1, 2 * SMALL_BATCH_BYTES))


def test_batches_that_a_worker_decompresses_keep_their_order(tmp_path):
    async def body(world: RecordsWorld) -> None:
        partition = await world.create("a", compression_type="lz4")
        response = await world.produce(("a", 0, large()), ("a", 0, bytes(batch(2))), ("a", 0, large()))
        assert codes(response) == [0, 0, 0]
        assert [result.base_offset for result in produced(response)] == [0, 1, 3]
        assert partition.log.end_offset == 4

    in_records_world(tmp_path, body)


def test_a_batch_that_waits_for_a_worker_is_in_memory_once(tmp_path):
    async def body(world: RecordsWorld) -> None:
        partition = await world.create("a")
        data = PartitionProduceData(index=0, records=memoryview(bytearray(large())))
        item = PostponedBatch("a", data, PartitionProduceResponse(), partition)
        assert data.records is None
        assert len(item.records) > 2 * SMALL_BATCH_BYTES

    in_records_world(tmp_path, body)


def test_a_batch_for_a_deleted_topic_is_not_appended_to_its_successor(tmp_path):
    async def body(world: RecordsWorld) -> None:
        await world.create("a", compression_type="lz4")
        pending = world.produce(("a", 0, large()))
        await world.delete("a")
        recreated = await world.create("a", compression_type="zstd")
        assert codes(await pending) == [UNKNOWN_TOPIC]
        assert recreated.log.end_offset == 0

    in_records_world(tmp_path, body)
