"""JDBC connections from the Spark driver. They use Spark's JVM, with the JDBC driver's jar on its
class path (`spark.jars`). Spark's reader and writer move the rows; this module runs all other
statements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError, Py4JJavaError

from kavka.common.config import HIGH, INT, LOW, PASSWORD, AtLeast, OneOf, Satisfies
from kavka.pipeline.connect.api import Context
from kavka.pipeline.connect.connectors.jdbc_sql import DRIVERS, Dialect, Moment, subprotocol
from kavka.pipeline.connect.errors import ConnectError, task_in
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
    Option("connection.user", default="", doc="The user.", importance=HIGH, group=_DATABASE),
    Option("connection.password", PASSWORD, "", "The password of the user.", HIGH, group=_DATABASE),
    Option(
        "driver.class",
        default="",
        doc="The class of the JDBC driver. URLs of "
        f"{', '.join(DRIVERS)} do not need it. The worker's `spark.jars` must contain the driver's jar.",
        importance=LOW,
        group=_DATABASE,
    ),
    Option(
        "quote.sql.identifiers",
        default="always",
        doc="Whether the names of tables and columns are quoted, which preserves their case.",
        validator=OneOf(("always", "never"), ignore_case=True),
        recommended=("always", "never"),
        group=_DATABASE,
    ),
)
PREFIX = ("connection.property.", "Any property of the JDBC driver: `connection.property.ssl=true`.")

ATTEMPTS = (
    Option("connection.attempts", INT, 3, "The maximum number of connection attempts.", LOW, AtLeast(1), _DATABASE),
    Option("connection.backoff.ms", INT, 10_000, "The delay between two attempts.", LOW, AtLeast(0), _DATABASE),
)

# Classes of SQLSTATE for errors in the statement or its data, which are not retried.
_PERMANENT_CLASSES = ("0A", "21", "22", "23", "28", "2B", "2F", "3D", "3F", "42", "44")
# SQLSTATEs for a missing table or schema, of the standard, PostgreSQL and Derby.
_NO_TABLE = ("42P01", "3F000", "42X05", "42Y07", "42S02")


class DatabaseError(ConnectError):
    """An error of the database or of its connection. `state` is the SQLSTATE."""

    def __init__(self, message: str, state: str = "") -> None:
        super().__init__(message)
        self.state = state

    @property
    def is_of_a_value(self) -> bool:
        """Whether a value does not fit its column."""
        return self.state.startswith("22")

    @property
    def is_retriable(self) -> bool:
        """Whether the error may be transient."""
        return not self.state.startswith(_PERMANENT_CLASSES)


@contextmanager
def database_errors() -> Iterator[None]:
    """Converts exceptions of the JVM: to DatabaseError if the database raised them, otherwise to
    ConnectError."""
    try:
        yield
    except Py4JJavaError as error:
        raise _from_java(error.java_exception) from None
    except Py4JError as error:
        raise DatabaseError(f"the JVM does not respond: {error}") from None
    except ConnectError:
        raise
    except Exception as error:
        # PySpark's exception for a failed job.
        cause = getattr(error, "_origin", None)
        if cause is None:
            raise
        raise _from_java(cause) from None


def _from_java(error: Any) -> ConnectError:
    """Returns the error for a Java exception: a DatabaseError for the cause that the JDBC driver
    raised, otherwise a ConnectError."""
    chain: list[Any] = []
    while error is not None and len(chain) < 20:
        chain.append(error)
        error = error.getCause()
    last = chain[-1]
    task = next(filter(lambda number: number is not None, (task_in(str(link.getMessage())) for link in chain)), None)
    names = [str(exception.getClass().getName()) for exception in chain]
    for exception in reversed(chain):
        if hasattr(exception, "getSQLState") and _is_sql(exception):
            next_exception = exception.getNextException()
            cause = exception if next_exception is None else next_exception
            return DatabaseError(_line(cause), cause.getSQLState() or "").of_task(task)
    if any("ClassNotFound" in name for name in names):
        return ConnectError(f"the JDBC driver was not found: {_line(last)}; spark.jars must contain its jar")
    # The exception of a task on another machine arrives as text.
    from_database = any(sign in str(last.toString()) for sign in ("SQLException", "java.sql."))
    return (DatabaseError(_line(last)) if from_database else ConnectError(_line(last))).of_task(task)


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
    """The JDBC settings of a connector. `connect` opens a connection."""

    def __init__(self, spark: SparkSession, config: Mapping[str, Any], properties: Mapping[str, str]) -> None:
        self._spark = spark
        self.url: str = config["connection.url"]
        name = subprotocol(self.url)
        self.dialect = Dialect(name, config["quote.sql.identifiers"].lower() == "always")
        driver = config["driver.class"] or DRIVERS.get(name)
        if not driver:
            raise ConnectError(f"no driver is known for {self.url.split('?')[0]}: set driver.class")
        # Spark options ignore case: no property may replace the URL that was validated.
        extra = {option: value for option, value in properties.items() if option.lower() not in ("url", "driver")}
        self.options: dict[str, str] = {"url": self.url, "driver": driver, **extra}
        """The options of Spark's reader and writer."""
        for option, value in (("user", config["connection.user"]), ("password", config["connection.password"])):
            if value:
                self.options[option] = value

    @classmethod
    def of(cls, context: Context) -> Database:
        return cls(context.spark, context.config, context.with_prefix(PREFIX[0]))

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        """Opens a connection. Its transaction is committed at the end, or rolled back after an
        error. Raises DatabaseError and ConnectError."""
        with database_errors():
            jvm: Any = self._spark._jvm
            settings = jvm.PythonUtils.toScalaMap({**self.options, "dbtable": "nothing"})
            options = jvm.org.apache.spark.sql.execution.datasources.jdbc.JDBCOptions(settings)
            factory = jvm.org.apache.spark.sql.jdbc.JdbcDialects.get(self.url).createConnectionFactory(options)
            java = factory.apply(-1)
            is_committed = False
            try:
                java.setAutoCommit(False)
                yield Connection(java, jvm, self)
                java.commit()
                is_committed = True
            finally:
                _close(java, roll_back=not is_committed)

    def column_type(self, kind: Any) -> str:
        """Returns the database's name for a Spark type, which is an object in the JVM."""
        jvm: Any = self._spark._jvm
        utils = jvm.org.apache.spark.sql.execution.datasources.jdbc.JdbcUtils
        jdbc_type = utils.getJdbcType(kind, jvm.org.apache.spark.sql.jdbc.JdbcDialects.get(self.url))
        return str(jdbc_type.databaseTypeDefinition())


def _close(java: Any, roll_back: bool) -> None:
    """Closes a connection. Ignores errors: the connection may be broken."""
    with suppress(Py4JError):
        if roll_back:
            java.rollback()
    with suppress(Py4JError):
        java.close()


class Connection:
    """One connection. Its methods are called within `Database.connect`, which converts
    exceptions."""

    def __init__(self, java: Any, jvm: Any, database: Database) -> None:
        self._java = java
        self._jvm = jvm
        self._database = database

    def execute(self, sql: str) -> int:
        """Runs a statement. Returns the number of affected rows."""
        with self._statement() as statement:
            return int(statement.executeUpdate(sql))

    def attempt(self, sql: str, expected_state: str) -> bool:
        """Runs a statement. Returns False if it failed with the expected SQLSTATE. The transaction
        is then as before the statement."""
        savepoint = self._java.setSavepoint()
        try:
            self.execute(sql)
        except Py4JJavaError as error:
            failure = _from_java(error.java_exception)
            if not isinstance(failure, DatabaseError) or failure.state != expected_state:
                raise
            self._java.rollback(savepoint)
            return False
        return True

    def values(self, sql: str) -> list[str | None] | None:
        """Returns the first row of a query, as text; None if there are no rows."""
        with self._statement() as statement:
            rows = statement.executeQuery(sql)
            if not rows.next():
                return None
            count = rows.getMetaData().getColumnCount()
            return [rows.getString(index + 1) for index in range(count)]

    def position(self, sql: str, has_time: bool) -> tuple[Moment | None, int | None] | None:
        """Returns the time and the number in the first row of a query; None if there are no rows.
        The time is the first column if `has_time` is set. The number is the next column, if there
        is one."""
        utc = self._jvm.java.util.Calendar.getInstance(self._jvm.java.util.TimeZone.getTimeZone("UTC"))
        with self._statement() as statement:
            rows = statement.executeQuery(sql)
            if not rows.next():
                return None
            moment = None
            if has_time:
                timestamp = rows.getTimestamp(1, utc)
                moment = Moment(int(timestamp.getTime()), int(timestamp.getNanos()))
            column = 2 if has_time else 1
            number = None
            if rows.getMetaData().getColumnCount() >= column:
                number = int(rows.getBigDecimal(column))
            return moment, number

    def type_of(self, expression: str, source: str) -> str:
        """Returns the database's name for the type of an expression."""
        with self._statement() as statement:
            rows = statement.executeQuery(f"SELECT {expression} FROM {source} WHERE 1 = 0")
            return str(rows.getMetaData().getColumnTypeName(1)).lower()

    def tables(self, kinds: Sequence[str], schema: str | None = None, like: str = "%") -> list[tuple[str, str]]:
        """Returns (schema, name) of tables. The schema is empty if the database has no schemas."""
        gateway: Any = self._database._spark.sparkContext._gateway
        types = gateway.new_array(self._jvm.java.lang.String, len(kinds))
        for index, kind in enumerate(kinds):
            types[index] = kind
        rows = self._java.getMetaData().getTables(self._java.getCatalog(), schema, like, types)
        tables = []
        while rows.next():
            tables.append((rows.getString("TABLE_SCHEM") or "", rows.getString("TABLE_NAME")))
        rows.close()
        return sorted(tables)

    def columns(self, table: str) -> list[str] | None:
        """Returns the column names of a table; None if the table does not exist. The name of the
        table is quoted and may include a schema."""
        with self._statement() as statement:
            try:
                rows = statement.executeQuery(f"SELECT * FROM {table} WHERE 1 = 0")
            except Py4JJavaError as error:
                failure = _from_java(error.java_exception)
                if isinstance(failure, DatabaseError) and failure.state in _NO_TABLE:
                    self._java.rollback()
                    return None
                raise
            metadata = rows.getMetaData()
            return [str(metadata.getColumnName(index + 1)) for index in range(metadata.getColumnCount())]

    @contextmanager
    def _statement(self) -> Iterator[Any]:
        statement = self._java.createStatement()
        try:
            yield statement
        finally:
            with suppress(Py4JError):
                statement.close()
