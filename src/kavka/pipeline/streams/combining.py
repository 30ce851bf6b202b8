"""Counting before the shuffle: what a task would count one by one goes to it as one number for each key.

`count()` of a stream that was grouped anew, with caching: a micro-batch changes each key once, whatever the order of
its records was, so that the tasks that read may add up first. It is done where nobody can tell the difference but by
the time it takes: the counting sub-topology reads nothing else, has no processors of the user's own, and the partition
follows from the key alone. A combined record is (key, how many, the highest time, headers of the record of that time).

A Lane takes the records of a whole Arrow batch through the steps between source and count at once, as lists, each step
for all records before the next. What it cannot do (records with headers or without time, text that is no UTF-8) goes
the way of all records, one by one; both ways give the same.
"""

from __future__ import annotations

from collections import _count_elements  # type: ignore[attr-defined]
from collections.abc import Callable, Iterable, Mapping
from itertools import chain, repeat
from typing import Any

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
    if not caching or settings.timestamp_extractor is not None:
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
            and all(one.caching and one.kind == KEY_VALUE for one in stores)
            and all(one.partitioner is None for one in writers)
        ):
            found.add(topic)
    return found


class Counts:
    """Numbers of records by key, the highest time of each, and the headers of those that have some. Keys are bytes, or
    text that stands for its UTF-8."""

    def __init__(self) -> None:
        self._counts: dict[bytes | str, int] = {}
        self._times: dict[bytes | str, int] = {}
        self._headers: dict[bytes | str, Headers] = {}
        self._latest = -1

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, key: bytes, timestamp: int, headers: Headers, count: int = 1) -> None:
        self._counts[key] = self._counts.get(key, 0) + count
        if timestamp >= self._times.get(key, -1):
            self._times[key] = timestamp
            self._headers[key] = headers
        self._latest = max(self._latest, timestamp)

    def add_texts(self, keys: list[str], times: Iterable[int], first: int, last: int, rising: bool) -> None:
        """Records without headers. `first` and `last` are the least and the highest of the times, which are `rising`
        or not in order."""
        _count_elements(self._counts, keys)
        if rising and first >= self._latest:
            self._times.update(zip(keys, times, strict=False))
        else:
            known = self._times
            for key, time in zip(keys, times, strict=False):
                if time > known.get(key, -1):
                    known[key] = time
        self._latest = max(self._latest, last)

    def take(self) -> list[Combined]:
        """What was counted; it begins anew."""
        counts, times, headers = self._counts, self._times, self._headers
        self.__init__()  # type: ignore[misc]
        return [
            (key.encode() if isinstance(key, str) else key, number, times[key], headers.get(key, ()))
            for key, number in counts.items()
        ]


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

# Keys, values and times of records. Keys may be one that all have.
Columns = tuple[Iterable[Any], list[Any], Iterable[int]]


class Lane:
    """From a source to one sink, without a fork."""

    def __init__(self, source: Source, steps: list[Callable[[Columns], Columns]], sink: Sink) -> None:
        self._source, self._steps, self._sink = source, steps, sink
        self._by_text = sink._key is _TEXT and sink._value is _TEXT

    def run(self, batch: pa.RecordBatch, counts: Counts) -> bool:
        """Take all records of a batch; False if that has to be done one by one, and nothing was done."""
        times = batch.column("timestamp").cast(pa.int64())
        headers = batch.column("headers")
        if times.null_count or (headers.null_count < len(headers) and pc.sum(pc.list_value_length(headers)).as_py()):
            return False
        stamps = [one // 1000 for one in times.to_pylist()]
        if not stamps or min(stamps) < 0:
            return not stamps
        keys = _read(self._source._key, batch.column("key"))
        values = _read(self._source._value, batch.column("value"))
        if keys is None or values is None:
            return False
        columns: Columns = (keys, list(values), stamps)
        for step in self._steps:
            columns = step(columns)
        self._count(columns, counts, stamps)
        return True

    def _count(self, columns: Columns, counts: Counts, stamps: list[int]) -> None:
        found, values, times = columns
        keys = found if isinstance(found, list) else [key for key, _ in zip(found, values, strict=False)]
        if not self._by_text or set(map(type, keys)) - {str} or set(map(type, values)) - {str}:
            # As the sink would have it: it says what is wrong, or leaves it out.
            for key, value, time in zip(keys, values, times, strict=False):
                self._sink.process(key, value, time, ())
            return
        rising = all(map(int.__le__, stamps, stamps[1:]))
        counts.add_texts(keys, times, min(stamps), max(stamps), rising)


def _read(serde: Serde, column: pa.Array) -> Iterable[Any] | None:
    """The values of a column; None if one of them cannot be read."""
    if column.null_count == len(column):
        return repeat(None, len(column))
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


def _called(function: Callable[..., Any], keys: Iterable[Any], values: list[Any]) -> Iterable[Any]:
    if isinstance(function, nodes._WithoutKey):
        return map(function.function, values)
    return map(function, keys, values)


def _filter(node: nodes.Filter) -> Callable[[Columns], Columns]:
    def step(columns: Columns) -> Columns:
        keys, values, times = columns
        keys = keys if isinstance(keys, list) else list(keys)
        wanted = [bool(one) != node._negated for one in _called(node._predicate, keys, values)]
        return _where(wanted, keys, values, times)

    return step


def _where(wanted: list[bool], keys: Iterable[Any], values: list[Any], times: Iterable[int]) -> Columns:
    kept = [one for one in zip(wanted, keys, values, times, strict=False) if one[0]]
    return [one[1] for one in kept], [one[2] for one in kept], [one[3] for one in kept]


def _keyed(node: nodes.NonNullKey) -> Callable[[Columns], Columns]:
    def step(columns: Columns) -> Columns:
        keys, values, times = columns
        keys = keys if isinstance(keys, list) else list(keys)
        if type(None) not in set(map(type, keys)):
            return keys, values, times
        return _where([key is not None for key in keys], keys, values, times)

    return step


def _select_key(node: nodes.SelectKey) -> Callable[[Columns], Columns]:
    def step(columns: Columns) -> Columns:
        keys, values, times = columns
        return list(_called(node._mapper, keys, values)), values, times

    return step


def _map_values(node: nodes.MapValues) -> Callable[[Columns], Columns]:
    def step(columns: Columns) -> Columns:
        keys, values, times = columns
        keys = keys if isinstance(keys, list) else list(keys)
        return keys, list(_called(node._mapper, keys, values)), times

    return step


def _flat_map_values(node: nodes.FlatMapValues) -> Callable[[Columns], Columns]:
    def step(columns: Columns) -> Columns:
        keys, values, times = columns
        keys = keys if isinstance(keys, list) else list(keys)
        found = [one if type(one) is list else list(one) for one in _called(node._mapper, keys, values)]
        sizes = list(map(len, found))
        # One key for all stays one: most lines of text have none.
        same = keys and keys[0] is None and set(map(type, keys)) == {type(None)}
        many = repeat(None, sum(sizes)) if same else chain.from_iterable(map(repeat, keys, sizes))
        return many, list(chain.from_iterable(found)), list(chain.from_iterable(map(repeat, times, sizes)))

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
