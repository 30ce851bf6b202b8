"""The writer of `kavka-lines`: its tasks read lines of files and send them to a topic."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from kavka.pipeline.connect.connectors.lines import Part, rows_of
from kavka.pipeline.spark.options import SinkOptions
from kavka.pipeline.spark.rows import Layout
from kavka.pipeline.spark.sink import KavkaWriter


class LinesWriter(KavkaWriter):
    """The Spark sink `kavka` for lines of files: its rows are the numbers of the pieces to send."""

    def __init__(self, options: SinkOptions, pieces: list[list[Part]]) -> None:
        super().__init__(options, Layout(options.topic, value=0))
        self._pieces = pieces

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return super().write(self._lines(iterator))

    def _lines(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in rows:
            for number in batch.column(0).to_pylist():
                yield from rows_of(self._pieces[number])
