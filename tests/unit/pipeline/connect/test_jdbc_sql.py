"""The statements that the JDBC connectors say, run by SQLite where it knows them."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any

import pytest

from kavka.pipeline.connect.connectors.jdbc_sink import JdbcSink
from kavka.pipeline.connect.connectors.jdbc_source import JdbcSource, chosen
from kavka.pipeline.connect.connectors.jdbc_sql import Dialect, Merge, Moment, Position, Range, subprotocol
from kavka.pipeline.connect.errors import ConnectError
from kavka.pipeline.connect.options import parse, parsed

SQLITE = Dialect("sqlite")


@pytest.fixture
def database() -> sqlite3.Connection:
    return sqlite3.connect(":memory:")


def merge(database: sqlite3.Connection, rows: list[tuple[Any, ...]], mode: str, **more: Any) -> list[tuple[Any, ...]]:
    """`rows`: id, name, order, deleted."""
    database.executescript("CREATE TABLE s (id INT, name TEXT, kavka_order INT, kavka_deleted INT)")
    database.executemany("INSERT INTO s VALUES (?, ?, ?, ?)", rows)
    found = Merge(SQLITE, '"t"', '"s"', ("id", "name"), ("id",), mode, **more)
    for statement in found.statements(unique=False):
        database.execute(statement)
    return database.execute("SELECT id, name FROM t ORDER BY id").fetchall()


@pytest.fixture
def table(database: sqlite3.Connection) -> sqlite3.Connection:
    database.executescript("CREATE TABLE t (id INT PRIMARY KEY, name TEXT); INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    return database


def test_an_upsert_takes_the_last_record_of_each_key(table: sqlite3.Connection) -> None:
    rows = [(2, "new", 5, 0), (3, "first", 1, 0), (3, "last", 9, 0), (2, "old", 2, 0)]
    assert merge(table, rows, "upsert") == [(1, "a"), (2, "new"), (3, "last")]


def test_an_update_leaves_what_is_not_there(table: sqlite3.Connection) -> None:
    assert merge(table, [(2, "new", 1, 0), (3, "c", 2, 0)], "update") == [(1, "a"), (2, "new")]


def test_a_delete_counts_unless_the_key_is_written_after_it(table: sqlite3.Connection) -> None:
    rows = [(1, None, 1, 1), (2, None, 2, 1), (2, "again", 3, 0), (3, "c", 4, 0), (3, None, 5, 1)]
    assert merge(table, rows, "upsert", deletes=True) == [(2, "again")]


def test_inserts_and_deletes_of_one_key_may_follow_each_other(table: sqlite3.Connection) -> None:
    assert merge(table, [(1, None, 1, 1), (1, "new", 2, 0)], "insert", deletes=True) == [(1, "new"), (2, "b")]


def test_a_plain_insert_needs_no_more_than_the_columns(database: sqlite3.Connection) -> None:
    found = Merge(SQLITE, "t", "s", ("id",), (), "insert")
    assert found.extra == ()
    assert found.statements(unique=False) == ['INSERT INTO t ("id") SELECT "id" FROM s']


def test_a_database_with_merge_merges() -> None:
    found = Merge(Dialect("derby"), "t", "s", ("id", "n"), ("id",), "upsert").statements(unique=True)
    assert found == [
        'MERGE INTO t t USING s s ON t."id" = s."id" WHEN MATCHED THEN UPDATE SET t."n" = s."n" '
        'WHEN NOT MATCHED THEN INSERT ("id", "n") VALUES (s."id", s."n")'
    ]


def test_names_are_quoted_so_that_they_cannot_be_anything_else() -> None:
    assert Dialect("postgresql").table('a.b"; DROP TABLE x; --') == '"a"."b""; DROP TABLE x; --"'
    assert Dialect("mysql").quote("a`b") == "`a``b`"
    assert Dialect("postgresql", quoting=False).table("a.b") == "a.b"


def read(database: sqlite3.Connection, wanted: Range, most: int) -> list[list[int]]:
    """Batch after batch, until there is no more."""
    found, start = [], Position()
    while row := database.execute(wanted.last(start, most)).fetchone():
        end = Position(row[-1] if wanted.incrementing else None, None)
        found.append([row[0] for row in database.execute(wanted.rows(start, end))])
        start = end
    return found


def test_rows_are_read_by_a_rising_number_in_batches(database: sqlite3.Connection) -> None:
    database.executescript("CREATE TABLE t (id INT); INSERT INTO t VALUES (5), (1), (9), (7), (NULL)")
    wanted = Range(SQLITE, "t", '"id"', None)
    assert [sorted(batch) for batch in read(database, wanted, 2)] == [[1, 5], [7, 9]]


def test_time_and_number_together_order_rows_of_the_same_time() -> None:
    wanted = Range(Dialect("postgresql"), "t", '"id"', '"at"')
    start, end = Position(3, Moment(1000, 5000)), Position(1, Moment(2500, 500_000_000))
    first, last = "{ts '1970-01-01 00:00:01.000005'}", "{ts '1970-01-01 00:00:02.500000'}"
    assert wanted.rows(start, end) == (
        'SELECT * FROM t WHERE "at" IS NOT NULL AND "id" IS NOT NULL '
        f'AND ("at" > {first} OR ("at" = {first} AND "id" > 3)) AND NOT ("at" > {last} OR ("at" = {last} AND "id" > 1))'
    )


def test_moments_before_1970_and_of_nanoseconds_are_kept() -> None:
    assert Moment(-500, 500_000_000).text() == "1969-12-31 23:59:59.500000"
    assert Moment(1, 1_000_001).text() == "1970-01-01 00:00:00.001000001"


def test_the_database_is_known_by_its_address() -> None:
    assert subprotocol("jdbc:postgresql://h/d") == "postgresql"
    assert subprotocol("jdbc:sqlserver:x") == "sqlserver"
    assert subprotocol("postgresql://h/d") == ""


# --- which options go together

URL = {"connection.url": "jdbc:postgresql://h/d"}


def wrong(cls: Any, given: Mapping[str, str]) -> set[str]:
    values, errors = parse(cls.options, given)
    return {*errors, *cls.check(values, given)}


@pytest.mark.parametrize(
    ("given", "names"),
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
def test_a_sink_that_cannot_be_is_told_at_its_options(given: dict[str, str], names: set[str]) -> None:
    assert wrong(JdbcSink, given) == names


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (URL, {"mode"}),
        ({**URL, "mode": "incrementing"}, {"incrementing.column.name"}),
        (
            {**URL, "mode": "timestamp+incrementing"},
            {"incrementing.column.name", "timestamp.column.name"},
        ),
        ({**URL, "mode": "bulk", "query": "SELECT 1"}, {"topic.prefix"}),
        ({**URL, "mode": "bulk", "query": "SELECT 1", "topic.prefix": "t", "table.whitelist": "a"}, {"query"}),
        ({**URL, "mode": "bulk", "table.include.list": "a("}, {"table.include.list"}),
        ({**URL, "mode": "bulk"}, set()),
    ],
)
def test_a_source_that_cannot_be_is_told_at_its_options(given: dict[str, str], names: set[str]) -> None:
    assert wrong(JdbcSource, given) == names


@pytest.mark.parametrize(
    ("lists", "is_chosen"),
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
def test_tables_are_chosen_by_name_or_pattern(lists: dict[str, str], is_chosen: bool) -> None:
    config = parsed(JdbcSource.options, {**URL, "mode": "bulk", **lists})
    assert chosen("public", "users", config) is is_chosen


def test_offsets_that_are_no_numbers_are_refused() -> None:
    JdbcSource.check_offsets({"t": {"incrementing": 5, "timestamp": 1, "timestamp_nanos": 2}})
    with pytest.raises(ConnectError, match=r"^t: "):
        JdbcSource.check_offsets({"t": {"incrementing": "many"}})
