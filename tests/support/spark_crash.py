"""A Spark driver that halts at a chosen stage of a batch, so that a test can kill it at that stage.

Spark's Python processes import this module instead of the sink. The import adds halts to the two
phases of the sink. A query halts in batch 1 at the stage that is the suffix of its output topic.

`python -m tests.support.spark_crash SERVERS FOLDER PREFIX STAGE…` runs a query for each stage. The
query of a stage in STREAMS is a streams application with state. The other queries copy a topic.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from kavka.pipeline.spark import two_phase
from kavka.pipeline.spark.sink import KavkaStreamWriter
from kavka.pipeline.spark.source import KavkaDataSource
from kavka.pipeline.streams.sink import ProductionErrors, StreamsWriter, streams_sink

BATCH = 1
FOLDER = "KAVKA_CRASH_FOLDER"

STAGES = (
    "before_write",
    "in_write",
    "before_decision",
    "deciding",
    "after_decision",
    "all_aborted",
    "half_committed",
    "half_aborted",
    "after_commit",
    "late_driver",
    "worker_killed",
)


STREAMS = ("before_write", "in_write", "before_decision", "after_decision", "half_committed", "after_commit")
GROUPS = 7


def halt(name: str) -> None:
    """Create a marker file and wait forever. At the stage late_driver, wait for a command."""
    folder = Path(os.environ[FOLDER])
    marker = folder / f"{name}.{os.getpid()}"
    marker.touch()
    if name == "late_driver":
        # This query outlives its Spark session.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while not (folder / "late_driver_may_continue").exists():
            time.sleep(0.02)
        return
    while True:
        time.sleep(60)


def stage_of(topic: str | None) -> str:
    return (topic or "").rpartition("-")[2]


def stage_in(options: Any) -> str:
    """Return the stage of a sink, from its topic or from the application id, which is the prefix of
    its transactional ids."""
    return stage_of(options.topic or options.id_prefix.removesuffix("-"))


class CrashingWriter(KavkaStreamWriter):
    """Makes every process that writes or commits import this module, because the class is loaded by
    name. Processes that read do not import it, and Spark may use any free process for any query."""


class CrashingStreamsWriter(StreamsWriter):
    """The same for a streams application."""


class CrashingSource(KavkaDataSource):
    def streamWriter(self, schema: Any, overwrite: bool) -> CrashingWriter:
        return CrashingWriter(*self._sink(schema))


def crashing_sink(run: str, handler: Any) -> Any:
    """Return the sink of a streams application, with the writer of this module."""

    class Sink(streams_sink(run, handler)):  # type: ignore[misc]
        def streamWriter(self, schema: Any, overwrite: bool) -> CrashingStreamsWriter:
            return CrashingStreamsWriter(*self._sink(schema), ProductionErrors(handler))

    return Sink


_write, _commit = two_phase.write, two_phase.Driver.commit
_commit_transactions, _decide = two_phase.Driver._commit_transactions, two_phase.DecisionWriter.write
_prepare = two_phase.Producer.prepare_transaction


def write(options: Any, layout: Any, batches: Any, attempt: Any, *args: Any, **kwargs: Any) -> Any:
    stage = stage_in(options) if attempt.batch == BATCH else ""
    if stage == "before_write":
        halt(stage)

    def prepare(producer: Any, timeout: Any = None) -> Any:
        producer.flush()
        if stage == "worker_killed" and attempt.attempt == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        if stage == "in_write":
            halt(stage)
        return _prepare(producer, timeout)

    two_phase.Producer.prepare_transaction = prepare  # type: ignore[method-assign]
    return _write(options, layout, batches, attempt, *args, **kwargs)


def commit(self: Any, batch: int, reports: Any) -> None:
    _commit(self, batch, reports)
    if batch == BATCH and stage_in(self._options) == "after_commit":
        halt("after_commit")


def decide(self: Any, decision: Any) -> None:
    stage = stage_of(_topic_of(decision)) if decision.batch == BATCH else ""
    if stage in ("before_decision", "late_driver"):
        halt(stage)
    if stage == "deciding":
        self._producer.begin_transaction()
        self._producer.send(self._topic, decision.to_json(), decision.query.encode(), 0)
        self._producer.flush()
        halt(stage)
    _decide(self, decision)


def _topic_of(decision: Any) -> str | None:
    return next((entry.witness[0] for entry in decision.tasks.values() if entry.witness), None)


def commit_transactions(self: Any, batch: int, reports: Any) -> None:
    stage = stage_in(self._options) if batch == BATCH else ""
    if stage in ("after_decision", "all_aborted"):
        halt(stage)
    if stage in ("half_committed", "half_aborted"):
        _commit_transactions(self, batch, reports[:1])
        halt(stage)
    _commit_transactions(self, batch, reports)


if FOLDER in os.environ:
    # Only in the processes of the driver. The tests import this module for its queries.
    two_phase.write = write
    two_phase.Driver.commit = commit  # type: ignore[method-assign]
    two_phase.Driver._commit_transactions = commit_transactions  # type: ignore[method-assign]
    two_phase.DecisionWriter.write = decide  # type: ignore[method-assign]


def query_of(spark: Any, servers: str, folder: Path, source: str, stage: str) -> Any:
    """Return the writer of a query. The run that crashes and the next run use the same query."""
    options = {"kafka.bootstrap.servers": servers}
    read = spark.readStream.format("kavka").options(
        **options, subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger="40"
    )
    return (
        read.load()
        .selectExpr("value")
        .writeStream.format("kavka")
        .options(**options, topic=f"{source}-{stage}", exactlyOnce="true", decisionsTopic=f"{source}-decisions-{stage}")
        .option("checkpointLocation", str(folder / stage))
    )


def application(spark: Any, servers: str, folder: Path, source: str, stage: str) -> Any:
    """Return an application that counts numbers by their remainder, and writes the count for each
    number."""
    from kavka.streams import KafkaStreams, Produced, Serdes, StreamsBuilder

    builder = StreamsBuilder()
    counts = builder.stream(source).group_by(lambda key, value: str(int(value) % GROUPS)).count()
    counts.to_stream().to(f"{source}-{stage}", Produced.with_(Serdes.String(), Serdes.Long()))
    settings = {
        "bootstrap.servers": servers,
        "application.id": f"{source}-{stage}",
        "state.dir": str(folder),
        "processing.guarantee": "exactly_once_v2",
        "cache.max.bytes.buffering": 0,
        "max.records.per.batch": 40,
    }
    return KafkaStreams(builder.build(), settings, spark)


def main() -> None:
    from kavka.pipeline.streams import compiler
    from tests.support import spark_crash
    from tests.support.spark import start, start_session

    def register(spark: Any) -> Any:
        spark.dataSource.register(spark_crash.CrashingSource)
        return spark

    compiler.register = register
    compiler.streams_sink = spark_crash.crashing_sink
    servers, folder, source, *stages = sys.argv[1:]
    spark = register(start_session(Path(folder) / "spark", master="local[10,4]"))

    def start_query(stage: str) -> Any:
        if stage not in STREAMS:
            return start(query_of(spark, servers, Path(folder), source, stage))
        streams = application(spark, servers, Path(folder), source, stage)
        streams.start()
        return streams.query

    def is_reached(stage: str) -> bool:
        if stage == "worker_killed":
            return (Path(folder) / stage / "commits" / "2").exists()
        return any(Path(folder).glob(f"{stage}.*"))

    # Start the queries one by one, because a small machine cannot start all processes at once.
    for stage in stages:
        query = start_query(stage)
        while not is_reached(stage):
            error = query.exception()
            if error is not None:
                if "failed to connect back" not in str(error):
                    sys.exit(f"{stage}: {error}")
                # A Python process did not start within Spark's limit of ten seconds. Retry.
                query = start_query(stage)
            time.sleep(0.1)
    while True:
        time.sleep(60)


if __name__ == "__main__":
    main()
