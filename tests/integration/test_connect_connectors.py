"""Connectors of a worker that is killed in the middle of a batch and restarted.

All tests check one run. The connectors of a first worker halt at different stages of their second
batch, where the worker is killed with SIGKILL. A second worker with the same and more
configurations runs until all records are processed."""

from __future__ import annotations

import collections
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kavka import Admin, NewTopic
from tests.integration.test_spark_crash import kill_session
from tests.integration.test_spark_sink import fill
from tests.support import jars
from tests.support.apache import write_properties
from tests.support.missing import skip_loudly
from tests.support.our_consumer import read_all
from tests.support.postgres import Postgres, PostgresMissing
from tests.support.processes import ManagedProcess, free_port, wait_until
from tests.support.spark import light_home
from tests.support.targets import Target
from tests.unit.pipeline.connect.test_http_sink import Service

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(900)]

RECORDS, BATCH = 120, 50
HALTING = (
    "file-torn", "file-whole", "insert-merged", "insert-committed", "upsert-committed", "again-committed",
    "lines-planned",
)  # fmt: skip
STRINGS = {"value.converter": "org.apache.kafka.connect.storage.StringConverter"}
SINK = "org.apache.kafka.connect.file.FileStreamSinkConnector"
SOURCE = "org.apache.kafka.connect.file.FileStreamSourceConnector"
JDBC = "io.confluent.connect.jdbc.JdbcSinkConnector"


@dataclass
class Run:
    target: Target
    folder: Path
    postgres: Postgres
    service: Service
    code: int
    log: str

    def rows(self, table: str) -> list[int]:
        return sorted(int(row[0]) for row in self.postgres.query(f'SELECT id FROM "{table}"'))

    def lines(self, name: str) -> list[int]:
        return sorted(json.loads(line)["id"] for line in (self.folder / name).read_text().splitlines())


def configurations(folder: Path, postgres: Postgres) -> dict[str, dict[str, object]]:
    """Return the configurations of the connectors that are killed, by name."""
    sink = {"topics": "in", "trigger": "available-now", "max.records.per.batch": BATCH, "exactly.once": "true"}
    jdbc = {**sink, "connector.class": JDBC, **postgres.connection, "auto.create": "true"}
    upsert = {"insert.mode": "upsert", "pk.mode": "record_value", "pk.fields": "id"}
    return {
        "file-torn": {**sink, **STRINGS, "connector.class": SINK, "file": folder / "file-torn.txt"},
        "file-whole": {**sink, **STRINGS, "connector.class": SINK, "file": folder / "file-whole.txt"},
        "insert-merged": {**jdbc, "table.name.format": "insert-merged"},
        "insert-committed": {**jdbc, "table.name.format": "insert-committed"},
        "upsert-committed": {**jdbc, **upsert, "table.name.format": "upsert-committed"},
        "again-committed": {**jdbc, "table.name.format": "again-committed", "exactly.once": "false"},
        "lines-planned": {
            **STRINGS, "connector.class": SOURCE, "file": folder / "in.log", "topic": "lines", "batch.bytes": 300,
            "trigger": "available-now",
        },
    }  # fmt: skip


def more_configurations(folder: Path, postgres: Postgres, service: Service) -> dict[str, dict[str, object]]:
    """Return the configurations that only the second worker has. The database of `jdbc-down` does
    not exist."""
    sink: dict[str, object] = {"topics": "in", "trigger": "available-now"}
    dead_url = f"jdbc:postgresql://127.0.0.1:{free_port()}/nothing"
    (folder / "csv").mkdir()
    (folder / "csv" / "a.csv").write_text("id,name\n1,one\n2,two\n")
    return {
        "jdbc-down": {
            **sink, "connector.class": "JdbcSink", "connection.url": dead_url, "max.retries": 1, "retry.backoff.ms": 10,
        },
        "parquet": {
            **sink, "connector.class": "SparkSink", "spark.format": "parquet", "spark.path": folder / "parquet",
            "exactly.once": "true", "max.records.per.batch": BATCH,
        },
        "text": {
            **sink, **STRINGS, "connector.class": "SparkSink", "spark.format": "text", "spark.path": folder / "text",
        },
        "http": {
            **sink, **STRINGS, "connector.class": "HttpSink", "http.api.url": f"{service.url}/${{topic}}",
            "errors.tolerance": "all", "errors.deadletterqueue.topic.name": "dead",
            "errors.deadletterqueue.topic.replication.factor": 1, "batch.max.size": 20, "retry.backoff.ms": 10,
            "errors.deadletterqueue.context.headers.enable": "true",
        },
        "csv": {
            "connector.class": "SparkSource", "spark.format": "csv", "spark.path": folder / "csv", "topic": "csv",
            "spark.option.header": "true", "spark.schema": "id INT, name STRING", "key.columns": "id",
            "trigger": "available-now",
        },
        "generated": {
            "connector.class": "Datagen", "kafka.topic": "generated", "iterations": 30, "random.seed": 7,
            "schema": "n BIGINT id, color STRING red|green, who STRING 'user_{1..3}', x DOUBLE 0..1",
            "trigger": "available-now",
        },
        "table": {
            "connector.class": "io.confluent.connect.jdbc.JdbcSourceConnector", **postgres.connection,
            "mode": "incrementing", "incrementing.column.name": "id", "table.whitelist": "people",
            "topic.prefix": "db-", "trigger": "available-now",
        },
    }  # fmt: skip


EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "connect"


def example(name: str, **changes: object) -> dict[str, object]:
    """Return a configuration of examples/connect with replaced paths and addresses. Every replaced
    setting must exist."""
    lines = [line for line in (EXAMPLES / f"{name}.properties").read_text().splitlines() if "=" in line]
    settings: dict[str, object] = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    replacements = {option.replace("_", "."): value for option, value in changes.items()}
    assert set(replacements) <= set(settings)
    return {**settings, **replacements, "trigger": "available-now"}


def source_examples(folder: Path, postgres: Postgres) -> dict[str, dict[str, object]]:
    (folder / "logs").mkdir()
    (folder / "logs" / "a.log").write_text("one\ntwo\n")
    (folder / "logs" / "b.log").write_text("three\nincomplete line")
    (folder / "logs" / "c.txt").write_text("no log\n")
    postgres.query(
        "CREATE TABLE orders (id serial, country text, amount numeric(8, 2), changed timestamptz DEFAULT now()); "
        "INSERT INTO orders (country, amount) VALUES ('de', 9.5), ('fr', 20), ('de', 0.25)"
    )
    connection = {name.replace(".", "_"): value for name, value in postgres.connection.items()}
    return {
        "log-files": example("log-files", folder=folder / "logs"),
        "orders-from-postgres": example("orders-from-postgres", **connection),
    }


@pytest.fixture(scope="module")
def run(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("connect")
    try:
        driver = jars.class_path("postgresql-jdbc").split(":")[0]
        postgres = Postgres()
    except (jars.JavaMissing, PostgresMissing) as error:
        skip_loudly(str(error))
    service = Service()
    # The service rejects one record, and its first request fails once.
    service.status_of = lambda body: 422 if '{"id": 13}' in body else (500 if len(service.requests) == 1 else 200)
    try:
        with postgres:
            yield Run(target, folder, postgres, service, *run_workers(target, folder, postgres, service, driver))
    finally:
        service.close()


def run_workers(target: Target, folder: Path, postgres: Postgres, service: Service, driver: str) -> tuple[int, str]:
    postgres.query("CREATE TABLE people (id serial, name text); INSERT INTO people (name) VALUES ('Ada'), ('Max')")
    topics = ("in", "lines", "dead", "csv", "generated", "db-people", "logs", "shop-orders")
    with Admin(bootstrap_servers=target.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name, 2 if name in ("in", "lines") else 1) for name in topics])
    produce_ids(target, range(RECORDS))
    (folder / "in.log").write_text("".join(f"line {number}\n" for number in range(60)))
    worker = write_properties(
        folder / "worker.properties",
        {
            "bootstrap.servers": target.bootstrap_servers,
            "listeners": "http://127.0.0.1:0",
            "key.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "key.converter.schemas.enable": "false",
            "value.converter.schemas.enable": "false",
            "offset.storage.file.filename": folder / "offsets",
            "file.connectors.enable": "true",
            "checkpoint.dir": folder / "checkpoints",
            "exactly.once.source.support": "enabled",
            "spark.master": "local[2]",
            "spark.jars": driver,
            "spark.driver.memory": "512m",
            "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xss512k",
            "spark.sql.shuffle.partitions": 2,
        },
    )
    first_run = configurations(folder, postgres)
    crash(folder, worker, write_configurations(folder, first_run))
    produce_ids(target, range(RECORDS, RECORDS + 10))
    with (folder / "in.log").open("a") as file:
        file.write("".join(f"line {number}\n" for number in range(60, 70)))
    argv = [sys.executable, "-m", "kavka.cli.main", "connect-standalone", str(worker)]
    second_run = first_run | more_configurations(folder, postgres, service) | source_examples(folder, postgres)
    third_run = {"orders-to-parquet": example("orders-to-parquet", spark_path=folder / "orders")}
    code, log = 0, ""
    for connectors in (second_run, third_run):
        paths = write_configurations(folder, connectors)
        result = subprocess.run([*argv, *paths], env=environment(folder), capture_output=True, text=True, timeout=600)
        code, log = code or result.returncode, log + result.stdout + result.stderr
    return code, log


def produce_ids(target: Target, numbers: range) -> None:
    for partition in range(2):
        ids = [number for number in numbers if number % 2 == partition]
        fill(target, "in", [json.dumps({"id": number}) for number in ids], partition)


def write_configurations(folder: Path, configurations: dict[str, dict[str, object]]) -> list[str]:
    return [
        str(write_properties(folder / f"{name}.properties", {"name": name, "tasks.max": 1, **configuration}))
        for name, configuration in configurations.items()
    ]


def environment(folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "KAVKA_CRASH_FOLDER": str(folder),
        "PYTHONPATH": os.pathsep.join(sys.path),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(light_home(folder / "home")),
    }


def crash(folder: Path, worker: Path, connectors: list[str]) -> None:
    process = ManagedProcess(
        [sys.executable, "-m", "tests.support.connect_crash", str(worker), *connectors],
        log=folder / "first.log",
        env=environment(folder),
        before_exec=os.setsid,
    )
    try:

        def are_halted() -> bool:
            assert process.running(), process.log_tail()
            return all((folder / f"{name}.halted").exists() for name in HALTING)

        wait_until(are_halted, timeout=400, what="every connector has halted", interval=0.2)
    except TimeoutError as error:
        missing = [name for name in HALTING if not (folder / f"{name}.halted").exists()]
        raise TimeoutError(f"{error}: {missing}\n{process.log_tail()}") from None
    finally:
        kill_session(process.pid, set())
        process.kill()


EXPECTED = list(range(RECORDS + 10))


@pytest.mark.parametrize("name", ["file-torn", "file-whole"])
def test_a_file_has_each_record_once_after_the_worker_was_killed(run: Run, name: str) -> None:
    assert run.lines(f"{name}.txt") == EXPECTED, run.log[-3000:]


@pytest.mark.parametrize("table", ["insert-merged", "insert-committed", "upsert-committed"])
def test_a_table_has_each_record_once_after_the_worker_was_killed(run: Run, table: str) -> None:
    assert run.rows(table) == EXPECTED, run.log[-3000:]


def test_without_exactly_once_no_record_is_missing(run: Run) -> None:
    rows = run.rows("again-committed")
    assert sorted(set(rows)) == EXPECTED
    # The batch that was committed before the worker was killed is written again.
    assert len(rows) == len(EXPECTED) + BATCH


def test_the_staging_tables_of_all_workers_are_dropped(run: Run) -> None:
    assert run.postgres.query("SELECT tablename FROM pg_tables WHERE tablename LIKE 'kavka_stage%'") == []


def test_a_topic_has_each_line_once_after_the_worker_was_killed(run: Run) -> None:
    records = [record.value.decode() for record in read_all(run.target, "lines")]
    assert sorted(records) == sorted(f"line {number}" for number in range(70)), run.log[-3000:]


def test_an_unreachable_database_fails_only_its_connector(run: Run) -> None:
    assert run.code == 1
    failures = [line for line in run.log.splitlines() if line.startswith("kavka: connector")]
    assert len(failures) == 1
    assert failures[0].startswith("kavka: connector jdbc-down failed:")
    assert "refused" in failures[0]


def test_spark_sinks_write_each_record_once(run: Run, spark: Any) -> None:
    rows = spark.read.parquet(str(run.folder / "parquet")).collect()
    assert sorted(row.id for row in rows) == EXPECTED
    lines = spark.read.text(str(run.folder / "text")).collect()
    assert sorted(json.loads(row.value)["id"] for row in lines) == EXPECTED


def test_spark_sources_produce_records(run: Run) -> None:
    records = [(json.loads(record.key), json.loads(record.value)) for record in read_all(run.target, "csv")]
    assert sorted(records, key=str) == [(1, {"id": 1, "name": "one"}), (2, {"id": 2, "name": "two"})]


def test_rows_of_a_table_become_records(run: Run) -> None:
    records = [json.loads(record.value) for record in read_all(run.target, "db-people")]
    assert sorted(records, key=str) == [{"id": 1, "name": "Ada"}, {"id": 2, "name": "Max"}]


def test_the_examples_move_files_to_a_topic_and_a_database_to_parquet(run: Run, spark: Any) -> None:
    assert sorted(record.value for record in read_all(run.target, "logs")) == [b"one", b"three", b"two"]
    orders = [
        (json.loads(record.key), json.loads(record.value)["amount"]) for record in read_all(run.target, "shop-orders")
    ]
    assert sorted(orders) == [(1, 9.5), (2, 20.0), (3, 0.25)]
    stored_rows = spark.read.parquet(str(run.folder / "orders")).collect()
    rows = sorted((row.id, row.country, row.amount) for row in stored_rows)
    assert rows == [(1, "de", 9.5), (2, "fr", 20.0), (3, "de", 0.25)]


def test_the_http_sink_sends_all_records_and_rejected_ones_become_dead_letters(run: Run) -> None:
    received: collections.Counter[int] = collections.Counter()
    for _, path, body, _ in run.service.requests:
        assert path == "/in/in"
        if run.service.status_of and run.service.status_of(body) == 200:
            received.update(record["id"] for record in json.loads(body))
    assert sorted(set(received)) == [number for number in EXPECTED if number != 13]
    (dead_letter,) = read_all(run.target, "dead")
    headers = {name: value.decode() for name, value in dead_letter.headers}
    assert json.loads(dead_letter.value) == {"id": 13}
    assert headers["__connect.errors.topic"] == "in"
    assert headers["__connect.errors.stage"] == "TASK_PUT"
    assert "422" in headers["__connect.errors.exception.message"]


def test_generated_records_are_the_same_for_the_same_seed(run: Run) -> None:
    records = sorted(
        (json.loads(record.value) for record in read_all(run.target, "generated")), key=lambda row: row["n"]
    )
    assert [row["n"] for row in records] == list(range(30))
    assert {row["color"] for row in records} == {"red", "green"}
    assert {row["who"] for row in records} == {"user_1", "user_2", "user_3"}
    assert all(0 <= row["x"] < 1 for row in records)
    assert records[0] == {"n": 0, "color": "red", "who": "user_2", "x": 0.582912560096664}
