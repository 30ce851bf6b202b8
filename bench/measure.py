"""Pairs of runs, medians and the table of results."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from bench.sides import APACHE, CEILING, KAVKA

AnySide = TypeVar("AnySide")
"""A broker or a cluster."""


class Pairs(list[tuple[float, float]]):
    """The values of Kavka and Apache Kafka. `ceiling` has the values of the limit of the machine,
    if they were measured."""

    def __init__(self, values: Iterable[tuple[float, float]] = (), ceiling: Sequence[float] = ()) -> None:
        super().__init__(values)
        self.ceiling = list(ceiling)


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
    warm_up_gb: float = 5.0


@dataclass
class Row:
    """A row of the table. `pairs` are the values of Kavka and Apache Kafka; `ratio` is the median
    of their ratios. `Pairs` may have values of the ceiling."""

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

    @property
    def ceiling(self) -> list[float]:
        return getattr(self.pairs, "ceiling", [])

    @property
    def share_of_ceiling(self) -> float:
        """The median of the ratios of Kavka and the ceiling."""
        shares = [kavka / limit for (kavka, _), limit in zip(self.pairs, self.ceiling, strict=True) if limit]
        return statistics.median(shares) if shares else float("nan")

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
        values = {"kavka": self.kavka, "apache": self.apache, "ceiling": self.ceiling, "verdict": self.verdict}
        return asdict(self) | values

    def cells(self) -> list[str]:
        values = [format_value(self.kavka, self.unit), format_value(self.apache, self.unit)]
        return [self.what, *values, f"{self.ratio:.2f}", self.bar, self.verdict]

    def ceiling_cells(self) -> list[str]:
        if not self.ceiling:
            return ["–", "–"]
        return [format_value(statistics.median(self.ceiling), self.unit), f"{self.share_of_ceiling:.2f}"]


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


def in_pairs(sides: dict[str, AnySide], pairs: int, run: Callable[[AnySide, int], float], *, title: str) -> Pairs:
    """Run the sides alternately, `pairs` times, and return the values of Kavka and Apache Kafka,
    and of the ceiling if it is a side. The order changes, so that changes in the speed of the
    machine cancel out."""
    names = [name for name in (KAVKA, APACHE, CEILING) if name in sides]
    values: dict[tuple[str, int], float] = {}
    for index in range(pairs):
        for name in names if index % 2 == 0 else reversed(names):
            os.sync()
            values[name, index] = run(sides[name], index)
        ceiling = f", ceiling {values[CEILING, index]:,.2f}" if CEILING in sides else ""
        kavka, apache = values[KAVKA, index], values[APACHE, index]
        print(f"  {title}, pair {index + 1}: {kavka:,.2f} to {apache:,.2f}{ceiling}", flush=True)
    return paired(values, pairs)


def paired(values: Mapping[tuple[str, int], float], pairs: int) -> Pairs:
    """Convert values by (side, index of the pair) to the form that `in_pairs` returns."""
    return Pairs(
        [(values[KAVKA, index], values[APACHE, index]) for index in range(pairs)],
        [values[CEILING, index] for index in range(pairs) if (CEILING, index) in values],
    )


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
    ]
    if any(row.ceiling for row in rows):
        lines += [
            "The ceiling is a server without checks and state (`bench/ceiling/`); its share is Kavka / ceiling.",
            "",
            f"| Benchmark | Kavka | {peer} | Ratio | Bar | | Ceiling | Share |",
            "|---|---|---|---|---|---|---|---|",
        ]
        lines += ["| " + " | ".join(row.cells() + row.ceiling_cells()) + " |" for row in rows]
    else:
        lines += [f"| Benchmark | Kavka | {peer} | Ratio | Bar | |", "|---|---|---|---|---|---|"]
        lines += ["| " + " | ".join(row.cells()) + " |" for row in rows]
    return "\n".join(lines) + "\n"
