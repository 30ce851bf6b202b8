"""Counting before the shuffle: what a task would count one by one goes to it as one number for each
key.

`count()` of a stream that was grouped anew, with caching: a micro-batch changes each key once,
whatever the order of its records was, so that the tasks that read may add up first. It is done
where nobody can tell the difference but by the time it takes: the counting sub-topology reads
nothing else, has no processors of the user's own, no handler is asked about errors in the steps
before it, and the partition follows from the key alone. A combined record is (key, how many, the
highest time, headers of the record of that time).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from kavka.pipeline.streams.aggregates import StreamAggregate
from kavka.pipeline.streams.engine import Headers, Task
from kavka.pipeline.streams.plan import Plan, is_users
from kavka.pipeline.streams.settings import Settings
from kavka.pipeline.streams.stores import KEY_VALUE
from kavka.pipeline.streams.topology import ProcessorNode, Topology

Combined = tuple[bytes, int, int, Headers]


def combinable(topology: Topology, plan: Plan, settings: Settings, caching: bool) -> set[str]:
    """Of the shuffled topics, by the names that the topology has for them, those whose records may
    be counted before the shuffle."""
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
    """Numbers of records by key, the highest time of each, and the headers of those that have
    some."""

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
        different = encoded.dictionary.cast(pa.string())
        self._keep(pa.table([different, np.bincount(at, minlength=size), highest], _COUNTED))

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
    # In the order in which keys were first seen: with one thread, a batch that is run again is the
    # same.
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
