"""The steps of KStream without state, and how functions of users are called."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from kavka.pipeline.streams.engine import Headers, Node
from kavka.pipeline.streams.errors import StreamsException, TopologyException
from kavka.pipeline.streams.expressions import Expression
from kavka.pipeline.streams.serdes import Change


def places(function: Callable[..., Any]) -> int | None:
    """How many arguments a function takes by place; None if that cannot be told."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None
    if any(one.kind is one.VAR_POSITIONAL for one in parameters):
        return None
    by_place = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    needed = [one for one in by_place if one.default is one.empty]
    return len(needed) or len(by_place)


class _WithoutKey:
    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, key: Any, *values: Any) -> Any:
        return self.function(*values)


def with_key(function: Callable[..., Any], values: int = 1) -> Callable[..., Any]:
    """A function of `values` values, or of the key and `values` values, as one that is given the
    key too."""
    if not callable(function):
        raise TopologyException(f"{function!r} is no function")
    if isinstance(function, Expression) and values == 1:
        return function
    return function if places(function) == values + 1 else _WithoutKey(function)


class PassThrough(Node):
    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        self.forward(key, value, timestamp, headers)


class Filter(Node):
    def __init__(self, predicate: Callable[[Any, Any], Any], negated: bool) -> None:
        self._predicate, self._negated = predicate, negated

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if bool(self._predicate(key, value)) != self._negated:
            self.forward(key, value, timestamp, headers)


class NonNullKey(Node):
    """Before a repartition topic: what has no key cannot be grouped."""

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        if key is not None:
            self.forward(key, value, timestamp, headers)


class SelectKey(Node):
    def __init__(self, mapper: Callable[[Any, Any], Any]) -> None:
        self._mapper = mapper

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        self.forward(self._mapper(key, value), value, timestamp, headers)


class Map(Node):
    def __init__(self, mapper: Callable[[Any, Any], tuple[Any, Any]]) -> None:
        self._mapper = mapper

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        self.forward(*_pair(self._mapper(key, value), self.name), timestamp, headers)


class FlatMap(Node):
    def __init__(self, mapper: Callable[[Any, Any], Any]) -> None:
        self._mapper = mapper

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        for pair in self._mapper(key, value):
            self.forward(*_pair(pair, self.name), timestamp, headers)


def _pair(found: Any, name: str) -> tuple[Any, Any]:
    if not isinstance(found, tuple) or len(found) != 2:
        raise StreamsException(f"{name} must give (key, value), not {found!r}")
    return found


class MapValues(Node):
    def __init__(self, mapper: Callable[[Any, Any], Any]) -> None:
        self._mapper = mapper

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        self.forward(key, self._mapper(key, value), timestamp, headers)


class FlatMapValues(Node):
    def __init__(self, mapper: Callable[[Any, Any], Any]) -> None:
        self._mapper = mapper

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        for one in self._mapper(key, value):
            self.forward(key, one, timestamp, headers)


class Peek(Node):
    def __init__(self, action: Callable[[Any, Any], Any], ends: bool) -> None:
        self._action, self._ends = action, ends

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        self._action(key, value)
        if not self._ends:
            self.forward(key, value, timestamp, headers)


class Branch(Node):
    """Each record to the child of the first predicate that it meets; the last child, if there is
    one more, gets the rest."""

    def __init__(self, predicates: Sequence[Callable[[Any, Any], Any]], names: Sequence[str]) -> None:
        self._predicates, self._names = tuple(predicates), tuple(names)

    def init(self) -> None:
        by_name = {one.name: one for one in self.children}
        self._targets = [by_name[name] for name in self._names]

    def process(self, key: Any, value: Any, timestamp: int, headers: Headers) -> None:
        for predicate, target in zip(self._predicates, self._targets, strict=False):
            if predicate(key, value):
                target.process(key, value, timestamp, headers)
                return
        if len(self._targets) > len(self._predicates):
            self._targets[-1].process(key, value, timestamp, headers)


class ToStream(Node):
    """From a table's changes to a stream of new values."""

    def process(self, key: Any, value: Change, timestamp: int, headers: Headers) -> None:
        self.forward(key, value.new, timestamp, headers)
