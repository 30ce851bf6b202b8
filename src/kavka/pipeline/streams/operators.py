"""The operators of KStream without state, and how the user's functions are called.

Each operator is a frozen dataclass, which the topology has, beside the node that runs it for each
record. `lowering.py` has the table of the other ways to run an operator.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from kavka.pipeline.streams.engine import Headers, Node, UserNode
from kavka.pipeline.streams.errors import StreamsException, TopologyException
from kavka.pipeline.streams.expressions import BOOLEAN, Expression, Listed
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


class _FunctionNode(Node):
    """Calls one function of key and value. An expression of the timestamp gets that as well."""

    def __init__(self, function: Function) -> None:
        self._call = function
        if isinstance(function, Expression) and "timestamp" in function.columns():
            self.process = self._process_timed  # type: ignore[method-assign]

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        self.apply(self._call(key, value), key, value, timestamp, headers)

    def _process_timed(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        self.apply(self._call(key, value, timestamp), key, value, timestamp, headers)

    def apply(self, result: Any, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        raise NotImplementedError


@dataclass(frozen=True)
class PassThrough(Operator):
    """Merged streams, and the branches of a split stream."""

    def node(self) -> Node:
        return _PassThrough()


class _PassThrough(Node):
    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        self.forward(key, value, timestamp, headers)


@dataclass(frozen=True)
class Filter(Operator):
    predicate: Function
    negated: bool = False

    def __post_init__(self) -> None:
        _check(self.predicate, BOOLEAN)

    def node(self) -> Node:
        return _Filter(self)


class _Filter(_FunctionNode):
    def __init__(self, operator: Filter) -> None:
        super().__init__(operator.predicate)
        self._negated = operator.negated

    def apply(self, result: Any, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if bool(result) != self._negated:
            self.forward(key, value, timestamp, headers)


@dataclass(frozen=True)
class NonNullKey(Operator):
    """Before a repartition topic: a record without a key cannot be grouped."""

    def node(self) -> Node:
        return _NonNullKey()


class _NonNullKey(Node):
    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if key is not None:
            self.forward(key, value, timestamp, headers)


@dataclass(frozen=True)
class SelectKey(Operator):
    mapper: Function

    def __post_init__(self) -> None:
        _check(self.mapper)

    def node(self) -> Node:
        return _SelectKey(self.mapper)


class _SelectKey(_FunctionNode):
    def apply(self, result: Any, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        self.forward(result, value, timestamp, headers)


@dataclass(frozen=True)
class Map(Operator):
    """`flat`: the mapper gives any number of pairs."""

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

    def node(self) -> Node:
        return _Map(self)


class _Map(Node):
    def __init__(self, operator: Map) -> None:
        self._pairs = operator.pairs

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        for pair in self._pairs(key, value):
            self.forward(*pair, timestamp, headers)


@dataclass(frozen=True)
class MapValues(Operator):
    mapper: Function

    def node(self) -> Node:
        return _MapValues(self.mapper)


class _MapValues(_FunctionNode):
    def apply(self, result: Any, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        self.forward(key, result, timestamp, headers)


@dataclass(frozen=True)
class FlatMapValues(Operator):
    mapper: Function

    @staticmethod
    def of(mapper: Function) -> FlatMapValues:
        return FlatMapValues(Listed(mapper) if isinstance(mapper, Expression) else with_key(mapper))

    def node(self) -> Node:
        return _FlatMapValues(self.mapper)


class _FlatMapValues(_FunctionNode):
    def apply(self, result: Any, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        for each in result:
            self.forward(key, each, timestamp, headers)


@dataclass(frozen=True)
class Peek(Operator):
    """`ends`: nothing is forwarded (`foreach`)."""

    action: Function
    ends: bool = False

    def __post_init__(self) -> None:
        _check(self.action)

    def node(self) -> Node:
        return _Peek(self)


class _Peek(Node):
    def __init__(self, operator: Peek) -> None:
        self._action, self._ends = operator.action, operator.ends

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        self._action(key, value)
        if not self._ends:
            self.forward(key, value, timestamp, headers)


@dataclass(frozen=True)
class Branch(Operator):
    """Forwards a record to the child of the first predicate that is true. One more child than there
    are predicates gets the other records."""

    predicates: tuple[Function, ...] = ()
    names: tuple[str, ...] = ()

    def node(self) -> Node:
        return _Branch(self)


class _Branch(Node):
    def __init__(self, operator: Branch) -> None:
        self._operator = operator

    def init(self) -> None:
        by_name = {child.name: child for child in self.children}
        self._targets = [by_name[name] for name in self._operator.names]

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        for predicate, target in zip(self._operator.predicates, self._targets, strict=False):
            if predicate(key, value):
                target.process(key, value, timestamp, headers)
                return
        if len(self._targets) > len(self._operator.predicates):
            self._targets[-1].process(key, value, timestamp, headers)


@dataclass(frozen=True)
class ToStream(Operator):
    """A table's changes as a stream of its new values."""

    def node(self) -> Node:
        return _ToStream()


class _ToStream(Node):
    def process(self, key: Any, value: Change, timestamp: int, headers: Headers) -> None:
        self.forward(key, value.new, timestamp, headers)


@dataclass(frozen=True)
class Process(Operator):
    """A processor of the Processor API."""

    supplier: Function
    fixed_key: bool = False
    is_user_processor = True

    def node(self) -> Node:
        return UserNode(self.supplier, self.fixed_key)
