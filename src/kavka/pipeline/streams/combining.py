"""Counting before the shuffle: what a task would count one by one goes to it as one number for each key.

`count()` of a stream that was grouped anew, with caching: a micro-batch changes each key once, whatever the order of
its records was, so that the tasks that read may add up first. It is done where nobody can tell the difference but by
the time it takes: the counting sub-topology reads nothing else, has no processors of the user's own, no handler is
asked about errors in the steps before it, and the partition follows from the key alone. A combined record is (key, how
many, the highest time, headers of the record of that time).

A Lane takes the records of a whole Arrow batch through the steps between source and count at once, as lists, each step
for all records before the next. What it cannot do (records with headers or without time, text that is no UTF-8) goes
the way of all records, one by one; both ways give the same.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, compress, repeat
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kavka.pipeline.streams import nodes
from kavka.pipeline.streams.aggregates import StreamAggregate
from kavka.pipeline.streams.engine import Headers, Sink, Source, Task
from kavka.pipeline.streams.plan import Plan, is_users
from kavka.pipeline.streams.serdes import Serde, Serdes
from kavka.pipeline.streams.settings import Settings
from kavka.pipeline.streams.stores import KEY_VALUE
from kavka.pipeline.streams.topology import ProcessorNode, Topology

Combined = tuple[bytes, int, int, Headers]

_TEXT = Serdes.String()


def combinable(topology: Topology, plan: Plan, settings: Settings, caching: bool) -> set[str]:
    """Of the shuffled topics, by the names that the topology has for them, those whose records may be counted before
    the shuffle."""
    if not caching or settings.timestamp_extractor is not None or settings.processing_handler is not None:
        return set()
    found = set()
    for sub in plan.stateful:
        names = {topic for source in sub.sources for topic in source.topics}
        if len(sub.sources) != 1 or len(names) != 1 or any(map(is_users, sub.processors)):
            continue
        (topic,) = names
        children = topology.children(sub.sources[0].name)
        if topic not in plan.shuffled or len(children) != 1 or not isinstance(children[0], ProcessorNode):
            continue
        counter = children[0].supplier()
        stores = [topology.stores[name] for name in children[0].stores]
        writers = [sink for one in plan.feeding for sink in one.sinks if sink.topic == topic]
        if (
            isinstance(counter, StreamAggregate)
            and counter.counts
            and counter.holds
            and all(one.caching and one.kind == KEY_VALUE for one in stores)
            and all(one.partitioner is None for one in writers)
        ):
            found.add(topic)
    return found


def counted_alone(plan: Plan, combined: set[str]) -> bool:
    """Whether nothing but what is counted goes to tasks."""
    read = {topic for sub in plan.stateful for source in sub.sources for topic in source.topics}
    written = {sink.topic for sub in plan.feeding for sink in sub.sinks}
    return bool(combined) and not plan.globals and read == combined and written <= combined


class Counts:
    """Numbers of records by key, the highest time of each, and the headers of those that have some."""

    def __init__(self) -> None:
        self._counts: dict[bytes, int] = {}
        self._times: dict[bytes, int] = {}
        self._headers: dict[bytes, Headers] = {}
        self._tables: list[pa.Table] = []
        self._rows = 0

    def __len__(self) -> int:
        return len(self._counts) + self._rows

    def add(self, key: bytes, timestamp: int, headers: Headers, count: int = 1) -> None:
        self._counts[key] = self._counts.get(key, 0) + count
        if timestamp >= self._times.get(key, -1):
            self._times[key] = timestamp
            self._headers[key] = headers

    def add_texts(self, keys: pa.Array, times: Any) -> None:
        """Records without headers: texts, and an array of as many times."""
        encoded = keys.dictionary_encode()
        at = encoded.indices.to_numpy()
        size = len(encoded.dictionary)
        highest = np.full(size, -1, np.int64)
        if np.all(times[:-1] <= times[1:]):
            # Of several that go to the same place, the last stays.
            highest[at] = times
        else:
            np.maximum.at(highest, at, times)
        self._keep(pa.table([encoded.dictionary, np.bincount(at, minlength=size), highest], _COUNTED))

    def _keep(self, table: pa.Table) -> None:
        self._tables.append(table)
        self._rows += table.num_rows
        if len(self._tables) >= _TABLES:
            together = _summed(self._tables)
            self._tables, self._rows = [together], together.num_rows

    def take(self) -> list[Combined]:
        """What was counted; it begins anew."""
        counts, times, headers, tables = self._counts, self._times, self._headers, self._tables
        self._counts, self._times, self._headers, self._tables, self._rows = {}, {}, {}, [], 0
        found = [(key, number, times[key], headers[key]) for key, number in counts.items()]
        if tables:
            columns = _summed(tables).select(_COUNTED).to_pydict()
            found += [(key.encode(), number, time, ()) for key, number, time in zip(*columns.values(), strict=True)]
        return found


_COUNTED = ["key", "number", "time"]
_TABLES = 32


def _summed(tables: list[pa.Table]) -> pa.Table:
    if len(tables) == 1:
        return tables[0]
    # In the order in which keys were first seen: with one thread, a batch that is run again is the same.
    grouped = pa.TableGroupBy(pa.concat_tables(tables), "key", use_threads=False)
    return grouped.aggregate([("number", "sum"), ("time", "max")]).rename_columns(
        {"key": "key", "number_sum": "number", "time_max": "time"}
    )


def together(records: Iterable[Combined]) -> Iterable[Combined]:
    """One for each key."""
    counts = Counts()
    for key, number, time, headers in records:
        counts.add(key, time, headers, number)
    return counts.take()


def count(task: Task, topic: str, records: Iterable[Combined]) -> None:
    """What a counting task does with combined records of the topic that it reads."""
    source = task.sources[topic]
    (counter,) = source.children
    for key, number, time, headers in together(records):
        task.stream_time = max(task.stream_time, time)
        counter.add(source._key.deserialize(key), number, time, headers)


# --- the lane

# Keys, values and times (an array) of records.
Columns = tuple[list[Any], list[Any], Any]


class Lane:
    """From a source to one sink, without a fork."""

    def __init__(self, source: Source, steps: list[Callable[[Columns], Columns]], sink: Sink) -> None:
        self._source, self._steps, self._sink = source, steps, sink
        self._by_text = sink._key is _TEXT and sink._value is _TEXT

    def run(self, batch: pa.RecordBatch, counts: Counts) -> bool:
        """Take all records of a batch; False if that has to be done one by one, and nothing was done."""
        stamps, headers = batch.column("timestamp").cast(pa.int64()), batch.column("headers")
        if stamps.null_count or (headers.null_count < len(headers) and pc.sum(pc.list_value_length(headers)).as_py()):
            return False
        times = stamps.to_numpy() // 1000
        if not len(times) or times.min() < 0:
            return not len(times)
        keys = _read(self._source._key, batch.column("key"))
        values = _read(self._source._value, batch.column("value"))
        if keys is None or values is None:
            return False
        with _uncollected():
            columns: Columns = (keys, values, times)
            for step in self._steps:
                columns = step(columns)
            self._count(columns, counts)
        return True

    def _count(self, columns: Columns, counts: Counts) -> None:
        keys, values, times = columns
        if self._by_text and _all_text(keys) and (values is keys or _all_text(values)):
            try:
                texts = pa.array(keys, pa.string())
            except (ValueError, pa.ArrowException):
                pass
            else:
                counts.add_texts(texts, times)
                return
        # As the sink would have it: it says what is wrong, or leaves it out.
        for key, value, time in zip(keys, values, times.tolist(), strict=True):
            self._sink.process(key, value, time, ())


def _all_text(values: list[Any]) -> bool:
    """Nothing but text can be joined. Arrow would take bytes as well."""
    try:
        "".join(values)
    except TypeError:
        return False
    return True


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the garbage collector: lists by the thousand, which a moment later are gone by themselves, would have it
    look at all of them again and again."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _read(serde: Serde, column: pa.Array) -> list[Any] | None:
    """The values of a column; None if one of them cannot be read."""
    if column.null_count == len(column):
        return [None] * len(column)
    try:
        if serde is _TEXT:
            text = pa.large_string() if pa.types.is_large_binary(column.type) else pa.string()
            found: list[Any] = column.cast(text).to_pylist()
            return found
        return [serde.deserialize(one) for one in column.to_pylist()]
    except Exception:
        return None


def lane(task: Task, topic: str, sinks: Mapping[str, str]) -> tuple[Lane, str] | None:
    """The lane that a topic's records may take, and the topic at its end: one of `sinks`, which are sinks' names with
    theirs."""
    source = task.sources[topic]
    if source._extract is not None:
        return None
    steps: list[Callable[[Columns], Columns]] = []
    at: Any = source
    while len(at.children) == 1:
        at = at.children[0]
        if isinstance(at, Sink):
            return (Lane(source, steps, at), sinks[at.name]) if at.name in sinks else None
        make = _STEPS.get(type(at))
        if make is None:
            return None
        step = make(at)
        if step is not None:
            steps.append(step)
    return None


def _called(function: Callable[..., Any], keys: list[Any], values: list[Any]) -> list[Any]:
    if isinstance(function, nodes._WithoutKey):
        return list(map(function.function, values))
    if _is_value(function):
        return values
    return list(map(function, keys, values))


def _is_value(function: Any) -> bool:
    """Whether it is `lambda key, value: value`, by whatever names: most groupings are."""
    code = getattr(function, "__code__", None)
    if code is None or code.co_argcount != 2 or code.co_flags & _MORE:
        return False
    return bool(code.co_code == _value.__code__.co_code)


def _value(key: Any, value: Any) -> Any:
    return value


# *arguments, **arguments, generators and coroutines.
_MORE = 0x4 | 0x8 | 0x20 | 0x80 | 0x200


def _filter(node: nodes.Filter) -> Callable[[Columns], Columns]:
    def step(columns: Columns) -> Columns:
        keys, values, times = columns
        wanted = [bool(one) != node._negated for one in _called(node._predicate, keys, values)]
        return _where(wanted, keys, values, times)

    return step


def _where(wanted: list[bool], keys: list[Any], values: list[Any], times: Any) -> Columns:
    kept = list(compress(keys, wanted))
    return kept, kept if values is keys else list(compress(values, wanted)), times[np.array(wanted, bool)]


def _keyed(node: nodes.NonNullKey) -> Callable[[Columns], Columns]:
    def step(columns: Columns) -> Columns:
        keys, values, times = columns
        if _all_text(keys):
            return columns
        wanted = [key is not None for key in keys]
        return columns if all(wanted) else _where(wanted, keys, values, times)

    return step


def _select_key(node: nodes.SelectKey) -> Callable[[Columns], Columns]:
    def step(columns: Columns) -> Columns:
        keys, values, times = columns
        return _called(node._mapper, keys, values), values, times

    return step


def _map_values(node: nodes.MapValues) -> Callable[[Columns], Columns]:
    def step(columns: Columns) -> Columns:
        keys, values, times = columns
        return keys, _called(node._mapper, keys, values), times

    return step


def _flat_map_values(node: nodes.FlatMapValues) -> Callable[[Columns], Columns]:
    def step(columns: Columns) -> Columns:
        keys, values, times = columns
        found = [one if type(one) is list else list(one) for one in _called(node._mapper, keys, values)]
        sizes = list(map(len, found))
        together = list(chain.from_iterable(found))
        if keys.count(None) == len(keys):
            return [None] * len(together), together, np.repeat(times, sizes)
        return list(chain.from_iterable(map(repeat, keys, sizes))), together, np.repeat(times, sizes)

    return step


def _nothing(node: nodes.PassThrough) -> None:
    return None


_STEPS: dict[type, Callable[[Any], Callable[[Columns], Columns] | None]] = {
    nodes.PassThrough: _nothing,
    nodes.Filter: _filter,
    nodes.NonNullKey: _keyed,
    nodes.SelectKey: _select_key,
    nodes.MapValues: _map_values,
    nodes.FlatMapValues: _flat_map_values,
}
