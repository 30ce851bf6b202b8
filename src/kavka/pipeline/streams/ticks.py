"""Ticks: micro-batches without records, which run wall-clock punctuators. No Spark.

A tick is a time in the offsets of the source (`routed_source.py`), beside those of its topics. When
it changes, Spark runs a micro-batch, and every task punctuates with that time. The time is in the
checkpoint, so a micro-batch that runs again punctuates with the same time. Each start of a query
begins with a tick. After that there is no tick before a punctuator is due, so an application
without punctuators runs nothing while it has no input.

The tasks report when their next punctuator is due (`task_reports.py`). The driver writes the
earliest of these times to a file on its machine, which the process of the source reads.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

# The key of the time in the offsets, and the topic of the row that brings it to a task. It is no
# valid topic name.
TICK = "$tick"
# A tick that no task has reported for so long is repeated: the report was lost.
_REPORT_TIMEOUT = 60_000


class Due(NamedTuple):
    """The tick that all tasks have run, and when the next punctuator is due; None if there is
    none."""

    tick: int
    time: int | None


class DueFile:
    """Written by the driver, in a folder that only its user can read. Replaced atomically."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="kavka-streams-due-"))
        self.path = self._folder / "due"

    def write(self, due: Due) -> None:
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text(json.dumps(due))
        temporary.replace(self.path)

    def remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def read_due(path: Path) -> Due | None:
    try:
        return Due(*json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None


class Ticks:
    """Decides in the process of the source when the next tick is."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._has_ticked = False

    def next(self, last: int, now: int, is_ending: bool) -> int | None:
        """Return the time of a tick that is due, None if none is. `last` is the previous tick. A
        query that only processes what is there (`is_ending`) has no tick after its first."""
        if not self._has_ticked:
            self._has_ticked = True
            return max(now, last + 1)
        if is_ending:
            return None
        due = read_due(self._path)
        if due is None or due.tick < last:
            is_due = now - last > _REPORT_TIMEOUT
        else:
            is_due = due.time is not None and due.time <= now
        return max(now, last + 1) if is_due else None
