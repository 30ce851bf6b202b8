"""What a flow reads: the data source `kavka-mirror` for Spark. A row is a stretch of a partition, one for each task.

The records themselves do not come through Spark, which would copy each of them four times and do nothing with them: the
task that writes a stretch fetches it (`sink.py`). What is read when, and what is done, is decided here as for every
source of ours.

Which topics are read follows the filters of the flow, and what there is in the target: a partition is read from when
its counterpart is there. Who makes the counterparts is `topics.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, DataSourceStreamWriter, InputPartition
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from kavka.client.admin import Admin
from kavka.client.admin.base import AdminError
from kavka.client.admin.types import TopicDescription
from kavka.common.errors import ErrorCode
from kavka.common.types import TopicPartition
from kavka.pipeline.mirror.flow import Flow
from kavka.pipeline.spark.cluster import SourceCluster
from kavka.pipeline.spark.errors import one_clear_line
from kavka.pipeline.spark.offsets import Offsets, Range, ids_of
from kavka.pipeline.spark.options import EARLIEST, LATEST, SourceOptions, source_options
from kavka.pipeline.spark.source import KavkaStreamReader, OffsetRange

FORMAT = "kavka-mirror"
# `range` is what the row stands for, as text: what a task that is run again is compared by.
SCHEMA = StructType(
    [
        StructField("source", StringType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("first", LongType()),
        StructField("end", LongType()),
        StructField("range", BinaryType()),
    ]
)
_MISSING = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
# Looking is a question to each cluster, and most of the time there is nothing new.
_LOOK = 5.0


def read_options(flow: Flow) -> SourceOptions:
    """The flow as options of the source. What is gone from the source before it was read is told, and passed over: a
    mirror that stops for it would never catch up."""
    return source_options(
        {
            **{f"kafka.{name}": value for name, value in flow.consumer.items()},
            "subscribePattern": ".*",
            "failOnDataLoss": "false",
            "maxOffsetsPerTrigger": str(flow.records_per_batch),
            "groupIdCommit": flow.group,
            "fetchOffset.numRetries": "30",
        },
        streaming=True,
    )


class MirrorDataSource(DataSource):
    """Its one option, `flow`, is the flow as JSON. Spark makes it anew wherever it needs it."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        with one_clear_line():
            return MirrorStreamReader(Flow.from_json(self.options["flow"]))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        with one_clear_line():
            from kavka.pipeline.mirror.sink import MirrorStreamWriter

            return MirrorStreamWriter(Flow.from_json(self.options["flow"]))


class MirrorStreamReader(KavkaStreamReader):
    def __init__(self, flow: Flow) -> None:
        super().__init__(read_options(flow))
        self._flow = flow

    def __reduce__(self) -> tuple[Any, ...]:
        return MirrorStreamReader, (self._flow,)

    def connect(self) -> SourceCluster:
        return MirrorCluster(self._options, self._flow)

    def starting_offsets(self, partitions: Collection[TopicPartition]) -> Offsets:
        """Where the last run got to; what has no progress begins where the flow says."""
        cluster = self.cluster
        committed = cluster.admin.list_consumer_group_offsets(self._flow.group, partitions) if partitions else {}
        first, last = cluster.earliest(partitions), cluster.latest(partitions)
        reset = EARLIEST if self._flow.reset == "earliest" else LATEST
        new = [tp for tp in partitions if committed.get(tp) is None]
        found = dict(cluster.resolve(reset, new, "startingOffsets")) if new else {}
        for tp, done in committed.items():
            if done is not None:
                # Beyond the end: the topic was made again since.
                found[tp] = max(done.offset, first[tp]) if done.offset <= last[tp] else first[tp]
        return found

    def begin_again(self, tp: TopicPartition, end: int) -> int:
        return self.cluster.earliest([tp])[tp]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with one_clear_line():
            if isinstance(partition, OffsetRange):
                yield row_of(self._flow, partition.wanted)

    def stop(self) -> None:
        cluster = self._cluster
        super().stop()
        if isinstance(cluster, MirrorCluster):
            cluster.close_target()


def row_of(flow: Flow, wanted: Range) -> pa.RecordBatch:
    columns: list[tuple[Any, pa.DataType]] = [
        (wanted.topic, pa.string()),
        (flow.remote_topic(wanted.topic), pa.string()),
        (wanted.partition, pa.int32()),
        (wanted.start, pa.int64()),
        (wanted.end, pa.int64()),
        (f"{wanted.tp} {wanted.start} {wanted.end}".encode(), pa.binary()),
    ]
    return pa.RecordBatch.from_arrays([pa.array([value], kind) for value, kind in columns], names=SCHEMA.names)


class MirrorCluster(SourceCluster):
    """The source, seen through the flow: only what it wants, and what the target is ready for."""

    def __init__(self, options: SourceOptions, flow: Flow) -> None:
        super().__init__(options)
        self._flow = flow
        self._target: Admin | None = None
        self.look_for_partitions = min(_LOOK, max(0.2, flow.refresh_topics))

    def close_target(self) -> None:
        if self._target is not None:
            self._target.close()
            self._target = None

    def find_partitions(self, missing_is_empty: bool) -> list[TopicPartition]:
        flow = self._flow
        if self._target is None:
            self._target = Admin(dict(flow.target_admin))
        wanted = [name for name in self.admin.list_topics() if flow.wants_topic(name) and not flow.comes_back(name)]
        remote = {flow.remote_topic(name): name for name in wanted}
        ready = {remote[name]: len(topic.partitions) for name, topic in described(self._target, list(remote)).items()}
        found = described(self.admin, list(ready))
        self.topic_ids = ids_of(found.values())
        return sorted(
            TopicPartition(name, partition.partition)
            for name, topic in found.items()
            for partition in topic.partitions
            if partition.partition < ready[name]
        )


def described(admin: Admin, topics: Collection[str]) -> dict[str, TopicDescription]:
    """Of those topics that are there."""
    if not topics:
        return {}
    try:
        found = admin.describe_topics(topics)
    except AdminError as error:
        if any(why.code not in _MISSING for why in error.errors.values()):
            raise
        found = error.results
    return {str(name): topic for name, topic in found.items()}
