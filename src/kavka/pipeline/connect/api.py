"""The base classes of connectors: a source returns a DataFrame of records, a sink writes one.

A source:

    from kavka.connect import Context, Option, Source

    class Ticks(Source):
        "One number per second."

        options = (Option("topic", doc="The topic to write to."),)

        def read(self, context: Context) -> DataFrame:
            return context.spark.readStream.format("rate").load().selectExpr("value", "timestamp")

A sink:

    class Printer(Sink):
        def write(self, context: Context, records: DataFrame, batch_id: int) -> None:
            for row in records.select("key", "value").toLocalIterator():
                print(row.key, row.value)

Use it as `connector.class=my_module.Ticks`. The worker's settings must declare `my_module`: its
folder is in `plugin.path`, `plugin.modules` names it, or an installed package has an entry point of
the group `kavka.connect`. The worker creates one object for each start of a task and calls its
methods from one thread at a time.

**Records** are the rows of a DataFrame with these columns, in any order. A column that a source
omits is null.

| column | type | |
|---|---|---|
| `key`, `value` | any | a struct's fields are visible to transformations and converters |
| `topic` | string | a source without this column has an option `topic` for all records |
| `partition` | int | null: chosen by the key |
| `timestamp` | timestamp | null: the current time |
| `headers` | array of struct (`key` string, `value` binary) | |
| `offset` | bigint | only in sinks |

The framework handles everything else: conversion between columns and bytes, transformations, dead
letters, reading and writing topics, scheduling, checkpoints, retries and status.
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
"""The offsets of an `IncrementalSource`: for each source partition (a table, a file), by name, its
source offset as a JSON object."""


@dataclass(frozen=True)
class Context:
    """The parameters of a running task."""

    name: str
    """The connector's name."""
    config: Mapping[str, Any]
    """The parsed options: those of the connector's class and the common ones. `context["file"]`
    returns the value of an option."""
    given: Mapping[str, str]
    """The configuration as text, for options whose names are not fixed (`spark.option.…`)."""
    spark: SparkSession
    checkpoint: str
    """A folder that belongs to this connector and survives restarts, on any file system that Spark
    supports. Spark's own checkpoint is in `checkpoint/query`: use other names."""
    client: Mapping[str, str] = field(default_factory=dict)
    """Settings for Kafka clients of the worker's cluster: `bootstrap.servers` and the security
    settings."""
    exactly_once: bool = False
    """Whether each record must be delivered exactly once, across failures of any process."""
    available_now: bool = False
    """`trigger=available-now`: process the data available at the start, then end the task."""

    def __getitem__(self, name: str) -> Any:
        return self.config[name]

    def with_prefix(self, prefix: str) -> dict[str, str]:
        """Returns the original settings whose names start with the prefix, without the prefix."""
        return {name[len(prefix) :]: value for name, value in self.given.items() if name.startswith(prefix)}


@dataclass(frozen=True)
class Failed:
    """A record that the target system rejected, and the reason."""

    topic: str
    partition: int
    offset: int
    message: str


class Connector:
    """The base class of sources and sinks. The docstring of a subclass appears in the reference."""

    kind: ClassVar[str]
    version: ClassVar[str] = __version__
    options: ClassVar[tuple[Option, ...]] = ()
    """The options of this class, in addition to the common ones. Configurations may contain other
    names: a converter may use them."""
    prefixes: ClassVar[tuple[tuple[str, str], ...]] = ()
    """(prefix, purpose) of options whose names start with a prefix, for the reference."""

    @classmethod
    def check(cls, config: Mapping[str, Any], originals: Mapping[str, str]) -> dict[str, str]:
        """Validates combinations of options, for `config/validate`. Returns error messages by
        option. `config` has the parsed value of each option, None if the option already has an
        error. Must not access databases or files."""
        return {}

    @classmethod
    def opens_files(cls, originals: Mapping[str, str]) -> bool:
        """Whether a connector with these settings opens files that the settings name. If
        `originals` is empty: whether every connector of this class does. A user who may configure
        such a connector can read and write files of the worker's machine. The worker's settings
        must therefore enable it (`file.connectors.enable`)."""
        return False

    def start(self, context: Context) -> None:
        """Called once, before every other method. Raise ConnectError, or RetriableError to be
        called again."""

    def stop(self) -> None:
        """Called once at the end, also after a failure of the task or of `start`."""


class Source(Connector):
    """Produces records. `read` is called once for each start of the task.

    A streaming DataFrame runs as a Spark query: its offsets are in the checkpoint, and with
    exactly-once delivery every record is written to its topic once. A batch DataFrame is written
    completely, and the task ends; with `trigger.interval` it is read and written repeatedly. A
    source that tracks its own offsets is an `IncrementalSource`.
    """

    kind = SOURCE

    def tasks(self, context: Context) -> int:
        """Returns the number of tasks: the parallel parts of a batch, at most `tasks.max`. Called
        after `start`, and before every batch of an `IncrementalSource`."""
        return int(context["tasks.max"])

    def read(self, context: Context) -> DataFrame:
        raise NotImplementedError


class IncrementalSource(Source):
    """A source that is polled for batches. The framework stores its offsets in `connect-offsets`,
    or in the standalone worker's file, as Kafka Connect does.

    `next` returns the end offsets of the batch that begins at `start`. `read_range` returns the
    records between `start` and `end`. After a crash `read_range` is called again with the same
    `start` and `end`. For exactly-once delivery it must return the same rows. A field of an offset
    whose name starts with `kavka.` belongs to the batch and is not stored with the offsets.
    """

    partition_field: ClassVar[str] = "partition"
    """The field that identifies a source partition in `GET …/offsets`, for example `table` in
    {"partition": {"table": "users"}, "offset": …}."""
    poll_interval: float = 5.0
    """Seconds to wait after a poll that returned no data, unless `trigger.interval` is set."""

    def next(self, context: Context, start: Offsets) -> Offsets | None:
        """Returns the end of the next batch; None if there is no new data. `start` is empty on the
        first call."""
        raise NotImplementedError

    def read_range(self, context: Context, start: Offsets, end: Offsets) -> DataFrame | Sequence[DataFrame]:
        """Returns the records of the batch, as a batch DataFrame; or several of them, if the
        records have different columns."""
        raise NotImplementedError

    def writer(self, context: Context, start: Offsets, end: Offsets) -> DataFrameWriter | None:
        """For a source whose Spark tasks can send the records directly: returns a writer with the
        same effect as writing `read_range` with the Spark sink `kavka`, and with the same options.
        It is called only if all records go to the topic of the option `topic` as UTF-8 text,
        without transformations. Otherwise, and if it returns None, `read_range` is called."""
        return None

    @classmethod
    def check_offsets(cls, offsets: Offsets) -> None:
        """Validates offsets that a user sets with `PATCH …/offsets`; raises ConnectError."""


class Sink(Connector):
    """Writes records, one micro-batch at a time: with `write`, or with a Spark writer from
    `writer`.

    After a crash the last batch is passed again with the same records and the same number. A sink
    that applies a batch only once sets `exactly_once`. Batch numbers are unique within a
    checkpoint. A reset of the offsets creates a new checkpoint, which has a different
    `query_id(context)`.
    """

    kind = SINK
    exactly_once: ClassVar[bool] = False
    """Whether writing a batch again has no effect. If False, `exactly.once=true` is rejected."""

    def write(self, context: Context, records: DataFrame, batch_id: int) -> Sequence[Failed] | None:
        """Write all of `records`, and return when they are durable. Raise RetriableError if the
        target system is unavailable. Return the records that it rejects: they fail the task, or are
        sent to the dead-letter topic, depending on `errors.tolerance`."""
        raise NotImplementedError

    def writer(self, context: Context, records: DataFrame) -> DataStreamWriter | None:
        """For targets with a Spark streaming sink: returns a writer for the streaming DataFrame
        `records`, without a checkpoint location or a trigger. It is called only if the types of the
        records are known in advance (every converter except JSON without a configured schema) and
        there is no dead-letter topic; otherwise `write` is called."""
        return None


def query_id(context: Context) -> str:
    """Returns the id of the query that calls a sink's `write`. It stays the same for one
    checkpoint."""
    return context.spark.sparkContext.getLocalProperty("sql.streaming.queryId") or ""
