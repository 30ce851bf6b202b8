"""Operators over whole Arrow batches of records.

The records of a batch are columns: keys and values are an Arrow array where their type is known,
and otherwise a list; times are a NumPy array; headers are a list, or None if no record has any. A
step makes columns of columns. Expressions run in Arrow; the user's functions are called for each
record."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain, compress
from types import NoneType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kavka.client.errors import SchemaRegistryError
from kavka.pipeline.streams import operators
from kavka.pipeline.streams.errors import StreamsException
from kavka.pipeline.streams.expression_columns import ARROW_TYPES, to_arrow
from kavka.pipeline.streams.expressions import JSON, TYPES, Expression, Listed
from kavka.pipeline.streams.processors import Headers
from kavka.pipeline.streams.serdes import Serde, Serdes

Cells = Any


class Columns(NamedTuple):
    keys: Cells
    values: Cells
    times: Any
    headers: list[Headers] | None

    def select(self, chosen: Any) -> Columns:
        """The records at which the array of booleans is true."""
        headers = None if self.headers is None else list(compress(self.headers, chosen.tolist()))
        keys = _chosen(self.keys, chosen)
        values = keys if self.values is self.keys else _chosen(self.values, chosen)
        return Columns(keys, values, self.times[chosen], headers)


Step = Callable[[Columns], Columns]


def listed(cells: Cells) -> Any:
    return cells.to_pylist() if isinstance(cells, pa.Array) else cells


def _chosen(cells: Cells, chosen: Any) -> Cells:
    return cells.filter(pa.array(chosen)) if isinstance(cells, pa.Array) else list(compress(cells, chosen.tolist()))


def headers_of(batch: pa.RecordBatch) -> list[Headers] | None:
    """The headers of a batch of the source; None if no record has any."""
    column = batch.column("headers")
    if column.null_count == len(column) or not pc.sum(pc.list_value_length(column)).as_py():
        return None
    return [tuple((each["key"], each["value"]) for each in some) if some else () for some in column.to_pylist()]


@contextmanager
def without_collector() -> Iterator[None]:
    """The lists of a batch live for a moment. The garbage collector would scan all of them again
    and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


# --- reading


def read(key_serde: Serde, value_serde: Serde, batch: pa.RecordBatch) -> tuple[Columns, Any]:
    """The records of a batch, and an array of booleans: which rows cannot be read, or have no time.
    Those rows are not among the records."""
    stamps = batch.column("timestamp").cast(pa.int64())
    times = pc.fill_null(stamps, -1000).to_numpy() // 1000
    key_cells, bad_keys = _cells(key_serde, batch.column("key"))
    value_cells, bad_values = _cells(value_serde, batch.column("value"))
    bad = (times < 0) | bad_keys | bad_values
    columns = Columns(key_cells, value_cells, times, headers_of(batch))
    return (columns.select(~bad) if bad.any() else columns), bad


def _cells(serde: Serde, column: pa.Array) -> tuple[Cells, Any]:
    good = np.zeros(len(column), bool)
    if serde is Serdes.String():
        try:
            return column.cast(pa.string()), good
        except pa.ArrowException:
            pass
    cells: list[Any] = []
    bad = good
    for row, data in enumerate(column.to_pylist()):
        try:
            cells.append(serde.deserialize(data))
        except SchemaRegistryError as error:
            raise StreamsException(str(error)) from error
        except Exception:
            bad[row] = True
            cells.append(None)
    return cells, bad


# --- steps


def evaluate(expression: Expression, columns: Columns) -> Cells:
    """The values of an expression."""
    cells: dict[str, Cells] = {}
    for name, kind in expression.columns().items():
        column = {"key": columns.keys, "value": columns.values, "timestamp": columns.times}[name]
        if name == "timestamp":
            column = pa.array(column)
        elif not isinstance(column, pa.Array) and kind != JSON:
            types = TYPES[kind]
            if not all(cell is None or type(cell) in types for cell in column):
                # Called for each record, it says which type is wrong.
                rows = zip(listed(columns.keys), listed(columns.values), columns.times.tolist(), strict=True)
                return [expression(*row) for row in rows]
            column = pa.array(column, ARROW_TYPES[kind])
        elif isinstance(column, pa.Array) and column.type != ARROW_TYPES.get(kind):
            raise TypeError(f"col({name!r}) must be {kind}, not {column.type}")
        cells[name] = column
    return to_arrow(expression, cells, len(columns.times))


def _caller(function: Callable[..., Any]) -> Callable[[Columns], Cells]:
    """A function of key and value, as one of columns."""
    if isinstance(function, Expression):
        return lambda columns: evaluate(function, columns)
    if isinstance(function, operators.OfValues):
        of_value = function.function
        return lambda columns: list(map(of_value, listed(columns.values)))
    return lambda columns: list(map(function, listed(columns.keys), listed(columns.values)))


def filter_step(operator: operators.Filter) -> Step:
    call = _caller(operator.predicate)

    def step(columns: Columns) -> Columns:
        results = call(columns)
        if isinstance(results, pa.Array):
            chosen = pc.fill_null(results, False).to_numpy(zero_copy_only=False)
        else:
            chosen = np.fromiter(map(bool, results), bool, len(results))
        return columns.select(chosen != operator.negated)

    return step


def non_null_key_step(operator: operators.NonNullKey) -> Step:
    def step(columns: Columns) -> Columns:
        keys = columns.keys
        if isinstance(keys, pa.Array):
            return columns.select(keys.is_valid().to_numpy(zero_copy_only=False)) if keys.null_count else columns
        if None not in keys:
            return columns
        return columns.select(np.fromiter((key is not None for key in keys), bool, len(keys)))

    return step


def select_key_step(operator: operators.SelectKey) -> Step:
    call = _caller(operator.mapper)
    return lambda columns: columns._replace(keys=call(columns))


def map_values_step(operator: operators.MapValues) -> Step:
    call = _caller(operator.mapper)
    return lambda columns: columns._replace(values=call(columns))


def map_step(operator: operators.Map) -> Step:
    def step(columns: Columns) -> Columns:
        pairs = [
            list(operator.pairs(*record)) for record in zip(listed(columns.keys), listed(columns.values), strict=True)
        ]
        sizes = list(map(len, pairs))
        flat = list(chain.from_iterable(pairs))
        keys, values = (list(cells) for cells in zip(*flat, strict=True)) if flat else ([], [])
        return Columns(keys, values, np.repeat(columns.times, sizes), _repeated_headers(columns.headers, sizes))

    return step


def flat_map_values_step(operator: operators.FlatMapValues) -> Step:
    mapper = operator.mapper
    call = _caller(mapper.expression if isinstance(mapper, Listed) else mapper)

    def step(columns: Columns) -> Columns:
        results = call(columns)
        if isinstance(results, pa.Array):
            sizes = pc.fill_null(pc.list_value_length(results), 0).to_numpy()
            values: Cells = results.flatten()
        else:
            lists = [result if type(result) is list else list(result or ()) for result in results]
            sizes, values = list(map(len, lists)), list(chain.from_iterable(lists))
        keys = _repeated(columns.keys, sizes)
        return Columns(keys, values, np.repeat(columns.times, sizes), _repeated_headers(columns.headers, sizes))

    return step


def peek_step(operator: operators.Peek) -> Step:
    def step(columns: Columns) -> Columns:
        for key, value in zip(listed(columns.keys), listed(columns.values), strict=True):
            operator.action(key, value)
        return columns

    return step


def pass_through_step(operator: operators.PassThrough) -> Step:
    return lambda columns: columns


def _repeated(cells: Cells, sizes: Any) -> Cells:
    """Each cell as often as its record has results."""
    if isinstance(cells, pa.Array):
        return cells.take(pa.array(np.repeat(np.arange(len(cells)), sizes)))
    return list(chain.from_iterable(map(lambda cell, size: [cell] * size, cells, sizes)))


def _repeated_headers(headers: list[Headers] | None, sizes: Any) -> list[Headers] | None:
    return None if headers is None else _repeated(headers, sizes)


# --- writing


def to_bytes(serde: Serde, cells: Cells) -> pa.Array:
    """A column of bytes. Raises StreamsException for a value that the serde cannot write."""
    if serde is Serdes.String():
        if not isinstance(cells, pa.Array) and set(map(type, cells)) <= {str, NoneType}:
            # Fails for lone surrogates, which are an error of the serde.
            with suppress(UnicodeError, pa.ArrowException):
                cells = pa.array(cells, pa.string())
        if isinstance(cells, pa.Array) and pa.types.is_string(cells.type):
            return cells.cast(pa.binary())
    return pa.array(map(serde.serialize, listed(cells)), pa.binary())
