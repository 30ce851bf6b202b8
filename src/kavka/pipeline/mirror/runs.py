"""The mapping of offsets between source and target, as runs: ranges in which both increase
together. No I/O.

A new run starts where the source has offsets without a record (compaction, transaction markers),
where the target has additional offsets (markers, other producers), and where records were written
again after a crash.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace

# Limits per partition: in total, and per micro-batch. Dropped runs make translation less exact,
# never wrong.
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


def joined(runs: Iterable[Run]) -> list[Run]:
    """The same mapping in the minimal number of runs. The runs are in the order of the source."""
    out: list[Run] = []
    for run in runs:
        last = out[-1] if out else None
        if last is not None and run.upstream == last.end and run.downstream == last.downstream + last.count:
            out[-1] = Run(last.upstream, last.downstream, last.count + run.count)
        elif run.count > 0:
            out.append(run)
    return out


def thinned(runs: list[Run], limit: int) -> list[Run]:
    """At most `limit` runs: the last one, and every second, fourth … of the others."""
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
        """Add the newest run. If it starts before the end of earlier runs, those records were
        written again (or the source was recreated, and all earlier runs are invalid)."""
        runs = self._runs
        while runs and runs[-1].end > run.upstream:
            last = runs.pop()
            if last.upstream < run.upstream:
                runs.append(replace(last, count=run.upstream - last.upstream))
                break
        runs[-1:] = joined([*runs[-1:], run])
        if len(runs) > MAX_RUNS:
            self._runs = thinned(runs, MAX_RUNS // 2)

    def downstream(self, upstream: int) -> int | None:
        """The offset in the target for a group whose next offset in the source is `upstream`. No
        record is skipped; if runs are missing some records may be read twice. None if the offset
        precedes all runs."""
        runs = self._runs
        index = bisect_right(runs, upstream, key=lambda run: run.upstream) - 1
        if index < 0:
            return None
        run = runs[index]
        return run.downstream + min(run.count, upstream - run.upstream)
