"""What the bytes of messages mean, also of those that were made to do harm."""

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

from kavka.console.avro import BadSchema, Schema, read_alone
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
def test_auto_finds_out(data, kind, text):
    found = decode(data)
    assert (found.kind, found.text, found.problem) == (kind, text, "")


def test_each_decoder_says_when_the_bytes_do_not_fit():
    assert decode(b"a\xff", "text").problem == "not UTF-8 at byte 1"
    assert decode(b"a\xff", "text").text == "a\ufffd"
    assert decode(b"{", "json").problem.startswith("not JSON")
    assert decode(b"abc", "number").problem == "3 bytes: a number has 1, 2, 4, 8"
    assert decode(struct.pack(">d", 1.5), "double").data == 1.5
    assert decode(struct.pack(">d", float("nan")), "double").data is None
    assert decode(b"\x00\xff", "hex").text == "00 ff"
    with pytest.raises(ValueError, match="not a way to decode"):
        make_decoder("eval")


def test_json_that_is_too_deep_or_has_numbers_too_long():
    assert "not JSON" in decode(b"[" * 100_000, "json").problem
    assert "not JSON" in decode(b"9" * 10_000, "json").problem
    assert decode(b"[" * 100_000).kind == "text"


def test_avro_with_a_schema_that_is_given():
    schema = json.dumps(USER)
    data = avro({"id": 7, "name": "Ada"})
    assert decode(data, "avro", schema).data == {"id": 7, "name": "Ada"}
    assert json.loads(decode(data, "avro", schema).text) == {"id": 7, "name": "Ada"}
    assert decode(b"\0" + struct.pack(">i", 12) + data, "avro", schema).data == {"id": 7, "name": "Ada"}
    assert "not of this schema" in decode(data + b"x", "avro", schema).problem
    assert "not of this schema" in decode(b"\x0e", "avro", schema).problem
    assert "no schema" in decode(data, "avro").problem


def test_avro_that_brings_its_schema():
    out = io.BytesIO()
    fastavro.writer(out, USER, [{"id": 1, "name": None}])
    assert decode(out.getvalue()).data == {"id": 1, "name": None}
    out = io.BytesIO()
    fastavro.writer(out, USER, [{"id": n, "name": None} for n in range(200)])
    found = decode(out.getvalue())
    assert (len(found.data), found.problem) == (100, "only the first 100 records are shown") or found.kind == "hex"
    assert len(decode(out.getvalue(), "avro").data) == 100
    out = io.BytesIO()
    fastavro.writer(out, USER, [{"id": 1, "name": "x" * 100}] * 50, codec="deflate")
    assert len(decode(out.getvalue(), "avro").data) == 50
    out = io.BytesIO()
    fastavro.writer(out, "bytes", [bytes(20_000_000)], codec="deflate")
    assert "more than" in decode(out.getvalue(), "avro").problem


def test_avro_values_of_every_kind_are_read_as_fastavro_wrote_them():
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
    assert read_alone(avro(value, schema), Schema(json.dumps(schema))) == {
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
def test_a_few_bytes_that_claim_to_be_without_end_are_refused(schema):
    """A list of 2**60 things that take no bytes."""
    claim = avro(2**60, "long") + b"\0"
    with pytest.raises(TooLarge, match="more than 200000 values"):
        read_alone(claim, Schema(json.dumps(schema)))


def test_schemas_that_are_none_are_refused_and_trees_are_not():
    for text in ("", "{", "[]x", '{"type": "nonsense"}', "5"):
        with pytest.raises(BadSchema):
            parse_schema(text)
    tree = {"type": "record", "name": "N", "fields": [{"name": "c", "type": {"type": "array", "items": "N"}}]}
    schema = json.dumps(tree)
    assert decode(avro({"c": [{"c": []}]}, tree), "avro", schema).data == {"c": [{"c": []}]}
    # A tree that is deeper than anybody can go: each level says that one more follows.
    assert decode(b"\x02" * 100_000, "avro", schema).problem


def test_internal_topics_are_shown_in_their_own_layout():
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
def test_nothing_in_an_internal_topic_is_an_error(key, value):
    for topic in ("__consumer_offsets", "__transaction_state"):
        decode_internal(topic, key, value, Budget())


@given(st.binary(max_size=60))
def test_no_bytes_are_an_error(data):
    for name in DECODERS:
        found = decode(data, name, json.dumps(USER) if name == "avro" else "")
        json.dumps(found.data)
        found.text.encode("utf-8", "surrogatepass")
