"""A Spark job that reads one topic and writes another of a secured cluster, as a batch and as a
stream, and prints everything that Spark shows of it: the plans, the progress, the log at INFO.

    python -m tests.support.secured_spark_job <folder> <file with the client's settings as JSON>
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tests.support.spark import light_home


def main(folder: Path, settings: dict[str, str]) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_HOME"] = str(light_home(folder / "home"))
    from pyspark.sql import SparkSession

    from kavka.pipeline.spark import register

    (folder / "events").mkdir()
    session = register(
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", "512m")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.dir", (folder / "events").as_uri())
        .config("spark.local.dir", str(folder / "local"))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("INFO")
    options = {f"kafka.{name}": value for name, value in settings.items()}
    source = {**options, "subscribe": "in", "startingOffsets": "earliest", "textColumns": "value"}
    frame = session.read.format("kavka").options(**source).load()
    frame.explain(True)
    frame.select("value").write.format("kavka").options(**options, topic="out").mode("append").save()
    stream = session.readStream.format("kavka").options(**source).load().select("value")
    stream.explain(True)
    query = (
        stream.writeStream.format("kavka")
        .options(**options, topic="out", checkpointLocation=str(folder / "checkpoint"))
        .queryName("secured")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    query.explain(True)
    for progress in query.recentProgress:
        print(progress.json if hasattr(progress, "json") else progress)
    print(query.status)
    session.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()))
