"""From a plan to Spark: one query, with the source and sink of `kavka.pipeline.spark`."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kavka.common.types import TopicPartition
from kavka.pipeline.spark import activate, register
from kavka.pipeline.spark.sink import QUERY_ID
from kavka.pipeline.streams.native import chain_of, native_frame
from kavka.pipeline.streams.plan import has_users
from kavka.pipeline.streams.routed import routed_source
from kavka.pipeline.streams.sources import policies_of, source_frame
from kavka.pipeline.streams.summing import added_up
from kavka.pipeline.streams.topology import Subtopology
from kavka.pipeline.streams.workers import (
    OUT,
    RESULT,
    Job,
    TaskProcessor,
    stateless_step,
    telling_step,
    unpacking_step,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_ATTEMPTS = 3
# Records of a micro-batch, unless the settings say. Tasks hold them all, but those that are counted
# before the shuffle.
_KEPT, _COUNTED = 500_000, 4_000_000
_starting = threading.Lock()


def compile_frame(spark: SparkSession, job: Job, begin: Mapping[TopicPartition, int]) -> DataFrame:
    """The rows that the sink gets."""
    plan, settings = job.plan, job.settings
    policies = policies_of(job.topology, settings)

    def read(subs: tuple[Subtopology, ...], limit: bool = True, form: str = "kavka") -> DataFrame | None:
        most = (settings.records_per_batch or (_COUNTED if job.counts_only else _KEPT)) if limit else None
        topics = {
            job.full_name(topic): plan.partitions[topic]
            for sub in subs
            for source in sub.sources
            for topic in source.topics
            if topic not in plan.shuffled
        }
        return source_frame(spark, settings, topics, policies, begin, most, form) if topics else None

    parts: list[Any] = []
    subs = {sub.id: sub for sub in plan.stateless}
    for number in plan.native:
        chain = chain_of(job.topology, subs[number], settings)
        assert chain is not None, "the plan says that Spark can do it"
        parts.append(native_frame(read((subs[number],)), chain))
    plain = read(tuple(sub for sub in plan.stateless if sub.id not in plan.native))
    if plain is not None:
        parts.append(plain.mapInArrow(stateless_step(job), OUT))
    kept: list[DataFrame | None] = []
    if plan.stateful:
        routed = routed_source(job)
        spark.dataSource.register(routed)
        name = routed.name()
        kept = [read((*plan.feeding, *plan.stateful), form=name), read(plan.globals, limit=False, form=name)]
    sources = [one for one in kept if one is not None]
    if sources:
        rows = reduce(lambda one, two: one.union(two), sources)
    if sources and plan.summed:
        parts.append(added_up(rows).mapInArrow(telling_step(job), OUT))
    elif sources:
        timers = has_users(job.topology)
        results = rows.groupBy("task").transformWithState(
            TaskProcessor(job, timers), RESULT, "Append", "ProcessingTime" if timers else "None"
        )
        parts.append(results.mapInArrow(unpacking_step, OUT))
    frame: DataFrame = reduce(lambda one, two: one.union(two), parts)
    return frame


def compile_query(spark: SparkSession, job: Job, folder: Path, begin: Mapping[TopicPartition, int]) -> StreamingQuery:
    """Start it; `begin` is for an application that has no state yet. Spark gives a query the
    session's settings as they are when it starts, and they are put back after: nothing of the
    caller's changes."""
    settings, plan, run = job.settings, job.plan, job.run
    wanted = {
        "spark.sql.shuffle.partitions": str(plan.width),
        "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        **{name: value for name, value in settings.spark.items() if name.startswith("spark.sql.")},
    }
    own = register(spark)
    options = {
        "kafka.bootstrap.servers": settings.bootstrap_servers,
        "timestampColumn": "sent_at",
        "exactlyOnce": str(settings.exactly_once).lower(),
        "transactionalIdPrefix": f"{settings.application_id}-",
        **{f"kafka.{name}": value for name, value in settings.clients.items()},
    }

    def write(rows: DataFrame, number: int) -> None:
        """A micro-batch as a batch, which is known again when it is done again."""
        query = rows.sparkSession.sparkContext.getLocalProperty(QUERY_ID) or ""
        named = {"queryId": query, "runId": run, "batchId": str(number)} if settings.exactly_once else {}
        rows.write.format("kavka").options(**options, **named).mode("append").save()

    stream = compile_frame(own, job, begin).writeStream
    writer = (
        (
            stream.foreachBatch(write).outputMode("update")
            if plan.summed
            else stream.format("kavka").options(**options).outputMode("append")
        )
        .queryName(f"{settings.application_id}-{run[:8]}")
        .trigger(processingTime=f"{settings.commit_interval} milliseconds")
        .option("checkpointLocation", str(folder / "checkpoint"))
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
