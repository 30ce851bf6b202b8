"""The console shows malicious messages, and their cost is limited."""

from __future__ import annotations

import asyncio
import json
import struct
import time
import tracemalloc
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kavka.client.consumer._decode import ConsumerRecord
from kavka.console import showing, workers
from kavka.console.avro import CONTAINER
from kavka.console.decoders import DECODERS, Decoded, decode
from kavka.console.filters import MAX_HEADERS, Filter, Message
from kavka.console.limits import MAX_CHARACTERS, MAX_VALUES
from kavka.console.messages import Event
from tests.support.avro import container, deflated, number

MEMORY = 200 << 20
CPU_S = 10.0
"""Far above the cost with limits on an idle machine, and far below the cost without limits."""


def record_of(fields: list[Any], name: str = "R") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": f"f{i}", "type": t} for i, t in enumerate(fields)]}


def array_of(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def nested_unions(depth: int) -> Any:
    schema: Any = ["null"]
    for _ in range(depth):
        schema = [schema]
    return schema


def doubling(levels: int) -> Any:
    """The schema of a record of two records of two records …. A value has no bytes, and consists of
    2**levels values."""
    schema: Any = "null"
    for level in range(levels):
        name = f"L{level}"
        schema = {
            "type": "record", "name": name,
            "fields": [{"name": "a", "type": schema}, {"name": "b", "type": f"L{level - 1}" if level else "null"}],
        }  # fmt: skip
    return schema


ENDLESS = number(10**12) + b"\0"
AMPLIFIED = {
    "wide records without bytes": container(array_of(record_of(["null"] * 4000)), (1, ENDLESS)),
    "empty records": container(array_of(record_of([])), (1, ENDLESS)),
    "nulls": container(array_of("null"), (1, ENDLESS)),
    "fixed of no bytes": container(array_of({"type": "fixed", "name": "F", "size": 0}), (1, ENDLESS)),
    "records that double per level": container(doubling(40), (1, b"")),
    "a long field name": container(
        array_of({"type": "record", "name": "R", "fields": [{"name": "n" * 150_000, "type": "null"}]}),
        (1, number(100_000) + b"\0"),
    ),
    "a long symbol": container(
        array_of({"type": "enum", "name": "E", "symbols": ["s" * 150_000]}),
        (1, number(100_000) + b"\0" * 100_001),
    ),
    "nested unions": container(
        array_of(nested_unions(80)),
        (1, deflated(number(150_000) + b"\0" * 81 * 150_000 + b"\0")),
        codec=b"deflate",
    ),
    "large decompressed blocks": container("bytes", *[(0, deflated(bytes(16_000_000)))] * 60, codec=b"deflate"),
    "maps": container(
        {"type": "map", "values": "null"},
        (1, deflated(number(3_000_000) + b"".join(b"\x06%03d" % (n % 1000) for n in range(3_000_000)) + b"\0")),
        codec=b"deflate",
    ),
    "JSON of empty lists": b"[" + b"[]," * 2_000_000 + b"[]]",
    "JSON of objects": b"[" + b'{"a":{}},' * 500_000 + b"{}]",
    "JSON of many bytes": b'["' + b"x" * (MAX_CHARACTERS + 1) + b'"]',
}  # fmt: skip


@pytest.mark.parametrize("data", AMPLIFIED.values(), ids=AMPLIFIED)
def test_cost_of_message_is_limited(data: bytes) -> None:
    tracemalloc.start()
    began = time.thread_time()
    try:
        shown = decode(data)
        took, (_, peak) = time.thread_time() - began, tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert shown.problem
    assert shown.kind == ("text" if data[:1] == b"[" else "hex")
    assert peak < MEMORY, f"{peak >> 20} MB"
    assert took < CPU_S, f"{took:.1f} s"


def test_headers_share_budget_of_message() -> None:
    """Every header needs almost MAX_VALUES, the limit of all headers together."""
    bomb = container(array_of("null"), (1, number(MAX_VALUES - 1000) + b"\0"))
    message = Filter("t").match(record(headers=tuple((f"h{n}", bomb) for n in range(MAX_HEADERS + 500))))
    assert message is not None
    began = time.thread_time()
    shown = showing.row_of(message, showing.MAX_TEXT)
    assert time.thread_time() - began < CPU_S
    kinds = [header.value.kind for header in shown.headers]
    assert kinds[:2] == ["avro", "hex"]
    assert shown.headers[-1].value.problem.endswith(" more headers are not shown")
    assert len(message.headers) == MAX_HEADERS + 1 and message.headers[-1].value.problem.startswith("500 more")


def test_headers_of_row_are_bounded() -> None:
    """A header of a few bytes is decoded to 10,000 characters."""
    symbol = container({"type": "enum", "name": "E", "symbols": ["s" * 10_000]}, (1, b"\0"))
    for headers in ([("h", symbol)] * 700, [("n" * 10_000, b"x")] * 700, [("", None)] * 700):
        message = Filter("t").match(record(headers=tuple(headers)))
        assert message is not None
        rows = showing.row_of(message, showing.MAX_LIST_TEXT).headers
        assert sum(len(row.name) + len(row.value.text) for row in rows) <= 2 * showing.MAX_LIST_TEXT
        assert len(rows) <= 201 and rows[-1].value.problem == f"{700 - len(rows) + 1} more headers are not shown"


def test_large_avro_container_is_decoded() -> None:
    """Bytes are charged once, not for both the block and its values."""
    shown = decode(container("bytes", (1, number(7_000_000) + bytes(7_000_000))))
    assert (shown.kind, len(shown.data)) == ("avro", 14_000_000)


# --- messages that cannot be decoded


def self_containing() -> Any:
    return record_of([["null", "R"]])


UNREADABLE = {
    "an infinite scale": container(b'{"type": "bytes", "logicalType": "decimal", "scale": 1e999}', (1, b"\0")),
    "an infinite size": container(b'{"type": "fixed", "name": "F", "size": 1e999}', (1, b"")),
    "a negative size": container({"type": "fixed", "name": "F", "size": -1}, (1, b"")),
    "a scale that is too large": container({"type": "bytes", "logicalType": "decimal", "scale": 10**9}, (1, b"\0")),
    "a decimal of 2 MB": container(
        {"type": "bytes", "logicalType": "decimal"}, (1, number(2_000_000) + b"\x7f" * 2_000_000)
    ),
    "deeply nested records": container(self_containing(), (1, b"\x02" * 100_000)),
    "records and unions": container(
        record_of([[*nested_unions(90), "R"]]), (1, b"\x02" * 100_000)
    ),
    "deeply nested lists": container(record_of([array_of("R")]), (1, b"\x02" * 100_000)),
    "a deep schema": container(b'{"type":' * 5000 + b'"null"' + b"}" * 5000, (1, b"")),
    "a schema of brackets": container(b"[" * 100_000, (1, b"")),
    "a schema that is a number": container(b"1" * 100_000, (1, b"")),
    "symbols that are not a list": container({"type": "enum", "name": "E", "symbols": 5}, (1, b"")),
    "a broken block": container("bytes", (1, b"\xff\xff"), codec=b"deflate"),
    "a truncated block": container("bytes", (1, deflated(bytes(1000))[:-3]), codec=b"deflate"),
    "a truncated container": container("bytes", (1, b"\2a"))[:-5],
}  # fmt: skip
READABLE = {
    "a decimal of type int": container({"type": "int", "logicalType": "decimal"}, (1, b"\x02")),
    "a decimal of type string": container({"type": "string", "logicalType": "decimal"}, (1, b"\x02a")),
    "a time beyond the year 9999": container(
        {"type": "long", "logicalType": "timestamp-millis"}, (1, number(2**62))
    ),
    "a day before the year 1": container({"type": "int", "logicalType": "date"}, (1, number(-(2**40)))),
    "NaN": container({"type": "double", "logicalType": "date"}, (1, struct.pack("<d", float("nan")))),
    "a lone surrogate in a name": container(
        b'{"type": "record", "name": "R", "fields": [{"name": "\\ud800", "type": "int"}]}', (1, b"\x02")
    ),
    "a lone surrogate in JSON": b'{"a": "\\udfff", "\\ud800": 1}',
    "a number of 4000 digits": b'{"a": ' + b"9" * 4000 + b"}",
    "a number of 10,000 digits": b'{"a": ' + b"9" * 10_000 + b"}",
    "an infinite number": b'{"a": 1e999}',
    "deep JSON": b"[" * 900 + b"]" * 900,
    "deeper JSON": b"[" * 100_000 + b"]" * 100_000,
    "bytes": bytes(range(256)),
}  # fmt: skip


def record(value: bytes | None = b"v", offset: int = 0, headers: Any = (), timestamp: int = 1500) -> ConsumerRecord:
    return ConsumerRecord("t", 0, offset, b"k", value, timestamp, 0, headers, 0, 1, len(value or b""))


@pytest.mark.parametrize("data", UNREADABLE.values(), ids=UNREADABLE)
def test_undecodable_message_is_shown_in_hex_with_reason(data: bytes) -> None:
    for name in ("auto", "avro"):
        shown = decode(data, name)
        assert shown.kind == "hex" and shown.text.startswith("4f 62 6a 01")
        assert 0 < len(shown.problem) <= 300


class Results:
    """Replaces a search. Yields these messages and a notice."""

    def __init__(self, messages: list[Message]) -> None:
        self.messages = messages

    async def events(self) -> Any:
        yield Event("hits", self.messages)
        yield Event("notice", "partition 1 is not read")


EXPRESSIONS = (
    "value.a matches '.*'",
    "value == value",
    "value[*] == value[*]",
    "value.a >= 1",
    "headers[*] contains 'x'",
)


def test_malformed_message_does_not_hide_others() -> None:
    """Checks the list, the page of the message, both downloads, and every kind of filter."""
    broken = record(b"x", 1000)
    broken._headers = b"\x02\x7f"
    hostile_records = [
        *(record(data, offset) for offset, data in enumerate([*UNREADABLE.values(), *READABLE.values()])),
        record(b"x", 900, timestamp=2**63 - 1),
        record(b"x", 901, timestamp=-(2**63)),
        record(b"x", 902, headers=(("\udcff\udc80\n", b"\xff"), ("", None))),
        broken,
        record(b'"last"', 1001),
    ]
    filters = [Filter("t"), Filter("t", header="h"), *(Filter("t", expression=text) for text in EXPRESSIONS)]
    for filter in filters:
        for hostile in hostile_records:
            filter.match(hostile)

    async def show() -> tuple[list[Any], bytes, bytes]:
        def matches() -> list[Message]:
            return [message for hostile in hostile_records if (message := Filter("t").match(hostile)) is not None]

        rows = await showing.rows(matches(), showing.MAX_LIST_TEXT)
        for message in matches():
            await showing.pretty_parts(message)
        as_json = b"".join([piece async for piece in showing.as_json(Results(matches()))])  # type: ignore[arg-type]
        as_csv = b"".join([piece async for piece in showing.as_csv(Results(matches()))])  # type: ignore[arg-type]
        return rows, as_json, as_csv

    rows, as_json, as_csv = asyncio.run(show())
    assert [row.offset for row in rows] == [hostile.offset for hostile in hostile_records]
    assert rows[-2].headers[0].value.problem.startswith("the headers are malformed")
    *objects, notice = json.loads(as_json)
    assert [exported["offset"] for exported in objects] == [hostile.offset for hostile in hostile_records]
    assert notice == {"notice": "partition 1 is not read"}
    assert b"1001" in as_csv and as_csv.endswith(b",,,,,partition 1 is not read,\r\n")


def test_large_decimals_are_exact() -> None:
    for digits in (28, 29, 100, 1233, 4000):
        unscaled = -(10**digits) - 123456789
        data = unscaled.to_bytes((unscaled.bit_length() + 8) // 8, "big", signed=True)
        schema = json.dumps({"type": "bytes", "logicalType": "decimal", "precision": digits + 1, "scale": 7})
        shown = decode(number(len(data)) + data, "avro", schema)
        assert not shown.problem
        sign, figures, exponent = Decimal(shown.data).as_tuple()
        assert (sign, int("".join(map(str, figures))), exponent) == (1, -unscaled, -7)


def test_indentation_of_deep_value_is_limited() -> None:
    text = "[" * 900 + ",".join(["1"] * 90_000) + "]" * 900
    data = json.loads(text)
    began = time.thread_time()
    shown = showing.pretty(Decoded("json", text, data))
    assert len(shown) < 2 * showing.MAX_TEXT
    assert time.thread_time() - began < CPU_S


# --- filters


COSTLY = [
    "value[*] > value[*]",
    "value[*] == value[*] and value[*] < value[*]",
    "value[*] contains 'b' or value[*] endswith 'b' or value[*] in ('b', 'c', 'd', 'e', 'f')",
    " or ".join(["value[*][*] == 1"] * 90),
    "value matches '.*a.{0,300}b.{0,300}c'",
    "value[*].a == 1 or value[*].b == 2 or value[*].c == 3",
]


@pytest.mark.parametrize("expression", COSTLY)
def test_work_of_filter_per_message_is_bounded(expression: str) -> None:
    values = json.dumps([["a"] if "[*][*]" in expression else "a" for _ in range(90_000)])
    filter = Filter("t", expression=expression)
    began = time.thread_time()
    message = filter.match(record(values.encode()))
    assert time.thread_time() - began < CPU_S
    assert message is None
    assert filter.undecided_count == 1
    assert filter.first_undecided == "partition 0, offset 0: the filters need more than 500000 steps"


def test_ordinary_filter_is_exact() -> None:
    values = record(json.dumps(list(range(600))).encode())
    assert Filter("t", expression="value[*] == 599").match(values)
    assert Filter("t", expression="not (value[*] > 599)").match(values)
    assert Filter("t", expression="value[*] > value[*]").match(values)
    assert Filter("t", expression="value[*] == -1").match(values) is None


def test_equal_values_are_compared_without_recursion() -> None:
    deep = b'{"a": ' + b"[" * 900 + b"]" * 900 + b', "b": ' + b"[" * 900 + b"]" * 900 + b"}"
    assert Filter("t", expression="value.a == value.b").match(record(deep))
    assert Filter("t", expression="value.a != value.b").match(record(deep)) is None


def test_decoding_does_not_block_event_loop() -> None:
    bomb = container(array_of(record_of(["null"] * 100)), (1, number(MAX_VALUES // 101) + b"\0"))

    async def search() -> float:
        filter = Filter("t", expression="value[*].f0 == null")
        began = time.thread_time()
        matches = [m async for some in workers.mapped(filter.match, [record(bomb)] * 5) for m in some]
        await showing.rows([m for m in matches if m is not None])
        return time.thread_time() - began

    assert asyncio.run(search()) < 0.05


@given(st.binary(max_size=200), st.sampled_from(DECODERS))
def test_arbitrary_bytes_after_any_prefix_are_shown(data: bytes, name: str) -> None:
    schema = json.dumps(record_of([["null", "string", "R"], array_of("R"), {"type": "map", "values": "double"}]))
    for start in (b"", b"{", b"[", CONTAINER, container(json.loads(schema))):
        shown = decode(start + data, name, schema if name == "avro" else "")
        assert shown.text is not None
        showing.part(shown, data, 100)
