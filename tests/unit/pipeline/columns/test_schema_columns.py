"""Columns of JSON Schema and Protobuf."""

from __future__ import annotations

import json
import time
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import Row
from pyspark.sql.types import DataType, DoubleType, StructType, TimestampNTZType, TimestampType

from kavka.client.schemas.json_schema import JsonValidator
from kavka.client.schemas.protobuf import ProtobufFile
from kavka.client.schemas.registry import Schema
from kavka.pipeline.columns import json_schema, protobuf, types
from kavka.pipeline.columns.errors import ColumnError
from kavka.pipeline.columns.registry import _widening
from kavka.pipeline.columns.types import SchemaName
from tests.support.protos import generated

NO_NAME = SchemaName()


def typed(schema: Any, dependencies: dict[str, Any] | None = None) -> json_schema.Typed:
    texts = {name: Schema(json.dumps(each), "JSON") for name, each in (dependencies or {}).items()}
    return json_schema.to_column(JsonValidator(Schema(json.dumps(schema), "JSON"), texts))


@pytest.mark.parametrize(
    ("schema", "kind", "value", "expected"),
    [
        ({"type": "integer"}, "bigint", 5.0, 5),
        ({"type": "integer", "connect.type": "int8"}, "tinyint", -128, -128),
        ({"type": "number"}, "double", 5, 5.0),
        ({"type": ["null", "boolean"]}, "boolean", None, None),
        ({"enum": ["a", "b"]}, "string", "a", "a"),
        ({"type": "string", "connect.type": "bytes"}, "binary", "AP8=", b"\0\xff"),
        ({"oneOf": [{"type": "null"}, {"type": "string"}]}, "string", "x", "x"),
        ({"type": "array", "items": {"type": ["integer", "null"]}}, "array<bigint>", [1, None], [1, None]),
        ({"type": "object", "additionalProperties": {"type": "number"}}, "map<string,double>", {"a": 1}, {"a": 1.0}),
        (
            {"type": "integer", "title": "org.apache.kafka.connect.data.Timestamp"}, "timestamp", 1500,
            datetime(1970, 1, 1, 0, 0, 1, 500000, tzinfo=UTC),
        ),
        ({"type": "integer", "title": "org.apache.kafka.connect.data.Date"}, "date", 1, date(1970, 1, 2)),
        (
            {"type": "object", "properties": {"a": {"type": "string"}, "b": {"$ref": "#/definitions/n"}},
             "definitions": {"n": {"type": "integer"}}, "required": ["b"]},
            "struct<a:string,b:bigint>", {"b": 1, "more": 2}, {"a": None, "b": 1},
        ),
    ],
)  # fmt: skip
def test_json_schemas_have_column_types(schema: Any, kind: str, value: Any, expected: Any) -> None:
    column = typed(schema)
    assert column.kind.simpleString() == kind
    assert column.convert(value) == expected


def test_references_of_json_schemas_have_column_types() -> None:
    column = typed({"type": "array", "items": {"$ref": "n.json"}}, {"n.json": {"type": "integer"}})
    assert column.kind.simpleString() == "array<bigint>"


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": ["string", "integer"]},
        {"oneOf": [{"type": "string"}, {"type": "integer"}]},
        {"type": "object"},
        {"type": "array"},
        {"type": "object", "properties": {"next": {"$ref": "#"}}},
    ],
)
def test_json_schemas_without_a_column_type_are_refused(schema: Any) -> None:
    with pytest.raises(ColumnError):
        typed(schema)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "integer"}, 1.5),
        ({"type": "integer"}, True),
        ({"type": "integer"}, 2**63),
        ({"type": "integer", "connect.type": "int16"}, 40000),
        ({"type": "number"}, "1"),
        ({"type": "string"}, 1),
        ({"type": "string", "connect.type": "bytes"}, "AP8=\n?"),
        ({"type": "boolean"}, "true"),
        ({"type": "array", "items": {"type": "string"}}, "text"),
        ({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}, {}),
    ],
)
def test_data_of_other_versions_that_does_not_fit_is_refused(schema: Any, value: Any) -> None:
    with pytest.raises(ValueError):
        typed(schema).convert(value)


ROW = Row(
    id=1, size=2, name=None, ok=True, x=1.5, data=bytearray(b"\0"), at=datetime(2024, 1, 2, tzinfo=UTC),
    tags=["a"], counts={"k": 1}, more=Row(y="z"), lines=[Row(z=1)],
)  # fmt: skip
DDL = {
    "id": "int", "size": "bigint", "name": "string", "ok": "boolean", "x": "double", "data": "binary",
    "at": "timestamp", "tags": "array<string>", "counts": "map<string,int>", "more": "struct<y:string>",
    "lines": "array<struct<z:int>>",
}  # fmt: skip


def struct() -> StructType:
    from pyspark.sql import types as t

    simple: dict[str, DataType] = {
        "int": t.IntegerType(), "bigint": t.LongType(), "string": t.StringType(), "boolean": t.BooleanType(),
        "double": t.DoubleType(), "binary": t.BinaryType(), "timestamp": t.TimestampType(),
        "array<string>": t.ArrayType(t.StringType()), "map<string,int>": t.MapType(t.StringType(), t.IntegerType()),
        "struct<y:string>": t.StructType([t.StructField("y", t.StringType())]),
        "array<struct<z:int>>": t.ArrayType(t.StructType([t.StructField("z", t.IntegerType())])),
    }  # fmt: skip
    return t.StructType([t.StructField(name, simple[kind]) for name, kind in DDL.items()])


def expected() -> dict[str, Any]:
    return {**ROW.asDict(recursive=True), "data": b"\0"}


def test_rows_are_written_as_json_and_read_back() -> None:
    text = json_schema.from_spark(struct(), SchemaName("a.Row"))
    validator = JsonValidator(Schema(text, "JSON"), {})
    assert validator.record_name == "a.Row"
    data = validator.write(json_schema.to_json(ROW, struct()))
    column = json_schema.to_column(validator)
    assert column.kind.simpleString() == struct().simpleString()
    assert column.convert(validator.read(data, 0)) == expected()
    with pytest.raises(ValueError, match="nan has no JSON form"):
        json_schema.to_json(float("nan"), DoubleType())


def test_rows_are_written_as_protobuf_and_read_back() -> None:
    message_class = ProtobufFile(protobuf.from_spark(struct(), SchemaName("a.Row")), {}).message_class((0,))
    assert message_class.DESCRIPTOR.full_name == "a.Row"
    assert protobuf.column_type(message_class.DESCRIPTOR).simpleString() == struct().simpleString()
    data = protobuf.fill(message_class(), ROW).SerializeToString()
    assert protobuf.converter(message_class.DESCRIPTOR)(message_class.FromString(data)) == expected()
    with pytest.raises(ColumnError, match="writes structs"):
        protobuf.from_spark(struct()["id"].dataType, NO_NAME)
    with pytest.raises(ValueError, match="no null items"):
        protobuf.fill(message_class(), Row(tags=[None]))


def test_generated_messages_become_columns(tmp_path: Path) -> None:
    money, order = generated(tmp_path)
    kind = protobuf.column_type(order.Order.DESCRIPTOR)
    assert kind.simpleString() == (
        "struct<id:int,price:struct<cents:bigint,currency:string>,at:timestamp,"
        "lines:array<struct<item:string,count:int>>,note:string,tags:map<string,int>>"
    )
    message = order.Order(id=3, price=money.Money(cents=5), note="")
    assert protobuf.converter(order.Order.DESCRIPTOR)(message) == {
        "id": 3, "price": {"cents": 5, "currency": ""}, "at": None, "lines": [], "note": "", "tags": {},
    }  # fmt: skip


def test_values_are_widened_to_the_merged_type() -> None:
    from pyspark.sql import types as t

    def of(inner: DataType) -> StructType:
        return t.StructType(
            [t.StructField("a", t.ArrayType(inner)), t.StructField("m", t.MapType(t.StringType(), inner))]
        )

    merged = types.merge_types(of(t.IntegerType()), of(t.DoubleType()))
    convert = _widening(of(t.IntegerType()), merged)
    assert convert is not None
    widened = convert({"a": [1, None], "m": {"k": 2}})
    assert widened == {"a": [1.0, None], "m": {"k": 2.0}}
    assert type(widened["a"][0]) is type(widened["m"]["k"]) is float
    assert _widening(of(t.DoubleType()), merged) is None


def json_bomb(levels: int) -> dict[str, Any]:
    """A type with 2 ** levels columns."""
    definitions: dict[str, Any] = {"0": {"type": "string"}}
    for level in range(1, levels + 1):
        reference = {"$ref": f"#/definitions/{level - 1}"}
        definitions[str(level)] = {"type": "object", "properties": {"a": reference, "b": reference}}
    return {"$ref": f"#/definitions/{levels}", "definitions": definitions}


def protobuf_bomb(levels: int) -> Any:
    texts = ["message M0 { string a = 1; }"]
    texts += [f"message M{level} {{ M{level - 1} a = 1; M{level - 1} b = 2; }}" for level in range(1, levels + 1)]
    file = ProtobufFile(Schema(f'syntax = "proto3"; {" ".join(texts)}', "PROTOBUF"), {})
    return file.message_class((levels,)).DESCRIPTOR


def test_small_schemas_with_many_columns_are_refused() -> None:
    message = f"more than {types.MAX_COLUMNS} columns"
    assert typed(json_bomb(5)).kind.simpleString().count("string") == 32
    assert protobuf.column_type(protobuf_bomb(5)).simpleString().count("string") == 32
    with pytest.raises(ColumnError, match=message):
        typed(json_bomb(25))
    descriptor = protobuf_bomb(40)
    with pytest.raises(ColumnError, match=message):
        protobuf.column_type(descriptor)
    with pytest.raises(ColumnError, match=message):
        protobuf.converter(descriptor)


def test_a_json_schema_with_an_unknown_reference_has_no_column_type() -> None:
    with pytest.raises(ColumnError, match="without a column type"):
        typed({"$ref": "#/definitions/missing"})


def test_unsigned_keys_of_protobuf_maps_are_checked() -> None:
    text = 'syntax = "proto3"; message A { map<uint64, string> names = 1; }'
    message_class = ProtobufFile(Schema(text, "PROTOBUF"), {}).message_class((0,))
    convert = protobuf.converter(message_class.DESCRIPTOR)
    assert convert(message_class(names={2**63 - 1: "a"})) == {"names": {2**63 - 1: "a"}}
    with pytest.raises(ValueError, match="64 bits"):
        convert(message_class(names={2**63: "a"}))


def test_timestamps_without_a_time_zone_are_not_local_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC-2")
    time.tzset()
    try:
        assert json_schema.to_json(datetime(1970, 1, 1, 3), TimestampNTZType()) == 3 * 3_600_000
        assert json_schema.to_json(datetime(1970, 1, 1, 3), TimestampType()) == 3_600_000
    finally:
        monkeypatch.undo()
        time.tzset()
