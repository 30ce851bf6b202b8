"""Runs sinks: a stream of the topics, decoded and transformed, one micro-batch at a time."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kavka.client.admin import Admin
from kavka.client.admin.base import AdminError
from kavka.client.admin.types import NewTopic
from kavka.common.errors import ErrorCode
from kavka.common.types import TopicPartition
from kavka.pipeline.connect.api import Context, Failed, Sink
from kavka.pipeline.connect.errors import ConnectError
from kavka.pipeline.connect.flow import FAILURES, TIME, Flow, observed
from kavka.pipeline.connect.offsets import group_of, group_offsets
from kavka.pipeline.connect.records import CONNECT_EXCEPTION, ERROR, ERROR_TYPE, RAW, VALUE
from kavka.pipeline.connect.retries import Retries
from kavka.pipeline.connect.sources import report_metrics
from kavka.pipeline.connect.tasks import Task, trigger_of, writer_options, written
from kavka.pipeline.spark.cluster import admin_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger = logging.getLogger(__name__)

_POLL_INTERVAL = 1.0
_EARLIEST = -2
_LOGGED = 20


def run_sink(task: Task, context: Context, sink: Sink, retries: Retries) -> None:
    keep_raw = bool(context["errors.deadletterqueue.topic.name"]) or bool(context["errors.log.include.messages"])
    worker = task.worker
    flow = Flow.of(task.name, task.settings, context.config, worker.properties, keep_raw, worker.declared)
    if not _wait_for_topics(task, context):
        return
    frame = context.spark.readStream.format("kavka").options(**_reading(context, flow)).load()
    _Run(task, context, sink, retries, flow).run(frame)


def _wait_for_topics(task: Task, context: Context) -> bool:
    """Whether the topics exist. A sink may be configured before its topics are created. False: the
    task was stopped."""
    topics = list(context["topics"])
    with Admin(admin_settings(context.client)) as admin:
        while topics:
            try:
                admin.describe_topics(topics)
                break
            except AdminError as error:
                if any(cause.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for cause in error.errors.values()):
                    raise
            if task.pause(_POLL_INTERVAL):
                return False
    return True


def _reading(context: Context, flow: Flow) -> dict[str, str]:
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
        "startingOffsets": _starting(context, reset),
        "groupIdCommit": group_of(context.name),
        "failOnDataLoss": str(context["fail.on.data.loss"]).lower(),
    }
    if context["max.records.per.batch"] is not None:
        options["maxOffsetsPerTrigger"] = str(context["max.records.per.batch"])
    return options


def _starting(context: Context, reset: str) -> str:
    """Where a sink without a checkpoint starts: at the offsets of its group (a user may have set
    them, or the checkpoint was lost), else at the earliest or latest offset."""
    with Admin(admin_settings(context.client)) as admin:
        committed = group_offsets(admin, context.name)
        if not committed:
            return reset
        topics = context["topics"] or [t for t in admin.list_topics() if re.fullmatch(context["topics.regex"], t)]
        edge = _EARLIEST if reset == "earliest" else -1
        offsets: dict[str, dict[str, int]] = {}
        for described in admin.describe_topics(topics).values():
            for partition in described.partitions:
                at = committed.get(TopicPartition(described.name, partition.partition), edge)
                offsets.setdefault(described.name, {})[str(partition.partition)] = at
        return json.dumps(offsets)


class _Run:
    """One run of a sink's query."""

    def __init__(self, task: Task, context: Context, sink: Sink, retries: Retries, flow: Flow) -> None:
        self.task, self.context, self.sink, self.retries, self.flow = task, context, sink, retries, flow
        self.dead_letter_topic = context["errors.deadletterqueue.topic.name"]
        self.run_id = task.new_run()

    def run(self, frame: DataFrame) -> None:
        if self.dead_letter_topic:
            self._create_dead_letter_topic()
        self.task.on_topics(set(self.context["topics"]))
        native = self._native(frame)

        def start() -> Any:
            writer = frame.writeStream.foreachBatch(self._batch) if native is None else native
            writer = writer.option("checkpointLocation", f"{self.context.checkpoint}/query")
            return writer.queryName(f"connect-{self.task.name}").trigger(**trigger_of(self.context)).start()

        self.task.run_query(start, self._on_progress)

    def _native(self, frame: DataFrame) -> Any:
        """The sink's own Spark writer, if the types are known in advance and failed records need no
        handling."""
        if type(self.sink).writer is Sink.writer or not self.flow.static or self.dead_letter_topic:
            return None
        records = self.flow.decoded(frame, None)
        rows = observed(records.frame, FAILURES) if self.flow.tolerant else records.frame
        return self.sink.writer(self.context, self._good(rows))

    def _on_progress(self, progress: Any) -> None:
        metrics = progress.observedMetrics or {}
        if FAILURES in metrics:
            report_metrics(self.task, self.context, metrics[FAILURES].asDict())

    def _good(self, rows: DataFrame) -> DataFrame:
        return self.flow.without_failures(rows).drop(RAW, "timestampType")

    def _batch(self, raw: DataFrame, number: int) -> None:
        """Called by Spark. An error ends the query."""
        is_read_twice = not self.flow.static or self.flow.tolerant
        if is_read_twice:
            raw.persist()
        try:
            records = self.flow.decoded(raw, raw)
            if self.flow.tolerant:
                self._failures(records.frame, number)
            good = self._good(records.frame)
            rejected = self.retries.call(
                f"{self.task.name} writes", lambda: self.sink.write(self.context, good, number)
            )
            if rejected:
                self._fail_rejected(records.frame, rejected, number)
        except BaseException as error:
            if self.task.failure is None:
                self.task.failure = error
            raise
        finally:
            if is_read_twice:
                raw.unpersist()

    def _fail_rejected(self, rows: DataFrame, rejected: Sequence[Failed], number: int) -> None:
        """Fails the task, or marks the records that the target system rejected as failed."""
        from pyspark.sql import functions as F

        hidden = self.task.worker.providers.hidden
        if not self.flow.tolerant:
            first = rejected[0]
            more = f" (and {len(rejected) - 1} more)" if len(rejected) > 1 else ""
            where = f"the record at offset {first.offset} of {first.topic}-{first.partition}"
            raise ConnectError(f"{where} was rejected: {hidden(first.message)}{more}")
        failures = [(failure.topic, failure.partition, failure.offset, hidden(failure.message)) for failure in rejected]
        schema = "topic string, partition int, offset bigint, why string"
        failed = F.broadcast(self.context.spark.createDataFrame(failures, schema))
        error = {
            "stage": F.lit("TASK_PUT"),
            "operator": F.lit(f"{type(self.sink).__module__}.{type(self.sink).__qualname__}"),
            "exception": F.lit(CONNECT_EXCEPTION),
            "message": F.col("why"),
            "cause": F.lit(None).cast("string"),
        }
        joined = rows.join(failed, ["topic", "partition", "offset"])
        error_struct = F.struct(*(value.alias(name) for name, value in error.items())).cast(ERROR_TYPE)
        self._failures(joined.withColumn(ERROR, error_struct), number)

    def _failures(self, rows: DataFrame, number: int) -> None:
        if self.dead_letter_topic:
            letters = self.flow.dead_letters(rows, self.context["errors.deadletterqueue.context.headers.enable"])
            options = {**writer_options(self.context, self.context.exactly_once), "topic": self.dead_letter_topic}
            options["timestampColumn"] = TIME
            if self.context.exactly_once:
                from kavka.pipeline.connect.api import query_id

                options |= {"queryId": query_id(self.context), "runId": self.run_id, "batchId": str(number)}
            written(self.context, letters, options)
        if self.context["errors.log.enable"]:
            from pyspark.sql import functions as F

            failed = rows.filter(F.col(ERROR).isNotNull())
            for row in (
                failed.select("topic", "partition", "offset", ERROR, *self._value_column()).limit(_LOGGED).collect()
            ):
                error = row[ERROR]
                record = f" value={row['shown']}" if "shown" in row else ""
                logger.error(
                    "Connector %s: the record at offset %d of %s-%d failed in %s (%s): %s%s", self.task.name,
                    row["offset"], row["topic"], row["partition"], error["stage"], error["operator"], error["message"],
                    record,
                )  # fmt: skip

    def _value_column(self) -> list[Any]:
        if not self.context["errors.log.include.messages"]:
            return []
        from pyspark.sql import functions as F

        return [F.substring(F.col(RAW)[VALUE].cast("string"), 1, 1000).alias("shown")]

    def _create_dead_letter_topic(self) -> None:
        factor = self.context["errors.deadletterqueue.topic.replication.factor"]
        with Admin(admin_settings(self.context.client)) as admin:
            try:
                admin.create_topics([NewTopic(self.dead_letter_topic, 1, None if factor < 0 else factor)])
            except AdminError as error:
                if any(cause.code != ErrorCode.TOPIC_ALREADY_EXISTS for cause in error.errors.values()):
                    raise ConnectError(
                        f"Could not initialize dead letter queue with topic={self.dead_letter_topic}: {error}"
                    ) from None
