"""Opening a log after a clean shutdown, after a crash, and with damaged files."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from kavka.storage import recovery
from kavka.storage.log import Log
from kavka.storage.log_config import LogConfig
from kavka.storage.producer_snapshot import encode_snapshot
from tests.support.logs import START_MS, TP, FakeClock, append_marker, build, contents
from tests.unit.storage.conftest import Opener

SIZE = len(build([(b"k", b"v" * 20)], START_MS))


def append(log: Log, count: int = 1, size: int = 20, *, epoch: int = 0, **options: object) -> None:
    for _ in range(count):
        data = build([(b"k", b"v" * size)], START_MS + log.end_offset, **options)
        log.stage_as_leader(memoryview(data), epoch)
    log.write_staged()
    log.set_high_watermark(log.end_offset)


def offsets(log: Log) -> list[int]:
    return [offset for offset, _, _ in contents(log)]


def names(log: Log) -> list[str]:
    return sorted(p.name for p in log.dir.iterdir())


def corrupt_byte(path: Path | str, position: int) -> None:
    with open(path, "r+b") as file:
        file.seek(position)
        byte = file.read(1)
        file.seek(position)
        file.write(bytes([byte[0] ^ 0xFF]))


def index_entries(log: Log) -> list[object]:
    return [
        (
            [s.offset_index.entry(n) for n in range(s.offset_index.entries)],
            [s.time_index.entry(n) for n in range(s.time_index.entries)],
            s.txn_index.entries,
        )
        for s in log.segments
    ]


def rebuilt_state(log: Log) -> object:
    producers = {e.producer_id: (e.last_sequence, e.last_offset, e.txn_first_offset) for e in log.producers()}
    return index_entries(log), log.epochs.entries, producers


# --- after a clean shutdown


def test_no_batch_is_checked_after_a_clean_shutdown(open_log: Opener) -> None:
    log = open_log(segment_bytes=3 * SIZE)
    append(log, 8)
    log.close()
    corrupt_byte(log.segments[0].file.path, SIZE // 2)
    log = open_log(segment_bytes=3 * SIZE)
    assert (log.end_offset, log.flushed_offset) == (8, 8)


def test_only_headers_past_the_last_index_entry_are_read_after_a_clean_shutdown(
    open_log: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(index_interval_bytes=300)
    append(log, 500)
    log.close()
    read_bytes = 0
    real_pread = os.pread

    def counted(fd: int, size: int, position: int) -> bytes:
        nonlocal read_bytes
        data = real_pread(fd, size, position)
        read_bytes += len(data)
        return data

    monkeypatch.setattr(os, "pread", counted)
    log = open_log(index_interval_bytes=300)
    assert log.end_offset == 500
    assert read_bytes < 1000


def test_producers_epochs_and_times_survive_a_clean_shutdown(open_log: Opener) -> None:
    log = open_log(segment_bytes=5 * SIZE)
    append(log, 3, epoch=1)
    append(log, 1, epoch=2, producer_id=9, producer_epoch=1, base_sequence=7)
    append(log, 1, epoch=2, producer_id=8, producer_epoch=0, base_sequence=0, transactional=True)
    entries = log.producer_states.entries.get(9), log.producer_states.entries.get(8)
    log.close()
    log = open_log(segment_bytes=5 * SIZE)
    assert (log.producer_states.entries.get(9), log.producer_states.entries.get(8)) == entries
    assert log.epochs.entries == [(1, 0), (2, 3)]
    assert log.active_segment.max_timestamp == START_MS + 4
    log.set_high_watermark(5)
    assert log.last_stable_offset == 4


def test_appends_continue_after_a_clean_shutdown(tmp_path: Path, clock: FakeClock) -> None:
    config = LogConfig(index_interval_bytes=200, segment_bytes=1500)
    states = []
    for folder, stops in (("a", ()), ("b", (3, 10, 11, 40))):
        log = Log.open(tmp_path / folder, TP, config, clock)
        for n in range(50):
            append(log, 1, n % 30)
            if n in stops:
                log.close()
                log = Log.open(tmp_path / folder, TP, config, clock)
        log.close()
        states.append({p.name: p.read_bytes() for p in (tmp_path / folder).iterdir() if p.suffix in (".log", ".index")})
    assert states[0] == states[1]


def test_an_inactive_producer_expires_when_the_log_is_opened(tmp_path: Path, clock: FakeClock) -> None:
    log = Log.open(tmp_path / "a", TP, LogConfig(), clock)
    append(log, 1, producer_id=9, producer_epoch=1, base_sequence=7)
    log.close()
    clock.advance(5000)
    log = Log.open(tmp_path / "a", TP, LogConfig(), clock, producer_id_expiration_ms=5000)
    assert list(log.producers()) == []
    log.close()


def test_opening_many_logs_after_a_clean_shutdown_is_fast(tmp_path: Path, clock: FakeClock) -> None:
    config = LogConfig()
    for n in range(20):
        log = Log.open(tmp_path / f"t-{n}", TP, config, clock)
        append(log, 30, 100)
        log.close()
    start = time.process_time()
    logs = [Log.open(tmp_path / f"t-{n}", TP, config, clock) for n in range(20) for _ in range(5)]
    seconds = (time.process_time() - start) / len(logs)
    for log in logs:
        log.abandon()
    assert seconds < 0.005, f"{seconds * 1000:.2f} ms per log"


# --- after a crash


def test_a_batch_torn_at_any_byte_is_truncated(tmp_path: Path, clock: FakeClock) -> None:
    log = Log.open(tmp_path / "orders-0", TP, LogConfig(), clock)
    append(log, 3)
    log.abandon()
    path = tmp_path / "orders-0" / "00000000000000000000.log"
    complete = path.read_bytes()
    for size in range(2 * SIZE, 3 * SIZE):
        path.write_bytes(complete[:size])
        log = Log.open(tmp_path / "orders-0", TP, LogConfig(), clock, clean_shutdown=False)
        assert log.end_offset == 2
        assert path.stat().st_size == 2 * SIZE
        log.abandon()


def test_segments_after_a_corrupt_batch_are_removed(open_log: Opener) -> None:
    log = open_log(segment_bytes=3 * SIZE)
    append(log, 10)
    log.abandon()
    corrupt_byte(log.segments[1].file.path, SIZE + 70)
    log = open_log(segment_bytes=3 * SIZE, clean=False)
    assert offsets(log) == [0, 1, 2, 3]
    assert log.end_offset == 4
    assert [n for n in names(log) if n.endswith(".log")] == ["0" * 20 + ".log", f"{3:020d}.log"]
    append(log, 2)
    assert offsets(log) == [0, 1, 2, 3, 4, 5]


def test_segments_before_the_recovery_point_are_not_read(open_log: Opener) -> None:
    log = open_log(segment_bytes=3 * SIZE)
    append(log, 10)
    log.flush()
    log.abandon()
    corrupt_byte(log.segments[0].file.path, SIZE + 70)
    log = open_log(segment_bytes=3 * SIZE, clean=False, recovery_point=9)
    assert log.end_offset == 10
    assert log.flushed_offset == 9


def test_recovery_rebuilds_indexes_and_transactions(open_log: Opener) -> None:
    options = {"segment_bytes": 6 * SIZE, "index_interval_bytes": 100}
    log = open_log(**options)
    for n in range(15):
        append(log, 1, producer_id=n % 3, producer_epoch=0, base_sequence=n // 3, transactional=True)
        if n % 4 == 3:
            append_marker(log, n % 3, commit=n % 8 == 3)
    for segment in log.segments:
        segment.become_inactive()
    expected = rebuilt_state(log)
    aborted = log.aborted_transactions(0, 100)
    assert aborted
    log.abandon()
    for path in log.dir.iterdir():
        if path.suffix in (".index", ".timeindex"):
            path.write_bytes(os.urandom(path.stat().st_size or 24))
        elif path.suffix != ".log":
            path.unlink()
    log = open_log(**options, clean=False)
    assert rebuilt_state(log) == expected
    assert log.aborted_transactions(0, 100) == aborted


def test_a_batch_larger_than_a_chunk_is_checked(open_log: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "CHUNK_BYTES", 256)
    log = open_log()
    for size in (10, 1000, 100, 5000, 10):
        append(log, 1, size)
    log.abandon()
    log = open_log(clean=False)
    assert log.end_offset == 5
    log.abandon()
    corrupt_byte(log.segments[0].file.path, log.segments[0].size - 1000)
    log = open_log(clean=False)
    assert log.end_offset == 3


def test_the_log_is_truncated_at_decreasing_offsets(open_log: Opener) -> None:
    log = open_log()
    append(log, 4)
    log.abandon()
    with open(log.segments[0].file.path, "r+b") as file:
        file.seek(2 * SIZE)
        file.write(struct.pack(">q", 1))
    log = open_log(clean=False)
    assert (log.end_offset, log.size) == (2, 2 * SIZE)


def test_the_log_is_truncated_at_an_overlapping_batch(open_log: Opener) -> None:
    log = open_log()
    log.stage_as_leader(memoryview(build([(b"k", b"v")] * 4, START_MS)), 0)
    log.stage_as_leader(memoryview(build([(b"k", b"v")] * 4, START_MS)), 0)
    log.write_staged()
    log.abandon()
    with open(log.segments[0].file.path, "r+b") as file:
        file.seek(log.size // 2)
        file.write(struct.pack(">q", 2))
    log = open_log(clean=False)
    assert log.end_offset == 4


def test_an_overlapping_segment_is_removed(open_log: Opener) -> None:
    log = open_log()
    append(log, 6)
    log.abandon()
    stale = log.dir / f"{3:020d}.log"
    stale.write_bytes(bytes(build([(b"old", b"x")], START_MS, base_offset=3, leader_epoch=0)))
    log = open_log(clean=False)
    assert offsets(log) == list(range(6))
    assert not stale.exists()


def test_preallocated_space_is_no_corruption(open_log: Opener, caplog: pytest.LogCaptureFixture) -> None:
    log = open_log(segment_bytes=5 * SIZE, preallocate=True)
    append(log, 7)
    log.abandon()
    log = open_log(segment_bytes=5 * SIZE, preallocate=True, clean=False)
    assert (log.end_offset, log.size) == (7, 7 * SIZE)
    append(log, 1)
    assert offsets(log) == list(range(8))


def test_an_empty_folder_and_an_empty_file_are_empty_logs(tmp_path: Path, clock: FakeClock) -> None:
    for clean in (True, False):
        log = Log.open(tmp_path / f"a{clean}", TP, LogConfig(), clock, clean_shutdown=clean, start_offset=5)
        assert (log.start_offset, log.end_offset) == (5, 5)
        log.abandon()
        log = Log.open(tmp_path / f"a{clean}", TP, LogConfig(), clock, clean_shutdown=clean)
        assert (log.start_offset, log.end_offset) == (5, 5)
        log.abandon()


def test_a_log_that_ends_before_its_start_offset_is_emptied(open_log: Opener) -> None:
    log = open_log()
    append(log, 3, epoch=1)
    log.abandon()
    log = open_log(clean=False, start_offset=10)
    assert (log.start_offset, log.end_offset, log.epochs.entries) == (10, 10, [])
    append(log)
    assert offsets(log) == [10]


def test_the_start_offset_of_the_checkpoint_may_be_within_a_segment(open_log: Opener) -> None:
    log = open_log()
    append(log, 5, epoch=1)
    log.close()
    log = open_log(start_offset=3)
    assert (log.start_offset, log.end_offset, log.epochs.entries) == (3, 5, [(1, 3)])


def test_producers_are_rebuilt_from_the_last_snapshot_before_the_recovery_point(open_log: Opener) -> None:
    log = open_log(segment_bytes=3 * SIZE)
    for n in range(8):
        append(log, 1, producer_id=1, producer_epoch=0, base_sequence=n)
    log.abandon()
    (log.dir / f"{6:020d}.snapshot").write_bytes(b"torn")
    log = open_log(segment_bytes=3 * SIZE, clean=False, recovery_point=6)
    assert log.producer_states.entries.get(1).last_sequence == 7  # type: ignore[union-attr]
    log.abandon()
    for path in log.dir.glob("*.snapshot"):
        path.unlink()
    log = open_log(segment_bytes=3 * SIZE, clean=False, recovery_point=8)
    assert log.producer_states.entries.get(1).last_sequence == 7  # type: ignore[union-attr]


def test_a_snapshot_of_lost_batches_is_not_used(open_log: Opener) -> None:
    log = open_log()
    for n in range(4):
        append(log, 1, producer_id=1, producer_epoch=0, base_sequence=n)
    log.close()
    os.truncate(log.segments[0].file.path, 2 * SIZE)
    log = open_log(clean=False)
    assert log.producer_states.entries.get(1).last_sequence == 1  # type: ignore[union-attr]
    assert log.producer_states.snapshots.offsets == [2]


# --- damaged files


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", ["missing", "short", "zeros", "past the end"])
def test_a_malformed_index_is_rebuilt(open_log: Opener, clean: bool, suffix: str, damage: str) -> None:
    options = {"segment_bytes": 6 * SIZE, "index_interval_bytes": 100}
    log = open_log(**options)
    append(log, 20)
    log.close()
    log = open_log(**options)
    expected = index_entries(log)
    log.close()
    for segment in log.segments[:2]:
        path = Path(segment.file.path).with_suffix(suffix)
        data = path.read_bytes()
        if damage == "missing":
            path.unlink()
        elif damage == "short":
            path.write_bytes(data[:-3])
        elif damage == "zeros":
            path.write_bytes(data + bytes(24))
        elif suffix == ".index":
            path.write_bytes(data[:-4] + struct.pack(">I", 10**6))
        else:
            path.write_bytes(data[:-12] + struct.pack(">qI", 5, 3))
    log = open_log(**options, clean=clean, recovery_point=20)
    assert log.end_offset == 20
    assert offsets(log) == list(range(20))
    assert index_entries(log) == expected


def test_a_last_segment_with_a_wrong_index_is_recovered_after_a_clean_shutdown(open_log: Opener) -> None:
    log = open_log(index_interval_bytes=100)
    append(log, 20)
    log.close()
    path = Path(log.segments[0].offset_index.path)
    data = path.read_bytes()
    relative, position = struct.unpack(">II", data[-8:])
    path.write_bytes(data[:-8] + struct.pack(">II", relative, position + 3))
    log = open_log(index_interval_bytes=100)
    assert log.end_offset == 20
    assert path.read_bytes()[:8] == data[:8]


def test_indexes_without_a_log_are_removed(open_log: Opener) -> None:
    log = open_log()
    append(log)
    log.close()
    for suffix in ("index", "timeindex", "txnindex"):
        (log.dir / f"{7:020d}.{suffix}").write_bytes(bytes(24))
    log = open_log()
    assert not [n for n in names(log) if n.startswith(f"{7:020d}")]


def test_leftover_files_are_removed_and_unknown_files_are_not(open_log: Opener) -> None:
    log = open_log()
    append(log)
    log.close()
    for name in (
        f"{0:020d}.log.deleted",
        f"{9:020d}.log.cleaned",
        f"{9:020d}.index.cleaned",
        f"{12:020d}.log.swap",
        f"{3:020d}.snapshot.deleted",
        "leader-epoch-checkpoint.tmp",
    ):
        (log.dir / name).write_bytes(b"x")
    (log.dir / "notes.txt").write_bytes(b"x")
    log = open_log()
    assert names(log) == sorted(
        [
            f"{0:020d}.index",
            f"{0:020d}.log",
            f"{0:020d}.timeindex",
            f"{1:020d}.snapshot",
            "leader-epoch-checkpoint",
            "notes.txt",
        ]
    )


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("damage", [b"", bytes(12), b"\xff\xfe\xe9", b"0\n7\nnonsense\n", b"0\n1\n-3 -5\n"])
def test_a_damaged_epoch_file_is_rebuilt_from_the_batches(open_log: Opener, damage: bytes, clean: bool) -> None:
    log = open_log(segment_bytes=3 * SIZE)
    append(log, 4, epoch=1)
    append(log, 3, epoch=5)
    log.close()
    (log.dir / "leader-epoch-checkpoint").write_bytes(damage)
    log = open_log(segment_bytes=3 * SIZE, clean=clean, recovery_point=7)
    assert log.epochs.entries == [(1, 0), (5, 4)]
    # A follower whose log diverges within epoch 1 gets its end offset.
    assert log.end_offset_for_epoch(1) == (1, 4)
    log.epochs.save()  # by LeaderEpochJob, or before the next flush
    assert (log.dir / "leader-epoch-checkpoint").read_text() == "0\n2\n1 0\n5 4\n"


def test_an_empty_epoch_file_of_an_empty_log_logs_no_warning(
    open_log: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    log = open_log()
    log.close()
    (log.dir / "leader-epoch-checkpoint").write_bytes(b"")
    assert open_log().epochs.entries == []
    assert "leader-epoch-checkpoint" not in caplog.text


def test_batches_correct_epochs_after_a_crash(open_log: Opener) -> None:
    """A follower is truncated within epoch 1 and fetches other batches of epoch 1."""
    log = open_log()
    append(log, 10, epoch=0)
    append(log, 5, epoch=1)
    log.flush()
    assert (log.dir / "leader-epoch-checkpoint").read_text() == "0\n2\n0 0\n1 10\n"
    log.truncate_to(5)
    append(log, 15, epoch=1)
    log.abandon()
    log = open_log(clean=False, recovery_point=5)
    assert log.epochs.entries == [(0, 0), (1, 5)]


def test_a_log_that_was_emptied_before_a_crash_has_no_epoch(open_log: Opener) -> None:
    log = open_log()
    append(log, 10, epoch=3)
    log.flush()
    log.truncate_fully_and_start_at(50)
    log.abandon()
    log = open_log(clean=False, recovery_point=10)
    assert (log.start_offset, log.end_offset, log.epochs.entries) == (50, 50, [])


def test_a_log_without_snapshots_after_a_clean_shutdown_has_no_producers(open_log: Opener) -> None:
    log = open_log()
    append(log, 2, producer_id=-1)
    log.close()
    for path in log.dir.glob("*.snapshot"):
        path.unlink()
    log = open_log()
    assert list(log.producers()) == []
    assert (log.dir / f"{2:020d}.snapshot").read_bytes() == encode_snapshot([])


def remaining(paths: Iterable[Path]) -> list[str]:
    return sorted(path.name for path in paths)


def test_a_swap_segment_is_swapped_in_when_the_log_is_opened(open_log: Opener) -> None:
    log = open_log(segment_bytes=2 * SIZE)
    append(log, 7)
    log.close()
    for suffix in (".log", ".index", ".timeindex"):
        (log.dir / f"{0:020d}{suffix}.swap").write_bytes(b"")
    (log.dir / f"{0:020d}.log.swap").write_bytes(
        b"".join(bytes(build([(b"k", b"v")], START_MS, base_offset=n, leader_epoch=0)) for n in (1, 3))
    )
    log = open_log(segment_bytes=2 * SIZE)
    assert offsets(log) == [1, 3, 4, 5, 6]
    assert [s.base_offset for s in log.segments] == [0, 4, 6]
    assert remaining(log.dir.glob("*.swap")) == []


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex", ".txnindex", ".snapshot"])
@pytest.mark.parametrize("digits", ["99999999999999999999", "09223372036854775808", "²" * 20, "x" * 20])
def test_a_file_whose_name_is_no_offset_is_ignored(
    open_log: Opener, caplog: pytest.LogCaptureFixture, digits: str, suffix: str, clean: bool
) -> None:
    log = open_log()
    append(log, 5)
    if clean:
        log.close()
    else:
        log.abandon()
    other_file = log.dir / f"{digits}{suffix}"
    other_file.write_bytes(b"other data")
    log = open_log(clean=clean)
    assert (log.start_offset, log.end_offset, len(log.segments)) == (0, 5, 1)
    append(log, 5)
    assert offsets(log) == list(range(10))
    assert other_file.read_bytes() == b"other data"
    assert other_file.name in caplog.text


def test_recovery_writes_no_epoch_file_and_repeats_its_changes_after_another_crash(
    open_log: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log()
    append(log, 4, epoch=1)
    append(log, 3, epoch=5)
    log.abandon()

    def fail(fd: int) -> None:
        raise AssertionError("the start of a broker waits for an fsync of each log")

    monkeypatch.setattr("os.fsync", fail)
    for _ in range(2):
        log = open_log(clean=False)
        assert log.epochs.entries == [(1, 0), (5, 4)]
        assert log.epochs.dirty
        log.abandon()
