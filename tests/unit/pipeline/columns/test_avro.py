"""Avro data from untrusted sources does not crash the reading process, and values are exact."""

from __future__ import annotations

import io
import json
from decimal import Context, Decimal
from typing import Any

import pytest

pytest.importorskip("pyspark")
fastavro = pytest.importorskip("fastavro")

from kavka.pipeline.columns import avro, decimals, types  # noqa: E402
from kavka.pipeline.columns.errors import ColumnError  # noqa: E402
from kavka.pipeline.columns.types import SchemaName  # noqa: E402


def number(value: int) -> bytes:
    """The Avro encoding of an int or a long."""
    value = (value << 1) ^ (value >> 63)
    data = bytearray()
    while value > 127:
        data.append(value & 127 | 128)
        value >>= 7
    return bytes(data) + bytes([value])


def read(schema: Any, data: bytes) -> tuple[Any, str | None]:
    text = json.dumps(schema)
    avro.to_spark(text)
    value, error = avro.reader(text, confluent=False)(data)
    return value, error


def nested(depth: int) -> str:
    return '{"type":"array","items":' * depth + '"long"' + "}" * depth


@pytest.mark.parametrize("depth", [types.MAX_DEPTH + 1, 500, 20_000])
def test_a_schema_that_is_too_deep_is_rejected(depth: int) -> None:
    with pytest.raises(ColumnError, match=r"nested|not an Avro schema"):
        avro.to_spark(nested(depth))


def test_a_schema_of_the_maximum_depth_is_read() -> None:
    depth = types.MAX_DEPTH
    value, error = avro.reader(nested(depth), confluent=False)(b"\x02" * depth + number(7) + b"\0" * depth)
    assert error is None
    for _ in range(depth):
        (value,) = value
    assert value == 7


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "record", "name": "N", "fields": [{"name": "next", "type": ["null", "N"]}]},
        {"type": "record", "name": "N", "fields": [{"name": "all", "type": {"type": "array", "items": "N"}}]},
        # The type inside b.N is b.N itself, not a.N.
        {"type": "record", "name": "x.R", "fields": [
            {"name": "first", "type": {"type": "record", "name": "a.N", "fields": [{"name": "i", "type": "int"}]}},
            {"name": "second", "type": {"type": "record", "name": "b.N", "fields": [
                {"name": "next", "type": ["null", "N"]}]}},
        ]},
    ],
)  # fmt: skip
def test_recursive_types_have_no_column_type(schema: Any) -> None:
    """The data of such a schema determines the depth: fastavro crashes at some thousand levels."""
    with pytest.raises(ColumnError, match="has no column"):
        avro.to_spark(json.dumps(schema))


def test_named_types_cannot_multiply_to_millions_of_columns() -> None:
    fields = [{"name": "f0", "type": {"type": "record", "name": "R0", "fields": [{"name": "x", "type": "int"}]}}]
    for level in range(1, 40):
        inside = [{"name": side, "type": f"R{level - 1}"} for side in "ab"]
        fields.append({"name": f"f{level}", "type": {"type": "record", "name": f"R{level}", "fields": inside}})
    with pytest.raises(ColumnError, match="more than 10000 columns"):
        avro.to_spark(json.dumps({"type": "record", "name": "All", "fields": fields}))


@pytest.mark.parametrize(
    "items",
    [
        {"type": "record", "name": "E", "fields": []},
        {"type": "fixed", "name": "F", "size": 0},
        {"type": "record", "name": "E", "fields": [{"name": "f", "type": {"type": "fixed", "name": "F", "size": 0}}]},
    ],
)
def test_arrays_of_zero_byte_items_are_rejected(items: Any) -> None:
    with pytest.raises(ColumnError, match="items of zero bytes"):
        avro.to_spark(json.dumps({"type": "array", "items": items}))


def test_an_array_with_a_false_item_count_fails() -> None:
    assert read({"type": "array", "items": "int"}, number(10**12) + b"\x02")[1] is not None


@pytest.mark.parametrize(
    "schema",
    ["", "{", "[]", "7", "null", '"nothing"', '{"type": "fixed", "name": "F", "size": -1}', '["null", ["long"]]',
     '{"type": "array"}', '{"fields": 3}', "[" * 100_000,
     '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}, {"name": "a", "type": "int"}]}',
     '{"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 50}'],
)  # fmt: skip
def test_invalid_schemas_are_rejected(schema: str) -> None:
    with pytest.raises(ColumnError):
        avro.to_spark(schema)


def test_values_out_of_range_of_their_type_fail() -> None:
    money = {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}
    assert read("int", number(2**31 - 1)) == (2**31 - 1, None)
    assert read("int", number(2**31)) == (None, "2147483648 is not a 32-bit int")
    counts = {"type": "map", "values": ["null", "int"]}
    inside = {"type": "record", "name": "R", "fields": [{"name": "a", "type": counts}]}
    assert read(inside, number(1) + number(1) + b"k" + b"\x02" + number(-(2**31) - 1) + b"\0")[1] is not None
    assert read(inside, number(1) + number(1) + b"k" + b"\0" + b"\0") == ({"a": {"k": None}}, None)
    assert read(money, number(3) + (-99999).to_bytes(3, "big", signed=True)) == (Decimal("-999.99"), None)
    assert read(money, number(3) + (100000).to_bytes(3, "big")) == (None, "a decimal with more than 5 digits")
    assert read({"type": "long", "logicalType": "timestamp-millis"}, number(2**62))[1] is not None
    assert read({"type": "int", "logicalType": "date"}, number(2**30))[1] is not None
    assert read("string", number(2) + b"\xff\xfe")[1] is not None
    assert read(["null", "long"], number(5))[1] is not None
    assert read("long", number(5) + b"x")[1] == "there are bytes after the datum: it has a different schema"


def test_unsupported_logical_types_are_read_as_plain_types() -> None:
    assert read({"type": "string", "logicalType": "uuid"}, number(3) + b"abc") == ("abc", None)
    assert read({"type": "int", "logicalType": "time-millis"}, number(1000)) == (1000, None)
    assert read({"type": "long", "logicalType": "local-timestamp-millis"}, number(1000)) == (1000, None)
    assert read({"type": "bytes", "logicalType": "decimal"}, number(1) + b"x") == (b"x", None)


def test_decimals_of_38_digits_are_exact() -> None:
    from pyspark.sql.types import DecimalType

    value = Decimal("123456789012345678901234567890123456.78")
    schema = avro.from_spark(DecimalType(38, 2), SchemaName(None, None))
    data = avro.writer(schema, b"")(value)
    with io.BytesIO(data) as source:
        assert fastavro.schemaless_reader(source, json.loads(schema), None) == value
    assert avro.reader(schema, confluent=False)(data) == (value, None)


@pytest.mark.parametrize("text", ["0", "-1", "127", "128", "-128", "-129", "9" * 38, "-" + "9" * 38])
def test_decimal_bytes_equal_those_of_java(text: str) -> None:
    """The shortest two's complement, as BigInteger's toByteArray."""
    number = Decimal(text)
    data = decimals.encode(number.scaleb(-2, Context(prec=50)), 2)
    assert int.from_bytes(data, "big", signed=True) == number
    assert len(data) == 1 or int.from_bytes(data[:-1], "big", signed=True) != number
    assert decimals.decode(data, 38, 2) == number.scaleb(-2, Context(prec=50))
    assert decimals.decode(data, 1, 0) == (number if abs(number) < 10 else None)


def test_the_depth_of_named_types_is_added() -> None:
    def record(name: str, levels: int, inner: Any) -> Any:
        for _ in range(levels):
            inner = {"type": "array", "items": inner}
        return {"type": "record", "name": name, "fields": [{"name": "f", "type": inner}]}

    def schema(levels: int) -> str:
        fields = [{"name": "a", "type": record("A", 30, "long")}, {"name": "b", "type": record("B", levels, "A")}]
        return json.dumps({"type": "record", "name": "R", "fields": fields})

    avro.to_spark(schema(types.MAX_DEPTH - 33))
    with pytest.raises(ColumnError, match=f"more than {types.MAX_DEPTH} nested types"):
        avro.to_spark(schema(types.MAX_DEPTH - 32))


@pytest.mark.parametrize("depth", [types.MAX_DEPTH + 1, 20_000])
def test_a_parsed_schema_that_is_too_deep_has_no_column_type(depth: int) -> None:
    definition: Any = "long"
    for _ in range(depth):
        definition = {"type": "array", "items": definition}
    with pytest.raises(ColumnError, match=f"more than {types.MAX_DEPTH} nested types"):
        avro.column_type(definition)
