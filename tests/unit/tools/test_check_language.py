"""The check of identifiers and prose behind `make check`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import check_language


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(check_language, "ROOT", tmp_path)
    monkeypatch.setattr(check_language, "ALLOWED", tmp_path / "allowed.txt")
    return tmp_path


def findings(root: Path, name: str, text: str) -> list[str]:
    path = root / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return [f"{line}: {finding}" for _, line, finding in check_language.findings([path])]


def test_texts_of_templates_are_checked_but_not_their_code(root: Path) -> None:
    template = '<p class="answer">{% if gone.is_over %}No broker <b>answers</b>.{% endif %}</p>\n<p>{{ told }}</p>'
    assert findings(root, "page.html", template) == ["1: 'answers' (write: response, respond, return)"]


@pytest.mark.parametrize(
    "source",
    [
        "found = 1",
        "self._found = 1",
        "def found(): pass",
        "async def found(): pass",
        "class found: pass",
        "def check(found): pass",
        "check = lambda found: 1",
        "for found in (): pass",
        "[0 for found in ()]",
        "import os as found",
        "try:\n    pass\nexcept OSError as found:\n    pass",
        "match 1:\n    case found:\n        pass",
        "match ():\n    case [*found]:\n        pass",
        "if (found := 1): pass",
    ],
)
def test_banned_name_is_reported_where_it_is_bound(root, source):
    reported = findings(root, "module.py", source)
    assert len(reported) == 1
    assert reported[0].split(": ")[1] in ("name 'found'", "name '_found'")


def test_banned_name_is_not_reported_where_it_is_only_used_or_part_of_a_name(root):
    assert findings(root, "module.py", "print(found, other.found)\nfound_topics = topics_found = 1") == []


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("x = 1\n# The broker answers it.", 2),
        ("# The broker\n# answers it.", 1),
        ('"""The broker answers it."""', 1),
        ('class A:\n    """The broker answers it."""', 2),
        ('def f():\n    """Summary.\n\n    The broker\n    answers it."""', 2),
        ('logger.info("the broker answers %s", 1)', 1),
        ('logger.exception(f"the broker answers {1}")', 1),
        ('raise ValueError("the broker answers it")', 1),
        ('parser.add_argument("-x", help="what the broker answers")', 1),
        ('Setting("x", doc="what the broker answers")', 1),
    ],
)
def test_banned_phrase_is_reported_in_prose_of_code(root, source, line):
    assert findings(root, "module.py", source) == [f"{line}: 'answers' (write: response, respond, return)"]


@pytest.mark.parametrize(
    "source",
    [
        'text = "the broker answers it"',
        'print("the broker answers it")',
        "# The field `answers` is a list.",
        "# The response completes the request.",
        "answers = 1",
    ],
)
def test_other_strings_and_quoted_code_are_not_prose(root, source):
    assert findings(root, "module.py", source) == []


def test_sentences_must_not_start_with_what_or_who(root):
    text = "# Read the file. What is left is removed.\nx = 1\n# What is left?\n"
    assert findings(root, "module.py", text) == ["1: 'What is left is removed' (write: start with the subject)"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("# Title\n\nA paragraph that\nanswers it.\n", 3),
        ("## It answers\n", 1),
        ("- first item\n- it answers\n", 2),
        ("| a | b |\n|---|---|\n| c | it answers |\n", 3),
        ("```\ncode\n```\nIt answers.\n", 4),
    ],
)
def test_banned_phrase_is_reported_in_markdown(root, text, line):
    assert findings(root, "page.md", text) == [f"{line}: 'answers' (write: response, respond, return)"]


@pytest.mark.parametrize("text", ["```python\nit answers\n```\n", "The `answers` field.\n", "| `answers` |\n"])
def test_code_in_markdown_is_skipped(root, text):
    assert findings(root, "page.md", text) == []


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["check_language.py", *arguments])
    return check_language.main()


def test_exit_code_and_output(root, monkeypatch, capsys):
    (root / "clean.py").write_text("response = 1\n")
    assert run(monkeypatch, "clean.py") == 0
    (root / "module.py").write_text("found = 1\ntold = 1\n")
    assert run(monkeypatch, ".") == 1
    assert capsys.readouterr().out == "module.py:1: name 'found'\nmodule.py:2: name 'told'\n"
    assert run(monkeypatch, "--count", ".") == 1
    assert capsys.readouterr().out == "    2 module.py\n"


def test_allowed_findings_are_not_reported(root, monkeypatch, capsys):
    (root / "module.py").write_text("found = 1\n")
    (root / "other.py").write_text("found = 1\n")
    (root / "allowed.txt").write_text("module.py: name 'found'\n")
    assert run(monkeypatch, "module.py") == 0
    assert run(monkeypatch, "other.py") == 1
    assert "other.py:1: name 'found'" in capsys.readouterr().out


def test_excluded_paths_are_skipped(root, monkeypatch):
    package = root / "src" / "kavka" / "protocol" / "messages"
    package.mkdir(parents=True)
    (package / "fetch.py").write_text("found = 1\n")
    assert run(monkeypatch, "src") == 0


def test_prose_of_pages_is_at_most_100_columns_wide(root: Path) -> None:
    wide = "word " * 20 + "word"
    text = f"{wide}\n\n| {wide} |\n```\n{wide}\n```\n{wide[:100]}\n"
    assert findings(root, "README.md", text) == ["1: 104 columns (at most 100)"]
    assert findings(root, check_language.GENERATED_PAGES[0], text) == []


def test_sections_and_changes_are_once_in_a_version_of_the_changelog(root: Path) -> None:
    version = "## 1\n### Added\n- A.\n### Fixed\n- B.\n"
    assert findings(root, "CHANGELOG.md", version + version) == []
    repeated = version + "### Added\n- B.\n- C.\n"
    assert findings(root, "CHANGELOG.md", repeated) == ["6: repeated: '### Added'", "7: repeated: '- B.'"]
