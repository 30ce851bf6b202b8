"""The SQL of the JDBC connectors: names, times, ranges of rows, and merging staged rows into
a table.

`Dialect` has the differences between databases. All other SQL is portable.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

ORDER, DELETED = "kavka_order", "kavka_deleted"
"""Columns of a stage: the record's position in the batch, and whether it is a delete (1) or not
(0)."""

DRIVERS = {
    "postgresql": "org.postgresql.Driver",
    "mysql": "com.mysql.cj.jdbc.Driver",
    "mariadb": "org.mariadb.jdbc.Driver",
    "sqlite": "org.sqlite.JDBC",
    "derby": "org.apache.derby.iapi.jdbc.AutoloadedDriver",
    "h2": "org.h2.Driver",
    "sqlserver": "com.microsoft.sqlserver.jdbc.SQLServerDriver",
    "oracle": "oracle.jdbc.OracleDriver",
    "db2": "com.ibm.db2.jcc.DB2Driver",
}


def subprotocol(url: str) -> str:
    """Returns `postgresql` for jdbc:postgresql://host/db; "" if the text is not a JDBC URL."""
    parts = url.split(":")
    return parts[1].lower() if len(parts) > 2 and parts[0] == "jdbc" else ""


_SERVERS = frozenset({"postgresql", "mysql", "mariadb", "sqlserver", "oracle", "db2"})


def is_embedded(url: str) -> bool:
    """Whether the database may run inside the JDBC driver, which then opens files or runs code that
    the URL names. True for unknown drivers."""
    # The parser of options removes surrounding spaces.
    name = subprotocol(url.strip())
    return bool(name) and name not in _SERVERS


@dataclass(frozen=True)
class Dialect:
    """The SQL dialect of a database."""

    name: str
    """The subprotocol of the JDBC URL."""
    quoting: bool = True

    @property
    def has_on_conflict(self) -> bool:
        return self.name in ("postgresql", "sqlite")

    def quote(self, name: str) -> str:
        if not self.quoting:
            return name
        mark = "`" if self.name in ("mysql", "mariadb") else '"'
        return f"{mark}{name.replace(mark, mark * 2)}{mark}"

    def table(self, name: str) -> str:
        """Returns the quoted name of a table, which may have a schema before a dot."""
        return ".".join(self.quote(part) for part in name.split("."))

    def first(self, count: int) -> str:
        """Returns the clause after ORDER BY that limits the number of rows."""
        if self.name in ("mysql", "mariadb", "sqlite"):
            return f"LIMIT {count}"
        if self.name == "sqlserver":
            return f"OFFSET 0 ROWS FETCH NEXT {count} ROWS ONLY"
        return f"FETCH FIRST {count} ROWS ONLY"

    def time(self, moment: Moment, with_zone: bool) -> str:
        """Returns a time literal for comparisons."""
        if with_zone:
            return f"CAST('{moment.text()}+00:00' AS TIMESTAMP WITH TIME ZONE)"
        return f"{{ts '{moment.text()}'}}"

    def stage(self, stage: str, columns: Sequence[str], table: str, extra: Sequence[str]) -> str:
        """Returns a statement that creates an empty table with these columns of `table`, and extra
        BIGINT columns."""
        expressions = [self.quote(name) for name in columns]
        expressions += [f"CAST(0 AS BIGINT) AS {self.quote(name)}" for name in extra]
        rows = f"SELECT {', '.join(expressions)} FROM {table}"
        kind = "UNLOGGED TABLE" if self.name == "postgresql" else "TABLE"
        if self.name == "derby":
            return f"CREATE {kind} {stage} AS {rows} WITH NO DATA"
        return f"CREATE {kind} {stage} AS {rows} WHERE 1 = 0"


@dataclass(frozen=True)
class Moment:
    """A time as in a source's offsets: milliseconds since 1970, and the nanoseconds of the
    second."""

    ms: int
    nanos: int

    @classmethod
    def now(cls) -> Moment:
        nanos = time.time_ns()
        return cls(nanos // 1_000_000, nanos % 1_000_000_000)

    def text(self) -> str:
        """Returns the time in UTC, with microseconds, or nanoseconds if necessary."""
        seconds = self.ms // 1000
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
        fraction = f"{self.nanos:09d}"
        return f"{moment:%Y-%m-%d %H:%M:%S}.{fraction if fraction[6:] != '000' else fraction[:6]}"


# --- writing to a table


@dataclass(frozen=True)
class Merge:
    """Moves the rows of a stage into a table."""

    dialect: Dialect
    table: str
    """The quoted name of the target table."""
    stage: str
    """The quoted name of the stage."""
    columns: tuple[str, ...]
    keys: tuple[str, ...]
    mode: str
    """insert, upsert or update."""
    deletes: bool = False

    @property
    def extra(self) -> tuple[str, ...]:
        """The columns that the stage has in addition to those of the table."""
        ordered = (ORDER,) if self.keys and (self.mode != "insert" or self.deletes) else ()
        return (*ordered, *((DELETED,) if self.deletes else ()))

    def statements(self, has_unique_keys: bool) -> list[str]:
        """Returns the statements, for one transaction. With `has_unique_keys` the stage contains
        each key only once; otherwise the last record of a key is used. A key that any record of the
        batch deletes is first deleted from the table."""
        statements = []
        quote = self.dialect.quote
        if self.deletes:
            statements.append(
                f"DELETE FROM {self.table} WHERE EXISTS (SELECT 1 FROM {self.stage} s "
                f"WHERE s.{quote(DELETED)} = 1 AND {self._same_key(self.table, 's')})"
            )
        if self.extra and not has_unique_keys:
            statements.append(self._delete_older_records())
        if self.deletes:
            statements.append(f"DELETE FROM {self.stage} WHERE {quote(DELETED)} = 1")
        statements.append({"insert": self._insert, "upsert": self._upsert, "update": self._update}[self.mode]())
        return statements

    def _same_key(self, table: str, other: str) -> str:
        names = [self.dialect.quote(name) for name in self.keys]
        return " AND ".join(f"{table}.{name} = {other}.{name}" for name in names)

    def _list(self, names: Sequence[str], prefix: str = "") -> str:
        return ", ".join(prefix + self.dialect.quote(name) for name in names)

    @property
    def _value_columns(self) -> list[str]:
        return [name for name in self.columns if name not in self.keys]

    def _delete_older_records(self) -> str:
        """Returns a statement that deletes all records of a key from the stage, except the last."""
        order = self.dialect.quote(ORDER)
        if self.dialect.name == "postgresql":
            return (
                f"DELETE FROM {self.stage} s USING (SELECT ctid, ROW_NUMBER() OVER (PARTITION BY "
                f"{self._list(self.keys)} ORDER BY {order} DESC) AS n FROM {self.stage}) d "
                "WHERE s.ctid = d.ctid AND d.n > 1"
            )
        return (
            f"DELETE FROM {self.stage} WHERE EXISTS (SELECT 1 FROM {self.stage} n "
            f"WHERE {self._same_key(self.stage, 'n')} AND n.{order} > {self.stage}.{order})"
        )

    def _insert(self) -> str:
        names = self._list(self.columns)
        return f"INSERT INTO {self.table} ({names}) SELECT {names} FROM {self.stage}"

    def _upsert(self) -> str:
        if self.dialect.has_on_conflict:
            quote = self.dialect.quote
            changes = ", ".join(f"{quote(name)} = EXCLUDED.{quote(name)}" for name in self._value_columns)
            action = f"DO UPDATE SET {changes}" if changes else "DO NOTHING"
            # SQLite parses ON as a join unless there is a WHERE.
            return f"{self._insert()} WHERE 1 = 1 ON CONFLICT ({self._list(self.keys)}) {action}"
        insert = f"INSERT ({self._list(self.columns)}) VALUES ({self._list(self.columns, 's.')})"
        return f"{self._merge()} WHEN NOT MATCHED THEN {insert}"

    def _update(self) -> str:
        if not self.dialect.has_on_conflict:
            return self._merge()
        quote = self.dialect.quote
        changes = ", ".join(f"{quote(name)} = s.{quote(name)}" for name in self._value_columns)
        return f"UPDATE {self.table} SET {changes} FROM {self.stage} s WHERE {self._same_key(self.table, 's')}"

    def _merge(self) -> str:
        quote = self.dialect.quote
        changes = ", ".join(f"t.{quote(name)} = s.{quote(name)}" for name in self._value_columns)
        same = self._same_key("t", "s")
        merge = f"MERGE INTO {self.table} t USING {self.stage} s ON {same}"
        return f"{merge} WHEN MATCHED THEN UPDATE SET {changes}" if changes else merge


# --- reading from a table


@dataclass(frozen=True)
class Position:
    """The last row that was read from a table. A value that the mode does not use is None."""

    incrementing: int | None = None
    timestamp: Moment | None = None


@dataclass(frozen=True)
class Range:
    """Selects rows of a table (or a named subquery) by an incrementing number, a time, or both."""

    dialect: Dialect
    source: str
    incrementing: str | None
    """The quoted name of the column."""
    timestamp: str | None
    """An expression for the time of a row."""
    with_zone: bool = False
    until: str | None = None
    """An expression for the latest time to include."""

    @property
    def _order(self) -> list[str]:
        return [column for column in (self.timestamp, self.incrementing) if column is not None]

    def last(self, start: Position, count: int) -> str:
        """Returns a query for the time and number of the last row of the next batch."""
        names = [f"c{index}" for index in range(len(self._order))]
        columns = ", ".join(f"{column} AS {name}" for column, name in zip(self._order, names, strict=True))
        rows = (
            f"SELECT {columns} FROM {self.source} WHERE {self.condition(start, None)} "
            f"ORDER BY {', '.join(self._order)} {self.dialect.first(count)}"
        )
        backwards = ", ".join(f"{name} DESC" for name in names)
        return f"SELECT {', '.join(names)} FROM ({rows}) rows_ ORDER BY {backwards} {self.dialect.first(1)}"

    def condition(self, start: Position, end: Position | None) -> str:
        """Returns the condition for the rows after `start`, up to and including `end`."""
        conditions = [f"{column} IS NOT NULL" for column in self._order]
        if start.timestamp is not None or start.incrementing is not None:
            conditions.append(self._beyond(start))
        if end is not None:
            conditions.append(f"NOT {self._beyond(end)}")
        elif self.timestamp is not None and self.until is not None:
            conditions.append(f"{self.timestamp} <= {self.until}")
        return " AND ".join(conditions)

    def _beyond(self, position: Position) -> str:
        """Returns a condition for rows after the position."""
        number, moment = position.incrementing, position.timestamp
        if self.timestamp is None or moment is None:
            return f"({self.incrementing} > {number})"
        time = self.dialect.time(moment, self.with_zone)
        if self.incrementing is None or number is None:
            return f"({self.timestamp} > {time})"
        return f"({self.timestamp} > {time} OR ({self.timestamp} = {time} AND {self.incrementing} > {number}))"
