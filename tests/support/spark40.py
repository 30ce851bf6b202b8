"""Spark 4.0.0 with its own Kafka connector in a separate environment under .cache/: the peer of the
benchmarks of our source and sink, and a client of our broker.

`python -m tests.support.spark40` makes it ahead of the tests.
"""

from __future__ import annotations

import fcntl
import subprocess
import sys
import venv
from pathlib import Path

from tests.support import jars

VERSION = "4.0.0"
FOLDER = jars.CACHE.parent / f"spark-{VERSION}"
CONNECTOR = f"spark-connector-{VERSION}"
NEEDED = ("spark-sql-kafka-0-10", "spark-token-provider-kafka-0-10", "kafka-clients", "commons-pool2")


def python() -> Path:
    """The interpreter that has PySpark 4.0.0."""
    interpreter = FOLDER / "bin" / "python"
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = FOLDER / "done"
        if not done.exists():
            venv.create(FOLDER, with_pip=True)
            install = [str(interpreter), "-m", "pip", "install", "-q", f"pyspark=={VERSION}", "setuptools"]
            result = subprocess.run(install, capture_output=True, text=True, check=False)
            if result.returncode:
                raise jars.JavaMissing(f"PySpark {VERSION} could not be installed: {result.stderr[-500:]}")
            done.touch()
    return interpreter


def connector() -> list[str]:
    """The jars that `format("kafka")` needs."""
    paths = jars.class_path(CONNECTOR).split(":")
    return [jar for jar in paths if Path(jar).name.startswith(NEEDED)]


if __name__ == "__main__":
    print(python(), *connector(), sep="\n")
    sys.exit(0)
