"""Limits for Avro data. The parser, reader and writer of fastavro are written in C and do not limit
their input: a few thousand nested levels overflow the stack, which kills the process, and an array
may have any item count if its items have no bytes.

Most schemas limit their data. For schemas that do not (recursive types, arrays of empty items),
`DataBounds.check` walks the data before fastavro reads it. The walk is never more lenient than
fastavro: as long as both continue, both are at the same byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

MAX_DEPTH = 200
"""The maximum depth of nested records, arrays and maps. fastavro uses up to 2.6 KB of stack for
each level."""
MAX_EMPTY_ITEMS = 100_000
"""The maximum total number of empty items in all arrays of one datum."""


class OutOfBounds(ValueError):
    """A schema, a value or data exceeds a limit. The message names the limit."""


def check_schema(schema: Any, max_depth: int) -> int:
    """Check the nesting of a schema before any recursive code reads it, and return its depth. The
    parser reports all other errors."""
    return _check_schema(schema, max_depth, 0)


def _check_schema(schema: Any, max_depth: int, depth: int) -> int:
    if depth > max_depth:
        raise OutOfBounds(f"the Avro schema has more than {max_depth} nested types")
    deepest = depth
    if isinstance(schema, list):
        for branch in schema:
            if isinstance(branch, list):
                raise OutOfBounds("invalid Avro schema: a union contains a union")
            deepest = max(deepest, _check_schema(branch, max_depth, depth))
    elif isinstance(schema, Mapping):
        fields = schema.get("fields")
        nested = [schema.get(name) for name in ("type", "items", "values")]
        if isinstance(fields, list):
            nested += [field.get("type") for field in fields if isinstance(field, Mapping)]
        for inner in nested:
            deepest = max(deepest, _check_schema(inner, max_depth, depth + 1))
    return deepest


def check_value(value: Any, max_depth: int) -> None:
    """Check the nesting of mappings and lists in a value before fastavro writes it."""
    level = _levels((value,))
    for _ in range(max_depth):
        level = [inner for outer in level for inner in _levels(outer.values() if isinstance(outer, Mapping) else outer)]
        if not level:
            return
    if level:
        raise OutOfBounds(f"the value has more than {max_depth} nested levels")


def _levels(values: Iterable[Any]) -> list[Any]:
    """Return the values that are mappings or sequences. A pair of a name and a value selects a
    branch of a union, and is not a level."""
    levels = []
    for value in values:
        while isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str):
            value = value[1]
        if isinstance(value, (Mapping, list, tuple)):
            levels.append(value)
    return levels


@dataclass(slots=True, eq=False)
class _Node:
    """A step of a walk over data. `kind` is one of the letters below, `argument` its parameter."""

    kind: str
    argument: Any = None
    is_empty: bool = False
    """Whether the value has no bytes."""


# n: a number. l: a length and that many bytes. s: `argument` bytes. u: one of the nodes `argument`.
# r: all nodes `argument`. a: blocks of items of the node `argument`. m: like a, with a key before
# each item.
_NUMBER, _LENGTH_FIRST = _Node("n"), _Node("l")
_PRIMITIVE = {
    "null": _Node("s", 0, is_empty=True),
    "boolean": _Node("s", 1),
    "int": _NUMBER,
    "long": _NUMBER,
    "float": _Node("s", 4),
    "double": _Node("s", 8),
    "bytes": _LENGTH_FIRST,
    "string": _LENGTH_FIRST,
}


class DataBounds:
    """The limits of data of one schema, which fastavro has parsed. Immutable after construction."""

    def __init__(self, schema: Any, max_depth: int = MAX_DEPTH) -> None:
        self._max_depth = max_depth
        self._schemas_by_name = schema.get("__named_schemas", {}) if isinstance(schema, Mapping) else {}
        self._named: dict[str, _Node] = {}
        self._open: set[str] = set()
        self._has_empty_items = False
        self.contains_itself = False
        """Whether a value can be nested to any depth."""
        self._node = self._of(schema)

    def check(self, data: bytes) -> None:
        """Raise OutOfBounds for data that fastavro must not read."""
        if self.contains_itself or self._has_empty_items:
            _Walk(data, self._max_depth).over(self._node)

    def _of(self, schema: Any) -> _Node:
        if isinstance(schema, list):
            return _Node("u", [self._of(branch) for branch in schema])
        if isinstance(schema, str):
            return _PRIMITIVE.get(schema) or self._by_name(schema)
        match schema["type"]:
            case "record" | "error" | "request":
                return self._record(schema)
            case "array":
                item = self._of(schema["items"])
                self._has_empty_items |= item.is_empty
                return _Node("a", item)
            case "map":
                return _Node("m", self._of(schema["values"]))
            case "enum":
                self._named[schema["name"]] = _NUMBER
                return _NUMBER
            case "fixed":
                size = schema["size"]
                node = self._named[schema["name"]] = _Node("s", size, is_empty=size == 0)
                return node
            case kind:
                return self._of(kind)

    def _by_name(self, name: str) -> _Node:
        if name not in self._named:
            if name not in self._schemas_by_name:
                raise OutOfBounds(f"unknown Avro type {name}")
            return self._of(self._schemas_by_name[name])
        self.contains_itself |= name in self._open
        return self._named[name]

    def _record(self, schema: Mapping[str, Any]) -> _Node:
        name = schema["name"]
        node = self._named[name] = _Node("r")
        self._open.add(name)
        fields = [self._of(field["type"]) for field in schema["fields"]]
        self._open.remove(name)
        node.argument = [field for field in fields if not field.is_empty]
        node.is_empty = not node.argument
        return node


class _Walk:
    """A walk over one datum. It does not recurse, so nesting cannot exhaust Python's stack."""

    def __init__(self, data: bytes, max_depth: int) -> None:
        self._data = data
        self._position = 0
        self._max_depth = max_depth
        self._remaining_empty_items = MAX_EMPTY_ITEMS

    def over(self, node: _Node) -> None:
        outer_nodes: list[Iterator[_Node]] = []
        nodes: Iterator[_Node] = iter((node,))
        while True:
            for node in nodes:
                while node.kind == "u":
                    node = self._branch(node.argument)
                nested_nodes = self._enter(node)
                if nested_nodes is not None:
                    outer_nodes.append(nodes)
                    if len(outer_nodes) > self._max_depth:
                        raise OutOfBounds(f"the data has more than {self._max_depth} nested levels")
                    nodes = nested_nodes
                    break
            else:
                if not outer_nodes:
                    return
                nodes = outer_nodes.pop()

    def _enter(self, node: _Node) -> Iterator[_Node] | None:
        """Return the nested nodes of a value. A value without nested values is skipped, and the
        result is None."""
        match node.kind:
            case "n":
                self._number()
            case "l":
                self._skip(self._number())
            case "s":
                self._skip(node.argument)
            case "r":
                fields: list[_Node] = node.argument
                return iter(fields)
            case "a" | "m":
                return self._items(node.argument, node.kind == "m")
        return None

    def _branch(self, nodes: list[_Node]) -> _Node:
        branch = self._number()
        if not 0 <= branch < len(nodes):
            raise OutOfBounds(f"a union of {len(nodes)} types has no branch {branch}")
        return nodes[branch]

    def _items(self, item: _Node, has_keys: bool) -> Iterator[_Node]:
        while count := self._number():
            size = self._number() if count < 0 else None
            start, count = self._position, abs(count)
            if item.is_empty and not has_keys:
                self._remaining_empty_items -= count
                if self._remaining_empty_items < 0:
                    raise OutOfBounds(f"the data has more than {MAX_EMPTY_ITEMS} array items without bytes")
            else:
                for _ in range(count):
                    if has_keys:
                        self._skip(self._number())
                    yield item
            # A reader that skips a block relies on its size.
            if size is not None and size != self._position - start:
                raise OutOfBounds(f"a block has {self._position - start} bytes, but its size is given as {size} bytes")

    def _number(self) -> int:
        data, position = self._data, self._position
        number = shift = 0
        while True:
            if position >= len(data) or shift > 63:
                raise OutOfBounds("a number extends past the end of the data or has more than ten bytes")
            byte = data[position]
            position += 1
            number |= (byte & 127) << shift
            if byte < 128:
                break
            shift += 7
        if number >> 64:
            raise OutOfBounds("a number has more than 64 bits")
        self._position = position
        return number >> 1 ^ -(number & 1)

    def _skip(self, count: int) -> None:
        if not 0 <= count <= len(self._data) - self._position:
            raise OutOfBounds(
                f"a value has a length of {count} bytes, but {len(self._data) - self._position} bytes remain"
            )
        self._position += count
