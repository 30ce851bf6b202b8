"""A running connector: its one task, which is a query of Spark, or a loop of batches.

A task has a thread of its own. It ends by itself when everything is done (`trigger=available-now`, a batch source), by
`stop()`, or by failing; what became of it is told to `on_end`. What a crash leaves: Spark's checkpoint, from which the
same batch is run again, and for incremental sources the stored offsets, with the plan of the batch that was begun.
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
from kavka.pipeline.connect.providers import HIDDEN, Providers, secret_values
from kavka.pipeline.connect.retries import Retries, Stopped
from kavka.pipeline.connect.settings import AVAILABLE_NOW, check_connector, client_settings, seconds
from kavka.pipeline.connect.stores import OffsetStore
from kavka.pipeline.spark.errors import cause_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

DONE, FAILED, STOPPED = "done", "failed", "stopped"
_WATCH = 0.2
_SPARK_TRIES = 5
# One query starts at a time: processes that start together may all be too late for Spark.
_STARTING = threading.Lock()


@dataclass(frozen=True)
class Worker:
    """What a worker gives its tasks."""

    id: str
    properties: Mapping[str, str]
    spark: Callable[[], SparkSession]
    checkpoints: str
    offsets: OffsetStore
    exactly_once: bool = False
    shutdown: float = 5.0
    providers: Providers = field(default_factory=Providers)
    """Of values that configurations name by placeholders."""
    declared: Declared = NOTHING
    """Modules that configurations may name."""


@dataclass(frozen=True)
class Outcome:
    kind: str
    trace: str | None = None


class Task:
    def __init__(
        self,
        worker: Worker,
        name: str,
        cls: type[Source] | type[Sink],
        given: Mapping[str, str],
        on_end: Callable[[Task, Outcome], None],
        on_topics: Callable[[set[str]], None] = lambda topics: None,
    ) -> None:
        self.name = name
        self.cls = cls
        self.given = dict(given)
        self.settings = self.given
        """`given` with what its placeholders stand for, once the task runs: for this task alone."""
        self.worker = worker
        self.stopping = threading.Event()
        self.query: Any = None
        self.made: set[str] = set()
        """Topics that a source has looked for, and made where they were not there."""
        self.failure: BaseException | None = None
        self.cancel: Callable[[], None] | None = None
        """Ends the batch that is being written, where it is no query that does so."""
        self._on_end = on_end
        self.on_topics = on_topics
        self._thread = threading.Thread(target=self._run, name=f"connect-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float | None = None) -> bool:
        """Whether it has ended within that time."""
        self.stopping.set()
        for end in (None if self.query is None else self.query.stop, self.cancel):
            try:
                if end is not None:
                    end()
            except Exception as error:
                log.debug("Stopping %s: %s", self.name, error)
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
                trace = self.worker.providers.hidden(told(self.failure or error))
                log.error("Task %s-0 fails: %s", self.name, trace)
                outcome = Outcome(FAILED, trace)
        self._on_end(self, outcome)

    def _work(self) -> None:
        providers = self.worker.providers
        self.settings = providers.resolved(self.given, f"Connector {self.name}")
        worker = self.worker
        passwords = {option.name for option in self.cls.options if option.type is ConfigType.PASSWORD}
        for value in secret_values(self.given, passwords):
            providers.secrets.add(value, HIDDEN)
        config, errors = check_connector(
            self.cls, self.settings, worker.properties, worker.exactly_once, worker.declared
        )
        if errors:
            raise ConfigErrors(providers.hidden_errors(errors, self.given, self.settings))
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
                log.warning("%s did not stop cleanly: %s", self.name, error)

    def follow(self, start: Callable[[], Any], heard: Callable[[Any], None]) -> None:
        """Run a query until it ends; `heard` is told of its progress. Spark gives its Python processes ten seconds to
        start, which a busy machine may not have: that alone is tried again."""
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
                # A failure is told below.
                with contextlib.suppress(Exception):
                    query.awaitTermination(_WATCH)
                last = _hear(query, last, heard)
            error = query.exception()
            _hear(query, last, heard)
            if error is None or self.stopping.is_set():
                return
            if "failed to connect back" not in str(error) or attempt == _SPARK_TRIES:
                raise self.failure or error
            log.warning("%s is started again: Spark's Python process did not start in time", self.name)

    def pause(self, wait: float) -> bool:
        """Whether the task is to stop."""
        return self.stopping.wait(wait)

    def new_run(self) -> str:
        return uuid.uuid4().hex


def _hear(query: Any, last: int, heard: Callable[[Any], None]) -> int:
    progress = query.lastProgress
    if progress is not None and progress.batchId != last:
        heard(progress)
        return int(progress.batchId)
    return last


def checkpoint_of(folder: str, name: str) -> str:
    from urllib.parse import quote

    # No name leads out of the folder.
    safe = quote(name, safe="") if name.strip(".") else name.replace(".", "%2E")
    return f"{folder.rstrip('/')}/{safe}"


def told(error: BaseException) -> str:
    """For the status of a task: what it was in the first line, and where."""
    try:
        str(error)
    except Exception as why:
        # Errors of Spark's ask its process for their text.
        return f"{type(error).__module__}.{type(error).__qualname__}: Spark's process has ended ({why})"
    if isinstance(error, (ConnectError, Stopped)):
        cause = f"\nCaused by: {one_line(error.__cause__)}" if error.__cause__ is not None else ""
        return f"{type(error).__module__}.{type(error).__qualname__}: {error}{cause}"
    first = f"{type(error).__module__}.{type(error).__qualname__}: {one_line(error)}"
    lines = traceback.format_exception(error)
    return "\n".join([first, *"".join(lines).rstrip().splitlines()[-40:]])


def one_line(error: BaseException) -> str:
    """Of what Spark wraps around an error, the error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for line in lines:
        if "RECORD FAILED in " in line:
            return line[line.index("RECORD FAILED in ") + len("RECORD FAILED in ") :]
    marks = ("PipelineError:", "OptionError:", "DataLoss:", "ConnectError:", "RetriableError:")
    return cause_in(lines, marks) if lines else type(error).__name__


def writer_options(context: Context, exactly_once: bool) -> dict[str, str]:
    """For the sink `kavka`: the worker's settings, then the connector's `producer.override.…`."""
    found = {f"kafka.{name}": value for name, value in context.client.items()}
    found |= {f"kafka.{name}": value for name, value in context.with_prefix("producer.override.").items()}
    if exactly_once:
        found |= {"exactlyOnce": "true", "transactionalIdPrefix": f"connect-{context.name}-"}
    return found


def trigger_of(context: Context) -> dict[str, Any]:
    if context.available_now:
        return {"availableNow": True}
    interval = seconds(context["trigger.interval"])
    return {"processingTime": f"{int((interval or 0) * 1000)} milliseconds"}


def written(context: Context, frame: DataFrame, options: Mapping[str, str]) -> None:
    frame.write.format("kavka").options(**options).mode("append").save()
