from __future__ import annotations

import errno
import os
from dataclasses import replace

import pytest

from kavka.common.errors import ErrorCode, KafkaError
from kavka.records.batch import batches
from kavka.records.builder import BatchBuilder
from kavka.records.reader import read_records
from kavka.records.record import Record
from kavka.storage.cleaner import CleanerSettings, LogCleaning, UncleanableLogError, group_segments
from kavka.storage.cleaner_manager import measure
from kavka.storage.log_config import LogConfig
from kavka.storage.pace import WorkAborted
from tests.support.jobs import clean_now
from tests.support.logs import (
    START_MS,
    FakeClock,
    append,
    append_marker,
    build,
    contents,
    open_log,
    stored_batches,
    stored_records,
)

CONFIG = LogConfig(cleanup_policy=("compact",), file_delete_delay_ms=0, delete_retention_ms=1000)
SETTINGS = CleanerSettings(dedupe_buffer_size=1 << 20)


def keyed(*pairs: str) -> list[tuple[bytes | None, bytes | None]]:
    """Key-value pairs. 'a=1' becomes a record, 'a' a tombstone."""
    out: list[tuple[bytes | None, bytes | None]] = []
    for pair in pairs:
        key, _, value = pair.partition("=")
        out.append((key.encode(), value.encode() if value else None))
    return out


def contents_text(log) -> list[str]:
    return [
        f"{offset}:{key.decode()}={value.decode() if value is not None else ''}" for offset, key, value in contents(log)
    ]


def clean(log, first_dirty: int | None = None, settings: CleanerSettings = SETTINGS):
    upper = measure(log, first_dirty, log.clock.now_ms()).upper_bound
    return clean_now(
        LogCleaning(log, log.start_offset if first_dirty is None else first_dirty, upper, settings, log.clock)
    )


@pytest.fixture
def log(tmp_path):
    log = open_log(tmp_path / "orders-0", CONFIG)
    yield log
    log.abandon()


def test_only_the_last_record_of_a_key_is_retained_at_its_offset(log):
    append(log, keyed("a=1", "b=1", "a=2"))
    append(log, keyed("c=1", "b=2"))
    log.roll()
    append(log, keyed("a=3"))
    result = clean(log)
    assert contents_text(log) == ["2:a=2", "3:c=1", "4:b=2", "5:a=3"]
    assert result.end_offset == 5
    assert result.stats.records_read == 5 and result.stats.records_written == 3


def test_the_active_segment_is_not_cleaned(log):
    append(log, keyed("a=1", "a=2"))
    assert measure(log, None, START_MS).cleanable_bytes == 0
    log.roll()
    append(log, keyed("a=3", "a=4"))
    clean(log)
    assert contents_text(log) == ["1:a=2", "2:a=3", "3:a=4"]


def test_batches_keep_their_offsets_and_producer_fields(log):
    append(log, keyed("a=1", "b=1", "a=2"), producer_id=7, producer_epoch=1, base_sequence=0)
    append(log, keyed("z=1"), producer_id=7, producer_epoch=1, base_sequence=3)
    log.roll()
    append(log, keyed("x=1"), producer_id=7, producer_epoch=1, base_sequence=4)
    clean(log)
    first = stored_batches(log)[0]
    assert (first.base_offset, first.last_offset, first.count) == (0, 2, 2)
    assert (first.producer_id, first.producer_epoch, first.base_sequence) == (7, 1, 0)
    assert first.has_valid_crc()


def test_an_empty_batch_is_retained_for_the_last_sequence_of_a_producer(log):
    append(log, keyed("a=1"), producer_id=7, producer_epoch=0, base_sequence=0)
    append(log, keyed("a=2"), producer_id=8, producer_epoch=0, base_sequence=0)
    append(log, keyed("a=3"))
    log.roll()
    append(log, keyed("x=1"))
    clean(log)
    retained = stored_batches(log)
    assert [(b.base_offset, b.last_offset, b.count, b.producer_id, b.last_sequence) for b in retained[:2]] == [
        (0, 0, 0, 7, 0),
        (1, 1, 0, 8, 0),
    ]
    assert retained[0].size == 61 and retained[0].has_valid_crc() and retained[0].max_timestamp == START_MS
    assert contents_text(log) == ["2:a=3", "3:x=1"]


def test_empty_batches_are_removed_when_their_producers_expire(log):
    append(log, keyed("a=1"), producer_id=7, producer_epoch=0, base_sequence=0)
    append(log, keyed("a=3"))
    log.roll()
    append(log, keyed("x=1"))
    log.clock.advance(86_400_001)
    log.producer_states.expire(log.clock.now_ms())
    clean(log)
    assert [b.base_offset for b in stored_batches(log)] == [1, 2]


def test_the_sequence_of_a_producer_survives_compaction_and_a_crash(log, tmp_path):
    append(log, keyed("a=1"), producer_id=7, producer_epoch=0, base_sequence=0)
    append(log, keyed("a=2"))
    log.roll()
    append(log, keyed("x=1"))
    clean(log)
    log.abandon()
    for snapshot in (tmp_path / "orders-0").glob("*.snapshot"):
        snapshot.unlink()
    reopened = open_log(tmp_path / "orders-0", CONFIG, log.clock, clean_shutdown=False)
    assert reopened.producer_states.entries.get(7).last_sequence == 0
    reopened.abandon()


def test_the_last_batch_of_the_cleaned_range_is_retained_without_records(log):
    append(log, keyed("a=1"))
    log.roll()
    append(log, keyed("a=2"))
    log.roll()
    append(log, keyed("a=3"))
    clean(log, 0)
    # Offset 1 is the last of the cleaned range. The next cleaning, with the third segment, must not
    # lose the end of that range.
    log.roll()
    append(log, keyed("x=1"))
    log.roll()
    append(log, keyed("y=1"))
    clean(log, 2)
    assert log.segments[-2].next_offset() == log.segments[-1].base_offset


# --- tombstones


def test_a_tombstone_is_removed_after_its_delete_horizon(log):
    append(log, keyed("a=1", "b=1"))
    append(log, keyed("a"))
    log.roll()
    append(log, keyed("x=1"))
    log.clock.advance(10)
    clean(log)
    assert contents_text(log) == ["1:b=1", "2:a=", "3:x=1"]
    tombstone = stored_batches(log)[1]
    assert tombstone.delete_horizon == START_MS + 10 + 1000
    assert tombstone.max_timestamp == START_MS
    assert [r.timestamp for r in stored_records(log)][:2] == [START_MS, START_MS]

    log.clock.advance(999)
    log.roll()
    append(log, keyed("y=1"))
    clean(log, 3)
    assert "2:a=" in contents_text(log)
    assert stored_batches(log)[1].delete_horizon == START_MS + 10 + 1000

    log.clock.advance(1)
    log.roll()
    append(log, keyed("z=1"))
    clean(log, 4)
    assert contents_text(log) == ["1:b=1", "3:x=1", "4:y=1", "5:z=1"]


def test_records_keep_their_timestamps_when_a_batch_gets_a_delete_horizon(log):
    builder = BatchBuilder()
    for n, (key, value) in enumerate([(b"a", b"1"), (b"b", None), (b"c", b"3")]):
        builder.append(Record(timestamp=START_MS - 5_000_000 + n * 1000, key=key, value=value))
    log.stage_as_leader(memoryview(bytearray(builder.build())), 0)
    log.write_staged()
    log.set_high_watermark(3)
    log.roll()
    append(log, keyed("x=1"))
    clean(log)
    batch = stored_batches(log)[0]
    assert batch.delete_horizon == START_MS + 1000
    assert batch.max_timestamp == START_MS - 5_000_000 + 2000
    assert [(r.timestamp, r.key, r.value) for r in read_records(batch.data)] == [
        (START_MS - 5_000_000, b"a", b"1"),
        (START_MS - 5_000_000 + 1000, b"b", None),
        (START_MS - 5_000_000 + 2000, b"c", b"3"),
    ]


def test_a_tombstone_past_the_range_of_the_map_gets_no_delete_horizon(log):
    append(log, [(b"k%d" % n, b"v") for n in range(57)])
    append(log, keyed("new-key-1=1", "new-key-2=1", "k1"))
    log.roll()
    append(log, keyed("x=1"))
    result = clean(log, settings=replace(SETTINGS, dedupe_buffer_size=64 * 25))
    assert result.end_offset == 57
    assert stored_batches(log)[1].delete_horizon is None


# --- transactions


def test_aborted_data_is_removed_and_its_marker_retained_for_its_producer(log):
    append(log, keyed("a=1"))
    append(log, keyed("a=bad", "b=bad"), producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    append_marker(log, 5, commit=False)
    append(log, keyed("c=good"), producer_id=6, producer_epoch=0, base_sequence=0, transactional=True)
    append_marker(log, 6, commit=True)
    log.roll()
    append(log, keyed("x=1"))
    clean(log)
    data = [b for b in stored_batches(log) if not b.is_control]
    # The header of the last data batch of producer 5 is retained for its sequence.
    assert [(b.base_offset, b.count) for b in data] == [(0, 1), (1, 0), (4, 1), (6, 1)]
    assert [r.value for r in stored_records(log)] == [b"1", b"good", b"1"]
    assert [b.base_offset for b in stored_batches(log) if b.is_control] == [3, 5]
    aborted = log.aborted_transactions(0, log.end_offset)
    assert [(t.producer_id, t.first_offset, t.last_offset) for t in aborted] == [(5, 1, 3)]


def test_markers_without_data_are_removed_after_their_delete_horizon(log):
    append(log, keyed("a=bad"), producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    append_marker(log, 5, commit=False)
    append(log, keyed("b=1"), producer_id=6, producer_epoch=0, base_sequence=0, transactional=True)
    append_marker(log, 6, commit=True)
    log.roll()
    append(log, keyed("b=2"))
    log.roll()
    append(log, keyed("x=1"))
    log.clock.advance(86_400_001)
    log.producer_states.expire(log.clock.now_ms())
    clean(log, 0)
    # The data is removed. The markers have no delete horizon, because this cleaning read the data.
    assert [(b.base_offset, b.delete_horizon) for b in stored_batches(log) if b.is_control] == [(1, None), (3, None)]
    log.roll()
    append(log, keyed("y=1"))
    clean(log, 5)
    horizon = log.clock.now_ms() + 1000
    markers = [b for b in stored_batches(log) if b.is_control]
    assert [(b.base_offset, b.delete_horizon) for b in markers] == [(1, horizon), (3, horizon)]
    assert log.aborted_transactions(0, log.end_offset) == []
    log.clock.advance(1000)
    log.roll()
    append(log, keyed("z=1"))
    clean(log, 6)
    assert not [b for b in stored_batches(log) if b.is_control]


def test_nothing_at_or_past_an_open_transaction_is_cleaned(log):
    append(log, keyed("a=1", "a=2"))
    log.roll()
    append(log, keyed("a=3"), producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    append(log, keyed("a=4"))
    log.roll()
    append(log, keyed("x=1"))
    assert log.last_stable_offset == 2
    assert measure(log, None, START_MS).upper_bound == 2
    clean(log)
    assert [o for o, *_ in contents(log)] == [1, 2, 3, 4]


def test_nothing_past_the_high_watermark_is_cleaned(log):
    append(log, keyed("a=1", "a=2"))
    log.roll()
    append(log, keyed("a=3", "a=4"), replicated=False)
    log.roll()
    append(log, keyed("x=1"), replicated=False)
    assert measure(log, None, START_MS).upper_bound == 2


# --- formats


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_compressed_batches_are_rewritten_with_their_codec(log, codec):
    append(log, [(b"key-%d" % (n % 10), b"value %d " % n * 20) for n in range(100)], codec=codec)
    log.roll()
    append(log, keyed("x=1"))
    clean(log)
    batch = stored_batches(log)[0]
    assert batch.codec == codec and batch.count == 10 and batch.has_valid_crc()
    assert (batch.base_offset, batch.last_offset) == (0, 99)
    assert [r.offset for r in read_records(batch.data)] == list(range(90, 100))


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [0, 1, 2, 3])
def test_old_formats_are_compacted(log, magic, codec):
    data = build([(b"key-%d" % (n % 3), b"value %d" % n) for n in range(12)], magic=magic, codec=codec, base_offset=0)
    log.append_as_follower(memoryview(data))
    data = build([(b"key-0", b"last")], magic=magic, codec=codec, base_offset=12)
    log.append_as_follower(memoryview(data))
    log.set_high_watermark(13)
    log.roll()
    append(log, keyed("x=1"))
    clean(log)
    assert [(r.offset, r.key, r.value) for r in stored_records(log)[:-1]] == [
        (10, b"key-1", b"value 10"),
        (11, b"key-2", b"value 11"),
        (12, b"key-0", b"last"),
    ]
    if magic == 1:
        assert {r.timestamp for r in stored_records(log)[:-1]} == {START_MS}
    assert {b.magic for b in stored_batches(log)[:-1]} == {magic}


def test_tombstones_of_old_formats_are_removed_by_the_age_of_their_segment(log):
    log.append_as_follower(memoryview(build([(b"a", b"1"), (b"a", None)], magic=1, base_offset=0)))
    log.set_high_watermark(2)
    log.roll()
    append(log, keyed("b=1"))
    clean(log, 0)
    assert [(r.key, r.value) for r in stored_records(log)] == [(b"a", None), (b"b", b"1")]
    # The tombstone is now in the clean part. It is removed by the age of that part.
    os.utime(log.segments[0].file.path, (1000, 1000))
    log.roll()
    append(log, keyed("c=1"))
    modified = os.stat(log.segments[1].file.path)
    os.utime(log.segments[0].file.path, (modified.st_mtime - 100, modified.st_mtime - 100))
    clean(log, 2)
    assert (b"a", None) in [(r.key, r.value) for r in stored_records(log)]


def test_a_batch_larger_than_the_buffer_is_read(log):
    append(log, [(b"a", os.urandom(50_000)), (b"a", b"2")])
    append(log, keyed("b=1"))
    log.roll()
    append(log, keyed("x=1"))
    clean(log, settings=replace(SETTINGS, io_buffer_size=1000))
    assert contents_text(log) == ["1:a=2", "2:b=1", "3:x=1"]


def test_records_without_a_key_are_removed(tmp_path):
    log = open_log(tmp_path / "orders-0", replace(CONFIG, cleanup_policy=("delete",)))
    append(log, [(None, b"1"), (b"a", b"1")])
    log.roll()
    append(log, keyed("x=1"))
    log.update_config(CONFIG)
    result = clean(log)
    assert contents_text(log) == ["1:a=1", "2:x=1"]
    assert result.stats.keyless == 1
    log.abandon()


# --- segments


def test_small_segments_are_merged_up_to_the_segment_size(tmp_path):
    config = replace(CONFIG, segment_bytes=2000)
    log = open_log(tmp_path / "orders-0", config)
    for n in range(60):
        append(log, [(b"key-%d" % (n % 12), b"x" * 50)])
    segment_count = len(log.segments)
    log.roll()
    append(log, keyed("x=1"))
    clean(log)
    # Groups depend on the sizes before a cleaning, so only the next cleaning merges the segments.
    log.roll()
    append(log, keyed("y=1"))
    clean(log, 60)
    assert segment_count > 3 and len(log.segments) == 2
    assert all(s.size <= 2000 for s in log.segments)
    assert [o for o, *_ in contents(log)] == [*range(48, 60), 60, 61]
    for number, (offset, key, _) in enumerate(contents(log)[:-1]):
        read = log.read(offset, 1, limit=log.end_offset, min_one_batch=True)
        assert next(iter(read_records(read.slice.read()))).key == key, number
    log.abandon()


def test_segments_with_distant_offsets_are_not_merged():
    class Index:
        entries, ENTRY = 0, 8

    class Segment:
        def __init__(self, base, size=10):
            self.base_offset, self.size = base, size
            self.offset_index = self.time_index = Index()

    segments = [Segment(0), Segment(10), Segment(2**31), Segment(2**31 + 5)]
    groups = group_segments(segments, 1000, 1000, 2**31 + 10)
    assert [[s.base_offset for s in g] for g in groups] == [[0, 10], [2**31, 2**31 + 5]]
    by_size = group_segments([Segment(n, 400) for n in range(5)], 1000, 1000, 10)
    assert [len(g) for g in by_size] == [2, 2, 1]


def test_a_segment_without_changes_is_not_replaced(log):
    append(log, keyed("a=1", "b=1"))
    log.roll()
    append(log, keyed("x=1"))
    segment = log.segments[0]
    clean(log)
    assert log.segments[0] is segment
    assert not [name for name in os.listdir(log.dir) if name.endswith((".cleaned", ".swap", ".deleted"))]


def test_cleaned_files_keep_their_modification_times(log):
    append(log, keyed("a=1", "a=2"))
    log.roll()
    append(log, keyed("x=1"))
    os.utime(log.segments[0].file.path, (1_000_000, 1_000_000))
    clean(log)
    assert log.segments[0].last_modified_ms() == 1_000_000_000


def test_a_full_map_leaves_the_remaining_records_to_the_next_cleaning(log):
    for n in range(200):
        append(log, [(b"key-%d" % (n % 100), b"%d" % n)])
    log.roll()
    append(log, keyed("x=1"))
    tiny = replace(SETTINGS, dedupe_buffer_size=64 * 25)
    end = 0
    rounds = 0
    while end < 200:
        end = clean(log, end, tiny).end_offset
        rounds += 1
    assert rounds > 1
    assert [o for o, *_ in contents(log)] == [*range(100, 200), 200]


def test_a_batch_with_too_many_keys_for_the_map_makes_the_log_uncleanable(log):
    append(log, [(b"key-%d" % n, b"") for n in range(100)])
    log.roll()
    append(log, keyed("x=1"))
    with pytest.raises(UncleanableLogError, match=r"dedupe\.buffer\.size"):
        clean(log, settings=replace(SETTINGS, dedupe_buffer_size=64 * 25))


def test_a_corrupt_batch_stops_the_cleaning_without_changes(log):
    append(log, keyed("a=1", "a=2"))
    log.roll()
    append(log, keyed("x=1"))
    with open(log.segments[0].file.path, "r+b") as file:
        file.seek(70)
        byte = file.read(1)
        file.seek(70)
        file.write(bytes((byte[0] ^ 1,)))
    names = sorted(os.listdir(log.dir))
    with pytest.raises(KafkaError) as caught:
        clean(log)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    assert sorted(os.listdir(log.dir)) == names


# --- concurrent changes


def steps(cleaning: LogCleaning):
    while True:
        cleaning.prepare()
        yield "prepared"
        cleaning.run()
        yield "ran"
        if cleaning.finish() is not None:
            return


@pytest.mark.parametrize("step", range(1, 5))
def test_a_truncation_at_any_step_aborts_the_cleaning(log, step):
    append(log, keyed("a=1", "a=2"))
    log.roll()
    append(log, keyed("a=3"))
    log.roll()
    append(log, keyed("x=1"))
    cleaning = LogCleaning(log, 0, 3, SETTINGS, log.clock)
    progress = steps(cleaning)
    for _ in range(step):
        next(progress)
    cleaning.abort()
    log.truncate_to(2)
    with pytest.raises(WorkAborted):
        for _ in progress:
            pass
    cleaning.fail()
    assert contents_text(log) == ["0:a=1", "1:a=2"]
    assert not [name for name in os.listdir(log.dir) if name.endswith((".cleaned", ".swap"))]


def test_retention_during_a_cleaning_stops_it(log):
    append(log, keyed("a=1", "a=2"))
    log.roll()
    append(log, keyed("a=3"))
    log.roll()
    append(log, keyed("x=1"))
    cleaning = LogCleaning(log, 0, 3, SETTINGS, log.clock)
    progress = steps(cleaning)
    for _ in range(4):
        next(progress)
    log.delete_records_before(2)
    log.delete_old_segments()
    with pytest.raises(WorkAborted):
        next(progress)
    assert contents_text(log) == ["2:a=3", "3:x=1"]


def test_records_appended_during_a_cleaning_are_retained(log):
    append(log, keyed("a=1", "a=2"))
    log.roll()
    append(log, keyed("a=3"))
    cleaning = LogCleaning(log, 0, 2, SETTINGS, log.clock)
    for n, _ in enumerate(steps(cleaning)):
        append(log, [(b"new", b"%d" % n)])
        if n % 2:
            log.roll()
    assert contents_text(log)[:2] == ["1:a=2", "2:a=3"]
    assert [o for o, *_ in contents(log)] == list(range(1, log.end_offset))


def test_a_full_disk_leaves_the_source_segments(log, monkeypatch):
    append(log, keyed("a=1", "a=2"))
    log.roll()
    append(log, keyed("x=1"))
    names = sorted(os.listdir(log.dir))
    real_fdatasync = os.fdatasync

    def full(fd):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fdatasync", full)
    with pytest.raises(OSError):
        clean(log)
    monkeypatch.setattr(os, "fdatasync", real_fdatasync)
    assert sorted(os.listdir(log.dir)) == names
    clean(log)
    assert contents_text(log) == ["1:a=2", "2:x=1"]


def test_a_cleaned_log_is_the_same_after_a_restart(log, tmp_path):
    append(log, keyed("a=1", "b=1", "a=2"))
    log.roll()
    append(log, keyed("a=3"))
    clean(log)
    expected = contents_text(log)
    log.close()
    reopened = open_log(tmp_path / "orders-0", CONFIG)
    assert contents_text(reopened) == expected and reopened.end_offset == 4
    reopened.abandon()
    recovered = open_log(tmp_path / "orders-0", CONFIG, clean_shutdown=False)
    assert contents_text(recovered) == expected and recovered.end_offset == 4
    recovered.abandon()


# --- scheduling


def test_the_dirty_ratio_counts_whole_segments(log):
    append(log, keyed("a=1"))
    log.roll()
    append(log, keyed("b=1"))
    log.roll()
    append(log, keyed("c=1"))
    candidate = measure(log, 1, START_MS)
    assert (candidate.first_dirty_offset, candidate.upper_bound) == (1, 2)
    assert candidate.dirty_ratio == 0.5 and not candidate.is_due
    assert measure(log, None, START_MS).is_due
    assert not measure(log, 2, START_MS).is_due


def test_young_segments_are_not_cleaned_within_the_minimum_lag(tmp_path):
    clock = FakeClock()
    log = open_log(tmp_path / "orders-0", replace(CONFIG, min_compaction_lag_ms=60_000), clock)
    append(log, keyed("a=1"))
    log.roll()
    clock.advance(50_000)
    append(log, keyed("a=2"))
    log.roll()
    clock.advance(20_000)
    append(log, keyed("x=1"))
    assert measure(log, None, clock.now_ms()).upper_bound == 1
    clock.advance(60_000)
    assert measure(log, None, clock.now_ms()).upper_bound == 2
    log.abandon()


def test_the_maximum_lag_makes_a_log_due_at_any_ratio(tmp_path):
    clock = FakeClock()
    config = replace(CONFIG, max_compaction_lag_ms=60_000, min_cleanable_dirty_ratio=0.99)
    log = open_log(tmp_path / "orders-0", config, clock)
    append(log, keyed("a=1", "b=1", "c=1"))
    log.roll()
    append(log, keyed("a=2"))
    log.roll()
    append(log, keyed("x=1"))
    assert not measure(log, 3, clock.now_ms()).is_due
    clock.advance(60_001)
    assert measure(log, 3, clock.now_ms()).is_due
    log.abandon()


def test_a_checkpoint_outside_of_the_log_makes_the_whole_log_dirty(log):
    append(log, keyed("a=1"))
    log.roll()
    append(log, keyed("b=1"))
    assert measure(log, 1000, START_MS).first_dirty_offset == 0
    log.delete_records_before(1)
    assert measure(log, 0, START_MS).first_dirty_offset == 1


def test_every_stored_batch_stays_readable_by_offset(log):
    for n in range(50):
        append(log, [(b"%d" % (n % 7), b"v" * 500), (b"%d" % (n % 5), b"v" * 500)])
    log.roll()
    append(log, keyed("x=1"))
    clean(log)
    for offset in range(log.start_offset, log.end_offset):
        read = log.read(offset, 1 << 20, limit=log.end_offset, min_one_batch=True)
        first = next(iter(batches(read.slice.read())))
        assert first.last_offset >= offset
