"""The mapping of offsets between source and target as runs: ranges that are contiguous in both. No
I/O.

A run ends where the source has offsets without a record (compaction, transaction markers), where
the target has additional offsets (markers, other producers), and where records were written again
after a crash.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace

# Limits per partition: in total, and per micro-batch. If runs are dropped, a translated offset may
# be lower than necessary, but never too high.
MAX_RUNS = 20_000
MAX_NEW_RUNS = 100


@dataclass(frozen=True, slots=True)
class Run:
    """`count` records, from `upstream` in the source and from `downstream` in the target."""

    upstream: int
    downstream: int
    count: int

    @property
    def end(self) -> int:
        return self.upstream + self.count


def join_runs(runs: Iterable[Run]) -> list[Run]:
    """Return the same mapping in the minimal number of runs. `runs` is ordered by source offset."""
    joined_runs: list[Run] = []
    for run in runs:
        last = joined_runs[-1] if joined_runs else None
        if last is not None and run.upstream == last.end and run.downstream == last.downstream + last.count:
            joined_runs[-1] = Run(last.upstream, last.downstream, last.count + run.count)
        elif run.count > 0:
            joined_runs.append(run)
    return joined_runs


def thin_runs(runs: list[Run], limit: int) -> list[Run]:
    """Return at most `limit` of the runs: the last run, and every second (fourth, eighth …) run
    before it."""
    step = 1
    while (len(runs) + step - 1) // step > limit:
        step *= 2
    return runs if step == 1 else runs[::-1][::step][::-1]


class Translation:
    """The runs of one partition, ordered by source offset."""

    def __init__(self) -> None:
        self._runs: list[Run] = []

    def __bool__(self) -> bool:
        return bool(self._runs)

    def add(self, run: Run) -> None:
        """Add the newest run. If it starts before the end of earlier runs, it replaces their
        overlapping part: the records were written again, or the source topic was recreated."""
        runs = self._runs
        while runs and runs[-1].end > run.upstream:
            last = runs.pop()
            if last.upstream < run.upstream:
                runs.append(replace(last, count=run.upstream - last.upstream))
                break
        runs[-1:] = join_runs([*runs[-1:], run])
        if len(runs) > MAX_RUNS:
            self._runs = thin_runs(runs, MAX_RUNS // 2)

    def downstream(self, upstream: int) -> int | None:
        """Return the offset in the target for a group whose committed offset in the source is
        `upstream`. None if the offset precedes all runs. The group skips no record. If runs are
        missing, the group may read records twice."""
        runs = self._runs
        index = bisect_right(runs, upstream, key=lambda run: run.upstream) - 1
        if index < 0:
            return None
        run = runs[index]
        return run.downstream + min(run.count, upstream - run.upstream)
