"""Reads rows of tables, or of a query, as records."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
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
    database_errors,
)
from kavka.pipeline.connect.connectors.jdbc_sql import Moment, Position, Range, is_embedded
from kavka.pipeline.connect.errors import ConnectError
from kavka.pipeline.connect.options import Option
from kavka.pipeline.connect.stores import OF_BATCH
from kavka.pipeline.spark.files import HadoopPath

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger = logging.getLogger(__name__)

T = TypeVar("T")

_MODES = ("bulk", "incrementing", "timestamp", "timestamp+incrementing")
_MAPPINGS = ("none", "precision_only", "best_fit", "best_fit_eager_double")
_MODE, _CONNECTOR = "Mode", "Connector"
QUERY = "query"
"""The source partition of a query."""
RANGES = f"{OF_BATCH}ranges"
"""The ends of all ranges of a batch but the last, in the offset of a table that several tasks
read."""
NO_ROWS = "begun"
"""Marks an offset whose batch has no rows: it only records where the next batch starts."""
TABLE_LISTS = ("table.whitelist", "table.blacklist", "table.include.list", "table.exclude.list")


class JdbcSource(IncrementalSource):
    """Reads rows of tables, or of a query, with JDBC.

    `mode` determines which rows are read: all rows in every poll (`bulk`), rows with a larger
    number (`incrementing`), rows with a later time (`timestamp`), which includes changed rows, or
    both. A row is missed if it is committed after a row with a larger number or a later time was
    read. For times, `timestamp.delay.interval.ms` waits for such rows. Values are structs with a
    field for each column. The tasks read several tables, or ranges of the rows of one. In the mode
    `bulk` a task reads whole tables.
    """

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
        Option("incrementing.column.name", default="", doc="The column with a number that increases with each row.",
               group=_MODE),
        Option("timestamp.column.name", LIST, (), "The column with the time of a row's last change. Of several "
               "columns, the first that is not null is used.", group=_MODE),
        Option("timestamp.initial", LONG, None, "Ignore rows before this time, in ms since 1970; -1: now.", LOW,
               group=_MODE),
        Option("timestamp.delay.interval.ms", LONG, 0, "The minimum age of rows to read, by the database's clock. It "
               "gives open transactions time to commit. 0: read rows immediately.", validator=AtLeast(0),
               group=_MODE),
        Option("query", default="", doc="A query to read instead of tables. It is used as a subquery.", group=_MODE),
        Option("table.whitelist", LIST, (), "Tables to read, by name or `schema.name`. Without a list or a query all "
               "tables are read.", group=_MODE),
        Option("table.blacklist", LIST, (), "Tables to exclude.", group=_MODE),
        Option("table.include.list", LIST, (), "Regular expressions of `schema.name` of the tables to read.",
               group=_MODE),
        Option("table.exclude.list", LIST, (), "Regular expressions of tables to exclude.", group=_MODE),
        Option("schema.pattern", default="", doc="Only tables of schemas that match this SQL pattern.",
               group=_MODE),
        Option("table.types", LIST, ("TABLE",), "Types of tables: TABLE, VIEW …", LOW, group=_MODE),
        Option(
            "numeric.mapping",
            default="none",
            doc="The type of NUMERIC columns: decimal (`none`); integer if they have no fraction "
            "(`precision_only`); integer or else double (`best_fit`, `best_fit_eager_double`).",
            validator=OneOf(_MAPPINGS, ignore_case=True),
            recommended=_MAPPINGS,
            group=_MODE,
        ),
        Option("topic.prefix", default="", doc="The topic of a table is the prefix and the table's name. The topic "
               "of a query is the prefix.", importance=HIGH, group=_CONNECTOR),
        Option("poll.interval.ms", INT, 5000, "The interval of polling for new rows.", HIGH, AtLeast(1), _CONNECTOR),
        Option("table.poll.interval.ms", LONG, 60_000, "The interval of polling for new tables.", LOW, AtLeast(1),
               _CONNECTOR),
        Option("batch.max.rows", INT, 100_000, "The approximate number of rows that a task reads in a batch.", LOW,
               AtLeast(1), _CONNECTOR),
    )  # fmt: skip

    @classmethod
    def opens_files(cls, originals: Mapping[str, str]) -> bool:
        return is_embedded(originals.get("connection.url", ""))

    @classmethod
    def check(cls, config: Mapping[str, Any], originals: Mapping[str, str]) -> dict[str, str]:
        errors: dict[str, str] = {}
        mode = (config["mode"] or "").lower()
        if "incrementing" in mode and not config["incrementing.column.name"]:
            errors["incrementing.column.name"] = f"mode={mode} requires the name of the incrementing column"
        if "timestamp" in mode and not config["timestamp.column.name"]:
            errors["timestamp.column.name"] = f"mode={mode} requires the name of the timestamp column"
        lists = [name for name in TABLE_LISTS if config[name]]
        if config["query"] and lists:
            errors["query"] = f"query and {lists[0]} are mutually exclusive"
        if config["query"] and not config["topic.prefix"]:
            errors["topic.prefix"] = "a query requires topic.prefix, which is its topic"
        for name in ("table.include.list", "table.exclude.list"):
            for pattern in config[name] or ():
                try:
                    re.compile(pattern)
                except re.error as error:
                    errors[name] = f"{pattern} is not a regular expression: {error}"
        return errors

    @classmethod
    def check_offsets(cls, offsets: Offsets) -> None:
        for name, offset in offsets.items():
            try:
                _position(offset)
            except (TypeError, ValueError):
                raise ConnectError(f"{name}: incrementing, timestamp and timestamp_nanos must be numbers") from None

    def start(self, context: Context) -> None:
        self.poll_interval = context["poll.interval.ms"] / 1000
        self._database = Database.of(context)
        self._mode = context["mode"].lower()
        self._tables: list[str] = []
        self._tables_listed_at = -float("inf")
        self._next_partition = 0
        self._polled_at: dict[str, float] = {}
        self._ranges: dict[str, Range] = {}

    def tasks(self, context: Context) -> int:
        limit = int(context["tasks.max"])
        return min(limit, max(1, len(self._tables))) if self._mode == "bulk" else limit

    # --- new rows

    def next(self, context: Context, start: Offsets) -> Offsets | None:
        """Returns the end of a batch with a range of rows for each task: of several tables, which
        are read in turn, or of one. Ranges follow each other in the order of the rows, so that they
        have equal sizes, and the database finds them with the index that it needs anyway."""
        partitions = self._with_retries(context, self._source_partitions)
        offset = self._next_partition % max(1, len(partitions))
        in_turn = [*partitions[offset:], *partitions[:offset]]
        limit = context["tasks.max"]
        if self._mode == "bulk":
            ends: dict[str, list[dict[str, Any]]] = {}
            for partition in in_turn:
                end = self._bulk(context, partition) if len(ends) < limit else None
                if end is not None:
                    ends[partition] = [end]
        else:
            ends = self._with_retries(context, lambda context: self._ends(context, in_turn, start, limit))
        if not ends:
            return None
        self._next_partition = partitions.index(list(ends)[-1]) + 1
        return {**start, **{partition: _with_ranges(ranges) for partition, ranges in ends.items()}}

    def _ends(
        self, context: Context, partitions: list[str], start: Offsets, limit: int
    ) -> dict[str, list[dict[str, Any]]]:
        """Returns the ends of at most `limit` ranges, by table."""
        ends: dict[str, list[dict[str, Any]]] = {}
        with self._database.connect() as connection:
            for partition in partitions:
                end = self._end(context, connection, partition, start.get(partition)) if len(ends) < limit else None
                if end is not None:
                    ends[partition] = [end]
            count, divisible = len(ends), [name for name in ends if not ends[name][0].get(NO_ROWS)]
            while divisible and count < limit:
                partition = divisible.pop(0)
                end = self._end(context, connection, partition, ends[partition][-1])
                if end is not None:
                    ends[partition].append(end)
                    divisible.append(partition)
                    count += 1
        return ends

    def _source_partitions(self, context: Context) -> list[str]:
        if context["query"]:
            return [QUERY]
        if time.monotonic() - self._tables_listed_at >= context["table.poll.interval.ms"] / 1000 or not self._tables:
            with self._database.connect() as connection:
                self._tables = tables(connection, context.config)
            self._tables_listed_at = time.monotonic()
            if not self._tables:
                logger.warning("There are no tables to read for connector %s", context.name)
        return self._tables

    def _bulk(self, context: Context, partition: str) -> dict[str, Any] | None:
        now = time.monotonic()
        polled_at = self._polled_at.get(partition)
        if polled_at is not None and (context.available_now or now - polled_at < self.poll_interval):
            return None
        self._polled_at[partition] = now
        return {"polled": int(time.time() * 1000)}

    def _end(
        self, context: Context, connection: Connection, partition: str, start: dict[str, Any] | None
    ) -> dict[str, Any] | None:
        if not start and context["timestamp.initial"] == -1 and "timestamp" in self._mode:
            # Store the start time, which must stay the same after a crash.
            return {**_to_json(Moment.now(), None), NO_ROWS: True}
        range_ = self._range(context, partition)
        sql = range_.last(self._begin(context, start), context["batch.max.rows"])
        position = connection.position(sql, has_time=range_.timestamp is not None)
        return None if position is None else _to_json(*position)

    def _begin(self, context: Context, start: dict[str, Any] | None) -> Position:
        moment = context["timestamp.initial"]
        if start:
            return _position(start)
        if moment is None or moment < 0 or "timestamp" not in self._mode:
            return Position()
        # Include rows of exactly that time.
        return Position(None, Moment(moment - 1, (moment - 1) % 1000 * 1_000_000 + 999_999))

    def _range(self, context: Context, partition: str) -> Range:
        range_ = self._ranges.get(partition)
        if range_ is None:
            dialect = self._database.dialect
            source = self._source(context, partition)
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
            range_ = self._ranges[partition] = Range(dialect, source, number, moment, zone, until)
        return range_

    def _source(self, context: Context, partition: str) -> str:
        if partition == QUERY and context["query"]:
            return f"({context['query'].rstrip().rstrip(';')}) query_"
        return self._database.dialect.table(partition)

    def _with_retries(self, context: Context, work: Callable[[Context], T]) -> T:
        """Returns the result of `work`. Retries while the database is unavailable; raises
        ConnectError after the last attempt and for other errors."""
        attempts_left = context["connection.attempts"]
        while True:
            try:
                return work(context)
            except DatabaseError as error:
                attempts_left -= 1
                if not error.is_retriable or not attempts_left:
                    suffix = f" ({context['connection.attempts']} attempts)" if error.is_retriable else ""
                    raise ConnectError(f"{error}{suffix}") from None
                logger.warning("Connector %s cannot access the database, retrying: %s", context.name, error)
                time.sleep(context["connection.backoff.ms"] / 1000)

    # --- rows

    def read_range(self, context: Context, start: Offsets, end: Offsets) -> list[DataFrame]:
        partitions = sorted(name for name, offset in end.items() if offset != start.get(name))
        return [self._records(context, partition, start, end, index) for index, partition in enumerate(partitions)]

    def _records(self, context: Context, partition: str, start: Offsets, end: Offsets, index: int) -> DataFrame:
        """Returns the records of one table, each range in a Spark partition."""
        from pyspark.sql import functions as f

        def read(context: Context) -> DataFrame:
            conditions = self._conditions(context, partition, start.get(partition), end[partition])
            with database_errors():
                reader = context.spark.read.options(**self._database.options).option("fetchsize", "10000")
                return reader.jdbc(self._database.url, self._source(context, partition), predicates=conditions)

        if context.exactly_once and self._mode != "incrementing":
            rows = materialize(context, end, index, lambda: self._with_retries(context, read))
        else:
            rows = self._with_retries(context, read)
        rows = with_mapped_numbers(rows, context["numeric.mapping"].lower())
        prefix = context["topic.prefix"]
        topic = prefix if partition == QUERY and context["query"] else prefix + partition.rpartition(".")[2]
        return rows.select(f.struct(*[f.col(f"`{name}`") for name in rows.columns]).alias("value")).withColumn(
            "topic", f.lit(topic)
        )

    def _conditions(
        self, context: Context, partition: str, start: dict[str, Any] | None, end: dict[str, Any]
    ) -> list[str]:
        """Returns the conditions for the rows of each range."""
        if self._mode == "bulk" or end.get(NO_ROWS):
            return ["1 = 1" if self._mode == "bulk" else "1 = 0"]
        range_ = self._range(context, partition)
        ends = [_position(offset) for offset in (*end.get(RANGES, ()), end)]
        begins = [self._begin(context, start), *ends]
        return [range_.condition(begin, stop) for begin, stop in zip(begins, ends, strict=False)]


def _with_ranges(ends: list[dict[str, Any]]) -> dict[str, Any]:
    return ends[-1] if len(ends) == 1 else {**ends[-1], RANGES: ends[:-1]}


def materialize(context: Context, end: Offsets, index: int, read: Callable[[], DataFrame]) -> DataFrame:
    """Stores the rows of a table in the checkpoint folder and returns the stored rows. `index` is
    the table's number in the batch. A row that changes later has a new time and is no longer in the
    range of the batch. If the batch must be written again after a crash, its stored rows are
    used."""
    name = hashlib.sha256(json.dumps(end, sort_keys=True).encode()).hexdigest()[:16]
    folder = HadoopPath(f"{context.checkpoint}/rows", lambda: context.spark)
    path = folder / (f"{name}-{index}" if index else name)
    if not (path / "_SUCCESS").exists():
        with suppress(FileNotFoundError):
            for earlier in folder.iterdir():
                if not earlier.name.startswith(name):
                    earlier.delete()
        with database_errors():
            read().write.mode("overwrite").parquet(str(path))
    return context.spark.read.parquet(str(path))


def tables(connection: Connection, config: Mapping[str, Any]) -> list[str]:
    """Returns the tables to read, as `schema.name` if there are schemas."""
    names = []
    for schema, name in connection.tables(config["table.types"], config["schema.pattern"] or None):
        if schema.lower() in ("information_schema", "pg_catalog") or name.lower().startswith("kavka_"):
            continue
        if is_selected(schema, name, config):
            names.append(f"{schema}.{name}" if schema else name)
    return names


def is_selected(schema: str, name: str, config: Mapping[str, Any]) -> bool:
    """Whether the lists of tables select this table."""
    names = {name, f"{schema}.{name}"}
    full_name = f"{schema}.{name}" if schema else name

    def matches(patterns: tuple[str, ...]) -> bool:
        return any(re.fullmatch(pattern, text) for pattern in patterns for text in (full_name, name))

    if config["table.whitelist"] and not names & set(config["table.whitelist"]):
        return False
    if config["table.include.list"] and not matches(config["table.include.list"]):
        return False
    return not (names & set(config["table.blacklist"]) or matches(config["table.exclude.list"]))


def _position(offset: Mapping[str, Any]) -> Position:
    number, moment = offset.get("incrementing"), offset.get("timestamp")
    nanos = offset.get("timestamp_nanos")
    if moment is not None and nanos is None:
        nanos = int(moment) % 1000 * 1_000_000
    return Position(
        None if number is None else int(number), None if moment is None else Moment(int(moment), int(nanos or 0))
    )


def _to_json(moment: Moment | None, number: int | None) -> dict[str, Any]:
    offset: dict[str, Any] = {}
    if number is not None:
        offset["incrementing"] = number
    if moment is not None:
        offset |= {"timestamp": moment.ms, "timestamp_nanos": moment.nanos}
    return offset


def with_mapped_numbers(rows: DataFrame, mapping: str) -> DataFrame:
    """Returns the rows with NUMERIC columns converted according to `numeric.mapping`."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import DecimalType

    if mapping == "none":
        return rows
    changed = {}
    for field in rows.schema.fields:
        kind = field.dataType
        if not isinstance(kind, DecimalType):
            continue
        if kind.scale == 0 and kind.precision <= 18:
            sizes = ((2, "byte"), (4, "short"), (9, "int"), (18, "bigint"))
            target = next(name for digits, name in sizes if kind.precision <= digits)
        elif mapping == "precision_only":
            continue
        else:
            target = "double"
        changed[field.name] = f.col(f"`{field.name}`").cast(target)
    return rows.withColumns(changed) if changed else rows
