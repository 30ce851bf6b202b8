"""Runs flows. A flow is a Spark Structured Streaming query, which is restarted after failures, and
its housekeeping.

After every batch a flow commits its offsets to its group in the source. When it starts, it
continues at the committed offsets. Spark's checkpoint is deleted when the flow stops. An
exactly-once flow keeps the checkpoint in `state.dir`, so that a batch that was started before a
crash is repeated identically.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from kavka.client.admin import Admin
from kavka.client.admin.types import OffsetSpec
from kavka.common.errors import KafkaError
from kavka.common.types import TopicPartition
from kavka.pipeline.mirror.flow import Flow
from kavka.pipeline.mirror.housekeeping import Housekeeping
from kavka.pipeline.mirror.status import FAILED, RETRYING, RUNNING, STOPPED, FlowStatus
from kavka.pipeline.spark import activate
from kavka.pipeline.spark.offsets import from_checkpoint
from kavka.pipeline.spark.session import build_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

logger = logging.getLogger(__name__)

_SPARK_SETTINGS = {
    # Several flows share the cores fairly.
    "spark.scheduler.mode": "FAIR",
    # A row is a range of record batches, whose size may exceed a megabyte.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "256",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(4 * 1024 * 1024),
}
# Part of the sink's message for a record that the target rejects. Retrying does not help.
_REJECTED = "was not written"
_POLL_INTERVAL = 0.2
_LAG_INTERVAL = 1.0
_MAX_PAUSE = 30.0


def session(master: str | None = None, config: Mapping[str, str] | None = None) -> SparkSession:
    return build_session("kavka-mirror", {**_SPARK_SETTINGS, **(config or {})}, master, log_level="OFF")


class RunningFlow:
    """Owns the query, the housekeeping and the status of one flow. Its thread starts and monitors
    the query."""

    def __init__(self, flow: Flow, spark: SparkSession | None) -> None:
        self.flow = flow
        self.status = FlowStatus(flow.name)
        self._spark = spark
        self._housekeeping = Housekeeping(flow)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"mirror-query-{flow.name}", daemon=True)
        self._query: StreamingQuery | None = None
        self._admin: Admin | None = None
        self._lag_due = 0.0
        self._checkpoint = ""

    def start(self) -> None:
        self._housekeeping.start()
        if self.flow.enabled:
            self._thread.start()
        else:
            self.status.state = RUNNING

    def stop(self) -> None:
        self._stop.set()
        self._housekeeping.stop()

    def join(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        if self.flow.enabled:
            self._thread.join(timeout)
        self._housekeeping.join(max(0.0, deadline - time.monotonic()))
        if self.status.state != FAILED:
            self.status.state = STOPPED

    @property
    def has_ended(self) -> bool:
        return self.flow.enabled and not self._thread.is_alive() and self._thread.ident is not None

    # --- the query's thread

    def _run(self) -> None:
        pause = 1.0
        try:
            while not self._housekeeping.ready.wait(_POLL_INTERVAL):
                self.status.error = self._housekeeping.last_error
                if self._stop.is_set():
                    return
            self._checkpoint = self._checkpoint_folder()
            while not self._stop.is_set():
                began = time.monotonic()
                error = self._run_query()
                if error is None:
                    return
                self.status.error = error
                if _REJECTED in error and self.flow.abort_on_failure:
                    self.status.state = FAILED
                    logger.error("The flow %s failed: %s", self.flow.name, error)
                    return
                self.status.state = RETRYING
                self.status.restarts += 1
                # Reset the delay after a run of more than a minute.
                pause = 1.0 if time.monotonic() - began > 60 else min(_MAX_PAUSE, pause * 2)
                logger.warning("The query of flow %s failed and is restarted: %s", self.flow.name, error)
                self._stop.wait(pause)
        except Exception as error:
            self.status.state, self.status.error = FAILED, str(error)
            logger.exception("%s: the flow failed", self.flow.name)
        finally:
            if self._admin is not None:
                self._admin.close()
            if self._checkpoint and not self.flow.exactly_once:
                shutil.rmtree(self._checkpoint, ignore_errors=True)

    def _checkpoint_folder(self) -> str:
        flow = self.flow
        if not flow.exactly_once:
            return tempfile.mkdtemp(prefix="kavka-mirror-")
        servers = f"{flow.source_admin.get('bootstrap.servers')} {flow.target_admin.get('bootstrap.servers')}"
        name = f"{flow.source}-{flow.target}-{hashlib.sha256(f'{servers} {flow.group}'.encode()).hexdigest()[:8]}"
        return f"{flow.state_dir.rstrip('/')}/{name}"

    def _run_query(self) -> str | None:
        """Run the query until it ends. Returns None if it was stopped, otherwise the error."""
        from pyspark.errors import PySparkException

        from kavka.pipeline.mirror.source import FORMAT, MirrorDataSource

        spark = self._spark
        assert spark is not None
        flow = self.flow.to_json()
        try:
            activate(spark)
            spark.dataSource.register(MirrorDataSource)
            spark.sparkContext.setLocalProperty("spark.scheduler.pool", self.flow.name)
            frame = spark.readStream.format(FORMAT).option("flow", flow).load()
            writer = (
                frame.writeStream.format(FORMAT).option("flow", flow).option("checkpointLocation", self._checkpoint)
            )
            query = self._query = writer.start()
            self.status.state = RUNNING
            while query.isActive and not self._stop.is_set():
                self._update_status(query)
                self._stop.wait(_POLL_INTERVAL)
            if self._stop.is_set():
                query.stop()
                return None
            failure = query.exception()
            return "the query ended" if failure is None else _reason(str(failure))
        except PySparkException as error:
            return _reason(str(error))

    # --- progress

    def _update_status(self, query: StreamingQuery) -> None:
        status = self.status
        progress = query.lastProgress
        if progress is not None and progress["batchId"] != status.batch and progress["sources"]:
            self._on_batch_completed(progress)
        if time.monotonic() >= self._lag_due:
            self._lag_due = time.monotonic() + _LAG_INTERVAL
            self._measure_lag()
        status.refused_topics = sorted(self._housekeeping.refused_topics)
        if status.state == RUNNING:
            status.error = self._housekeeping.last_error

    def _on_batch_completed(self, progress: Any) -> None:
        status, source = self.status, progress["sources"][0]
        end = _offsets(source["endOffset"])
        start = status.next_offsets or _offsets(source["startOffset"])
        count = sum(max(0, offset - start.get(tp, 0)) for tp, offset in end.items())
        millis = progress["durationMs"].get("triggerExecution", 0)
        status.batch = progress["batchId"]
        status.next_offsets = end
        status.records += count
        status.records_per_second = count * 1000 / millis if millis else 0.0
        self._lag_due = 0.0

    def _measure_lag(self) -> None:
        next_offsets = self.status.next_offsets
        if not next_offsets:
            return
        try:
            if self._admin is None:
                self._admin = Admin({**self.flow.source_admin, "request.timeout.ms": "5000"})
            level = self.flow.consumer.get("isolation.level", "read_uncommitted")
            ends = self._admin.list_offsets(
                dict.fromkeys(next_offsets, OffsetSpec.latest()), isolation_level=level, timeout=5.0
            )
            self.status.lag = {tp: max(0, end.offset - next_offsets[tp]) for tp, end in ends.items()}
        except KafkaError as error:
            logger.debug("%s: cannot list end offsets: %s", self.flow.name, error)


class Mirror:
    """All flows of a configuration file."""

    def __init__(self, flows: Iterable[Flow], spark: SparkSession | None = None) -> None:
        self.flows = [RunningFlow(flow, spark) for flow in flows]

    def start(self) -> None:
        for flow in self.flows:
            flow.start()

    def statuses(self) -> list[FlowStatus]:
        return [flow.status for flow in self.flows]

    @property
    def has_ended(self) -> bool:
        """Whether all flows that mirror records have ended."""
        return all(flow.has_ended for flow in self.flows if flow.flow.enabled)

    def stop(self, timeout: float = 60.0) -> None:
        for flow in self.flows:
            flow.stop()
        deadline = time.monotonic() + timeout
        for flow in self.flows:
            flow.join(max(0.0, deadline - time.monotonic()))


def _offsets(text: Any) -> dict[TopicPartition, int]:
    value = json.loads(text) if isinstance(text, str) else text
    return from_checkpoint(value) if isinstance(value, dict) else {}


def _reason(text: str) -> str:
    """Return the message of our exception in an error message of Spark, or the first line."""
    for line in text.splitlines():
        _, separator, message = line.partition("PipelineError: ")
        if separator:
            return message.strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[0] if lines else "the query failed")[:500]
