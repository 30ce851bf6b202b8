"""What dump-log needs of the files of a log: their bytes, their names, and what is wrong with them."""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from kavka.cli.tool import ToolError
from kavka.records.batch import Buffer


class Complaints:
    """What does not fit, told on standard error when all files were read: by kind, then by file, in Kafka's order."""

    LAST_FIRST = ("Mismatches in :", "Non-consecutive offsets in ")

    def __init__(self) -> None:
        self._kinds: dict[str, dict[str, list[str]]] = {
            "Mismatches in :": {},
            "Found timestamp mismatch in :": {},
            "Found out of order timestamp in :": {},
            "The following indexed offsets are not found in the log.": {},
            "Non-consecutive offsets in ": {},
        }

    def add(self, kind: str, path: str, line: str) -> None:
        self._kinds[kind].setdefault(os.path.abspath(path), []).append(line)

    def print(self) -> None:
        for kind, files in self._kinds.items():
            for path, lines in files.items():
                print(kind if kind.endswith(".") else f"{kind}{path}", file=sys.stderr)
                for line in reversed(lines) if kind in self.LAST_FIRST else lines:
                    print(line, file=sys.stderr)


@contextmanager
def mapped(path: str) -> Iterator[Buffer]:
    """The bytes of a file, without reading it whole."""
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            yield b""
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as found, memoryview(found) as view:
            yield view


def base_offset_of(path: str) -> int:
    text = os.path.basename(path).partition(".")[0]
    if not text.isdigit():
        raise ToolError(f"{path}: the name of a file of a log begins with an offset")
    return int(text)
