"""A running connector: a Spark query or a loop of batches.

The tasks of a connector, as Kafka Connect's tools show them, are the Spark partitions of its jobs.
They run in parallel, and start and end together (decision 14).

A `Task` has a thread for all of them. It ends when all data is processed
(`trigger=available-now`, a batch source), after `stop()`, or with a failure; `on_end` receives the
outcome. A crash leaves Spark's checkpoint, from which the same batch runs again, and for
incremental sources the stored offsets with the plan of the batch that was started.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from kavka.common.config import ConfigType
from kavka.common.secret_settings import HIDDEN, secret_values
from kavka.common.types import TopicPartition
from kavka.pipeline.columns.errors import ColumnError
from kavka.pipeline.connect.api import Context, IncrementalSource, Sink, Source
from kavka.pipeline.connect.errors import ConfigErrors, ConnectError, task_in
from kavka.pipeline.connect.loading import NO_PLUGINS, Declared
from kavka.pipeline.connect.metrics import Measures
from kavka.pipeline.connect.options import warn_of_options_without_effect
from kavka.pipeline.connect.providers import Providers
from kavka.pipeline.connect.retries import Retries, TaskStopped
from kavka.pipeline.connect.settings import AVAILABLE_NOW, check_connector, client_settings, options_of, seconds
from kavka.pipeline.connect.stores import OffsetStore
from kavka.pipeline.spark.errors import cause_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger(__name__)

DONE, FAILED, STOPPED = "done", "failed", "stopped"
_WATCH_INTERVAL = 0.2
_SPARK_ATTEMPTS = 5
_PLACE = r"(?P<topic{0}>[\w.-]{{1,249}})-(?P<partition{0}>\d{{1,9}})"
_RECORD = re.compile(rf"for {_PLACE.format('')} at offset \d|at offset \d+ of {_PLACE.format(2)}\b")
# Queries start one at a time: Python processes that start together may all miss Spark's timeout.
_START_LOCK = threading.Lock()


@dataclass(frozen=True)
class Worker:
    """The resources that a worker shares with its tasks."""

    id: str
    properties: Mapping[str, str]
    spark: Callable[[], SparkSession]
    checkpoints: str
    offsets: OffsetStore
    exactly_once: bool = False
    shutdown_timeout: float = 5.0
    providers: Providers = field(default_factory=Providers)
    """The configuration providers, which resolve placeholders."""
    declared: Declared = NO_PLUGINS
    """Modules that configurations may name."""


@dataclass(frozen=True)
class Outcome:
    """How the tasks of a connector ended: DONE, FAILED or STOPPED; the trace of a failure, and the
    number of the task that failed."""

    kind: str
    trace: str | None = None
    task: int = 0


class Task:
    """Owns the thread, the query and the resolved settings of a connector. The herder calls `start`
    and `stop`. All other methods run in the task's thread."""

    def __init__(
        self,
        worker: Worker,
        name: str,
        cls: type[Source] | type[Sink],
        originals: Mapping[str, str],
        on_end: Callable[[Task, Outcome], None],
        on_topics: Callable[[set[str]], None] = lambda topics: None,
        on_tasks: Callable[[Task], None] = lambda task: None,
        count: int = 1,
    ) -> None:
        self.name = name
        self.cls = cls
        self.originals = dict(originals)
        self.settings = self.originals
        """`originals` with resolved placeholders, set when the task starts. Only this task has
        them."""
        self.worker = worker
        self.stopping = threading.Event()
        self.query: Any = None
        self.created_topics: set[str] = set()
        """Topics that a source has created or found."""
        self.failure: BaseException | None = None
        self.measures = Measures()
        self.cancel: Callable[[], None] | None = None
        """Cancels the current batch if no query writes it."""
        self.count = count
        """The number of tasks. It is an estimate until the units of work are known."""
        self.owners: Mapping[TopicPartition, int] = {}
        """The task of each topic partition that a sink reads."""
        self._on_end = on_end
        self.on_topics = on_topics
        self._on_tasks = on_tasks
        self._thread = threading.Thread(target=self._run, name=f"connect-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float | None = None) -> bool:
        """Stops the task. Returns whether it ended within the timeout."""
        self.stopping.set()
        for cancel in (None if self.query is None else self.query.stop, self.cancel):
            try:
                if cancel is not None:
                    cancel()
            except Exception as error:
                logger.debug("Cannot cancel the current batch of connector %s: %s", self.name, error)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    # --- the thread

    def _run(self) -> None:
        try:
            self._work()
            outcome = Outcome(STOPPED if self.stopping.is_set() else DONE)
        except BaseException as error:
            if self.stopping.is_set():
                outcome = Outcome(STOPPED)
            else:
                cause = self.failure or error
                trace = self.worker.providers.hide(describe_failure(cause))
                number = failed_task(cause, self.count, self.owners)
                logger.error("Task %s-%d failed: %s", self.name, number, trace)
                outcome = Outcome(FAILED, trace, number)
        self._on_end(self, outcome)

    def _work(self) -> None:
        worker, providers = self.worker, self.worker.providers
        self.settings = providers.resolve(self.originals, f"Connector {self.name}")
        passwords = {option.name for option in self.cls.options if option.type is ConfigType.PASSWORD}
        for value in secret_values(self.originals, passwords):
            providers.secrets.add(value, HIDDEN)
        config, errors = check_connector(
            self.cls, self.settings, worker.properties, worker.exactly_once, worker.declared
        )
        if errors:
            raise ConfigErrors(providers.hidden_errors(errors, self.originals, self.settings))
        warn_of_options_without_effect(options_of(self.cls), self.settings)
        is_sink = issubclass(self.cls, Sink)
        context = Context(
            name=self.name,
            config=config,
            given=self.settings,
            spark=worker.spark(),
            checkpoint=checkpoint_of(worker.checkpoints, self.name),
            client=client_settings(worker.properties),
            exactly_once=bool(config["exactly.once"]) if is_sink else worker.exactly_once,
            available_now=config["trigger"] == AVAILABLE_NOW,
        )
        retries = Retries(config["errors.retry.timeout"], config["errors.retry.delay.max.ms"], self.stopping)
        connector = self.cls()
        try:
            retries.call(f"Starting {self.name}", lambda: connector.start(context))
            if isinstance(connector, Sink):
                from kavka.pipeline.connect.sinks import run_sink

                run_sink(self, context, connector, retries)
            else:
                from kavka.pipeline.connect.sources import run_incremental, run_source

                if isinstance(connector, IncrementalSource):
                    run_incremental(self, context, connector, retries)
                else:
                    run_source(self, context, connector, retries)
        finally:
            try:
                connector.stop()
            except Exception as error:
                logger.warning("Connector %s did not stop cleanly: %s", self.name, error)

    def run_query(self, start: Callable[[], Any], on_progress: Callable[[Any], None]) -> None:
        """Runs a query until it ends; `on_progress` receives its progress. Spark gives its Python
        processes ten seconds to start, which may be too short on a busy machine. Only this failure
        is retried."""
        for attempt in range(1, _SPARK_ATTEMPTS + 1):
            if self.stopping.is_set():
                return
            with _START_LOCK:
                self.query = query = start()
                if self.stopping.is_set():
                    query.stop()
                while query.isActive and query.status["message"].startswith("Initializing"):
                    time.sleep(_WATCH_INTERVAL / 4)
            last_batch = -1
            while query.isActive:
                # The failure is raised below.
                with contextlib.suppress(Exception):
                    query.awaitTermination(_WATCH_INTERVAL)
                last_batch = _report_progress(query, last_batch, on_progress)
            error = query.exception()
            _report_progress(query, last_batch, on_progress)
            if error is None or self.stopping.is_set():
                return
            if "failed to connect back" not in str(error) or attempt == _SPARK_ATTEMPTS:
                raise self.failure or error
            logger.warning("Restarting connector %s: Spark's Python process did not start in time", self.name)

    def set_count(self, count: int, context: Context) -> None:
        """Publishes the number of tasks if it has changed. Raises ConnectError if a connector needs
        more than `tasks.max`."""
        if count > context["tasks.max"]:
            text = (
                f"The connector {self.name} has generated {count} tasks, which is greater than {context['tasks.max']}, "
                "the maximum number of tasks it is configured to create. "
            )
            if context["tasks.max.enforce"]:
                raise ConnectError(
                    f"{text}This behaviour should be considered a bug and is disallowed. If necessary, it can be "
                    "permitted by reconfiguring the connector with 'tasks.max.enforce' set to 'false'"
                )
            if count != self.count:
                logger.warning("%sThis behaviour should be considered a bug", text)
        if count != self.count:
            self.count = count
            self._on_tasks(self)

    def pause(self, seconds: float) -> bool:
        """Waits. Returns whether the task must stop."""
        return self.stopping.wait(seconds)


def _report_progress(query: Any, last_batch: int, on_progress: Callable[[Any], None]) -> int:
    """Reports a batch later than `last_batch`. Returns the number of the last reported batch."""
    progress = query.lastProgress
    if progress is None or progress.batchId == last_batch:
        return last_batch
    on_progress(progress)
    return int(progress.batchId)


def checkpoint_of(folder: str, name: str) -> str:
    """Returns the connector's folder in the worker's folder of checkpoints. The name is escaped, so
    that it cannot lead out of that folder."""
    escaped = quote(name, safe="") if name.strip(".") else name.replace(".", "%2E")
    return f"{folder.rstrip('/')}/{escaped}"


def failed_task(error: BaseException, count: int, owners: Mapping[TopicPartition, int]) -> int:
    """Returns the number of the task that failed: the owner of the record in the error message, or
    the Spark task, which has the number of the connector's task. Spark does not report the number
    for all errors of records; it is then 0."""
    cause: BaseException | None = error
    while cause is not None:
        number = cause.task if isinstance(cause, ConnectError) else None
        if number is None:
            text = error_text(cause)
            number = next((owners.get(tp) for tp in _partitions_in(text)), task_in(text))
        if number is not None:
            return number if number < count else 0
        cause = cause.__cause__
    return 0


def _partitions_in(text: str) -> list[TopicPartition]:
    """Returns the topic partition of the record that an error message names."""
    match = _RECORD.search(text)
    if match is None:
        return []
    return [TopicPartition(match["topic"] or match["topic2"], int(match["partition"] or match["partition2"]))]


def error_text(error: BaseException) -> str:
    """Returns the message. Spark's exceptions fetch it from Spark's process, which may have
    ended."""
    try:
        return str(error)
    except Exception:
        return ""


def describe_failure(error: BaseException) -> str:
    """Returns the trace in the status of a task: the error in the first line, then the stack
    trace."""
    try:
        str(error)
    except Exception as failure:
        return f"{type(error).__module__}.{type(error).__qualname__}: Spark's process has ended ({failure})"
    if isinstance(error, (ColumnError, ConnectError, TaskStopped)):
        cause = f"\nCaused by: {cause_text(error.__cause__)}" if error.__cause__ is not None else ""
        return f"{type(error).__module__}.{type(error).__qualname__}: {error}{cause}"
    first_line = f"{type(error).__module__}.{type(error).__qualname__}: {cause_text(error)}"
    lines = traceback.format_exception(error)
    return "\n".join([first_line, *"".join(lines).rstrip().splitlines()[-40:]])


def cause_text(error: BaseException) -> str:
    """Returns the cause of an exception that Spark raises."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for line in lines:
        if "RECORD FAILED in " in line:
            return line[line.index("RECORD FAILED in ") + len("RECORD FAILED in ") :]
    marks = ("PipelineError:", "OptionError:", "DataLoss:", "ConnectError:", "RetriableError:")
    return cause_in(lines, marks) if lines else type(error).__name__


def writer_options(context: Context) -> dict[str, str]:
    """Returns the options of the Spark sink `kavka`: the worker's settings, overridden by the
    connector's `producer.override.…`."""
    options = {f"kafka.{name}": value for name, value in context.client.items()}
    options |= {f"kafka.{name}": value for name, value in context.with_prefix("producer.override.").items()}
    if context.exactly_once:
        options |= {"exactlyOnce": "true", "transactionalIdPrefix": f"connect-{context.name}-"}
    return options


def trigger_of(context: Context) -> dict[str, Any]:
    if context.available_now:
        return {"availableNow": True}
    interval = seconds(context["trigger.interval"])
    return {"processingTime": f"{int((interval or 0) * 1000)} milliseconds"}


def write_frame(frame: DataFrame, options: Mapping[str, str]) -> None:
    frame.write.format("kavka").options(**options).mode("append").save()
