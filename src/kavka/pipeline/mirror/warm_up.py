"""A small query that makes the first query of a flow start fast.

The first streaming query of a Spark session loads the classes of the JVM and starts a Python
process for each kind of work: planning, reading, writing and committing. On two busy cores that
takes more than ten seconds. A process that waits for flows runs this query of one row beforehand.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from kavka.pipeline.mirror.source import SCHEMA, row_of
from kavka.pipeline.spark import activate
from kavka.pipeline.spark.offsets import Range

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

_FORMAT = "kavka-mirror-warm-up"


class WarmUpSource(DataSource):
    """Reads one row, and discards rows."""

    @classmethod
    def name(cls) -> str:
        return _FORMAT

    def schema(self) -> StructType:
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _Reader()

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return _Writer()


class _Reader(DataSourceStreamReader):
    def initialOffset(self) -> dict[str, Any]:
        return {"row": 0}

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:
        return {"row": 1}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield row_of(Range("topic", 0, 0, 1), "topic")


class _Writer(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        # The modules of the sink.
        import kavka.pipeline.mirror.sink  # noqa: F401

        for _ in iterator:
            pass
        return WriterCommitMessage()


def warm_up(spark: SparkSession) -> None:
    """Run the query. A failure is logged: flows then start slowly, or show the error."""
    folder = tempfile.mkdtemp(prefix="kavka-mirror-")
    try:
        activate(spark)
        spark.dataSource.register(WarmUpSource)
        rows = spark.readStream.format(_FORMAT).load()
        query = rows.writeStream.format(_FORMAT).option("checkpointLocation", folder).start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()
    except Exception as error:
        logger.warning("The warm-up of Spark failed: %s", str(error).splitlines()[0])
    finally:
        shutil.rmtree(folder, ignore_errors=True)
