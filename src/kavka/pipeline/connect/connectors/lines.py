"""Spark's data source `kavka-lines`: ranges of files as rows of one line each. Reading is done by tasks, in Arrow."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StringType, StructField, StructType

NAME = "kavka-lines"
BLOCK = 4 << 20

Ranges = list[tuple[str, int, int]]
"""Path, first byte, byte after the last. A range begins at the beginning of a line."""


class Lines(DataSource):
    """Options: `ranges`, as JSON; `tasks`: into how many parts, at most, all of it is cut. One task keeps the order."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return StructType([StructField("value", StringType())])

    def reader(self, schema: StructType) -> DataSourceReader:
        ranges = [(path, begin, end) for path, begin, end in json.loads(self.options["ranges"])]
        return LinesReader(ranges, int(self.options.get("tasks", "1")))


class Piece(InputPartition):
    """What a task reads: the lines that begin in [begin, end) of each file. `until`: where the file's range ends."""

    def __init__(self, parts: list[tuple[str, int, int, bool, int]]) -> None:
        self.parts = parts


class LinesReader(DataSourceReader):
    def __init__(self, ranges: Ranges, tasks: int) -> None:
        self._ranges = ranges
        self._tasks = tasks

    def partitions(self) -> Sequence[InputPartition]:
        return [Piece(parts) for parts in cut(self._ranges, self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Piece)
        for path, begin, end, whole, until in partition.parts:
            for column in read(path, begin, end, whole, until):
                yield pa.RecordBatch.from_arrays([column], names=["value"])


def cut(ranges: Ranges, tasks: int) -> list[list[tuple[str, int, int, bool, int]]]:
    """Into at most so many parts of the same size, in order: (path, begin, end, whether `begin` is that of a line,
    where the range ends)."""
    total = sum(end - begin for _, begin, end in ranges)
    share = max(1, -(-total // max(1, tasks)))
    pieces: list[list[tuple[str, int, int, bool, int]]] = [[]]
    room = share
    for path, begin, end in ranges:
        at = begin
        while at < end:
            if not room:
                pieces.append([])
                room = share
            size = min(room, end - at)
            pieces[-1].append((path, at, at + size, at == begin, end))
            at += size
            room -= size
    return [piece for piece in pieces if piece]


def read(path: str, begin: int, end: int, whole: bool, until: int, block: int = BLOCK) -> Iterator[pa.Array]:
    """Columns of the lines that begin in [begin, end), a line that ends beyond it included."""
    with open(path, "rb") as file:
        at = begin
        if not whole:
            # The line that is under way here belongs to the piece before.
            file.seek(begin - 1)
            at = begin - 1 + len(_read_line(file, until - begin + 1))
        file.seek(at)
        left = b""
        while at < end:
            data = file.read(min(block, end - at))
            if not data:
                raise EOFError(f"{path} ends at {at}, and was to be read to {end}: it was cut")
            at += len(data)
            last = data.rfind(b"\n")
            if last < 0:
                left += data
                continue
            yield _split(left + data[: last + 1])
            left = data[last + 1 :]
        if left:
            yield _split(left + _read_line(file, until - end))


def _read_line(file: BinaryIO, most: int) -> bytes:
    """The rest of a line with its end, if that is within `most` bytes."""
    return file.readline(most) if most > 0 else b""


def _split(data: bytes) -> pa.Array:
    """Lines end with \\n or \\r\\n. What is not UTF-8 is replaced by U+FFFD."""
    if b"\r\n" in data:
        data = data.replace(b"\r\n", b"\n")
    if data.endswith(b"\n"):
        data = data[:-1]
    found = pc.split_pattern(pa.array([data], pa.binary()), pattern=b"\n").values
    try:
        return found.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([line.decode("utf-8", "replace") for line in found.to_pylist()], pa.string())
