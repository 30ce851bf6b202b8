"""Rows of tables, or of a query, to topics."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from kavka.common.config import HIGH, INT, LIST, LONG, LOW, AtLeast, OneOf
from kavka.pipeline.connect.api import Context, IncrementalSource, Offsets
from kavka.pipeline.connect.connectors.jdbc_database import (
    ATTEMPTS,
    OPTIONS,
    PREFIX,
    Connection,
    Database,
    DatabaseError,
    told_in_one_line,
)
from kavka.pipeline.connect.connectors.jdbc_sql import Moment, Position, Range, is_embedded
from kavka.pipeline.connect.errors import ConnectError
from kavka.pipeline.connect.options import Option

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

T = TypeVar("T")

_MODES = ("bulk", "incrementing", "timestamp", "timestamp+incrementing")
_MAPPINGS = ("none", "precision_only", "best_fit", "best_fit_eager_double")
_MODE, _CONNECTOR = "Mode", "Connector"
QUERY = "query"
"""The name of the part, in the offsets, where there is a query."""
NOTHING = "begun"
"""In an offset: the batch that ended there had no rows, it only notes where the next begins."""


class JdbcSource(IncrementalSource):
    """Rows of tables, or of a query, of a database to topics, by JDBC.

    `mode` says which rows are new: all of them, again and again (`bulk`); those with a larger number
    (`incrementing`); those with a later time (`timestamp`), which also finds rows that were changed; or both.
    A row that is committed after one with a larger number, or a later time, was read is not found: for times
    `timestamp.delay.interval.ms` waits for such rows. Values are structs with a field for each column."""

    partition_field = "table"
    prefixes = (PREFIX,)
    options = (
        *OPTIONS,
        *ATTEMPTS,
        Option(
            "mode",
            doc="`bulk`, `incrementing`, `timestamp` or `timestamp+incrementing`.",
            importance=HIGH,
            validator=OneOf(_MODES, ignore_case=True),
            recommended=_MODES,
            group=_MODE,
        ),
        Option("incrementing.column.name", default="", doc="The column with a number that rises from row to row.",
               group=_MODE),
        Option("timestamp.column.name", LIST, (), "The column with the time of a row's last change. Of several, the "
               "first that is not null.", group=_MODE),
        Option("timestamp.initial", LONG, None, "Milliseconds since 1970: rows of before are left out. -1: now.", LOW,
               group=_MODE),
        Option("timestamp.delay.interval.ms", LONG, 0, "Rows count when they are as old as this, by the database's "
               "clock: time for transactions that are under way. 0: they count at once.", validator=AtLeast(0),
               group=_MODE),
        Option("query", default="", doc="A query to read instead of tables; it is used as a subquery.", group=_MODE),
        Option("table.whitelist", LIST, (), "Tables to read, by name or `schema.name`. Neither this, nor another list, "
               "nor a query: all.", group=_MODE),
        Option("table.blacklist", LIST, (), "Tables to leave out.", group=_MODE),
        Option("table.include.list", LIST, (), "The same as a list of regular expressions for `schema.name`.",
               group=_MODE),
        Option("table.exclude.list", LIST, (), "Regular expressions for tables to leave out.", group=_MODE),
        Option("schema.pattern", default="", doc="Only tables of schemas that this pattern of SQL matches.",
               group=_MODE),
        Option("table.types", LIST, ("TABLE",), "Kinds of tables: TABLE, VIEW …", LOW, group=_MODE),
        Option(
            "numeric.mapping",
            default="none",
            doc="What NUMERIC columns become: decimals (`none`); whole numbers where they have no fraction "
            "(`precision_only`); that, and doubles else (`best_fit`, `best_fit_eager_double`).",
            validator=OneOf(_MAPPINGS, ignore_case=True),
            recommended=_MAPPINGS,
            group=_MODE,
        ),
        Option("topic.prefix", default="", doc="The topic of a table is this and its name; that of a query this alone.",
               importance=HIGH, group=_CONNECTOR),
        Option("poll.interval.ms", INT, 5000, "How often it is looked for new rows.", HIGH, AtLeast(1), _CONNECTOR),
        Option("table.poll.interval.ms", LONG, 60_000, "How often it is looked for new tables.", LOW, AtLeast(1),
               _CONNECTOR),
        Option("batch.max.rows", INT, 100_000, "About how many rows are read at a time.", LOW, AtLeast(1), _CONNECTOR),
    )  # fmt: skip

    @classmethod
    def opens_files(cls, given: Mapping[str, str]) -> bool:
        return is_embedded(given.get("connection.url", ""))

    @classmethod
    def check(cls, config: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, str]:
        found: dict[str, str] = {}
        mode = (config["mode"] or "").lower()
        if "incrementing" in mode and not config["incrementing.column.name"]:
            found["incrementing.column.name"] = f"mode={mode} needs the name of the column with the rising number"
        if "timestamp" in mode and not config["timestamp.column.name"]:
            found["timestamp.column.name"] = f"mode={mode} needs the name of the column with the time"
        lists = [name for name in LISTS if config[name]]
        if config["query"] and lists:
            found["query"] = f"there is a query, and {lists[0]}: one of them is too many"
        if config["query"] and not config["topic.prefix"]:
            found["topic.prefix"] = "it is the name of the topic where there is a query, and must not be empty"
        for name in ("table.include.list", "table.exclude.list"):
            for pattern in config[name] or ():
                try:
                    re.compile(pattern)
                except re.error as error:
                    found[name] = f"{pattern} is not a regular expression: {error}"
        return found

    @classmethod
    def check_offsets(cls, offsets: Offsets) -> None:
        for name, found in offsets.items():
            try:
                _position(found)
            except (TypeError, ValueError):
                raise ConnectError(f"{name}: incrementing, timestamp and timestamp_nanos must be numbers") from None

    def start(self, context: Context) -> None:
        self.poll_interval = context["poll.interval.ms"] / 1000
        self._database = Database.of(context)
        self._mode = context["mode"].lower()
        self._tables: list[str] = []
        self._looked = -float("inf")
        self._turn = 0
        self._polled: dict[str, float] = {}
        self._ranges: dict[str, Range] = {}

    # --- what is new

    def next(self, context: Context, start: Offsets) -> Offsets | None:
        """A batch is of one table: others have other columns. Each has its turn."""
        parts = self._retried(context, self._parts)
        for step in range(len(parts)):
            index = (self._turn + step) % len(parts)
            part = parts[index]
            found = self._bulk(context, part) if self._mode == "bulk" else self._end(context, part, start.get(part))
            if found is not None:
                self._turn = index + 1
                return {**start, part: found}
        return None

    def _parts(self, context: Context) -> list[str]:
        if context["query"]:
            return [QUERY]
        if time.monotonic() - self._looked >= context["table.poll.interval.ms"] / 1000 or not self._tables:
            with self._database.connect() as connection:
                self._tables = tables(connection, context.config)
            self._looked = time.monotonic()
            if not self._tables:
                log.warning("%s: there is no table to read", context.name)
        return self._tables

    def _bulk(self, context: Context, part: str) -> dict[str, Any] | None:
        now = time.monotonic()
        last = self._polled.get(part)
        if last is not None and (context.available_now or now - last < self.poll_interval):
            return None
        self._polled[part] = now
        return {"polled": int(time.time() * 1000)}

    def _end(self, context: Context, part: str, start: dict[str, Any] | None) -> dict[str, Any] | None:
        def look(context: Context) -> dict[str, Any] | None:
            if not start and context["timestamp.initial"] == -1 and "timestamp" in self._mode:
                # Where it begins has to be noted: after a crash now would be later.
                return {**_to_json(Moment.now(), None), NOTHING: True}
            wanted = self._range(context, part)
            with self._database.connect() as connection:
                begin = self._begin(context, start)
                sql = wanted.last(begin, context["batch.max.rows"])
                found = connection.position(sql, has_time=wanted.timestamp is not None)
            return None if found is None else _to_json(*found)

        return self._retried(context, look)

    def _begin(self, context: Context, start: dict[str, Any] | None) -> Position:
        moment = context["timestamp.initial"]
        if start:
            return _position(start)
        if moment is None or moment < 0 or "timestamp" not in self._mode:
            return Position()
        # Rows of that very moment count.
        return Position(None, Moment(moment - 1, (moment - 1) % 1000 * 1_000_000 + 999_999))

    def _range(self, context: Context, part: str) -> Range:
        found = self._ranges.get(part)
        if found is None:
            dialect = self._database.dialect
            source = self._source(context, part)
            number = dialect.quote(context["incrementing.column.name"]) if "incrementing" in self._mode else None
            moment, zone, until = None, False, None
            if "timestamp" in self._mode:
                names = [dialect.quote(name) for name in context["timestamp.column.name"]]
                moment = names[0] if len(names) == 1 else f"COALESCE({', '.join(names)})"
                with self._database.connect() as connection:
                    kind = connection.type_of(moment, source)
                zone = "with time zone" in kind or kind in ("timestamptz", "datetimeoffset")
                delay = context["timestamp.delay.interval.ms"]
                if delay:
                    until = f"{{fn TIMESTAMPADD(SQL_TSI_SECOND, -{-(-delay // 1000)}, CURRENT_TIMESTAMP)}}"
            found = self._ranges[part] = Range(dialect, source, number, moment, zone, until)
        return found

    def _source(self, context: Context, part: str) -> str:
        if part == QUERY and context["query"]:
            return f"({context['query'].rstrip().rstrip(';')}) query_"
        return self._database.dialect.table(part)

    def _retried(self, context: Context, work: Callable[[Context], T]) -> T:
        """The database may be away for a while."""
        left = context["connection.attempts"]
        while True:
            try:
                return work(context)
            except DatabaseError as error:
                left -= 1
                if not error.retriable or not left:
                    raise ConnectError(f"{error} ({context['connection.attempts']} attempts)") from None
                log.warning("%s: the database is asked again: %s", context.name, error)
                time.sleep(context["connection.backoff.ms"] / 1000)

    # --- the rows

    def read_range(self, context: Context, start: Offsets, end: Offsets) -> DataFrame:
        from pyspark.sql import functions as f

        (part,) = [name for name, found in end.items() if found != start.get(name)]

        def read(context: Context) -> DataFrame:
            if self._mode == "bulk":
                sql = f"SELECT * FROM {self._source(context, part)}"
            else:
                wanted = self._range(context, part)
                sql = wanted.rows(self._begin(context, start.get(part)), _position(end[part]))
                if end[part].get(NOTHING):
                    sql = f"SELECT * FROM {wanted.source} WHERE 1 = 0"
            with told_in_one_line():
                reader = context.spark.read.format("jdbc").options(**self._database.options)
                return reader.option("query", sql).option("fetchsize", "10000").load()

        if context.exactly_once and self._mode != "incrementing":
            rows = kept(context, end, lambda: self._retried(context, read))
        else:
            rows = self._retried(context, read)
        rows = mapped(rows, context["numeric.mapping"].lower())
        prefix = context["topic.prefix"]
        topic = prefix if part == QUERY and context["query"] else prefix + part.rpartition(".")[2]
        return rows.select(f.struct(*[f.col(f"`{name}`") for name in rows.columns]).alias("value")).withColumn(
            "topic", f.lit(topic)
        )


def kept(context: Context, end: Offsets, read: Callable[[], DataFrame]) -> DataFrame:
    """The rows of a batch, which are put aside before they are used. A row that is changed has another time and is no
    longer among those of the batch: if it has to be written again after a crash, it is from here."""
    jvm: Any = context.spark._jvm
    name = hashlib.sha256(json.dumps(end, sort_keys=True).encode()).hexdigest()[:16]
    folder = jvm.org.apache.hadoop.fs.Path(f"{context.checkpoint}/rows")
    path = jvm.org.apache.hadoop.fs.Path(folder, name)
    files = folder.getFileSystem(context.spark._jsc.hadoopConfiguration())
    if not files.exists(jvm.org.apache.hadoop.fs.Path(path, "_SUCCESS")):
        files.delete(folder, True)
        with told_in_one_line():
            read().write.mode("overwrite").parquet(str(path.toString()))
    return context.spark.read.parquet(str(path.toString()))


LISTS = ("table.whitelist", "table.blacklist", "table.include.list", "table.exclude.list")


def tables(connection: Connection, config: Mapping[str, Any]) -> list[str]:
    """Those that are to be read, as `schema.name` where there are schemas."""
    found = []
    for schema, name in connection.tables(config["table.types"], config["schema.pattern"] or None):
        if schema.lower() in ("information_schema", "pg_catalog") or name.lower().startswith("kavka_"):
            continue
        if chosen(schema, name, config):
            found.append(f"{schema}.{name}" if schema else name)
    return found


def chosen(schema: str, name: str, config: Mapping[str, Any]) -> bool:
    names = {name, f"{schema}.{name}"}
    full = f"{schema}.{name}" if schema else name

    def matches(patterns: tuple[str, ...]) -> bool:
        return any(re.fullmatch(pattern, text) for pattern in patterns for text in (full, name))

    if config["table.whitelist"] and not names & set(config["table.whitelist"]):
        return False
    if config["table.include.list"] and not matches(config["table.include.list"]):
        return False
    return not (names & set(config["table.blacklist"]) or matches(config["table.exclude.list"]))


def _position(found: Mapping[str, Any]) -> Position:
    number, moment = found.get("incrementing"), found.get("timestamp")
    nanos = found.get("timestamp_nanos")
    if moment is not None and nanos is None:
        nanos = int(moment) % 1000 * 1_000_000
    return Position(
        None if number is None else int(number), None if moment is None else Moment(int(moment), int(nanos or 0))
    )


def _to_json(moment: Moment | None, number: int | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if number is not None:
        found["incrementing"] = number
    if moment is not None:
        found |= {"timestamp": moment.ms, "timestamp_nanos": moment.nanos}
    return found


def mapped(rows: DataFrame, mapping: str) -> DataFrame:
    """NUMERIC columns as `numeric.mapping` says."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import DecimalType

    if mapping == "none":
        return rows
    changed = {}
    for one in rows.schema.fields:
        kind = one.dataType
        if not isinstance(kind, DecimalType):
            continue
        if kind.scale == 0 and kind.precision <= 18:
            sizes = ((2, "byte"), (4, "short"), (9, "int"), (18, "bigint"))
            target = next(name for most, name in sizes if kind.precision <= most)
        elif mapping == "precision_only":
            continue
        else:
            target = "double"
        changed[one.name] = f.col(f"`{one.name}`").cast(target)
    return rows.withColumns(changed) if changed else rows
