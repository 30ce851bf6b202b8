"""The logs of streams jobs on this machine: what `kavka pipeline run` and Spark's driver write to
stderr. Executors of a cluster have their own logs, which the cluster manager shows.

The log of a job is `<application.id>.log` in the folder of the jobs' records, the previous one
`….log.1`. A log of more than 10 MB is moved when the job starts again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

MAX_LOG_BYTES = 10 * 1024 * 1024
# Set for a process whose output goes to the log already.
IS_LOGGED = "KAVKA_PIPELINE_LOGGED"
_TAIL_BLOCK = 64 * 1024
_FOLLOW_INTERVAL_S = 0.3


@contextmanager
def recorded_output(path: Path) -> Iterator[TextIO]:
    """Copy what this process and its children write to stderr to a log. Yields the stderr that is
    not copied. `tee` copies, so that the last output of a killed process is copied as well."""
    original = os.dup(2)
    with os.fdopen(original, "w", closefd=True) as terminal:
        tee = shutil.which("tee")
        if tee is None or os.environ.get(IS_LOGGED):
            yield terminal
            return
        if path.exists() and path.stat().st_size > MAX_LOG_BYTES:
            path.replace(path.with_suffix(".log.1"))
        path.touch(mode=0o600)
        copier = subprocess.Popen(
            [tee, "-a", "-i", str(path)], stdin=subprocess.PIPE, stdout=original, start_new_session=True
        )
        assert copier.stdin is not None
        sys.stderr.flush()
        os.dup2(copier.stdin.fileno(), 2)
        copier.stdin.close()
        try:
            yield terminal
        finally:
            sys.stderr.flush()
            os.dup2(original, 2)


def print_log(path: Path, lines: int, follow: bool) -> None:
    """Print the last lines of a log, and with `follow` what is added, until KeyboardInterrupt."""
    with path.open("rb") as file:
        file.seek(0, os.SEEK_END)
        size = file.tell()
        data = b""
        while size > 0 and data.count(b"\n") <= lines:
            size = max(0, size - _TAIL_BLOCK)
            file.seek(size)
            data = file.read()
        last = data.splitlines(keepends=True)[-lines:] if lines else []
        sys.stdout.write(b"".join(last).decode(errors="replace"))
        file.seek(0, os.SEEK_END)
        while follow:
            sys.stdout.flush()
            more = file.read()
            if more:
                sys.stdout.write(more.decode(errors="replace"))
            else:
                time.sleep(_FOLLOW_INTERVAL_S)
