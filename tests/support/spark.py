"""A small Spark session for tests. All tests of a process share its JVM."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from tests.support import jars


def start_session(folder: Path, master: str = "local[2]") -> Any:
    """Start a session. Spark writes its files to `folder`."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_HOME"] = str(light_home(folder / "home"))
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    from kavka.pipeline.spark import register

    session = (
        SparkSession.builder.master(master)
        .config("spark.jars", _postgres_driver())
        .config("spark.driver.memory", "512m")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xss2m")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.sql.streaming.forceDeleteTempCheckpointLocation", "true")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    return register(session)


def _postgres_driver() -> str:
    """Return the path of the JDBC driver; "" if it is not available. Tests that need it then
    skip."""
    try:
        return jars.class_path("postgresql-jdbc").split(":")[0]
    except jars.JavaMissing:
        return ""


def light_home(home: Path) -> Path:
    """Create a SPARK_HOME in which Python processes load PySpark from the installed package. By
    default they load it from a zip file, and every process compiles all modules again, which makes
    its start four times as slow."""
    import pyspark

    package = Path(pyspark.__path__[0])
    (home / "python" / "lib").mkdir(parents=True, exist_ok=True)
    for entry in package.iterdir():
        if entry.name != "python" and not (home / entry.name).exists():
            (home / entry.name).symlink_to(entry)
    for entry in (package / "python" / "lib").iterdir():
        link = home / "python" / "lib" / entry.name
        if not link.exists():
            link.symlink_to(package.parent if entry.name == "pyspark.zip" else entry)
    return home


def start(writer: Any, attempts: int = 5) -> Any:
    """Start a streaming query and wait until its source is initialized. Retry if a Python process
    does not start within Spark's limit of ten seconds, as may happen on a busy machine."""
    while True:
        query = writer.start()
        while query.isActive and query.status["message"].startswith(("Initializing", "Terminated")):
            time.sleep(0.05)
        error = None if query.isActive else query.exception()
        attempts -= 1
        if error is None or "failed to connect back" not in str(error) or not attempts:
            return query
