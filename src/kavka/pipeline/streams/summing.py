"""Counts that Spark itself adds up.

Where tasks would hear of nothing but numbers (`combining.py`), and nobody after a count asks what
it was before, there is nothing for a task to do but to add: Spark's own aggregation does that, and
no Python process has to be started for the tasks, nor to tell Spark when the query starts what
their state looks like. What then goes on are updates, which Spark lets no sink in Python take as a
stream: each micro-batch is written as a batch (`compiler.py`).

A row to be added up is (task, key, number, time, last): `last` is the micro-batch, its highest time
for the key (eight bytes each, the most significant first) and headers of the record of that time,
marshalled. Of several the greatest is the latest. Spark's state has the sum of the numbers, the
greatest time and the greatest `last` of each task and key.
"""

from __future__ import annotations

import marshal
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kavka.pipeline.streams.combining import Combined, combinable, counted_alone
from kavka.pipeline.streams.plan import Plan
from kavka.pipeline.streams.settings import Settings
from kavka.pipeline.streams.topology import ProcessorNode, Subtopology, Topology

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS = "task int, key binary, number bigint, time bigint, last binary"
_ROWS_ARROW = pa.schema(
    [
        ("task", pa.int32()),
        ("key", pa.binary()),
        ("number", pa.int64()),
        ("time", pa.int64()),
        ("last", pa.binary()),
    ]
)
_LATEST = struct.Struct(">qq")
# A form that does not depend on who else has hold of an object: rows that are made again are the
# same.
_MARSHAL_VERSION = 2
_NO_HEADERS = marshal.dumps((), _MARSHAL_VERSION)


def summable(topology: Topology, plan: Plan, settings: Settings) -> bool:
    """Whether Spark can do all that the plan's tasks would do."""
    combined = combinable(topology, plan, settings, settings.cache_bytes > 0)
    return counted_alone(plan, combined) and all(_tells_alone(topology, sub) for sub in plan.stateful)


def _tells_alone(topology: Topology, sub: Subtopology) -> bool:
    """Whether a sub-topology that counts has no other store and passes on nothing but what the
    counts are now."""
    (counter,) = topology.children(sub.sources[0].name)
    assert isinstance(counter, ProcessorNode)
    made: Any = counter.supplier()
    return not made.sends_old and len(sub.stores) == 1 and topology.stores[sub.stores[0]].timestamped


def rows_of(counted: list[Combined], home: Callable[[bytes], int], batch: int) -> pa.RecordBatch:
    """What a task that reads has counted, for Spark. `home` is the task of a key."""
    keys, numbers, times, headers = zip(*counted, strict=True) if counted else ((),) * 4
    last = [
        _LATEST.pack(batch, time) + (marshal.dumps(some, _MARSHAL_VERSION) if some else _NO_HEADERS)
        for time, some in zip(times, headers, strict=True)
    ]
    columns: list[Iterable[Any]] = [list(map(home, keys)), keys, numbers, times, last]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _ROWS_ARROW, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_ROWS_ARROW)


def added_up(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    # The columns of Spark's state are called like the functions, and its reader cannot tell two of
    # one name apart.
    added = rows.groupBy("task", "key").agg(f.sum("number"), -f.min(-f.col("time")), f.max("last"))
    return added.toDF(*_ROWS_ARROW.names)


def state_columns(state: DataFrame) -> DataFrame:
    """Of what Spark's reader of states gives: task, key, number and time."""
    return state.selectExpr("key.task AS task", "key.key AS key", "value.sum AS number", "-value.min AS time")


def totals(batch: pa.RecordBatch) -> Iterator[tuple[int, bytes, int, int, Any]]:
    """Task, key, count, time and headers of what was added up."""
    *columns, last = (column.to_pylist() for column in batch.columns)
    headers = (marshal.loads(one[_LATEST.size :]) for one in last)
    return zip(*columns, headers, strict=True)
