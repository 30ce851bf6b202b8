"""Check identifiers and prose against the project's style.

    python tools/check_language.py [--count] [path ...]

Identifiers: no code binds a name in `BANNED_NAMES`.
Prose: comments, docstrings, log lines, error messages, help texts, the templates of the console and
the Markdown pages in `PAGES` contain no pattern in `VOCABULARY`. Text in backticks is code and is
not checked.
Prose of pages that are not generated is at most `MAX_COLUMNS` wide (ruff checks docstrings and
comments).
The changelog: each section occurs once per version, and each change once.

`tools/language_allowed.txt` lists the exceptions, one per line: `path: text of the finding`.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ALLOWED = ROOT / "tools" / "language_allowed.txt"
FOLDERS = ("src", "tests", "bench", "tools", "examples", "setup.py")
PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs")
GENERATED_PAGES = ("docs/api.md", "docs/client-configuration.md", "docs/configuration.md", "docs/tools.md")
MAX_COLUMNS = 100
# Generated code, and this list itself.
EXCLUDED = (
    "src/kavka/protocol/messages/",
    "tools/check_language.py",
    "tests/unit/tools/test_check_language.py",
    "docs/connect.md",
)

BANNED_NAMES = frozenset(
    "one two found told given kept wanted known asked gone most wide".split()  # noqa: SIM905
)

# Regular expression, suggested replacement.
VOCABULARY: tuple[tuple[str, str], ...] = (
    (r"\banswer(s|ed|ing)?\b", "response, respond, return"),
    (r"\banew\b", "again, recreated"),
    (r"\bthrown out\b", "removed from the group, fenced"),
    (r"\breckon(s|ed|ing)?\b", "estimate, compute"),
    (r"\bmend(s|ed|ing)?\b", "fix"),
    (r"\ball is well\b", "is healthy"),
    (r"\bhear(s|d)? of\b", "learn, be notified"),
    (r"\b(is|are|was|were|be|been|being) told\b", "notified, sent, learns"),
    (r"\btells?\b", "send, notify, publish, report"),
    (r"\b(who|what) waits?\b", "pending request, purgatory"),
    (r"\bcut(s)?( off| back)\b", "truncate"),
    (r"\b(is|are|was|were) cut\b", "truncated"),
    (r"\b(is|are|was|were|has been) gone\b", "removed, expired"),
    (r"\b(is|are) over\b", "ended, expired"),
    (r"\b(went|goes|go) wrong\b", "error, failed"),
    (r"\b(whoever|whomever|whosoever)\b", "name the actor"),
    (r"\bof (its|their|his|our|one's|your|my) own\b", "own, separate, custom"),
    (r"\bone's own\b", "custom"),
    (r", too, ", "also"),
    (r"\berrands?\b", "task"),
    (r"\bstate of things\b", "state"),
    (r"\bfor ever\b", "forever"),
    (r"\bnobody\b|\bsomebody\b", "name the actor: no client, a consumer"),
    (r"\b(on|under) (its|their|the) way\b|\bunder way\b", "in flight, in progress"),
    (r"\bas ever\b", "as before"),
    (r"\bhas? it that\b|\bto be had\b|\bcan be had\b", "available"),
    (r"\bgoes on\b|\bgo on\b|\bwent on\b", "continues"),
    (r"\blooked? at\b|\blooks at\b", "check, inspect, read"),
    (r"(?:^|[.:;] )(?:What|Who) (?:[a-z']+ ){1,6}[a-z']+\b(?![^.:;]*\?)", "start with the subject"),
)
PATTERNS = tuple(
    (re.compile(pattern, re.IGNORECASE if "What" not in pattern else 0), word) for pattern, word in VOCABULARY
)

LOG_METHODS = frozenset({"debug", "info", "warning", "error", "exception", "critical", "log"})

Finding = tuple[Path, int, str]


def findings(paths: list[Path]) -> Iterator[Finding]:
    for path in paths:
        if path.suffix == ".md":
            text = path.read_text()
            yield from _vocabulary_findings(path, _markdown_sentences(text))
            if str(path.relative_to(ROOT)) not in GENERATED_PAGES:
                yield from _wide_lines(path, text)
            if path.name == "CHANGELOG.md":
                yield from _repeated_lines(path, text)
        elif path.suffix == ".html":
            yield from _vocabulary_findings(path, _template_texts(path.read_text()))
        else:
            source = path.read_text()
            tree = ast.parse(source)
            yield from _name_findings(path, tree)
            yield from _vocabulary_findings(path, _prose_of_code(source, tree))


def _name_findings(path: Path, tree: ast.AST) -> Iterator[Finding]:
    for node in ast.walk(tree):
        for name in _bound_names(node):
            if name.strip("_") in BANNED_NAMES:
                yield path, node.lineno, f"name '{name}'"  # type: ignore[attr-defined]


def _bound_names(node: ast.AST) -> list[str]:
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
            return [name]
        case ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return [name]
        case ast.ClassDef(name=name) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            return [name]
        case ast.ExceptHandler(name=str(name)) | ast.alias(asname=str(name)):
            return [name]
    return []


def _vocabulary_findings(path: Path, prose: Iterator[tuple[int, str]]) -> Iterator[Finding]:
    for line, text in prose:
        text = re.sub(r"`[^`]*`", "``", text)
        for pattern, suggestion in PATTERNS:
            for match in pattern.finditer(text):
                words = " ".join(match.group().split()).strip(".:; ")
                yield path, line, f"'{words}' (write: {suggestion})"


def _prose_of_code(source: str, tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of comments, docstrings (of attributes as well), names of tests, and the
    strings of log calls, raised errors and help."""
    yield from _comment_blocks(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            words = node.name.removeprefix("test_").replace("_", " ")
            yield node.lineno, words[:1].upper() + words[1:] + " "
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            for paragraph in re.split(r"\n\s*\n", node.value.value):
                yield node.lineno, " ".join(paragraph.split())
        elif isinstance(node, ast.Raise) and node.exc is not None:
            yield from _strings(node.exc)
        elif isinstance(node, ast.Call) and _is_log_call(node):
            yield from _strings(node)
        elif isinstance(node, ast.keyword) and node.arg in ("help", "doc", "documentation"):
            yield from _strings(node.value)


def _comment_blocks(source: str) -> Iterator[tuple[int, str]]:
    first, last, words = 0, -1, ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        text = token.string.lstrip("#").strip()
        if token.start[0] == last + 1:
            words = f"{words} {text}"
        else:
            yield first, words
            first, words = token.start[0], text
        last = token.start[0]
    yield first, words


def _strings(node: ast.AST) -> Iterator[tuple[int, str]]:
    for child in ast.walk(node):
        if isinstance(child, ast.Constant) and isinstance(child.value, str):
            yield child.lineno, child.value


def _is_log_call(node: ast.Call) -> bool:
    function = node.func
    return (
        isinstance(function, ast.Attribute)
        and function.attr in LOG_METHODS
        and isinstance(function.value, ast.Name)
        and function.value.id == "logger"
    )


def _markdown_sentences(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of paragraphs, list items and table cells. Fenced blocks are code and are
    skipped."""
    is_code, first, paragraph = False, 0, ""
    for number, line in enumerate([*text.split("\n"), ""], 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        starts_block = not line.strip() or line.lstrip().startswith(("#", "-", "*", "|", "```"))
        if starts_block and paragraph:
            yield first, paragraph
            paragraph = ""
        if is_code or not line.strip() or line.lstrip().startswith("```"):
            continue
        if line.lstrip().startswith("|"):
            for cell in line.split("|"):
                yield number, cell.strip()
        else:
            first = first if paragraph else number
            paragraph = f"{paragraph} {line.strip().lstrip('#-* ')}".strip()


def _wide_lines(path: Path, text: str) -> Iterator[Finding]:
    """Tables and code cannot be wrapped."""
    is_code = False
    for number, line in enumerate(text.split("\n"), 1):
        is_code ^= line.lstrip().startswith("```")
        if len(line) > MAX_COLUMNS and not is_code and not line.lstrip().startswith("|"):
            yield path, number, f"{len(line)} columns (at most {MAX_COLUMNS})"


def _repeated_lines(path: Path, text: str) -> Iterator[Finding]:
    lines: set[str] = set()
    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith("## "):
            lines.clear()
        elif line.startswith(("### ", "- ")):
            if line in lines:
                yield path, number, f"repeated: '{line}'"
            lines.add(line)


def _template_texts(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, text) between the tags of a Jinja template."""
    for number, line in enumerate(text.split("\n"), 1):
        yield number, re.sub(r"{[%{#].*?[%}#]}|<[^>]*>", "", line).strip()


def source_files(arguments: list[str]) -> list[Path]:
    files: list[Path] = []
    for place in arguments or [*FOLDERS, *PAGES]:
        path = (ROOT / place).resolve()
        files += (
            sorted(file for suffix in ("*.py", "*.md", "*.html") for file in path.rglob(suffix))
            if path.is_dir()
            else [path]
        )
    return [file for file in files if not str(file.relative_to(ROOT)).startswith(EXCLUDED)]


def main() -> int:
    parser = argparse.ArgumentParser(description="Check identifiers and prose against the style of the project.")
    parser.add_argument("--count", action="store_true", help="print only the number of findings per file")
    parser.add_argument("paths", nargs="*", help="files or folders; everything by default")
    arguments = parser.parse_args()
    allowed = set(ALLOWED.read_text().splitlines()) if ALLOWED.exists() else set()
    hits = [
        (path.relative_to(ROOT), line, text)
        for path, line, text in findings(source_files(arguments.paths))
        if f"{path.relative_to(ROOT)}: {text}" not in allowed
    ]
    if arguments.count:
        for path, count in Counter(path for path, _, _ in hits).most_common():
            print(f"{count:5} {path}")
    else:
        for path, line, text in hits:
            print(f"{path}:{line}: {text}")
    print(f"{len(hits)} findings", file=sys.stderr)
    return 1 if hits else 0


if __name__ == "__main__":
    sys.exit(main())
