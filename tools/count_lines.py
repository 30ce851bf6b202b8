"""Print the lines of each package of src/kavka, without generated messages.

    python tools/count_lines.py

"code" counts the lines that contain a token other than a comment or a docstring.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "kavka"
GENERATED = PACKAGE / "protocol" / "messages"
BROKER_LAYERS = (
    "common", "protocol", "records", "storage", "metadata", "replication", "controller", "coordinator", "api",
    "network", "broker",
)  # fmt: skip
BLANK = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


def code_lines(source: str) -> int:
    """Return the number of lines that contain code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in BLANK:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (
            ast.get_docstring(node, clean=False) is not None
        ):
            docstring = node.body[0]
            lines.difference_update(range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1))
    return len(lines)


def count(package: Path = PACKAGE) -> tuple[Counter[str], Counter[str]]:
    """Return all lines, and the lines of code, by subpackage or module."""
    total: Counter[str] = Counter()
    code: Counter[str] = Counter()
    for file in sorted(package.rglob("*.py")):
        if not file.is_relative_to(GENERATED):
            source = file.read_text()
            name = file.relative_to(package).parts[0].removesuffix(".py")
            total[name] += source.count("\n")
            code[name] += code_lines(source)
    return total, code


def main() -> None:
    total, code = count()
    print(f"{'package':<20} {'lines':>7} {'code':>7}")
    for name in [*BROKER_LAYERS, *sorted(total.keys() - set(BROKER_LAYERS))]:
        print(f"{name:<20} {total[name]:>7} {code[name]:>7}")
    for label, names in (("the broker's layers", BROKER_LAYERS), ("all packages", tuple(total))):
        print(f"{label:<20} {sum(total[name] for name in names):>7} {sum(code[name] for name in names):>7}")


if __name__ == "__main__":
    main()
