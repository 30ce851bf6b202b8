"""The data source `kavka` for Spark."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
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
    DataType,
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
from kavka.pipeline.spark.errors import DataLoss, OptionError, concise_errors, no_reset
from kavka.pipeline.spark.fencing import Claim
from kavka.pipeline.spark.offsets import (
    DONE_BY_JOB,
    TASKS,
    TOPIC_IDS,
    Offsets,
    Range,
    TopicIds,
    count,
    from_checkpoint,
    limit_end_offsets,
    plan,
    plan_tasks,
    recreated,
    to_checkpoint,
)
from kavka.pipeline.spark.options import (
    SinkOptions,
    SourceOptions,
    column_formats,
    sink_options,
    source_options,
    text_columns,
)

if TYPE_CHECKING:
    from kavka.pipeline.spark.rows import Layout

logger = logging.getLogger(__name__)

_COMMIT_TIMEOUT = 5.0
_CHECK_INTERVAL = 1.0
_IDLE_PAUSE = 0.02
_NO_MAXIMUM = (1 << 63) - 1
# The default of max.message.bytes. So few records cannot exceed the maximum of bytes.
_LARGE_RECORD = 1024 * 1024

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


def schema_of(
    include_headers: bool, text: Collection[str], decoded: Mapping[str, DataType] | None = None
) -> StructType:
    """Return the columns of the source. `text` contains those of key and value that are strings,
    `decoded` the types of those that are decoded."""
    kinds: dict[str, DataType] = {name: StringType() if name in text else BinaryType() for name in ("key", "value")}
    fields = [StructField(name, kind) for name, kind in {**kinds, **(decoded or {})}.items()]
    return StructType([*fields, *_FIELDS, _HEADERS] if include_headers else [*fields, *_FIELDS])


class KavkaDataSource(DataSource):
    """The data source of `format("kavka")`. It has no state except the options, because Spark
    creates and pickles it in several processes."""

    @classmethod
    def name(cls) -> str:
        return "kavka"

    def schema(self) -> StructType:
        with concise_errors():
            headers = self.options.get("includeHeaders", "false").strip().lower() == "true"
            text = text_columns(self.options.get("textColumns"))
            names = {name.lower() for name in self.options}
            if not names & {"keyformat", "valueformat"}:
                return schema_of(headers, text)
            from kavka.pipeline.spark.decoding import make_decoder

            formats, registry = column_formats(self.options)
            decoded = {side: make_decoder(column, registry).kind for side, column in formats.items()}
            return schema_of(headers, text, decoded)

    def reader(self, schema: StructType) -> DataSourceReader:
        with concise_errors():
            return KavkaReader(_with_schema(source_options(self.options, streaming=False), schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        with concise_errors():
            return KavkaStreamReader(_with_schema(source_options(self.options, streaming=True), schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        with concise_errors():
            from kavka.pipeline.spark.sink import KavkaWriter

            if overwrite:
                raise OptionError("a topic cannot be overwritten: write with .mode('append')")
            return KavkaWriter(*self._sink(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        with concise_errors():
            from kavka.pipeline.spark.sink import KavkaStreamWriter

            return KavkaStreamWriter(*self._sink(schema))

    def _sink(self, schema: StructType) -> tuple[SinkOptions, Layout]:
        from kavka.pipeline.spark.rows import find_layout

        options = sink_options(self.options)
        columns = [(field.name, field.dataType.simpleString()) for field in schema.fields]
        return options, find_layout(columns, options.topic, options.timestamp_column)


def _with_schema(options: SourceOptions, schema: StructType) -> SourceOptions:
    """Return the options with the decoders of the columns that Spark expects."""
    decoders: dict[str, Any] = {}
    if options.formats and set(options.formats) <= set(schema.names):
        from kavka.pipeline.spark.decoding import make_decoder

        for side, column in options.formats.items():
            decoders[side] = make_decoder(column, options.registry, schema[side].dataType)
    decoded = {side: decoder.kind for side, decoder in decoders.items()}
    if schema != schema_of(options.include_headers, options.text_columns, decoded):
        raise OptionError("the source defines the columns: remove .schema(…)")
    return replace(options, decoders=decoders)


class OffsetRange(InputPartition):
    """A range of offsets, for one task."""

    def __init__(self, offsets: Range) -> None:
        self.offsets = offsets


class TaskRanges(InputPartition):
    """The ranges of several partitions, which one task reads one after the other."""

    def __init__(self, ranges: list[Range]) -> None:
        self.ranges = ranges


def _read(options: SourceOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    with concise_errors():
        # The import is here because the driver's processes need no consumer.
        from kavka.pipeline.spark.reading import read

        if isinstance(partition, OffsetRange):
            yield from read(options, partition.offsets)
        elif isinstance(partition, TaskRanges):
            for offsets in partition.ranges:
                yield from read(options, offsets)


def _input_partitions(options: SourceOptions, start: Offsets, end: Offsets, tasks: int | None) -> list[InputPartition]:
    if tasks is not None:
        return [TaskRanges(ranges) for ranges in plan_tasks(start, end, tasks)]
    ranges = plan(start, end, options.min_partitions, options.max_records_per_partition)
    return [OffsetRange(offsets) for offsets in ranges]


def _progress(offsets: dict[str, Any]) -> dict[str, Any]:
    """Return the offsets without the parts that describe a single batch."""
    return {name: value for name, value in offsets.items() if name not in (INITIAL, TASKS)}


class KavkaReader(DataSourceReader):
    """Reads a batch from the starting to the ending offsets at the time when Spark plans the
    read."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        with concise_errors():
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
            return _input_partitions(options, start, end, options.max_partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, partition)


class KavkaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream. While the query runs, the driver has one object in a separate process, which
    one thread calls. Each task gets a copy, and calls only its `read`."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._cluster: SourceCluster | None = None
        self._initial: dict[str, Any] | None = None
        self._is_started = False
        self._has_checked_log_start = False
        self._target: Offsets | None = None
        self._latest: Offsets | None = None
        self._committed: Offsets | None = None
        self._last_batch = time.monotonic()
        self._next_check = 0.0

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
        with concise_errors():
            if self._initial is None:
                partitions = self.cluster.partitions()
                self._initial = self._with_ids(self.starting_offsets(partitions))
            return self._initial

    def starting_offsets(self, partitions: Collection[TopicPartition]) -> Offsets:
        return self.cluster.resolve(self._options.starting, partitions, "startingOffsets")

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_offsets is not None or self._options.max_bytes is not None:
            return ReadMaxRows(self._options.max_offsets or _NO_MAXIMUM)
        if self._options.min_offsets is not None:
            return ReadMinRows(self._options.min_offsets)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        with concise_errors():
            partitions = self.cluster.partitions(missing_is_empty=not self._options.fail_on_data_loss)
            self._target = self.cluster.latest(partitions)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        with concise_errors():
            end = self._end_of_next_batch(start, limit)
            self._check_claim(is_new_batch=end is not start)
            return end

    def _end_of_next_batch(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        batch = self._next_batch(start, limit)
        # Spark calls this at every trigger, when all records before `start` are processed, and
        # `commit` only at the next batch. Before the first batch nothing is processed, and a
        # commit could overwrite the group's offsets that determine the start.
        if start != self._initial:
            self._commit_group(start)
        # Return `start` itself if there is no new batch: Spark compares the offsets.
        if batch is None:
            return start
        beginning, end = (None if offsets is None else self._with_ids(offsets) for offsets in batch)
        assert end is not None
        if self._options.max_partitions is not None:
            end[TASKS] = self._options.max_partitions
        if start == self._initial and not self._is_started:
            # This is the first batch, which Spark runs even if it is empty.
            return {**end, INITIAL: beginning or start}
        if beginning is not None:
            return {**end, INITIAL: beginning}
        return start if _progress(end) == _progress(start) else end

    def _check_claim(self, is_new_batch: bool) -> None:
        """Raise Fenced if another driver has claimed the application. Without a new batch, look
        only once a second."""
        claim, now = self._options.driver_claim, time.monotonic()
        if claim is not None and (is_new_batch or now >= self._next_check):
            self.cluster.check_claim(Claim.from_text(claim))
            self._next_check = now + _CHECK_INTERVAL

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self._latest is None else to_checkpoint(self._latest)

    def commit(self, end: dict[str, Any]) -> None:
        with concise_errors():
            self._commit_group(end)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        with concise_errors():
            self._is_started = True
            if start == end:
                return []
            begin, stop = from_checkpoint(end.get(INITIAL, start)), from_checkpoint(end)
            begin = self._with_new_partitions(begin, stop)
            for tp, offset in stop.items():
                if offset < begin[tp]:
                    self._on_data_loss(
                        f"{tp} ended at {begin[tp]} and now ends at {offset}: it was deleted and recreated"
                    )
                    begin[tp] = self.restart_offset(tp, offset)
            return _input_partitions(self._options, begin, stop, end.get(TASKS))

    def restart_offset(self, tp: TopicPartition, end: int) -> int:
        """Return the offset to continue at in a partition that was recreated and now ends at
        `end`."""
        return end

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, partition)

    def stop(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    # --- batches

    def _with_ids(self, offsets: Offsets) -> dict[str, Any]:
        """Return the offsets for Spark's checkpoint, with the ids of their topics."""
        topics = {tp.topic for tp in offsets}
        ids = {topic: topic_id for topic, topic_id in sorted(self.cluster.topic_ids.items()) if topic in topics}
        return {**to_checkpoint(offsets), TOPIC_IDS: ids} if ids else to_checkpoint(offsets)

    def _next_batch(self, start: dict[str, Any], limit: ReadLimit) -> tuple[Offsets | None, Offsets] | None:
        """Return the start and the end of the next batch, or None if there is no next batch yet.
        The start is None if it is the end of the last batch."""
        begin = from_checkpoint(start)
        latest = self._latest = self._ends(begin)
        recreated_topics = self._recreated(start.get(TOPIC_IDS, {}), latest)
        for topic in sorted(recreated_topics):
            self._on_recreated_topic(topic)
        if self._target is not None:
            latest = {tp: self._target[tp] for tp in latest if tp in self._target}
        elif latest == begin:
            # Spark calls again immediately. Sleep, so that an idle stream does not use a core.
            time.sleep(_IDLE_PAUSE)
        missing = sorted(set(begin) - set(latest))
        if missing:
            self._on_data_loss(f"partitions no longer exist: {', '.join(map(str, missing))}")
        full_begin = self._with_new_partitions(begin, latest)
        if recreated_topics:
            # Read a new topic from its beginning.
            full_begin |= self.cluster.earliest([tp for tp in latest if tp.topic in recreated_topics])
        has_lost = self._skip_lost(full_begin, latest) if start != self._initial else False
        self._has_checked_log_start = True
        beginning = full_begin if recreated_topics or has_lost else None
        if isinstance(limit, ReadAllAvailable):
            return beginning, latest
        available = count(full_begin, latest)
        if self._is_below_minimum(available):
            return None
        self._last_batch = time.monotonic()
        max_records = self._max_records(full_begin, latest, available)
        return beginning, latest if max_records is None else self.limited(full_begin, latest, max_records)

    def limited(self, begin: Offsets, end: Offsets, max_records: int) -> Offsets:
        """Return the ends of a batch of about `max_records` records."""
        return limit_end_offsets(begin, end, max_records)

    def _max_records(self, begin: Offsets, end: Offsets, available: int) -> int | None:
        """Return the maximum number of records of the next batch. The size of records is estimated
        from the size of the logs, so compressed records may exceed `maxBytesPerTrigger`."""
        max_offsets, max_bytes = self._options.max_offsets, self._options.max_bytes
        if max_bytes is None or available <= max_bytes // _LARGE_RECORD:
            return max_offsets
        means = self.cluster.bytes_per_offset(end)
        size = sum(max(0, end[tp] - begin.get(tp, end[tp])) * mean for tp, mean in means.items())
        if size <= max_bytes:
            return max_offsets
        return min(max_offsets or available, max(1, int(available * max_bytes / size)))

    def _skip_lost(self, begin: dict[TopicPartition, int], latest: Offsets) -> bool:
        """Move `begin` past records that no longer exist, and return whether there were any. Only
        the first batch after a start is checked: later a task that reads such an offset skips
        it."""
        if self._has_checked_log_start:
            return False
        first = self.cluster.earliest([tp for tp in begin if tp in latest])
        lost = {tp: offset for tp, offset in first.items() if begin[tp] < offset}
        for tp, offset in sorted(lost.items()):
            loss = f"{tp}: offsets {begin[tp]} to {offset - 1} no longer exist, the first is now {offset}"
            reset = self._options.reset_of(tp.topic)
            if reset == "none":
                raise DataLoss(no_reset(loss))
            begin[tp] = offset if reset == "earliest" else latest[tp]
            self._on_data_loss(loss, f"continues at offset {begin[tp]} ({reset})")
        return bool(lost)

    def _recreated(self, previous: TopicIds, partitions: Collection[TopicPartition]) -> set[str]:
        """Return the topics that were recreated since `previous`. If a topic has no id, the leaders
        must confirm that its leader epochs decreased."""
        candidates = recreated(previous, self.cluster.topic_ids)
        unconfirmed = {topic for topic in candidates if not isinstance(previous[topic], str)}
        if not unconfirmed:
            return candidates
        epochs = self.cluster.leader_epochs([tp for tp in partitions if tp.topic in unconfirmed])
        return candidates - unconfirmed | recreated(previous, epochs)

    def _ends(self, begin: Offsets) -> dict[TopicPartition, int]:
        """Return the current end offsets. A lower end offset than before indicates that a topic was
        recreated, so the topic ids are refreshed."""
        missing_is_empty = not self._options.fail_on_data_loss
        latest = self.cluster.ends(missing_is_empty=missing_is_empty)
        if any(latest[tp] < offset for tp, offset in begin.items() if tp in latest):
            self.cluster.expire_partitions()
            latest = self.cluster.ends(missing_is_empty=missing_is_empty)
        return latest

    def _is_below_minimum(self, available: int) -> bool:
        minimum = self._options.min_offsets
        if minimum is None or self._target is not None or available >= minimum:
            return False
        return time.monotonic() - self._last_batch < self._options.max_delay

    def _with_new_partitions(self, begin: Offsets, end: Offsets) -> dict[TopicPartition, int]:
        """Return `begin` with the log start offsets of partitions that are new since the last
        batch."""
        new_partitions = [tp for tp in end if tp not in begin]
        if not new_partitions:
            return dict(begin)
        first = self.cluster.earliest(new_partitions)
        for tp, offset in sorted(first.items()):
            if offset > 0:
                self._on_data_loss(f"{tp} is new and starts at offset {offset}: offsets 0 to {offset - 1} are lost")
        return {**begin, **first}

    def _commit_group(self, processed: dict[str, Any]) -> None:
        """Commit the processed offsets to the group of `groupIdCommit`, except those of recreated
        topics. A failure does not stop the query: Spark's checkpoint has the offsets."""
        group = self._options.group_to_commit
        if group is None:
            return
        recreated_topics = recreated(processed.get(TOPIC_IDS, {}), self.cluster.topic_ids)
        offsets = {tp: offset for tp, offset in from_checkpoint(processed).items() if tp.topic not in recreated_topics}
        if offsets == self._committed or not offsets:
            return
        # Another driver may have committed later offsets.
        self._check_claim(is_new_batch=True)
        try:
            commits = {tp: OffsetAndMetadata(offset, DONE_BY_JOB) for tp, offset in offsets.items()}
            self.cluster.admin.alter_consumer_group_offsets(group, commits, timeout=_COMMIT_TIMEOUT)
            self._committed = offsets
        except KafkaError as error:
            logger.warning("Cannot commit the offsets to group %s: %s", group, error)

    def _on_data_loss(self, loss: str, remedy: str = "continues without them") -> None:
        if self._options.fail_on_data_loss:
            raise DataLoss(f"{loss} (failOnDataLoss=false {remedy})")
        logger.warning("%s; failOnDataLoss=false %s", loss, remedy)

    def _on_recreated_topic(self, topic: str) -> None:
        self._on_data_loss(
            f"topic {topic} was deleted and created again since it was last read",
            "continues at the beginning of the new topic",
        )
