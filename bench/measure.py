"""Pairs, medians and the table: what a measurement is made of."""

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
"""One broker, or a cluster of them."""


@dataclass
class Options:
    records: int
    pairs: int
    groups: bool = False
    connections: int = 5000
    partitions: int = 1000
    cluster_partitions: int = 2000


@dataclass
class Row:
    """One line of the table. `pairs` are (Kavka, Apache) values; the ratio is the median of their ratios."""

    what: str
    unit: str
    pairs: list[tuple[float, float]]
    bar: str = ""
    at_least: float | None = None
    at_most: float | None = None
    ratio: float = field(init=False)

    def __post_init__(self) -> None:
        ratios = [ours / theirs for ours, theirs in self.pairs if theirs]
        self.ratio = statistics.median(ratios) if ratios else float("nan")

    @property
    def kavka(self) -> float:
        return statistics.median(ours for ours, _ in self.pairs)

    @property
    def apache(self) -> float:
        return statistics.median(theirs for _, theirs in self.pairs)

    def judged(self) -> float:
        return self.ratio

    @property
    def verdict(self) -> str:
        value = self.judged()
        if self.at_least is not None:
            return "met" if value >= self.at_least else "MISSED"
        if self.at_most is not None:
            return "met" if value <= self.at_most else "MISSED"
        return ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"kavka": self.kavka, "apache": self.apache, "verdict": self.verdict}

    def cells(self) -> list[str]:
        values = [number(self.kavka, self.unit), number(self.apache, self.unit)]
        return [self.what, *values, f"{self.ratio:.2f}", self.bar, self.verdict]


class OwnShare(Row):
    """A line whose values are each side's share of its own undisturbed rate; the bar is for Kavka's share itself."""

    def judged(self) -> float:
        return self.kavka


def number(value: float, unit: str) -> str:
    text = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"
    return f"{text} {unit}".strip()


def in_pairs(
    sides: dict[str, AnySide], pairs: int, run: Callable[[AnySide, int], float], *, say: str
) -> list[tuple[float, float]]:
    """Runs both sides in turn, `pairs` times; who goes first changes, so that a drift of the machine evens out."""
    values: list[tuple[float, float]] = []
    for index in range(pairs):
        order = (KAVKA, APACHE) if index % 2 == 0 else (APACHE, KAVKA)
        found: dict[str, float] = {}
        for name in order:
            os.sync()
            found[name] = run(sides[name], index)
        values.append((found[KAVKA], found[APACHE]))
        print(f"  {say}, pair {index + 1}: {found[KAVKA]:,.2f} to {found[APACHE]:,.2f}", flush=True)
    return values


def paired(values: Mapping[tuple[str, int], float], pairs: int) -> list[tuple[float, float]]:
    """What was noted by (side, number of the pair), as `in_pairs` returns it."""
    return [(values[KAVKA, index], values[APACHE, index]) for index in range(pairs)]


def machine() -> dict[str, str]:
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
    about = machine()
    lines = [
        f"Machine: {about['processor']}, {about['memory']}, {about['system']}; Python {about['python']},",
        f"{about['java']}. {options.records:,} records of 1000 bytes per run, {options.pairs} alternating pairs",
        "after a first run that is not counted; values are medians, the ratio is the median of the pairs' ratios",
        f"(Kavka / {peer}).",
        "",
        f"| what | Kavka | {peer} | ratio | bar | |",
        "|---|---|---|---|---|---|",
    ]
    lines += ["| " + " | ".join(row.cells()) + " |" for row in rows]
    return "\n".join(lines) + "\n"
