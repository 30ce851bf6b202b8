"""A driver of Spark that stops at a chosen stage of a batch, to be killed there.

As a module it is what Spark's Python processes load in place of the plain sink: importing it puts
halts into its two phases. A query halts in batch 1 where the last part of its output topic's name
says. As a program it runs a query for each stage:  python -m tests.support.spark_crash SERVERS
FOLDER PREFIX STAGE… Stages in STREAMS have a streams application with state for a query, the others
a query from topic to topic.
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
    """Say where we are and stay there."""
    folder = Path(os.environ[FOLDER])
    marker = folder / f"{name}.{os.getpid()}"
    marker.touch()
    if name == "late_driver":
        # A query that outlives its Spark session and continues on command.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while not (folder / "late_driver_may_go_on").exists():
            time.sleep(0.02)
        return
    while True:
        time.sleep(60)


def stage_of(topic: str | None) -> str:
    return (topic or "").rpartition("-")[2]


def stage_in(options: Any) -> str:
    """Of a sink: by its topic, or by the application, whose id begins its transactional ids."""
    return stage_of(options.topic or options.id_prefix.removesuffix("-"))


class CrashingWriter(KavkaStreamWriter):
    """Loaded by its name, with all that follows, in every process that writes or commits: those
    that read do not know this module, and Spark gives any process that is free to any query."""


class CrashingSource(KavkaDataSource):
    def streamWriter(self, schema: Any, overwrite: bool) -> CrashingWriter:
        return CrashingWriter(*self._sink(schema))


_write, _commit = two_phase.write, two_phase.Driver.commit
_end, _decide = two_phase.Driver._end, two_phase.DecisionWriter.write
_prepare = two_phase.Producer.prepare_transaction


def write(options: Any, where: Any, batches: Any, attempt: Any, before: Any = None, **more: Any) -> Any:
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
    return _write(options, where, batches, attempt, before, **more)


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


def end(self: Any, batch: int, new: Any) -> None:
    stage = stage_in(self._options) if batch == BATCH else ""
    if stage in ("after_decision", "all_aborted"):
        halt(stage)
    if stage in ("half_committed", "half_aborted"):
        _end(self, batch, new[:1])
        halt(stage)
    _end(self, batch, new)


if FOLDER in os.environ:
    # Not where the tests themselves run, which take from here what queries there are.
    two_phase.write = write
    two_phase.Driver.commit = commit  # type: ignore[method-assign]
    two_phase.Driver._end = end  # type: ignore[method-assign]
    two_phase.DecisionWriter.write = decide  # type: ignore[method-assign]


def query_of(spark: Any, servers: str, folder: Path, source: str, stage: str) -> Any:
    """The writer of a query; the same for the run that crashes and the one that follows it."""
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
    """Counts numbers by their remainder: an output for each, that says the how manieth of its kind
    it is."""
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
    servers, folder, source, *stages = sys.argv[1:]
    spark = register(start_session(Path(folder) / "spark", master="local[10,4]"))

    def started(stage: str) -> Any:
        if stage not in STREAMS:
            return start(query_of(spark, servers, Path(folder), source, stage))
        streams = application(spark, servers, Path(folder), source, stage)
        streams.start()
        return streams.query

    def there(stage: str) -> bool:
        if stage == "worker_killed":
            return (Path(folder) / stage / "commits" / "2").exists()
        return any(Path(folder).glob(f"{stage}.*"))

    # One after the other: all at once would be too many new processes for a small machine.
    for stage in stages:
        query = started(stage)
        while not there(stage):
            error = query.exception()
            if error is not None:
                if "failed to connect back" not in str(error):
                    sys.exit(f"{stage}: {error}")
                # A machine too busy for Spark's ten seconds: what is to be shown is another kind of
                # failure.
                query = started(stage)
            time.sleep(0.1)
    while True:
        time.sleep(60)


if __name__ == "__main__":
    main()
