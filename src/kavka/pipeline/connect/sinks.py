"""Runs sinks: a stream of the topics, decoded and transformed, one micro-batch at a time."""

from __future__ import annotations

import json
import logging
import re
import uuid
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from kavka.client.admin import Admin
from kavka.client.admin.base import AdminError
from kavka.common.errors import ErrorCode
from kavka.common.types import TopicPartition
from kavka.pipeline.connect.api import Context, Failed, Sink, query_id
from kavka.pipeline.connect.errors import ConnectError
from kavka.pipeline.connect.flow import OBSERVATION, TIME, Flow, observe
from kavka.pipeline.connect.metrics import observe_input
from kavka.pipeline.connect.offsets import group_of, group_offsets
from kavka.pipeline.connect.recorded_types import FILE as TYPES_FILE
from kavka.pipeline.connect.recorded_types import RecordedTypes
from kavka.pipeline.connect.records import CONNECT_EXCEPTION, ERROR, KEY, RAW, VALUE, error_struct
from kavka.pipeline.connect.retries import Retries
from kavka.pipeline.connect.sources import report_progress
from kavka.pipeline.connect.tasks import Task, trigger_of, write_frame, writer_options
from kavka.pipeline.connect.topic_table import create_topic
from kavka.pipeline.spark.cluster import admin_settings
from kavka.pipeline.spark.files import HadoopPath
from kavka.pipeline.spark.offsets import from_checkpoint, task_of, to_checkpoint

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger = logging.getLogger(__name__)

_POLL_INTERVAL = 1.0
_EARLIEST, _LATEST = -2, -1
_MAX_LOGGED_FAILURES = 20


def run_sink(task: Task, context: Context, sink: Sink, retries: Retries) -> None:
    keep_raw = bool(context["errors.deadletterqueue.topic.name"]) or bool(context["errors.log.include.messages"])
    worker = task.worker
    flow = Flow.of(task.name, task.settings, context.config, worker.properties, keep_raw, worker.declared)
    partitions = _wait_for_topics(task, context)
    if partitions is None:
        return
    frame = context.spark.readStream.format("kavka").options(**_reader_options(context, flow)).load()
    _Run(task, context, sink, retries, flow, partitions).run(observe_input(frame))


def _wait_for_topics(task: Task, context: Context) -> list[TopicPartition] | None:
    """Returns the partitions of the topics. Waits until the topics of `topics` exist: a sink may be
    configured before its topics are created. Returns None if the task was stopped."""
    with Admin(admin_settings(context.client)) as admin:
        while True:
            try:
                return _partitions(admin, context)
            except AdminError as error:
                if any(cause.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for cause in error.errors.values()):
                    raise
            if task.pause(_POLL_INTERVAL):
                return None


def _partitions(admin: Admin, context: Context) -> list[TopicPartition]:
    pattern = context["topics.regex"]
    topics = context["topics"] or [topic for topic in admin.list_topics() if re.fullmatch(pattern, topic)]
    descriptions = admin.describe_topics(topics).values() if topics else ()
    return [TopicPartition(topic.name, partition.partition) for topic in descriptions for partition in topic.partitions]


def _reader_options(context: Context, flow: Flow) -> dict[str, str]:
    overrides = context.with_prefix("consumer.override.")
    overrides.pop("group.id", None)
    reset = overrides.pop("auto.offset.reset", "earliest")
    options = {f"kafka.{name}": value for name, value in {**context.client, **overrides}.items()}
    if context.exactly_once:
        options.setdefault("kafka.isolation.level", "read_committed")
    if context["topics"]:
        options["subscribe"] = ",".join(context["topics"])
    else:
        options["subscribePattern"] = context["topics.regex"]
    options |= {
        "includeHeaders": "true",
        "textColumns": ",".join(flow.text_columns),
        "startingOffsets": _starting_offsets(context, reset),
        "groupIdCommit": group_of(context.name),
        "maxPartitions": str(context["tasks.max"]),
        "failOnDataLoss": str(context["fail.on.data.loss"]).lower(),
    }
    options["maxOffsetsPerTrigger"] = str(context["max.records.per.batch"])
    options["maxBytesPerTrigger"] = str(context["max.bytes.per.batch"])
    return options


def _starting_offsets(context: Context, reset: str) -> str:
    """Returns the starting offsets of a sink without a checkpoint: the committed offsets of its
    group (a user may have set them, or the checkpoint was lost), otherwise the earliest or latest
    offsets."""
    with Admin(admin_settings(context.client)) as admin:
        committed = group_offsets(admin, context.name)
        if not committed:
            return reset
        default = _EARLIEST if reset == "earliest" else _LATEST
        return json.dumps(to_checkpoint({tp: committed.get(tp, default) for tp in _partitions(admin, context)}))


class _Run:
    """One run of a sink's query. Spark calls `_write_batch` from a thread of the query."""

    def __init__(
        self,
        task: Task,
        context: Context,
        sink: Sink,
        retries: Retries,
        flow: Flow,
        partitions: Collection[TopicPartition],
    ) -> None:
        self.task, self.context, self.sink, self.retries, self.flow = task, context, sink, retries, flow
        self._set_partitions(partitions)
        self.dead_letter_topic = context["errors.deadletterqueue.topic.name"]
        self.run_id = uuid.uuid4().hex
        self.types: RecordedTypes | None = None

    def run(self, frame: DataFrame) -> None:
        if not self.flow.is_static:
            path = HadoopPath(f"{self.context.checkpoint}/{TYPES_FILE}", lambda: self.context.spark)
            self.types = RecordedTypes(path, {KEY: self.flow.key, VALUE: self.flow.value})
        if self.dead_letter_topic:
            self._create_dead_letter_topic()
        self.task.on_topics(set(self.context["topics"]))
        spark_writer = self._spark_writer(frame)

        def start() -> Any:
            writer = frame.writeStream.foreachBatch(self._write_batch) if spark_writer is None else spark_writer
            writer = writer.option("checkpointLocation", f"{self.context.checkpoint}/query")
            return writer.queryName(f"connect-{self.task.name}").trigger(**trigger_of(self.context)).start()

        self.task.run_query(start, self._on_progress)

    def _set_partitions(self, partitions: Collection[TopicPartition]) -> None:
        """Sets the number of tasks, and the task that reads each partition: the Spark source
        distributes the partitions in the same way."""
        count = max(1, min(self.context["tasks.max"], len(partitions)))
        self.task.owners = task_of(partitions, count)
        self.task.set_count(count, self.context)

    def _on_progress(self, progress: Any) -> None:
        end = json.loads(progress.sources[0].endOffset or "null")
        if end:
            # Partitions may have been added, or topics created.
            self._set_partitions(from_checkpoint(end))
        report_progress(self.task, self.context, progress)

    def _spark_writer(self, frame: DataFrame) -> Any:
        """Returns the result of the sink's `writer`. None if the sink has none, the types are not
        known in advance, or failed records must be sent to the dead-letter topic."""
        if type(self.sink).writer is Sink.writer or not self.flow.is_static or self.dead_letter_topic:
            return None
        records = self.flow.decode(frame, None)
        rows = observe(records.frame, OBSERVATION) if self.flow.tolerant else records.frame
        return self.sink.writer(self.context, self._without_failures(rows))

    def _without_failures(self, rows: DataFrame) -> DataFrame:
        return self.flow.without_failures(rows).drop(RAW, "timestampType")

    def _write_batch(self, raw: DataFrame, batch_id: int) -> None:
        """Writes a micro-batch. An error ends the query."""
        is_read_twice = not self.flow.is_static or self.flow.tolerant
        if is_read_twice:
            raw.persist()
        try:
            records = self.retries.call(f"Decoding {self.task.name}", lambda: self.flow.decode(raw, raw))
            if self.types is not None:
                self.types.store()
            if self.flow.tolerant:
                self._handle_failures(records.frame, batch_id)
            rows = self._without_failures(records.frame)
            rejected = self.retries.call(
                f"Writing {self.task.name}", lambda: self.sink.write(self.context, rows, batch_id)
            )
            if rejected:
                self._fail_rejected(records.frame, rejected, batch_id)
        except BaseException as error:
            if self.task.failure is None:
                self.task.failure = error
            raise
        finally:
            if is_read_twice:
                raw.unpersist()

    def _fail_rejected(self, rows: DataFrame, rejected: Sequence[Failed], batch_id: int) -> None:
        """Handles the records that the target system rejected. Raises ConnectError unless errors
        are tolerated."""
        from pyspark.sql import functions as F

        hide = self.task.worker.providers.hide
        if not self.flow.tolerant:
            first = rejected[0]
            more = f" (and {len(rejected) - 1} more)" if len(rejected) > 1 else ""
            where = f"the record at offset {first.offset} of {first.topic}-{first.partition}"
            raise ConnectError(f"{where} was rejected: {hide(first.message)}{more}")
        failures = [(failure.topic, failure.partition, failure.offset, hide(failure.message)) for failure in rejected]
        schema = "topic string, partition int, offset bigint, rejection string"
        failed = F.broadcast(self.context.spark.createDataFrame(failures, schema))
        joined = rows.join(failed, ["topic", "partition", "offset"])
        operator = f"{type(self.sink).__module__}.{type(self.sink).__qualname__}"
        error = error_struct("TASK_PUT", operator, F.col("rejection"), CONNECT_EXCEPTION)
        self._handle_failures(joined.withColumn(ERROR, error), batch_id)

    def _handle_failures(self, rows: DataFrame, batch_id: int) -> None:
        """Sends the failed records to the dead-letter topic and to the log, if these are
        enabled."""
        if self.dead_letter_topic:
            from pyspark.sql import Observation
            from pyspark.sql import functions as F

            letters = self.flow.dead_letters(rows, self.context["errors.deadletterqueue.context.headers.enable"])
            options = {**writer_options(self.context), "topic": self.dead_letter_topic}
            options["timestampColumn"] = TIME
            if self.context.exactly_once:
                options |= {"queryId": query_id(self.context), "runId": self.run_id, "batchId": str(batch_id)}
            observation = Observation()
            write_frame(letters.observe(observation, F.count(F.lit(1)).alias("letters")), options)
            self.task.measures.failed += observation.get["letters"]
        if self.context["errors.log.enable"]:
            from pyspark.sql import functions as F

            failed = rows.filter(F.col(ERROR).isNotNull())
            columns = ("topic", "partition", "offset", ERROR, *self._value_excerpt())
            for row in failed.select(*columns).limit(_MAX_LOGGED_FAILURES).collect():
                error = row[ERROR]
                value = f" value={row['excerpt']}" if "excerpt" in row else ""
                logger.error(
                    "Connector %s: the record at offset %d of %s-%d failed in %s (%s): %s%s", self.task.name,
                    row["offset"], row["topic"], row["partition"], error["stage"], error["operator"], error["message"],
                    value,
                )  # fmt: skip

    def _value_excerpt(self) -> list[Any]:
        if not self.context["errors.log.include.messages"]:
            return []
        from pyspark.sql import functions as F

        return [F.substring(F.col(RAW)[VALUE].cast("string"), 1, 1000).alias("excerpt")]

    def _create_dead_letter_topic(self) -> None:
        topic, replicas = self.dead_letter_topic, self.context["errors.deadletterqueue.topic.replication.factor"]
        try:
            create_topic(self.context.client, topic, 1, replicas)
        except AdminError as error:
            raise ConnectError(f"Could not initialize dead letter queue with topic={topic}: {error}") from None
