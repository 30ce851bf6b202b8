"""A database by JDBC, as the driver of Spark sees it: through the JVM that Spark runs in, with the driver's jar on its
class path (`spark.jars`). What moves many rows is Spark's own reader and writer; here is the rest, by statements.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError, Py4JJavaError

from kavka.common.config import HIGH, INT, LOW, PASSWORD, AtLeast, OneOf, Satisfies
from kavka.pipeline.connect.api import Context
from kavka.pipeline.connect.connectors.jdbc_sql import DRIVERS, Dialect, Moment, subprotocol
from kavka.pipeline.connect.errors import ConnectError
from kavka.pipeline.connect.options import Option

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DATABASE = "Database"

OPTIONS = (
    Option(
        "connection.url",
        doc="The database: `jdbc:postgresql://host:5432/name`.",
        importance=HIGH,
        group=_DATABASE,
        validator=Satisfies("like jdbc:postgresql://host:5432/name", lambda text: bool(subprotocol(text))),
    ),
    Option("connection.user", default="", doc="Who connects.", importance=HIGH, group=_DATABASE),
    Option("connection.password", PASSWORD, "", "The password of the user.", HIGH, group=_DATABASE),
    Option(
        "driver.class",
        default="",
        doc="The class of the JDBC driver, for a database that is not known by its address "
        f"({', '.join(DRIVERS)}). Its jar has to be among the worker's `spark.jars`.",
        importance=LOW,
        group=_DATABASE,
    ),
    Option(
        "quote.sql.identifiers",
        default="always",
        doc="Whether names of tables and columns are quoted, and so keep their case.",
        validator=OneOf(("always", "never"), ignore_case=True),
        recommended=("always", "never"),
        group=_DATABASE,
    ),
)
PREFIX = ("connection.property.", "Any property of the JDBC driver: `connection.property.ssl=true`.")

ATTEMPTS = (
    Option("connection.attempts", INT, 3, "How often it is tried to connect.", LOW, AtLeast(1), _DATABASE),
    Option("connection.backoff.ms", INT, 10_000, "How long to wait between two of them.", LOW, AtLeast(0), _DATABASE),
)

# Classes of SQLSTATE that say that the statement, or its data, is at fault: saying it again would not help.
_OUR_FAULT = ("0A", "21", "22", "23", "28", "2B", "2F", "3D", "3F", "42", "44")


class DatabaseError(ConnectError):
    """What the database, or the way to it, has said. `state` is the SQLSTATE; `retriable` whether it may pass."""

    def __init__(self, message: str, state: str = "") -> None:
        super().__init__(message)
        self.state = state

    @property
    def retriable(self) -> bool:
        return not self.state.startswith(_OUR_FAULT)


@contextmanager
def told_in_one_line() -> Iterator[None]:
    """What the JVM says about a database becomes a DatabaseError."""
    try:
        yield
    except Py4JJavaError as error:
        raise _from_java(error.java_exception) from None
    except Py4JError as error:
        raise DatabaseError(f"the JVM does not answer: {error}") from None
    except ConnectError:
        raise
    except Exception as error:
        # PySpark's own form of what happened in a job.
        cause = getattr(error, "_origin", None)
        if cause is None:
            raise
        raise _from_java(cause) from None


def _from_java(error: Any) -> ConnectError:
    """Of all that lies behind an exception, what the database's driver has said."""
    seen: list[Any] = []
    last = error
    while error is not None and len(seen) < 20:
        seen.append(error)
        last = error
        error = error.getCause()
    names = [str(one.getClass().getName()) for one in seen]
    for one in reversed(seen):
        if hasattr(one, "getSQLState") and _is_sql(one):
            following = one.getNextException()
            chosen = following if following is not None else one
            return DatabaseError(_line(chosen), chosen.getSQLState() or "")
    if any("ClassNotFound" in name for name in names):
        return ConnectError(f"the JDBC driver is not there: {_line(last)}; its jar must be among spark.jars")
    # What a task said on another machine has come as text.
    from_database = any(sign in str(last.toString()) for sign in ("SQLException", "java.sql."))
    return DatabaseError(_line(last)) if from_database else ConnectError(_line(last))


def _is_sql(error: Any) -> bool:
    kind = error.getClass()
    while kind is not None:
        if kind.getName() == "java.sql.SQLException":
            return True
        kind = kind.getSuperclass()
    return False


def _line(error: Any) -> str:
    text = str(error.getMessage() or error.toString())
    return " ".join(text.split("\n\tat ")[0].split())


class Database:
    def __init__(self, spark: SparkSession, config: Mapping[str, Any], properties: Mapping[str, str]) -> None:
        self._spark = spark
        self.url: str = config["connection.url"]
        name = subprotocol(self.url)
        self.dialect = Dialect(name, config["quote.sql.identifiers"].lower() == "always")
        driver = config["driver.class"] or DRIVERS.get(name)
        if not driver:
            raise ConnectError(f"which driver is for {self.url.split('?')[0]} is not known: give driver.class")
        # Spark does not tell upper case from lower case: no property takes the place of the address that was checked.
        more = {option: value for option, value in properties.items() if option.lower() not in ("url", "driver")}
        self.options: dict[str, str] = {"url": self.url, "driver": driver, **more}
        """For Spark's reader and writer."""
        for option, given in (("user", config["connection.user"]), ("password", config["connection.password"])):
            if given:
                self.options[option] = given

    @classmethod
    def of(cls, context: Context) -> Database:
        return cls(context.spark, context.config, context.with_prefix(PREFIX[0]))

    @contextmanager
    def connect(self, *, autocommit: bool = False) -> Iterator[Connection]:
        """A connection whose work is committed at the end, or rolled back where something went wrong."""
        with told_in_one_line():
            jvm: Any = self._spark._jvm
            settings = jvm.PythonUtils.toScalaMap({**self.options, "dbtable": "nothing"})
            options = jvm.org.apache.spark.sql.execution.datasources.jdbc.JDBCOptions(settings)
            factory = jvm.org.apache.spark.sql.jdbc.JdbcDialects.get(self.url).createConnectionFactory(options)
            java = factory.apply(-1)
            done = False
            try:
                java.setAutoCommit(autocommit)
                yield Connection(java, jvm, self)
                if not autocommit:
                    java.commit()
                done = True
            finally:
                _close(java, roll_back=not done and not autocommit)

    def column_type(self, kind: Any) -> str:
        """The database's name for a type of Spark's, as the JVM has it."""
        jvm: Any = self._spark._jvm
        utils = jvm.org.apache.spark.sql.execution.datasources.jdbc.JdbcUtils
        found = utils.getJdbcType(kind, jvm.org.apache.spark.sql.jdbc.JdbcDialects.get(self.url))
        return str(found.databaseTypeDefinition())


def _close(java: Any, roll_back: bool) -> None:
    """What is said at a connection that is broken anyway does not count."""
    with suppress(Py4JError):
        if roll_back:
            java.rollback()
    with suppress(Py4JError):
        java.close()


class Connection:
    """One connection. Its methods are called within `Database.connect`, which makes one line of what goes wrong."""

    def __init__(self, java: Any, jvm: Any, database: Database) -> None:
        self._java = java
        self._jvm = jvm
        self._database = database

    def execute(self, sql: str) -> int:
        """How many rows it was about."""
        with self._statement() as statement:
            return int(statement.executeUpdate(sql))

    def attempt(self, sql: str, instead_of: str) -> bool:
        """Whether it could be done. False: the database has answered with that SQLSTATE, and nothing has changed."""
        save = self._java.setSavepoint()
        try:
            self.execute(sql)
        except Py4JJavaError as error:
            found = _from_java(error.java_exception)
            if not isinstance(found, DatabaseError) or found.state != instead_of:
                raise
            self._java.rollback(save)
            return False
        return True

    def values(self, sql: str) -> list[str | None] | None:
        """The first row, as text; None if there is none."""
        with self._statement() as statement:
            rows = statement.executeQuery(sql)
            if not rows.next():
                return None
            count = rows.getMetaData().getColumnCount()
            return [rows.getString(index + 1) for index in range(count)]

    def position(self, sql: str, has_time: bool) -> tuple[Moment | None, int | None] | None:
        """The first row of a query for a time, if there is one among the columns, and a number."""
        utc = self._jvm.java.util.Calendar.getInstance(self._jvm.java.util.TimeZone.getTimeZone("UTC"))
        with self._statement() as statement:
            rows = statement.executeQuery(sql)
            if not rows.next():
                return None
            moment = None
            if has_time:
                found = rows.getTimestamp(1, utc)
                moment = Moment(int(found.getTime()), int(found.getNanos()))
            column = 2 if has_time else 1
            number = None
            if rows.getMetaData().getColumnCount() >= column:
                number = int(rows.getBigDecimal(column))
            return moment, number

    def type_of(self, expression: str, source: str) -> str:
        """What the database calls the type of an expression."""
        with self._statement() as statement:
            rows = statement.executeQuery(f"SELECT {expression} FROM {source} WHERE 1 = 0")
            return str(rows.getMetaData().getColumnTypeName(1)).lower()

    def tables(self, kinds: Sequence[str], schema: str | None = None, like: str = "%") -> list[tuple[str, str]]:
        """(schema, name); the schema is empty where there is none."""
        gateway: Any = self._database._spark.sparkContext._gateway
        wanted = gateway.new_array(self._jvm.java.lang.String, len(kinds))
        for index, kind in enumerate(kinds):
            wanted[index] = kind
        rows = self._java.getMetaData().getTables(self._java.getCatalog(), schema, like, wanted)
        found = []
        while rows.next():
            found.append((rows.getString("TABLE_SCHEM") or "", rows.getString("TABLE_NAME")))
        rows.close()
        return sorted(found)

    def columns(self, table: str) -> list[str] | None:
        """Names of the columns of a table, quoted and with its schema if it has one; None if there is no such table."""
        with self._statement() as statement:
            try:
                rows = statement.executeQuery(f"SELECT * FROM {table} WHERE 1 = 0")
            except Py4JJavaError as error:
                found = _from_java(error.java_exception)
                # No such table, no such schema, in PostgreSQL's words and in the standard's.
                if isinstance(found, DatabaseError) and found.state in ("42P01", "3F000", "42X05", "42Y07", "42S02"):
                    self._java.rollback()
                    return None
                raise
            about = rows.getMetaData()
            return [str(about.getColumnName(index + 1)) for index in range(about.getColumnCount())]

    @contextmanager
    def _statement(self) -> Iterator[Any]:
        statement = self._java.createStatement()
        try:
            yield statement
        finally:
            with suppress(Py4JError):
                statement.close()
