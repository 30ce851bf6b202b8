"""From a plan to Spark: one query, with the source and sink of `kavka.pipeline.spark`."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql.pandas.types import from_arrow_schema

from kavka.common.types import TopicPartition
from kavka.pipeline.spark import activate, register
from kavka.pipeline.spark.files import AnyPath, spark_uri
from kavka.pipeline.streams.expression_columns import SPARK_SETTINGS
from kavka.pipeline.streams.routed_source import routed_source
from kavka.pipeline.streams.routing import OUT_ARROW, stateless_step
from kavka.pipeline.streams.sink import streams_sink
from kavka.pipeline.streams.sources import source_frame
from kavka.pipeline.streams.stateful_step import RESULT, TaskProcessor
from kavka.pipeline.streams.task_reports import observed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from kavka.pipeline.streams.workers import Job

_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_ATTEMPTS = 3
_starting = threading.Lock()


def compile_frame(spark: SparkSession, job: Job, begin: Mapping[TopicPartition, int]) -> DataFrame:
    """The rows that the sink gets: records, or the packed results of tasks."""
    plan = job.plan
    if plan.stateless:
        source = source_frame(spark, job, plan.stateless, begin)
        if job.lowered.frame is None:
            return source.mapInArrow(stateless_step(job), from_arrow_schema(OUT_ARROW))
        return reduce(lambda frame, step: step(frame), job.lowered.frame, source)
    routed = routed_source(job)
    spark.dataSource.register(routed)
    rows = source_frame(spark, job, (*plan.feeding, *plan.stateful), begin, routed.name())
    if plan.globals:
        rows = rows.union(source_frame(spark, job, plan.globals, begin, routed.name()))
    results = rows.groupBy("task").transformWithState(TaskProcessor(job), RESULT, "Append", "None")
    return observed(results)


def compile_query(
    spark: SparkSession, job: Job, folder: AnyPath, begin: Mapping[TopicPartition, int]
) -> StreamingQuery:
    """Start the query. `begin` are the offsets of an application without state. A query has the
    settings that its session has when it starts; the caller's settings are restored after that."""
    settings, plan, run = job.settings, job.plan, job.run
    conf = {
        "spark.sql.shuffle.partitions": str(plan.width),
        "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        **SPARK_SETTINGS,
        **{name: value for name, value in settings.spark.items() if name.startswith("spark.sql.")},
    }
    own = register(spark)
    sink = streams_sink(run, settings.production_handler)
    own.dataSource.register(sink)
    options = {
        "timestampColumn": "sent_at",
        "exactlyOnce": str(settings.exactly_once).lower(),
        "transactionalIdPrefix": f"{settings.application_id}-",
        **{f"kafka.{name}": value for name, value in settings.producer.items()},
    }

    stream = compile_frame(own, job, begin).writeStream
    writer = (
        stream.format(sink.name())
        .options(**options)
        .outputMode("append")
        .queryName(job.query_name)
        .trigger(processingTime=f"{settings.commit_interval} milliseconds")
        .option("checkpointLocation", spark_uri(folder / "checkpoint"))
    )
    with _starting:
        activate(own)
        before = {name: own.conf.get(name, None) for name in conf}
        try:
            for name, value in conf.items():
                own.conf.set(name, value)
            return _start(writer)
        finally:
            for name, old in before.items():
                if old is None:
                    own.conf.unset(name)
                else:
                    own.conf.set(name, old)


def _start(writer: Any) -> StreamingQuery:
    """Start the query, again if a Python process does not start within Spark's ten seconds, as on a
    busy machine."""
    for attempt in range(_ATTEMPTS):
        query: StreamingQuery = writer.start()
        while query.isActive and str(query.status["message"]).startswith("Initializing"):
            time.sleep(0.05)
        error = None if query.isActive else query.exception()
        if error is None or "failed to connect back" not in str(error) or attempt + 1 == _ATTEMPTS:
            break
    return query
