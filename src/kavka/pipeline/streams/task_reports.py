"""Reports of the tasks to the driver, at the end of each micro-batch.

A report is a row of the stateful step. Spark collects the rows as an observed metric of the query
(`observed`), and the driver receives them with the progress of the micro-batch, wherever the tasks
run.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kavka.pipeline.streams.ticks import Due, DueFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger(__name__)

_METRIC = "kavka-tasks"


@dataclass(frozen=True)
class TaskReport:
    """Of a micro-batch, or of all since the start. `tick` is the tick that it ran, 0 if none;
    `due` the time of its next wall-clock punctuator."""

    task: str
    tick: int = 0
    due: int | None = None
    records: int = 0
    restores: int = 0
    state_bytes: int = 0

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    def after(self, earlier: TaskReport) -> TaskReport:
        return replace(self, records=earlier.records + self.records, restores=earlier.restores + self.restores)


def observed(results: DataFrame) -> DataFrame:
    """Rows with a column `report`, whose texts the driver receives."""
    from pyspark.sql import functions

    return results.observe(_METRIC, functions.collect_list("report").alias("reports"))


class TaskReports:
    """The reports of an application's tasks since its start. Threads of Spark add to them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_task: dict[str, TaskReport] = {}
        self._due_file: DueFile | None = None
        self._session: SparkSession | None = None
        self._listener: Any = None
        self._query = ""

    @property
    def due_path(self) -> Path:
        if self._due_file is None:
            self._due_file = DueFile()
        return self._due_file.path

    def follow(self, session: SparkSession, query: str) -> None:
        """Receive the reports of the query with this name, and of no other."""
        self._query = query
        if self._listener is None:
            self._listener = _listener(self)
            self._session = session
            session.streams.addListener(self._listener)

    def close(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None and self._session is not None:
            try:
                self._session.streams.removeListener(listener)
            except Exception as error:
                # The session may have ended before the application.
                logger.debug("the listener was not removed: %s", error)
        with self._lock:
            if self._due_file is not None:
                self._due_file.remove()
                self._due_file = None

    def progressed(self, progress: Any) -> None:
        if progress.name == self._query and _METRIC in progress.observedMetrics:
            self.receive(progress.observedMetrics[_METRIC]["reports"])

    def receive(self, texts: Iterable[str]) -> None:
        reports = [TaskReport(**json.loads(text)) for text in texts]
        if not reports:
            return
        with self._lock:
            for report in reports:
                self._by_task[report.task] = report.after(self._by_task.get(report.task, TaskReport(report.task)))
            dues = [report.due for report in self._by_task.values() if report.due is not None]
            tick = max(report.tick for report in self._by_task.values())
            if self._due_file is not None:
                self._due_file.write(Due(tick, min(dues, default=None)))

    def all(self) -> list[TaskReport]:
        with self._lock:
            return sorted(self._by_task.values(), key=lambda report: tuple(map(int, report.task.split("_"))))


def _listener(reports: TaskReports) -> Any:
    from pyspark.sql.streaming.listener import StreamingQueryListener

    class Listener(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:
            """Of no interest."""

        def onQueryProgress(self, event: Any) -> None:
            reports.progressed(event.progress)

        def onQueryIdle(self, event: Any) -> None:
            """Of no interest."""

        def onQueryTerminated(self, event: Any) -> None:
            """Of no interest."""

    return Listener()
