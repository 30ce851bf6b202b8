"""The code blocks of the documentation, for the tests that run them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"^(?:<!-- not run: (.+?) -->\n)?```(\w+)\n(.*?)^```|^## ([^\n]*)$", re.MULTILINE | re.DOTALL)
RUN = ("sh", "python")


class Block(NamedTuple):
    section: str
    language: str
    text: str
    reason: str
    """Why no test runs it; empty if one does. On the page: `<!-- not run: reason -->`."""

    @property
    def commands(self) -> list[str]:
        return [line for line in self.text.splitlines() if line and not line.startswith("#")]


def blocks(page: str) -> list[Block]:
    """Return the shell and Python blocks of a page."""
    result, section = [], ""
    for reason, language, text, heading in _BLOCK.findall((ROOT / page).read_text()):
        if heading:
            section = heading
        elif language in RUN:
            result.append(Block(section, language, text, reason))
    return result
