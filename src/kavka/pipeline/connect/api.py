"""What a connector is: a Python class that gives a DataFrame of records, or takes one.

A source:

    from kavka.connect import Context, Option, Source

    class Ticks(Source):
        "Numbers, one in a second."

        options = (Option("topic", doc="Where the records go."),)

        def read(self, context: Context) -> DataFrame:
            return context.spark.readStream.format("rate").load().selectExpr("value", "timestamp")

A sink:

    class Printer(Sink):
        def write(self, context: Context, records: DataFrame, batch_id: int) -> None:
            for row in records.select("key", "value").toLocalIterator():
                print(row.key, row.value)

It is used as `connector.class=my_module.Ticks`, where the worker's settings declare `my_module`: its folder is in
`plugin.path`, or `plugin.modules` names it, or an installed package has an entry point of the group `kavka.connect`.
One object is made for each start of a task. Its methods are called by one thread of the worker at a time, never
concurrently.

**Records** are the rows of a DataFrame with these columns, in any order; what a source leaves out is null.

| column | type | |
|---|---|---|
| `key`, `value` | any | structs have fields with names, which the transformations and converters know |
| `topic` | string | a source without it has an option `topic`, which counts for all records |
| `partition` | int | null: by the key |
| `timestamp` | timestamp | null: now |
| `headers` | array of struct (`key` string, `value` binary) | |
| `offset` | bigint | only what a sink is given |

The framework does the rest: converters between columns and bytes, transformations, dead letters, where a source's
records are written, where a sink's come from, when it runs, checkpoints, retries, status.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from kavka import __version__
from kavka.pipeline.connect.options import Option

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

SOURCE, SINK = "source", "sink"

Offsets = dict[str, dict[str, Any]]
"""How far an `IncrementalSource` has come: by the name of a part (a table, a file), what can be written as JSON."""


@dataclass(frozen=True)
class Context:
    """What a task knows when it runs."""

    name: str
    """Of the connector."""
    config: Mapping[str, Any]
    """The options of the connector's class and of all connectors, parsed; `context["file"]` for short."""
    given: Mapping[str, str]
    """The configuration as it was given, for options whose names are not known before (`spark.option.…`)."""
    spark: SparkSession
    checkpoint: str
    """A folder of this connector alone, which outlives its restarts. Spark's checkpoint is in `checkpoint/query`: use
    other names. It may be a path of any file system that Spark knows."""
    client: Mapping[str, str] = field(default_factory=dict)
    """Settings for Kafka clients of the worker's cluster: `bootstrap.servers` and what secures it."""
    exactly_once: bool = False
    """Whether each record is to arrive once, whatever dies in between."""
    available_now: bool = False
    """`trigger=available-now`: what is there is moved, and the task ends."""

    def __getitem__(self, name: str) -> Any:
        return self.config[name]

    def with_prefix(self, prefix: str) -> dict[str, str]:
        """What was given under names that begin so, without the prefix."""
        return {name[len(prefix) :]: value for name, value in self.given.items() if name.startswith(prefix)}


@dataclass(frozen=True)
class Failed:
    """A record that the other system will not have, and why."""

    topic: str
    partition: int
    offset: int
    message: str


class Connector:
    """What sources and sinks have in common. The class' docstring is what the docs say of it."""

    kind: ClassVar[str]
    version: ClassVar[str] = __version__
    options: ClassVar[tuple[Option, ...]] = ()
    """Its own; those of all connectors are added. A name that is in no table is allowed (a converter may know it)."""
    prefixes: ClassVar[tuple[tuple[str, str], ...]] = ()
    """(prefix, what it is for): names that begin so are options, too. For the docs."""

    @classmethod
    def check(cls, config: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, str]:
        """Rules between options, for `config/validate`: messages by the option they are shown at. `config` has all
        options parsed, None where there is an error already. Nothing else is looked at: no database, no file."""
        return {}

    @classmethod
    def opens_files(cls, given: Mapping[str, str]) -> bool:
        """Whether a connector with these settings opens files that they name, or, without settings, whether every one
        does. Whoever may configure such a connector can read and write files of the worker's machine, so that the
        worker's settings have to enable it (`file.connectors.enable`)."""
        return False

    def start(self, context: Context) -> None:
        """Called once before anything else. Raise ConnectError, or RetriableError to be tried again."""

    def stop(self) -> None:
        """Called once at the end, also after a failure; also where `start` failed."""


class Source(Connector):
    """Gives records. `read` is called once for each start of the task.

    A streaming DataFrame is a query of Spark: its offsets are in the checkpoint, and with exactly once every record is
    in its topic once. A batch DataFrame is written as a whole, and the task is done; with `trigger.interval` it is read
    and written again every so often. A source that knows where it stopped is an `IncrementalSource`.
    """

    kind = SOURCE

    def read(self, context: Context) -> DataFrame:
        raise NotImplementedError


class IncrementalSource(Source):
    """A source that is asked for the next batch again and again, and whose offsets the framework keeps: in
    `connect-offsets`, or the standalone worker's file, as Kafka Connect does.

    `next` says where a batch that begins at `start` ends, `read_range` gives the records between. After a crash
    `read_range` is called again with the same `start` and `end`: with exactly once it must give the same rows then.
    """

    partition_field: ClassVar[str] = "partition"
    """What a part of the offsets is called in `GET …/offsets`: {"partition": {"table": "users"}, "offset": …}."""
    poll_interval: float = 5.0
    """Seconds to wait when there was nothing new, unless `trigger.interval` says otherwise."""

    def next(self, context: Context, start: Offsets) -> Offsets | None:
        """Where the next batch ends; None when there is nothing new. `start` is empty at the very first."""
        raise NotImplementedError

    def read_range(self, context: Context, start: Offsets, end: Offsets) -> DataFrame:
        """A batch DataFrame."""
        raise NotImplementedError

    def writer(self, context: Context, start: Offsets, end: Offsets) -> DataFrameWriter | None:
        """For a source that can have tasks send its records themselves, without a way through Spark: a writer that does
        what the sink `kavka` would do with `read_range`, whose options it is given. Only asked for where the records go
        to the topic of the option `topic`, text as UTF-8 and nothing else about them changed; otherwise, or where the
        answer is None, `read_range` is called."""
        return None

    @classmethod
    def check_offsets(cls, offsets: Offsets) -> None:
        """What a user wants to set with `PATCH …/offsets`; ConnectError says what is wrong with it."""


class Sink(Connector):
    """Takes records, a micro-batch at a time: `write`, or Spark's own writer by `writer`.

    After a crash the last batch is given again with the same records and the same number. A sink that sees to it that
    a batch counts once says so with `exactly_once`. Numbers are of one checkpoint: `query_id(context)` tells one from
    another that was made after the offsets were reset.
    """

    kind = SINK
    exactly_once: ClassVar[bool] = False
    """Whether a batch that is written again changes nothing. Without it `exactly.once=true` is refused."""

    def write(self, context: Context, records: DataFrame, batch_id: int) -> Sequence[Failed] | None:
        """Write all of `records`, and return when they are safe. RetriableError: the other system is away. Records that
        it refuses are returned: they fail the task, or go to the dead-letter topic, as `errors.tolerance` says."""
        raise NotImplementedError

    def writer(self, context: Context, records: DataFrame) -> DataStreamWriter | None:
        """For what Spark has a streaming sink for: a writer for the streaming DataFrame `records`, without checkpoint
        and trigger. Only asked for where the types of the records are known before the first one (every converter but
        JSON without a given schema) and no dead letters are to be kept; otherwise `write` is called."""
        return None


def query_id(context: Context) -> str:
    """Of the query that a sink's `write` is called by: the same for as long as the checkpoint is."""
    return context.spark.sparkContext.getLocalProperty("sql.streaming.queryId") or ""
