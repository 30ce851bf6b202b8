"""Functions of text that Arrow works out for a whole column: `lambda line: line.lower().split("
")`.

A function is understood if its code does nothing but call methods of its value with constants: it
is called once with a Traced in place of a text, which notes what it is asked for. Code that could
do anything else (a name from outside, a loop, an assignment to an attribute) is not called.
Expressions of the same operations are understood, too.

It is for plain ASCII alone, in which Arrow and Python agree on what a lower case letter and white
space are: see `plain`. Every operation makes plain text of plain text.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kavka.pipeline.streams.expressions import Expression, Listed

Operation = Callable[[pa.Array], pa.Array]


class TextFunction(NamedTuple):
    """`splits`: the last operation makes lists, of which none has an empty text if
    `drops_empty`."""

    operations: tuple[Operation, ...]
    splits: bool = False
    drops_empty: bool = False

    def __call__(self, texts: pa.Array) -> pa.Array:
        for operation in self.operations:
            texts = operation(texts)
        return texts

    def pieces(self, texts: pa.Array) -> tuple[pa.Array, Any]:
        """All pieces of all texts, and for each the number of its text."""
        lists = self(texts)
        found, parents = lists.flatten(), pc.list_parent_indices(lists)
        if self.drops_empty:
            wanted = pc.not_equal(found, "")
            found, parents = found.filter(wanted), parents.filter(wanted)
        return found, parents.to_numpy()


def plain(column: pa.Array) -> pa.Array | None:
    """A column of bytes as text; None if one is missing or is not plain: ASCII without the four
    separators (28 to 31) that are white space to Python and to nobody else."""
    wide = pa.types.is_large_binary(column.type)
    if column.null_count or len(column) == 0 or not (wide or pa.types.is_binary(column.type)):
        return None
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int64 if wide else np.int32)
    first, last = ends[column.offset], ends[column.offset + len(column)]
    if first < last:
        found = np.frombuffer(data, np.uint8)[first:last]
        # Unsigned: what is below 28 becomes large.
        if found.max() > 127 or (found - np.uint8(28) < 4).any():
            return None
    return column.view(pa.large_string() if wide else pa.string())


def understood(function: Any) -> TextFunction | None:
    """What a function of a value, or of a key and a value, does to the value; None if that cannot
    be told, or if it is more than what is known here."""
    if isinstance(function, Listed):
        function = function.expression
    if isinstance(function, Expression):
        return _of_expression(function)
    method = _METHODS.get(function) if isinstance(function, types.MethodDescriptorType) else None
    if method is not None:
        found = method(Traced(()))
    elif _touches_its_arguments_alone(function):
        others = [object()] * (function.__code__.co_argcount - 1)
        try:
            found = function(*others, Traced(()))
        except Exception:
            return None
    else:
        return None
    if isinstance(found, Pieces):
        return TextFunction(found.operations, splits=True, drops_empty=found.drops_empty)
    return TextFunction(found.operations) if isinstance(found, Traced) else None


# Arguments, local names, attributes, constants and calls; neither jumps nor anything from outside.
_HARMLESS = {
    "RESUME",
    "CACHE",
    "PRECALL",
    "PUSH_NULL",
    "LOAD_FAST",
    "LOAD_FAST_BORROW",
    "LOAD_FAST_LOAD_FAST",
    "LOAD_FAST_BORROW_LOAD_FAST_BORROW",
    "STORE_FAST",
    "STORE_FAST_LOAD_FAST",
    "LOAD_CONST",
    "LOAD_METHOD",
    "LOAD_ATTR",
    "CALL",
    "RETURN_VALUE",
}


def _touches_its_arguments_alone(function: Any) -> bool:
    if not isinstance(function, types.FunctionType):
        return False
    code = function.__code__
    if code.co_argcount not in (1, 2) or code.co_kwonlyargcount or function.__defaults__ or code.co_flags & _MORE:
        return False
    return not code.co_freevars and all(one.opname in _HARMLESS for one in dis.get_instructions(code))


def is_value(function: Any) -> bool:
    """Whether it is `lambda key, value: value`, by whatever names: most groupings are."""
    code = getattr(function, "__code__", None)
    if code is None or code.co_argcount != 2 or code.co_flags & _MORE:
        return False
    return bool(code.co_code == _value.__code__.co_code)


def _value(key: Any, value: Any) -> Any:
    return value


# *arguments, **arguments, generators and coroutines.
_MORE = 0x4 | 0x8 | 0x20 | 0x80 | 0x200


class Pieces:
    """In place of a list of texts. Nothing can be asked of it."""

    __slots__ = ("drops_empty", "operations")

    def __init__(self, operations: tuple[Operation, ...], drops_empty: bool) -> None:
        self.operations, self.drops_empty = operations, drops_empty


class Traced:
    """In place of a text. What it has no method for is not known here; the error ends the
    function."""

    __slots__ = ("operations",)

    def __init__(self, operations: tuple[Operation, ...]) -> None:
        self.operations = operations

    def lower(self) -> Traced:
        return Traced((*self.operations, pc.ascii_lower))

    casefold = lower

    def upper(self) -> Traced:
        return Traced((*self.operations, pc.ascii_upper))

    def strip(self) -> Traced:
        return Traced((*self.operations, pc.ascii_trim_whitespace))

    def replace(self, old: str, new: str, /) -> Traced:
        _check(old)
        _check(new, may_be_empty=True)
        return Traced((*self.operations, lambda texts: pc.replace_substring(texts, old, new)))

    def split(self, separator: str | None = None, /) -> Pieces:
        if separator is None:
            return Pieces((*self.operations, pc.ascii_trim_whitespace, pc.ascii_split_whitespace), drops_empty=True)
        _check(separator)
        return Pieces((*self.operations, lambda texts: pc.split_pattern(texts, separator)), drops_empty=False)


def _check(text: Any, may_be_empty: bool = False) -> None:
    plain_text = type(text) is str and text.isascii() and not any("\x1c" <= one <= "\x1f" for one in text)
    if not plain_text or not (text or may_be_empty):
        raise ValueError(text)


_METHODS: dict[Any, Callable[[Traced], Traced | Pieces]] = {
    str.lower: Traced.lower,
    str.casefold: Traced.lower,
    str.upper: Traced.upper,
    str.strip: Traced.strip,
    str.split: Traced.split,
}


def _of_expression(expression: Expression) -> TextFunction | None:
    if expression.name == "value":
        return TextFunction(())
    if expression.name not in ("lower", "upper", "split"):
        return None
    before = _of_expression(expression.inputs[0])
    if before is None:
        return None
    traced = Traced(before.operations)
    if expression.name == "split":
        separator = expression.inputs[1].inputs[0]
        try:
            return TextFunction(traced.split(separator).operations, splits=True)
        except ValueError:
            return None
    return TextFunction((traced.lower() if expression.name == "lower" else traced.upper()).operations)
