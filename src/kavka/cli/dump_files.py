"""Parts shared by the modules of dump-log: mapped files, base offsets, and mismatches."""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from kavka.cli.tool import ToolError
from kavka.records.batch import Buffer


class Mismatches:
    """Collects the mismatches in all files. `print` reports them on standard error in Kafka's
    order: by heading, then by file."""

    REVERSED_HEADINGS = ("Mismatches in :", "Non-consecutive offsets in ")

    def __init__(self) -> None:
        self._lines_by_heading: dict[str, dict[str, list[str]]] = {
            "Mismatches in :": {},
            "Found timestamp mismatch in :": {},
            "Found out of order timestamp in :": {},
            "The following indexed offsets are not found in the log.": {},
            "Non-consecutive offsets in ": {},
        }

    def add(self, heading: str, path: str, line: str) -> None:
        self._lines_by_heading[heading].setdefault(os.path.abspath(path), []).append(line)

    def print(self) -> None:
        for heading, files in self._lines_by_heading.items():
            for path, lines in files.items():
                print(heading if heading.endswith(".") else f"{heading}{path}", file=sys.stderr)
                for line in reversed(lines) if heading in self.REVERSED_HEADINGS else lines:
                    print(line, file=sys.stderr)


@contextmanager
def mapped(path: str) -> Iterator[Buffer]:
    """Map a file into memory inside the block. The caller must release all views of the memory map
    before the block ends."""
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            yield b""
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data, memoryview(data) as view:
            yield view


def base_offset_of(path: str) -> int:
    """Return the base offset in the name of a log file. Raise ToolError if the name has none."""
    text = os.path.basename(path).partition(".")[0]
    if not text.isdigit():
        raise ToolError(f"{path}: the name of a log file must start with an offset")
    return int(text)
