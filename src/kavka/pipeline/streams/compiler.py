"""From a plan to Spark: one query, with the source and sink of `kavka.pipeline.spark`."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any

from kavka.common.types import TopicPartition
from kavka.pipeline.spark import activate, register
from kavka.pipeline.spark.files import AnyPath, spark_uri
from kavka.pipeline.streams.expression_columns import SPARK_SETTINGS
from kavka.pipeline.streams.production import streams_sink
from kavka.pipeline.streams.routed import routed_source
from kavka.pipeline.streams.routing import OUT, stateless_step, unpacking_step
from kavka.pipeline.streams.sources import policies_of, source_frame
from kavka.pipeline.streams.task_reports import observed
from kavka.pipeline.streams.topology import Subtopology
from kavka.pipeline.streams.workers import RESULT, Job, TaskProcessor

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_ATTEMPTS = 3
# Records of a micro-batch, unless the settings say. Tasks hold all of those that they get; of those
# that are aggregated before the shuffle they get parts.
_PASSED, _MERGED = 500_000, 4_000_000
_starting = threading.Lock()


def compile_frame(spark: SparkSession, job: Job, begin: Mapping[TopicPartition, int]) -> DataFrame:
    """The rows that the sink gets."""
    plan, settings = job.plan, job.settings
    policies = policies_of(job.topology, settings)

    def read(subs: tuple[Subtopology, ...], limit: bool = True, form: str = "kavka") -> DataFrame | None:
        most = (settings.records_per_batch or (_MERGED if job.merges_parts else _PASSED)) if limit else None
        topics = {
            job.full_name(topic): plan.partitions[topic]
            for sub in subs
            for source in sub.sources
            for topic in source.topics
            if topic not in plan.shuffled
        }
        if not topics:
            return None
        own = {job.full_name(topic) for topic in job.topology.internal_topics}
        is_global = subs == plan.globals
        return source_frame(spark, settings, topics, policies, begin, most, form, own, is_global, job.claim)

    if plan.stateless:
        source = read(plan.stateless)
        assert source is not None
        if job.lowered.frame is None:
            return source.mapInArrow(stateless_step(job), OUT)
        return reduce(lambda frame, step: step(frame), job.lowered.frame, source)
    routed = routed_source(job)
    spark.dataSource.register(routed)
    name = routed.name()
    sources = [read((*plan.feeding, *plan.stateful), form=name), read(plan.globals, limit=False, form=name)]
    rows = reduce(lambda frame, other: frame.union(other), (frame for frame in sources if frame is not None))
    results = rows.groupBy("task").transformWithState(TaskProcessor(job), RESULT, "Append", "None")
    return observed(results).mapInArrow(unpacking_step, OUT)


def compile_query(
    spark: SparkSession, job: Job, folder: AnyPath, begin: Mapping[TopicPartition, int]
) -> StreamingQuery:
    """Start it; `begin` is for an application that has no state yet. Spark gives a query the
    session's settings as they are when it starts, and they are put back after: nothing of the
    caller's changes."""
    settings, plan, run = job.settings, job.plan, job.run
    wanted = {
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
        before = {name: own.conf.get(name, None) for name in wanted}
        try:
            for name, value in wanted.items():
                own.conf.set(name, value)
            return _start(writer)
        finally:
            for name, old in before.items():
                if old is None:
                    own.conf.unset(name)
                else:
                    own.conf.set(name, old)


def _start(writer: Any) -> StreamingQuery:
    """Spark gives a Python process ten seconds to start, which a busy machine may not have: that
    alone is tried again."""
    for attempt in range(_ATTEMPTS):
        query: StreamingQuery = writer.start()
        while query.isActive and str(query.status["message"]).startswith("Initializing"):
            time.sleep(0.05)
        error = None if query.isActive else query.exception()
        if error is None or "failed to connect back" not in str(error) or attempt + 1 == _ATTEMPTS:
            break
    return query
