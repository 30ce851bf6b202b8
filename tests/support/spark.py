"""A small Spark for tests: one JVM for all of them, in this process' life."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any


def start_session(folder: Path) -> Any:
    """`folder` is for what Spark leaves lying about."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    from kavka.pipeline.spark import register

    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", "512m")
        .config("spark.driver.host", "127.0.0.1")
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


def start(writer: Any, attempts: int = 3) -> Any:
    """Start a streaming query and wait until its source is there. Spark gives a Python process ten seconds to start,
    which a busy machine may not have: that alone is tried again."""
    while True:
        query = writer.start()
        while query.isActive and query.status["message"].startswith("Initializing"):
            time.sleep(0.05)
        error = None if query.isActive else query.exception()
        attempts -= 1
        if error is None or "failed to connect back" not in str(error) or not attempts:
            return query
