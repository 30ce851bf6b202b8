"""The records of a whole Arrow batch through the steps between a source and a count before the
shuffle at once, each step for all records before the next.

Keys and values are lists, or columns of Arrow where a step is known to it (`texts.py`): a column
becomes a list for a step that is not. What cannot be done so (records with headers or without time,
text that is no UTF-8) goes the way of all records, one by one; all ways give the same.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, compress, repeat
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kavka.pipeline.streams import nodes
from kavka.pipeline.streams.combining import Counts
from kavka.pipeline.streams.engine import Sink, Source, Task
from kavka.pipeline.streams.serdes import Serde, Serdes
from kavka.pipeline.streams.texts import TextFunction, is_value, plain, understood

_TEXT = Serdes.String()

# A list, or a column of Arrow: plain text (`texts.plain`), of which none is missing.
Values = Any
# Keys, values and times (NumPy's array) of records.
Columns = tuple[Values, Values, Any]


class Lane:
    """From a source to one sink, without a fork."""

    def __init__(self, source: Source, steps: list[Callable[[Columns], Columns]], sink: Sink) -> None:
        self._source, self._steps, self._sink = source, steps, sink
        self._by_text = sink._key is _TEXT and sink._value is _TEXT

    def run(self, batch: pa.RecordBatch, counts: Counts) -> bool:
        """Take all records of a batch; False if that has to be done one by one, and nothing was
        done."""
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
                texts = keys if isinstance(keys, pa.Array) else pa.array(keys, pa.string())
            except (ValueError, pa.ArrowException):
                pass
            else:
                counts.add_texts(texts, times)
                return
        # As the sink would have it: it says what is wrong, or leaves it out.
        for key, value, time in zip(_listed(keys), _listed(values), times.tolist(), strict=True):
            self._sink.process(key, value, time, ())


def _listed(values: Values) -> Any:
    return values.to_pylist() if isinstance(values, pa.Array) else values


def _all_text(values: Values) -> bool:
    """Nothing but text can be joined. Arrow would take bytes as well."""
    if isinstance(values, pa.Array):
        return True
    try:
        "".join(values)
    except TypeError:
        return False
    return True


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the garbage collector: lists by the thousand, which a moment later are gone by
    themselves, would have it look at all of them again and again."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _read(serde: Serde, column: pa.Array) -> Values | None:
    """The values of a column; None if one of them cannot be read."""
    if column.null_count == len(column):
        return [None] * len(column)
    try:
        if serde is _TEXT:
            known = plain(column)
            if known is not None:
                return known
            text = pa.large_string() if pa.types.is_large_binary(column.type) else pa.string()
            found: list[Any] = column.cast(text).to_pylist()
            return found
        return [serde.deserialize(one) for one in column.to_pylist()]
    except Exception:
        return None


def lane_of(task: Task, topic: str, sinks: Mapping[str, str]) -> tuple[Lane, str] | None:
    """The lane that a topic's records may take, and the topic at its end: one of `sinks`, which are
    sinks' names with theirs."""
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


def _known(function: Callable[..., Any]) -> TextFunction | None:
    return understood(function.function if isinstance(function, nodes._WithoutKey) else function)


def _calls(function: Callable[..., Any]) -> Callable[[Values, Values], Values]:
    """What a function of a key and a value gives for all keys and values."""
    if is_value(function):
        return lambda keys, values: values
    alone = function.function if isinstance(function, nodes._WithoutKey) else None
    known = _known(function)

    def call(keys: Values, values: Values) -> Values:
        if known is not None and not known.splits and isinstance(values, pa.Array):
            return known(values)
        if alone is not None:
            return list(map(alone, _listed(values)))
        return list(map(function, _listed(keys), _listed(values)))

    return call


def _filter(node: nodes.Filter) -> Callable[[Columns], Columns]:
    call = _calls(node._predicate)

    def step(columns: Columns) -> Columns:
        keys, values, times = columns
        wanted = [bool(one) != node._negated for one in _listed(call(keys, values))]
        return _where(wanted, keys, values, times)

    return step


def _where(wanted: list[bool], keys: Values, values: Values, times: Any) -> Columns:
    kept = _chosen(keys, wanted)
    return kept, kept if values is keys else _chosen(values, wanted), times[np.array(wanted, bool)]


def _chosen(values: Values, wanted: list[bool]) -> Values:
    return values.filter(pa.array(wanted)) if isinstance(values, pa.Array) else list(compress(values, wanted))


def _keyed(node: nodes.NonNullKey) -> Callable[[Columns], Columns]:
    def step(columns: Columns) -> Columns:
        keys, values, times = columns
        if _all_text(keys):
            return columns
        wanted = [key is not None for key in keys]
        return columns if all(wanted) else _where(wanted, keys, values, times)

    return step


def _select_key(node: nodes.SelectKey) -> Callable[[Columns], Columns]:
    call = _calls(node._mapper)

    def step(columns: Columns) -> Columns:
        keys, values, times = columns
        return call(keys, values), values, times

    return step


def _map_values(node: nodes.MapValues) -> Callable[[Columns], Columns]:
    call = _calls(node._mapper)

    def step(columns: Columns) -> Columns:
        keys, values, times = columns
        return keys, call(keys, values), times

    return step


def _flat_map_values(node: nodes.FlatMapValues) -> Callable[[Columns], Columns]:
    call, known = _calls(node._mapper), _known(node._mapper)

    def step(columns: Columns) -> Columns:
        keys, values, times = columns
        if known is not None and known.splits and isinstance(values, pa.Array):
            pieces, parents = known.pieces(values)
            return _repeated(keys, np.bincount(parents, minlength=len(values))), pieces, times[parents]
        found = [one if type(one) is list else list(one) for one in _listed(call(keys, values))]
        sizes = list(map(len, found))
        return _repeated(keys, sizes), list(chain.from_iterable(found)), np.repeat(times, sizes)

    return step


def _repeated(keys: Values, sizes: Any) -> Values:
    """Each key as often as its record has pieces."""
    if isinstance(keys, pa.Array):
        return keys.take(pa.array(np.repeat(np.arange(len(keys)), sizes)))
    if keys.count(None) == len(keys):
        return [None] * int(np.sum(sizes))
    return list(chain.from_iterable(map(repeat, keys, sizes)))


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
