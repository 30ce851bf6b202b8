"""The Spark data source `kavka-lines`: the lines of ranges of files, one per row. Tasks read the
files into Arrow columns.

As a sink it sends lines to a topic. A row is the number of a piece of the files. The task that
processes the row reads the piece and sends its lines, so that Spark does not have to move lines
from one Python process to another.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter, InputPartition
from pyspark.sql.types import StringType, StructField, StructType

from kavka.pipeline.spark.text import as_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrameWriter, SparkSession

NAME = "kavka-lines"
# Small enough to stay in the processor's cache until it is split into lines.
BLOCK = 1 << 20
# Arrow's offsets of text are 32-bit integers.
_MAX_TEXT_BYTES = (1 << 31) - 1
_LINE_FEED = ord("\n")

Ranges = list[tuple[str, int, int]]
"""Path, first byte, byte after the last. A range starts at the beginning of a line."""


class Part(NamedTuple):
    """A part of a range, for one task: the lines that begin in [begin, end)."""

    path: str
    begin: int
    end: int
    is_line_start: bool
    """Whether a line begins at `begin`."""
    range_end: int


class Lines(DataSource):
    """The options are `ranges`, as JSON, and `tasks`, the maximum number of pieces. A single task
    keeps the order of lines. For writing, the options of the Spark sink `kavka` are added."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return StructType([StructField("value", StringType())])

    def reader(self, schema: StructType) -> DataSourceReader:
        return LinesReader(self._pieces())

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from kavka.pipeline.connect.connectors.lines_sink import LinesWriter
        from kavka.pipeline.spark.options import sink_options

        options = {name: value for name, value in self.options.items() if name.lower() not in ("ranges", "tasks")}
        return LinesWriter(sink_options(options), self._pieces())

    def _pieces(self) -> list[list[Part]]:
        ranges = [(path, begin, end) for path, begin, end in json.loads(self.options["ranges"])]
        return split_ranges(ranges, int(self.options.get("tasks", "1")))


class Piece(InputPartition):
    """The parts that a task reads."""

    def __init__(self, parts: list[Part]) -> None:
        self.parts = parts


class LinesReader(DataSourceReader):
    """Reads the lines of the pieces, one piece per task."""

    def __init__(self, pieces: list[list[Part]]) -> None:
        self._pieces = pieces

    def partitions(self) -> Sequence[InputPartition]:
        return [Piece(parts) for parts in self._pieces]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Piece)
        return rows_of(partition.parts)


def sender(spark: SparkSession, ranges: Ranges, tasks: int) -> DataFrameWriter:
    """Returns a writer that sends the lines of the ranges. The caller adds the options of the Spark
    sink `kavka`. The same arguments always give the same pieces, so a repeated task sends the same
    lines again."""
    count = len(split_ranges(ranges, tasks))
    rows = spark.range(0, count, 1, max(1, count))
    return rows.write.format(NAME).option("ranges", json.dumps(ranges)).option("tasks", str(tasks))


def rows_of(parts: Iterable[Part]) -> Iterator[pa.RecordBatch]:
    for part in parts:
        for column in read(part):
            yield pa.RecordBatch.from_arrays([column], names=["value"])


def split_ranges(ranges: Ranges, tasks: int) -> list[list[Part]]:
    """Splits ranges into at most `tasks` pieces of equal size, in order."""
    total = sum(end - begin for _, begin, end in ranges)
    share = max(1, -(-total // max(1, tasks)))
    pieces: list[list[Part]] = [[]]
    remaining = share
    for path, begin, end in ranges:
        position = begin
        while position < end:
            if not remaining:
                pieces.append([])
                remaining = share
            size = min(remaining, end - position)
            pieces[-1].append(Part(path, position, position + size, position == begin, end))
            position += size
            remaining -= size
    return [piece for piece in pieces if piece]


def read(part: Part, block: int = BLOCK) -> Iterator[pa.Array]:
    """Yields columns of the part's lines. The last line may end after the part. Raises EOFError if
    the file was truncated."""
    path, begin, end, is_line_start, range_end = part
    with open(path, "rb") as file:
        position = begin
        if not is_line_start:
            # The line that crosses `begin` belongs to the previous piece.
            file.seek(begin - 1)
            position = begin - 1 + len(_read_line(file, range_end - begin + 1))
        file.seek(position)
        line_start = b""
        while position < end:
            data = file.read(min(block, end - position))
            if not data:
                raise EOFError(f"{path} ends at {position}, before the expected end {end}: it was truncated")
            position += len(data)
            last = data.rfind(b"\n")
            if last < 0:
                line_start += data
                continue
            yield _split(line_start + data[: last + 1])
            line_start = data[last + 1 :]
        if line_start:
            yield _split(line_start + _read_line(file, range_end - end))


def _read_line(file: BinaryIO, limit: int) -> bytes:
    """Reads to the end of the line, at most `limit` bytes."""
    return file.readline(limit) if limit > 0 else b""


def _split(data: bytes) -> pa.Array:
    """Returns a column of the lines, which end with \\n or \\r\\n, except perhaps the last line.
    Invalid UTF-8 becomes U+FFFD."""
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n")
    if not data.endswith(b"\n"):
        data += b"\n"
    text = data.replace(b"\n", b"")
    if len(text) > _MAX_TEXT_BYTES:
        raise ValueError(f"a line of {len(text)} bytes exceeds the size of a record")
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == _LINE_FEED)
    offsets = np.zeros(len(ends) + 1, np.int32)
    # The text has no line feeds: the offset of a line is smaller by the number of lines before it.
    offsets[1:] = ends - np.arange(len(ends))
    return as_text(pa.Array.from_buffers(pa.binary(), len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(text)]))
