"""Pages that are written by hand name what the code has."""

from __future__ import annotations

import re
from pathlib import Path

from bench import run as bench

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_every_benchmark_is_listed() -> None:
    page = (DOCS / "benchmarks.md").read_text()
    listed = set(re.findall(r"`(?:[^`]*--only )?([a-z][a-z-]+)(?: [^`]*)?`", page))
    assert {*bench.BENCHMARKS, *bench.SECURED, *bench.CLIENTS, *bench.CLUSTERS} - listed == set()
