"""A standalone Spark cluster from PySpark's jars: a master process and worker processes.

The workers of an isolated cluster share nothing with this process but the network: they have a
virtual environment without any packages, and their own home and temporary folders.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support import jars
from tests.support.processes import ManagedProcess, wait_until
from tests.support.spark import light_home

JVM = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xss512k")


class Standalone:
    """A cluster whose workers have one core each, so that an application has one executor per
    worker."""

    def __init__(self, folder: Path, workers: int, is_isolated: bool = False, memory: str = "600m") -> None:
        self.folder = folder
        self._home = light_home(folder / "home")
        self._environment: dict[str, str] | None = None
        self.workers: list[ManagedProcess] = []
        if is_isolated:
            self._isolate()
        self._processes: list[ManagedProcess] = []
        try:
            master = self._start("master", "org.apache.spark.deploy.master.Master", "--port", "0")
            log = folder / "master.log"
            self.master = ""

            def is_listening() -> bool:
                match = re.search(r"Starting Spark master at (spark://\S+)", log.read_text())
                self.master = match.group(1) if match else ""
                assert master.running(), master.log_tail()
                return bool(match)

            wait_until(is_listening, timeout=120, what="Spark's master", interval=0.2)
            for number in range(workers):
                name = f"worker{number}"
                resources = "--cores", "1", "--memory", memory, "--work-dir", str(folder / name)
                self.workers.append(self._start(name, "org.apache.spark.deploy.worker.Worker", *resources, self.master))
            wait_until(
                lambda: log.read_text().count("Registering worker") == workers,
                timeout=120,
                what="workers at the master",
                interval=0.2,
            )
        except BaseException:
            self.close()
            raise

    def _start(self, name: str, main: str, *arguments: str) -> ManagedProcess:
        conf = self.folder / "conf"
        conf.mkdir(exist_ok=True)
        (conf / "log4j2.properties").write_text(
            "rootLogger.level = info\nrootLogger.appenderRef.out.ref = out\nappender.out.type = Console\n"
            "appender.out.name = out\nappender.out.target = SYSTEM_ERR\nappender.out.layout.type = PatternLayout\n"
            "appender.out.layout.pattern = %d %p %c: %m%n\n"
        )
        add_opens = [
            f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in ("java.nio", "sun.nio.ch", "java.lang")
        ]
        process = ManagedProcess(
            [*self._clean_environment(name),
             jars.java(), *JVM, *add_opens, "-cp", f"{conf}:{self._home}/jars/*", main, "--host", "127.0.0.1",
             "--webui-port", "0", *arguments],
            log=self.folder / f"{name}.log",
        )  # fmt: skip
        self._processes.append(process)
        return process

    def _clean_environment(self, name: str) -> list[str]:
        """The beginning of a command that runs with the variables of this cluster."""
        variables: dict[str, Any] = {
            "SPARK_HOME": self._home,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_SCALA_VERSION": "2.13",
        }
        if self._environment is None:
            variables["PYSPARK_PYTHON"] = sys.executable
        else:
            own = {variable: self.folder / f"{name}-{variable.lower()}" for variable in ("HOME", "TMPDIR")}
            for path in own.values():
                path.mkdir(exist_ok=True)
            variables |= {**self._environment, **own, "SPARK_LOCAL_DIRS": own["TMPDIR"]}
        clean = () if self._environment is None else ("-i",)
        return ["/usr/bin/env", *clean, *(f"{variable}={value}" for variable, value in variables.items())]

    def _isolate(self) -> None:
        """Create the environment of the workers: an empty virtual environment, and of Spark only
        its jars and the package pyspark."""
        venv = self.folder / "venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
        modules = self._home / "python" / "lib" / "pyspark.zip"
        package = modules.resolve() / "pyspark"
        modules.unlink()
        modules.mkdir()
        (modules / "pyspark").symlink_to(package)
        java = Path(jars.java()).parent
        self._environment = {"PATH": f"{venv}/bin:{java}:/usr/bin:/bin", "LANG": "C.UTF-8"}

    def kill_worker(self, number: int) -> None:
        """Kill a worker with its executor and Python processes: the loss of a machine."""
        worker = self.workers[number]
        kill_descendants(worker.pid)
        worker.kill()

    def executors(self) -> list[int]:
        """Return the number of executors that each worker has started."""
        return [len(list(worker.glob("app-*/*/stderr"))) for worker in sorted(self.folder.glob("worker?"))]

    def close(self) -> None:
        for process in reversed(self._processes):
            if process.running():
                kill_descendants(process.pid)
            process.kill()

    def __enter__(self) -> Standalone:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def kill_descendants(pid: int) -> None:
    """Kill the descendants of a process, also those in other process groups."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(") ")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    pending, descendants = [pid], []
    while pending:
        own = children.get(pending.pop(), [])
        pending += own
        descendants += own
    for descendant in descendants:
        try:
            os.kill(descendant, signal.SIGKILL)
        except ProcessLookupError:
            continue
