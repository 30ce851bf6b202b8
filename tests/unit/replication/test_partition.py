"""A partition with a real log: appends, pending requests, and the shared flush."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from types import SimpleNamespace
from uuid import uuid4

import pytest

from kavka.common.clock import SystemClock
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.metrics import Registry
from kavka.common.types import TopicPartition
from kavka.records.builder import BatchBuilder
from kavka.records.record import Record
from kavka.replication.metadata_cache import MetadataCache
from kavka.replication.partition import Partition
from kavka.replication.partition_state import LeaderAndIsr
from kavka.replication.purgatory import DelayedFetch, DelayedProduce
from kavka.replication.replica_manager import ReplicaManager
from kavka.replication.topic_metrics import TopicMetrics
from kavka.storage.file_slice import FileClosed
from kavka.storage.log import Log
from kavka.storage.log_config import LogConfig

TP = TopicPartition("t", 0)
LATEST = 13


class Workers:
    """Stores the posted functions until the test runs them."""

    def __init__(self) -> None:
        self.posted: list = []

    def __call__(self, function, done) -> None:
        self.posted.append((function, done))

    def run_next(self, error: BaseException | None = None) -> None:
        function, done = self.posted.pop(0)
        if error is None:
            function()
        done(error)


def batch(count: int = 1) -> memoryview:
    builder = BatchBuilder()
    for _ in range(count):
        builder.append(Record(timestamp=1, value=b"v"))
    return memoryview(builder.build())


def make_partition(tmp_path, workers: Workers | None = None, isr=(0,), replicas=(0,), **config) -> Partition:
    tmp_path.mkdir(exist_ok=True)
    log = Log.open(tmp_path / "t-0", TP, replace(LogConfig(), **config), SystemClock())
    partition = Partition(TP, uuid4(), 0, workers or Workers(), TopicMetrics(Registry()).of_topic("t"))
    partition.make_leader(
        LeaderAndIsr(leader=0, leader_epoch=3, isr=frozenset(isr), replicas=tuple(replicas), partition_epoch=1), log
    )
    return partition


def set_code(result: SimpleNamespace, code: ErrorCode) -> None:
    result.error_code = int(code)


def set_error(result: SimpleNamespace, error: KafkaError) -> None:
    result.error_code, result.error_message = int(error.code), error.message


def new_result() -> SimpleNamespace:
    return SimpleNamespace(error_code=0, base_offset=0, log_append_time_ms=-1, log_start_offset=0, error_message=None)


def test_an_append_is_visible_only_after_the_write(tmp_path):
    partition = make_partition(tmp_path)
    partition.stage(batch(3), 1, LATEST)
    assert partition.read(0, 1000, 0, True) is None
    partition.write_staged()
    partition.advance()
    assert partition.log.high_watermark == 3
    assert len(partition.read(0, 1000, 0, True).slice) > 0


def test_with_too_few_in_sync_replicas_only_acks_all_is_rejected(tmp_path):
    partition = make_partition(tmp_path, replicas=(0, 1), min_insync_replicas=2)
    with pytest.raises(KafkaError) as raised:
        partition.stage(batch(), -1, LATEST)
    assert raised.value.code == ErrorCode.NOT_ENOUGH_REPLICAS
    partition.stage(batch(), 1, LATEST)


def test_min_insync_replicas_is_bounded_by_the_number_of_replicas(tmp_path):
    partition = make_partition(tmp_path, min_insync_replicas=2)
    partition.stage(batch(), -1, LATEST)
    partition.write_staged()
    partition.advance()
    assert partition.log.high_watermark == 1


@pytest.mark.parametrize(
    ("epoch", "code"), [(2, ErrorCode.FENCED_LEADER_EPOCH), (4, ErrorCode.UNKNOWN_LEADER_EPOCH), (3, None), (-1, None)]
)
def test_a_client_with_another_leader_epoch_gets_an_error(tmp_path, epoch, code):
    partition = make_partition(tmp_path)
    if code is None:
        partition.check_epoch(epoch)
        return
    with pytest.raises(KafkaError) as raised:
        partition.check_epoch(epoch)
    assert raised.value.code == code


def test_with_flush_messages_1_appends_during_a_flush_share_the_next_flush(tmp_path):
    async def scenario() -> None:
        workers = Workers()
        partition = make_partition(tmp_path, workers, flush_messages=1)
        futures = []
        for _ in range(3):
            info = partition.stage(batch(), 1, LATEST)
            partition.write_staged()
            partition.advance()
            assert partition.must_wait(info.last_offset + 1, 1)
            delayed = DelayedProduce("done", set_code)
            delayed.add(partition, info.last_offset + 1, False, new_result())
            futures.append(delayed.start(10_000))
        assert partition.log.high_watermark == 0
        assert len(workers.posted) == 1
        workers.run_next()
        assert futures[0].done()
        assert not futures[1].done()
        assert partition.log.high_watermark == 1
        workers.run_next()
        assert [future.result() for future in futures] == ["done"] * 3
        assert partition.log.high_watermark == 3
        assert not workers.posted

    asyncio.run(scenario())


def test_a_failed_flush_fails_pending_produces_and_is_reported(tmp_path):
    async def scenario() -> None:
        workers = Workers()
        partition = make_partition(tmp_path, workers, flush_messages=1)
        failures = []
        partition.on_storage_failure = lambda p, error: failures.append(error)
        info = partition.stage(batch(), 1, LATEST)
        partition.write_staged()
        partition.advance()
        delayed, result = DelayedProduce("done", set_code), new_result()
        delayed.add(partition, info.last_offset + 1, False, result)
        future = delayed.start(10_000)
        broken = OSError(5, "broken disk")
        workers.run_next(broken)
        assert future.done()
        assert result.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert failures == [broken]
        assert partition.log.high_watermark == 0

    asyncio.run(scenario())


def test_a_flush_of_a_closed_file_is_a_failed_flush(tmp_path):
    partition = make_partition(tmp_path, Workers(), flush_messages=1)
    failures = []
    partition.on_storage_failure = lambda p, error: failures.append(error)
    partition.stage(batch(), 1, LATEST)
    partition.write_staged()
    partition.log.active_segment.file.close()
    partition.advance()
    assert [type(error) for error in failures] == [FileClosed]


def test_flush_before_visible_holds_the_high_watermark_at_the_flushed_offset(tmp_path):
    partition = make_partition(tmp_path, flush_before_visible=True)
    partition.stage(batch(2), 1, LATEST)
    partition.write_staged()
    partition.advance()
    assert partition.log.high_watermark == 0
    assert not partition.must_wait(2, 1)
    assert partition.must_wait(2, -1)
    partition.log.flush()
    partition.advance()
    assert partition.log.high_watermark == 2


def test_a_produce_that_waits_too_long_times_out(tmp_path):
    async def scenario() -> None:
        partition = make_partition(tmp_path, flush_before_visible=True)
        delayed, result = DelayedProduce("done", set_code), new_result()
        delayed.add(partition, 1, True, result)
        assert await asyncio.wait_for(delayed.start(10), 5) == "done"
        assert result.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert not partition.pending_appends

    asyncio.run(scenario())


def test_a_pending_fetch_completes_with_enough_bytes_and_is_removed(tmp_path):
    async def scenario() -> None:
        partition = make_partition(tmp_path)
        size = len(batch())
        delayed = DelayedFetch(
            [partition], lambda _: partition.readable_bytes(0, 0) >= 2 * size, lambda: "response", 60_000
        )
        for n in range(2):
            assert not delayed.future.done(), n
            partition.stage(batch(), 1, LATEST)
            partition.write_staged()
            partition.advance()
        assert delayed.future.result() == "response"
        assert not partition.pending_fetches

    asyncio.run(scenario())


def test_a_pending_fetch_of_a_closed_connection_is_removed(tmp_path):
    async def scenario() -> None:
        partition = make_partition(tmp_path)
        delayed = DelayedFetch([partition], lambda _: True, lambda: "response", 60_000)
        delayed.future.cancel()
        await asyncio.sleep(0)
        assert not partition.pending_fetches

    asyncio.run(scenario())


def test_a_failed_write_fails_all_results_of_its_partition_and_no_others(tmp_path, monkeypatch):
    good, bad = make_partition(tmp_path / "a"), make_partition(tmp_path / "b")
    reports = []
    manager = SimpleNamespace(report_failure=lambda log, error: reports.append((log, error)))
    replicas = ReplicaManager(0, manager, MetadataCache(), Workers(), TopicMetrics(Registry()))
    results = [new_result() for _ in range(3)]
    for partition, result in ((good, results[0]), (bad, results[1]), (bad, results[2])):
        partition.on_storage_failure = replicas._on_storage_failure
        partition.stage(batch(), 1, LATEST)
        replicas.staged_appends.add(partition, result, set_error)
    full_fd = bad.log.active_segment.file.fd
    real = os.pwritev

    def pwritev(fd, buffers, offset, *flags):
        if fd == full_fd:
            raise OSError(28, "No space left on device")
        return real(fd, buffers, offset, *flags)

    monkeypatch.setattr(os, "pwritev", pwritev)
    replicas.staged_appends.write()
    assert [result.error_code for result in results] == [0, 56, 56]
    assert "No space left" in results[1].error_message
    assert good.log.high_watermark == 1
    assert bad.log.end_offset == 0
    assert reports[0][0] is bad.log
    monkeypatch.undo()
    bad.stage(batch(), 1, LATEST)
    replicas.staged_appends.add(bad, new_result(), set_error)
    replicas.staged_appends.write()
    assert bad.log.high_watermark == 1
