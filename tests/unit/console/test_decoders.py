"""Decoding of keys and values, including invalid bytes."""

from __future__ import annotations

import io
import json
import struct
from datetime import UTC, date, datetime
from decimal import Decimal

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kavka.console.avro import BadSchema, Schema, read_value
from kavka.console.decoders import (
    DECODERS,
    decode,
    decode_internal,
    make_decoder,
    parse_schema,
)
from kavka.console.limits import Budget, TooLarge
from kavka.protocol.messages.offsets_topic import OffsetCommitKey, OffsetCommitValue
from kavka.protocol.messages.transaction_log import TransactionLogKey, TransactionLogValue

USER = {
    "type": "record",
    "name": "User",
    "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"]}],
}


def avro(value, schema=USER) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, value)
    return out.getvalue()


@pytest.mark.parametrize(
    ("data", "kind", "text"),
    [
        (b"hello", "text", "hello"),
        (b"", "text", ""),
        ("žlutá\tkavka\n".encode(), "text", "žlutá\tkavka\n"),
        (b'{"a": 1}', "json", '{"a": 1}'),
        (b"[1, 2]", "json", "[1, 2]"),
        (b"{not json", "text", "{not json"),
        (struct.pack(">i", 65), "number", "65"),
        (struct.pack(">q", -2), "number", "-2"),
        (b"\xff\xfe\x00", "hex", "ff fe 00"),
        (b"\x00\x01\x02", "hex", "00 01 02"),
    ],
)
def test_auto_detects_the_kind(data, kind, text):
    decoded = decode(data)
    assert (decoded.kind, decoded.text, decoded.problem) == (kind, text, "")


def test_decoders_report_bytes_that_do_not_match():
    assert decode(b"a\xff", "text").problem == "not UTF-8 at byte 1"
    assert decode(b"a\xff", "text").text == "a\ufffd"
    assert decode(b"{", "json").problem.startswith("not JSON")
    assert decode(b"abc", "number").problem == "3 bytes: a number has 1, 2, 4, 8"
    assert decode(struct.pack(">d", 1.5), "double").data == 1.5
    assert decode(struct.pack(">d", float("nan")), "double").data is None
    assert decode(b"\x00\xff", "hex").text == "00 ff"
    with pytest.raises(ValueError, match="not a decoder"):
        make_decoder("eval")


def test_json_with_excessive_depth_or_numbers_is_shown_as_text():
    assert "not JSON" in decode(b"[" * 100_000, "json").problem
    assert "not JSON" in decode(b"9" * 10_000, "json").problem
    assert decode(b"[" * 100_000).kind == "text"


def test_avro_is_decoded_with_a_schema():
    schema = json.dumps(USER)
    data = avro({"id": 7, "name": "Ada"})
    assert decode(data, "avro", schema).data == {"id": 7, "name": "Ada"}
    assert json.loads(decode(data, "avro", schema).text) == {"id": 7, "name": "Ada"}
    assert decode(b"\0" + struct.pack(">i", 12) + data, "avro", schema).data == {"id": 7, "name": "Ada"}
    assert "does not match the schema" in decode(data + b"x", "avro", schema).problem
    assert "does not match the schema" in decode(b"\x0e", "avro", schema).problem
    assert "no schema" in decode(data, "avro").problem


def test_avro_container_is_decoded_with_its_schema():
    out = io.BytesIO()
    fastavro.writer(out, USER, [{"id": 1, "name": None}])
    assert decode(out.getvalue()).data == {"id": 1, "name": None}
    out = io.BytesIO()
    fastavro.writer(out, USER, [{"id": n, "name": None} for n in range(200)])
    decoded = decode(out.getvalue())
    assert (len(decoded.data), decoded.problem) == (100, "only the first 100 records are shown")
    assert len(decode(out.getvalue(), "avro").data) == 100
    out = io.BytesIO()
    fastavro.writer(out, USER, [{"id": 1, "name": "x" * 100}] * 50, codec="deflate")
    assert len(decode(out.getvalue(), "avro").data) == 50
    out = io.BytesIO()
    fastavro.writer(out, "bytes", [bytes(20_000_000)], codec="deflate")
    assert "more than" in decode(out.getvalue(), "avro").problem


def test_avro_values_match_fastavro():
    schema = {
        "type": "record",
        "name": "All",
        "namespace": "a.b",
        "fields": [
            {"name": "flag", "type": "boolean"},
            {"name": "small", "type": "int"},
            {"name": "f", "type": "float"},
            {"name": "d", "type": "double"},
            {"name": "raw", "type": "bytes"},
            {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["X", "Y"]}},
            {"name": "other", "type": "Kind"},
            {"name": "id", "type": {"type": "fixed", "name": "Id", "size": 2}},
            {"name": "list", "type": {"type": "array", "items": "long"}},
            {"name": "map", "type": {"type": "map", "values": ["null", "string"]}},
            {"name": "day", "type": {"type": "int", "logicalType": "date"}},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "money", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        ],
    }
    value = {
        "flag": True, "small": -70000, "f": 0.5, "d": -1e300, "raw": b"\x00\xff", "kind": "Y", "other": "X",
        "id": b"ab", "list": [1, -(2**62)], "map": {"k": "v", "n": None}, "day": date(2026, 1, 31),
        "at": datetime(2026, 1, 31, 12, tzinfo=UTC), "money": Decimal("-12.34"),
    }  # fmt: skip
    assert read_value(avro(value, schema), Schema(json.dumps(schema))) == {
        **value, "raw": "00ff", "id": "6162", "day": "2026-01-31", "at": "2026-01-31T12:00:00+00:00",
        "money": "-12.34",
    }  # fmt: skip


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": "null"},
        {"type": "array", "items": {"type": "record", "name": "E", "fields": []}},
        {"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}},
        {"type": "record", "name": "R", "fields": [{"name": "a", "type": {"type": "array", "items": "null"}}]},
    ],
)
def test_array_with_a_huge_count_is_rejected(schema):
    """The bytes declare 2**60 items, which have no bytes."""
    data = avro(2**60, "long") + b"\0"
    with pytest.raises(TooLarge, match="more than 200000 values"):
        read_value(data, Schema(json.dumps(schema)))


def test_invalid_schemas_are_rejected_and_recursive_schemas_accepted():
    for text in ("", "{", "[]x", '{"type": "nonsense"}', "5"):
        with pytest.raises(BadSchema):
            parse_schema(text)
    tree = {"type": "record", "name": "N", "fields": [{"name": "c", "type": {"type": "array", "items": "N"}}]}
    schema = json.dumps(tree)
    assert decode(avro({"c": [{"c": []}]}, tree), "avro", schema).data == {"c": [{"c": []}]}
    # Every level of this tree has another level.
    assert decode(b"\x02" * 100_000, "avro", schema).problem


def test_records_of_internal_topics_are_decoded():
    key = OffsetCommitKey(group="g", topic="t", partition=3)
    value = OffsetCommitValue(offset=9, leader_epoch=1, metadata="m", commit_timestamp=5)
    key_bytes = struct.pack(">h", 1) + key.to_bytes(1)
    value_bytes = struct.pack(">h", 3) + value.to_bytes(3)
    shown_key, shown_value = decode_internal("__consumer_offsets", key_bytes, value_bytes, Budget())
    assert shown_key.data == {"version": 1, "data": {"group": "g", "topic": "t", "partition": 3}}
    assert shown_value.data["data"]["offset"] == 9
    assert decode_internal("__consumer_offsets", key_bytes, None, Budget())[1].kind == "null"

    key_bytes = struct.pack(">h", 0) + TransactionLogKey(transactional_id="x").to_bytes(0)
    value_bytes = struct.pack(">h", 0) + TransactionLogValue(producer_id=4).to_bytes(0)
    shown_key, shown_value = decode_internal("__transaction_state", key_bytes, value_bytes, Budget())
    assert shown_key.data["data"] == {"transactionalId": "x"}
    assert shown_value.data["data"]["producerId"] == 4


@given(st.binary(max_size=40), st.none() | st.binary(max_size=40))
def test_malformed_records_of_internal_topics_raise_nothing(key, value):
    for topic in ("__consumer_offsets", "__transaction_state"):
        decode_internal(topic, key, value, Budget())


@given(st.binary(max_size=60))
def test_arbitrary_bytes_raise_nothing(data):
    for name in DECODERS:
        decoded = decode(data, name, json.dumps(USER) if name == "avro" else "")
        json.dumps(decoded.data)
        decoded.text.encode("utf-8", "surrogatepass")
