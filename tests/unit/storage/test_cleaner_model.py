"""Compaction compared with a model: after any appends, cleanings, restarts and crashes between any
two file operations, a reader from the start gets the state of the model."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kavka.records.reader import batch_records
from kavka.storage.cleaner import CleanerSettings, LogCleaning
from kavka.storage.cleaner_manager import measure
from kavka.storage.log import Log
from kavka.storage.log_config import LogConfig
from kavka.storage.offset_map import BYTES_PER_SLOT
from tests.support.jobs import clean_now
from tests.support.logs import FakeClock, append, append_marker, open_log, stored_batches

RETENTION_MS = 1000
CONFIG = LogConfig(
    cleanup_policy=("compact",),
    segment_bytes=1200,
    index_interval_bytes=200,
    delete_retention_ms=RETENTION_MS,
    file_delete_delay_ms=0,
)
LARGE = CleanerSettings(dedupe_buffer_size=1 << 16, io_buffer_size=700)
# With space for six keys, the map is full before the end of the dirty part.
SMALL = replace(LARGE, dedupe_buffer_size=64 * BYTES_PER_SLOT, io_buffer_load_factor=0.1)

# The operations that change the file system or sync changes. A crash may happen before any of
# them.
FILE_OPERATIONS = (
    *("rename", "replace", "unlink", "rmdir", "utime", "truncate", "ftruncate", "posix_fallocate"),
    *("write", "writev", "pwrite", "pwritev", "fsync", "fdatasync"),
)


class Crash(BaseException):
    """Not an Exception, so that no code handles it."""


@contextmanager
def crash_at(step: int) -> Iterator[list[str]]:
    """Raise Crash instead of executing the file operations from number `step` on. Yield the names
    of the executed operations."""
    executed: list[str] = []
    originals = {name: getattr(os, name) for name in FILE_OPERATIONS if hasattr(os, name)}

    def patched(name: str):
        def call(*args, **kwargs):
            if len(executed) >= step:
                raise Crash(name)
            executed.append(name)
            return originals[name](*args, **kwargs)

        return call

    for name in originals:
        setattr(os, name, patched(name))
    try:
        yield executed
    finally:
        for name, function in originals.items():
            setattr(os, name, function)


class Model:
    """The log under test and its expected contents."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = FakeClock()
        self.log: Log = open_log(path, CONFIG, self.clock)
        self.clean_offset = 0
        self.records: list[tuple[int, bytes, bytes | None]] = []
        self.cleaned_since: dict[int, int] = {}
        self.counter = 0
        self.sequences: dict[int, int] = {}

    # --- actions

    def append(self, keys: list[tuple[int, bool]], codec: int) -> None:
        pairs = self._pairs(keys)
        first = append(self.log, pairs, codec=codec)
        self._appended(first, pairs)

    def transaction(self, keys: list[tuple[int, bool]], producer: int, commit: bool) -> None:
        pairs = self._pairs(keys)
        sequence = self.sequences.get(producer, 0)
        first = append(
            self.log, pairs, producer_id=producer, producer_epoch=0, base_sequence=sequence, transactional=True
        )
        self.sequences[producer] = sequence + len(pairs)
        self.append([(9, False)], 0)
        append_marker(self.log, producer, commit=commit)
        if commit:
            self._appended(first, pairs)
            self.records.sort()

    def _pairs(self, keys: list[tuple[int, bool]]) -> list[tuple[bytes | None, bytes | None]]:
        pairs: list[tuple[bytes | None, bytes | None]] = []
        for key, tombstone in keys:
            self.counter += 1
            name = b"key-%d" % key if key % 2 else b"a-key-of-more-than-sixteen-bytes-%d" % key
            pairs.append((name, None if tombstone else b"%d" % self.counter))
        return pairs

    def _appended(self, first: int, pairs: list[tuple[bytes | None, bytes | None]]) -> None:
        self.records += [(first + n, key, value) for n, (key, value) in enumerate(pairs) if key is not None]

    def roll(self) -> None:
        if self.log.active_segment.size:
            self.log.roll()

    def clean(self, cleaner: CleanerSettings, crash: int | None) -> None:
        candidate = measure(self.log, self.clean_offset, self.clock.now_ms())
        if not candidate.cleanable_bytes:
            return
        for offset, _, value in self.records:
            if value is None and offset < candidate.upper_bound:
                self.cleaned_since.setdefault(offset, self.clock.now_ms())
        cleaning = LogCleaning(self.log, candidate.first_dirty_offset, candidate.upper_bound, cleaner, self.clock)
        if crash is None:
            self.clean_offset = clean_now(cleaning).end_offset
            return
        try:
            with crash_at(crash):
                self.clean_offset = clean_now(cleaning).end_offset
        except Crash:
            self.reopen(clean=False)

    def reopen(self, clean: bool) -> None:
        if clean:
            self.log.close()
        else:
            self.log.abandon()
        high_watermark = self.log.high_watermark
        self.log = open_log(self.path, CONFIG, self.clock, clean_shutdown=clean)
        self.log.set_high_watermark(high_watermark)

    def delete_files(self) -> None:
        for deletion in self.log.take_due_deletions(self.clock.now_ms()):
            deletion.run()

    # --- invariants

    def check(self) -> None:
        log = self.log
        end = max([offset for offset, *_ in self.records], default=-1) + 1
        assert log.end_offset >= end
        visible = committed(log)
        offsets = [offset for offset, *_ in visible]
        assert offsets == sorted(set(offsets)), "offsets are out of order"
        written = set(self.records)
        assert all(record in written for record in visible), "a record differs from the record written at its offset"
        active = log.active_segment.base_offset
        visible_records = set(visible)
        assert all(record in visible_records for record in self.records if record[0] >= active), (
            "the active segment lost a record"
        )

        expected = {key: (offset, value) for offset, key, value in self.records}
        visible_state = {key: (offset, value) for offset, key, value in visible}
        for key, (offset, value) in expected.items():
            if value is not None:
                assert visible_state.get(key) == (offset, value), f"the last value of {key!r} is lost"
            elif key in visible_state:
                assert visible_state[key] == (offset, None), f"{key!r} is visible although it was deleted"
            else:
                since = self.cleaned_since.get(offset)
                assert since is not None, f"the tombstone of {key!r} was removed before it was cleaned"
                assert self.clock.now_ms() >= since + RETENTION_MS, f"the tombstone of {key!r} was removed too early"
        for segment in log.segments:
            assert segment.size <= CONFIG.segment_bytes
        for batch in stored_batches(log):
            assert batch.has_valid_crc()
        for offset in offsets:
            read = log.read(offset, 1, limit=log.end_offset, min_one_batch=True)
            assert read is not None


def committed(log: Log) -> list[tuple[int, bytes, bytes | None]]:
    """The records that a read_committed consumer reads from the start. Like clients, it skips the
    aborted transactions of the transaction index."""
    pending = sorted(log.aborted_transactions(log.start_offset, log.end_offset), key=lambda txn: txn.first_offset)
    aborted: set[int] = set()
    records = []
    for batch in stored_batches(log):
        while pending and pending[0].first_offset <= batch.last_offset:
            aborted.add(pending.pop(0).producer_id)
        if batch.is_control:
            aborted.discard(batch.producer_id)
        elif not (batch.is_transactional and batch.producer_id in aborted):
            records += [(r.offset, r.key, r.value) for r in batch_records(batch) if r.key is not None]
    return records


keys = st.lists(st.tuples(st.integers(0, 7), st.booleans()), min_size=1, max_size=6)
operations = st.one_of(
    st.tuples(st.just("append"), keys, st.sampled_from([0, 0, 1, 3])),
    st.tuples(st.just("append"), keys, st.just(0)),
    st.tuples(st.just("transaction"), keys, st.integers(1, 2), st.booleans()),
    st.tuples(st.just("roll")),
    st.tuples(st.just("clean"), st.sampled_from([LARGE, SMALL]), st.just(None)),
    st.tuples(st.just("clean"), st.sampled_from([LARGE, SMALL]), st.integers(0, 45)),
    st.tuples(st.just("advance"), st.sampled_from([1, 500, 1000])),
    st.tuples(st.just("reopen"), st.booleans()),
    st.tuples(st.just("delete_files")),
)


@pytest.fixture
def in_memory():
    """A folder in memory, if possible, so that fsync costs nothing."""
    folder = Path(tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    yield folder
    shutil.rmtree(folder)


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(operations, min_size=4, max_size=40))
def test_a_reader_gets_the_state_that_was_written(in_memory, history):
    folder = Path(tempfile.mkdtemp(dir=in_memory))
    model = Model(folder / "orders-0")
    try:
        for name, *arguments in history:
            if name == "advance":
                model.clock.advance(arguments[0])
            else:
                getattr(model, name)(*arguments)
            model.check()
        model.roll()
        model.append([(9, False)], 0)
        model.clean(LARGE, None)
        model.check()
    finally:
        model.log.abandon()


@pytest.mark.parametrize("seed", range(40))
def test_long_histories_with_many_crashes_lose_no_record(in_memory, seed):
    draw = random.Random(seed)
    model = Model(in_memory / "orders-0")

    def some_keys() -> list[tuple[int, bool]]:
        return [(draw.randrange(8), draw.random() < 0.4) for _ in range(draw.randint(1, 6))]

    for _ in range(60):
        chance = draw.random()
        if chance < 0.4:
            model.append(some_keys(), draw.choice([0, 0, 1, 2, 3, 4]))
        elif chance < 0.5:
            model.transaction(some_keys(), draw.randint(1, 2), draw.random() < 0.5)
        elif chance < 0.6:
            model.roll()
        elif chance < 0.8:
            model.clean(draw.choice([LARGE, SMALL]), draw.choice([None, draw.randrange(45)]))
        elif chance < 0.9:
            model.clock.advance(draw.choice([1, 500, 1000]))
        elif chance < 0.95:
            model.reopen(clean=draw.random() < 0.5)
        else:
            model.delete_files()
        model.check()
    model.log.abandon()


def test_a_crash_before_any_file_operation_of_a_cleaning_leaves_a_valid_log(in_memory):
    step = crashes = 0
    while True:
        model = Model(in_memory / f"{step}" / "orders-0")
        for n in range(12):
            model.append([(n % 3, n % 4 == 3), (n % 5, False)], codec=n % 2)
            model.transaction([(n % 3, False)], 1, commit=n % 2 == 0)
        model.roll()
        model.append([(9, False)], 0)
        log = model.log
        model.clean(LARGE, step)
        model.check()
        names = os.listdir(model.path)
        is_finished = model.log is log
        if not is_finished:
            crashes += 1
            assert not [name for name in names if name.endswith((".cleaned", ".swap", ".deleted"))]
        # A second cleaning from the checkpoint has the same result.
        model.roll()
        model.append([(9, False)], 0)
        model.clean(LARGE, None)
        model.check()
        assert len(committed(model.log)) <= 11
        model.log.abandon()
        if is_finished:
            break
        step += 1
    assert crashes > 20


@pytest.mark.parametrize("last", ["value", "tombstone"])
def test_the_model_detects_a_lost_record(tmp_path, last):
    model = Model(tmp_path / "orders-0")
    model.append([(1, False), (2, last == "tombstone")], 0)
    model.records.append((2, b"never written", b"1"))
    with pytest.raises(AssertionError):
        model.check()
    model.log.abandon()
