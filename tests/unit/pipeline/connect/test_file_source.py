"""Every line of growing, rotated and truncated files is read exactly once."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

from kavka.pipeline.connect.connectors import lines
from kavka.pipeline.connect.connectors.file_bookmarks import Bookmark, locate
from kavka.pipeline.connect.connectors.files import FileStreamSource, _next
from kavka.pipeline.connect.errors import ConnectError


class Reader:
    """Reads batches and continues at the last position, like the source."""

    def __init__(self, *paths: Path, max_bytes: int = 1 << 20) -> None:
        self.paths = list(paths)
        self.offsets: dict[str, dict[str, Any]] = {}
        self.max_bytes = max_bytes

    def next_batch(self) -> list[str] | None:
        end = _next(self.paths, self.offsets, self.max_bytes)
        if end is None:
            return None
        batch = []
        for name, offset in sorted(end.items()):
            if offset != self.offsets.get(name) and offset["begin"] != offset["position"]:
                bookmark = Bookmark.from_json(offset)
                path = locate(Path(name), bookmark)
                assert path is not None
                batch += read(path, bookmark.begin, bookmark.position)
        self.offsets = end
        return batch

    def read_all(self) -> list[str]:
        all_lines: list[str] = []
        while (batch := self.next_batch()) is not None:
            all_lines += batch
        return all_lines


def read(path: Path, begin: int, end: int, tasks: int = 1, block: int = lines.BLOCK) -> list[str]:
    parts = [part for piece in lines.split_ranges([(str(path), begin, end)], tasks) for part in piece]
    return [line for part in parts for column in lines.read(part, block) for line in column.to_pylist()]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "app.log"


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_only_complete_lines_are_read(log: Path) -> None:
    reader = Reader(log)
    assert reader.read_all() == []
    append(log, "one\ntwo\nthr")
    assert reader.read_all() == ["one", "two"]
    assert reader.read_all() == []
    append(log, "ee\n\nfour\n")
    assert reader.read_all() == ["three", "", "four"]


def test_a_rotated_file_is_read_to_its_end_before_the_new_one(log: Path) -> None:
    reader = Reader(log)
    append(log, "one\n")
    assert reader.read_all() == ["one"]
    append(log, "two\nlast without an end")
    log.rename(log.with_name("app.log.1"))
    assert reader.read_all() == ["two"]
    append(log, "three\n")
    assert reader.read_all() == ["last without an end", "three"]
    assert reader.read_all() == []


def test_a_new_file_is_read_after_the_old_one_was_deleted(log: Path) -> None:
    reader = Reader(log)
    append(log, "one\n")
    assert reader.read_all() == ["one"]
    log.unlink()
    assert reader.read_all() == []
    append(log, "two, and longer than before\n")
    assert reader.read_all() == ["two, and longer than before"]


def test_a_truncated_file_is_read_from_its_beginning(log: Path) -> None:
    reader = Reader(log)
    append(log, "one\ntwo\n")
    assert reader.read_all() == ["one", "two"]
    os.truncate(log, 0)
    assert reader.read_all() == []
    append(log, "new\n")
    assert reader.read_all() == ["new"]


def test_truncation_is_detected_by_the_first_bytes(log: Path) -> None:
    reader = Reader(log)
    append(log, "one\n")
    assert reader.read_all() == ["one"]
    os.truncate(log, 0)
    append(log, "other\nlines\n")
    assert reader.read_all() == ["other", "lines"]


def test_reading_continues_in_a_rewritten_file_with_the_same_start(log: Path) -> None:
    reader = Reader(log)
    append(log, "one\ntwo\n")
    assert reader.read_all() == ["one", "two"]
    rewritten = log.with_name("rewritten")
    append(rewritten, "one\ntwo\nthree\n")
    rewritten.replace(log)
    assert reader.read_all() == ["three"]


def test_a_position_set_by_a_user_applies_to_any_file(log: Path) -> None:
    append(log, "one\ntwo\n")
    reader = Reader(log)
    reader.offsets = {str(log): {"position": 4}}
    assert reader.read_all() == ["two"]


@pytest.mark.parametrize("offset", [{}, {"position": -1}, {"position": "4"}, {"position": 1, "inode": "x"}])
def test_invalid_offsets_are_rejected(offset: dict[str, Any]) -> None:
    with pytest.raises(ConnectError, match=r"^/a: "):
        FileStreamSource.check_offsets({"/a": offset})


def test_batches_have_about_the_configured_size(log: Path) -> None:
    reader = Reader(log, max_bytes=10)
    append(log, "12345\n12345\n" + "x" * 50 + "\n1\n")
    assert [reader.next_batch() for _ in range(5)] == [["12345"], ["12345"], ["x" * 50], ["1"], None]


def test_each_file_of_a_folder_has_its_own_position(tmp_path: Path) -> None:
    first, second = tmp_path / "a.log", tmp_path / "b.log"
    reader = Reader(first, second)
    append(first, "a1\n")
    append(second, "b1\n")
    assert reader.read_all() == ["a1", "b1"]
    append(second, "b2\n")
    assert reader.read_all() == ["b2"]


def test_a_file_renamed_within_the_folder_is_not_read_again(tmp_path: Path) -> None:
    first, other = tmp_path / "a.log", tmp_path / "a-1.log"
    reader = Reader(first)
    append(first, "one\n")
    assert reader.read_all() == ["one"]
    append(first, "two\n")
    first.rename(other)
    append(first, "three\n")
    reader.paths = [other, first]
    assert sorted(reader.read_all()) == ["three", "two"]
    append(other, "late\n")
    assert reader.read_all() == ["late"]


def test_a_file_renamed_out_of_the_pattern_is_read_to_its_end(tmp_path: Path) -> None:
    first, other = tmp_path / "a.log", tmp_path / "b.log"
    reader = Reader(first, other)
    append(first, "one\n")
    assert reader.read_all() == ["one"]
    append(first, "two\n")
    first.rename(tmp_path / "a.log.1")
    append(other, "b\n")
    reader.paths = [other]
    assert sorted(reader.read_all()) == ["b", "two"]
    append(first, "three\n")
    reader.paths = [first, other]
    assert reader.read_all() == ["three"]


@pytest.mark.parametrize("seed", range(20))
def test_every_line_is_read_once_for_any_number_of_tasks_and_block_size(log: Path, seed: int) -> None:
    rng = random.Random(seed)
    expected = ["é" * rng.choice([0, 1, 3, 40]) + str(number) for number in range(rng.randint(1, 60))]
    ending = rng.choice(["\n", "\r\n"])
    log.write_bytes("".join(line + ending for line in expected).encode())
    size = log.stat().st_size
    for tasks in (1, 2, 3, 7, size):
        assert read(log, 0, size, tasks, rng.choice([1 << 20, 64])) == expected


def test_invalid_utf8_is_replaced(log: Path) -> None:
    log.write_bytes(b"good\nb\xffd\n")
    assert read(log, 0, log.stat().st_size) == ["good", "b�d"]


def test_a_carriage_return_ends_a_line_only_before_a_line_feed(log: Path) -> None:
    log.write_bytes(b"a\rb\r\n\r\n\n\r\r\nlast\r")
    assert read(log, 0, log.stat().st_size) == ["a\rb", "", "", "\r", "last\r"]
