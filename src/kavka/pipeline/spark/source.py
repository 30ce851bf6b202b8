"""The data source `kavka` for Spark."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from kavka.client.types import OffsetAndMetadata
from kavka.common.errors import KafkaError
from kavka.common.types import TopicPartition
from kavka.jobs import INITIAL
from kavka.pipeline.spark.cluster import SourceCluster
from kavka.pipeline.spark.errors import DataLoss, OptionError, one_clear_line
from kavka.pipeline.spark.offsets import (
    DONE_BY_JOB,
    TOPIC_IDS,
    Offsets,
    Range,
    TopicIds,
    count,
    from_checkpoint,
    limited,
    plan,
    recreated,
    to_checkpoint,
)
from kavka.pipeline.spark.options import SinkOptions, SourceOptions, sink_options, source_options, text_columns

if TYPE_CHECKING:
    from kavka.pipeline.spark.rows import Layout

log = logging.getLogger(__name__)

_COMMIT_TIMEOUT = 5.0
_PAUSE = 0.02

_FIELDS = [
    StructField("topic", StringType()),
    StructField("partition", IntegerType()),
    StructField("offset", LongType()),
    StructField("timestamp", TimestampType()),
    StructField("timestampType", IntegerType()),
]
_HEADERS = StructField(
    "headers", ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
)


def schema_of(include_headers: bool, text: Collection[str]) -> StructType:
    """`text`: which of key and value are text."""
    sides = [StructField(name, StringType() if name in text else BinaryType()) for name in ("key", "value")]
    return StructType([*sides, *_FIELDS, _HEADERS] if include_headers else [*sides, *_FIELDS])


class KavkaDataSource(DataSource):
    """What `spark.read.format("kavka")` and its like stand for. Spark makes it anew wherever it needs it, and pickles
    it: it holds nothing but the options."""

    @classmethod
    def name(cls) -> str:
        return "kavka"

    def schema(self) -> StructType:
        with one_clear_line():
            headers = self.options.get("includeHeaders", "false").strip().lower() == "true"
            return schema_of(headers, text_columns(self.options.get("textColumns")))

    def reader(self, schema: StructType) -> DataSourceReader:
        with one_clear_line():
            options = source_options(self.options, streaming=False)
            _check_schema(schema, options)
            return KavkaReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        with one_clear_line():
            options = source_options(self.options, streaming=True)
            _check_schema(schema, options)
            return KavkaStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        with one_clear_line():
            from kavka.pipeline.spark.sink import KavkaWriter

            if overwrite:
                raise OptionError("a topic cannot be overwritten: write with .mode('append')")
            return KavkaWriter(*self._sink(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        with one_clear_line():
            from kavka.pipeline.spark.sink import KavkaStreamWriter

            return KavkaStreamWriter(*self._sink(schema))

    def _sink(self, schema: StructType) -> tuple[SinkOptions, Layout]:
        from kavka.pipeline.spark.rows import layout

        options = sink_options(self.options)
        columns = [(one.name, one.dataType.simpleString()) for one in schema.fields]
        return options, layout(columns, options.topic, options.timestamp_column)


def _check_schema(schema: StructType, options: SourceOptions) -> None:
    if schema != schema_of(options.include_headers, options.text_columns):
        raise OptionError("the columns are given by the source: leave out .schema(…)")


class OffsetRange(InputPartition):
    """A range of offsets, for one task."""

    def __init__(self, wanted: Range) -> None:
        self.wanted = wanted


def _read(options: SourceOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    with one_clear_line():
        # Imported here: the driver's processes need no consumer.
        from kavka.pipeline.spark.reading import read

        if isinstance(partition, OffsetRange):
            yield from read(options, partition.wanted)


class KavkaReader(DataSourceReader):
    """A batch: from the starting to the ending offsets, as they are when Spark plans the read."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        with one_clear_line():
            options = self._options
            cluster = SourceCluster(options)
            try:
                partitions = cluster.partitions()
                start = cluster.resolve(options.starting, partitions, "startingOffsets")
                end = cluster.resolve(options.ending, partitions, "endingOffsets")
            finally:
                cluster.close()
            for tp in partitions:
                if end[tp] < start[tp]:
                    raise OptionError(f"endingOffsets of {tp} ({end[tp]}) is before startingOffsets ({start[tp]})")
            ranges = plan(start, end, options.min_partitions, options.max_records_per_partition)
            return [OffsetRange(one) for one in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, partition)


class KavkaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream. On the driver one object lives as long as the query runs, in a process of its own, and is called by one
    thread; tasks get a copy for `read` alone."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._cluster: SourceCluster | None = None
        self._initial: dict[str, Any] | None = None
        self._begun = False
        self._target: Offsets | None = None
        self._latest: Offsets | None = None
        self._committed: Offsets | None = None
        self._last_batch = time.monotonic()

    def __reduce__(self) -> tuple[Any, ...]:
        return KavkaStreamReader, (self._options,)

    @property
    def cluster(self) -> SourceCluster:
        if self._cluster is None:
            self._cluster = self.connect()
        return self._cluster

    def connect(self) -> SourceCluster:
        return SourceCluster(self._options)

    def initialOffset(self) -> dict[str, Any]:
        with one_clear_line():
            if self._initial is None:
                partitions = self.cluster.partitions()
                self._initial = self._with_ids(self.starting_offsets(partitions))
            return self._initial

    def starting_offsets(self, partitions: Collection[TopicPartition]) -> Offsets:
        return self.cluster.resolve(self._options.starting, partitions, "startingOffsets")

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_offsets is not None:
            return ReadMaxRows(self._options.max_offsets)
        if self._options.min_offsets is not None:
            return ReadMinRows(self._options.min_offsets)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        with one_clear_line():
            partitions = self.cluster.partitions(missing_is_empty=not self._options.fail_on_data_loss)
            self._target = self.cluster.latest(partitions)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        with one_clear_line():
            batch = self._next_batch(start, limit)
            # Spark asks only when everything before `start` is done, and as often as it triggers. Its `commit` comes
            # later: when there is a next batch. Before the first nothing is done, and the group may say where to begin.
            if start != self._initial:
                self._tell_group(start)
            # Exactly as it was given where nothing is new: anything else is a new batch to Spark.
            if batch is None:
                return start
            beginning, end = (None if offsets is None else self._with_ids(offsets) for offsets in batch)
            assert end is not None
            if start == self._initial and not self._begun:
                # The first batch, which Spark runs even if there is nothing in it.
                return {**end, INITIAL: beginning or start}
            if beginning is not None:
                return {**end, INITIAL: beginning}
            return start if end == {name: value for name, value in start.items() if name != INITIAL} else end

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self._latest is None else to_checkpoint(self._latest)

    def commit(self, end: dict[str, Any]) -> None:
        with one_clear_line():
            self._tell_group(end)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        with one_clear_line():
            self._begun = True
            if start == end:
                return []
            options = self._options
            begin, until = from_checkpoint(end.get(INITIAL, start)), from_checkpoint(end)
            begin = self._with_new_partitions(begin, until)
            for tp, offset in until.items():
                if offset < begin[tp]:
                    self._lost(f"{tp} ended at {begin[tp]} and ends at {offset} now: it was deleted and made again")
                    begin[tp] = self.begin_again(tp, offset)
            return [
                OffsetRange(one)
                for one in plan(begin, until, options.min_partitions, options.max_records_per_partition)
            ]

    def begin_again(self, tp: TopicPartition, end: int) -> int:
        """Where to go on in a partition that was made again and ends there now."""
        return end

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, partition)

    def stop(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    # --- inside

    def _with_ids(self, offsets: Offsets) -> dict[str, Any]:
        """Offsets for Spark's checkpoint, with which topics they are of."""
        topics = {tp.topic for tp in offsets}
        ids = {topic: found for topic, found in sorted(self.cluster.topic_ids.items()) if topic in topics}
        return {**to_checkpoint(offsets), TOPIC_IDS: ids} if ids else to_checkpoint(offsets)

    def _next_batch(self, start: dict[str, Any], limit: ReadLimit) -> tuple[Offsets | None, Offsets] | None:
        """Where the next batch begins, if that is not where the last one ended, and where it ends; None if there is to
        be none yet."""
        options, begin = self._options, from_checkpoint(start)
        latest = self._latest = self._ends(begin)
        again = self._recreated(start.get(TOPIC_IDS, {}), latest)
        for topic in sorted(again):
            self._lost_topic(topic)
        if self._target is not None:
            latest = {tp: self._target[tp] for tp in latest if tp in self._target}
        elif latest == begin:
            # Spark asks again at once. A stream that waits shall not keep a core busy with that.
            time.sleep(_PAUSE)
        gone = sorted(set(begin) - set(latest))
        if gone:
            self._lost(f"partitions are gone: {', '.join(map(str, gone))}")
        full_begin = self._with_new_partitions(begin, latest)
        if again:
            # Nothing that is in the new topic was read yet.
            full_begin |= self.cluster.earliest([tp for tp in latest if tp.topic in again])
        beginning = full_begin if again else None
        if isinstance(limit, ReadAllAvailable):
            return beginning, latest
        waiting = count(full_begin, latest)
        if self._too_little(waiting):
            return None
        self._last_batch = time.monotonic()
        most = options.max_offsets
        return beginning, latest if most is None else limited(full_begin, latest, most)

    def _recreated(self, before: TopicIds, partitions: Collection[TopicPartition]) -> set[str]:
        """Topics that were created again since. Where only epochs tell it, the leaders have to confirm it."""
        again = recreated(before, self.cluster.topic_ids)
        doubtful = {topic for topic in again if not isinstance(before[topic], str)}
        if not doubtful:
            return again
        epochs = self.cluster.leader_epochs([tp for tp in partitions if tp.topic in doubtful])
        return again - doubtful | recreated(before, epochs)

    def _ends(self, begin: Offsets) -> dict[TopicPartition, int]:
        """Where partitions end now. An end that went back says that a topic was created again: then its id is new."""
        missing = not self._options.fail_on_data_loss
        latest = self.cluster.ends(missing_is_empty=missing)
        if any(latest[tp] < offset for tp, offset in begin.items() if tp in latest):
            self.cluster.look_again()
            latest = self.cluster.ends(missing_is_empty=missing)
        return latest

    def _too_little(self, waiting: int) -> bool:
        least = self._options.min_offsets
        if least is None or self._target is not None or waiting >= least:
            return False
        return time.monotonic() - self._last_batch < self._options.max_delay

    def _with_new_partitions(self, begin: Offsets, end: Offsets) -> dict[TopicPartition, int]:
        """A partition that was not there in the last batch is read from its beginning."""
        new = [tp for tp in end if tp not in begin]
        if not new:
            return dict(begin)
        first = self.cluster.earliest(new)
        for tp, offset in sorted(first.items()):
            if offset > 0:
                self._lost(f"{tp} is new and begins at offset {offset}: offsets 0 to {offset - 1} are gone")
        return {**begin, **first}

    def _tell_group(self, done: dict[str, Any]) -> None:
        """Commit what is done to the group that the user wants to see it in. It is for others to look at: that it fails
        is no reason to stop. Offsets of a topic that was created again since mean nothing in the new one."""
        group = self._options.group_to_commit
        if group is None:
            return
        again = recreated(done.get(TOPIC_IDS, {}), self.cluster.topic_ids)
        offsets = {tp: offset for tp, offset in from_checkpoint(done).items() if tp.topic not in again}
        if offsets == self._committed or not offsets:
            return
        try:
            told = {tp: OffsetAndMetadata(offset, DONE_BY_JOB) for tp, offset in offsets.items()}
            self.cluster.admin.alter_consumer_group_offsets(group, told, timeout=_COMMIT_TIMEOUT)
            self._committed = offsets
        except KafkaError as error:
            log.warning("The offsets were not committed to the group %s: %s", group, error)

    def _lost(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLoss(f"{what} (failOnDataLoss=false goes on without them)")
        log.warning("%s; going on without them", what)

    def _lost_topic(self, topic: str) -> None:
        what = f"topic {topic} was deleted and created again since it was last read"
        if self._options.fail_on_data_loss:
            raise DataLoss(f"{what} (failOnDataLoss=false goes on at the beginning of the new one)")
        log.warning("%s; going on at the beginning of the new one", what)
