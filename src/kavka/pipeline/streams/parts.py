"""Partial aggregates: the records of a batch become one part per key (and window) before the
shuffle, and a task merges parts instead of records.

It applies to counts and totals whose changes are cached until the end of a micro-batch, so that no
operator sees how often a key changed in it (`lowering.py` decides). A part is (key in bytes, start
of the window or None, aggregate, highest time, headers of the last record). The aggregate is None
for records of a window whose expression is None: they only advance stream time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from kavka.pipeline.streams.aggregates import AggregateStep
from kavka.pipeline.streams.batches import Columns, evaluate, to_bytes
from kavka.pipeline.streams.expressions import Expression
from kavka.pipeline.streams.processors import Headers
from kavka.pipeline.streams.serdes import Serde
from kavka.pipeline.streams.windows import TimeWindows

Part = tuple[bytes, int | None, Any, int, Headers]

# Parts of so many batches are merged.
_MAX_BATCHES = 32
_REDUCE = {"count": np.add, "sum": np.add, "min": np.minimum, "max": np.maximum}
# A sum of numbers below this cannot overflow 64 bits.
_SAFE = 1 << 62


class _Rows(NamedTuple):
    """Rows to be grouped by key and start."""

    keys: pa.Array
    starts: Any
    parts: Any
    times: Any
    headers: list[Headers] | None

    def select(self, index: Any) -> _Rows:
        """The rows of these numbers."""
        starts = None if self.starts is None else self.starts[index]
        headers = None if self.headers is None else [self.headers[row] for row in index.tolist()]
        return _Rows(self.keys.take(pa.array(index)), starts, self.parts[index], self.times[index], headers)


class Parts:
    """The parts of one aggregate that a reading task has made of the records of one partition."""

    def __init__(self, step: AggregateStep, key_serde: Serde) -> None:
        self._serde, self._windows = key_serde, step.windows
        self._total = step.aggregation.total
        self._reduce = _REDUCE["count" if self._total is None else self._total.name]
        self._groups: list[_Rows] = []
        # Rows without an aggregate, of windows.
        self._empty: list[_Rows] = []
        self._observed = -1

    def __len__(self) -> int:
        return sum(len(group.times) for group in (*self._groups, *self._empty))

    @property
    def key_bytes(self) -> int:
        return sum(group.keys.nbytes for group in (*self._groups, *self._empty))

    def add(self, columns: Columns) -> None:
        """Add records, in their order."""
        keys, count = to_bytes(self._serde, columns.keys), len(columns.times)
        parts, is_valid = np.ones(count, np.int64), np.ones(count, bool)
        if self._total is not None:
            parts, is_valid = _numbers(self._total.expression, columns)
        rows = _Rows(keys, None, parts, columns.times, columns.headers)
        if self._windows is None:
            is_valid &= _is_valid(columns.values)
        elif count:
            index, starts = self._windows_of(rows.times)
            rows, is_valid = rows.select(index)._replace(starts=starts), is_valid[index]
            self._keep(self._empty, rows.select(np.flatnonzero(~is_valid)))
        self._keep(self._groups, rows if is_valid.all() else rows.select(np.flatnonzero(is_valid)))

    def _keep(self, groups: list[_Rows], rows: _Rows) -> None:
        if len(rows.times):
            groups.append(_grouped(rows, self._reduce))
        if len(groups) >= _MAX_BATCHES:
            groups[:] = [_merged(groups, self._reduce)]

    def _windows_of(self, times: Any) -> tuple[Any, Any]:
        """The numbers of the records and the starts of their windows. A window is left out that
        earlier records have closed."""
        windows: TimeWindows = self._windows
        observed = np.maximum.accumulate(np.maximum(times, self._observed))
        self._observed = int(observed[-1])
        latest = times // windows.advance * windows.advance
        indexes, starts = [], []
        for back in range(-(-windows.size // windows.advance)):
            start = latest - back * windows.advance
            chosen = (start >= 0) & (start + windows.size > np.maximum(times, observed - windows.grace))
            indexes.append(np.flatnonzero(chosen))
            starts.append(start[chosen])
        index, start = np.concatenate(indexes), np.concatenate(starts)
        order = np.argsort(index, kind="stable")
        return index[order], start[order]

    def take(self) -> list[Part]:
        """Return all parts, and forget them."""
        parts: list[Part] = []
        for groups, is_valid in ((self._groups, True), (self._empty, False)):
            if groups:
                rows = _merged(groups, self._reduce) if len(groups) > 1 else groups[0]
                count = len(rows.times)
                starts = [None] * count if rows.starts is None else rows.starts.tolist()
                numbers = rows.parts.tolist() if is_valid else [None] * count
                headers = [()] * count if rows.headers is None else rows.headers
                parts += zip(rows.keys.to_pylist(), starts, numbers, rows.times.tolist(), headers, strict=True)
            groups.clear()
        return parts


def _is_valid(cells: Any) -> Any:
    if isinstance(cells, pa.Array):
        return cells.is_valid().to_numpy(zero_copy_only=False)
    if None not in cells:
        return np.ones(len(cells), bool)
    return np.fromiter((cell is not None for cell in cells), bool, len(cells))


def _numbers(expression: Expression, columns: Columns) -> tuple[Any, Any]:
    """The values of an expression, and which are not None."""
    cells = evaluate(expression, columns)
    if not isinstance(cells, pa.Array):
        cells = pa.array(cells)
    is_valid = _is_valid(cells)
    return cells.fill_null(0).to_numpy(), is_valid & _is_valid(columns.values)


def _grouped(rows: _Rows, reduce: Any) -> _Rows:
    """One row per key and start, in the order of starts: a batch that is run again gives the same
    rows."""
    encoded = rows.keys.dictionary_encode()
    codes, count = encoded.indices.to_numpy().astype(np.int64), len(encoded.dictionary)
    if rows.starts is not None:
        starts, numbers = np.unique(rows.starts, return_inverse=True)
        codes = numbers * count + codes
    order = np.argsort(codes, kind="stable")
    codes = codes[order]
    firsts = np.flatnonzero(np.concatenate(([True], codes[1:] != codes[:-1])))
    last = order[np.concatenate((firsts[1:], [len(codes)])) - 1]
    parts = rows.parts
    is_sum = reduce is np.add and parts.dtype == np.int64
    if is_sum and max(int(parts.max()), -int(parts.min())) * len(parts) >= _SAFE:
        parts = parts.astype(object)
    return _Rows(
        encoded.dictionary.take(pa.array(codes[firsts] % count)),
        None if rows.starts is None else starts[codes[firsts] // count],
        reduce.reduceat(parts[order], firsts),
        np.maximum.reduceat(rows.times[order], firsts),
        None if rows.headers is None else [rows.headers[row] for row in last.tolist()],
    )


def _merged(groups: list[_Rows], reduce: Any) -> _Rows:
    has_headers = any(group.headers is not None for group in groups)
    headers = [each for group in groups for each in group.headers or [()] * len(group.times)] if has_headers else None
    rows = _Rows(
        pa.concat_arrays([group.keys for group in groups]),
        None if groups[0].starts is None else np.concatenate([group.starts for group in groups]),
        np.concatenate([group.parts for group in groups]),
        np.concatenate([group.times for group in groups]),
        headers,
    )
    return _grouped(rows, reduce)
