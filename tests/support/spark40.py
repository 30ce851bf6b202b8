"""Spark 4.0.0 with its Kafka connector, in a virtual environment under .cache/. Benchmarks compare
it with Kavka's source and sink, and tests use it as a client of Kavka's broker.

`python -m tests.support.spark40` creates it ahead of the tests.
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
AVRO = f"spark-avro-{VERSION}"
CONNECTOR_JARS = ("spark-sql-kafka-0-10", "spark-token-provider-kafka-0-10", "kafka-clients", "commons-pool2")


def python() -> Path:
    """Return the path of the interpreter with PySpark 4.0.0."""
    interpreter = FOLDER / "bin" / "python"
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        marker = FOLDER / "done"
        if not marker.exists():
            venv.create(FOLDER, with_pip=True)
            install = [str(interpreter), "-m", "pip", "install", "-q", f"pyspark=={VERSION}", "setuptools"]
            result = subprocess.run(install, capture_output=True, text=True, check=False)
            if result.returncode:
                raise jars.JavaMissing(f"PySpark {VERSION} could not be installed: {result.stderr[-500:]}")
            marker.touch()
    return interpreter


def avro() -> list[str]:
    """Return the jar of `from_avro`."""
    return [jar for jar in jars.class_path(AVRO).split(":") if Path(jar).name.startswith("spark-avro")]


def connector() -> list[str]:
    """Return the jars that `format("kafka")` requires."""
    paths = jars.class_path(CONNECTOR).split(":")
    return [jar for jar in paths if Path(jar).name.startswith(CONNECTOR_JARS)]


if __name__ == "__main__":
    print(python(), *connector(), sep="\n")
    sys.exit(0)
