"""Kavka's source and sink for Spark: `spark.read/readStream/write/writeStream.format("kavka")`.

    from kavka.pipeline.spark import register

    register(spark)
    orders = (
        spark.readStream.format("kavka")
        .option("kafka.bootstrap.servers", "localhost:9092")
        .option("subscribe", "orders")
        .load()
    )

The options and columns are those of Spark's own `format("kafka")`; `docs/pipeline.md` lists them.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["activate", "register"]


_REDACTION = "spark.sql.redaction.options.regex"
_SECRET_OPTIONS = r"(?i)passw|secret|token|jaas|keystore\.key|certificate\.chain|ssl\.key|\.pem$"


def register(spark: SparkSession) -> SparkSession:
    """Register `format("kavka")` in this session. Registering again has no effect. Returns the
    session."""
    try:
        from kavka.pipeline.spark.source import KavkaDataSource
    except ImportError as error:
        raise ImportError("the pipeline needs pyspark and pyarrow: pip install 'kavka[pipeline]'") from error
    # Spark's Python workers need the packages of this interpreter. Spark's default is the first
    # `python3` in the PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark.dataSource.register(KavkaDataSource)
    _redact_secrets(spark)
    return spark


def _redact_secrets(spark: SparkSession) -> None:
    """Make Spark redact secret options in query plans. By default it redacts passwords and tokens,
    but not private keys."""
    patterns = spark.conf.get(_REDACTION, "(?i)url") or ""
    if _SECRET_OPTIONS not in patterns:
        spark.conf.set(_REDACTION, f"{patterns}|{_SECRET_OPTIONS}" if patterns else _SECRET_OPTIONS)


def activate(spark: SparkSession) -> None:
    """Make `spark` the active session of this thread. Spark looks up Python data sources in the
    active session of the calling thread, and a new thread has no active session."""
    session: Any = spark
    session._get_j_spark_session_class(session._jvm).setActiveSession(session._jsparkSession)
