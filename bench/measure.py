"""Pairs of runs, medians and the table of results."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from bench.sides import APACHE, KAVKA

AnySide = TypeVar("AnySide")
"""A broker or a cluster."""


@dataclass
class Options:
    records: int
    pairs: int
    groups: bool = False
    connections: int = 5000
    partitions: int = 1000
    cluster_partitions: int = 2000
    keys: int = 1_000_000
    rounds: int = 200
    seconds: float = 60


@dataclass
class Row:
    """A row of the table. `pairs` are the values of Kavka and Apache Kafka; `ratio` is the median
    of their ratios."""

    what: str
    unit: str
    pairs: list[tuple[float, float]]
    bar: str = ""
    at_least: float | None = None
    at_most: float | None = None
    ratio: float = field(init=False)

    def __post_init__(self) -> None:
        ratios = [kavka / apache for kavka, apache in self.pairs if apache]
        self.ratio = statistics.median(ratios) if ratios else float("nan")

    @property
    def kavka(self) -> float:
        return statistics.median(kavka for kavka, _ in self.pairs)

    @property
    def apache(self) -> float:
        return statistics.median(apache for _, apache in self.pairs)

    def judged_value(self) -> float:
        """Return the value that the bar applies to."""
        return self.ratio

    @property
    def verdict(self) -> str:
        value = self.judged_value()
        if self.at_least is not None:
            return "met" if value >= self.at_least else "MISSED"
        if self.at_most is not None:
            return "met" if value <= self.at_most else "MISSED"
        return ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"kavka": self.kavka, "apache": self.apache, "verdict": self.verdict}

    def cells(self) -> list[str]:
        values = [format_value(self.kavka, self.unit), format_value(self.apache, self.unit)]
        return [self.what, *values, f"{self.ratio:.2f}", self.bar, self.verdict]


class OwnShare(Row):
    """A row of ratios between each side's disturbed and undisturbed rate. The bar applies to
    Kavka's value, not to the ratio of the sides."""

    def judged_value(self) -> float:
        return self.kavka


class OwnFigure(Row):
    """A row without another side. Its bar applies to Kavka's value."""

    def judged_value(self) -> float:
        return self.kavka

    def cells(self) -> list[str]:
        return [self.what, format_value(self.kavka, self.unit), "–", "–", self.bar, self.verdict]


def format_value(value: float, unit: str) -> str:
    text = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"
    return f"{text} {unit}".strip()


def in_pairs(
    sides: dict[str, AnySide], pairs: int, run: Callable[[AnySide, int], float], *, title: str
) -> list[tuple[float, float]]:
    """Run both sides alternately, `pairs` times, and return the values of Kavka and Apache Kafka.
    The order changes, so that changes in the speed of the machine cancel out."""
    values: list[tuple[float, float]] = []
    for index in range(pairs):
        order = (KAVKA, APACHE) if index % 2 == 0 else (APACHE, KAVKA)
        rates: dict[str, float] = {}
        for name in order:
            os.sync()
            rates[name] = run(sides[name], index)
        values.append((rates[KAVKA], rates[APACHE]))
        print(f"  {title}, pair {index + 1}: {rates[KAVKA]:,.2f} to {rates[APACHE]:,.2f}", flush=True)
    return values


def paired(values: Mapping[tuple[str, int], float], pairs: int) -> list[tuple[float, float]]:
    """Convert values by (side, index of the pair) to the form that `in_pairs` returns."""
    return [(values[KAVKA, index], values[APACHE, index]) for index in range(pairs)]


def machine() -> dict[str, str]:
    """Return the processor, memory and software versions of this machine."""
    model = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), "?"
    )
    memory = next((line.split()[1] for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), "0")
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr.splitlines()
    return {
        "processor": f"{os.cpu_count()} × {model}",
        "memory": f"{int(memory) / (1 << 20):.0f} GiB",
        "system": f"Linux {platform.release()}",
        "python": platform.python_version(),
        "java": java[0] if java else "?",
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


def markdown(rows: Sequence[Row], options: Options, peer: str = "Apache Kafka 4.3") -> str:
    host = machine()
    lines = [
        f"Machine: {host['processor']}, {host['memory']}, {host['system']}; Python {host['python']},",
        f"{host['java']}. {options.records:,} records of 1000 bytes per run, {options.pairs} alternating pairs",
        "after a first run that is not counted; values are medians, the ratio is the median of the pairs' ratios",
        f"(Kavka / {peer}).",
        "",
        f"| Benchmark | Kavka | {peer} | Ratio | Bar | |",
        "|---|---|---|---|---|---|",
    ]
    lines += ["| " + " | ".join(row.cells()) + " |" for row in rows]
    return "\n".join(lines) + "\n"
