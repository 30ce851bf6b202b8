"""The offset index, the time index and the transaction index: their format and lookups."""

from __future__ import annotations

import errno
import os
import struct
from bisect import bisect_right
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kavka.storage.index_file import BUFFER_BYTES, CorruptIndexError
from kavka.storage.offset_index import OffsetIndex
from kavka.storage.time_index import TimeIndex
from kavka.storage.transaction_index import AbortedTxn, TransactionIndex


@pytest.fixture
def offsets(tmp_path: Path) -> OffsetIndex:
    index = OffsetIndex(str(tmp_path / "00000000000000000045.index"), 45, 1024)
    index.create()
    return index


@pytest.fixture
def times(tmp_path: Path) -> TimeIndex:
    index = TimeIndex(str(tmp_path / "00000000000000000045.timeindex"), 45, 1024)
    index.create()
    return index


def test_an_offset_entry_is_a_relative_offset_and_a_position_of_four_bytes_each(offsets: OffsetIndex) -> None:
    offsets.append(50, 0)
    offsets.append(70, 4200)
    offsets.trim()
    assert Path(offsets.path).read_bytes() == struct.pack(">IIII", 5, 0, 25, 4200)


def test_a_time_entry_is_a_timestamp_of_eight_and_a_relative_offset_of_four_bytes(times: TimeIndex) -> None:
    times.maybe_append(1_700_000_000_000, 50)
    times.maybe_append(1_700_000_000_500, 61)
    times.trim()
    expected = struct.pack(">qIqI", 1_700_000_000_000, 5, 1_700_000_000_500, 16)
    assert Path(times.path).read_bytes() == expected


def test_a_trimmed_index_has_all_its_entries_when_it_is_opened(offsets: OffsetIndex) -> None:
    for n in range(1, 100):
        offsets.append(45 + n, n * 10)
    offsets.trim()
    again = OffsetIndex(offsets.path, 45, 1024, os.path.getsize(offsets.path))
    assert again.entries == 99
    assert again.last_entry == (144, 990)
    assert [again.entry(n) for n in (0, 98)] == [(46, 10), (144, 990)]
    again.append(200, 1000)
    assert again.lookup(150) == (144, 990)
    assert again.lookup(200) == (200, 1000)


def test_an_empty_index_points_to_the_start_of_the_segment(offsets: OffsetIndex, times: TimeIndex) -> None:
    assert offsets.lookup(1000) == (45, 0)
    assert offsets.last_entry[0] == 45
    assert times.lookup(1000) == (-1, 45)
    assert times.last_entry == (-1, 45)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=80), st.integers(-10, 4000))
@settings(max_examples=60, deadline=None)
def test_lookups_match_those_in_a_sorted_list(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int], at: int
) -> None:
    folder = tmp_path_factory.mktemp("index")
    offset_index = OffsetIndex(str(folder / "i"), 100, 4096)
    time_index = TimeIndex(str(folder / "t"), 100, 4096)
    offsets, position = [], 0
    offset = 99
    for step in steps:
        offset += step
        position += 7
        offset_index.append(offset, position)
        time_index.maybe_append(offset * 10, offset)
        offsets.append(offset)
    n = bisect_right(offsets, at)
    assert offset_index.lookup(at) == ((offsets[n - 1], n * 7) if n else (100, 0))
    assert time_index.lookup(at * 10 + 5) == ((offsets[n - 1] * 10, offsets[n - 1]) if n else (-1, 100))
    offset_index.truncate_to(at)
    time_index.truncate_to(at)
    remaining = [o for o in offsets if o < at]
    assert offset_index.entries == time_index.entries == len(remaining)
    assert offset_index.last_entry[0] == (remaining[-1] if remaining else 100)
    assert time_index.last_entry == ((remaining[-1] * 10, remaining[-1]) if remaining else (-1, 100))
    offset_index.close()
    time_index.close()


def test_offsets_that_do_not_increase_are_rejected(offsets: OffsetIndex) -> None:
    offsets.append(50, 0)
    with pytest.raises(ValueError, match="50"):
        offsets.append(50, 10)


def test_a_full_index_rejects_entries_except_the_last_one_of_a_time_index(tmp_path: Path) -> None:
    offset_index = OffsetIndex(str(tmp_path / "i"), 0, 16)
    offset_index.append(1, 1)
    assert not offset_index.is_full
    offset_index.append(2, 2)
    assert offset_index.is_full
    with pytest.raises(ValueError, match="full"):
        offset_index.append(3, 3)
    time_index = TimeIndex(str(tmp_path / "t"), 0, 24)
    time_index.maybe_append(1, 1)
    assert time_index.is_full
    with pytest.raises(ValueError, match="full"):
        time_index.maybe_append(2, 2)
    time_index.maybe_append(2, 2, at_end=True)
    assert time_index.last_entry == (2, 2)


def test_a_timestamp_that_is_not_later_adds_no_entry(times: TimeIndex) -> None:
    times.maybe_append(100, 46)
    times.maybe_append(100, 50)
    assert times.entries == 1
    with pytest.raises(ValueError, match="before"):
        times.maybe_append(99, 51)


def test_entries_are_written_when_they_fill_a_buffer(tmp_path: Path) -> None:
    index = OffsetIndex(str(tmp_path / "i"), 0, 10 * 1024 * 1024)
    index.create()
    count = BUFFER_BYTES // 8
    for n in range(1, count):
        index.append(n, n)
    assert os.path.getsize(index.path) == 0
    index.append(count, count)
    assert os.path.getsize(index.path) == BUFFER_BYTES
    index.append(count + 1, count + 1)
    for n in (1, count - 1, count, count + 1):
        assert index.lookup(n) == index.entry(n - 1) == (n, n)
    index.trim()
    assert os.path.getsize(index.path) == BUFFER_BYTES + 8


def test_on_a_full_disk_entries_stay_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = OffsetIndex(str(tmp_path / "i"), 0, 10 * 1024 * 1024)
    index.create()
    real = os.pwrite

    def no_room(fd: int, data: memoryview, position: int) -> int:
        if position:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, bytes(data)[:20], position)

    monkeypatch.setattr(os, "pwrite", no_room)
    for n in range(1, 1000):
        index.append(n, n)
    assert index.lookup(999) == (999, 999)
    with pytest.raises(OSError, match="No space"):
        index.trim()
    monkeypatch.undo()
    assert index.lookup(500) == (500, 500)
    index.append(1000, 1000)
    index.trim()
    assert Path(index.path).read_bytes() == b"".join(struct.pack(">II", n, n) for n in range(1, 1001))


@given(st.lists(st.one_of(st.integers(1, 300), st.integers(-300, -1), st.just(0)), max_size=20))
@settings(max_examples=60, deadline=None)
def test_an_index_equals_a_list_after_appends_truncations_and_trims(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int]
) -> None:
    """Positive steps append entries, negative steps remove the last ones, 0 trims the file."""
    path = str(tmp_path_factory.mktemp("index") / "i")
    index = OffsetIndex(path, 0, 1 << 20)
    index.create()
    expected: list[tuple[int, int]] = []
    number = 0
    for step in steps:
        for _ in range(step):
            number += 1
            index.append(number, number * 3)
            expected.append((number, number * 3))
        if step < 0:
            del expected[step:]
            index.restore(len(expected))
        elif step == 0:
            index.trim()
            assert os.path.getsize(path) == 8 * len(expected)
        assert [index.entry(n) for n in range(index.entries)] == expected
        assert index.last_entry == (expected[-1] if expected else (0, 0))
        for offset, position in expected[:: max(1, len(expected) // 5)]:
            assert index.lookup(offset) == (offset, position)
    index.trim()
    reopened = OffsetIndex(path, 0, 1 << 20, os.path.getsize(path))
    assert [reopened.entry(n) for n in range(reopened.entries)] == expected
    index.close()
    reopened.close()


@pytest.mark.parametrize("size", [7, 12])
def test_a_length_that_is_no_multiple_of_an_entry_is_corrupt(tmp_path: Path, size: int) -> None:
    path = tmp_path / "i"
    path.write_bytes(bytes(size))
    with pytest.raises(CorruptIndexError):
        OffsetIndex(str(path), 0, 1024, size).check()


def test_a_time_index_whose_last_entry_is_not_the_largest_is_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes(struct.pack(">qIqI", 500, 1, 0, 0))
    with pytest.raises(CorruptIndexError):
        TimeIndex(str(path), 0, 1024, 24).check()


def test_an_aborted_transaction_takes_34_bytes(tmp_path: Path) -> None:
    index = TransactionIndex(str(tmp_path / "x.txnindex"), 0)
    assert not Path(index.path).exists()
    index.append(AbortedTxn(7, 10, 20, 15))
    assert Path(index.path).read_bytes() == struct.pack(">hqqqq", 0, 7, 10, 20, 15)


def test_aborted_transactions_are_found_where_they_overlap(tmp_path: Path) -> None:
    path = str(tmp_path / "x.txnindex")
    TransactionIndex(path, 0).append(AbortedTxn(1, 0, 10, 5), AbortedTxn(2, 5, 20, 12), AbortedTxn(1, 12, 30, 31))
    index = TransactionIndex(path, 0, exists=True)
    assert index.aborted_between(0, 11) == ([AbortedTxn(1, 0, 10, 5), AbortedTxn(2, 5, 20, 12)], True)
    assert index.aborted_between(0, 5) == ([AbortedTxn(1, 0, 10, 5)], True)
    assert [t.last_offset for t in index.aborted_between(11, 12)[0]] == [20]
    assert [t.last_offset for t in index.aborted_between(0, 40)[0]] == [10, 20, 30]
    assert index.aborted_between(0, 40)[1] is False
    index.truncate_to(20)
    assert [t.last_offset for t in index.entries] == [10]
    assert os.path.getsize(path) == 34


def test_a_transaction_index_that_ends_in_the_middle_of_an_entry_is_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "x.txnindex"
    path.write_bytes(bytes(40))
    with pytest.raises(CorruptIndexError):
        TransactionIndex(str(path), 0, exists=True).check()


def test_a_failed_append_leaves_the_transaction_index_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = TransactionIndex(str(tmp_path / "x.txnindex"), 0)
    index.append(AbortedTxn(1, 0, 10, 11))
    real = os.pwrite
    calls = []

    def half(fd: int, data: memoryview, position: int) -> int:
        calls.append(position)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, bytes(data)[:10], position)

    monkeypatch.setattr(os, "pwrite", half)
    with pytest.raises(OSError, match="No space"):
        index.append(AbortedTxn(2, 12, 20, 21))
    assert os.path.getsize(index.path) == 34
    assert len(index.entries) == 1
