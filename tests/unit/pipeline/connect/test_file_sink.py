"""The file sink applies each batch once, also after an incomplete attempt."""

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
    target.append([path for output in task(iter(batches)) for path in output.column("part").to_pylist()])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out.txt"


def test_batches_are_appended_to_the_file(path: Path) -> None:
    path.write_text("existing\n")
    write(Target(path), "q", 0, "a", "é")
    write(Target(path), "q", 1)
    write(Target(path), "q", 2, "c")
    assert path.read_text() == "existing\na\né\nc\n"


@pytest.mark.parametrize("incomplete", ["", "b", "b\n", "b\nc\n"])
def test_a_repeated_batch_replaces_its_incomplete_attempt(path: Path, incomplete: str) -> None:
    write(Target(path), "q", 0, "a")
    Target(path).begin("q", 1)
    with path.open("a") as file:
        file.write(incomplete)
    write(Target(path), "q", 1, "b", "c")
    assert path.read_text() == "a\nb\nc\n"


def test_batch_numbers_belong_to_a_query(path: Path) -> None:
    write(Target(path), "q", 0, "a")
    write(Target(path), "other", 0, "b")
    assert path.read_text() == "a\nb\n"


def test_a_file_truncated_by_others_is_not_padded(path: Path) -> None:
    write(Target(path), "q", 0, "a long line")
    Target(path).begin("q", 1)
    path.write_text("")
    write(Target(path), "q", 1, "b")
    assert path.read_text() == "b\n"


def test_a_slice_of_a_column_is_written(path: Path) -> None:
    target = Target(path)
    target.begin("q", 0)
    column = pa.array(["a", "b", "c", "d"]).slice(1, 2)
    outputs = list(write_part(str(target.parts))(iter([pa.RecordBatch.from_arrays([column], ["value"])])))
    target.append(outputs[0].column("part").to_pylist())
    assert path.read_text() == "b\nc\n"


def test_a_missing_part_is_an_error(path: Path) -> None:
    target = Target(path)
    target.begin("q", 0)
    with pytest.raises(ConnectError, match="on this machine"):
        target.append([str(target.parts / "nowhere")])


def test_a_corrupt_state_file_is_an_error(path: Path) -> None:
    target = Target(path)
    target.begin("q", 0)
    (target.folder / "state").write_text("{")
    with pytest.raises(ConnectError, match="corrupt"):
        target.begin("q", 1)
