"""Check the links of the Markdown pages without building the site.

    python tools/check_links.py [page ...]

Every relative link leads to a file of the repository and, with an anchor, to a heading of it.
Links of the site (`docs/`) stay within `docs/`, because the site has no other files. Every page of
`docs/` is in the navigation of `tools/site/zensical.toml`, or is a decision that
`decisions/index.md` lists.
Links to other servers are not checked.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
NAVIGATION = ROOT / "tools" / "site" / "zensical.toml"
_FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`+[^`\n]*`+")
_LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\]|!\[[^\]]*\]\([^)]*\))*\]\(([^)\s]+)(?: \"[^\"]*\")?\)")
_IMAGE_IN_LINK = re.compile(r"!\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.*?) *#*$", re.MULTILINE)
_ANCHOR = re.compile(r'<a (?:id|name)="([^"]+)"')


def pages() -> list[Path]:
    return [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]


def _blank(match: re.Match[str]) -> str:
    return "\n" * match[0].count("\n")


def slug(heading: str) -> str:
    """Return the anchor of a heading, as the site and public forges compute it."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
    return re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-")


@cache
def anchors(page: Path) -> frozenset[str]:
    text = _FENCE.sub(_blank, page.read_text())
    names = set(_ANCHOR.findall(text))
    counts: dict[str, int] = {}
    for heading in _HEADING.findall(text):
        name = slug(heading)
        number = counts.get(name, 0)
        counts[name] = number + 1
        names.add(f"{name}_{number}" if number else name)
    return frozenset(names)


def links(page: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, target) of every link and image outside of code."""
    text = _CODE.sub("", _FENCE.sub(_blank, page.read_text()))
    for number, line in enumerate(text.split("\n"), 1):
        for target in {*_LINK.findall(line), *_IMAGE_IN_LINK.findall(line)}:
            yield number, unquote(target)


def problems(page: Path) -> Iterator[str]:
    place = page.relative_to(ROOT)
    for line, target in links(page):
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        if not path.exists():
            yield f"{place}:{line}: {target} does not exist"
        elif page.is_relative_to(DOCS) and not path.is_relative_to(DOCS):
            yield f"{place}:{line}: {target} is outside of docs/: name the file in backticks"
        elif anchor and path.suffix == ".md" and anchor not in anchors(path):
            yield f"{place}:{line}: {target}: there is no such heading"


def navigation_problems() -> Iterator[str]:
    project = tomllib.loads(NAVIGATION.read_text())["project"]
    listed = {DOCS / page for page in _leaves(project["nav"])}
    for page in sorted(page for page in listed if not page.exists()):
        yield f"{NAVIGATION.relative_to(ROOT)}: {page.relative_to(DOCS)} does not exist"
    index = DOCS / "decisions" / "index.md"
    listed |= {(index.parent / target).resolve() for _, target in links(index)}
    for page in sorted(set(DOCS.rglob("*.md")) - listed):
        place = index if page.parent == index.parent else NAVIGATION
        yield f"{page.relative_to(ROOT)} is not in {place.relative_to(ROOT)}"


def _leaves(node: Any) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    else:
        for child in node.values() if isinstance(node, dict) else node:
            yield from _leaves(child)


def main() -> int:
    arguments = [Path(name).resolve() for name in sys.argv[1:]]
    lines = [problem for page in arguments or pages() for problem in problems(page)]
    if not arguments:
        lines += navigation_problems()
    for line in lines:
        print(line)
    print(f"{len(lines)} broken links", file=sys.stderr)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
