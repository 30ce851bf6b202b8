"""Appending to a log: staging, writing, rolling, and failures of the disk."""

from __future__ import annotations

import errno
import os
import struct
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from kavka.common.errors import ErrorCode, KafkaError
from kavka.records.batch import BatchHeader, parse_header
from kavka.records.control import end_marker
from kavka.storage.log import Log
from kavka.storage.log_append import AppendInfo, AppendOrigin, UnexpectedOffset
from kavka.storage.log_config import LogConfig
from tests.support.logs import START_MS, TP, FakeClock, build
from tests.unit.storage.conftest import Opener


def stage(
    log: Log, count: int = 1, size: int = 10, *, epoch: int = 0, timestamp: int | None = None, **options: object
) -> AppendInfo:
    at = log.clock.now_ms() if timestamp is None else timestamp
    return log.stage_as_leader(memoryview(build([(b"k", b"v" * size)] * count, at, **options)), epoch)


def append(log: Log, count: int = 1, size: int = 10, **options: object) -> AppendInfo:
    info = stage(log, count, size, **options)  # type: ignore[arg-type]
    log.write_staged()
    return info


def headers(log: Log) -> list[BatchHeader]:
    return [header for segment in log.segments for _, header in segment.batches()]


def state(log: Log) -> object:
    """The state that an append can change, in memory and on disk."""
    producers = log.producer_states
    return (
        (log.start_offset, log.end_offset, log.written_end, log.high_watermark, log.last_stable_offset),
        {pid: repr(entry) for pid, entry in producers.entries.items()},
        (dict(producers.ongoing), dict(producers.unreplicated), producers.first_unstable_offset),
        log.epochs.entries,
        [
            (
                s.base_offset,
                s.size,
                Path(s.file.path).read_bytes(),
                [s.offset_index.entry(n) for n in range(s.offset_index.entries)],
                [s.time_index.entry(n) for n in range(s.time_index.entries)],
                list(s.txn_index.entries),
                (s.max_timestamp, s.bytes_since_index, s.first_timestamp, s.roll_at),
            )
            for s in log.segments
        ],
        sorted(p.name for p in log.dir.iterdir() if p.suffix != ".txnindex" and p.name != "leader-epoch-checkpoint"),
    )


# --- staging and writing


def test_a_batch_gets_its_offsets_and_leader_epoch_and_is_otherwise_unchanged(
    open_log: Opener, clock: FakeClock
) -> None:
    log = open_log()
    data = build([(b"a", b"1"), (b"b", b"2"), (None, None)], START_MS)
    original = bytes(data)
    first = log.stage_as_leader(memoryview(data), 4)
    log.write_staged()
    second = append(log, 2, epoch=4)
    assert (first.first_offset, first.last_offset, first.count, first.size) == (0, 2, 3, len(original))
    assert (first.max_timestamp, first.append_time, first.leader_epoch, first.duplicate) == (START_MS, -1, 4, False)
    assert (second.first_offset, second.last_offset) == (3, 4)
    assert [(h.base_offset, h.last_offset, h.leader_epoch) for h in headers(log)] == [(0, 2, 4), (3, 4, 4)]
    on_disk = (log.dir / "00000000000000000000.log").read_bytes()[: len(original)]
    assert on_disk[16:] == original[16:]
    assert on_disk[:16] == struct.pack(">qii", 0, len(original) - 12, 4)


def test_staged_batches_are_neither_in_the_file_nor_visible(open_log: Opener) -> None:
    log = open_log()
    stage(log, 2)
    assert log.end_offset == 2
    assert log.active_segment.size == 0
    assert log.read(0, 1000, limit=2, min_one_batch=True) is None
    log.set_high_watermark(2)
    assert log.high_watermark == 0
    log.write_staged()
    assert log.read(0, 1000, limit=2, min_one_batch=True) is not None


def test_all_batches_of_a_turn_are_written_with_one_call(open_log: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log()
    calls = []
    real = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, at: calls.append(len(buffers)) or real(fd, buffers, at))
    for _ in range(5):
        stage(log)
    log.write_staged()
    log.write_staged()
    assert calls == [5]
    assert [h.base_offset for h in headers(log)] == [0, 1, 2, 3, 4]


def test_more_buffers_than_one_call_accepts_are_all_written(open_log: Opener) -> None:
    log = open_log()
    for _ in range(2500):
        stage(log, size=0)
    log.write_staged()
    assert [h.base_offset for h in headers(log)] == list(range(2500))


@pytest.mark.parametrize("at_once", [1, 50, 79, 80, 1000])
def test_a_short_write_is_continued(open_log: Opener, monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    log = open_log()
    real = os.pwrite
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, at: real(fd, b"".join(map(bytes, buffers))[:at_once], at))
    for _ in range(4):
        stage(log)
    log.write_staged()
    assert [h.base_offset for h in headers(log)] == [0, 1, 2, 3]
    assert log.active_segment.size == os.path.getsize(log.active_segment.file.path)


def test_an_index_entry_is_added_after_each_interval(open_log: Opener) -> None:
    log = open_log(index_interval_bytes=150)
    sizes = [append(log, 2, timestamp=START_MS + n).size for n in range(8)]
    assert len(set(sizes)) == 1
    size = sizes[0]
    assert 75 < size <= 150
    index = log.active_segment.offset_index
    assert [index.entry(n) for n in range(index.entries)] == [(5, 2 * size), (9, 4 * size), (13, 6 * size)]
    times = log.active_segment.time_index
    assert [times.entry(n) for n in range(times.entries)] == [(START_MS + 2, 5), (START_MS + 4, 9), (START_MS + 6, 13)]


def test_batches_staged_together_or_separately_result_in_the_same_files(tmp_path: Path, clock: FakeClock) -> None:
    contents = []
    for folder, turn in (("a", 1), ("b", 7), ("c", 100)):
        log = Log.open(tmp_path / folder, TP, LogConfig(index_interval_bytes=150, segment_bytes=1500), clock)
        for n in range(100):
            stage(log, 1 + n % 3, n % 40, timestamp=START_MS + (n * 7) % 31)
            if n % turn == turn - 1:
                log.write_staged()
        log.close()
        contents.append({p.name: p.read_bytes() for p in (tmp_path / folder).iterdir()})
    assert contents[0] == contents[1] == contents[2]
    assert sum(name.endswith(".log") for name in contents[0]) > 5


def test_a_batch_larger_than_a_segment_is_rejected(open_log: Opener) -> None:
    log = open_log(segment_bytes=500)
    with pytest.raises(KafkaError) as raised:
        stage(log, 1, 500)
    assert raised.value.code == ErrorCode.RECORD_LIST_TOO_LARGE
    assert log.end_offset == 0


def test_log_append_time_is_written_to_the_batch(open_log: Opener, clock: FakeClock) -> None:
    log = open_log(message_timestamp_type="LogAppendTime")
    info = append(log, 1, timestamp=START_MS - 5000)
    assert (info.append_time, info.max_timestamp) == (START_MS, START_MS)
    [header] = headers(log)
    assert (header.max_timestamp, header.timestamp_type) == (START_MS, 1)


def test_a_duplicate_batch_gets_the_offsets_of_the_original(open_log: Opener) -> None:
    log = open_log()
    options = {"producer_id": 5, "producer_epoch": 0}
    append(log, 3)
    first = append(log, 2, base_sequence=0, **options)
    previous_state = state(log)
    duplicate = append(log, 2, base_sequence=0, **options)
    assert duplicate.duplicate
    assert (duplicate.first_offset, duplicate.last_offset) == (first.first_offset, first.last_offset) == (3, 4)
    assert state(log) == previous_state
    with pytest.raises(KafkaError) as raised:
        append(log, 1, base_sequence=9, **options)
    assert raised.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert state(log) == previous_state


def test_a_duplicate_of_a_batch_staged_in_the_same_turn_is_detected(open_log: Opener) -> None:
    log = open_log()
    options = {"producer_id": 5, "producer_epoch": 0}
    stage(log, 2, base_sequence=0, **options)
    assert stage(log, 2, base_sequence=0, **options).duplicate
    assert stage(log, 2, base_sequence=2, **options).first_offset == 2
    log.write_staged()
    assert len(headers(log)) == 2


def test_an_epoch_is_recorded_with_its_first_batch(open_log: Opener) -> None:
    log = open_log()
    append(log, 3, epoch=1)
    append(log, 1, epoch=1)
    append(log, 1, epoch=4)
    assert log.epochs.entries == [(1, 0), (4, 4)]
    log.flush()
    assert (log.dir / "leader-epoch-checkpoint").read_text() == "0\n2\n1 0\n4 4\n"
    assert log.end_offset_for_epoch(1) == (1, 4)
    assert log.end_offset_for_epoch(4) == (4, 5)


def test_a_leader_records_its_epoch_before_it_writes(open_log: Opener) -> None:
    log = open_log()
    log.start_epoch(3)
    assert log.end_offset_for_epoch(3) == (3, 0)
    append(log, 2, epoch=3)
    assert log.epochs.entries == [(3, 0)]


# --- rolling


def bases(log: Log) -> list[int]:
    return [segment.base_offset for segment in log.segments]


def test_a_segment_is_rolled_when_the_next_batch_does_not_fit(open_log: Opener) -> None:
    size = len(build([(b"k", b"v" * 10)], START_MS))
    log = open_log(segment_bytes=2 * size)
    for _ in range(5):
        append(log)
    assert bases(log) == [0, 2, 4]
    assert [segment.size for segment in log.segments] == [2 * size, 2 * size, size]


def test_rolled_segments_are_trimmed_and_a_snapshot_is_taken(open_log: Opener) -> None:
    log = open_log(segment_bytes=250, index_interval_bytes=0, preallocate=True)
    assert os.path.getsize(log.active_segment.file.path) == 250
    for _ in range(5):
        append(log, producer_id=1, producer_epoch=0, base_sequence=log.end_offset)
    first = log.segments[0]
    assert os.path.getsize(first.file.path) == first.size
    assert os.path.getsize(first.offset_index.path) == 8 * first.offset_index.entries > 0
    assert os.path.getsize(first.time_index.path) == 12 * first.time_index.entries > 0
    second = log.segments[1].base_offset
    assert (log.dir / f"{second:020d}.snapshot").exists()
    assert os.path.getsize(log.active_segment.file.path) == 250


def test_the_age_of_a_segment_is_measured_by_timestamps_of_records(open_log: Opener, clock: FakeClock) -> None:
    log = open_log(segment_ms=1000)
    append(log, timestamp=5000)
    clock.advance(100_000)
    append(log, timestamp=6000)
    assert bases(log) == [0]
    append(log, timestamp=6001)
    assert bases(log) == [0, 2]
    append(log, timestamp=5000)
    assert bases(log) == [0, 2]


def test_the_age_of_a_segment_without_timestamps_is_measured_by_the_clock(open_log: Opener, clock: FakeClock) -> None:
    log = open_log(segment_ms=1000)
    append(log, timestamp=-1)
    clock.advance(1000)
    append(log, timestamp=-1)
    assert bases(log) == [0]
    clock.advance(1)
    append(log, timestamp=-1)
    assert bases(log) == [0, 2]


def test_the_age_of_a_segment_starts_at_its_first_record_after_a_restart(open_log: Opener, clock: FakeClock) -> None:
    log = open_log(segment_ms=1000)
    append(log, timestamp=5000)
    log.close()
    log = open_log(segment_ms=1000)
    append(log, timestamp=6001)
    assert bases(log) == [0, 1]


def test_jitter_makes_a_segment_roll_earlier(open_log: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("random.randrange", lambda n: n - 1)
    log = open_log(segment_ms=1000, segment_jitter_ms=400)
    append(log, timestamp=5000)
    append(log, timestamp=5601)
    assert bases(log) == [0]
    append(log, timestamp=5602)
    assert bases(log) == [0, 2]


def test_a_changed_configuration_applies_to_the_active_segment(open_log: Opener) -> None:
    log = open_log()
    append(log, timestamp=5000)
    log.update_config(LogConfig(segment_ms=10))
    append(log, timestamp=5020)
    assert bases(log) == [0, 1]


@pytest.mark.parametrize("turn", [1, 50])
def test_a_full_index_rolls_the_segment(open_log: Opener, turn: int) -> None:
    log = open_log(index_interval_bytes=0, segment_index_bytes=80)
    for n in range(50):
        stage(log, timestamp=START_MS + n)
        if n % turn == turn - 1:
            log.write_staged()
    assert len(log.segments) > 5
    for segment in log.segments[:-1]:
        assert segment.offset_index.entries <= 10
        assert segment.time_index.entries <= 6
    assert [h.base_offset for h in headers(log)] == list(range(50))


def test_an_offset_too_far_from_the_base_offset_rolls_the_segment(open_log: Opener) -> None:
    log = open_log()
    log.append_as_follower(build([(b"k", b"v")], START_MS, base_offset=10, leader_epoch=0))
    log.append_as_follower(build([(b"k", b"v")], START_MS, base_offset=2**31 - 1, leader_epoch=0))
    assert bases(log) == [0]
    log.append_as_follower(build([(b"k", b"v")], START_MS, base_offset=2**31, leader_epoch=0))
    assert bases(log) == [0, 2**31]
    log.append_as_follower(build([(b"k", b"v")], START_MS, base_offset=2**40, leader_epoch=0))
    assert bases(log) == [0, 2**31, 2**40]
    assert log.end_offset == 2**40 + 1
    result = log.read(2**31 + 5, 1000, limit=log.end_offset, min_one_batch=True)
    assert result is not None
    assert parse_header(result.slice.read()).base_offset == 2**40


def test_a_roll_of_an_empty_segment_changes_nothing(open_log: Opener) -> None:
    log = open_log()
    log.roll()
    log.roll()
    assert bases(log) == [0]
    append(log)
    log.roll()
    log.roll()
    assert bases(log) == [0, 1]


def test_a_roll_calls_the_callback(open_log: Opener) -> None:
    log = open_log()
    rolled = []
    log.notify_rolls(rolled.append)
    append(log)
    log.roll()
    assert rolled == [log]


# --- disk failures


def mixed_history(log: Log) -> None:
    append(log, 2, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    append(log, 3, producer_id=2, producer_epoch=0, base_sequence=0)
    append(log, 1)
    log.set_high_watermark(4)


def mixed_turn(log: Log) -> None:
    """Stage changes of all kinds in one turn: existing and new producers, transactions, epochs,
    index entries, and segments if they are small."""
    stage(log, 2, 30, producer_id=1, producer_epoch=0, base_sequence=2, transactional=True, epoch=3)
    stage(log, 1, 30, producer_id=2, producer_epoch=1, base_sequence=0, epoch=3)
    stage(log, 2, 30, producer_id=3, producer_epoch=0, base_sequence=0, transactional=True, epoch=3)
    abort = bytearray(end_marker(False, 1, 0, 0, log.clock.now_ms()))
    log.stage_as_leader(memoryview(abort), 3, origin=AppendOrigin.COORDINATOR)
    stage(log, 1, 40, epoch=4, timestamp=START_MS + 100)


class FailingDisk:
    """A disk that accepts `budget` bytes and then no more."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, budget: int) -> None:
        self.budget = budget
        self.write = os.pwrite
        self.fallocate = os.posix_fallocate
        monkeypatch.setattr(os, "pwritev", self.pwritev)
        monkeypatch.setattr(os, "pwrite", self.pwrite)

    def accept(self, size: int) -> int:
        if self.budget <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        accepted = min(size, self.budget)
        self.budget -= accepted
        return accepted

    def pwritev(self, fd: int, buffers: list[bytes], position: int) -> int:
        data = b"".join(map(bytes, buffers))
        return self.write(fd, data[: self.accept(len(data))], position)

    def pwrite(self, fd: int, data: bytes, position: int) -> int:
        return self.write(fd, bytes(data)[: self.accept(len(data))], position)


@pytest.mark.usefixtures("no_fsync")
@pytest.mark.parametrize("segment_bytes", [1 << 20, 450, 250])
def test_a_full_disk_at_any_byte_leaves_the_log_as_before_the_turn(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, segment_bytes: int
) -> None:
    config = LogConfig(segment_bytes=segment_bytes, index_interval_bytes=100)
    for budget in range(0, 900, 13):
        log = Log.open(tmp_path / f"orders-{budget}", TP, config, clock)
        mixed_history(log)
        previous_state = state(log)
        with monkeypatch.context() as patched:
            FailingDisk(patched, budget)
            try:
                mixed_turn(log)
                has_failed = False
            except KafkaError as error:
                assert error.code == ErrorCode.KAFKA_STORAGE_ERROR
                has_failed = True
            try:
                log.write_staged()
            except KafkaError as error:
                assert error.code == ErrorCode.KAFKA_STORAGE_ERROR
                assert isinstance(error.__cause__, OSError)
            else:
                assert has_failed or log.end_offset == 13
                log.abandon()
                continue
        assert state(log) == previous_state, budget
        mixed_turn(log)
        log.write_staged()
        assert log.end_offset == 13
        assert [txn[:3] for txn in log.aborted_transactions(0, 13)] == [(1, 0, 11)]
        log.close()
        reopened = Log.open(tmp_path / f"orders-{budget}", TP, config, clock)
        assert [h.base_offset for h in headers(reopened)] == [0, 2, 5, 6, 8, 9, 11, 12]
        reopened.abandon()


def test_an_index_file_that_cannot_be_written_does_not_fail_appends(
    open_log: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(index_interval_bytes=100)
    mixed_history(log)
    log.active_segment.offset_index.trim()
    entries = log.active_segment.offset_index.entries
    with monkeypatch.context() as patched:

        def fail(*args: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        patched.setattr("kavka.storage.index_file.write_all", fail)
        patched.setattr("kavka.storage.index_file.BUFFER_BYTES", 8)
        mixed_turn(log)
        log.write_staged()
        with pytest.raises(KafkaError, match="No space") as raised:
            log.roll()
    assert raised.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    index = log.active_segment.offset_index
    assert (log.end_offset, len(log.segments)) == (13, 1)
    assert index.entries > entries
    log.roll()
    assert os.path.getsize(index.path) == index.entries * 8
    assert len(log.segments) == 2


def test_the_bytes_of_a_failed_write_are_truncated_before_the_next_write(
    open_log: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log()
    append(log)
    real = os.pwrite

    def torn(fd: int, buffers: list[bytes], position: int) -> int:
        real(fd, b"".join(map(bytes, buffers)), position)
        raise OSError(errno.EIO, "Input/output error")

    def fail_truncation(fd: int, size: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwritev", torn)
        patched.setattr(os, "ftruncate", fail_truncation)
        stage(log)
        stage(log)
        with pytest.raises(KafkaError):
            log.write_staged()
    assert os.path.getsize(log.active_segment.file.path) > log.active_segment.size
    assert log.end_offset == 1
    append(log)
    assert os.path.getsize(log.active_segment.file.path) == log.active_segment.size
    assert [h.base_offset for h in headers(log)] == [0, 1]


def test_batches_staged_before_a_failed_roll_fail_when_they_are_written(
    open_log: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(segment_bytes=250)
    append(log, size=60)
    previous_state = state(log)
    with monkeypatch.context() as patched:
        FailingDisk(patched, 10)
        stage(log, size=30)
        with pytest.raises(KafkaError):
            stage(log, size=100)
        with pytest.raises(KafkaError):
            stage(log, size=1)
    with pytest.raises(KafkaError):
        log.write_staged()
    log.write_staged()
    assert state(log) == previous_state


def test_a_failed_roll_rejects_its_batch_and_keeps_earlier_staged_batches(
    open_log: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(segment_bytes=250)
    append(log, size=60)
    real = os.open

    def no_new_files(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_CREAT and str(path).endswith(".log"):
            raise OSError(errno.EMFILE, "Too many open files")
        return real(path, flags, mode)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", no_new_files)
        staged = stage(log, size=10)
        with pytest.raises(KafkaError):
            stage(log, size=100)
        log.write_staged()
    assert log.end_offset == staged.last_offset + 1 == 2
    assert len(log.segments) == 1
    append(log, size=100)
    assert [h.base_offset for h in headers(log)] == [0, 1, 2]
    assert len(log.segments) == 2


SMALL_DISK = """
    import os, sys
    from pathlib import Path
    from kavka.common.clock import SystemClock
    from kavka.common.errors import ErrorCode, KafkaError
    from kavka.common.types import TopicPartition
    from kavka.storage.log import Log
    from kavka.storage.log_config import LogConfig
    from tests.support.logs import build

    root = Path(sys.argv[1])
    config = LogConfig(segment_bytes=1 << 20, index_interval_bytes=1000, segment_index_bytes=40_000)
    clock = SystemClock()
    log = Log.open(root / "orders-0", TopicPartition("orders", 0), config, clock)
    other = Log.open(root / "orders-1", TopicPartition("orders", 1), config, clock)
    good = failures = 0
    for n in range(400):
        try:
            for _ in range(3):
                data = build([(b"k", os.urandom(5000))], clock.now_ms())
                log.stage_as_leader(memoryview(data), 0)
            log.write_staged()
            good = log.end_offset
        except KafkaError as error:
            assert error.code == ErrorCode.KAFKA_STORAGE_ERROR, error
            failures += 1
            assert log.end_offset == good, (log.end_offset, good)
    assert failures, "the disk never ran full"
    before = [header.base_offset for segment in log.segments for _, header in segment.batches()]
    assert before == list(range(good)), before
    if len(sys.argv) > 2:
        os.unlink(root / "ballast")
        data = build([(b"k", b"v")], clock.now_ms())
        log.stage_as_leader(memoryview(data), 0)
        log.write_staged()
        assert log.end_offset == good + 1
    log.abandon()
    again = Log.open(root / "orders-0", TopicPartition("orders", 0), config, clock, clean_shutdown=False)
    assert again.end_offset >= good
    print("good", good, "failures", failures)
"""


def run_on_small_disk(root: Path, *arguments: str, script: str = SMALL_DISK, limit: int | None = None) -> None:
    repository = Path(__file__).parents[3]

    def restrict() -> None:
        import resource
        import signal

        if limit is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(root), *arguments],
        cwd=repository,
        preexec_fn=restrict,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert process.returncode == 0, process.stdout + process.stderr


def test_a_file_that_may_not_grow_further_fails_appends_and_nothing_else(tmp_path: Path) -> None:
    run_on_small_disk(tmp_path, limit=300_000)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "kavka-test", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a small file system cannot be mounted here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_file_system_fails_appends_until_there_is_space(small_disk: Path) -> None:
    (small_disk / "ballast").write_bytes(bytes(500_000))
    run_on_small_disk(small_disk, "with-ballast")


# --- followers


def follower_batch(offset: int, count: int = 1, epoch: int = 0, **options: object) -> bytearray:
    return build([(b"k", b"v")] * count, START_MS, base_offset=offset, leader_epoch=epoch, **options)


def test_a_follower_keeps_offsets_and_epochs(open_log: Opener) -> None:
    log = open_log()
    data = bytes(follower_batch(0, 3, 2) + follower_batch(3, 2, 2) + follower_batch(9, 1, 5))
    info = log.append_as_follower(data)
    assert (info.first_offset, info.last_offset, info.count) == (0, 9, 6)
    assert Path(log.active_segment.file.path).read_bytes() == data
    assert log.epochs.entries == [(2, 0), (5, 9)]
    assert log.end_offset == 10


def test_an_incomplete_batch_at_the_end_is_ignored(open_log: Opener) -> None:
    log = open_log()
    complete = bytes(follower_batch(0, 2))
    info = log.append_as_follower(complete + bytes(follower_batch(2, 2))[:-1])
    assert info.last_offset == 1
    assert Path(log.active_segment.file.path).read_bytes() == complete
    assert log.append_as_follower(b"").count == 0


def test_batches_that_begin_before_the_end_of_the_log_are_rejected(open_log: Opener) -> None:
    log = open_log()
    log.append_as_follower(follower_batch(0, 5))
    with pytest.raises(UnexpectedOffset) as raised:
        log.append_as_follower(follower_batch(4, 3))
    assert (raised.value.first_offset, raised.value.last_offset) == (4, 6)
    assert log.end_offset == 5


def test_an_invalid_batch_rejects_the_whole_append(open_log: Opener) -> None:
    log = open_log()
    corrupt_batch = follower_batch(2)
    corrupt_batch[-1] ^= 1
    previous_state = state(log)
    for data in (follower_batch(0) + corrupt_batch, follower_batch(4) + follower_batch(2)):
        with pytest.raises(KafkaError) as raised:
            log.append_as_follower(data)
        assert raised.value.code == ErrorCode.CORRUPT_MESSAGE
        assert state(log) == previous_state


def test_a_batch_of_a_later_epoch_than_the_leader_is_rejected(open_log: Opener) -> None:
    """The leader became a follower while it sent the response, which therefore has batches that it
    fetched as a follower."""
    log = open_log()
    log.append_as_follower(follower_batch(0, 2, 4), 4)
    previous_state = state(log)
    with pytest.raises(KafkaError) as raised:
        log.append_as_follower(follower_batch(2, 1, 4) + follower_batch(3, 1, 5), 4)
    assert raised.value.code == ErrorCode.CORRUPT_MESSAGE
    assert state(log) == previous_state
    log.append_as_follower(follower_batch(2, 1, 4) + follower_batch(3, 1, 5), 5)
    assert log.end_offset == 4


def test_a_follower_does_not_check_sequences(open_log: Opener) -> None:
    log = open_log()
    log.append_as_follower(follower_batch(0, 2, producer_id=1, producer_epoch=3, base_sequence=10))
    log.append_as_follower(follower_batch(2, 2, producer_id=1, producer_epoch=3, base_sequence=40))
    assert log.producer_states.entries.get(1).last_sequence == 41  # type: ignore[union-attr]


def test_a_follower_rolls_by_its_own_configuration(open_log: Opener) -> None:
    log = open_log(segment_bytes=250)
    log.append_as_follower(b"".join(bytes(follower_batch(n)) for n in range(10)))
    assert len(log.segments) > 3
    assert [h.base_offset for h in headers(log)] == list(range(10))


def test_a_follower_keeps_nothing_of_a_fetch_when_the_disk_fails(
    open_log: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(segment_bytes=250)
    previous_state = state(log)
    data = b"".join(bytes(follower_batch(n)) for n in range(10))
    with monkeypatch.context() as patched:
        FailingDisk(patched, 400)
        with pytest.raises(KafkaError) as raised:
            log.append_as_follower(data)
    assert raised.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert state(log) == previous_state
    log.append_as_follower(data)
    assert log.end_offset == 10
