"""Arrow arrays from Avro data, compared with the values that fastavro reads."""

from __future__ import annotations

import io
import json
import random
from typing import Any

import pyarrow as pa
import pytest
from fastavro import parse_schema, schemaless_writer
from hypothesis import given, settings
from hypothesis import strategies as st

from kavka import SchemaRegistryError
from kavka.client.schemas.registry import Schema, SchemaRegistry
from kavka.pipeline.columns import registry as column_registry
from kavka.pipeline.columns.avro import has_same_data, parsed
from kavka.pipeline.columns.registry import RegistryColumns
from kavka.pipeline.spark.decoding import ColumnDecoder, _nullable
from kavka.pipeline.spark.errors import PipelineError

ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "count", "type": "int"},
        {"name": "ok", "type": "boolean"},
        {"name": "price", "type": "double"},
        {"name": "weight", "type": ["null", "float"]},
        {"name": "name", "type": ["string", "null"]},
        {"name": "data", "type": "bytes"},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 3}},
        {"name": "other_hash", "type": ["null", "Hash"]},
        {"name": "color", "type": {"type": "enum", "name": "Color", "symbols": ["RED", "GREEN"]}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "exact_at", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "tags", "type": ["null", {"type": "array", "items": ["null", "string"]}]},
        {"name": "more", "type": ["null", {"type": "record", "name": "More", "fields": [
            {"name": "x", "type": "int"}, {"name": "lines", "type": {"type": "array", "items": {
                "type": "record", "name": "Line", "fields": [{"name": "n", "type": "long"}]}}},
        ]}]},
    ],
}  # fmt: skip
HEADER = b"\0\0\0\0\1"


def order(generator: random.Random) -> dict[str, Any]:
    number = generator.choice([0, 1, -1, 63, 64, 2**31 - 1, -(2**31)])
    lines = [{"n": generator.randrange(-(2**63), 2**63)} for _ in range(generator.randrange(3))]
    return {
        "id": generator.randrange(-(2**63), 2**63), "count": number, "ok": generator.random() < 0.5,
        "price": generator.random() * 1e9, "weight": generator.choice([None, 0.5]),
        "name": generator.choice([None, "", "é", "x" * 200]), "data": generator.randbytes(generator.randrange(5)),
        "hash": generator.randbytes(3), "other_hash": generator.choice([None, b"abc"]),
        "color": generator.choice(["RED", "GREEN"]), "at": generator.randrange(-(10**12), 10**12),
        "exact_at": generator.choice([None, 1_700_000_000_123_456]), "day": generator.randrange(-700_000, 2_900_000),
        "tags": generator.choice([None, [], ["a", None, "b"]]),
        "more": generator.choice([None, {"x": 5, "lines": lines}]),
    }  # fmt: skip


def encoded(schema: Any, value: Any) -> bytes:
    data = io.BytesIO()
    schemaless_writer(data, parse_schema(schema), value)
    return HEADER + data.getvalue()


@pytest.fixture
def schemas(monkeypatch: pytest.MonkeyPatch) -> dict[int, Schema]:
    """The schemas of the registry, by id."""
    schemas: dict[int, Schema] = {}
    registry = SchemaRegistry("http://localhost:1")
    monkeypatch.setattr(registry, "schema", schemas.__getitem__)
    monkeypatch.setattr(column_registry, "shared_registry", lambda settings: registry)
    return schemas


def decoder(schema: Any) -> ColumnDecoder:
    text = Schema(json.dumps(schema))
    columns = RegistryColumns("avro", {}, text)
    return ColumnDecoder(columns, _nullable(columns.type_of(text)))


def by_reference(decode: ColumnDecoder, column: pa.Array) -> pa.Array:
    values = [None if data is None else decode._columns.read(data) for data in column.to_pylist()]
    return pa.array(values, type=decode.arrow_type)


def test_arrays_have_the_values_that_fastavro_reads(schemas: dict[int, Schema]) -> None:
    schemas[1] = Schema(json.dumps(ORDER))
    generator = random.Random(5)
    values = [None if number % 7 == 6 else encoded(ORDER, order(generator)) for number in range(3000)]
    decode = decoder(ORDER)
    for column in (
        pa.array(values, pa.binary()),
        pa.array(values, pa.binary()).slice(5, 100),
        pa.array([], pa.binary()),
    ):
        array = decode._columns.read_array(column, decode.arrow_type)
        assert array is not None
        array.validate(full=True)
        assert array.equals(by_reference(decode, column))


@pytest.mark.parametrize("schema", ["string", ["null", "long"], {"type": "array", "items": "int"}])
def test_a_schema_need_not_be_a_record(schemas: dict[int, Schema], schema: Any) -> None:
    schemas[1] = Schema(json.dumps(schema))
    value = {"string": "text", "array": [1, 2]}.get(schema["type"] if isinstance(schema, dict) else str(schema), 7)
    items = [encoded(schema, value), None]
    column = pa.array([*items, encoded(schema, None)] if isinstance(schema, list) else items, pa.binary())
    decode = decoder(schema)
    array = decode._columns.read_array(column, decode.arrow_type)
    assert array is not None and array.equals(by_reference(decode, column))


def test_other_schemas_maps_and_decimals_are_read_by_fastavro(schemas: dict[int, Schema]) -> None:
    writer = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
    schemas[1] = Schema(json.dumps(writer))
    for field, expected in (
        ({"name": "a", "type": "long"}, 5),
        ({"name": "m", "type": {"type": "map", "values": "int"}, "default": {}}, []),
    ):
        decode = decoder({**writer, "fields": [field]})
        column = pa.array([encoded(writer, {"a": 5})], pa.binary())
        assert decode._columns.read_array(column, decode.arrow_type) is None
        batch = pa.record_batch({"topic": ["t"], "partition": [0], "offset": [9]})
        assert decode.decode("value", column, batch).to_pylist() == [{field["name"]: expected}]


def test_the_encoding_depends_neither_on_comments_nor_on_defaults() -> None:
    def schema(**more: Any) -> Any:
        field = {
            "name": "a",
            "type": ["null", {"type": "long", "logicalType": more.pop("logical", "timestamp-millis")}],
        }
        return parsed(json.dumps({"type": "record", "name": "R", "fields": [{**field, **more}]}))

    assert has_same_data(schema(), schema(doc="text", default=None, aliases=["b"]))
    assert not has_same_data(schema(), schema(logical="timestamp-micros"))
    assert not has_same_data(schema(), parsed('"long"')) and has_same_data(parsed('"long"'), parsed('"long"'))
    assert not has_same_data(parsed('["null", "long"]'), parsed('["long", "null"]'))


def test_a_record_that_does_not_fit_fails_with_its_place(schemas: dict[int, Schema]) -> None:
    schemas[1] = Schema(json.dumps(ORDER))
    data = encoded(ORDER, order(random.Random(1)))
    decode = decoder(ORDER)
    for invalid in (data[:-1], data + b"\0", b"\1" + data[1:], data[:4], b""):
        batch = pa.record_batch({"topic": ["t", "t"], "partition": [3, 3], "offset": [8, 9]})
        with pytest.raises(PipelineError, match="the value of t-3 at offset 9 cannot be decoded"):
            decode.decode("value", pa.array([data, invalid], pa.binary()), batch)


def test_errors_of_the_registry_are_not_hidden(schemas: dict[int, Schema], monkeypatch: pytest.MonkeyPatch) -> None:
    decode = decoder(ORDER)

    def fail(schema_id: int) -> Schema:
        raise SchemaRegistryError("no access", 403)

    monkeypatch.setattr(decode._columns.registry, "schema", fail)
    with pytest.raises(SchemaRegistryError, match="no access"):
        decode._columns.read_array(pa.array([encoded(ORDER, order(random.Random(1)))], pa.binary()), decode.arrow_type)


@settings(max_examples=300, deadline=None)
@given(
    st.integers(0, 10**6), st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=4), st.integers(0, 9)
)
def test_whatever_is_read_is_what_fastavro_reads(seed: int, changes: list[tuple[int, int]], cut: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        registry = SchemaRegistry("http://localhost:1")
        patch.setattr(registry, "schema", lambda schema_id: Schema(json.dumps(ORDER)))
        patch.setattr(column_registry, "shared_registry", lambda settings: registry)
        data = bytearray(encoded(ORDER, order(random.Random(seed))))
        for position, byte in changes:
            if 5 <= position < len(data):
                data[position] = byte
        decode = decoder(ORDER)
        column = pa.array([bytes(data[: len(data) - cut])], pa.binary())
        array = decode._columns.read_array(column, decode.arrow_type)
        if array is not None:
            array.validate(full=True)
            assert str(array.to_pylist()) == str(by_reference(decode, column).to_pylist())
