"""Typed expressions of a record: `col("value").field("amount", int) * 100`. No I/O.

An expression stands for a function of key and value wherever a stream takes one, and can be called
as one. Its operations are known, so a batch of records runs in Arrow, or a whole sub-topology in
Spark (`expression_columns.py`), without a Python call per record. All three give the same results.

An expression never fails on a record: what cannot be computed (an operation on None, a division by
zero, an overflow, text that is no number) is None. None is neither true nor false.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from kavka.pipeline.streams.errors import TopologyException

TEXT, INTEGER, DOUBLE, BOOLEAN, TEXTS, JSON = "text", "an integer", "a double", "a boolean", "a list of texts", "JSON"
ANY = ""
NUMBER = "a number"

_KINDS: dict[type, str] = {str: TEXT, int: INTEGER, float: DOUBLE, bool: BOOLEAN}
TYPES: dict[str, tuple[type, ...]] = {TEXT: (str,), INTEGER: (int,), DOUBLE: (float,), BOOLEAN: (bool,)}
_COLUMNS = {"key": TEXT, "value": TEXT, "timestamp": INTEGER}

INTEGER_TEXT = r"[+-]?[0-9]{1,19}"
DOUBLE_TEXT = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?"
TIME_TEXT = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{3})?Z"
DAY_MS = 86_400_000
# The last day that Python's dates have, 9999-12-31, and the first, 0001-01-01.
FIRST_DAY, LAST_DAY = -719_162, 2_932_896
_EPOCH = date(1970, 1, 1)


def _number(value: int | float) -> int | float | None:
    """A result as 64 bits have it."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if -(1 << 63) <= value < 1 << 63 else None


def _divide(dividend: float, divisor: float) -> float | None:
    return None if divisor == 0 else _float(lambda: float(dividend) / float(divisor))


def _float(compute: Callable[[], float]) -> float | None:
    try:
        value = compute()
    except OverflowError:
        return None
    return value if math.isfinite(value) else None


def _modulo(dividend: int, divisor: int) -> int | None:
    return None if divisor == 0 else dividend % abs(divisor)


def _and(left: Any, right: Any) -> Any:
    if left is False or right is False:
        return False
    return None if left is None or right is None else True


def _or(left: Any, right: Any) -> Any:
    if left is True or right is True:
        return True
    return None if left is None or right is None else False


def _to_integer(text: str) -> int | float | None:
    return None if re.fullmatch(INTEGER_TEXT, text) is None else _number(int(text))


def _to_double(value: Any) -> float | None:
    if isinstance(value, str) and re.fullmatch(DOUBLE_TEXT, value) is None:
        return None
    return _float(lambda: float(value))


def _to_time(text: str) -> int | None:
    if re.fullmatch(TIME_TEXT, text) is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def _day(time: int) -> date | None:
    day = time // DAY_MS
    return _EPOCH + timedelta(days=day) if FIRST_DAY <= day <= LAST_DAY else None


def _of_day(part: str) -> Callable[[int], int | None]:
    return lambda time: getattr(_day(time), part, None)


def _date(time: int) -> str | None:
    day = _day(time)
    return None if day is None else day.isoformat()


def _no_constant(text: str) -> Any:
    raise ValueError(text)


def _json_field(document: Any, path: str, kind: str) -> Any:
    """The value at a path of names, if it is of the kind."""
    if isinstance(document, str):
        try:
            document = json.loads(document, parse_constant=_no_constant)
        except (ValueError, RecursionError):
            return None
    for name in path.split("."):
        if not isinstance(document, dict):
            return None
        document = document.get(name)
    if kind == DOUBLE and type(document) is int:
        return _float(lambda: float(document))
    if type(document) not in TYPES[kind]:
        return None
    if kind == TEXT:
        return None if any("\ud800" <= char <= "\udfff" for char in document) else document
    return document if kind == BOOLEAN else _number(document)


@dataclass(frozen=True)
class Operation:
    """`takes` are kinds of inputs: NUMBER is an integer or a double, ANY any kind, and all inputs
    of NUMBER or ANY have the same kind. `gives` NUMBER or ANY is that kind. With `of_none` the
    function gets None as well; otherwise None gives None."""

    takes: tuple[str, ...]
    gives: str
    python: Callable[..., Any]
    of_none: bool = False


OPERATIONS: dict[str, Operation] = {
    "lower": Operation((TEXT,), TEXT, str.lower),
    "upper": Operation((TEXT,), TEXT, str.upper),
    "trim": Operation((TEXT,), TEXT, lambda text: text.strip(" ")),
    "length": Operation((TEXT,), INTEGER, len),
    "concat": Operation((TEXT, TEXT), TEXT, lambda left, right: left + right),
    "split": Operation((TEXT, TEXT), TEXTS, lambda text, separator: text.split(separator)),
    "replace": Operation((TEXT, TEXT, TEXT), TEXT, lambda text, old, new: text.replace(old, new)),
    "substring": Operation((TEXT, INTEGER, INTEGER), TEXT, lambda text, start, size: text[start : start + size]),
    "contains": Operation((TEXT, TEXT), BOOLEAN, lambda text, part: part in text),
    "startswith": Operation((TEXT, TEXT), BOOLEAN, str.startswith),
    "endswith": Operation((TEXT, TEXT), BOOLEAN, str.endswith),
    "eq": Operation((ANY, ANY), BOOLEAN, lambda left, right: left == right),
    "lt": Operation((ANY, ANY), BOOLEAN, lambda left, right: left < right),
    "le": Operation((ANY, ANY), BOOLEAN, lambda left, right: left <= right),
    "not": Operation((BOOLEAN,), BOOLEAN, lambda value: not value),
    "and": Operation((BOOLEAN, BOOLEAN), BOOLEAN, _and, of_none=True),
    "or": Operation((BOOLEAN, BOOLEAN), BOOLEAN, _or, of_none=True),
    "is_null": Operation((ANY,), BOOLEAN, lambda value: value is None, of_none=True),
    "coalesce": Operation((ANY, ANY), ANY, lambda value, other: other if value is None else value, of_none=True),
    "if": Operation((BOOLEAN, ANY, ANY), ANY, lambda test, value, other: value if test else other, of_none=True),
    "add": Operation((NUMBER, NUMBER), NUMBER, lambda left, right: _number(left + right)),
    "subtract": Operation((NUMBER, NUMBER), NUMBER, lambda left, right: _number(left - right)),
    "multiply": Operation((NUMBER, NUMBER), NUMBER, lambda left, right: _number(left * right)),
    "divide": Operation((NUMBER, NUMBER), DOUBLE, _divide),
    "modulo": Operation((INTEGER, INTEGER), INTEGER, _modulo),
    "to_integer": Operation((TEXT,), INTEGER, _to_integer),
    "to_double": Operation((ANY,), DOUBLE, _to_double),
    "to_text": Operation((INTEGER,), TEXT, str),
    "to_time": Operation((TEXT,), INTEGER, _to_time),
    "date": Operation((INTEGER,), TEXT, _date),
    "year": Operation((INTEGER,), INTEGER, _of_day("year")),
    "month": Operation((INTEGER,), INTEGER, _of_day("month")),
    "day": Operation((INTEGER,), INTEGER, _of_day("day")),
    "hour": Operation((INTEGER,), INTEGER, lambda time: time % DAY_MS // 3_600_000),
    "minute": Operation((INTEGER,), INTEGER, lambda time: time % 3_600_000 // 60_000),
    "field_text": Operation((ANY, TEXT), TEXT, lambda value, path: _json_field(value, path, TEXT)),
    "field_integer": Operation((ANY, TEXT), INTEGER, lambda value, path: _json_field(value, path, INTEGER)),
    "field_double": Operation((ANY, TEXT), DOUBLE, lambda value, path: _json_field(value, path, DOUBLE)),
    "field_boolean": Operation((ANY, TEXT), BOOLEAN, lambda value, path: _json_field(value, path, BOOLEAN)),
}
_FIELDS = {str: "field_text", int: "field_integer", float: "field_double", bool: "field_boolean"}


def _method(operation: str) -> Callable[..., Expression]:
    """A method of an expression: an operation on it and on other values or expressions."""

    def apply(self: Expression, *others: Any) -> Expression:
        return Expression(operation, self, *map(_of, others))

    return apply


class Expression:
    """Immutable. `name` is that of an operation, of a column (key, value, timestamp), or
    "constant", whose value is its only input."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, name: str, *inputs: Any, kind: str = "") -> None:
        self.name, self.inputs = name, inputs
        self.kind = kind or _result_kind(name, inputs)

    def __call__(self, key: Any, value: Any, timestamp: int | None = None) -> Any:
        if self.name == "constant":
            return self.inputs[0]
        if self.name in _COLUMNS:
            cell = {"key": key, "value": value, "timestamp": timestamp}[self.name]
            types = TYPES.get(self.kind)
            if cell is not None and types is not None and type(cell) not in types:
                raise TypeError(f"col({self.name!r}) must be {self.kind}, not {type(cell).__name__}")
            return cell
        operation = OPERATIONS[self.name]
        cells = [expression(key, value, timestamp) for expression in self.inputs]
        return None if not operation.of_none and None in cells else operation.python(*cells)

    def columns(self) -> dict[str, str]:
        """The columns of a record that it reads, and their kinds."""
        if self.name in _COLUMNS:
            return {self.name: self.kind}
        inputs = (each for each in self.inputs if isinstance(each, Expression))
        return {name: kind for expression in inputs for name, kind in expression.columns().items()}

    # --- Spark's names of a Column's methods, in Python's spelling

    lower = _method("lower")
    upper = _method("upper")
    length = _method("length")
    is_null = _method("is_null")
    to_integer = _method("to_integer")
    to_double = _method("to_double")
    to_text = _method("to_text")
    year = _method("year")
    month = _method("month")
    day = _method("day")
    hour = _method("hour")
    minute = _method("minute")
    __sub__ = _method("subtract")
    __mul__ = _method("multiply")
    __truediv__ = _method("divide")
    # The remainder is never negative.
    __mod__ = _method("modulo")
    __lt__ = _method("lt")
    __le__ = _method("le")
    __and__ = _method("and")
    __or__ = _method("or")
    __invert__ = _method("not")

    def trim(self) -> Expression:
        """Remove the spaces at both ends."""
        return Expression("trim", self)

    def split(self, separator: str) -> Expression:
        """Split at each `separator`, which is text, not a pattern."""
        if not separator:
            raise TopologyException("the separator of split is empty")
        return Expression("split", self, lit(separator))

    def replace(self, old: str, new: str) -> Expression:
        if not old:
            raise TopologyException("replace needs text to search for")
        return Expression("replace", self, lit(old), lit(new))

    def substring(self, start: int, size: int) -> Expression:
        """`size` characters from the index `start`, which counts from 0."""
        if start < 0 or size < 0:
            raise TopologyException("substring needs a start and a size of at least 0")
        return Expression("substring", self, lit(start), lit(size))

    def contains(self, other: str | Expression) -> Expression:
        return Expression("contains", self, _of(other))

    def startswith(self, other: str | Expression) -> Expression:
        return Expression("startswith", self, _of(other))

    def endswith(self, other: str | Expression) -> Expression:
        return Expression("endswith", self, _of(other))

    def is_not_null(self) -> Expression:
        return ~self.is_null()

    def is_in(self, *values: str | int | float) -> Expression:
        test = ~lit(True)
        for value in values:
            test = test | (self == value)
        return test

    def field(self, path: str, type: type = str) -> Expression:
        """A field of JSON: names joined by dots, and the type of its value (str, int, float, bool).
        None if there is no such field, if it has another type, or if the text is no JSON."""
        if not path or type not in _FIELDS:
            raise TopologyException("field needs a path and one of the types str, int, float and bool")
        return Expression(_FIELDS[type], self, lit(path))

    def to_time(self) -> Expression:
        """Milliseconds since 1970 of a time such as 2026-01-31T10:00:00Z or
        2026-01-31T10:00:00.000Z."""
        return Expression("to_time", self)

    def date(self) -> Expression:
        """The date in UTC of milliseconds since 1970, as 2026-01-31."""
        return Expression("date", self)

    def __add__(self, other: Any) -> Expression:
        return Expression("concat" if self.kind == TEXT else "add", self, _of(other))

    def __radd__(self, other: Any) -> Expression:
        return _of(other) + self

    def __rsub__(self, other: Any) -> Expression:
        return _of(other) - self

    def __rmul__(self, other: Any) -> Expression:
        return _of(other) * self

    def __rtruediv__(self, other: Any) -> Expression:
        return _of(other) / self

    def __eq__(self, other: object) -> Expression:  # type: ignore[override]
        return Expression("eq", self, _of(other))

    def __ne__(self, other: object) -> Expression:  # type: ignore[override]
        return ~(self == other)

    def __gt__(self, other: Any) -> Expression:
        return Expression("lt", _of(other), self)

    def __ge__(self, other: Any) -> Expression:
        return Expression("le", _of(other), self)

    def __bool__(self) -> bool:
        raise TopologyException("an expression has a value per record: write & for and, | for or, ~ for not")

    def __repr__(self) -> str:
        if self.name == "constant":
            return repr(self.inputs[0])
        inputs = ", ".join(map(repr, self.inputs))
        return f"{self.name}({inputs})" if inputs else self.name


def _result_kind(name: str, inputs: tuple[Expression, ...]) -> str:
    """The kind of an operation's result, after a check of its inputs."""
    operation = OPERATIONS[name]
    kinds = [expression.kind for expression in inputs]
    for takes, kind in zip(operation.takes, kinds, strict=True):
        if (takes == NUMBER and kind not in (INTEGER, DOUBLE)) or takes not in (ANY, NUMBER, kind):
            expected = " and ".join(takes or "any value" for takes in operation.takes)
            raise TopologyException(f"{name} takes {expected}, not {' and '.join(kinds)}")
    open_kinds = {kind for takes, kind in zip(operation.takes, kinds, strict=True) if takes in (ANY, NUMBER)}
    if len(open_kinds) > 1:
        raise TopologyException(f"{name} cannot combine {' and '.join(kinds)}: convert one with to_double or to_text")
    return open_kinds.pop() if operation.gives in (ANY, NUMBER) else operation.gives


def _of(value: Any) -> Expression:
    return value if isinstance(value, Expression) else lit(value)


def lit(value: str | int | float | bool) -> Expression:
    """A constant."""
    kind = _KINDS.get(type(value))
    if kind is None or (kind in (INTEGER, DOUBLE) and _number(value) is None):  # type: ignore[arg-type]
        raise TopologyException(f"lit takes text, a finite number of 64 bits, True or False, not {value!r}")
    return Expression("constant", value, kind=kind)


def col(name: str, type: type | None = None) -> Expression:
    """A record's `key`, `value` or `timestamp` (in milliseconds). Keys and values are text, unless
    `type` is int, float or bool (for the serdes of numbers and booleans) or dict (for JSON)."""
    if name not in _COLUMNS:
        raise TopologyException(f"a record has the columns key, value and timestamp, not {name!r}")
    kind = JSON if type is dict else _COLUMNS[name] if type is None else _KINDS.get(type)
    if kind is None or (name == "timestamp" and kind != INTEGER):
        raise TopologyException(f"col({name!r}) cannot have the type {type!r}")
    return Expression(name, kind=kind)


def when(test: Expression, value: Any, otherwise: Any) -> Expression:
    """`value` where the test is true, and `otherwise` where it is false or None."""
    return Expression("if", test, _of(value), _of(otherwise))


def coalesce(*values: Any) -> Expression:
    """The first of these that is not None."""
    first, *others = map(_of, values)
    for other in others:
        first = Expression("coalesce", first, other)
    return first


@dataclass(frozen=True)
class Total:
    """A sum, minimum or maximum of an expression's values. None is left out."""

    name: str
    expression: Expression

    def __post_init__(self) -> None:
        if not isinstance(self.expression, Expression) or self.expression.kind not in (INTEGER, DOUBLE):
            raise TopologyException(f"{self.name}_of takes an expression that gives a number, not {self.expression!r}")
        if "timestamp" in self.expression.columns():
            raise TopologyException(f"{self.name}_of cannot read the timestamp: put it into the value with map_values")

    def merge(self, left: Any, right: Any) -> Any:
        """Of two parts of the records, the total."""
        if left is None or right is None:
            return right if left is None else left
        return left + right if self.name == "sum" else min(left, right) if self.name == "min" else max(left, right)


def sum_of(expression: Expression) -> Total:
    return Total("sum", expression)


def min_of(expression: Expression) -> Total:
    return Total("min", expression)


def max_of(expression: Expression) -> Total:
    return Total("max", expression)


class Listed:
    """An expression that gives a list, as a function for `flat_map_values`: None gives nothing."""

    def __init__(self, expression: Expression) -> None:
        if expression.kind != TEXTS:
            raise TopologyException(f"{expression!r} gives {expression.kind}, and flat_map_values needs a list")
        self.expression = expression

    def __call__(self, key: Any, value: Any, timestamp: int | None = None) -> Iterable[Any]:
        return self.expression(key, value, timestamp) or ()
