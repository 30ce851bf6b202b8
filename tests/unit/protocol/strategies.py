"""Hypothesis strategies for messages, derived from their schemas."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.unit.protocol.cases import Case, Field, Struct

# Compact lengths from 127 on take a second byte.
_strings = st.one_of(
    st.text(st.characters(exclude_categories=("Cs",)), max_size=8),
    st.integers(120, 140).map(lambda n: "s" * n),
)
_bytes = st.one_of(st.binary(max_size=8), st.integers(120, 140).map(bytes))


def _integers(bits: int, signed: bool = True) -> st.SearchStrategy[int]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) if signed else st.integers(0, (1 << bits) - 1)


_PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int8": _integers(8),
    "int16": _integers(16),
    "uint16": _integers(16, signed=False),
    "int32": _integers(32),
    "uint32": _integers(32, signed=False),
    "int64": _integers(64),
    "float64": st.floats(allow_nan=False),
    "string": _strings,
    "bytes": _bytes,
    "records": _bytes,
    "uuid": st.uuids(),
}


def messages(case: Case, version: int) -> st.SearchStrategy[Any]:
    """Return a strategy for messages with arbitrary values in the fields of this version, and
    defaults in the other fields."""
    return _structs(case, case.schema, version, depth=0)


def _structs(case: Case, struct: Struct, version: int, depth: int) -> st.SearchStrategy[Any]:
    cls = case.cls if struct is case.schema else case.nested(struct)
    fields = {f.name: _values(case, f, version, depth) for f in struct.fields if version in f.versions}
    return st.builds(lambda **arguments: cls(**arguments), **fields)


def _values(case: Case, f: Field, version: int, depth: int) -> st.SearchStrategy[Any]:
    values = _PRIMITIVES[f.type] if f.struct is None else _structs(case, f.struct, version, depth + 1)
    if f.array:
        values = st.lists(values, max_size=3 if depth == 0 else 2)
    return st.none() | values if f.nullable_in(version) else values
