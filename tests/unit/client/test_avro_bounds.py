"""Avro data from an untrusted source is decoded, or rejected with a SerializationError."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kavka.client.avro_bounds import MAX_DEPTH, MAX_EMPTY_ITEMS, DataBounds, OutOfBounds, _Walk
from kavka.client.errors import SerializationError
from kavka.client.serializers_extra import AvroSerializer
from kavka.common.config import ConfigError

LIST = {"type": "record", "name": "a.List", "fields": [{"name": "next", "type": ["null", "List"]}]}
TREE = {
    "type": "record",
    "name": "Tree",
    "fields": [
        {"name": "name", "type": "string"},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["x", "y"]}},
        {"name": "mark", "type": {"type": "fixed", "name": "Mark", "size": 2}},
        {"name": "other", "type": ["null", "Kind", "Mark", {"type": "map", "values": "Tree"}]},
        {"name": "kids", "type": {"type": "array", "items": "Tree"}},
        {"name": "numbers", "type": {"type": "array", "items": ["null", "long", "double", "boolean", "bytes"]}},
    ],
}
NOTHING: dict[str, Any] = {"type": "array", "items": {"type": "record", "name": "Empty", "fields": []}}


def long_list(levels: int) -> bytes:
    return b"\x02" * (levels - 1) + b"\x00"


def nested(levels: int) -> Any:
    value: Any = None
    for _ in range(levels):
        value = {"next": value}
    return value


@pytest.mark.parametrize("levels", [1, MAX_DEPTH])
def test_value_up_to_the_depth_limit_round_trips(levels: int) -> None:
    serializer = AvroSerializer(LIST)
    assert serializer.serialize("t", nested(levels)) == long_list(levels)
    assert serializer.deserialize("t", long_list(levels)) == nested(levels)


@pytest.mark.parametrize("levels", [MAX_DEPTH + 1, 1_000_000])
def test_value_above_the_depth_limit_is_rejected_without_a_crash(levels: int) -> None:
    with pytest.raises(SerializationError, match=f"more than {MAX_DEPTH} nested levels"):
        AvroSerializer(LIST).deserialize("t", long_list(levels))
    with pytest.raises(SerializationError, match=f"more than {MAX_DEPTH} nested levels"):
        AvroSerializer(LIST).serialize("t", nested(levels))


def test_type_without_a_finite_value_is_rejected() -> None:
    endless = {"type": "record", "name": "R", "fields": [{"name": "again", "type": "R"}]}
    with pytest.raises(SerializationError):
        AvroSerializer(endless).deserialize("t", b"")


def test_cyclic_value_is_rejected() -> None:
    value: dict[str, Any] = {}
    value["next"] = value
    with pytest.raises(SerializationError):
        AvroSerializer(LIST).serialize("t", value)


def test_depth_limit_is_configurable() -> None:
    serializer = AvroSerializer(LIST, max_depth=5)
    assert serializer.deserialize("t", long_list(5)) == nested(5)
    with pytest.raises(SerializationError):
        serializer.deserialize("t", long_list(6))
    serializer.configure({"avro.max.depth": "6"}, is_key=False)
    assert serializer.deserialize("t", long_list(6)) == nested(6)
    with pytest.raises(ConfigError, match=r"avro\.max\.depth"):
        serializer.configure({"avro.max.depth": "none"}, is_key=False)


def test_limits_apply_to_the_writer_schema() -> None:
    flat = {"type": "record", "name": "a.List", "fields": []}
    serializer = AvroSerializer(flat, writer_schema=LIST)
    assert serializer.deserialize("t", long_list(3)) == {}
    with pytest.raises(SerializationError, match="levels"):
        serializer.deserialize("t", long_list(100_000))


def test_empty_items_are_limited() -> None:
    for schema in (NOTHING, {"type": "array", "items": "null"}):
        serializer = AvroSerializer(schema)
        assert len(serializer.deserialize("t", b"\x06\x00")) == 3
        for data in (b"\xfe" + b"\xff" * 8 + b"\x01\x00", b"\x80\x09" * MAX_EMPTY_ITEMS + b"\x00"):
            with pytest.raises(SerializationError, match="without bytes"):
                serializer.deserialize("t", data)


def test_block_with_a_wrong_size_is_rejected() -> None:
    # A reader that skips the block would continue at another byte.
    bounds = DataBounds(fastavro.parse_schema(TREE["fields"][4]["type"] | {"items": LIST}))  # type: ignore[index]
    bounds.check(b"\x03\x04\x00\x00\x00")
    with pytest.raises(OutOfBounds, match="given as 1 bytes"):
        bounds.check(b"\x03\x02\x00\x00\x00")


@pytest.mark.parametrize("schema", ["{", "[[]]", json.dumps({"type": "nothing"}), "[" * 100_000])
def test_invalid_schema_is_rejected_by_the_constructor(schema: str) -> None:
    with pytest.raises(ConfigError, match=r"avro\.schema: invalid Avro schema"):
        AvroSerializer(schema)


def test_schema_with_too_many_levels_is_rejected_by_the_constructor() -> None:
    deep: Any = "null"
    for _ in range(10_000):
        deep = {"type": "array", "items": deep}
    with pytest.raises(ConfigError, match="nested types"):
        AvroSerializer(deep)


def trees() -> st.SearchStrategy[Any]:
    numbers = st.lists(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.booleans(), st.binary(max_size=3)))

    def tree(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.fixed_dictionaries(
            {
                "name": st.text(max_size=3),
                "kind": st.sampled_from("xy"),
                "mark": st.binary(min_size=2, max_size=2),
                "other": st.one_of(st.none(), st.dictionaries(st.text(max_size=2), inner, max_size=2)),
                "kids": st.lists(inner, max_size=2),
                "numbers": numbers,
            }
        )

    leaf = st.just({"name": "", "kind": "x", "mark": b"ab", "other": None, "kids": [], "numbers": []})
    return st.recursive(leaf, tree, max_leaves=6)


@settings(max_examples=80, deadline=None)
@given(trees())
def test_data_written_by_fastavro_is_accepted(value: Any) -> None:
    serializer = AvroSerializer(TREE)
    data = serializer.serialize("t", value)
    assert serializer.deserialize("t", data) == value


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([LIST, TREE, NOTHING]), st.binary(max_size=60))
def test_accepted_data_is_read_by_fastavro_up_to_the_same_byte(schema: Any, data: bytes) -> None:
    parsed, walk, source = fastavro.parse_schema(schema), _Walk(data, MAX_DEPTH), io.BytesIO(data)
    try:
        walk.over(DataBounds(parsed)._node)
    except OutOfBounds:
        return
    # The walk does not check UTF-8 and enum symbols; fastavro may reject those.
    try:
        fastavro.schemaless_reader(source, parsed, None)
        assert source.tell() == walk._position
    except (UnicodeDecodeError, IndexError):
        assert schema is TREE
