"""Runs flows. A flow is a Spark Structured Streaming query, which is restarted after failures, and
its housekeeping.

After every batch a flow commits its offsets to its group in the source. When it starts, it
continues at the committed offsets. Spark's checkpoint is deleted when the flow stops. An
exactly-once flow keeps the checkpoint in `state.dir`, so that a batch that was started before a
crash is repeated identically.

A flow that several processes share (`sharing.py`) ends by itself when its process no longer holds
it. Each query of such a flow begins with a claim in the target (`spark/fencing.py`). The source of
an earlier query, in any process, ends before its next micro-batch and before it commits offsets.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from kavka.client.admin import Admin
from kavka.client.admin.types import OffsetSpec
from kavka.common.errors import KafkaError
from kavka.common.types import TopicPartition
from kavka.pipeline.mirror.flow import PROGRESS_PREFIX, Flow
from kavka.pipeline.mirror.housekeeping import Housekeeping
from kavka.pipeline.mirror.sharing import FlowGroup
from kavka.pipeline.mirror.status import (
    DEGRADED,
    FAILED,
    RETRYING,
    RUNNING,
    STARTING,
    STOPPED,
    UNASSIGNED,
    FlowStatus,
)
from kavka.pipeline.spark import activate, fencing
from kavka.pipeline.spark.errors import PipelineError, cause_in
from kavka.pipeline.spark.offsets import from_checkpoint
from kavka.pipeline.spark.session import build_session, is_local

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
    settings = {**_SPARK_SETTINGS, **(config or {})}
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not is_submitted and is_local(master or os.environ.get("SPARK_MASTER") or "local"):
        # Executors of other machines may receive Kavka only after their daemon has started.
        settings.setdefault("spark.python.daemon.module", "kavka.pipeline.mirror.daemon")
    return build_session("kavka-mirror", settings, master, log_level="OFF")


class RunningFlow:
    """Owns the query, the housekeeping and the status of one flow. Its thread starts and monitors
    the query. The flow runs while `holds` returns True, and can be started again after its end."""

    def __init__(self, flow: Flow, spark: SparkSession | None, holds: Callable[[], bool] = lambda: True) -> None:
        self.flow = flow
        self.status = FlowStatus(flow.name)
        self._spark = spark
        self._holds = holds
        self._stop = threading.Event()
        self._housekeeping = Housekeeping(flow, holds)
        self._thread: threading.Thread | None = None
        self._query: StreamingQuery | None = None
        self._admin: Admin | None = None
        self._lag_due = 0.0
        self._checkpoint = ""

    def start(self) -> None:
        self._stop = threading.Event()
        self._housekeeping = Housekeeping(self.flow, self._holds)
        self.status.begin()
        self._thread = threading.Thread(target=self._run, name=f"mirror-query-{self.flow.name}", daemon=True)
        self._housekeeping.start()
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._housekeeping.stop()

    def join(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        if self._thread is not None:
            self._thread.join(timeout)
            self._housekeeping.join(max(0.0, deadline - time.monotonic()))
        if self.status.state != FAILED:
            self.status.state = STOPPED

    @property
    def is_active(self) -> bool:
        """Whether a thread of the flow still runs."""
        return self._thread is not None and (self._thread.is_alive() or self._housekeeping.is_active)

    @property
    def has_ended(self) -> bool:
        return self.status.state in (FAILED, STOPPED)

    # --- the query's thread

    def _is_over(self) -> bool:
        return self._stop.is_set() or not self._holds()

    def _wait(self, seconds: float) -> None:
        """Wait for this time, or until the flow ends."""
        deadline = time.monotonic() + seconds
        while not self._is_over() and (remaining := deadline - time.monotonic()) > 0:
            self._stop.wait(min(_POLL_INTERVAL, remaining))

    def _run(self) -> None:
        status = self.status
        try:
            while not self._is_over() and not self._housekeeping.ready.wait(_POLL_INTERVAL):
                self._update_state(STARTING)
            if self.flow.enabled:
                self._checkpoint = self._checkpoint_folder()
                self._run_queries()
            else:
                while not self._is_over():
                    self._update_state(RUNNING)
                    self._stop.wait(_POLL_INTERVAL)
            # A flow that is not held any more may be assigned again.
            status.state = STOPPED if self._stop.is_set() else UNASSIGNED
        except PipelineError as error:
            status.state, status.error = FAILED, str(error)
            logger.error("The flow %s failed: %s", self.flow.name, error)
        except Exception as error:
            status.state, status.error = FAILED, str(error)
            logger.exception("%s: the flow failed", self.flow.name)
        finally:
            if self._admin is not None:
                self._admin.close()
                self._admin = None
            if self._checkpoint and not self.flow.exactly_once:
                shutil.rmtree(self._checkpoint, ignore_errors=True)

    def _update_state(self, state: str) -> None:
        """Set the state. Raises PipelineError if the housekeeping has ended."""
        failure, error = self._housekeeping.failure, self._housekeeping.error
        if failure is not None:
            raise PipelineError(failure)
        self.status.state = DEGRADED if error and state == RUNNING else state
        self.status.error = error

    def _run_queries(self) -> None:
        """Run the query, and start it again after an error, until the flow ends. Raises
        PipelineError if a retry does not help."""
        status = self.status
        pause = 1.0
        while not self._is_over():
            began = time.monotonic()
            error = self._run_query()
            if error is None:
                return
            if _REJECTED in error and self.flow.abort_on_failure:
                raise PipelineError(error)
            status.state, status.error = RETRYING, error
            status.restarts += 1
            # Reset the delay after a run of more than a minute.
            pause = 1.0 if time.monotonic() - began > 60 else min(_MAX_PAUSE, pause * 2)
            logger.warning("The query of flow %s failed and is restarted: %s", self.flow.name, error)
            self._wait(pause)

    def _claim(self) -> str:
        """Fence the queries of other processes. Returns the claim for the source, "" if the flow is
        not shared."""
        flow = self.flow
        if not flow.sharing_group:
            return ""
        with Admin(dict(flow.target_admin)) as admin:
            claim = fencing.claim(admin, f"{PROGRESS_PREFIX}{flow.source}-{flow.target}-{flow.sharing_group}")
        if claim is None:
            raise PipelineError(
                f"processes can share flows to {flow.target} only with the right to Write and Describe transactional "
                f"ids with the prefix {PROGRESS_PREFIX}"
            )
        return claim.to_text()

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
        options = {"flow": self.flow.to_json()}
        try:
            options["claim"] = self._claim()
            activate(spark)
            spark.dataSource.register(MirrorDataSource)
            spark.sparkContext.setLocalProperty("spark.scheduler.pool", self.flow.name)
            frame = spark.readStream.format(FORMAT).options(**options).load()
            writer = frame.writeStream.format(FORMAT).options(**options).option("checkpointLocation", self._checkpoint)
            if self._is_over():
                return None
            query = self._query = writer.start()
            try:
                while query.isActive and not self._is_over():
                    self._update_status(query)
                    self._stop.wait(_POLL_INTERVAL)
                if self._is_over():
                    return None
                failure = query.exception()
                return "the query ended" if failure is None else _reason(str(failure))
            finally:
                query.stop()
        except (PySparkException, KafkaError) as error:
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
        self._update_state(RUNNING)

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
    """All flows of a configuration file. `sharing.py` starts those that other processes run as
    well."""

    def __init__(self, flows: Iterable[Flow], spark: SparkSession | None = None) -> None:
        self.flows = [RunningFlow(flow, spark, partial(self._holds, flow)) for flow in flows]
        by_group: dict[tuple[str, str], list[RunningFlow]] = {}
        for flow in self.flows:
            by_group.setdefault((flow.flow.sharing_group, flow.flow.target), []).append(flow)
        self._unshared = [flow for (group, _), members in by_group.items() for flow in members if not group]
        self._groups = {key: FlowGroup(members, self._stand_by) for key, members in by_group.items() if key[0]}
        self._spark = spark
        self._warm_up: threading.Thread | None = None

    def _holds(self, flow: Flow) -> bool:
        group = self._groups.get((flow.sharing_group, flow.target))
        return group is None or group.holds(flow.name)

    def _stand_by(self) -> None:
        """Prepare Spark for flows that this process takes over."""
        from kavka.pipeline.mirror.warm_up import warm_up

        if self._spark is not None and self._warm_up is None:
            self._warm_up = threading.Thread(target=warm_up, args=(self._spark,), name="mirror-warm-up", daemon=True)
            self._warm_up.start()

    def start(self) -> None:
        for flow in self._unshared:
            flow.start()
        for group in self._groups.values():
            group.start()

    def statuses(self) -> list[FlowStatus]:
        return [flow.status for flow in self.flows]

    @property
    def has_ended(self) -> bool:
        """Whether all flows that mirror records in this process have ended. A process without such
        flows waits for those of other processes."""
        flows = [flow for flow in self.flows if flow.flow.enabled and flow.status.state != UNASSIGNED]
        return bool(flows) and all(flow.has_ended for flow in flows)

    def stop(self, timeout: float = 60.0) -> None:
        for group in self._groups.values():
            group.stop()
        for flow in self.flows:
            flow.stop()
        deadline = time.monotonic() + timeout
        for flow in self.flows:
            flow.join(max(0.0, deadline - time.monotonic()))
        for group in self._groups.values():
            group.join(max(0.0, deadline - time.monotonic()))


def _offsets(text: Any) -> dict[TopicPartition, int]:
    value = json.loads(text) if isinstance(text, str) else text
    return from_checkpoint(value) if isinstance(value, dict) else {}


def _reason(text: str) -> str:
    """Return the message of our exception in an error message of Spark, or the first line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return cause_in(lines, ("PipelineError: ", "Fenced: "))[:500] if lines else "the query failed"
