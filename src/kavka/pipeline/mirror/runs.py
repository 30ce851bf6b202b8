"""Which offset of the target is which of the source, as runs: stretches in which both go up together. No I/O.

A run begins anew where the source has offsets without a record (compacted, markers of transactions), where the target
has some of its own (markers, other producers) and where records were written again after a crash.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace

# Of a partition: in all, and of one batch of the stream. Those left out make translation less exact, never wrong.
MOST_RUNS = 20_000
MOST_NEW = 100


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
    """The same in as few runs as possible. They come in the order of the source."""
    out: list[Run] = []
    for run in runs:
        last = out[-1] if out else None
        if last is not None and run.upstream == last.end and run.downstream == last.downstream + last.count:
            out[-1] = Run(last.upstream, last.downstream, last.count + run.count)
        elif run.count > 0:
            out.append(run)
    return out


def thinned(runs: list[Run], most: int) -> list[Run]:
    """At most so many: the last, and of the others every second, fourth …"""
    step = 1
    while (len(runs) + step - 1) // step > most:
        step *= 2
    return runs if step == 1 else runs[::-1][::step][::-1]


class Translation:
    """What is known of one partition."""

    def __init__(self) -> None:
        self._runs: list[Run] = []

    def __bool__(self) -> bool:
        return bool(self._runs)

    def add(self, run: Run) -> None:
        """The newest is what counts: where it begins before the end of what is known, that was written again (or the
        source was made anew, and then nothing of before holds)."""
        runs = self._runs
        while runs and runs[-1].end > run.upstream:
            last = runs.pop()
            if last.upstream < run.upstream:
                runs.append(replace(last, count=run.upstream - last.upstream))
                break
        runs[-1:] = joined([*runs[-1:], run])
        if len(runs) > MOST_RUNS:
            self._runs = thinned(runs, MOST_RUNS // 2)

    def downstream(self, upstream: int) -> int | None:
        """Where a group that will read `upstream` next in the source has to go on in the target: nothing is left out,
        and where runs are missing some may come again. None where what it will read was mirrored before anything that
        is known."""
        runs = self._runs
        index = bisect_right(runs, upstream, key=lambda run: run.upstream) - 1
        if index < 0:
            return None
        run = runs[index]
        return run.downstream + min(run.count, upstream - run.upstream)
