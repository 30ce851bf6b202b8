"""The SQL statements of the JDBC connectors. SQLite executes those that it supports."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any

import pytest

from kavka.pipeline.connect.connectors.jdbc_sink import JdbcSink
from kavka.pipeline.connect.connectors.jdbc_source import JdbcSource, is_selected
from kavka.pipeline.connect.connectors.jdbc_sql import Dialect, Merge, Moment, Position, Range, subprotocol
from kavka.pipeline.connect.errors import ConnectError
from kavka.pipeline.connect.options import parse, parsed

SQLITE = Dialect("sqlite")


@pytest.fixture
def database() -> sqlite3.Connection:
    return sqlite3.connect(":memory:")


def merge(
    database: sqlite3.Connection, rows: list[tuple[Any, ...]], mode: str, **options: Any
) -> list[tuple[Any, ...]]:
    """Merges rows (id, name, order, deleted) into the table t. Returns the rows of t."""
    database.executescript("CREATE TABLE s (id INT, name TEXT, kavka_order INT, kavka_deleted INT)")
    database.executemany("INSERT INTO s VALUES (?, ?, ?, ?)", rows)
    merge = Merge(SQLITE, '"t"', '"s"', ("id", "name"), ("id",), mode, **options)
    for statement in merge.statements(has_unique_keys=False):
        database.execute(statement)
    return database.execute("SELECT id, name FROM t ORDER BY id").fetchall()


@pytest.fixture
def database_with_table(database: sqlite3.Connection) -> sqlite3.Connection:
    database.executescript("CREATE TABLE t (id INT PRIMARY KEY, name TEXT); INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    return database


def test_upsert_writes_the_last_record_of_each_key(database_with_table: sqlite3.Connection) -> None:
    rows = [(2, "new", 5, 0), (3, "first", 1, 0), (3, "last", 9, 0), (2, "old", 2, 0)]
    assert merge(database_with_table, rows, "upsert") == [(1, "a"), (2, "new"), (3, "last")]


def test_update_ignores_missing_rows(database_with_table: sqlite3.Connection) -> None:
    assert merge(database_with_table, [(2, "new", 1, 0), (3, "c", 2, 0)], "update") == [(1, "a"), (2, "new")]


def test_a_deleted_key_stays_deleted_unless_it_is_written_later(database_with_table: sqlite3.Connection) -> None:
    rows = [(1, None, 1, 1), (2, None, 2, 1), (2, "again", 3, 0), (3, "c", 4, 0), (3, None, 5, 1)]
    assert merge(database_with_table, rows, "upsert", deletes=True) == [(2, "again")]


def test_a_key_may_be_deleted_and_inserted_in_a_batch(database_with_table: sqlite3.Connection) -> None:
    assert merge(database_with_table, [(1, None, 1, 1), (1, "new", 2, 0)], "insert", deletes=True) == [
        (1, "new"),
        (2, "b"),
    ]


def test_plain_insert_has_no_extra_columns(database: sqlite3.Connection) -> None:
    merge = Merge(SQLITE, "t", "s", ("id",), (), "insert")
    assert merge.extra == ()
    assert merge.statements(has_unique_keys=False) == ['INSERT INTO t ("id") SELECT "id" FROM s']


def test_upsert_uses_merge_for_databases_without_on_conflict() -> None:
    statements = Merge(Dialect("derby"), "t", "s", ("id", "n"), ("id",), "upsert").statements(has_unique_keys=True)
    assert statements == [
        'MERGE INTO t t USING s s ON t."id" = s."id" WHEN MATCHED THEN UPDATE SET t."n" = s."n" '
        'WHEN NOT MATCHED THEN INSERT ("id", "n") VALUES (s."id", s."n")'
    ]


def test_names_are_quoted() -> None:
    assert Dialect("postgresql").table('a.b"; DROP TABLE x; --') == '"a"."b""; DROP TABLE x; --"'
    assert Dialect("mysql").quote("a`b") == "`a``b`"
    assert Dialect("postgresql", quoting=False).table("a.b") == "a.b"


def read(database: sqlite3.Connection, range_: Range, limit: int) -> list[list[int]]:
    """Reads batches until there are no more rows."""
    batches, start = [], Position()
    while row := database.execute(range_.last(start, limit)).fetchone():
        end = Position(row[-1] if range_.incrementing else None, None)
        batches.append([row[0] for row in database.execute(f"SELECT * FROM t WHERE {range_.condition(start, end)}")])
        start = end
    return batches


def test_rows_are_read_in_batches_by_incrementing_number(database: sqlite3.Connection) -> None:
    database.executescript("CREATE TABLE t (id INT); INSERT INTO t VALUES (5), (1), (9), (7), (NULL)")
    range_ = Range(SQLITE, "t", '"id"', None)
    assert [sorted(batch) for batch in read(database, range_, 2)] == [[1, 5], [7, 9]]


def test_rows_with_the_same_timestamp_are_ordered_by_the_incrementing_column() -> None:
    range_ = Range(Dialect("postgresql"), "t", '"id"', '"at"')
    start, end = Position(3, Moment(1000, 5000)), Position(1, Moment(2500, 500_000_000))
    first, last = "{ts '1970-01-01 00:00:01.000005'}", "{ts '1970-01-01 00:00:02.500000'}"
    assert range_.condition(start, end) == (
        '"at" IS NOT NULL AND "id" IS NOT NULL '
        f'AND ("at" > {first} OR ("at" = {first} AND "id" > 3)) AND NOT ("at" > {last} OR ("at" = {last} AND "id" > 1))'
    )


def test_times_before_1970_and_nanoseconds_are_exact() -> None:
    assert Moment(-500, 500_000_000).text() == "1969-12-31 23:59:59.500000"
    assert Moment(1, 1_000_001).text() == "1970-01-01 00:00:00.001000001"


def test_the_dialect_is_derived_from_the_url() -> None:
    assert subprotocol("jdbc:postgresql://h/d") == "postgresql"
    assert subprotocol("jdbc:sqlserver:x") == "sqlserver"
    assert subprotocol("postgresql://h/d") == ""


# --- combinations of options

URL = {"connection.url": "jdbc:postgresql://h/d"}


def invalid_options(cls: Any, originals: Mapping[str, str]) -> set[str]:
    values, errors = parse(cls.options, originals)
    return {*errors, *cls.check(values, originals)}


@pytest.mark.parametrize(
    ("originals", "names"),
    [
        ({}, {"connection.url"}),
        ({"connection.url": "h:5432"}, {"connection.url"}),
        ({**URL, "insert.mode": "upsert"}, {"pk.mode"}),
        ({**URL, "insert.mode": "replace"}, {"insert.mode"}),
        ({**URL, "delete.enabled": "true"}, {"delete.enabled"}),
        ({**URL, "pk.mode": "kafka", "pk.fields": "a,b"}, {"pk.fields"}),
        ({**URL, "max.retries": "-1", "batch.size": "0"}, {"max.retries", "batch.size"}),
        ({"connection.url": "jdbc:mysql://h/d", "insert.mode": "upsert", "pk.mode": "record_key"}, {"insert.mode"}),
        ({**URL, "insert.mode": "UPSERT", "pk.mode": "record_key"}, set()),
    ],
)
def test_invalid_sink_options_are_reported(originals: dict[str, str], names: set[str]) -> None:
    assert invalid_options(JdbcSink, originals) == names


@pytest.mark.parametrize(
    ("originals", "names"),
    [
        (URL, {"mode"}),
        ({**URL, "mode": "incrementing"}, {"incrementing.column.name"}),
        ({**URL, "mode": "timestamp+incrementing"}, {"incrementing.column.name", "timestamp.column.name"}),
        ({**URL, "mode": "bulk", "query": "SELECT 1"}, {"topic.prefix"}),
        ({**URL, "mode": "bulk", "query": "SELECT 1", "topic.prefix": "t", "table.whitelist": "a"}, {"query"}),
        ({**URL, "mode": "bulk", "table.include.list": "a("}, {"table.include.list"}),
        ({**URL, "mode": "bulk"}, set()),
    ],
)
def test_invalid_source_options_are_reported(originals: dict[str, str], names: set[str]) -> None:
    assert invalid_options(JdbcSource, originals) == names


@pytest.mark.parametrize(
    ("lists", "expected"),
    [
        ({}, True),
        ({"table.whitelist": "orders,users"}, True),
        ({"table.whitelist": "public.users"}, True),
        ({"table.whitelist": "other.users"}, False),
        ({"table.blacklist": "users"}, False),
        ({"table.include.list": "public[.]u.*"}, True),
        ({"table.include.list": "user"}, False),
        ({"table.exclude.list": ".*users"}, False),
    ],
)
def test_tables_are_selected_by_name_or_pattern(lists: dict[str, str], expected: bool) -> None:
    config = parsed(JdbcSource.options, {**URL, "mode": "bulk", **lists})
    assert is_selected("public", "users", config) is expected


def test_non_numeric_offsets_are_rejected() -> None:
    JdbcSource.check_offsets({"t": {"incrementing": 5, "timestamp": 1, "timestamp_nanos": 2}})
    with pytest.raises(ConnectError, match=r"^t: "):
        JdbcSource.check_offsets({"t": {"incrementing": "many"}})
