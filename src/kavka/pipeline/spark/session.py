"""Builds the Spark sessions of Streams, Connect and mirroring."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kavka.pipeline.spark.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DEFAULTS = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}


def build_session(
    name: str,
    config: Mapping[str, str],
    master: str | None = None,
    *,
    log_level: str | None = None,
    error: type[Exception] = PipelineError,
) -> SparkSession:
    """Return the session of this process with `config` (`spark.…`), or create it. The default of
    `master` is the variable SPARK_MASTER, else all cores of this machine. Raises `error` if pyspark
    is not installed."""
    # The interpreter of Spark's Python workers. The default is any `python3`.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    try:
        from pyspark.sql import SparkSession
    except ImportError as missing:
        raise error(f"{name} runs on Spark: pip install 'kavka[pipeline]'") from missing
    builder = SparkSession.builder.appName(name).master(master or os.environ.get("SPARK_MASTER") or "local[*]")
    for option, value in {**_DEFAULTS, **config}.items():
        builder = builder.config(option, value)
    session = builder.getOrCreate()
    level = os.environ.get("KAVKA_SPARK_LOG_LEVEL") or log_level
    if level:
        session.sparkContext.setLogLevel(level)
    return session


def running_session() -> SparkSession | None:
    """Return the active session of this thread, None if pyspark is not loaded or there is none."""
    if "pyspark" not in sys.modules:
        return None
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()
