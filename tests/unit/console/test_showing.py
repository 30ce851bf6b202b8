"""Filters, the rows and downloads of messages, and the encoding of produced messages."""

from __future__ import annotations

import ast
import asyncio
import csv
import io
import json
import shlex
import struct

import pytest

from kavka.client.consumer._decode import ConsumerRecord
from kavka.console import showing, writing
from kavka.console.decoders import decode
from kavka.console.errors import Refused
from kavka.console.expressions import BadExpression
from kavka.console.filters import Filter
from kavka.console.messages import Event
from kavka.console.pages import message_pages
from kavka.console.searches import running_searches
from kavka.console.showing import MAX_BRANCHES, Branch, command_of, python_of, tree


def record(value: bytes | None = b"value", key: bytes | None = b"key", headers=(), offset: int = 5) -> ConsumerRecord:
    return ConsumerRecord(
        "t", 1, offset, key, value, 1500, 0, headers, 3, len(key or b"") if key is not None else -1, len(value or b"")
    )


@pytest.mark.parametrize(
    ("filters", "is_match"),
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
def test_filters_match_key_text_headers_and_path(filters, is_match):
    message = Filter("t", **filters).match(record(headers=(("trace", b"trace-1"), ("none", None))))
    assert (message is not None) == is_match


def test_json_paths_have_several_notations():
    data = record(json.dumps([{"a b": {"c": 1}}]).encode())
    for path in ("$[0]['a b'].c == 1", '[0]["a b"].c == 1', "$[*]['a b'].c"):
        assert Filter("t", path=path).match(data), path
    with pytest.raises(BadExpression):
        Filter("t", path="$..a")
    with pytest.raises(BadExpression):
        Filter("t", header="=x")


def test_row_is_truncated_and_control_characters_are_visible():
    message = Filter("t").match(record(b"x" * 1000, b"a\tb", (("na\udcffme", b"\xff"), ("null", None))))
    row = showing.row_of(message, 100)
    assert (len(row.value.text), row.value.cut, row.value.size) == (100, True, 1000)
    assert (row.key.text, row.key.cut) == ("a\tb", False)
    assert row.headers[0].name == "na\ufffdme"
    assert (row.headers[1].value.kind, row.headers[1].value.size) == ("null", None)
    assert (row.time, row.timestamp_type) == ("1970-01-01T00:00:01.500Z", "CreateTime")
    assert showing.visible("a\x00b\x1bc\u202ed\ud800") == "a\u2400b\u241bc⟨U+202E⟩d?"
    assert showing.time_text(-1) == showing.time_text(10**18) == ""


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n", "|", "%", "＝"])
def test_csv_cells_are_not_formulas(start):
    assert showing.cell(f"{start}cmd") == f"'{start}cmd"
    assert showing.cell(f"a{start}") == f"a{start}"


class Results:
    """Replaces a search. Yields these messages."""

    def __init__(self, *messages) -> None:
        self.messages = messages

    async def events(self):
        yield Event("hits", list(self.messages))


def downloaded(write, *messages) -> str:
    async def read() -> bytes:
        return b"".join([chunk async for chunk in write(Results(*messages))])

    return asyncio.run(read()).decode()


def reject_constant(name: str) -> float:
    raise AssertionError(f"{name} is not JSON")


@pytest.mark.parametrize("value", [b'{"n":1e999}', b'{"x":NaN,"y":[-Infinity]}'])
def test_download_of_numbers_that_json_cannot_represent_is_valid_json(value):
    infinite = Filter("t").match(record(value, b'{"k":1}', (("h", b"x"),)))
    finite = Filter("t").match(record(b'{"n":1.5}', None))
    assert infinite is not None and finite is not None
    first, second = json.loads(downloaded(showing.as_json, infinite, finite), parse_constant=reject_constant)
    assert first["value"] == value.decode()
    assert first["headers"] == [{"name": "h", "value": "x"}]
    assert second["value"] == {"n": 1.5}


def test_nan_is_not_accepted_as_json():
    assert Filter("t").match(record(b'{"x":NaN}')).value.kind == "text"
    assert showing.pretty(Filter("t").match(record(b'{"n":1e999}')).value) == '{"n":1e999}'
    with pytest.raises(Refused, match="value is not json: JSON has no NaN"):
        writing.encode("value", '{"x": NaN}', "json")


def test_csv_contains_repeated_headers():
    headers = (("dup", b"1"), ("dup", b"2"), ("none", None))
    message = Filter("t").match(record(b"v", b"k", headers))
    _, line = csv.reader(io.StringIO(downloaded(showing.as_csv, message)))
    assert json.loads(line[-1]) == [["dup", "1"], ["dup", "2"], ["none", None]]


def test_typed_text_is_encoded():
    assert writing.encode("value", "ž", "text") == "ž".encode()
    assert writing.encode("value", "", "null") is None
    assert writing.encode("value", "[1]", "json") == b"[1]"
    assert writing.encode("value", "7", "number") == struct.pack(">q", 7)
    assert writing.encode("value", "-7 int16", "number") == struct.pack(">h", -7)
    assert writing.encode("value", "1.5", "double") == struct.pack(">d", 1.5)
    assert writing.encode("value", "00 ff\n0a", "hex") == b"\x00\xff\n"
    schema = '{"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}'
    assert writing.encode("value", '{"id": 3}', "avro", schema) == b"\x06"
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
def test_invalid_text_is_rejected_with_input_name(text, format, schema):
    with pytest.raises(Refused) as refused:
        writing.encode("value", text, format, schema)
    assert refused.value.field == "value"
    with pytest.raises(Refused, match="no name"):
        writing.headers_of(": x")


def test_download_ends_when_user_loses_access(monkeypatch):
    monkeypatch.setattr(message_pages, "MIN_CHECK_INTERVAL_S", 0.0)
    allowed = [True, True, False]

    async def body():
        while True:
            yield b"x"

    async def read():
        return [chunk async for chunk in message_pages._while_allowed(body(), lambda: allowed.pop(0))]

    with pytest.raises(Refused, match="log in first"):
        asyncio.run(read())
    assert not allowed and running_searches.count == 0


def test_the_tree_of_a_message_is_limited_and_has_no_invisible_characters():
    branch = tree(decode(b'{"a": [1, {"\\u202eb": null}], "c": "x\\u0007"}'))
    assert branch is not None and branch.children is not None
    items, text = branch.children
    assert (items.name, items.text, text.text) == ("a", "[2]", '"x\\u0007"')
    assert items.children[1].children == [Branch("⟨U+202E⟩b", "null")]
    assert tree(decode(b"plain")) is None
    assert tree(decode(b"[" + b"1," * MAX_BRANCHES + b"1]")) is None
    assert tree(decode(b"[" * 500 + b"]" * 500)) is None


def test_the_command_and_the_program_quote_hostile_names():
    hostile = "a'; rm -rf /'\n"
    assert shlex.split(command_of(hostile, hostile, 1, 2))[2:5] == [hostile, "--topic", hostile]
    program = ast.parse(python_of(hostile, hostile, 1, 2))
    names = [node.value for node in ast.walk(program) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    assert names == [hostile, hostile]
