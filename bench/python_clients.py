"""What the measurements of Python's clients share: each run in a process of its own, in rounds, ours beside the others.

A round runs every client once, in turn; who begins changes from round to round. What is compared is compared within a
round, as the machine's mood is the same for all of a round, and the result is the median of the rounds.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence

from bench.measure import Row, machine

SIZES = (100, 1000)
# How clients are called in tables; the others by their own names.
TITLES = {
    "confluent": "confluent-kafka",
    "confluent-tuned": "confluent-kafka (tuned)",
    "receive-only": "receiving alone",
}

Figures = dict[str, float]
# (seconds, seconds of processor time, records) of a run.
Run = tuple[float, float, int]


class ClientRow(Row):
    """`pairs` are (ours, another client's): not two brokers, two clients."""


def own_process(module: str, *arguments: object) -> Figures:
    """`python -m module --one …`, and what its last line of output says."""
    done = subprocess.run(
        [sys.executable, "-m", module, "--one", *map(str, arguments)], capture_output=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr.decode()[-2000:])
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def in_rounds(what: str, clients: Sequence[str], count: int, run: Callable[[str], Figures]) -> dict[str, list[Figures]]:
    found: dict[str, list[Figures]] = {client: [] for client in clients}
    for number in range(count):
        for client in clients if number % 2 == 0 else reversed(clients):
            figures = run(client)
            found[client].append(figures)
            print(f"  {what}, round {number + 1}, {client}: {figures['rate']:,.0f} records/s", flush=True)
    return found


def report(work: Callable[[], Run]) -> int:
    """The end of a run in a process of its own."""
    seconds, cpu, records = work()
    figures: Figures = {
        "rate": records / seconds,
        "cpu": cpu / records * 1e6,
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print(json.dumps(figures))
    return 0


class Stopwatch:
    def __init__(self) -> None:
        self._began, self._used = time.perf_counter(), time.process_time()

    def read(self, records: int) -> Run:
        return time.perf_counter() - self._began, time.process_time() - self._used, records


def use_form(client: str) -> None:
    """Ours runs compiled; as `ours-plain`, plain."""
    if client.startswith(("ours", "receive")):
        from tests.support import forms

        forms.use(forms.PLAIN if client.endswith("-plain") else forms.COMPILED)


def beside_the_best(
    what: str,
    unit: str,
    figure: str,
    found: dict[str, list[Figures]],
    ours: str,
    others: Iterable[str],
    bar: float | None = None,
) -> ClientRow:
    """Ours beside the best of the others, round by round."""
    names = [name for name in others if name in found]
    rounds = zip(found[ours], *(found[name] for name in names), strict=True)
    pairs = [(first[figure], max(one[figure] for one in rest)) for first, *rest in rounds]
    titles = "the best of the others" if len(names) > 1 else TITLES.get(names[0], names[0])
    what = f"{what}, beside {titles}"
    return ClientRow(what, unit, pairs, "" if bar is None else f"≥ {bar:g} ×", at_least=bar)


def markdown(rows: Sequence[Row], rounds: int) -> str:
    about = machine()
    lines = [
        f"Machine: {about['processor']}, {about['memory']}, {about['system']}; Python {about['python']}.",
        f"One broker (Kavka), one client at a time, {rounds} rounds in which each runs once; values are medians, the",
        "ratio is the median of the rounds' ratios (ours / theirs).",
        "",
        "| what | ours | theirs | ratio | bar | |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join(lines + ["| " + " | ".join(row.cells()) + " |" for row in rows]) + "\n"
