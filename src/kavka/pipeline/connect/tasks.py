"""A running connector: its one task, which is a Spark query or a loop of batches.

A task has its own thread. It ends when all data is processed (`trigger=available-now`, a batch
source), after `stop()`, or with a failure; `on_end` receives the outcome. A crash leaves Spark's
checkpoint, from which the same batch runs again, and for incremental sources the stored offsets
with the plan of the batch that was started.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kavka.common.config import ConfigType
from kavka.pipeline.connect.api import Context, IncrementalSource, Sink, Source
from kavka.pipeline.connect.errors import ConfigErrors, ConnectError
from kavka.pipeline.connect.loading import NOTHING, Declared
from kavka.pipeline.connect.options import warn_of_options_without_effect
from kavka.pipeline.connect.providers import HIDDEN, Providers, secret_values
from kavka.pipeline.connect.retries import Retries, Stopped
from kavka.pipeline.connect.settings import AVAILABLE_NOW, check_connector, client_settings, options_of, seconds
from kavka.pipeline.connect.stores import OffsetStore
from kavka.pipeline.spark.errors import cause_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger(__name__)

DONE, FAILED, STOPPED = "done", "failed", "stopped"
_WATCH = 0.2
_SPARK_TRIES = 5
# Start one query at a time: processes that start together may all miss Spark's timeout.
_STARTING = threading.Lock()


@dataclass(frozen=True)
class Worker:
    """The resources that a worker shares with its tasks."""

    id: str
    properties: Mapping[str, str]
    spark: Callable[[], SparkSession]
    checkpoints: str
    offsets: OffsetStore
    exactly_once: bool = False
    shutdown: float = 5.0
    providers: Providers = field(default_factory=Providers)
    """Resolve the placeholders of configurations."""
    declared: Declared = NOTHING
    """Modules that configurations may name."""


@dataclass(frozen=True)
class Outcome:
    """How a task ended: DONE, FAILED or STOPPED, and the trace of a failure."""

    kind: str
    trace: str | None = None


class Task:
    """Owns the thread, the query and the resolved settings of a connector. The herder calls `start`
    and `stop`; the other methods run in the task's thread."""

    def __init__(
        self,
        worker: Worker,
        name: str,
        cls: type[Source] | type[Sink],
        originals: Mapping[str, str],
        on_end: Callable[[Task, Outcome], None],
        on_topics: Callable[[set[str]], None] = lambda topics: None,
    ) -> None:
        self.name = name
        self.cls = cls
        self.originals = dict(originals)
        self.settings = self.originals
        """`originals` with resolved placeholders, while the task runs. Only this task sees them."""
        self.worker = worker
        self.stopping = threading.Event()
        self.query: Any = None
        self.created_topics: set[str] = set()
        """Topics that a source has created or found."""
        self.failure: BaseException | None = None
        self.cancel: Callable[[], None] | None = None
        """Cancels the current batch if no query writes it."""
        self._on_end = on_end
        self.on_topics = on_topics
        self._thread = threading.Thread(target=self._run, name=f"connect-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float | None = None) -> bool:
        """Whether the task ended within the timeout."""
        self.stopping.set()
        for end in (None if self.query is None else self.query.stop, self.cancel):
            try:
                if end is not None:
                    end()
            except Exception as error:
                logger.debug("Stopping %s: %s", self.name, error)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    # --- inside

    def _run(self) -> None:
        try:
            self._work()
            outcome = Outcome(STOPPED if self.stopping.is_set() else DONE)
        except BaseException as error:
            if self.stopping.is_set():
                outcome = Outcome(STOPPED)
            else:
                trace = self.worker.providers.hidden(describe_failure(self.failure or error))
                logger.error("Task %s-0 failed: %s", self.name, trace)
                outcome = Outcome(FAILED, trace)
        self._on_end(self, outcome)

    def _work(self) -> None:
        providers = self.worker.providers
        self.settings = providers.resolved(self.originals, f"Connector {self.name}")
        worker = self.worker
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
            spark=self.worker.spark(),
            checkpoint=checkpoint_of(self.worker.checkpoints, self.name),
            client=client_settings(self.worker.properties),
            exactly_once=bool(config["exactly.once"]) if is_sink else self.worker.exactly_once,
            available_now=config["trigger"] == AVAILABLE_NOW,
        )
        retries = Retries(config["errors.retry.timeout"], config["errors.retry.delay.max.ms"], self.stopping)
        connector = self.cls()
        try:
            retries.call(f"{self.name} starts", lambda: connector.start(context))
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
                logger.warning("%s did not stop cleanly: %s", self.name, error)

    def run_query(self, start: Callable[[], Any], on_progress: Callable[[Any], None]) -> None:
        """Run a query until it ends; `on_progress` receives its progress. Spark gives its Python
        processes ten seconds to start, which may be too short on a busy machine: only that is
        retried."""
        for attempt in range(1, _SPARK_TRIES + 1):
            if self.stopping.is_set():
                return
            with _STARTING:
                self.query = query = start()
                if self.stopping.is_set():
                    query.stop()
                while query.isActive and query.status["message"].startswith("Initializing"):
                    time.sleep(_WATCH / 4)
            last = -1
            while query.isActive:
                # The failure is raised below.
                with contextlib.suppress(Exception):
                    query.awaitTermination(_WATCH)
                last = _report_progress(query, last, on_progress)
            error = query.exception()
            _report_progress(query, last, on_progress)
            if error is None or self.stopping.is_set():
                return
            if "failed to connect back" not in str(error) or attempt == _SPARK_TRIES:
                raise self.failure or error
            logger.warning("Restarting %s: Spark's Python process did not start in time", self.name)

    def pause(self, wait: float) -> bool:
        """Whether the task must stop."""
        return self.stopping.wait(wait)

    def new_run(self) -> str:
        return uuid.uuid4().hex


def _report_progress(query: Any, last: int, on_progress: Callable[[Any], None]) -> int:
    progress = query.lastProgress
    if progress is not None and progress.batchId != last:
        on_progress(progress)
        return int(progress.batchId)
    return last


def checkpoint_of(folder: str, name: str) -> str:
    from urllib.parse import quote

    # A name must not lead out of the folder.
    safe = quote(name, safe="") if name.strip(".") else name.replace(".", "%2E")
    return f"{folder.rstrip('/')}/{safe}"


def describe_failure(error: BaseException) -> str:
    """The trace in the status of a task: the error in the first line, then where it was raised."""
    try:
        str(error)
    except Exception as failure:
        # Spark's exceptions get their text from its process.
        return f"{type(error).__module__}.{type(error).__qualname__}: Spark's process has ended ({failure})"
    if isinstance(error, (ConnectError, Stopped)):
        cause = f"\nCaused by: {cause_text(error.__cause__)}" if error.__cause__ is not None else ""
        return f"{type(error).__module__}.{type(error).__qualname__}: {error}{cause}"
    first = f"{type(error).__module__}.{type(error).__qualname__}: {cause_text(error)}"
    lines = traceback.format_exception(error)
    return "\n".join([first, *"".join(lines).rstrip().splitlines()[-40:]])


def cause_text(error: BaseException) -> str:
    """The cause of an exception that Spark raises."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for line in lines:
        if "RECORD FAILED in " in line:
            return line[line.index("RECORD FAILED in ") + len("RECORD FAILED in ") :]
    marks = ("PipelineError:", "OptionError:", "DataLoss:", "ConnectError:", "RetriableError:")
    return cause_in(lines, marks) if lines else type(error).__name__


def writer_options(context: Context, exactly_once: bool) -> dict[str, str]:
    """Options of the Spark sink `kavka`: the worker's settings, then `producer.override.…` of the
    connector."""
    options = {f"kafka.{name}": value for name, value in context.client.items()}
    options |= {f"kafka.{name}": value for name, value in context.with_prefix("producer.override.").items()}
    if exactly_once:
        options |= {"exactlyOnce": "true", "transactionalIdPrefix": f"connect-{context.name}-"}
    return options


def trigger_of(context: Context) -> dict[str, Any]:
    if context.available_now:
        return {"availableNow": True}
    interval = seconds(context["trigger.interval"])
    return {"processingTime": f"{int((interval or 0) * 1000)} milliseconds"}


def written(context: Context, frame: DataFrame, options: Mapping[str, str]) -> None:
    frame.write.format("kavka").options(**options).mode("append").save()
