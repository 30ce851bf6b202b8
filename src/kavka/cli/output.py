"""Output of tools. In a pipe, each tool prints the same bytes as Kafka's tool. On a terminal, tools
print aligned tables, colours and live progress."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self, TextIO

_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36"}
PROGRESS_INTERVAL_S = 0.2


def at_terminal(stream: TextIO | None = None) -> bool:
    """Return whether the stream is a terminal. The default is standard output."""
    try:
        return (sys.stdout if stream is None else stream).isatty()
    except ValueError:
        return False


def _supports_colours(stream: TextIO | None = None) -> bool:
    return at_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def style(text: str, *styles: str, stream: TextIO | None = None) -> str:
    """Return the text with styles if the stream supports colours, else unchanged. The default
    stream is standard output."""
    if not styles or not _supports_colours(stream):
        return text
    return f"\x1b[{';'.join(_STYLES[name] for name in styles)}m{text}\x1b[0m"


def print_json(value: Any) -> None:
    """Print the output of `--json`: indented on a terminal, one line in a pipe."""
    import json

    print(json.dumps(value, ensure_ascii=False, indent=2 if at_terminal() else None, default=str))


def print_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    right_aligned: Iterable[str] = (),
    cell_styles: Callable[[str, str], Sequence[str]] | None = None,
) -> None:
    """Print headings and aligned columns for a terminal.

    `right_aligned` has the headings of right-aligned columns. `cell_styles(heading, cell)` returns
    the styles of a cell.
    """
    texts = [["-" if cell is None or cell == "" else str(cell) for cell in row] for row in rows]
    widths = [max([len(heading), *(len(row[i]) for row in texts)]) for i, heading in enumerate(headings)]
    right_headings = set(right_aligned)

    def padded(i: int, text: str) -> str:
        return text.rjust(widths[i]) if headings[i] in right_headings else text.ljust(widths[i])

    print(style("  ".join(padded(i, h) for i, h in enumerate(headings)).rstrip(), "bold"))
    for row in texts:
        cells = []
        for i, text in enumerate(row):
            cell = padded(i, text) if i + 1 < len(row) or headings[i] in right_headings else text
            cells.append(style(cell, *(cell_styles(headings[i], text) if cell_styles else ())))
        print("  ".join(cells))


class Progress:
    """A live progress line, by default on standard error. Nothing is shown if the stream is not a
    terminal.

    with Progress() as progress:
        progress.show("3 of 10 partitions")
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self.is_shown = at_terminal(self._stream)
        self._last_update = 0.0
        self._has_line = False

    def show(self, text: str, *, force: bool = False) -> None:
        """Replace the line, at most five times per second unless `force` is set."""
        if not self.is_shown:
            return
        now = time.monotonic()
        if not force and now - self._last_update < PROGRESS_INTERVAL_S:
            return
        self._last_update = now
        width = self._width()
        self._stream.write("\r" + (text if len(text) < width else text[: width - 2] + "…") + "\x1b[K")
        self._stream.flush()
        self._has_line = True

    def clear(self) -> None:
        """Remove the line. Call it before other output."""
        if self._has_line:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._has_line = False

    def _width(self) -> int:
        try:
            return max(20, os.get_terminal_size(self._stream.fileno()).columns or 80)
        except (OSError, ValueError):
            return 80

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.clear()
