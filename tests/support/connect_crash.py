"""A standalone Connect worker whose connectors halt at a chosen stage of a batch, so that a test
can kill the worker at that stage.

    python -m tests.support.connect_crash WORKER.properties CONNECTOR.properties …

A connector halts in its second batch. The suffix of its name, or of its file's name, is the stage.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from kavka.pipeline.connect.connectors.file_sink import Target
from kavka.pipeline.connect.connectors.files import FileStreamSource
from kavka.pipeline.connect.connectors.jdbc_sink import JdbcSink

FOLDER = "KAVKA_CRASH_FOLDER"
BATCH = 1


def halt(name: str) -> None:
    """Create a marker file and wait forever."""
    (Path(os.environ[FOLDER]) / f"{name}.halted").touch()
    while True:
        time.sleep(60)


_append, _write, _merge = Target.append, JdbcSink._write, JdbcSink._merge
_ranges = FileStreamSource.ranges


def append(self: Any, parts: list[str]) -> None:
    batch = json.loads((self.folder / "state").read_text())["batch"]
    if batch == BATCH and self.path.stem.endswith("-torn"):
        with open(parts[0], "rb") as lines, self.path.open("ab") as file:
            file.write(lines.read(25))
        halt(self.path.stem)
    _append(self, parts)
    if batch == BATCH and self.path.stem.endswith("-whole"):
        halt(self.path.stem)


def write(self: Any, context: Any, records: Any, batch_id: int) -> None:
    self.halting = context.name if batch_id == BATCH else ""
    _write(self, context, records, batch_id)
    if self.halting.endswith("-committed"):
        halt(context.name)


def merge(self: Any, connection: Any, request: Any) -> None:
    _merge(self, connection, request)
    if self.halting.endswith("-merged"):
        halt(self.halting)


def ranges(self: Any, context: Any, start: Any, end: Any) -> Any:
    if start and context.name.endswith("-planned"):
        halt(context.name)
    return _ranges(self, context, start, end)


def main() -> int:
    from kavka.cli.main import main

    Target.append = append  # type: ignore[method-assign]
    JdbcSink._write = write  # type: ignore[method-assign]
    JdbcSink._merge = merge  # type: ignore[method-assign]
    FileStreamSource.ranges = ranges  # type: ignore[method-assign]
    return main(["connect-standalone", *sys.argv[1:]]) or 0


if __name__ == "__main__":
    sys.exit(main())
