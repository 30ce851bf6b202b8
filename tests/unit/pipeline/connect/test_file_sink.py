"""The file that a sink appends to: a batch counts once, whatever was there of it before."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from kavka.pipeline.connect.connectors.file_sink import Target, write_part
from kavka.pipeline.connect.errors import ConnectError


def write(target: Target, query: str, batch: int, *lines: str) -> None:
    target.begin(query, batch)
    task = write_part(str(target.parts))
    batches = [pa.RecordBatch.from_pydict({"value": pa.array(list(lines), pa.string())})]
    target.append([path for one in task(iter(batches)) for path in one.column("part").to_pylist()])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out.txt"


def test_batches_are_appended_to_what_is_there(path: Path) -> None:
    path.write_text("before\n")
    write(Target(path), "q", 0, "a", "é")
    write(Target(path), "q", 1)
    write(Target(path), "q", 2, "c")
    assert path.read_text() == "before\na\né\nc\n"


@pytest.mark.parametrize("torn", ["", "b", "b\n", "b\nc\n"])
def test_a_batch_written_again_takes_the_place_of_what_there_is_of_it(path: Path, torn: str) -> None:
    write(Target(path), "q", 0, "a")
    Target(path).begin("q", 1)
    with path.open("a") as file:
        file.write(torn)
    write(Target(path), "q", 1, "b", "c")
    assert path.read_text() == "a\nb\nc\n"


def test_the_same_number_of_another_query_is_another_batch(path: Path) -> None:
    write(Target(path), "q", 0, "a")
    write(Target(path), "other", 0, "b")
    assert path.read_text() == "a\nb\n"


def test_a_file_that_somebody_has_cut_is_not_filled_up(path: Path) -> None:
    write(Target(path), "q", 0, "a long line that is there")
    Target(path).begin("q", 1)
    path.write_text("")
    write(Target(path), "q", 1, "b")
    assert path.read_text() == "b\n"


def test_a_slice_of_a_column_is_written_as_it_is(path: Path) -> None:
    target = Target(path)
    target.begin("q", 0)
    column = pa.array(["a", "b", "c", "d"]).slice(1, 2)
    found = list(write_part(str(target.parts))(iter([pa.RecordBatch.from_arrays([column], ["value"])])))
    target.append(found[0].column("part").to_pylist())
    assert path.read_text() == "b\nc\n"


def test_a_part_that_a_task_has_written_elsewhere_is_missed(path: Path) -> None:
    target = Target(path)
    target.begin("q", 0)
    with pytest.raises(ConnectError, match="on this machine"):
        target.append([str(target.parts / "nowhere")])


def test_a_damaged_note_is_an_error(path: Path) -> None:
    target = Target(path)
    target.begin("q", 0)
    (target.folder / "state").write_text("{")
    with pytest.raises(ConnectError, match="damaged"):
        target.begin("q", 1)
