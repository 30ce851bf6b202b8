"""Writes records to tables of a database.

The Spark tasks first write a batch to a stage, a separate table. One transaction then moves the
rows to the target table, which therefore never contains an incomplete batch. This is also faster
than Spark's own appends: the stage has no index, in PostgreSQL it is not logged, and each task
inserts rows over its own connection in large statements.

Exactly-once delivery: a batch that is written again after a crash has the same records. With
`upsert` and `update` this has no effect. With `insert` the transaction also stores the number of
the batch in the table `kavka_batches`, and a batch that is recorded there is not written again.
"""

from __future__ import annotations

import hashlib
import logging
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kavka.common.config import BOOLEAN, HIGH, INT, LIST, LOW, AtLeast, OneOf
from kavka.pipeline.connect.api import Context, Sink, query_id
from kavka.pipeline.connect.connectors.jdbc_database import (
    OPTIONS,
    PREFIX,
    Connection,
    Database,
    DatabaseError,
    database_errors,
)
from kavka.pipeline.connect.connectors.jdbc_sql import DELETED, ORDER, Merge, is_embedded, subprotocol
from kavka.pipeline.connect.errors import ConnectError
from kavka.pipeline.connect.loading import items_of
from kavka.pipeline.connect.options import Option

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

logger = logging.getLogger(__name__)

BATCHES = "kavka_batches"
STAGES = "kavka_stage_"
_KAFKA_COLUMNS = ("__connect_topic", "__connect_partition", "__connect_offset")
_WRITES, _TABLES, _RETRIES = "Writes", "Tables", "Retries"
_MODES, _KEYS = ("insert", "upsert", "update"), ("none", "kafka", "record_key", "record_value")
# SQLSTATE: a batch contains a key twice, which ON CONFLICT rejects.
_CARDINALITY_VIOLATION = "21000"
_NO_VALUE = "it has no value and would delete a row, but delete.enabled is false"


@dataclass(frozen=True)
class Field:
    """A column of a table, and the expression for its values."""

    name: str
    column: Column
    kind: DataType
    is_key: bool = False


class JdbcSink(Sink):
    """Writes records to tables of a database with JDBC.

    Values are structs (JSON, Avro) whose fields become columns; nested fields become JSON. A batch
    is first written to a separate table (`kavka_stage_…`, dropped at the end) and moved from there
    in one transaction, so the user must be allowed to create tables. `upsert` and `update` require
    PostgreSQL, SQLite, or a database with MERGE (Derby, H2, Oracle, SQL Server, DB2); PostgreSQL
    and Derby are tested.
    """

    exactly_once = True
    prefixes = (PREFIX,)
    options = (
        *OPTIONS,
        Option(
            "insert.mode",
            default="insert",
            doc="`insert`; `upsert`: insert, or update the row with the same key; `update`: only update.",
            importance=HIGH,
            validator=OneOf(_MODES, ignore_case=True),
            recommended=_MODES,
            group=_WRITES,
        ),
        Option("batch.size", INT, 3000, "The number of rows per database request.", LOW, AtLeast(1), _WRITES),
        Option(
            "delete.enabled",
            BOOLEAN,
            False,
            "Whether a record without a value deletes the row with its key. Requires pk.mode=record_key.",
            group=_WRITES,
        ),
        Option(
            "table.name.format",
            default="${topic}",
            doc="The table of a topic; `${topic}` is the topic's name. A schema may come before a dot.",
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
            "The columns of the primary key. With record_key and record_value: fields of the key or value (empty: "
            "all), or a single name for a key that is not a struct. With kafka: three names (default: "
            f"{', '.join(_KAFKA_COLUMNS)}).",
            group=_TABLES,
        ),
        Option("fields.whitelist", LIST, (), "Fields of the value to write; empty: all.", group=_TABLES),
        Option("auto.create", BOOLEAN, False, "Whether to create missing tables.", group=_TABLES),
        Option("auto.evolve", BOOLEAN, False, "Whether to add missing columns.", group=_TABLES),
        Option(
            "max.retries",
            INT,
            10,
            "The maximum number of retries of a batch while the database is unavailable. Other errors are not retried.",
            validator=AtLeast(0),
            group=_RETRIES,
        ),
        Option("retry.backoff.ms", INT, 3000, "The delay before a retry.", LOW, AtLeast(0), _RETRIES),
    )

    @classmethod
    def opens_files(cls, originals: Mapping[str, str]) -> bool:
        return is_embedded(originals.get("connection.url", ""))

    @classmethod
    def check(cls, config: Mapping[str, Any], originals: Mapping[str, str]) -> dict[str, str]:
        errors: dict[str, str] = {}
        mode, keys = (config["insert.mode"] or "").lower(), (config["pk.mode"] or "").lower()
        if mode in ("upsert", "update") and keys == "none":
            errors["pk.mode"] = f"insert.mode={mode} requires a primary key: pk.mode=record_key, record_value or kafka"
        database = subprotocol(config["connection.url"] or "")
        if mode in ("upsert", "update") and database in ("mysql", "mariadb"):
            errors["insert.mode"] = f"{mode} is not supported for {database}"
        if config["delete.enabled"] and keys != "record_key":
            errors["delete.enabled"] = "deletes require the key of the record: pk.mode must be record_key"
        if keys == "kafka" and config["pk.fields"] and len(config["pk.fields"]) != 3:
            errors["pk.fields"] = "pk.mode=kafka requires three names: the columns for topic, partition and offset"
        return errors

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
                logger.warning("Cannot drop the stages of this run: %s", error)

    def write(self, context: Context, records: DataFrame, batch_id: int) -> None:
        retries_left = context["max.retries"]
        while True:
            try:
                return self._write(context, records, batch_id)
            except DatabaseError as error:
                if not error.is_retriable or not retries_left:
                    suffix = f" ({context['max.retries']} retries)" if error.is_retriable else ""
                    raise ConnectError(f"{error}{suffix}").of_task(error.task) from None
                logger.warning("Retrying batch %s of %s: %s", batch_id, context.name, error)
                retries_left -= 1
                self._pause(context, context["retry.backoff.ms"] / 1000)

    def _pause(self, context: Context, seconds: float) -> None:
        """Waits. Raises ConnectError if the query is stopped meanwhile."""
        query, end = query_id(context), time.monotonic() + seconds
        while (remaining := end - time.monotonic()) > 0:
            if query and all(stream.id != query or not stream.isActive for stream in context.spark.streams.active):
                raise ConnectError("stopped while waiting for the database")
            time.sleep(min(remaining, 0.5))

    def _write(self, context: Context, records: DataFrame, batch_id: int) -> None:
        query = query_id(context)
        is_recorded = context.exactly_once and self._mode == "insert"
        if is_recorded:
            if not self._has_batches:
                self._create_batches_table()
                self._has_batches = True
            with self._database.connect() as connection:
                if self._is_done(connection, query, batch_id):
                    logger.info("Batch %s of %s was already written", batch_id, context.name)
                    return
        topics = self._topics(context, records)
        has_several_topics = len(topics) > 1
        if has_several_topics:
            records = records.persist()
        try:
            staged = [self._stage(context, records, topic, has_several_topics, query) for topic in topics]
        finally:
            if has_several_topics:
                records.unpersist()
        with self._database.connect() as connection:
            if is_recorded:
                if self._is_done(connection, query, batch_id, lock=True):
                    return
                self._record_batch(connection, query, batch_id, context.name)
            for merge, rows in filter(None, staged):
                (count,) = connection.values(f"SELECT COUNT(*) FROM {merge.stage}") or ["0"]
                if int(count or 0) != rows:
                    # Spark ran a task again that had committed its rows without reporting that.
                    raise DatabaseError(f"expected {rows} rows, but the stage has {count}: writing the batch again")
                self._merge(connection, merge)

    def _topics(self, context: Context, records: DataFrame) -> list[str]:
        configured = items_of(context.given.get("topics", ""))
        # A transformation may have changed the topics of records.
        if len(configured) == 1 and "transforms" not in context.given:
            return configured
        return sorted(row.topic for row in records.select("topic").distinct().collect())

    # --- the stage

    def _stage(
        self, context: Context, records: DataFrame, topic: str, has_several_topics: bool, query: str
    ) -> tuple[Merge, int] | None:
        """Writes the records of a topic to its stage. Returns (the merge of the stage into the
        table, the number of records); None if there is nothing to merge."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as f
        from pyspark.sql.types import StructType

        if has_several_topics:
            records = records.where(f.col("topic") == topic)
        name = context["table.name.format"].replace("${topic}", topic)
        if not isinstance(records.schema["value"].dataType, StructType) and self._is_without_effect(
            context, records, name
        ):
            return None
        fields = fields_of(records, context.config)
        merge = self._prepare(context, name, fields, query)
        columns = [field.column.alias(field.name) for field in fields]
        if ORDER in merge.extra:
            columns.append(_order().alias(ORDER))
        if DELETED in merge.extra:
            columns.append(f.col("value").isNull().cast("bigint").alias(DELETED))
        options = {**self._database.options, "dbtable": merge.stage, "batchsize": str(context["batch.size"])}
        if self._database.dialect.name == "postgresql":
            # Insert several rows per statement, and send text for columns of any type.
            options = {"reWriteBatchedInserts": "true", "stringtype": "unspecified", **options}
        observation = Observation()
        rows = records.select(*columns).observe(observation, f.count(f.lit(1)).alias("rows"))

        def append(rows: DataFrame) -> None:
            with database_errors():
                rows.write.format("jdbc").options(**options).mode("append").save()

        try:
            append(rows)
        except DatabaseError as error:
            if not error.is_of_a_value:
                raise
            place = _place_of_rejected(records, lambda part: append(part.select(*columns)))
            raise error if place is None else DatabaseError(f"{place}: {error}", error.state) from None
        return merge, observation.get["rows"]

    def _is_without_effect(self, context: Context, records: DataFrame, name: str) -> bool:
        """Whether records whose values have no fields change nothing: there are none, or only
        deletes from a table that does not exist."""
        if records.isEmpty():
            return True
        if not context["delete.enabled"] or not context["auto.create"] or not _has_only_tombstones(records):
            return False
        with self._database.connect() as connection:
            return connection.columns(self._database.dialect.table(name)) is None

    def _prepare(self, context: Context, name: str, fields: list[Field], query: str) -> Merge:
        """Prepares an empty stage for a table. Creates the table and its missing columns if that is
        enabled."""
        database = self._database
        table = database.dialect.table(name)
        existing = self._stages.get(name)
        columns, keys = tuple(field.name for field in fields), tuple(field.name for field in fields if field.is_key)
        if existing is None or existing[1].columns != columns:
            self._ensure_table(context, name, fields)
        with database.connect() as connection:
            if existing is not None and existing[1].columns == columns:
                command = "TRUNCATE TABLE" if database.dialect.name == "postgresql" else "DELETE FROM"
                connection.execute(f"{command} {existing[0]}")
                return existing[1]
            self._stages.pop(name, None)
            if existing is not None:
                connection.execute(f"DROP TABLE {existing[0]}")
            stage = self._stage_name(connection, context, name, query)
            merge = Merge(database.dialect, table, stage, columns, keys, self._mode, context["delete.enabled"])
            connection.execute(database.dialect.stage(stage, columns, table, merge.extra))
        # Only after the commit: the stage exists.
        self._stages[name] = stage, merge
        return merge

    def _stage_name(self, connection: Connection, context: Context, name: str, query: str) -> str:
        """Returns the name of a stage. It is unique to this run, so that an earlier run that has
        not ended cannot write to the stage. Drops the stages of earlier runs of the same connector,
        which were killed."""
        schema, dot, _ = name.rpartition(".")
        dialect = self._database.dialect
        prefix = f"{STAGES}{hashlib.sha256(f'{context.name} {query} {name}'.encode()).hexdigest()[:12]}_"
        for owner, stage in connection.tables(["TABLE"], schema or None, f"{STAGES}%"):
            if stage.lower().startswith(prefix):
                connection.execute(f"DROP TABLE {dialect.table(f'{owner}.{stage}' if owner else stage)}")
        return dialect.table(f"{schema}{dot}{prefix}{self._run}")

    def _ensure_table(self, context: Context, name: str, fields: list[Field]) -> None:
        dialect = self._database.dialect
        table = dialect.table(name)
        with self._database.connect() as connection:
            existing = connection.columns(table)
        if existing is None:
            if not context["auto.create"]:
                raise ConnectError(f"the table {name} does not exist, and auto.create is false")
            columns = [self._definition(field) for field in fields]
            keys = [dialect.quote(field.name) for field in fields if field.is_key]
            if keys:
                columns.append(f"PRIMARY KEY ({', '.join(keys)})")
            self._create_table(table, f"CREATE TABLE {table} ({', '.join(columns)})")
            return
        # Names that are not quoted ignore case.
        fold = str if dialect.quoting else str.lower
        existing_names = {fold(column) for column in existing}
        missing = [field for field in fields if fold(field.name) not in existing_names]
        if missing and not context["auto.evolve"]:
            names = ", ".join(field.name for field in missing)
            raise ConnectError(f"the table {name} has no columns {names}, and auto.evolve is false")
        if not missing:
            return
        with self._database.connect() as connection:
            for field in missing:
                connection.execute(f"ALTER TABLE {table} ADD COLUMN {self._definition(field)}")

    def _definition(self, field: Field) -> str:
        from pyspark.sql.types import StringType

        kind = self._database.column_type(_java_type(field.kind))
        if isinstance(field.kind, StringType) and self._database.dialect.name != "postgresql" and field.is_key:
            # In other databases text of unlimited length cannot be a key.
            kind = "VARCHAR(255)"
        return f"{self._database.dialect.quote(field.name)} {kind}{' NOT NULL' if field.is_key else ''}"

    # --- the transaction

    def _merge(self, connection: Connection, merge: Merge) -> None:
        if self._database.dialect.name == "postgresql" and merge.mode == "upsert" and not merge.deletes:
            # Duplicate keys in a batch are rare, and detecting them by sorting doubles the time.
            (statement,) = merge.statements(has_unique_keys=True)
            if connection.attempt(statement, expected_state=_CARDINALITY_VIOLATION):
                return
        for statement in merge.statements(has_unique_keys=False):
            connection.execute(statement)

    def _create_batches_table(self) -> None:
        quote = self._database.dialect.quote
        create = (
            f"CREATE TABLE {quote(BATCHES)} ({quote('query_id')} VARCHAR(64) PRIMARY KEY, "
            f"{quote('batch_id')} BIGINT NOT NULL, {quote('connector')} VARCHAR(255))"
        )
        self._create_table(quote(BATCHES), create)

    def _create_table(self, table: str, create: str) -> None:
        """Creates a table unless it exists. Another connector may create it concurrently."""
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
        values = connection.values(f"SELECT {dialect.quote('batch_id')} FROM {table} {where}{end}")
        return values is not None and int(values[0] or -1) >= batch

    def _record_batch(self, connection: Connection, query: str, batch: int, name: str) -> None:
        dialect = self._database.dialect
        table, column = dialect.quote(BATCHES), dialect.quote("batch_id")
        where = f"WHERE {dialect.quote('query_id')} = '{query}'"
        if not connection.execute(f"UPDATE {table} SET {column} = {batch} {where}"):
            connector = name.replace("'", "''")
            connection.execute(f"INSERT INTO {table} VALUES ('{query}', {batch}, '{connector}')")


def _order() -> Column:
    """Returns a number that orders the records of a key, which are in the same partition."""
    from pyspark.sql import functions as f

    return f.shiftleft(f.col("partition").cast("bigint"), 47) + f.col("offset")


def _java_type(kind: DataType) -> Any:
    from pyspark.sql import SparkSession

    return SparkSession.active()._jsparkSession.parseDataType(kind.json())


# --- from records to columns


def fields_of(records: DataFrame, config: Mapping[str, Any]) -> list[Field]:
    """Returns the columns of a table for these records, the key first. Raises ConnectError if the
    types of the records do not match the configuration."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    value = records.schema["value"].dataType
    if not isinstance(value, StructType) and _has_only_tombstones(records):
        if not config["delete.enabled"]:
            first = records.select("topic", "partition", "offset").first()
            assert first is not None
            raise ConnectError(f"the record at offset {first.offset} of {first.topic}-{first.partition}: {_NO_VALUE}")
        value = StructType([])
    if not isinstance(value, StructType):
        raise ConnectError(
            f"values must have fields to become columns, but these are {value.simpleString()}: "
            "use a value.converter for JSON or Avro"
        )
    mode, names = config["pk.mode"].lower(), list(config["pk.fields"])
    keys = _keys(records, mode, names)
    key_names = {field.name for field in keys}
    whitelist = config["fields.whitelist"]
    fields = [
        _field(field.name, f.col("value").getField(field.name), field.dataType)
        for field in value.fields
        if field.name not in key_names and (not whitelist or field.name in whitelist)
    ]
    if not keys and not fields:
        raise ConnectError("there are no columns to write: fields.whitelist has no field of the values")
    keys = [_failing(key, key.column.isNull(), f"it has no value for the key column {key.name}") for key in keys]
    if fields and not config["delete.enabled"]:
        fields[0] = _failing(fields[0], f.col("value").isNull(), _NO_VALUE)
    return [*keys, *fields]


def _keys(records: DataFrame, mode: str, names: list[str]) -> list[Field]:
    from pyspark.sql import functions as f
    from pyspark.sql.types import IntegerType, LongType, StringType, StructType

    if mode == "none":
        return []
    if mode == "kafka":
        kinds = (StringType(), IntegerType(), LongType())
        columns = zip(names or _KAFKA_COLUMNS, ("topic", "partition", "offset"), kinds, strict=True)
        return [Field(name, f.col(column), kind, is_key=True) for name, column, kind in columns]
    side = "key" if mode == "record_key" else "value"
    kind = records.schema[side].dataType
    if not isinstance(kind, StructType):
        if len(names) != 1:
            raise ConnectError(
                f"the keys of records are {kind.simpleString()}: pk.fields must have one name, the column for them"
            )
        return [_field(names[0], f.col(side), kind, is_key=True)]
    missing = [name for name in names if name not in kind.names]
    if missing:
        raise ConnectError(f"pk.fields has {', '.join(missing)}, but the {side} of records has {', '.join(kind.names)}")
    return [
        _field(field.name, f.col(side).getField(field.name), field.dataType, is_key=True)
        for field in kind.fields
        if not names or field.name in names
    ]


def _field(name: str, column: Column, kind: DataType, is_key: bool = False) -> Field:
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType

    from kavka.pipeline.connect.connectors.columns import is_nested

    if is_nested(kind):
        return Field(name, f.to_json(column), StringType(), is_key)
    return Field(name, column, kind, is_key)


def _place_of_rejected(records: DataFrame, append: Callable[[DataFrame], None]) -> str | None:
    """Returns the place of a record with a value that the database rejects, which the error does
    not name. Halves of the records are written to the stage, which is emptied before its next
    use."""
    from pyspark.sql import functions as f

    def is_rejected(part: DataFrame) -> bool:
        try:
            append(part)
        except DatabaseError as error:
            if not error.is_of_a_value:
                raise
            return True
        return False

    records = records.persist()
    try:
        offsets = records.groupBy("topic", "partition").agg(
            f.min("offset").alias("first"), f.max("offset").alias("last")
        )
        for topic, partition, first, last in offsets.orderBy("topic", "partition").collect():
            part = records.where((f.col("topic") == topic) & (f.col("partition") == partition))
            if not is_rejected(part):
                continue
            while first < last:
                middle = (first + last) // 2
                if is_rejected(part.where(f.col("offset").between(first, middle))):
                    last = middle
                else:
                    first = middle + 1
            return f"the record at offset {first} of {topic}-{partition}"
    finally:
        records.unpersist()
    return None


def _has_only_tombstones(records: DataFrame) -> bool:
    return records.where("value IS NOT NULL").isEmpty()


def _failing(field: Field, condition: Column, reason: str) -> Field:
    """Returns the field, which fails with the place of a record that meets the condition."""
    from pyspark.sql import functions as f

    topic, partition, offset = (f.col(name).cast("string") for name in ("topic", "partition", "offset"))
    place = f.concat(f.lit("the record at offset "), offset, f.lit(" of "), topic, f.lit("-"), partition)
    message = f.concat(place, f.lit(f": {reason}"))
    return replace(field, column=f.when(condition, f.raise_error(message).cast(field.kind)).otherwise(field.column))
