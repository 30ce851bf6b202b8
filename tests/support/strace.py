"""System calls of a running broker: seen, delayed, or made to fail."""

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
    """Traces `calls` of the process and all its threads into `output`, with the paths of
    descriptors.

    `inject` is what happens to them, as `error=EIO` or `delay_enter=100ms`; with `paths`, only to
    calls on those files.
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
