"""Parts shared by the benchmarks of Python clients: rounds of runs in separate processes.

A round runs every client once. The order alternates. Clients are compared within a round, since the
speed of the machine changes between rounds. The result is the median of the rounds.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from bench.measure import OwnFigure, Row, machine

SIZES = (100, 1000)
# Titles of clients in tables, if they differ from the name.
TITLES = {
    "confluent": "confluent-kafka",
    "confluent-tuned": "confluent-kafka (tuned)",
}

Figures = dict[str, float]
Run = tuple[float, float, int]
"""Seconds, seconds of CPU time, and records."""


class ClientRow(Row):
    """A row that compares clients: `pairs` are the values of Kavka's client and of another."""


class OwnClientFigure(OwnFigure, ClientRow):
    """A value without another client. Its bar applies to Kavka's value."""


def in_process(module: str, *arguments: object) -> Figures:
    """Run a client in a separate process and return the figures in its last line of output. Raise
    RuntimeError if it fails."""
    process = subprocess.run(
        [sys.executable, "-m", module, "--one", *map(str, arguments)], capture_output=True, check=False
    )
    if process.returncode:
        raise RuntimeError(f"{module} failed: {process.stderr.decode()[-2000:]}")
    figures: Figures = json.loads(process.stdout.splitlines()[-1])
    return figures


def in_rounds(what: str, clients: Sequence[str], count: int, run: Callable[[str], Figures]) -> dict[str, list[Figures]]:
    figures_by_client: dict[str, list[Figures]] = {client: [] for client in clients}
    for number in range(count):
        for client in clients if number % 2 == 0 else reversed(clients):
            figures = run(client)
            figures_by_client[client].append(figures)
            print(f"  {what}, round {number + 1}, {client}: {figures['rate']:,.0f} records/s", flush=True)
    return figures_by_client


def report(work: Callable[[], Run]) -> int:
    """Run a client and print its figures as JSON."""
    seconds, cpu, records = work()
    figures: Figures = {
        "rate": records / seconds,
        "cpu": cpu / records * 1e6,
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print(json.dumps(figures))
    return 0


class Stopwatch:
    """Measures wall time and CPU time from its creation."""

    def __init__(self) -> None:
        self._start, self._start_cpu = time.perf_counter(), time.process_time()

    def read(self, records: int) -> Run:
        return time.perf_counter() - self._start, time.process_time() - self._start_cpu, records


def use_form(client: str) -> None:
    """Select the compiled form of Kavka's client, or the plain form for `kavka-plain`."""
    if client.startswith(("kavka", "receive")):
        from tests.support import forms

        forms.use(forms.PLAIN if client.endswith("-plain") else forms.COMPILED)


def kavka_tls(ca_file: str) -> dict[str, Any]:
    """The settings of Kavka's clients. Without a file the connection is not encrypted."""
    if not ca_file:
        return {}
    return {"security_protocol": "SSL", "ssl_truststore_type": "PEM", "ssl_truststore_location": ca_file}


def confluent_tls(ca_file: str) -> dict[str, Any]:
    return {"security.protocol": "SSL", "ssl.ca.location": ca_file} if ca_file else {}


def compared_with_best(
    what: str,
    unit: str,
    figure: str,
    figures: dict[str, list[Figures]],
    client: str,
    others: Iterable[str],
    bar: float | None = None,
) -> ClientRow:
    """Compare a client with the best of the others in each round."""
    names = [name for name in others if name in figures]
    rounds = zip(figures[client], *(figures[name] for name in names), strict=True)
    pairs = [(kavka[figure], max(peer[figure] for peer in peers)) for kavka, *peers in rounds]
    titles = "the best other client" if len(names) > 1 else TITLES.get(names[0], names[0])
    what = f"{what}, compared with {titles}"
    return ClientRow(what, unit, pairs, "" if bar is None else f"≥ {bar:g} ×", at_least=bar)


def markdown(rows: Sequence[Row], rounds: int) -> str:
    host = machine()
    lines = [
        f"Machine: {host['processor']}, {host['memory']}, {host['system']}; Python {host['python']}.",
        f"One broker (Kavka), one client at a time, {rounds} rounds in which each client runs once. Values are",
        "medians. The ratio is the median of the rounds' ratios (Kavka / other client).",
        "",
        "| Benchmark | Kavka | Other client | Ratio | Bar | |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join(lines + ["| " + " | ".join(row.cells()) + " |" for row in rows]) + "\n"
