"""The Spark data source `kavka-mirror`, which plans the ranges of a flow and commits its offsets. A
row is the range of a task.

The records do not pass through Spark, which would copy each record four times. The task that writes
a range fetches its records (`sink.py`).

A flow reads a partition if the filters include its topic and the target has the same partition.
`topics.py` creates the topics and partitions of the target.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
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
from kavka.pipeline.spark.errors import concise_errors
from kavka.pipeline.spark.fencing import Claim, check
from kavka.pipeline.spark.offsets import Offsets, Range, ids_of
from kavka.pipeline.spark.options import EARLIEST, LATEST, SourceOptions, source_options
from kavka.pipeline.spark.source import KavkaStreamReader, OffsetRange

FORMAT = "kavka-mirror"
# `range` is the range as text. The exactly-once sink compares its size when a task runs again.
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
# Seconds. A refresh sends requests to both clusters, and the partitions rarely change.
_REFRESH_INTERVAL = 5.0


def read_options(flow: Flow) -> SourceOptions:
    """Return the flow as options of the source. Records that were deleted before they were read are
    skipped with a warning. A mirror that failed because of them would fail again after a
    restart."""
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
    """The data source of the mirror. The option `flow` is the flow as JSON, `claim` the claim of a
    flow that several processes share."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        with concise_errors():
            return MirrorStreamReader(Flow.from_json(self.options["flow"]), self.options.get("claim") or None)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        with concise_errors():
            from kavka.pipeline.mirror.sink import MirrorStreamWriter

            return MirrorStreamWriter(Flow.from_json(self.options["flow"]))


class MirrorStreamReader(KavkaStreamReader):
    """Plans ranges instead of reading records, and starts at the flow's committed offsets."""

    def __init__(self, flow: Flow, claim: str | None = None) -> None:
        super().__init__(replace(read_options(flow), driver_claim=claim))
        self._flow = flow

    def __reduce__(self) -> tuple[Any, ...]:
        return MirrorStreamReader, (self._flow,)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        ranges = super().partitions(start, end)
        with concise_errors():
            offsets = [part.offsets for part in ranges if isinstance(part, OffsetRange)]
            return [MirrorRange(item, self._flow.remote_topic(item.topic)) for item in offsets]

    def connect(self) -> SourceCluster:
        return MirrorCluster(self._options, self._flow)

    def starting_offsets(self, partitions: Collection[TopicPartition]) -> Offsets:
        """Return the committed offsets of the flow. A partition without a committed offset starts
        at `Flow.reset`."""
        cluster = self.cluster
        committed = cluster.admin.list_consumer_group_offsets(self._flow.group, partitions) if partitions else {}
        log_starts, ends = cluster.earliest(partitions), cluster.latest(partitions)
        reset = EARLIEST if self._flow.reset == "earliest" else LATEST
        uncommitted = [tp for tp in partitions if committed.get(tp) is None]
        offsets = dict(cluster.resolve(reset, uncommitted, "startingOffsets")) if uncommitted else {}
        for tp, commit in committed.items():
            if commit is not None:
                # An offset beyond the end shows that the topic was recreated.
                offsets[tp] = max(commit.offset, log_starts[tp]) if commit.offset <= ends[tp] else log_starts[tp]
        return offsets

    def restart_offset(self, tp: TopicPartition, end: int) -> int:
        return self.cluster.earliest([tp])[tp]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with concise_errors():
            if isinstance(partition, MirrorRange):
                yield row_of(partition.offsets, partition.remote)

    def stop(self) -> None:
        cluster = self._cluster
        super().stop()
        if isinstance(cluster, MirrorCluster):
            cluster.close_target()


class MirrorRange(OffsetRange):
    """A range with the name of its topic in the target. The driver decides on the name, so that
    executors do not need the module of a custom policy."""

    def __init__(self, offsets: Range, remote: str) -> None:
        super().__init__(offsets)
        self.remote = remote


def row_of(offsets: Range, remote: str) -> pa.RecordBatch:
    columns: list[tuple[Any, pa.DataType]] = [
        (offsets.topic, pa.string()),
        (remote, pa.string()),
        (offsets.partition, pa.int32()),
        (offsets.start, pa.int64()),
        (offsets.end, pa.int64()),
        (f"{offsets.tp} {offsets.start} {offsets.end}".encode(), pa.binary()),
    ]
    return pa.RecordBatch.from_arrays([pa.array([value], kind) for value, kind in columns], names=SCHEMA.names)


class MirrorCluster(SourceCluster):
    """The source cluster, restricted to the flow's topics and the partitions that the target
    has."""

    def __init__(self, options: SourceOptions, flow: Flow) -> None:
        super().__init__(options)
        self._flow = flow
        self._target: Admin | None = None
        self.refresh_interval = min(_REFRESH_INTERVAL, max(0.2, flow.refresh_topics))

    def close_target(self) -> None:
        if self._target is not None:
            self._target.close()
            self._target = None

    @property
    def target(self) -> Admin:
        if self._target is None:
            self._target = Admin(dict(self._flow.target_admin))
        return self._target

    def check_claim(self, claim: Claim) -> None:
        """Raise Fenced if another process has claimed the flow. Claims are in the target, where the
        mirror may write."""
        self._with_retries("checking for another process", lambda: check(self.target, claim))

    def find_partitions(self, missing_is_empty: bool) -> list[TopicPartition]:
        flow = self._flow
        remote = {flow.remote_topic(name): name for name in self.admin.list_topics() if flow.mirrors(name)}
        target_counts = {
            remote[name]: len(topic.partitions) for name, topic in describe_existing(self.target, list(remote)).items()
        }
        topics = describe_existing(self.admin, list(target_counts))
        self.topic_ids = ids_of(topics.values())
        return sorted(
            TopicPartition(name, partition.partition)
            for name, topic in topics.items()
            for partition in topic.partitions
            if partition.partition < target_counts[name]
        )


def describe_existing(admin: Admin, topics: Collection[str]) -> dict[str, TopicDescription]:
    """Return the descriptions of those topics that exist."""
    if not topics:
        return {}
    try:
        descriptions = admin.describe_topics(topics)
    except AdminError as error:
        if any(cause.code not in _MISSING for cause in error.errors.values()):
            raise
        descriptions = error.results
    return {str(name): topic for name, topic in descriptions.items()}
