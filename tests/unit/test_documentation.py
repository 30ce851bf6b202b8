"""Pages that are written by hand name what the code has."""

from __future__ import annotations

import re
from pathlib import Path

import kavka
from bench import run as bench
from tests.support.pages import blocks
from tests.unit.test_deploy import metric_names, used_metrics

# Other names in the source that begin like metrics.
NOT_METRICS = {"kavka_", "kavka_broker"}
ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def test_every_benchmark_is_listed() -> None:
    page = (DOCS / "benchmarks.md").read_text()
    listed = set(re.findall(r"`(?:[^`]*--only )?([a-z][a-z-]+)(?: [^`]*)?`", page))
    assert {*bench.BENCHMARKS, *bench.SECURED, *bench.CLIENTS, *bench.CLUSTERS} - listed == set()


def test_the_metrics_list_is_complete() -> None:
    def families(names: set[str]) -> set[str]:
        return {re.sub("_(total|bucket|count|sum)$", "", name) for name in names} - NOT_METRICS

    assert families(used_metrics((DOCS / "monitoring.md").read_text())) == families(metric_names())


def test_the_methods_of_the_comparison_with_other_clients_exist() -> None:
    page = (DOCS / "other-clients.md").read_text()
    names = re.findall(r"`(Producer|Consumer|Admin)\.(\w+)`", page)
    assert len(names) > 20
    for class_name, method in names:
        assert hasattr(getattr(kavka, class_name), method), f"{class_name}.{method}"


def test_every_page_with_commands_or_programs_has_a_test() -> None:
    sources = "".join(file.read_text() for file in (ROOT / "tests" / "integration").glob("*.py"))
    for page in DOCS.glob("*.md"):
        if any(not block.reason for block in blocks(f"docs/{page.name}")):
            assert page.name in sources, page.name


def test_blocks_that_no_test_runs_are_rare() -> None:
    marked = {page.name: [block for block in blocks(f"docs/{page.name}") if block.reason] for page in DOCS.glob("*.md")}
    assert sum(map(len, marked.values())) <= 12


def test_the_messages_of_the_troubleshooting_page_exist() -> None:
    """The first column quotes messages, parts of them, and names of errors."""
    source = "".join(file.read_text() for file in (ROOT / "src" / "kavka").rglob("*.py"))
    source = re.sub(r'"\s*\n\s*f?"', "", source)  # strings over several lines
    rows = re.findall(r"^\| ([^|]*`[^|]*) \|", (DOCS / "troubleshooting.md").read_text(), re.MULTILINE)
    quotes = [quote for row in rows for quote in re.findall(r"`([^`]+)`", row)]
    assert len(quotes) > 30
    for quote in quotes:
        assert quote in source, quote
