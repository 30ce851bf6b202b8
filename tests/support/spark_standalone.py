"""A standalone Spark cluster from PySpark's jars: a master process and worker processes."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from tests.support import jars
from tests.support.processes import ManagedProcess, wait_until
from tests.support.spark import light_home

JVM = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xss512k")


class Standalone:
    """A cluster whose workers have one core each, so that an application has one executor per
    worker."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.folder = folder
        self._home = light_home(folder / "home")
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
                resources = "--cores", "1", "--memory", "600m", "--work-dir", str(folder / name)
                self._start(name, "org.apache.spark.deploy.worker.Worker", *resources, self.master)
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
            [jars.java(), *JVM, *add_opens, "-cp", f"{conf}:{self._home}/jars/*", main, "--host", "127.0.0.1",
             "--webui-port", "0", *arguments],
            log=self.folder / f"{name}.log",
            env={**os.environ, "SPARK_HOME": str(self._home), "SPARK_LOCAL_IP": "127.0.0.1",
                 "PYSPARK_PYTHON": sys.executable, "SPARK_SCALA_VERSION": "2.13"},
        )  # fmt: skip
        self._processes.append(process)
        return process

    def executors(self) -> list[int]:
        """Return the number of executors that each worker has started."""
        return [len(list(worker.glob("app-*/*/stderr"))) for worker in sorted(self.folder.glob("worker?"))]

    def close(self) -> None:
        for process in reversed(self._processes):
            process.kill()

    def __enter__(self) -> Standalone:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
