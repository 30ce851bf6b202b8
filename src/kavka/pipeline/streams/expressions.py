"""Expressions of keys and values: `col("value").lower().split(" ")`. No I/O.

One stands for a function of a key and a value wherever a stream takes one, and can be called as
one. Where a whole sub-topology is made of them, Spark works it out by itself (`native.py`), so that
each means the same in Python and in Spark: SQL's, in which nothing can be said of None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from kavka.pipeline.streams.errors import TopologyException

TEXT, NUMBER, TRUTH, TEXTS = "text", "a number", "true or false", "a list of texts"


def _and(one: Any, two: Any) -> Any:
    if one is False or two is False:
        return False
    return None if one is None or two is None else True


def _or(one: Any, two: Any) -> Any:
    if one is True or two is True:
        return True
    return None if one is None or two is None else False


@dataclass(frozen=True)
class Operation:
    """`takes` and `gives` are kinds of values, "" for any. With `of_none` the function is also
    asked about None; otherwise None gives None."""

    takes: tuple[str, ...]
    gives: str
    python: Callable[..., Any]
    of_none: bool = False


OPERATIONS: dict[str, Operation] = {
    "lower": Operation((TEXT,), TEXT, str.lower),
    "upper": Operation((TEXT,), TEXT, str.upper),
    "trim": Operation((TEXT,), TEXT, lambda text: text.strip(" ")),
    "length": Operation((TEXT,), NUMBER, len),
    "concat": Operation((TEXT, TEXT), TEXT, lambda one, two: one + two),
    "split": Operation((TEXT, TEXT), TEXTS, lambda text, separator: text.split(separator)),
    "contains": Operation((TEXT, TEXT), TRUTH, lambda text, part: part in text),
    "startswith": Operation((TEXT, TEXT), TRUTH, str.startswith),
    "endswith": Operation((TEXT, TEXT), TRUTH, str.endswith),
    "eq": Operation(("", ""), TRUTH, lambda one, two: one == two),
    "lt": Operation(("", ""), TRUTH, lambda one, two: one < two),
    "le": Operation(("", ""), TRUTH, lambda one, two: one <= two),
    "not": Operation((TRUTH,), TRUTH, lambda one: not one),
    "and": Operation((TRUTH, TRUTH), TRUTH, _and, of_none=True),
    "or": Operation((TRUTH, TRUTH), TRUTH, _or, of_none=True),
    "is_null": Operation(("",), TRUTH, lambda one: one is None, of_none=True),
}


class Expression:
    """Immutable. `name` is an operation's, or "key", "value", "constant" (which has its value in
    `inputs`)."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, name: str, *inputs: Any) -> None:
        self.name, self.inputs = name, inputs
        self.kind = self._checked()

    def __call__(self, key: Any, value: Any) -> Any:
        if self.name == "constant":
            return self.inputs[0]
        if self.name in ("key", "value"):
            found = key if self.name == "key" else value
            if found is not None and not isinstance(found, str):
                raise TypeError(f"col({self.name!r}) must be text, not {type(found).__name__}")
            return found
        operation = OPERATIONS[self.name]
        given = [one(key, value) for one in self.inputs]
        return None if None in given and not operation.of_none else operation.python(*given)

    def _checked(self) -> str:
        if self.name in ("key", "value"):
            return TEXT
        if self.name == "constant":
            kinds = {str: TEXT, bool: TRUTH, int: NUMBER}
            if type(self.inputs[0]) not in kinds:
                raise TopologyException(f"lit takes text, a number or True and False, not {self.inputs[0]!r}")
            return kinds[type(self.inputs[0])]
        operation = OPERATIONS[self.name]
        found = [one.kind for one in self.inputs]
        if any(wanted not in ("", kind) for wanted, kind in zip(operation.takes, found, strict=True)):
            raise TopologyException(f"{self.name} takes {' and '.join(operation.takes)}, not {' and '.join(found)}")
        if not all(operation.takes) and len(set(found)) > 1:
            raise TopologyException(f"{' and '.join(found)} cannot be compared")
        return operation.gives

    # --- Spark's names of a Column's methods, in Python's spelling

    def lower(self) -> Expression:
        return Expression("lower", self)

    def upper(self) -> Expression:
        return Expression("upper", self)

    def trim(self) -> Expression:
        """Without the spaces before and after."""
        return Expression("trim", self)

    def length(self) -> Expression:
        return Expression("length", self)

    def split(self, separator: str) -> Expression:
        """At each `separator`, which is no pattern."""
        if not separator:
            raise TopologyException("the separator of split is empty")
        return Expression("split", self, lit(separator))

    def contains(self, other: str | Expression) -> Expression:
        return Expression("contains", self, _of(other))

    def startswith(self, other: str | Expression) -> Expression:
        return Expression("startswith", self, _of(other))

    def endswith(self, other: str | Expression) -> Expression:
        return Expression("endswith", self, _of(other))

    def is_null(self) -> Expression:
        return Expression("is_null", self)

    def is_not_null(self) -> Expression:
        return ~self.is_null()

    def is_in(self, *values: str | int) -> Expression:
        found = ~lit(True)
        for one in values:
            found = found | (self == one)
        return found

    def __add__(self, other: str | Expression) -> Expression:
        return Expression("concat", self, _of(other))

    def __radd__(self, other: str) -> Expression:
        return Expression("concat", _of(other), self)

    def __eq__(self, other: object) -> Expression:  # type: ignore[override]
        return Expression("eq", self, _of(other))

    def __ne__(self, other: object) -> Expression:  # type: ignore[override]
        return ~(self == other)

    def __lt__(self, other: Any) -> Expression:
        return Expression("lt", self, _of(other))

    def __le__(self, other: Any) -> Expression:
        return Expression("le", self, _of(other))

    def __gt__(self, other: Any) -> Expression:
        return Expression("lt", _of(other), self)

    def __ge__(self, other: Any) -> Expression:
        return Expression("le", _of(other), self)

    def __and__(self, other: Expression) -> Expression:
        return Expression("and", self, _of(other))

    def __or__(self, other: Expression) -> Expression:
        return Expression("or", self, _of(other))

    def __invert__(self) -> Expression:
        return Expression("not", self)

    def __bool__(self) -> bool:
        raise TopologyException("an expression is true or false of a record: write & for and, | for or, ~ for not")

    def __repr__(self) -> str:
        if self.name == "constant":
            return f"lit({self.inputs[0]!r})"
        told = ", ".join(map(repr, self.inputs)) if self.inputs else ""
        return f"{self.name}({told})" if self.inputs else f"col({self.name!r})"


def _of(value: Any) -> Expression:
    return value if isinstance(value, Expression) else lit(value)


def lit(value: str | int | bool) -> Expression:
    """A constant."""
    return Expression("constant", value)


def col(name: str) -> Expression:
    """A record's `key` or `value`, which must be text."""
    if name not in ("key", "value"):
        raise TopologyException(f"a record has the columns key and value, not {name!r}")
    return Expression(name)


class Listed:
    """For `flat_map_values`: of None, nothing."""

    def __init__(self, expression: Expression) -> None:
        if expression.kind != TEXTS:
            raise TopologyException(f"{expression!r} gives {expression.kind}, and flat_map_values needs a list")
        self.expression = expression

    def __call__(self, key: Any, value: Any) -> Iterable[Any]:
        return self.expression(key, value) or ()
