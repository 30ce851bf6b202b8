"""Spark's data source `kavka-lines`: ranges of files as rows of one line each. Reading is done by tasks, in Arrow.

Written to, it sends lines to a topic: a row is the number of a piece of the files, and the task that is given it reads
the piece and sends its lines. They do not go through Spark then, from one Python process to another.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter, InputPartition
from pyspark.sql.types import StringType, StructField, StructType

from kavka.pipeline.spark.text import as_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrameWriter, SparkSession

NAME = "kavka-lines"
# What is read at once stays in a processor's cache until it is lines.
BLOCK = 1 << 20
_LARGEST = (1 << 31) - 1
_END = ord("\n")

Ranges = list[tuple[str, int, int]]
"""Path, first byte, byte after the last. A range begins at the beginning of a line."""
Part = tuple[str, int, int, bool, int]
"""Of a file, for one task: path, begin, end, whether `begin` is that of a line, where the file's range ends. It has the
lines that begin in [begin, end)."""


class Lines(DataSource):
    """Options: `ranges`, as JSON; `tasks`: into how many parts, at most, all of it is cut. One task keeps the order.
    For writing, those of the sink `kavka`, too."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return StructType([StructField("value", StringType())])

    def reader(self, schema: StructType) -> DataSourceReader:
        return LinesReader(self._pieces())

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from kavka.pipeline.connect.connectors.sending import LinesWriter
        from kavka.pipeline.spark.options import sink_options

        own = ("ranges", "tasks")
        options = {name: value for name, value in self.options.items() if name.lower() not in own}
        return LinesWriter(sink_options(options), self._pieces())

    def _pieces(self) -> list[list[Part]]:
        ranges = [(path, begin, end) for path, begin, end in json.loads(self.options["ranges"])]
        return cut(ranges, int(self.options.get("tasks", "1")))


class Piece(InputPartition):
    """What a task reads."""

    def __init__(self, parts: list[Part]) -> None:
        self.parts = parts


class LinesReader(DataSourceReader):
    def __init__(self, pieces: list[list[Part]]) -> None:
        self._pieces = pieces

    def partitions(self) -> Sequence[InputPartition]:
        return [Piece(parts) for parts in self._pieces]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Piece)
        return rows_of(partition.parts)


def sender(spark: SparkSession, ranges: Ranges, tasks: int) -> DataFrameWriter:
    """Sends the lines when it is given the options of the sink `kavka`. Piece by piece, and so task by task, it is the
    same for the same arguments."""
    count = len(cut(ranges, tasks))
    rows = spark.range(0, count, 1, max(1, count))
    return rows.write.format(NAME).option("ranges", json.dumps(ranges)).option("tasks", str(tasks))


def rows_of(parts: Iterable[Part]) -> Iterator[pa.RecordBatch]:
    for part in parts:
        for column in read(*part):
            yield pa.RecordBatch.from_arrays([column], names=["value"])


def cut(ranges: Ranges, tasks: int) -> list[list[Part]]:
    """Into at most so many parts of the same size, in order."""
    total = sum(end - begin for _, begin, end in ranges)
    share = max(1, -(-total // max(1, tasks)))
    pieces: list[list[Part]] = [[]]
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
    """Lines end with \\n or \\r\\n, the last one perhaps with nothing. What is not UTF-8 is replaced by U+FFFD."""
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n")
    if not data.endswith(b"\n"):
        data += b"\n"
    text = data.replace(b"\n", b"")
    if len(text) > _LARGEST:
        raise ValueError(f"a line of {len(text)} bytes is more than a record can be")
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == _END)
    offsets = np.zeros(len(ends) + 1, np.int32)
    # Before the end of a line there are as many ends fewer in the text as there are lines before it.
    offsets[1:] = ends - np.arange(len(ends))
    return as_text(pa.Array.from_buffers(pa.binary(), len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(text)]))
