"""Avro in bounds, for fastavro, whose parser, reader and writer are in C and believe what they are given: a few
thousand levels inside of each other run over the end of the stack, which ends the process, and an array has as many
items as its data says, also where those take no bytes.

Most schemas bound their data themselves. Of those that do not (types inside of themselves, arrays of nothing) the data
is walked over first. The walk is never more lenient than fastavro: where both go on, both are at the same byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

MAX_DEPTH = 200
"""Records, arrays and maps inside of each other; fastavro takes up to 2.6 KB of stack for each."""
MAX_EMPTY_ITEMS = 100_000
"""Items without bytes that the arrays of one datum may have together."""


class OutOfBounds(ValueError):
    """`str()` says what of."""


def check_schema(schema: Any, deepest: int) -> None:
    """Before anything that recurses sees it. What is wrong with it otherwise is for the parser to say."""
    _check_schema(schema, deepest, 0)


def _check_schema(schema: Any, deepest: int, depth: int) -> None:
    if depth > deepest:
        raise OutOfBounds(f"an Avro schema with more than {deepest} types inside of each other")
    if isinstance(schema, list):
        for one in schema:
            if isinstance(one, list):
                raise OutOfBounds("this is no Avro schema: a union inside of a union")
            _check_schema(one, deepest, depth)
    elif isinstance(schema, Mapping):
        fields = schema.get("fields")
        inside = [schema.get(name) for name in ("type", "items", "values")]
        inside += [one.get("type") for one in fields if isinstance(one, Mapping)] if isinstance(fields, list) else []
        for one in inside:
            _check_schema(one, deepest, depth + 1)


def check_value(value: Any, deepest: int) -> None:
    """The same for a value that is to be written: mappings and lists inside of each other."""
    level = _levels((value,))
    for _ in range(deepest):
        level = [inner for outer in level for inner in _levels(outer.values() if isinstance(outer, Mapping) else outer)]
        if not level:
            return
    if level:
        raise OutOfBounds(f"more than {deepest} levels inside of each other")


def _levels(values: Iterable[Any]) -> list[Any]:
    """Those that are levels themselves. A name and a value say which branch of a union it is, and are none."""
    found = []
    for value in values:
        while isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str):
            value = value[1]
        if isinstance(value, (Mapping, list, tuple)):
            found.append(value)
    return found


class _Node:
    """How to go over one value: `op` is one of the letters below, `arg` what it needs to know."""

    __slots__ = ("arg", "is_empty", "op")

    def __init__(self, op: str, arg: Any = None, is_empty: bool = False) -> None:
        self.op = op
        self.arg = arg
        self.is_empty = is_empty
        """It takes no bytes."""


# n: a number. l: a length and as many bytes. s: `arg` bytes. u: a branch of `arg`. r: all of `arg`.
# a: items of the node `arg` in blocks. m: the same, each after a key.
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
    """Of data of one schema, as fastavro has parsed it (all names are full)."""

    def __init__(self, schema: Any, deepest: int = MAX_DEPTH) -> None:
        self._deepest = deepest
        self._given = schema.get("__named_schemas", {}) if isinstance(schema, Mapping) else {}
        self._named: dict[str, _Node] = {}
        self._open: set[str] = set()
        self._has_empty_items = False
        self.contains_itself = False
        """Whether values can be of any depth."""
        self._node = self._of(schema)

    def check(self, data: bytes) -> None:
        """OutOfBounds, where fastavro must not see it."""
        if self.contains_itself or self._has_empty_items:
            _Walk(data, self._deepest).over(self._node)

    def _of(self, schema: Any) -> _Node:
        if isinstance(schema, list):
            return _Node("u", [self._of(one) for one in schema])
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
                made = self._named[schema["name"]] = _Node("s", size, is_empty=size == 0)
                return made
            case kind:
                return self._of(kind)

    def _by_name(self, name: str) -> _Node:
        if name not in self._named:
            if name not in self._given:
                raise OutOfBounds(f"there is no Avro type {name}")
            return self._of(self._given[name])
        self.contains_itself |= name in self._open
        return self._named[name]

    def _record(self, schema: Mapping[str, Any]) -> _Node:
        name = schema["name"]
        made = self._named[name] = _Node("r")
        self._open.add(name)
        fields = [self._of(field["type"]) for field in schema["fields"]]
        self._open.remove(name)
        made.arg = [field for field in fields if not field.is_empty]
        made.is_empty = not made.arg
        return made


class _Walk:
    """Over one datum. Without recursion: how deep Python itself may go is not ours to use up."""

    def __init__(self, data: bytes, deepest: int) -> None:
        self._data = data
        self._at = 0
        self._deepest = deepest
        self._empty_items = MAX_EMPTY_ITEMS

    def over(self, node: _Node) -> None:
        above: list[Iterator[_Node]] = []
        nodes: Iterator[_Node] = iter((node,))
        while True:
            for node in nodes:
                while node.op == "u":
                    node = self._branch(node.arg)
                inside = self._enter(node)
                if inside is not None:
                    above.append(nodes)
                    if len(above) > self._deepest:
                        raise OutOfBounds(f"more than {self._deepest} levels inside of each other")
                    nodes = inside
                    break
            else:
                if not above:
                    return
                nodes = above.pop()

    def _enter(self, node: _Node) -> Iterator[_Node] | None:
        """Go over a value that has no others in it; of one that has, which are to come."""
        match node.op:
            case "n":
                self._number()
            case "l":
                self._skip(self._number())
            case "s":
                self._skip(node.arg)
            case "r":
                fields: list[_Node] = node.arg
                return iter(fields)
            case "a" | "m":
                return self._items(node.arg, node.op == "m")
        return None

    def _branch(self, nodes: list[_Node]) -> _Node:
        branch = self._number()
        if not 0 <= branch < len(nodes):
            raise OutOfBounds(f"there is no branch {branch} in a union of {len(nodes)}")
        return nodes[branch]

    def _items(self, item: _Node, has_keys: bool) -> Iterator[_Node]:
        while count := self._number():
            size = self._number() if count < 0 else None
            start, count = self._at, abs(count)
            if item.is_empty and not has_keys:
                self._empty_items -= count
                if self._empty_items < 0:
                    raise OutOfBounds(f"arrays of more than {MAX_EMPTY_ITEMS} items that take no bytes")
            else:
                for _ in range(count):
                    if has_keys:
                        self._skip(self._number())
                    yield item
            # Whoever skips a block goes by its size.
            if size is not None and size != self._at - start:
                raise OutOfBounds(f"a block of {self._at - start} bytes that says to have {size}")

    def _number(self) -> int:
        data, at = self._data, self._at
        found = shift = 0
        while True:
            if at >= len(data) or shift > 63:
                raise OutOfBounds("a number that does not end")
            byte = data[at]
            at += 1
            found |= (byte & 127) << shift
            if byte < 128:
                break
            shift += 7
        if found >> 64:
            raise OutOfBounds("a number of more than 64 bits")
        self._at = at
        return found >> 1 ^ -(found & 1)

    def _skip(self, count: int) -> None:
        if not 0 <= count <= len(self._data) - self._at:
            raise OutOfBounds(f"{count} bytes where {len(self._data) - self._at} are left")
        self._at += count
