"""Filters by bytes, messages as rows and cells, and what is typed as bytes."""

from __future__ import annotations

import json
import struct

import pytest

from kavka.client.consumer._decode import ConsumerRecord
from kavka.console import showing, writing
from kavka.console.errors import Refused
from kavka.console.expressions import BadExpression
from kavka.console.filters import Filter


def record(value: bytes | None = b"value", key: bytes | None = b"key", headers=(), offset: int = 5) -> ConsumerRecord:
    return ConsumerRecord(
        "t", 1, offset, key, value, 1500, 0, headers, 3, len(key or b"") if key is not None else -1, len(value or b"")
    )


@pytest.mark.parametrize(
    ("filters", "fits"),
    [
        ({}, True),
        ({"key": "ke"}, True),
        ({"key": "KE"}, False),
        ({"text": "alu"}, True),
        ({"text": "ey"}, True),
        ({"text": "trace-1"}, True),
        ({"text": "other"}, False),
        ({"header": "trace"}, True),
        ({"header": "trace=e-1"}, True),
        ({"header": "trace = x"}, False),
        ({"header": "none"}, True),
        ({"header": "none=a"}, False),
        ({"header": "missing"}, False),
        ({"key": "key", "text": "other"}, False),
        ({"text": "76 61 6c", "value_decoder": "hex"}, True),
        ({"key": "6b 65", "key_decoder": "hex"}, True),
        ({"path": "$.a == 1"}, False),
    ],
)
def test_filters_fit_or_not(filters, fits):
    message = Filter("t", **filters).match(record(headers=(("trace", b"trace-1"), ("none", None))))
    assert (message is not None) == fits


def test_json_paths_may_be_written_in_several_ways():
    data = record(json.dumps([{"a b": {"c": 1}}]).encode())
    for path in ("$[0]['a b'].c == 1", '[0]["a b"].c == 1', "$[*]['a b'].c"):
        assert Filter("t", path=path).match(data), path
    with pytest.raises(BadExpression):
        Filter("t", path="$..a")
    with pytest.raises(BadExpression):
        Filter("t", header="=x")


def test_a_row_is_cut_and_what_is_not_seen_is_shown():
    message = Filter("t").match(record(b"x" * 1000, b"a\tb", (("na\udcffme", b"\xff"), ("null", None))))
    row = showing.row(message, 100)
    assert (len(row.value.text), row.value.cut, row.value.size) == (100, True, 1000)
    assert (row.key.text, row.key.cut) == ("a\tb", False)
    assert row.headers[0].name == "na\ufffdme"
    assert (row.headers[1].value.kind, row.headers[1].value.size) == ("null", None)
    assert (row.time, row.timestamp_type) == ("1970-01-01T00:00:01.500Z", "CreateTime")
    assert showing.visible("a\x00b\x1bc\u202ed\ud800") == "a\u2400b\u241bc⟨U+202E⟩d?"
    assert showing.time_text(-1) == showing.time_text(10**18) == ""


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n", "|", "%", "＝"])
def test_no_cell_of_a_csv_file_is_a_formula(start):
    assert showing.cell(f"{start}cmd") == f"'{start}cmd"
    assert showing.cell(f"a{start}") == f"a{start}"


def test_what_is_typed_becomes_bytes():
    assert writing.encoded("value", "ž", "text") == "ž".encode()
    assert writing.encoded("value", "", "null") is None
    assert writing.encoded("value", "[1]", "json") == b"[1]"
    assert writing.encoded("value", "7", "number") == struct.pack(">q", 7)
    assert writing.encoded("value", "-7 int16", "number") == struct.pack(">h", -7)
    assert writing.encoded("value", "1.5", "double") == struct.pack(">d", 1.5)
    assert writing.encoded("value", "00 ff\n0a", "hex") == b"\x00\xff\n"
    schema = '{"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}'
    assert writing.encoded("value", '{"id": 3}', "avro", schema) == b"\x06"
    assert writing.headers_of("a: b: c\n\nnone\n") == [("a", b"b: c"), ("none", None)]


@pytest.mark.parametrize(
    ("text", "format", "schema"),
    [
        ("x", "null", ""),
        ("{", "json", ""),
        ("[" * 100_000, "json", ""),
        ("7 bytes", "number", ""),
        (str(2**63), "number", ""),
        ("300 int8", "number", ""),
        ("half", "double", ""),
        ("0g", "hex", ""),
        ("0", "hex", ""),
        ('{"id": 3}', "avro", ""),
        ('{"id": 3}', "avro", "{"),
        ('{"id": "x"}', "avro", '{"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}'),
        ("x", "pickle", ""),
    ],
)
def test_what_cannot_become_bytes_is_a_line_with_its_input(text, format, schema):
    with pytest.raises(Refused) as refused:
        writing.encoded("value", text, format, schema)
    assert refused.value.field == "value"
    with pytest.raises(Refused, match="no name"):
        writing.headers_of(": x")
