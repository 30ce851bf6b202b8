"""The operators of KStream without state, and how the user's functions are called.

Each operator is a frozen dataclass of the topology, whose `process` runs it for each record.
`lowering.py` has the table of the other ways to run an operator.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from kavka.pipeline.streams.errors import StreamsException, TopologyException
from kavka.pipeline.streams.expressions import BOOLEAN, Expression, Listed
from kavka.pipeline.streams.processors import Headers, Node, RecordOperator, UserNode
from kavka.pipeline.streams.serdes import Change
from kavka.pipeline.streams.topology import Operator

Function = Callable[..., Any]


def argument_count(function: Function) -> int | None:
    """The number of positional arguments of a function; None if it has no signature or takes any
    number."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return None
    kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    positional = [parameter for parameter in parameters if parameter.kind in kinds]
    required = [parameter for parameter in positional if parameter.default is parameter.empty]
    return len(required) or len(positional)


@dataclass(frozen=True)
class OfValues:
    """A function of values, as a function of the key and the values."""

    function: Function

    def __call__(self, key: Any, *values: Any) -> Any:
        return self.function(*values)


@dataclass(frozen=True)
class Negated:
    """The opposite of a predicate."""

    predicate: Function

    def __call__(self, key: Any, value: Any) -> bool:
        return not self.predicate(key, value)


def with_key(function: Function, values: int = 1) -> Function:
    """Return a function of the key and `values` values. The user's function may leave out the
    key."""
    if not callable(function):
        raise TopologyException(f"{function!r} is no function")
    if isinstance(function, Expression) and values == 1:
        return function
    return function if argument_count(function) == values + 1 else OfValues(function)


def _check(function: Any, kind: str | None = None) -> None:
    if not callable(function):
        raise TopologyException(f"{function!r} is no function")
    if kind is not None and isinstance(function, Expression) and function.kind != kind:
        raise TopologyException(f"{function!r} gives {function.kind}, and {kind} is needed here")


def _call(function: Function, key: Any, value: Any, timestamp: int) -> Any:
    """Call a function of key and value. An expression may also read the timestamp."""
    is_expression = isinstance(function, Expression | Listed)
    return function(key, value, timestamp) if is_expression else function(key, value)


@dataclass(frozen=True)
class PassThrough(RecordOperator):
    """Merged streams, and the branches of a split stream."""

    def process(self, node: Node, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        node.forward(key, value, timestamp, headers)


@dataclass(frozen=True)
class Filter(RecordOperator):
    predicate: Function
    negated: bool = False

    def __post_init__(self) -> None:
        _check(self.predicate, BOOLEAN)

    def process(self, node: Node, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if bool(_call(self.predicate, key, value, timestamp)) != self.negated:
            node.forward(key, value, timestamp, headers)


@dataclass(frozen=True)
class NonNullKey(RecordOperator):
    """Before a repartition topic: a record without a key cannot be grouped."""

    def process(self, node: Node, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if key is not None:
            node.forward(key, value, timestamp, headers)


@dataclass(frozen=True)
class SelectKey(RecordOperator):
    mapper: Function

    def __post_init__(self) -> None:
        _check(self.mapper)

    def process(self, node: Node, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        node.forward(_call(self.mapper, key, value, timestamp), value, timestamp, headers)


@dataclass(frozen=True)
class Map(RecordOperator):
    """With `flat`, the mapper returns any number of pairs."""

    mapper: Function
    flat: bool = False

    def __post_init__(self) -> None:
        _check(self.mapper)

    def pairs(self, key: Any, value: Any) -> Iterable[tuple[Any, Any]]:
        result = self.mapper(key, value)
        for pair in result if self.flat else (result,):
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise StreamsException(f"the function of a map must return (key, value), not {pair!r}")
            yield pair

    def process(self, node: Node, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        for pair in self.pairs(key, value):
            node.forward(*pair, timestamp, headers)


@dataclass(frozen=True)
class MapValues(RecordOperator):
    mapper: Function

    def process(self, node: Node, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        node.forward(key, _call(self.mapper, key, value, timestamp), timestamp, headers)


@dataclass(frozen=True)
class FlatMapValues(RecordOperator):
    mapper: Function

    @staticmethod
    def of(mapper: Function) -> FlatMapValues:
        return FlatMapValues(Listed(mapper) if isinstance(mapper, Expression) else with_key(mapper))

    def process(self, node: Node, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        for each in _call(self.mapper, key, value, timestamp):
            node.forward(key, each, timestamp, headers)


@dataclass(frozen=True)
class Peek(RecordOperator):
    """With `ends`, nothing is forwarded (`foreach`)."""

    action: Function
    ends: bool = False

    def __post_init__(self) -> None:
        _check(self.action)

    def process(self, node: Node, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        self.action(key, value)
        if not self.ends:
            node.forward(key, value, timestamp, headers)


@dataclass(frozen=True)
class Branch(RecordOperator):
    """Forwards a record to the child of the first predicate that is true. One more child than there
    are predicates gets the other records."""

    predicates: tuple[Function, ...] = ()
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for predicate in self.predicates:
            _check(predicate, BOOLEAN)

    def process(self, node: Node, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        for predicate, name in zip_longest(self.predicates, self.names):
            if predicate is None or _call(predicate, key, value, timestamp):
                child = next(child for child in node.children if child.name == name)
                child.process(key, value, timestamp, headers)
                return


@dataclass(frozen=True)
class ToStream(RecordOperator):
    """A table's changes as a stream of its new values."""

    def process(self, node: Node, key: Any, value: Change, timestamp: int, headers: Headers) -> None:
        node.forward(key, value.new, timestamp, headers)


@dataclass(frozen=True)
class Process(Operator):
    """A processor of the Processor API."""

    supplier: Function
    fixed_key: bool = False
    is_user_processor = True

    def node(self) -> Node:
        return UserNode(self.supplier, self.fixed_key)
