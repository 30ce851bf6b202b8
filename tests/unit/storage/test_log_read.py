"""Reads of a log: the slices for a fetch, and searches by time."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from kavka.common.errors import ErrorCode, KafkaError
from kavka.records.batch import batches
from kavka.storage import segment as segment_module
from kavka.storage.file_slice import FileClosed, LogFile
from kavka.storage.log import Log
from kavka.storage.log_config import LogConfig
from kavka.storage.log_read import (
    MAX_OPENED_IN_WORKER,
    MAX_OPENED_ON_LOOP,
    LogRead,
    MustSearchInWorker,
    PageCacheMiss,
)
from tests.support.logs import START_MS, TP, FakeClock, append_marker, build
from tests.unit.storage.conftest import Opener


def fill(log: Log, count: int, records: int = 2, size: int = 20) -> None:
    for n in range(count):
        data = build([(b"k", b"v" * size)] * records, START_MS + n * 10)
        log.stage_as_leader(memoryview(data), 0)
    log.write_staged()
    log.set_high_watermark(log.end_offset)


def read(
    log: Log, offset: int, max_bytes: int = 1 << 20, *, limit: int | None = None, min_one: bool = True
) -> LogRead | None:
    return log.read(offset, max_bytes, limit=log.high_watermark if limit is None else limit, min_one_batch=min_one)


def offsets(result: LogRead | None) -> list[int]:
    assert result is not None
    return [batch.base_offset for batch in batches(result.slice.read())]


def forget_recent(log: Log) -> None:
    for segment in log.segments:
        segment.forget_recent()


@pytest.mark.parametrize("recent", [True, False])
def test_a_read_begins_with_the_batch_of_the_offset_and_ends_before_the_limit(open_log: Opener, recent: bool) -> None:
    log = open_log(index_interval_bytes=200)
    fill(log, 50)
    if not recent:
        forget_recent(log)
    for offset in range(100):
        result = read(log, offset)
        assert offsets(result) == list(range(offset - offset % 2, 100, 2))
        assert result is not None and result.is_recent is recent
    assert offsets(read(log, 31, limit=40)) == [30, 32, 34, 36, 38]
    assert read(log, 40, limit=40) is None
    assert read(log, 100) is None


def test_reads_respect_a_limit_that_moves_and_a_truncated_log(open_log: Opener) -> None:
    log = open_log(index_interval_bytes=200)
    fill(log, 20)
    for limit in (40, 10, 30, 30, 20):
        assert offsets(read(log, 0, limit=limit))[-1] == limit - 2
    log.truncate_to(10)
    fill(log, 20, size=70)
    for limit in (20, 30):
        assert offsets(read(log, 0, limit=limit))[-1] == limit - 2


def test_recent_positions_are_bounded(open_log: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_module, "RECENT_BATCHES", 16)
    log = open_log(index_interval_bytes=300)
    for _ in range(30):
        fill(log, 5)
        assert len(log.active_segment.recent_last_offsets) <= 32
    for offset in (0, 100, 200, 290, 299):
        result = read(log, offset)
        assert offsets(result)[0] == offset - offset % 2
    result = read(log, 299)
    assert result is not None and result.is_recent


def test_the_last_batch_may_be_incomplete_but_the_first_is_complete_on_request(open_log: Opener) -> None:
    log = open_log()
    fill(log, 3)
    size = log.active_segment.size // 3
    result = read(log, 0, size + 10)
    assert result is not None and len(result.slice) == size + 10
    assert result.is_first_batch_complete
    result = read(log, 2, 5)
    assert result is not None and len(result.slice) == size
    result = read(log, 2, 5, min_one=False)
    assert result is not None and len(result.slice) == 5
    assert not result.is_first_batch_complete and result.first_batch_size == size
    assert read(log, 2, 0, min_one=False) is None


def test_a_read_stays_in_one_segment_and_the_next_read_continues_after_it(open_log: Opener) -> None:
    log = open_log(segment_bytes=500)
    fill(log, 20)
    assert len(log.segments) > 3
    read_offsets: list[int] = []
    offset = 0
    while offset < log.end_offset:
        result = read(log, offset)
        read_offsets += offsets(result)
        offset = read_offsets[-1] + 2
    assert read_offsets == list(range(0, 40, 2))


def test_batches_written_by_a_roll_within_a_turn_are_not_visible(open_log: Opener) -> None:
    log = open_log(segment_bytes=300)
    fill(log, 1)
    for _ in range(5):
        log.stage_as_leader(memoryview(build([(b"k", b"v" * 20)] * 2, START_MS)), 0)
    assert len(log.segments) > 1
    assert offsets(read(log, 0, limit=log.end_offset)) == [0]
    assert read(log, 2, limit=log.end_offset) is None
    assert read(log, 9, limit=log.end_offset) is None
    log.write_staged()
    assert offsets(read(log, 2, limit=log.end_offset))[0] == 2


@pytest.mark.parametrize("offset", [-1, 3, 41])
def test_offsets_outside_of_the_log_are_out_of_range(open_log: Opener, offset: int) -> None:
    log = open_log()
    fill(log, 20)
    log.delete_records_before(4)
    with pytest.raises(KafkaError) as raised:
        read(log, offset)
    assert raised.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_read_at_an_offset_in_a_gap_starts_at_the_next_batch(open_log: Opener) -> None:
    log = open_log()
    for offset in (5, 20, 21):
        log.append_as_follower(build([(b"k", b"v")], START_MS, base_offset=offset, leader_epoch=0))
    log.roll()
    log.append_as_follower(build([(b"k", b"v")], START_MS, base_offset=50, leader_epoch=0))
    log.set_high_watermark(51)
    for recent in (True, False):
        if not recent:
            forget_recent(log)
        assert offsets(read(log, 0)) == [5, 20, 21]
        assert offsets(read(log, 6)) == [20, 21]
        assert offsets(read(log, 22)) == [50]
        assert read(log, 22, limit=22) is None
        assert offsets(read(log, 6, limit=21)) == [20]


def test_empty_segments_are_skipped(open_log: Opener) -> None:
    log = open_log()
    log.append_as_follower(build([(b"k", b"v")], START_MS, base_offset=2**33, leader_epoch=0))
    log.set_high_watermark(2**33 + 1)
    assert [s.base_offset for s in log.segments] == [0, 2**33]
    assert offsets(read(log, 7)) == [2**33]


def test_messages_of_the_old_formats_are_found_by_their_offsets(open_log: Opener) -> None:
    log = open_log(index_interval_bytes=100)
    for magic, base in ((0, 0), (1, 10)):
        for n in range(10):
            data = build([(b"k", b"v")], START_MS, magic=magic, base_offset=base + n)
            log.append_as_follower(data)
    log.set_high_watermark(20)
    for recent in (True, False):
        if not recent:
            forget_recent(log)
        assert offsets(read(log, 7)) == list(range(7, 20))
    assert log.offset_for_timestamp(START_MS).offset == 10  # type: ignore[union-attr]


def test_a_slice_can_be_sent_after_its_segment_was_deleted(open_log: Opener, clock: FakeClock) -> None:
    log = open_log(segment_bytes=300, retention_bytes=0, file_delete_delay_ms=0)
    fill(log, 10)
    result = read(log, 0)
    assert result is not None
    expected = result.slice.read()
    log.delete_old_segments()
    for deletion in log.take_due_deletions(clock.ms):
        deletion.run()
    assert list(log.dir.glob("*.deleted")) == []
    assert result.slice.read() == expected
    assert result.slice.tail(10).read() == expected[10:]


def test_reading_a_slice_of_a_closed_log_raises_an_error(open_log: Opener) -> None:
    log = open_log()
    fill(log, 3)
    result = read(log, 0)
    assert result is not None
    log.close()
    with pytest.raises(FileClosed):
        result.slice.read()


def test_no_log_file_is_read_for_a_fetch_near_the_end(open_log: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log()
    fill(log, 100)

    def unexpected(*args: object) -> bytes:
        raise AssertionError("a file was read")

    monkeypatch.setattr(os, "pread", unexpected)
    monkeypatch.setattr(os, "preadv", unexpected)
    assert read(log, 150) is not None
    assert read(log, 150, limit=180) is not None
    assert log.bytes_between(150, 180) == log.active_segment.size * 15 // 100


def test_a_read_outside_of_the_page_cache_raises_cold_read(open_log: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(index_interval_bytes=500)
    fill(log, 100)
    forget_recent(log)

    def cold(fd: int, buffers: list[bytearray], position: int, flags: int = 0) -> int:
        raise BlockingIOError(errno.EAGAIN, "would block")

    with monkeypatch.context() as patched:
        patched.setattr(os, "preadv", cold)
        with pytest.raises(PageCacheMiss) as raised:
            log.read(100, 1000, limit=200, min_one_batch=True, nowait=True)
    assert raised.value.slice.read()
    result = log.read(100, 1000, limit=200, min_one_batch=True, nowait=True)
    assert offsets(result)[0] == 100


def test_bytes_between_offsets_are_counted_over_segments(open_log: Opener) -> None:
    log = open_log(segment_bytes=400, index_interval_bytes=0)
    fill(log, 20)
    size = log.size // 20
    assert log.bytes_between(0, 40) == log.size
    assert log.bytes_between(40, 40) == 0
    assert log.bytes_between(39, 0) == 0
    for start, end in ((0, 10), (6, 30), (20, 40), (38, 40)):
        assert abs(log.bytes_between(start, end) - (end - start) // 2 * size) <= 2 * size


def test_the_upper_bound_of_a_read_is_near_its_end(open_log: Opener) -> None:
    log = open_log(index_interval_bytes=200, segment_bytes=2000)
    fill(log, 60)
    for recent in (True, False):
        if not recent:
            forget_recent(log)
        result = read(log, 0, 400)
        assert result is not None
        last = offsets(result)[-1] + 1
        assert last < result.upper_bound() <= last + 8
        result = read(log, 0, 1 << 20)
        assert result is not None
        assert result.upper_bound() == log.segments[1].base_offset


def test_aborted_transactions_are_found_for_a_read(open_log: Opener) -> None:
    log = open_log(segment_bytes=400)
    for n, pid in enumerate((1, 2, 1, 2)):
        data = build(
            [(b"k", b"v" * 30)], START_MS, producer_id=pid, producer_epoch=0, base_sequence=n // 2, transactional=True
        )
        log.stage_as_leader(memoryview(data), 0)
        log.write_staged()
        append_marker(log, pid, commit=pid == 2)
    assert len(log.segments) > 1
    assert [(t.producer_id, t.first_offset, t.last_offset) for t in log.aborted_transactions(0, 8)] == [
        (1, 0, 1),
        (1, 4, 5),
    ]
    assert [t.first_offset for t in log.aborted_transactions(2, 8)] == [4]
    assert [t.first_offset for t in log.aborted_transactions(0, 4)] == [0]
    assert log.last_stable_offset == 8


def test_the_last_stable_offset_stays_before_a_transaction_until_its_marker_is_replicated(open_log: Opener) -> None:
    log = open_log()
    fill(log, 1)
    data = build([(b"k", b"v")], START_MS, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    log.stage_as_leader(memoryview(data), 0)
    log.write_staged()
    fill(log, 1)
    assert (log.high_watermark, log.last_stable_offset) == (5, 2)
    append_marker(log, 1, commit=True)
    assert (log.high_watermark, log.last_stable_offset) == (6, 6)


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_a_search_by_time_finds_the_exact_record(open_log: Opener, codec: int) -> None:
    from kavka.records.builder import BatchBuilder
    from kavka.records.record import Record

    log = open_log(segment_bytes=600, index_interval_bytes=100)
    for n in range(20):
        builder = BatchBuilder(codec=codec)
        for m in range(3):
            builder.append(Record(timestamp=START_MS + n * 30 + m * 10, key=None, value=b"x" * 30))
        log.stage_as_leader(memoryview(bytearray(builder.build())), 0)
    log.write_staged()
    assert len(log.segments) > 2
    for offset in range(60):
        for early in (0, 9):
            result = log.offset_for_timestamp(START_MS + offset * 10 - early)
            assert result is not None
            assert (result.offset, result.timestamp, result.leader_epoch) == (offset, START_MS + offset * 10, 0)
    assert log.offset_for_timestamp(START_MS + 591) is None


def test_times_before_the_start_offset_are_not_found(open_log: Opener) -> None:
    log = open_log()
    fill(log, 10)
    log.delete_records_before(7)
    result = log.offset_for_timestamp(0)
    assert result is not None and result.offset == 7


def test_the_largest_timestamp_need_not_be_at_the_end(open_log: Opener) -> None:
    log = open_log(segment_bytes=300)
    assert log.offset_of_max_timestamp() is None
    for n in (5, 3, 90, 90, 20, 30, 10):
        log.stage_as_leader(memoryview(build([(b"k", b"v" * 20)] * 2, START_MS + n)), 0)
    log.write_staged()
    result = log.offset_of_max_timestamp()
    assert result is not None and (result.offset, result.timestamp) == (4, START_MS + 90)
    log.close()
    log = open_log(segment_bytes=300)
    result = log.offset_of_max_timestamp()
    assert result is not None and (result.offset, result.timestamp) == (4, START_MS + 90)


def test_a_large_batch_is_read_only_in_a_worker_thread(open_log: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search by time keeps the large batches of all its partitions until a worker thread has
    decompressed them."""
    log = open_log()
    fill(log, 3, size=100_000)
    sizes: list[int] = []
    read_file = LogFile.read
    monkeypatch.setattr(LogFile, "read", lambda *args: sizes.append(args[2]) or read_file(*args))
    with pytest.raises(MustSearchInWorker) as raised:
        log.offset_for_timestamp(START_MS + 5, max_opened=MAX_OPENED_ON_LOOP)
    assert max(sizes, default=0) < 200_000
    record = raised.value.batches.first_record()
    assert record is not None and record.offset == 2
    log.close()
    with pytest.raises(FileClosed):
        raised.value.batches.first_record()


def append_with_late_headers(log: Log, count: int) -> None:
    """Append batches whose headers have a later timestamp than their records."""
    for n in range(count):
        data = build([(b"k", b"v" * 20)] * 2, START_MS + n)
        struct.pack_into(">q", data, 35, START_MS + 1000)
        struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
        log.stage_as_leader(memoryview(data), 0)
    log.write_staged()


def test_a_search_on_the_loop_decompresses_a_bounded_number_of_batches(open_log: Opener) -> None:
    log = open_log(segment_bytes=300)
    append_with_late_headers(log, 40)
    assert len(log.segments) > 10
    with pytest.raises(MustSearchInWorker) as raised:
        log.offset_for_timestamp(START_MS + 500, max_opened=MAX_OPENED_ON_LOOP)
    assert raised.value.batches.last_offset == 2 * MAX_OPENED_ON_LOOP + 1
    with pytest.raises(MustSearchInWorker) as raised:
        log.offset_for_timestamp(START_MS + 500, after=21, max_opened=0)
    assert raised.value.batches.last_offset == 23
    assert log.offset_for_timestamp(START_MS + 500) is None


def search_by_time(log: Log, timestamp: int) -> tuple[int | None, int]:
    """Search as ListOffsets does. Returns the offset, and the number of searches in workers."""
    searches = 0
    try:
        record = log.offset_for_timestamp(timestamp, max_opened=MAX_OPENED_ON_LOOP)
    except MustSearchInWorker as search:
        batches: Any = search.batches
        record = None
        while batches is not None:
            searches += 1
            try:
                record = batches.first_record()
                if record is None:
                    record = log.offset_for_timestamp(timestamp, after=batches.last_offset, max_opened=0)
                batches = None
            except MustSearchInWorker as next_search:
                batches = next_search.batches
    return None if record is None else record.offset, searches


@pytest.mark.parametrize("timestamp", [0, 499, 3999, 4999, 5000])
def test_a_search_that_reads_many_headers_continues_in_a_worker_thread(
    open_log: Opener, monkeypatch: pytest.MonkeyPatch, timestamp: int
) -> None:
    """The index has no entries, so the search reads all headers before the match."""
    log = open_log(index_interval_bytes=1 << 30)
    for n in range(5000):
        log.stage_as_leader(memoryview(build([(b"k", b"v")], START_MS + n)), 0)
    log.write_staged()
    offset, searches = search_by_time(log, START_MS + timestamp)
    assert offset == (timestamp if timestamp < 5000 else None)
    assert searches == (500 <= timestamp < 5000)


def test_a_search_in_a_worker_thread_opens_a_bounded_number_of_batches_at_a_time(open_log: Opener) -> None:
    log = open_log()
    append_with_late_headers(log, 3 * MAX_OPENED_IN_WORKER + MAX_OPENED_ON_LOOP)
    build_last = build([(b"k", b"v")], START_MS + 900)
    log.stage_as_leader(memoryview(build_last), 0)
    log.write_staged()
    offset, searches = search_by_time(log, START_MS + 500)
    assert (offset, searches > 3) == (log.end_offset - 1, True)


def test_a_search_of_cold_segments_does_not_wait_for_the_disk(
    open_log: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log()
    fill(log, 5)

    def miss(*_: object) -> bytes:
        raise BlockingIOError

    with monkeypatch.context() as cold:
        cold.setattr(LogFile, "read_nowait", miss)
        with pytest.raises(MustSearchInWorker) as raised:
            log.offset_for_timestamp(0, max_opened=MAX_OPENED_ON_LOOP)
    record = raised.value.batches.first_record()
    assert record is not None and record.offset == 0


def test_a_reopened_log_has_no_open_descriptor_and_is_readable(tmp_path: Path, clock: FakeClock) -> None:
    log = Log.open(tmp_path / "orders-0", TP, LogConfig(), clock)
    fill(log, 10)
    log.close()
    descriptor_count = len(os.listdir("/proc/self/fd"))
    log = Log.open(tmp_path / "orders-0", TP, LogConfig(), clock)
    assert len(os.listdir("/proc/self/fd")) == descriptor_count
    log.set_high_watermark(20)
    assert offsets(read(log, 3)) == list(range(2, 20, 2))
    log.close()
    assert len(os.listdir("/proc/self/fd")) == descriptor_count
