"""Runs the jobs in real worker threads, while the loop thread appends and reads."""

from __future__ import annotations

import random
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from kavka.common.clock import SystemClock
from kavka.common.types import TopicPartition
from kavka.records.reader import read_records
from kavka.storage.cleaner import CleanerSettings
from kavka.storage.jobs import Job
from kavka.storage.log_config import LogConfig
from kavka.storage.log_manager import LogManager
from kavka.storage.settings import StorageSettings
from tests.support.logs import append, contents, latest

CONFIG = LogConfig(
    cleanup_policy=("compact",),
    segment_bytes=20_000,
    index_interval_bytes=500,
    min_cleanable_dirty_ratio=0.05,
    file_delete_delay_ms=1,
    flush_ms=5,
)
PARTITIONS = [TopicPartition("t", n) for n in range(4)]


class Scheduler:
    """Schedules jobs like the broker's loop, without waiting for their periods."""

    def __init__(self, jobs: list[Job], pool: ThreadPoolExecutor) -> None:
        self._jobs = jobs
        self._pool = pool
        self._running: dict[Job, Future[None]] = {}
        self.rounds: dict[str, int] = {}

    def turn(self, start: bool = True) -> None:
        for job in self._jobs:
            future = self._running.get(job)
            if future is not None:
                if not future.done():
                    continue
                del self._running[job]
                self.rounds[job.name] = self.rounds.get(job.name, 0) + 1
                job.finish(future.exception())
            if start and job.prepare():
                self._running[job] = self._pool.submit(job.run)

    def has_run_enough(self) -> bool:
        """Whether the cleaner, the flush and the log moves have each run several times."""
        min_rounds = {"cleaner": 5, "flush": 5, "move-logs": 2}
        return all(self.rounds.get(name, 0) > rounds for name, rounds in min_rounds.items())

    def drain(self) -> None:
        while self._running:
            self.turn(start=False)
            time.sleep(0.001)


def test_a_busy_broker_loses_no_record_while_logs_are_cleaned_flushed_and_moved(tmp_path):
    settings = StorageSettings(cleaner=CleanerSettings(io_buffer_size=4096))
    manager = LogManager([tmp_path / "one", tmp_path / "two"], lambda topic: CONFIG, settings, SystemClock())
    manager.open_dirs()
    manager.load()
    rng = random.Random(1)
    written: dict[TopicPartition, dict[bytes, tuple[int, bytes]]] = {tp: {} for tp in PARTITIONS}
    with ThreadPoolExecutor(3) as pool:
        scheduler = Scheduler(manager.jobs(), pool)
        for tp in PARTITIONS:
            manager.get_or_create(tp)
        start = time.monotonic()
        turn = 0
        while time.monotonic() < start + (2 if scheduler.has_run_enough() else 60):
            turn += 1
            tp = rng.choice(PARTITIONS)
            log = manager.get(tp)
            pairs = [(b"key-%d" % rng.randrange(50), b"%d" % turn * 20) for _ in range(5)]
            first = append(log, pairs)
            for n, (key, value) in enumerate(pairs):
                written[tp][key] = (first + n, value)
            offset = rng.randrange(log.end_offset)
            read = log.read(offset, 4096, limit=log.end_offset, min_one_batch=True)
            records = list(read_records(read.slice.read()))
            assert records == sorted(records, key=lambda record: record.offset)
            if turn % 200 == 0:
                manager.move(tp, rng.choice(manager.dirs).path)
            if turn % 331 == 0:
                manager.update_config("t", replace(CONFIG, delete_retention_ms=turn))
            scheduler.turn()
        manager.stop_jobs()
        scheduler.drain()
    assert not manager.cleaner.uncleanable
    assert manager.online_dirs == manager.dirs
    assert scheduler.has_run_enough(), scheduler.rounds
    for tp in PARTITIONS:
        assert latest(contents(manager.get(tp))) == written[tp]
    end_offsets = {tp: manager.get(tp).end_offset for tp in PARTITIONS}
    manager.shutdown()

    restarted = LogManager([tmp_path / "one", tmp_path / "two"], lambda topic: CONFIG)
    restarted.open_dirs()
    restarted.load()
    for tp in PARTITIONS:
        assert restarted.get(tp).end_offset == end_offsets[tp]
        assert latest(contents(restarted.get(tp))) == written[tp]
    restarted.abandon()
