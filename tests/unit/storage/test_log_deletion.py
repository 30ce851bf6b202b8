"""Retention, delete-records, truncation, and the swap of cleaned segments."""

from __future__ import annotations

import errno
import os
import shutil
import time
from pathlib import Path
from uuid import uuid4

import pytest

from kavka.common.errors import ErrorCode, KafkaError
from kavka.storage.log import Log
from kavka.storage.log_config import LogConfig
from kavka.storage.log_dir import is_dir_failure
from kavka.storage.producer_replay import reload_producers
from kavka.storage.producer_snapshot import SnapshotFiles
from kavka.storage.producer_state import ProducerStates
from kavka.storage.segment import LogSegment
from tests.support.logs import START_MS, TP, FakeClock, append_marker, build, contents
from tests.support.turns import MAX_TURN_S
from tests.unit.storage.conftest import Opener

SIZE = len(build([(b"k", b"v" * 20)], START_MS))


def append(
    log: Log,
    count: int = 1,
    *,
    timestamp: int | None = None,
    replicated: bool = True,
    epoch: int = 0,
    **options: object,
) -> None:
    for _ in range(count):
        at = log.clock.now_ms() if timestamp is None else timestamp
        log.stage_as_leader(memoryview(build([(b"k", b"v" * 20)], at, **options)), epoch)
    log.write_staged()
    if replicated:
        log.set_high_watermark(log.end_offset)


def bases(log: Log) -> list[int]:
    return [segment.base_offset for segment in log.segments]


def names(log: Log) -> list[str]:
    return sorted(p.name for p in log.dir.iterdir())


# --- retention


def test_segments_whose_newest_record_is_too_old_are_deleted(open_log: Opener, clock: FakeClock) -> None:
    log = open_log(segment_bytes=2 * SIZE, retention_ms=1000)
    append(log, 2)
    clock.advance(600)
    append(log, 2)
    clock.advance(400)
    append(log, 1)
    assert log.delete_old_segments() == 0
    clock.advance(1)
    assert log.delete_old_segments() == 1
    assert (bases(log), log.start_offset) == ([2, 4], 2)


def test_a_log_whose_segments_are_all_expired_rolls_and_deletes_them(open_log: Opener, clock: FakeClock) -> None:
    log = open_log(segment_bytes=2 * SIZE, retention_ms=1000)
    append(log, 5)
    clock.advance(1001)
    assert log.delete_old_segments() == 3
    assert bases(log) == [5]
    assert (log.start_offset, log.end_offset, log.size) == (5, 5, 0)
    assert log.delete_old_segments() == 0
    append(log)
    assert log.end_offset == 6


def test_an_expired_segment_after_a_live_segment_is_retained(open_log: Opener, clock: FakeClock) -> None:
    log = open_log(segment_bytes=2 * SIZE, retention_ms=1000)
    append(log, 2)
    append(log, 2, timestamp=START_MS - 100_000)
    append(log, 1)
    assert log.delete_old_segments() == 0


def test_segments_past_the_high_watermark_are_not_deleted(open_log: Opener, clock: FakeClock) -> None:
    log = open_log(segment_bytes=2 * SIZE, retention_ms=1000)
    append(log, 4)
    append(log, 2, replicated=False)
    clock.advance(2000)
    assert log.high_watermark == 4
    assert log.delete_old_segments() == 2
    assert bases(log) == [4]


def test_the_age_of_records_without_timestamps_is_that_of_their_file(open_log: Opener, clock: FakeClock) -> None:
    log = open_log(retention_ms=1000)
    append(log, 2, timestamp=-1)
    os.utime(log.active_segment.file.path, ns=(clock.ms * 10**6, clock.ms * 10**6))
    clock.advance(1000)
    assert log.delete_old_segments() == 0
    clock.advance(1)
    assert log.delete_old_segments() == 1


def test_the_oldest_segments_are_deleted_down_to_retention_bytes(open_log: Opener) -> None:
    log = open_log(segment_bytes=2 * SIZE, retention_bytes=5 * SIZE)
    append(log, 9)
    assert log.size == 9 * SIZE
    assert log.delete_old_segments() == 2
    assert (bases(log), log.size) == ([4, 6, 8], 5 * SIZE)
    append(log, 1)
    assert log.delete_old_segments() == 0


def test_a_compacted_topic_keeps_old_and_many_segments(open_log: Opener, clock: FakeClock) -> None:
    log = open_log(segment_bytes=2 * SIZE, retention_bytes=0, retention_ms=1, cleanup_policy=("compact",))
    append(log, 5)
    clock.advance(10_000)
    assert log.delete_old_segments() == 0
    log.delete_records_before(3)
    assert log.delete_old_segments() == 1
    assert bases(log) == [2, 4]


def test_delete_records_moves_the_start_and_deletes_whole_segments_before_it(open_log: Opener) -> None:
    log = open_log(segment_bytes=2 * SIZE)
    append(log, 6, epoch=1)
    assert log.delete_records_before(3) == 3
    assert log.start_offset == 3
    assert log.epochs.entries == [(1, 3)]
    assert log.delete_records_before(1) == 3, "the start offset never moves back"
    assert log.delete_old_segments() == 1
    assert bases(log) == [2, 4]
    assert log.delete_records_before(-1) == 6
    assert log.delete_old_segments() == 1
    assert bases(log) == [4], "the active segment remains although all its records are deleted"
    for offset in (7, -2):
        with pytest.raises(KafkaError) as raised:
            log.delete_records_before(offset)
        assert raised.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_deleted_files_are_renamed_and_removed_after_the_delay(open_log: Opener, clock: FakeClock) -> None:
    log = open_log(segment_bytes=2 * SIZE, retention_bytes=0, file_delete_delay_ms=500)
    append(log, 3)
    log.delete_old_segments()
    assert "00000000000000000000.log.deleted" in names(log)
    assert "00000000000000000000.log" not in names(log)
    assert log.take_due_deletions(clock.ms + 499) == []
    due = log.take_due_deletions(clock.ms + 500)
    assert log.segments.pending_deletions == []
    for deletion in due:
        deletion.run()
        deletion.run()
    assert not [name for name in names(log) if "deleted" in name]


def test_snapshots_are_deleted_with_their_segments_except_the_last_one(open_log: Opener) -> None:
    log = open_log(segment_bytes=2 * SIZE, retention_bytes=2 * SIZE)
    append(log, 7)
    assert log.producer_states.snapshots.offsets == [2, 4, 6]
    log.delete_old_segments()
    assert bases(log) == [4, 6]
    assert log.producer_states.snapshots.offsets == [4, 6]
    assert [n for n in names(log) if n.endswith(".snapshot")] == [f"{n:020d}.snapshot" for n in (4, 6)]


# --- truncation


def test_truncation_removes_offsets_epochs_producers_and_index_entries(open_log: Opener) -> None:
    log = open_log(segment_bytes=4 * SIZE, index_interval_bytes=0)
    for n in range(10):
        append(log, epoch=n // 3, producer_id=1, producer_epoch=0, base_sequence=n)
    assert log.truncate_to(5)
    assert (log.end_offset, log.high_watermark) == (5, 5)
    assert bases(log) == [0, 4]
    assert log.epochs.entries == [(0, 0), (1, 3)]
    assert log.producer_states.entries.get(1).last_sequence == 4  # type: ignore[union-attr]
    assert log.active_segment.offset_index.entries == 0
    append(log, epoch=1, producer_id=1, producer_epoch=0, base_sequence=5)
    assert log.end_offset == 6
    assert [offset for offset, _, _ in contents(log)] == list(range(6))


@pytest.mark.parametrize("offset", range(25))
def test_producers_computed_before_a_truncation_equal_those_computed_after_it(
    open_log: Opener, monkeypatch: pytest.MonkeyPatch, offset: int
) -> None:
    """Also if the batch at `offset` begins before it: it is removed completely."""
    monkeypatch.setattr("kavka.storage.log.MAX_REPLAYED_ON_LOOP_BYTES", -1)
    log = open_log(segment_bytes=4 * SIZE)
    sequences = [0, 0, 0]
    for n in range(12):
        producer = n % 3
        log.producer_states.admitted_producer_id = producer
        options = {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequences[producer]}
        batch = build([(b"k", b"v")] * 2, log.clock.now_ms(), transactional=producer > 0, **options)
        log.stage_as_leader(memoryview(batch), 0)
        sequences[producer] += 2
        if n in (5, 7):
            append_marker(log, producer, commit=n == 5)
    log.write_staged()
    log.set_high_watermark(7)
    past = log.past_producers(offset)
    assert past is not None
    past.run()
    snapshots = [name for name in names(log) if name.endswith(".snapshot")]
    assert log.truncate_to(offset, past)
    states = log.producer_states
    computed = (states.entries, states.ongoing, states.unreplicated, states.first_unstable_offset)
    assert [name for name in names(log) if name.endswith(".snapshot")] == [
        name for name in snapshots if int(name.partition(".")[0]) <= offset
    ]
    expected = ProducerStates(states.expiration_ms, states.snapshots.between(0, offset))
    reload_producers(expected, log.segments, 0, offset, log.clock.now_ms())
    expected.on_high_watermark(log.high_watermark)
    assert computed == (expected.entries, expected.ongoing, expected.unreplicated, expected.first_unstable_offset)


def no_room(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_truncation_on_a_full_disk_removes_the_state_of_lost_batches(
    open_log: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise new records would be visible too early, and a retry of a lost batch would count as
    a duplicate."""
    log = open_log()
    for n in range(6):
        append(log, epoch=n // 2, producer_id=1, producer_epoch=0, base_sequence=n)
    with monkeypatch.context() as full:
        full.setattr(SnapshotFiles, "write", no_room)
        with pytest.raises(OSError, match="No space"):
            log.truncate_to(3)
    assert (log.end_offset, log.high_watermark, log.last_stable_offset) == (3, 3, 3)
    assert log.producer_states.entries.get(1).last_sequence == 2  # type: ignore[union-attr]
    assert log.epochs.entries == [(0, 0), (1, 2)]
    append(log, epoch=7, producer_id=1, producer_epoch=0, base_sequence=3)
    reopened = open_log(clean=False)
    assert [offset for offset, _, _ in contents(reopened)] == [0, 1, 2, 3]
    assert reopened.epochs.entries == [(0, 0), (1, 2), (7, 3)]
    assert reopened.producer_states.entries.get(1).last_sequence == 3  # type: ignore[union-attr]


def test_a_full_truncation_without_disk_space_fails_the_directory(
    open_log: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log has no segment and must be opened again."""
    log = open_log()
    append(log, 3)
    with monkeypatch.context() as full:
        full.setattr(LogSegment, "create", no_room)
        with pytest.raises(OSError, match="No space") as raised:
            log.truncate_fully_and_start_at(10)
    assert is_dir_failure(raised.value)


def test_truncation_beyond_the_end_changes_nothing(open_log: Opener) -> None:
    log = open_log()
    append(log, 3)
    assert not log.truncate_to(3)
    assert not log.truncate_to(10)
    assert log.end_offset == 3


def test_truncation_to_the_end_removes_the_epoch_of_a_leader_without_records(open_log: Opener) -> None:
    log = open_log()
    append(log, 3, epoch=1)
    log.start_epoch(4)
    assert log.epochs.entries == [(1, 0), (4, 3)]
    assert not log.truncate_to(5)
    assert log.epochs.entries == [(1, 0)]
    assert log.epochs.latest == 1


def test_truncation_below_the_first_segment_empties_the_log(open_log: Opener) -> None:
    log = open_log(start_offset=100)
    append(log, 3, epoch=2)
    assert log.truncate_to(50)
    assert (log.start_offset, log.end_offset, log.high_watermark, bases(log)) == (50, 50, 50, [50])
    assert log.epochs.entries == []
    append(log)
    assert [offset for offset, _, _ in contents(log)] == [50]


def test_full_truncation_starts_the_log_at_any_offset(open_log: Opener) -> None:
    log = open_log(segment_bytes=2 * SIZE)
    append(log, 5)
    log.truncate_fully_and_start_at(1000)
    assert (log.start_offset, log.end_offset, bases(log), log.size) == (1000, 1000, [1000], 0)
    append(log)
    log.close()
    log = open_log(segment_bytes=2 * SIZE)
    assert (log.start_offset, log.end_offset) == (1000, 1001)


def test_truncation_of_a_marker_reopens_its_transaction(open_log: Opener) -> None:
    log = open_log()
    append(log, 1, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    append_marker(log, 1, commit=False)
    assert log.last_stable_offset == 2
    assert len(log.aborted_transactions(0, 2)) == 1
    log.truncate_to(1)
    assert log.aborted_transactions(0, 2) == []
    assert log.last_stable_offset == 0
    assert log.producer_states.entries.get(1).txn_first_offset == 0  # type: ignore[union-attr]


# --- the swap of cleaned segments


def cleaned_segment(log: Log, base: int, offsets: list[int], suffix: str = ".cleaned") -> LogSegment:
    segment = LogSegment.create(str(log.dir), base, log.config, log.clock.now_ms(), suffix=suffix)
    for offset in offsets:
        segment.append_batches(build([(b"k", b"v" * 20)], START_MS, base_offset=offset, leader_epoch=0))
    segment.become_inactive()
    return segment


def test_cleaned_segments_replace_their_sources(open_log: Opener, clock: FakeClock) -> None:
    log = open_log(segment_bytes=2 * SIZE, file_delete_delay_ms=0)
    append(log, 7)
    sources = list(log.segments)[:3]
    log.replace_segments([cleaned_segment(log, 0, [1, 4])], sources)
    assert bases(log) == [0, 6]
    assert [offset for offset, _, _ in contents(log)] == [1, 4, 6]
    assert log.read(2, 1000, limit=7, min_one_batch=True).slice.read()[7] == 4  # type: ignore[union-attr]
    for deletion in log.take_due_deletions(clock.ms):
        deletion.run()
    assert [n for n in names(log) if n.endswith(".log")] == [f"{n:020d}.log" for n in (0, 6)]
    assert not [n for n in names(log) if "swap" in n or "cleaned" in n or "deleted" in n]
    log.close()
    log = open_log(segment_bytes=2 * SIZE)
    assert [offset for offset, _, _ in contents(log)] == [1, 4, 6]


class Crash(BaseException):
    pass


@pytest.mark.usefixtures("no_fsync")
def test_a_crash_at_any_rename_leaves_either_the_source_or_the_cleaned_segments(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = LogConfig(segment_bytes=2 * SIZE, file_delete_delay_ms=0)
    real_rename = os.rename
    outcomes = []
    for step in range(1000):
        folder = tmp_path / f"run-{step}" / "orders-0"
        folder.parent.mkdir()
        log = Log.open(folder, TP, config, clock)
        append(log, 9)
        log.flush()
        sources = list(log.segments)[:4]
        cleaned = [cleaned_segment(log, 0, [1, 3]), cleaned_segment(log, 4, [5, 7])]
        remaining_renames = step

        def rename(source: str, target: str) -> None:
            nonlocal remaining_renames
            if not remaining_renames:
                raise Crash
            remaining_renames -= 1
            real_rename(source, target)

        with monkeypatch.context() as patched:
            patched.setattr(os, "rename", rename)
            try:
                log.replace_segments(cleaned, sources)
                is_done = True
            except Crash:
                is_done = False
        log.abandon()
        reopened = Log.open(folder, TP, config, clock, clean_shutdown=False, recovery_point=9)
        offsets = [offset for offset, _, _ in contents(reopened)]
        assert offsets in (list(range(9)), [1, 3, 5, 7, 8]), (step, offsets)
        assert not [n for n in names(reopened) if n.endswith((".swap", ".cleaned", ".deleted"))]
        for segment in reopened.segments:
            segment.check()
        outcomes.append(len(offsets))
        reopened.abandon()
        shutil.rmtree(folder)
        if is_done:
            break
    assert outcomes == sorted(outcomes, reverse=True)
    assert set(outcomes) == {9, 5}


# --- renaming the folder


def test_a_log_stays_usable_after_its_folder_is_renamed(open_log: Opener, clock: FakeClock) -> None:
    log = open_log(segment_bytes=2 * SIZE)
    append(log, 3)
    renamed_dir = log.rename_dir("orders-0.abc-future")
    append(log, 4, epoch=7)
    log.roll()
    assert [offset for offset, _, _ in contents(log)] == list(range(7))
    log.close()
    assert (renamed_dir / "leader-epoch-checkpoint").read_text() == "0\n2\n0 0\n7 3\n"
    reopened = Log.open(renamed_dir, TP, LogConfig(), clock)
    assert reopened.end_offset == 7
    reopened.close()


def test_the_topic_id_is_written_once_and_checked(open_log: Opener) -> None:
    log = open_log()
    topic_id, other_id = uuid4(), uuid4()
    log.set_topic_id(topic_id)
    log.set_topic_id(topic_id)
    with pytest.raises(KafkaError) as raised:
        log.set_topic_id(other_id)
    assert raised.value.code == ErrorCode.INCONSISTENT_TOPIC_ID
    text = (log.dir / "partition.metadata").read_text()
    lines = text.split("\n")
    assert lines[0] == "version: 0"
    assert len(lines) == 2 and len(lines[1]) == len("topic_id: ") + 22
    log.close()
    assert open_log().topic_id == topic_id


def test_a_truncation_with_computed_producers_is_short(open_log: Opener) -> None:
    """Without them, the truncation reads the headers of 30,000 batches."""
    log = open_log()
    for n in range(30_000):
        batch = build([(b"k", b"v")], log.clock.now_ms(), producer_id=n % 100, producer_epoch=0, base_sequence=n // 100)
        log.stage_as_leader(memoryview(batch), 0)
        if n % 1000 == 999:
            log.write_staged()
    past = log.past_producers(29_990)
    assert past is not None
    past.run()
    started_at = time.thread_time()
    assert log.truncate_to(29_990, past)
    assert time.thread_time() - started_at <= MAX_TURN_S
    assert log.producer_states.entries[89].last_sequence == 299
    assert log.producer_states.entries[90].last_sequence == 298
