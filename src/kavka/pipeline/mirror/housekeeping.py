"""The periodic jobs of a flow: create and configure topics, sync ACLs and groups, and write
heartbeats."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from kavka.client.admin import Admin
from kavka.client.producer.producer import Producer
from kavka.common.config import ConfigError
from kavka.common.errors import KafkaError
from kavka.pipeline.mirror.acls import AclSync
from kavka.pipeline.mirror.flow import Flow
from kavka.pipeline.mirror.groups import GroupSync
from kavka.pipeline.mirror.policy import HEARTBEATS
from kavka.pipeline.mirror.records import Heartbeat
from kavka.pipeline.mirror.source import describe_existing
from kavka.pipeline.mirror.topics import TopicSync
from kavka.pipeline.spark.errors import PipelineError

logger = logging.getLogger(__name__)

_RETRY_DELAY = 1.0
_MAX_RETRY_DELAY = 30.0
_VISIBLE_TIMEOUT = 30.0
_MAX_PROBLEMS = 3


@dataclass
class Job:
    """A periodic job. With an `interval` of 0 or less it runs once. `due` is the monotonic time of
    the next run. `error` is that of the last run, also of a part that failed while the rest was
    done."""

    name: str
    interval: float
    work: Callable[[], object]
    due: float = 0.0
    failures: int = 0
    error: str | None = None


class Housekeeping:
    """Owns the thread that runs the jobs. A failed job is retried. The flow's query starts when
    `ready` is set. The jobs run only while `may_run` returns True."""

    def __init__(self, flow: Flow, may_run: Callable[[], bool] = lambda: True) -> None:
        self._flow = flow
        self._may_run = may_run
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"mirror-{flow.name}", daemon=True)
        self._problems: list[str] = []
        self.ready = threading.Event()
        """Set when all topics that the target accepts have been created."""
        self.error: str | None = None
        """The errors of the jobs that fail."""
        self.failure: str | None = None
        """The error that ended the thread: settings that a client does not accept."""
        self.refused_topics: set[str] = set()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def join(self, timeout: float) -> None:
        self._thread.join(timeout)

    @property
    def is_active(self) -> bool:
        return self._thread.is_alive()

    def report(self, problem: str) -> None:
        """Log the error of a part of the running job, and add it to the error of the job."""
        logger.error("%s: %s", self._flow.name, problem)
        self._problems.append(problem)

    def _is_over(self) -> bool:
        return self._stop.is_set() or not self._may_run()

    def _run(self) -> None:
        failures = 0
        while not self._is_over():
            try:
                self._run_jobs()
            except (ConfigError, PipelineError) as error:
                self.failure = str(error)
                return
            except Exception as error:
                failures += 1
                self.error = f"housekeeping: {error}"
                logger.exception("%s: the housekeeping failed and is started again", self._flow.name)
                self._stop.wait(_delay(failures))

    def _run_jobs(self) -> None:
        flow = self._flow
        with Admin(dict(flow.source_admin)) as source, Admin(dict(flow.target_admin)) as target:
            jobs = Jobs(flow, source, target, self)
            try:
                while not self._is_over():
                    # Short waits, because `may_run` may change.
                    self._stop.wait(min(0.2, max(0.05, self._run_due(jobs.all) - time.monotonic())))
            finally:
                jobs.close()

    def _run_due(self, jobs: list[Job]) -> float:
        """Run the jobs that are due. Returns the monotonic time of the next job."""
        for job in jobs:
            if not self._is_over() and time.monotonic() >= job.due:
                self._run_job(job)
        self.error = "; ".join(f"{job.name}: {job.error}" for job in jobs if job.error) or None
        # The first two jobs create the topics.
        if all(not job.failures for job in jobs[:2]):
            self.ready.set()
        return min([job.due for job in jobs], default=float("inf"))

    def _run_job(self, job: Job) -> None:
        self._problems.clear()
        try:
            job.work()
        except Exception as error:
            # Also errors of custom filters. The other jobs continue.
            job.failures += 1
            job.error = str(error) or type(error).__name__
            job.due = time.monotonic() + _delay(job.failures)
            expected = isinstance(error, (KafkaError, ConfigError, PipelineError))
            logger.warning(
                "%s: %s failed and is retried: %s", self._flow.name, job.name, error,
                exc_info=None if expected else error,
            )  # fmt: skip
            return
        problems = self._problems
        more = [f"{len(problems) - _MAX_PROBLEMS} more errors"] if len(problems) > _MAX_PROBLEMS else []
        job.error = ", ".join([*problems[:_MAX_PROBLEMS], *more]) or None
        job.failures = 0
        job.due = time.monotonic() + job.interval if job.interval > 0 else float("inf")


def _delay(failures: int) -> float:
    return min(_MAX_RETRY_DELAY, _RETRY_DELAY * float(2 ** min(failures, 5)))


class Jobs:
    """The jobs of a flow, with their clients. Only the thread of `Housekeeping` may call it."""

    def __init__(self, flow: Flow, source: Admin, target: Admin, housekeeping: Housekeeping) -> None:
        self._flow = flow
        self._source = source
        self._target = target
        self._housekeeping = housekeeping
        self._topics = TopicSync(flow, source, target, housekeeping.report)
        self._groups: GroupSync | None = None
        self._heartbeat_producer: Producer | None = None
        self.all = [Job("creating internal topics", 0, self._topics.create_internal_topics)]
        if flow.enabled:
            self._add("refreshing topics", flow.refresh_topics, self._refresh)
            if flow.sync_configs:
                self._add("syncing the settings of topics", flow.sync_configs_interval, self._topics.sync_configs)
            if flow.sync_acls:
                acls = AclSync(flow, source, target, housekeeping.report)
                self._add("syncing the ACLs of topics", flow.sync_acls_interval, acls.sync)
            if flow.emit_checkpoints:
                self._add("refreshing groups", flow.refresh_groups, self._refresh_groups)
                self._add("checkpoints", flow.checkpoints_interval, self._checkpoints)
                if flow.sync_groups:
                    self._add("syncing the offsets of groups", flow.sync_groups_interval, self._sync_groups)
        if flow.emit_heartbeats:
            self._add("heartbeats", flow.heartbeats_interval, self._heartbeat)

    def _add(self, name: str, interval: float, work: Callable[[], object]) -> None:
        self.all.append(Job(name, interval, work))

    def close(self) -> None:
        if self._groups is not None:
            self._groups.close()
        if self._heartbeat_producer is not None:
            self._heartbeat_producer.close(1.0)

    def _refresh(self) -> None:
        if not self._flow.create_topics and self._housekeeping.ready.is_set():
            return
        changed = self._topics.refresh()
        self._housekeeping.refused_topics = self._topics.refused_topics
        if changed and not self._housekeeping.ready.is_set():
            self._wait_for_topics()

    def _wait_for_topics(self) -> None:
        """Wait until the target's metadata contains the new topics. `Flow.reset` applies only to
        partitions that exist when the flow starts."""
        flow = self._flow
        deadline = time.monotonic() + _VISIBLE_TIMEOUT
        while time.monotonic() < deadline:
            remote = {flow.remote_topic(name) for name in self._source.list_topics() if flow.mirrors(name)}
            existing = describe_existing(self._target, remote)
            if len(existing) == len(remote) and all(
                p.leader is not None for t in existing.values() for p in t.partitions
            ):
                return
            time.sleep(0.1)

    def _group_sync(self) -> GroupSync:
        if self._groups is None:
            self._groups = GroupSync(self._flow, self._source, self._target, self._housekeeping.report)
        return self._groups

    def _refresh_groups(self) -> None:
        self._group_sync().refresh_groups()

    def _checkpoints(self) -> None:
        self._group_sync().emit_checkpoints()

    def _sync_groups(self) -> None:
        self._group_sync().sync_offsets()

    def _heartbeat(self) -> None:
        flow = self._flow
        if self._heartbeat_producer is None:
            self._heartbeat_producer = Producer({**flow.target_admin, "linger.ms": "0", "max.block.ms": "5000"})
        heartbeat = Heartbeat(flow.source, flow.target, int(time.time() * 1000))
        self._heartbeat_producer.send(HEARTBEATS, heartbeat.value(), heartbeat.key(), 0).get(10.0)
