"""The check of links: files, headings, the navigation."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import check_links


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, path in {"ROOT": "", "DOCS": "docs", "NAVIGATION": "site.toml"}.items():
        monkeypatch.setattr(check_links, name, tmp_path / path)
    (tmp_path / "docs" / "decisions").mkdir(parents=True)
    (tmp_path / "docs" / "decisions" / "index.md").write_text("[1](0001-first.md)\n")
    (tmp_path / "docs" / "decisions" / "0001-first.md").write_text("# First\n")
    navigation = '[{ a = "decisions/index.md" }, { b = [{ c = "page.md" }] }]'
    (tmp_path / "site.toml").write_text(f"[project]\nnav = {navigation}\n")
    (tmp_path / "README.md").write_text("[page](docs/page.md)\n")
    check_links.anchors.cache_clear()
    return tmp_path


def problems(root: Path, text: str) -> list[str]:
    page = root / "docs" / "page.md"
    page.write_text(text)
    return list(check_links.problems(page))


@pytest.mark.parametrize(
    "text",
    [
        "# A `b.c` & (d)\n\n[x](#a-bc--d)\n",
        "# Same\n\n# Same\n\n[x](#same_1) and [first](decisions/0001-first.md#first)\n",
        "[web](https://example.org/x), [mail](mailto:a@example.org), `[code](missing.md)`\n",
        "```text\n[code](missing.md)\n```\n",
    ],
)
def test_a_correct_link_is_no_problem(root: Path, text: str) -> None:
    assert problems(root, text) == []


@pytest.mark.parametrize(
    "text, problem",
    [
        ("\n[x](missing.md)\n", "docs/page.md:2: missing.md does not exist"),
        ("# A\n\n[x](#b)\n", "docs/page.md:3: #b: there is no such heading"),
        ("[x](decisions/0001-first.md#b)", "docs/page.md:1: decisions/0001-first.md#b: there is no such heading"),
        ("![x](missing.png)", "docs/page.md:1: missing.png does not exist"),
        ("[x](../README.md)", "docs/page.md:1: ../README.md is outside of docs/: name the file in backticks"),
    ],
)
def test_a_broken_link_is_reported(root: Path, text: str, problem: str) -> None:
    assert problems(root, text) == [problem]


def test_pages_outside_of_the_navigation_are_reported(root: Path) -> None:
    problems(root, "")
    assert list(check_links.navigation_problems()) == []
    (root / "docs" / "other.md").touch()
    (root / "docs" / "decisions" / "0002-second.md").touch()
    (root / "docs" / "page.md").unlink()
    assert list(check_links.navigation_problems()) == [
        "site.toml: page.md does not exist",
        "docs/decisions/0002-second.md is not in docs/decisions/index.md",
        "docs/other.md is not in site.toml",
    ]
