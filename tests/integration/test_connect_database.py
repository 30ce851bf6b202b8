"""The JDBC connectors with a real PostgreSQL server, and with Derby, which has MERGE
instead of ON CONFLICT."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kavka.pipeline.connect.errors import ConnectError
from kavka.pipeline.connect.herder import Herder
from kavka.pipeline.connect.loading import Declared
from kavka.pipeline.connect.providers import Providers
from kavka.pipeline.connect.stores import ConfigStore, FileTable, MemoryTable, OffsetStore, StatusStore
from kavka.pipeline.connect.tasks import Worker
from kavka.pipeline.spark import activate
from tests.support import jars
from tests.support.connect_worker import TIMEOUT_S
from tests.support.connectors import batches, context_of, records, rows_between
from tests.support.missing import skip_loudly
from tests.support.our_consumer import fill, make_topic
from tests.support.postgres import Postgres, PostgresMissing
from tests.support.processes import wait_until
from tests.support.targets import Target

pytestmark = [pytest.mark.java, pytest.mark.timeout(600), pytest.mark.records]


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    try:
        server = Postgres()
    except PostgresMissing as error:
        skip_loudly(str(error))
    with server:
        yield server


@pytest.fixture(scope="module")
def sql(spark: Any, postgres: Postgres) -> Any:
    """A Spark session with the JDBC driver of PostgreSQL."""
    try:
        jars.class_path("postgresql-jdbc")
    except jars.JavaMissing as error:
        skip_loudly(str(error))
    return spark


@pytest.fixture
def table(postgres: Postgres) -> Iterator[str]:
    name = f"t_{uuid.uuid4().hex[:8]}"
    yield name
    postgres.query(f'DROP TABLE IF EXISTS "{name}"')


def source(sql: Any, postgres: Postgres, table: str, folder: Path, **options: object) -> tuple[Any, Any]:
    settings = {"table.whitelist": table, **{name.replace("_", "."): value for name, value in options.items()}}
    exactly_once = bool(settings.pop("exactly.once", False))
    return context_of(sql, "JdbcSource", {**postgres.connection, **settings}, folder, exactly_once=exactly_once)


def ids(batches: list[list[Any]]) -> list[list[int]]:
    return [sorted(row.value["id"] for row in batch) for batch in batches]


def test_incrementing_mode_reads_rows_with_a_larger_id(
    sql: Any, postgres: Postgres, table: str, tmp_path: Path
) -> None:
    postgres.query(f"CREATE TABLE {table} (id serial, name text)")
    postgres.query(f"INSERT INTO {table} (name) VALUES ('a'), ('b'), ('c')")
    options = {"mode": "incrementing", "incrementing_column_name": "id", "topic_prefix": "p-", "batch_max_rows": 2}
    connector, context = source(sql, postgres, table, tmp_path, **options)
    rows, offsets = batches(connector, context, {})
    assert ids(rows) == [[1, 2], [3]]
    assert offsets == {f"public.{table}": {"incrementing": 3}}
    assert rows[0][0].topic == f"p-{table}"
    assert rows[0][0].value["name"] == "a"
    postgres.query(f"INSERT INTO {table} (name) VALUES ('d')")
    restarted, context = source(sql, postgres, table, tmp_path, **options)
    assert ids(batches(restarted, context, offsets)[0]) == [[4]]


@pytest.mark.parametrize("column_type", ["timestamp", "timestamptz"])
def test_timestamp_mode_reads_rows_with_a_later_time(
    sql: Any, postgres: Postgres, table: str, tmp_path: Path, column_type: str
) -> None:
    postgres.query(
        f"CREATE TABLE {table} (id int, at {column_type}); "
        f"INSERT INTO {table} VALUES (1, '2024-07-01 00:00:00.000001'), (2, '2024-07-01 00:00:00.000002'), (3, NULL)"
    )
    connector, context = source(sql, postgres, table, tmp_path, mode="timestamp", timestamp_column_name="at")
    rows, offsets = batches(connector, context, {})
    assert ids(rows) == [[1, 2]]
    postgres.query(f"UPDATE {table} SET at = '2024-07-01 00:00:00.000003' WHERE id = 1")
    assert ids(batches(connector, context, offsets)[0]) == [[1]]


def test_rows_of_equal_time_are_ordered_by_id(sql: Any, postgres: Postgres, table: str, tmp_path: Path) -> None:
    postgres.query(
        f"CREATE TABLE {table} (id int, created timestamp, changed timestamp); INSERT INTO {table} VALUES "
        "(1, '2024-01-01', NULL), (2, '2024-01-01', NULL), (3, '2024-01-01', NULL), (9, '2023-01-01', NULL)"
    )
    connector, context = source(
        sql, postgres, table, tmp_path, mode="timestamp+incrementing", incrementing_column_name="id",
        timestamp_column_name="changed,created", batch_max_rows=2,
    )  # fmt: skip
    rows, offsets = batches(connector, context, {})
    assert ids(rows) == [[1, 9], [2, 3]]
    postgres.query(f"UPDATE {table} SET changed = '2024-02-01' WHERE id = 1")
    assert ids(batches(connector, context, offsets)[0]) == [[1]]


def test_a_batch_that_is_read_again_has_the_same_rows(sql: Any, postgres: Postgres, table: str, tmp_path: Path) -> None:
    postgres.query(f"CREATE TABLE {table} (id int, at timestamp); INSERT INTO {table} VALUES (1, '2024-01-01')")
    options = {"mode": "timestamp", "timestamp_column_name": "at", "exactly_once": True}
    connector, context = source(sql, postgres, table, tmp_path, **options)
    end = connector.next(context, {})
    rows = rows_between(connector, context, {}, end)
    postgres.query(f"UPDATE {table} SET at = '2024-02-01'")
    restarted, context = source(sql, postgres, table, tmp_path, **options)
    assert rows_between(restarted, context, {}, end) == rows
    assert ids(batches(restarted, context, end)[0]) == [[1]]


def test_bulk_mode_reads_all_rows_in_every_poll_and_maps_numerics(
    sql: Any, postgres: Postgres, table: str, tmp_path: Path
) -> None:
    postgres.query(
        f"CREATE TABLE {table} (id int, small numeric(4,0), big numeric(18,0), price numeric(8,2)); "
        f"INSERT INTO {table} VALUES (1, 7, 900000000000000000, 1.25)"
    )
    connector, context = source(
        sql, postgres, table, tmp_path, mode="bulk", poll_interval_ms=1, numeric_mapping="best_fit"
    )
    first_end = connector.next(context, {})
    (frame,) = connector.read_range(context, {}, first_end)
    types = {field.name: field.dataType.simpleString() for field in frame.schema["value"].dataType.fields}
    assert types == {"id": "int", "small": "smallint", "big": "bigint", "price": "double"}
    second_end = connector.next(context, first_end)
    assert second_end != first_end
    assert ids([rows_between(connector, context, first_end, second_end)]) == [[1]]


def test_a_query_is_read_like_a_table(sql: Any, postgres: Postgres, table: str, tmp_path: Path) -> None:
    postgres.query(f"CREATE TABLE {table} (id int, x int); INSERT INTO {table} VALUES (1, 10), (2, 20), (3, 30)")
    settings = {
        **postgres.connection, "mode": "incrementing", "incrementing.column.name": "id", "topic.prefix": "results",
        "query": f"SELECT id, x * 2 AS y FROM {table} WHERE x > 10;",
    }  # fmt: skip
    connector, context = context_of(sql, "JdbcSource", settings, tmp_path)
    rows, offsets = batches(connector, context, {})
    assert [(row.topic, row.value.asDict()) for row in rows[0]] == [
        ("results", {"id": 2, "y": 40}), ("results", {"id": 3, "y": 60}),
    ]  # fmt: skip
    assert offsets == {"query": {"incrementing": 3}}


def test_tasks_read_tables_and_ranges_of_rows(sql: Any, postgres: Postgres, table: str, tmp_path: Path) -> None:
    other = f"{table}_small"
    postgres.query(
        f"CREATE TABLE {table} (id bigint, name text); INSERT INTO {table} SELECT n * n, 'x' FROM "
        f"generate_series(1, 7) n; CREATE TABLE {other} (id bigint); INSERT INTO {other} VALUES (5)"
    )
    try:
        options = {"mode": "incrementing", "incrementing_column_name": "id", "batch_max_rows": 2, "tasks_max": 3}
        lists = {"table_whitelist": f"{table},{other}"}
        connector, context = source(sql, postgres, table, tmp_path, **{**options, **lists})
        end = connector.next(context, {})
        # Each range has two rows, although the distances of the keys differ.
        assert end[f"public.{table}"] == {"incrementing": 16, "kavka.ranges": [{"incrementing": 4}]}
        assert end[f"public.{other}"] == {"incrementing": 5}
        frames = connector.read_range(context, {}, end)
        assert [frame.rdd.getNumPartitions() for frame in frames] == [2, 1]
        parts = [[row.value["id"] for row in part] for part in frames[0].rdd.glom().collect()]
        assert [sorted(part) for part in parts] == [[1, 4], [9, 16]]
        # The plan of a batch is stored as JSON, and read by another worker.
        restarted, context = source(sql, postgres, table, tmp_path, **{**options, **lists, "tasks_max": 1})
        postgres.query(f"INSERT INTO {table} VALUES (2, 'late'), (100, 'new')")
        repeated = restarted.read_range(context, {}, json.loads(json.dumps(end)))
        assert [frame.rdd.getNumPartitions() for frame in repeated] == [2, 1]
        connector, context = source(sql, postgres, table, tmp_path, **{**options, **lists})
        rows, offsets = batches(connector, context, end)
        assert ids(rows) == [[25, 36, 49, 100]]
        assert offsets[f"public.{other}"] == {"incrementing": 5}
        bulk, context = source(sql, postgres, table, tmp_path, mode="bulk", tasks_max=3, **lists)
        assert [frame.rdd.getNumPartitions() for frame in bulk.read_range(context, {}, bulk.next(context, {}))] == [
            1,
            1,
        ]
        assert bulk.tasks(context) == 2
    finally:
        postgres.query(f"DROP TABLE {other}")


def test_the_stored_rows_of_several_tables_are_read_again(
    sql: Any, postgres: Postgres, table: str, tmp_path: Path
) -> None:
    other = f"{table}_small"
    for name in (table, other):
        postgres.query(f"CREATE TABLE {name} (id int, at timestamp); INSERT INTO {name} VALUES (1, '2024-01-01')")
    try:
        options = {"mode": "timestamp", "timestamp_column_name": "at", "exactly_once": True, "tasks_max": 2}
        lists = {"table_whitelist": f"{table},{other}"}
        connector, context = source(sql, postgres, table, tmp_path, **{**options, **lists})
        end = connector.next(context, {})
        rows = rows_between(connector, context, {}, end)
        assert len(rows) == 2
        for name in (table, other):
            postgres.query(f"UPDATE {name} SET at = '2024-02-01'")
        restarted, context = source(sql, postgres, table, tmp_path, **{**options, **lists})
        assert rows_between(restarted, context, {}, end) == rows
        next_rows, _ = batches(restarted, context, end)
        assert len(next_rows) == 1 and len(next_rows[0]) == 2
        # The rows of earlier batches are deleted.
        assert len(list((tmp_path / "rows").iterdir())) == 2
    finally:
        postgres.query(f"DROP TABLE {other}")


# --- sink


def sink(sql: Any, postgres: Postgres, folder: Path, **options: object) -> tuple[Any, Any]:
    settings = {**postgres.connection, "topics": "out", "auto.create": "true"}
    settings |= {name.replace("_", "."): str(value) for name, value in options.items()}
    exactly_once = settings.pop("exactly.once", "") == "True"
    return context_of(sql, "JdbcSink", settings, folder, exactly_once=exactly_once)


def test_an_upsert_creates_the_table_and_stores_the_last_row_of_each_key(
    sql: Any, postgres: Postgres, table: str, tmp_path: Path
) -> None:
    connector, context = sink(
        sql, postgres, tmp_path, insert_mode="upsert", pk_mode="record_key", table_name_format=table,
        auto_evolve=True, delete_enabled=True,
    )  # fmt: skip
    connector.write(context, records(sql, [(1, "a"), (2, "b"), (1, "c"), (3, "d")], "id int, name string"), 0)
    assert postgres.query(f"SELECT * FROM {table} ORDER BY id") == [("1", "c"), ("2", "b"), ("3", "d")]
    evolved_columns = "id int, name string, details struct<x:int>"
    rows = [(2, None, None), (3, None, None), (3, "back", (5,)), (4, "e", None)]
    connector.write(context, records(sql, rows, evolved_columns), 1)
    connector.write(context, records(sql, rows, evolved_columns), 1)
    assert postgres.query(f"SELECT * FROM {table} ORDER BY id") == [
        ("1", "c", "NULL"), ("3", "back", '{"x":5}'), ("4", "e", "NULL"),
    ]  # fmt: skip
    connector.stop()
    assert postgres.query("SELECT tablename FROM pg_tables WHERE tablename LIKE 'kavka_stage%'") == []


def test_without_deletes_the_last_row_of_a_repeated_key_is_stored(
    sql: Any, postgres: Postgres, table: str, tmp_path: Path
) -> None:
    options = {"insert_mode": "upsert", "pk_mode": "record_value", "pk_fields": "id", "table_name_format": table}
    connector, context = sink(sql, postgres, tmp_path, **options)
    rows = [(1, "a"), (2, "b"), (1, "c")]
    connector.write(context, records(sql, rows, "id int, name string"), 0)
    connector.stop()
    assert postgres.query(f"SELECT * FROM {table} ORDER BY id") == [("1", "c"), ("2", "b")]


def test_with_exactly_once_a_repeated_batch_is_inserted_once(
    sql: Any, postgres: Postgres, table: str, tmp_path: Path
) -> None:
    batch = records(sql, [(1, "a"), (2, "b")], "id int, name string")
    connector, context = sink(sql, postgres, tmp_path, table_name_format=table, exactly_once=True)
    connector.write(context, batch, 7)
    # The first connector does not stop, as if it was killed, so its staging table remains.
    restarted, context = sink(sql, postgres, tmp_path, table_name_format=table, exactly_once=True)
    restarted.write(context, batch, 7)
    assert postgres.query(f"SELECT count(*) FROM {table}") == [("2",)]
    restarted.write(context, batch, 8)
    assert postgres.query(f"SELECT count(*) FROM {table}") == [("4",)]
    restarted.stop()
    postgres.query("DROP TABLE kavka_batches")
    assert postgres.query("SELECT tablename FROM pg_tables WHERE tablename LIKE 'kavka_stage%'") == []


def test_text_is_converted_to_the_column_type_and_invalid_rows_are_not_retried(
    sql: Any, postgres: Postgres, table: str, tmp_path: Path
) -> None:
    postgres.query(f"CREATE TABLE {table} (id int PRIMARY KEY, at timestamptz, details jsonb, who uuid)")
    columns = "id int, at string, details string, who string"
    row = (1, "2024-01-01T00:00:00Z", '{"a": 1}', str(uuid.UUID(int=5)))
    connector, context = sink(sql, postgres, tmp_path, table_name_format=table, retry_backoff_ms=100_000)
    connector.write(context, records(sql, [row], columns), 0)
    assert postgres.query(f"SELECT details->>'a', who FROM {table}") == [("1", str(uuid.UUID(int=5)))]
    with pytest.raises(ConnectError, match="duplicate key"):
        connector.write(context, records(sql, [(2, *row[1:]), row], columns), 1)
    with pytest.raises(ConnectError, match=r"offset 5 of out-0: .*invalid input syntax"):
        valid = [(number, *row[1:]) for number in range(10, 15)]
        connector.write(context, records(sql, [*valid, (3, "no time", *row[2:]), *valid], columns), 1)
    with pytest.raises(ConnectError, match=r"no columns extra"):
        connector.write(context, records(sql, [(3, "x")], "id int, extra string"), 1)
    with pytest.raises(ConnectError, match="offset 1 of out-0: it has no value and would delete"):
        connector.write(context, records(sql, [row, (4, None, None, None)], columns), 1)
    assert postgres.query(f"SELECT count(*) FROM {table}") == [("1",)]


def test_requests_to_an_unreachable_database_are_retried_as_configured(
    sql: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    batch = records(sql, [(1, "a")], "id int, name string")
    with Postgres() as server:
        connector, context = sink(sql, server, tmp_path, max_retries=1, retry_backoff_ms=10)
        connector.write(context, batch, 0)
        server.stop()
        with pytest.raises(ConnectError, match=r"refused.*\(1 retries\)"):
            connector.write(context, batch, 1)
        retries = {"connection_attempts": 2, "connection_backoff_ms": 10}
        jdbc_source, source_context = source(sql, server, "out", tmp_path, mode="bulk", **retries)
        with pytest.raises(ConnectError, match=r"refused.*\(2 attempts\)"):
            jdbc_source.next(source_context, {})
        caplog.clear()
        patient_sink, context = sink(sql, server, tmp_path, max_retries=10_000, retry_backoff_ms=100)

        def restart_server() -> None:
            wait_until(lambda: "Retrying batch" in caplog.text, timeout=60, what="a retry")
            server.start()

        # The server process is killed when the thread that started it ends.
        with ThreadPoolExecutor(1) as pool:
            restart = pool.submit(restart_server)
            patient_sink.write(context, batch, 1)
            restart.result()
            rows = server.query("SELECT count(*) FROM out")
        assert rows == [("2",)]


def test_only_the_sink_of_a_stopped_database_fails_and_it_resumes_after_a_restart(
    sql: Any, target: Target, topic: str, tmp_path: Path
) -> None:
    """One test of many steps, because a start of a worker and of a database takes seconds."""
    make_topic(target.bootstrap_servers, topic)
    output = tmp_path / "out"
    string_converter = "org.apache.kafka.connect.storage.StringConverter"
    properties = {
        "bootstrap.servers": target.bootstrap_servers,
        "key.converter": string_converter,
        "value.converter": string_converter,
    }

    def session() -> Any:
        activate(sql)
        return sql

    # Only this file contains the password.
    (tmp_path / "secrets.properties").write_text(f"database={Postgres.password}\n")
    secret = f"${{file:{tmp_path}/secrets.properties:database}}"
    providers = {"config.providers": "file", "config.providers.file.class": "FileConfigProvider"}
    offsets = OffsetStore(FileTable(tmp_path / "offsets"))
    checkpoints = str(tmp_path / "points")
    worker = Worker("w:1", properties, session, checkpoints, offsets, providers=Providers.of(providers),
                    declared=Declared(file_connectors=True))  # fmt: skip
    herder = Herder(worker, ConfigStore(MemoryTable()), StatusStore(MemoryTable()))
    herder.start()
    with Postgres() as server:
        config = {
            "connector.class": "JdbcSink", "topics": topic, "table.name.format": "out", "auto.create": "true",
            "pk.mode": "kafka", "insert.mode": "upsert", "max.retries": "2", "retry.backoff.ms": "10",
            "value.converter": "JsonConverter", "value.converter.schemas.enable": "false",
            "value.converter.schema": "id INT",
        }  # fmt: skip

        def count() -> int:
            table_exists = server.query("SELECT count(*) FROM pg_tables WHERE tablename = 'out'") == [("1",)]
            return int(server.query("SELECT count(*) FROM out")[0][0]) if table_exists else 0

        def lines() -> int:
            return output.read_text().count("\n") if output.exists() else 0

        def task(name: str) -> dict[str, Any]:
            return dict(herder.status(name)["tasks"][0])

        def wait(condition: Callable[[], bool], what: str) -> None:
            wait_until(condition, timeout=TIMEOUT_S, what=what, interval=0.2)

        try:
            herder.create("rows", {**config, **server.connection, "connection.password": secret}, None)
            herder.create("lines", {"connector.class": "FileStreamSink", "topics": topic, "file": str(output)}, None)
            fill(target.bootstrap_servers, topic, [b'{"id": %d}' % number for number in range(3)])
            wait(lambda: (count(), lines()) == (3, 3), "both sinks have the first records")
            server.stop()
            fill(target.bootstrap_servers, topic, [b'{"id": %d}' % number for number in range(3, 6)])
            wait(lambda: task("rows")["state"] == "FAILED", "the task of the JDBC sink fails")
            assert "refused" in task("rows")["trace"] and "(2 retries)" in task("rows")["trace"]
            assert herder.status("rows")["connector"]["state"] == "RUNNING"
            assert herder.config("rows")["connection.password"] == secret
            wait(lambda: lines() == 6, "the file sink continues")
            assert task("lines")["state"] == "RUNNING"
            server.start()
            herder.restart("rows", include_tasks=True, only_failed=True)
            wait(lambda: count() == 6, "the JDBC sink continues")
            assert task("rows")["state"] == "RUNNING"
            assert server.query("SELECT id FROM out ORDER BY id") == [(str(number),) for number in range(6)]
        finally:
            herder.close()


def test_upserts_and_deletes_work_with_merge(spark: Any, tmp_path: Path) -> None:
    # By default Derby writes its log to the working directory.
    spark._jvm.java.lang.System.setProperty("derby.stream.error.file", str(tmp_path / "derby.log"))
    settings = {
        "connection.url": f"jdbc:derby:memory:{uuid.uuid4().hex};create=true", "topics": "out", "auto.create": "true",
        "insert.mode": "upsert", "pk.mode": "record_key", "delete.enabled": "true", "auto.evolve": "true",
    }  # fmt: skip
    connector, context = context_of(spark, "JdbcSink", settings, tmp_path)
    connector.write(context, records(spark, [(1, "a"), (2, "b"), (1, "c")], "id int, name string"), 0)
    rows = [(2, None, None), (3, "d", 1.5)]
    connector.write(context, records(spark, rows, "id int, name string, x double"), 1)
    source_settings = {
        "connection.url": settings["connection.url"],
        "mode": "incrementing",
        "incrementing.column.name": "id",
    }
    jdbc_source, source_context = context_of(
        spark, "JdbcSource", {**source_settings, "table.whitelist": "out"}, tmp_path
    )
    ((*read_rows,),), _ = batches(jdbc_source, source_context, {})
    assert sorted(tuple(row.value) for row in read_rows) == [(1, "c", None), (3, "d", 1.5)]
    # The types of values are not known before the first value.
    tombstone = spark.sql(
        "SELECT named_struct('id', 3) AS key, CAST(NULL AS STRING) AS value, 'out' AS topic, 0 AS partition, "
        "9L AS offset"
    )
    connector.write(context, tombstone, 2)
    connector.write(context, tombstone.limit(0), 3)
    ((*read_rows,),), _ = batches(jdbc_source, source_context, {})
    assert [tuple(row.value) for row in read_rows] == [(1, "c", None)]
    no_key = tombstone.selectExpr("CAST(NULL AS STRUCT<id: INT>) AS key", "value", "topic", "partition", "offset")
    with pytest.raises(ConnectError, match="offset 9 of out-0: it has no value for the key column id"):
        connector.write(context, no_key, 4)
    connector.stop()
    settings |= {"delete.enabled": "false", "table.name.format": "missing"}
    connector, context = context_of(spark, "JdbcSink", settings, tmp_path)
    with pytest.raises(ConnectError, match="offset 9 of out-0: it has no value and would delete"):
        connector.write(context, tombstone, 0)
    connector.stop()
    connector, context = context_of(spark, "JdbcSink", {**settings, "delete.enabled": "true"}, tmp_path)
    connector.write(context, tombstone, 0)
    connector.stop()
