"""Traces, delays or fails system calls of a running process with strace."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.support.missing import need_command
from tests.support.processes import ManagedProcess, wait_until


@contextlib.contextmanager
def tracing(
    pid: int, calls: Sequence[str], output: Path, *, inject: str | None = None, paths: Sequence[Path] = ()
) -> Iterator[Path]:
    """Trace the system calls `calls` of all threads of a process to the file `output`, with the
    paths of file descriptors.

    `inject` is a fault to inject, for example `error=EIO` or `delay_enter=100ms`. `paths` limits
    the trace to calls on these files.
    """
    argv = [need_command("strace", "strace"), "-f", "-y", "-tt", "-e", f"trace={','.join(calls)}"]
    if inject is not None:
        argv += ["-e", f"inject={','.join(calls)}:{inject}"]
    for path in paths:
        argv += ["-P", str(path)]
    log = output.with_suffix(".err")
    log.unlink(missing_ok=True)
    tracer = ManagedProcess([*argv, "-o", str(output), "-p", str(pid)], log=log)
    try:
        wait_until(lambda: "attached" in tracer.log_tail(), timeout=20, what="strace to be attached")
        yield output
    finally:
        tracer.signal(signal.SIGINT)
        tracer.wait(20)
