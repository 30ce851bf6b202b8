"""Records of topics to tables of a database.

A batch is first written to a stage, a table of its own, by all tasks of Spark at once, and goes from there to where it
belongs in one transaction: a table never has a part of a batch. That is also faster than Spark's own way to append:
the stage has no index and is not logged, so that rows get there in large statements and in any number of connections.

Exactly once: a batch that is written again after a crash has the same records. With `upsert` and `update` that changes
nothing. With `insert` the transaction also notes the batch's number in the table `kavka_batches`, and a batch that is
noted there is not written again.
"""

from __future__ import annotations

import hashlib
import logging
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kavka.common.config import BOOLEAN, HIGH, INT, LIST, LOW, AtLeast, OneOf
from kavka.pipeline.connect.api import Context, Sink, query_id
from kavka.pipeline.connect.connectors.jdbc_database import (
    OPTIONS,
    PREFIX,
    Connection,
    Database,
    DatabaseError,
    told_in_one_line,
)
from kavka.pipeline.connect.connectors.jdbc_sql import DELETED, ORDER, Merge, is_embedded, subprotocol
from kavka.pipeline.connect.errors import ConnectError
from kavka.pipeline.connect.options import Option

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

log = logging.getLogger(__name__)

BATCHES = "kavka_batches"
STAGES = "kavka_stage_"
_KAFKA_COLUMNS = ("__connect_topic", "__connect_partition", "__connect_offset")
_WRITES, _TABLES, _RETRIES = "Writes", "Tables", "Retries"
_MODES, _KEYS = ("insert", "upsert", "update"), ("none", "kafka", "record_key", "record_value")
# One key in a batch twice, of which ON CONFLICT will not choose.
_CARDINALITY = "21000"


@dataclass(frozen=True)
class Field:
    """A column of a table, and what of a record goes there."""

    name: str
    column: Column
    kind: DataType
    is_key: bool = False


class JdbcSink(Sink):
    """Records of topics to tables of a database, by JDBC.

    Values are structs (JSON, Avro), whose fields become columns; fields with fields of their own become JSON. A batch
    is written to a table of its own first (`kavka_stage_…`, dropped at the end), and from there in one transaction, so
    that the user must be allowed to make tables. `upsert` and `update` need PostgreSQL, SQLite, or a database with
    MERGE (Derby, H2, Oracle, SQL Server, DB2); PostgreSQL and Derby are tested."""

    exactly_once = True
    prefixes = (PREFIX,)
    options = (
        *OPTIONS,
        Option(
            "insert.mode",
            default="insert",
            doc="`insert`; `upsert`: insert, or update the row with the same key; `update`: only that.",
            importance=HIGH,
            validator=OneOf(_MODES, ignore_case=True),
            recommended=_MODES,
            group=_WRITES,
        ),
        Option("batch.size", INT, 3000, "How many rows go to the database at a time.", LOW, AtLeast(1), _WRITES),
        Option(
            "delete.enabled",
            BOOLEAN,
            False,
            "Whether a record without a value deletes the row with its key. Needs pk.mode=record_key.",
            group=_WRITES,
        ),
        Option(
            "table.name.format",
            default="${topic}",
            doc="The table of a topic; `${topic}` stands for its name. A schema may come before a dot.",
            group=_TABLES,
        ),
        Option(
            "pk.mode",
            default="none",
            doc="The primary key: none; topic, partition and offset (`kafka`); the record's key; fields of its value.",
            importance=HIGH,
            validator=OneOf(_KEYS, ignore_case=True),
            recommended=_KEYS,
            group=_TABLES,
        ),
        Option(
            "pk.fields",
            LIST,
            (),
            "Names of the primary key's columns: with record_key and record_value fields of the key or value (all, if "
            "it is empty), or the one name for a key that is no struct; with kafka three names "
            f"({', '.join(_KAFKA_COLUMNS)}).",
            group=_TABLES,
        ),
        Option("fields.whitelist", LIST, (), "Fields of the value that are written; empty: all.", group=_TABLES),
        Option("auto.create", BOOLEAN, False, "Whether a table that is not there is made.", group=_TABLES),
        Option("auto.evolve", BOOLEAN, False, "Whether columns that are not there are added.", group=_TABLES),
        Option(
            "max.retries",
            INT,
            10,
            "How often a batch is tried again when the database is away. What the database refuses is not.",
            validator=AtLeast(0),
            group=_RETRIES,
        ),
        Option("retry.backoff.ms", INT, 3000, "How long to wait before that.", LOW, AtLeast(0), _RETRIES),
    )

    @classmethod
    def opens_files(cls, given: Mapping[str, str]) -> bool:
        return is_embedded(given.get("connection.url", ""))

    @classmethod
    def check(cls, config: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, str]:
        found: dict[str, str] = {}
        mode, keys = (config["insert.mode"] or "").lower(), (config["pk.mode"] or "").lower()
        if mode in ("upsert", "update") and keys == "none":
            found["pk.mode"] = f"insert.mode={mode} needs a primary key: pk.mode=record_key, record_value or kafka"
        database = subprotocol(config["connection.url"] or "")
        if mode in ("upsert", "update") and database in ("mysql", "mariadb"):
            found["insert.mode"] = f"{mode} is not there for {database}"
        if config["delete.enabled"] and keys != "record_key":
            found["delete.enabled"] = "deletes need the key of the record: pk.mode must be record_key"
        if keys == "kafka" and config["pk.fields"] and len(config["pk.fields"]) != 3:
            found["pk.fields"] = "pk.mode=kafka needs three names, of the columns for topic, partition and offset"
        return found

    def start(self, context: Context) -> None:
        self._database = Database.of(context)
        self._mode = context["insert.mode"].lower()
        self._run = uuid.uuid4().hex[:8]
        self._stages: dict[str, tuple[str, Merge]] = {}
        self._has_batches = False

    def stop(self) -> None:
        if getattr(self, "_stages", None):
            try:
                with self._database.connect() as connection:
                    for stage, _ in self._stages.values():
                        connection.execute(f"DROP TABLE {stage}")
            except ConnectError as error:
                log.warning("The stages of this run were not dropped: %s", error)

    def write(self, context: Context, records: DataFrame, batch_id: int) -> None:
        left = context["max.retries"]
        while True:
            try:
                return self._write(context, records, batch_id)
            except DatabaseError as error:
                if not error.retriable or not left:
                    tried = f" ({context['max.retries']} retries)" if error.retriable else ""
                    raise ConnectError(f"{error}{tried}") from None
                log.warning("Batch %s of %s is tried again: %s", batch_id, context.name, error)
                left -= 1
                self._pause(context, context["retry.backoff.ms"] / 1000)

    def _pause(self, context: Context, seconds: float) -> None:
        """Unless the query is stopped meanwhile."""
        query, end = query_id(context), time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if query and all(one.id != query or not one.isActive for one in context.spark.streams.active):
                raise ConnectError("stopped while it waited for the database")
            time.sleep(min(left, 0.5))

    def _write(self, context: Context, records: DataFrame, batch_id: int) -> None:
        query = query_id(context)
        noted = context.exactly_once and self._mode == "insert"
        if noted:
            if not self._has_batches:
                self._make_batches()
                self._has_batches = True
            with self._database.connect() as connection:
                if self._is_done(connection, query, batch_id):
                    log.info("Batch %s of %s was written before", batch_id, context.name)
                    return
        topics = self._topics(context, records)
        several = len(topics) > 1
        if several:
            records = records.persist()
        try:
            merges = [self._stage(context, records, topic, several, query) for topic in topics]
        finally:
            if several:
                records.unpersist()
        with self._database.connect() as connection:
            if noted:
                if self._is_done(connection, query, batch_id, lock=True):
                    return
                self._note(connection, query, batch_id, context.name)
            for merge, rows in merges:
                (staged,) = connection.values(f"SELECT COUNT(*) FROM {merge.stage}") or ["0"]
                if int(staged or 0) != rows:
                    # A task that Spark ran again, after its rows were committed and before it could say so.
                    raise DatabaseError(f"{rows} rows were to be written, and there are {staged}: they are again")
                self._merge(connection, merge)

    def _topics(self, context: Context, records: DataFrame) -> list[str]:
        named = [one.strip() for one in context.given.get("topics", "").split(",") if one.strip()]
        # A transformation may have changed the names.
        if len(named) == 1 and "transforms" not in context.given:
            return named
        return sorted(row.topic for row in records.select("topic").distinct().collect())

    # --- the stage

    def _stage(self, context: Context, records: DataFrame, topic: str, several: bool, query: str) -> tuple[Merge, int]:
        """Write the records of a topic to its stage; how many there were."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        if several:
            records = records.where(f.col("topic") == topic)
        name = context["table.name.format"].replace("${topic}", topic)
        fields = fields_of(records, context.config)
        merge = self._prepare(context, name, fields, query)
        columns = [one.column.alias(one.name) for one in fields]
        if ORDER in merge.extra:
            columns.append(_order().alias(ORDER))
        if DELETED in merge.extra:
            columns.append(f.col("value").isNull().cast("bigint").alias(DELETED))
        options = {**self._database.options, "dbtable": merge.stage, "batchsize": str(context["batch.size"])}
        if self._database.dialect.name == "postgresql":
            # Rows in statements of many, and text for columns of any type.
            options = {"reWriteBatchedInserts": "true", "stringtype": "unspecified", **options}
        seen = Observation()
        rows = records.select(*columns).observe(seen, f.count(f.lit(1)).alias("rows"))
        with told_in_one_line():
            rows.write.format("jdbc").options(**options).mode("append").save()
        return merge, seen.get["rows"]

    def _prepare(self, context: Context, name: str, fields: list[Field], query: str) -> Merge:
        """An empty stage for a table, which is there and has all columns then."""
        database = self._database
        table = database.dialect.table(name)
        found = self._stages.get(name)
        columns, keys = tuple(one.name for one in fields), tuple(one.name for one in fields if one.is_key)
        if found is None or found[1].columns != columns:
            self._see_to_table(context, name, fields)
        with database.connect() as connection:
            if found is not None and found[1].columns == columns:
                connection.execute(f"DELETE FROM {found[0]}" if not self._truncates else f"TRUNCATE TABLE {found[0]}")
                return found[1]
            self._stages.pop(name, None)
            stage = self._stage_name(connection, context, name, query, drop=found)
            merge = Merge(database.dialect, table, stage, columns, keys, self._mode, context["delete.enabled"])
            connection.execute(database.dialect.stage(stage, columns, table, merge.extra))
        # Not before it is committed.
        self._stages[name] = stage, merge
        return merge

    @property
    def _truncates(self) -> bool:
        return self._database.dialect.name == "postgresql"

    def _stage_name(
        self, connection: Connection, context: Context, name: str, query: str, drop: tuple[str, Merge] | None
    ) -> str:
        """One of this run's own, so that a run that should be over and is not cannot write to it. Those of earlier runs
        of the same connector, which were killed, are dropped."""
        schema, dot, _ = name.rpartition(".")
        dialect = self._database.dialect
        if drop is not None:
            connection.execute(f"DROP TABLE {drop[0]}")
        mine = f"{STAGES}{hashlib.sha256(f'{context.name} {query} {name}'.encode()).hexdigest()[:12]}_"
        for owner, old in connection.tables(["TABLE"], schema or None, f"{STAGES}%"):
            if old.lower().startswith(mine):
                connection.execute(f"DROP TABLE {dialect.table(f'{owner}.{old}' if owner else old)}")
        return dialect.table(f"{schema}{dot}{mine}{self._run}")

    def _see_to_table(self, context: Context, name: str, fields: list[Field]) -> None:
        dialect = self._database.dialect
        table = dialect.table(name)
        with self._database.connect() as connection:
            there = connection.columns(table)
        if there is None:
            if not context["auto.create"]:
                raise ConnectError(f"there is no table {name}, and auto.create is false")
            columns = [self._definition(one) for one in fields]
            keys = [dialect.quote(one.name) for one in fields if one.is_key]
            if keys:
                columns.append(f"PRIMARY KEY ({', '.join(keys)})")
            self._make(table, f"CREATE TABLE {table} ({', '.join(columns)})")
            return
        known = {column.lower() if not dialect.quoting else column for column in there}
        missing = [one for one in fields if (one.name.lower() if not dialect.quoting else one.name) not in known]
        if missing and not context["auto.evolve"]:
            names = ", ".join(one.name for one in missing)
            raise ConnectError(f"the table {name} has no columns {names}, and auto.evolve is false")
        if not missing:
            return
        with self._database.connect() as connection:
            for one in missing:
                connection.execute(f"ALTER TABLE {table} ADD COLUMN {self._definition(one)}")

    def _definition(self, field: Field) -> str:
        from pyspark.sql.types import StringType

        kind = self._database.column_type(_java(field.kind))
        if isinstance(field.kind, StringType) and self._database.dialect.name != "postgresql" and field.is_key:
            # Elsewhere unlimited text cannot be a key.
            kind = "VARCHAR(255)"
        return f"{self._database.dialect.quote(field.name)} {kind}{' NOT NULL' if field.is_key else ''}"

    # --- the transaction

    def _merge(self, connection: Connection, merge: Merge) -> None:
        optimistic = self._database.dialect.name == "postgresql" and merge.mode == "upsert" and not merge.deletes
        if optimistic:
            # That a key is twice in a batch is rare, and the sorting that finds it out takes as long as the rest.
            (statement,) = merge.statements(unique=True)
            if connection.attempt(statement, instead_of=_CARDINALITY):
                return
        for statement in merge.statements(unique=False):
            connection.execute(statement)

    def _make_batches(self) -> None:
        """Another connector may do so at the same moment."""
        quote = self._database.dialect.quote
        create = (
            f"CREATE TABLE {quote(BATCHES)} ({quote('query_id')} VARCHAR(64) PRIMARY KEY, "
            f"{quote('batch_id')} BIGINT NOT NULL, {quote('connector')} VARCHAR(255))"
        )
        self._make(quote(BATCHES), create)

    def _make(self, table: str, create: str) -> None:
        """A table, unless it is there."""
        with self._database.connect() as connection:
            if connection.columns(table) is not None:
                return
        try:
            with self._database.connect() as connection:
                connection.execute(create)
        except DatabaseError:
            with self._database.connect() as connection:
                if connection.columns(table) is None:
                    raise

    def _is_done(self, connection: Connection, query: str, batch: int, lock: bool = False) -> bool:
        dialect = self._database.dialect
        table = dialect.quote(BATCHES)
        where = f"WHERE {dialect.quote('query_id')} = '{query}'"
        end = " FOR UPDATE" if lock and dialect.name not in ("sqlite", "sqlserver") else ""
        found = connection.values(f"SELECT {dialect.quote('batch_id')} FROM {table} {where}{end}")
        return found is not None and int(found[0] or -1) >= batch

    def _note(self, connection: Connection, query: str, batch: int, name: str) -> None:
        dialect = self._database.dialect
        table, column = dialect.quote(BATCHES), dialect.quote("batch_id")
        where = f"WHERE {dialect.quote('query_id')} = '{query}'"
        if not connection.execute(f"UPDATE {table} SET {column} = {batch} {where}"):
            who = name.replace("'", "''")
            connection.execute(f"INSERT INTO {table} VALUES ('{query}', {batch}, '{who}')")


def _order() -> Column:
    """The record's place among all of its batch: those with one key are in one partition."""
    from pyspark.sql import functions as f

    return f.shiftleft(f.col("partition").cast("bigint"), 47) + f.col("offset")


def _java(kind: DataType) -> Any:
    from pyspark.sql import SparkSession

    session = SparkSession.active()
    return session._jsparkSession.parseDataType(kind.json())


# --- from records to columns


def fields_of(records: DataFrame, config: Mapping[str, Any]) -> list[Field]:
    """The columns of a table for these records, the key first."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    value = records.schema["value"].dataType
    if not isinstance(value, StructType):
        raise ConnectError(
            f"values must have fields to become columns, and these are {value.simpleString()}: "
            "value.converter should be one for JSON or Avro"
        )
    mode, names = config["pk.mode"].lower(), list(config["pk.fields"])
    keys = _keys(records, mode, names)
    taken = {one.name for one in keys}
    chosen = config["fields.whitelist"]
    fields = [
        _field(one.name, f.col("value").getField(one.name), one.dataType)
        for one in value.fields
        if one.name not in taken and (not chosen or one.name in chosen)
    ]
    if not keys and not fields:
        raise ConnectError("nothing is left to write: fields.whitelist has no field of the values")
    if not config["delete.enabled"]:
        fields = _not_null(fields, keys)
    return [*keys, *fields]


def _keys(records: DataFrame, mode: str, names: list[str]) -> list[Field]:
    from pyspark.sql import functions as f
    from pyspark.sql.types import IntegerType, LongType, StringType, StructType

    if mode == "none":
        return []
    if mode == "kafka":
        chosen = names or _KAFKA_COLUMNS
        kinds = (StringType(), IntegerType(), LongType())
        parts = zip(chosen, ("topic", "partition", "offset"), kinds, strict=True)
        return [Field(name, f.col(part), kind, True) for name, part, kind in parts]
    side = "key" if mode == "record_key" else "value"
    found = records.schema[side].dataType
    if not isinstance(found, StructType):
        if len(names) != 1:
            raise ConnectError(
                f"the keys of records are {found.simpleString()}: pk.fields must have one name, of the column for them"
            )
        return [_field(names[0], f.col(side), found, is_key=True)]
    missing = [name for name in names if name not in found.names]
    if missing:
        raise ConnectError(f"pk.fields has {', '.join(missing)}, and the {side} of records {', '.join(found.names)}")
    return [
        _field(one.name, f.col(side).getField(one.name), one.dataType, is_key=True)
        for one in found.fields
        if not names or one.name in names
    ]


def _field(name: str, column: Column, kind: DataType, is_key: bool = False) -> Field:
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType

    from kavka.pipeline.connect.connectors.columns import is_nested

    if is_nested(kind):
        return Field(name, f.to_json(column), StringType(), is_key)
    return Field(name, column, kind, is_key)


def _not_null(fields: list[Field], keys: list[Field]) -> list[Field]:
    """A record without a value is an error where it does not delete."""
    from pyspark.sql import functions as f

    def guarded(one: Field) -> Field:
        message = f.concat(
            f.lit("a record without a value, in partition "),
            f.col("partition").cast("string"),
            f.lit(" at offset "),
            f.col("offset").cast("string"),
            f.lit(": it would delete a row, and delete.enabled is false"),
        )
        error = f.raise_error(message).cast(one.kind)
        return Field(one.name, f.when(f.col("value").isNull(), error).otherwise(one.column), one.kind, one.is_key)

    if fields:
        return [guarded(fields[0]), *fields[1:]]
    return fields
