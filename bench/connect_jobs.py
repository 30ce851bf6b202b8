"""A job of bench.connect, run in a Spark process.

    python -m bench.connect_jobs JOB RECORDS PAIRS ARGUMENT…

It prints RESULT and a JSON list of pairs: the rates of the connector and of PySpark, or of the
connector with two tasks and with one, or of the connector and of COPY.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

STRINGS = "org.apache.kafka.connect.storage.StringConverter"


def session(jars: str = "") -> Any:
    from pyspark.sql import SparkSession

    from kavka.pipeline.spark import register

    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", jars)
        .config("spark.driver.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return register(spark)


def pairs(
    count: int, records: int, connector: Callable[[int], None], by_hand: Callable[[int], None]
) -> list[list[float]]:
    """Return the rates of both jobs in `count` rounds, after a warm-up round."""
    rate_pairs = []
    for round_index in range(count + 1):
        rates = []
        for work in (connector, by_hand):
            start = time.perf_counter()
            work(round_index)
            rates.append(records / (time.perf_counter() - start))
        if round_index:
            rate_pairs.append(rates)
    return rate_pairs


def run_connector(spark: Any, servers: str, folder: Path, name: str, config: dict[str, str]) -> None:
    """Run a connector in a new worker until it ends. Raise RuntimeError if it fails."""
    from kavka.pipeline.connect.loading import Declared
    from kavka.pipeline.connect.plugins import load
    from kavka.pipeline.connect.stores import MemoryTable, OffsetStore
    from kavka.pipeline.connect.tasks import DONE, Outcome, Task, Worker
    from kavka.pipeline.spark import activate

    properties = {"bootstrap.servers": servers, "key.converter": STRINGS, "value.converter": STRINGS}

    def active_session() -> Any:
        """Return the session, activated in the thread of the task as in a worker."""
        activate(spark)
        return spark

    declared = Declared(file_connectors=True)
    worker = Worker("bench", properties, active_session, str(folder), OffsetStore(MemoryTable()), declared=declared)
    ended: list[Outcome] = []
    has_ended = threading.Event()

    def on_end(task: Task, outcome: Outcome) -> None:
        ended.append(outcome)
        has_ended.set()

    settings = {"name": name, "trigger": "available-now", **config}
    Task(worker, name, load(config["connector.class"], declared), settings, on_end).start()
    has_ended.wait()
    if ended[0].kind != DONE:
        raise RuntimeError(f"connector {name} failed: {ended[0].trace}")


def file(records: int, count: int, servers: str, path: str) -> list[list[float]]:
    spark = session()
    folder = Path(tempfile.mkdtemp())

    def connector(round_index: int) -> None:
        config = {"connector.class": "FileStreamSource", "file": path, "topic": "connector", "tasks.max": "2"}
        run_connector(spark, servers, folder, f"file-{round_index}", config)

    def by_hand(round_index: int) -> None:
        rows = spark.read.text(path)
        rows.write.format("kavka").options(**{"kafka.bootstrap.servers": servers, "topic": "by-hand"}).mode(
            "append"
        ).save()

    return pairs(count, records, connector, by_hand)


def parquet(records: int, count: int, servers: str, topic: str) -> list[list[float]]:
    spark = session()
    folder = Path(tempfile.mkdtemp())

    def connector(round_index: int) -> None:
        target = folder / f"connector-{round_index}"
        config = {"connector.class": "SparkSink", "topics": topic, "spark.format": "parquet", "spark.path": str(target)}
        config["tasks.max"] = "2"
        run_connector(spark, servers, folder / "checkpoints", f"parquet-{round_index}", config)
        shutil.rmtree(target)

    def by_hand(round_index: int) -> None:
        target = folder / f"by-hand-{round_index}"
        options = {"kafka.bootstrap.servers": servers, "subscribe": topic, "startingOffsets": "earliest"}
        rows = spark.readStream.format("kavka").options(**options).load().selectExpr("CAST(value AS STRING) AS value")
        query = (
            rows.writeStream.format("parquet")
            .option("path", str(target))
            .option("checkpointLocation", str(folder / f"checkpoint-{round_index}"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        shutil.rmtree(target)

    return pairs(count, records, connector, by_hand)


def jdbc(records: int, count: int, url: str, mode: str, user: str, password: str, driver: str) -> list[list[float]]:
    from tests.support.connectors import context_of

    spark = session(driver)
    columns = (
        "id",
        "repeat(chr(65 + cast(id % 26 as int)), 100) AS name",
        "id * 1.5D AS amount",
        "timestamp_seconds(1700000000 + id) AS at",
    )
    rows = spark.range(0, records, 1, 2).selectExpr(*columns).cache()
    rows.count()
    batch = rows.selectExpr(
        "struct(id) AS key", "struct(*) AS value", "'t' AS topic", "cast(id % 2 AS INT) AS partition", "id AS offset"
    )
    login = {"url": url, "user": user, "password": password, "driver": "org.postgresql.Driver"}
    upsert_settings = {"insert.mode": "upsert", "pk.mode": "record_key"} if mode == "upsert" else {}
    settings = {"connection.url": url, "connection.user": user, "connection.password": password, "auto.create": "true"}
    folder = Path(tempfile.mkdtemp())

    def connector(round_index: int) -> None:
        sink, context = context_of(
            spark,
            "JdbcSink",
            {**settings, **upsert_settings, "topics": "t", "table.name.format": f"connector{round_index}"},
            folder,
            exactly_once=True,
        )
        sink.write(context, batch, 0 if mode == "upsert" else round_index)
        sink.stop()

    def by_hand(round_index: int) -> None:
        rows.write.format("jdbc").options(**login, dbtable=f"by_hand{round_index}").mode("append").save()

    return pairs(count, records, connector, by_hand)


def with_tasks(records: int, count: int, kind: str, servers: str, *database: str) -> list[list[float]]:
    """The sink reads the topic `rows`, the source a table with as many rows."""
    url, user, password, driver = database
    spark = session(driver)
    folder = Path(tempfile.mkdtemp())
    common = {"connection.url": url, "connection.user": user, "connection.password": password}
    common |= {"value.converter": "JsonConverter", "value.converter.schemas.enable": "false"}
    sink = {
        "connector.class": "JdbcSink", "topics": "rows", "auto.create": "true",
        "value.converter.schema": "id BIGINT, name STRING, amount DOUBLE", **common,
    }  # fmt: skip
    source = {
        "connector.class": "JdbcSource", "mode": "incrementing", "incrementing.column.name": "id",
        "table.whitelist": "many", "topic.prefix": "read-", **common,
    }  # fmt: skip
    columns = "SELECT id, repeat('x', 100) AS name, id * 1.5 AS amount"
    many = (
        f"CREATE TABLE many AS {columns} FROM generate_series(1, {records}) id; ALTER TABLE many ADD PRIMARY KEY (id)"
    )
    if kind == "source":
        execute(spark, url, user, password, many)

    def run_with(tasks: int) -> Callable[[int], None]:
        def run(round_index: int) -> None:
            name = f"{kind}-{tasks}-{round_index}"
            config = {**sink, "table.name.format": name} if kind != "source" else source
            run_connector(spark, servers, folder, name, {**config, "tasks.max": str(tasks)})

        return run

    lines = folder / "rows.tsv"
    if kind == "copy":
        with lines.open("w") as file:
            file.writelines(f"{number}\t{'x' * 100}\t{number * 1.5}\n" for number in range(records))

    def copy(round_index: int) -> None:
        table = f"copied{round_index}"
        execute(spark, url, user, password, f"CREATE TABLE {table} (id bigint, name text, amount float8)", lines, table)

    return pairs(count, records, run_with(2), copy if kind == "copy" else run_with(1))


def execute(
    spark: Any, url: str, user: str, password: str, sql: str, lines: Path | None = None, table: str = ""
) -> None:
    """Run a statement, and copy the lines of a file to a table, with the JDBC driver's COPY."""
    from kavka.pipeline.connect.connectors.jdbc_database import Database

    login = {"connection.url": url, "connection.user": user, "connection.password": password}
    database = Database(spark, {**login, "driver.class": "", "quote.sql.identifiers": "always"}, {})
    with database.connect() as connection:
        connection.execute(sql)
        if lines is not None:
            file = spark._jvm.java.io.FileInputStream(str(lines))
            connection._java.getCopyAPI().copyIn(f"COPY {table} FROM STDIN", file)


if __name__ == "__main__":
    job, records, count, *arguments = sys.argv[1:]
    jobs: dict[str, Callable[..., list[list[float]]]] = {"file": file, "parquet": parquet, "jdbc": jdbc}
    for kind in ("sink", "source", "copy"):
        jobs[f"tasks-{kind}"] = lambda records, count, *rest, kind=kind: with_tasks(records, count, kind, *rest)
    print("RESULT " + json.dumps(jobs[job](int(records), int(count), *arguments)), flush=True)
