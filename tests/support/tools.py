"""Runs command-line tools: Kavka's tools in this process, and Apache's tools in one JVM."""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from kavka.cli import main as cli
from tests.support.java_client import TOOLS, probe_command, quiet_logging
from tests.support.processes import dying_with_parent

RUNNER = Path(__file__).parent / "java" / "KavkaTools.java"
SMALL_JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


class Result(NamedTuple):
    code: int
    out: str
    err: str


def run_kavka(tool: str, *args: str) -> Result:
    """Run `kavka <tool> …` in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main([tool, *args])
    return Result(code, out.getvalue(), err.getvalue())


def kavka_command(tool: str, *args: str) -> list[str]:
    return [sys.executable, "-m", "kavka.cli.main", tool, *args]


def run_kavka_process(tool: str, *args: str, stdin: bytes = b"", timeout: float = 90.0) -> Result:
    """Run `kavka <tool> …` as a process, for tools that read standard input or write bytes."""
    result = subprocess.run(kavka_command(tool, *args), input=stdin, capture_output=True, timeout=timeout, check=False)
    return Result(result.returncode, result.stdout.decode(), result.stderr.decode())


class ApacheTools:
    """Runs Apache's tools of one version in a JVM, which ends with `close` or with this process."""

    def __init__(self, version: str) -> None:
        self.version = version
        self._process = subprocess.Popen(
            dying_with_parent(
                probe_command(version, source=RUNNER, jvm=(*SMALL_JVM, quiet_logging(version)), kind="server")
            ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            bufsize=1,
        )
        atexit.register(self.close)

    def run(self, tool: str, *args: str, stdin: str = "") -> Result:
        assert self._process.stdin is not None and self._process.stdout is not None
        command = {"class": TOOLS[self.version][tool], "args": args, "stdin": stdin}
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the JVM with Apache's tools has ended while it ran {tool} {' '.join(args)}")
        response = json.loads(line)
        return Result(response["code"], response["out"], response["err"])

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        atexit.unregister(self.close)

    def __enter__(self) -> ApacheTools:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
