"""The filter language for messages."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kavka.client.consumer._decode import ConsumerRecord
from kavka.console.expressions import BadExpression, compile_expression
from kavka.console.filters import Filter, Message

VALUE = {
    "user": {"id": 42, "name": "Ada", "active": True, "gone": False, "none": None},
    "items": [{"sku": "A-1", "n": 2}, {"sku": "B-2", "n": 5}],
    "tags": ["red", "blue"],
    "odd name": 1,
    "price": 1.5,
}


def message(value: Any = VALUE, key: bytes | None = b"order-7", headers: Any = (("trace", b"abc-1"),)) -> Message:
    data = None if value is None else json.dumps(value).encode()
    record = ConsumerRecord(
        "t", 3, 1000, key, data, 1_700_000_000_000, 0, headers, 0, len(key or b""), len(data or b"")
    )
    return Message(record, Filter("t"))


@pytest.mark.parametrize(
    "text",
    [
        "value.user.id == 42",
        "value.user.id = 42",
        "value.user.id == 42.0",
        "value.user.id != 43",
        "value.user.name != 42",
        "value.user.name > 'Aca' and value.user.name < \"Adb\"",
        "value.price >= 1.5 && value.price <= 1.5",
        "value.user.active == true",
        "value.user.active",
        "not value.user.gone",
        "value.user.none == null",
        "value.nothing.at.all == null",
        "!(value.nothing)",
        "value.items[0].sku == 'A-1'",
        "value.items[-1].n == 5",
        "value.items[*].sku matches 'B-[0-9]'",
        "value.items[*].n > 4",
        "value.items.*.n == 2",
        "value['odd name'] == 1",
        "value.tags contains 'red'",
        "value.user contains 'id'",
        "value contains 'Ada'",
        "key startswith 'order' and key endswith '-7'",
        "key in ('a', 'order-7')",
        "partition in (1, 2, 3)",
        "offset == 1000 and partition == 3",
        "headers.trace contains 'abc'",
        "headers['trace'] == 'abc-1'",
        "timestamp >= '2023-11-14T22:13:20Z' and timestamp < '2023-11-15T00:00:00'",
        "'2023-11-14T22:13:20Z' <= timestamp",
        "size > 10",
        "value.user.gone == false",
        'key == "order\\u002d7"',
        "value.user.id == 1 or value.user.id == 42 and not value.user.id == 2",
    ],
)
def test_expression_matches(text):
    assert compile_expression(text)(message())


@pytest.mark.parametrize(
    "text",
    [
        "value.user.id == '42'",
        "value.user.id > '1'",
        "value.user.active == 1",
        "value.user.gone",
        "value.nothing",
        "value.nothing > 1",
        "value.nothing < 1",
        "value.items[9].sku == 'A-1'",
        "value.tags[0][0] == 'r'",
        "value.user[0] == 42",
        "value.user.id startswith '4'",
        "value.items[*].sku matches 'B'",
        "key in ('order')",
        "headers.other == 'abc-1'",
        "value.user.id == 42 and partition == 4",
    ],
)
def test_expression_does_not_match(text):
    assert not compile_expression(text)(message())


def test_missing_key_and_value_are_null():
    empty = message(value=None, key=None, headers=())
    assert compile_expression("key == null and value == null")(empty)
    assert compile_expression("not value.a and not (key contains 'x')")(empty)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "expression is empty"),
        ("   ", "expression is empty"),
        ("value ==", "not the end"),
        ("== 1", "expected .*, not '=='"),
        ("value.a == 1 value.b", "the end"),
        ("(value.a", "')'"),
        ("value.", "a name"),
        ("value[", "a number"),
        ("value[1.5]", "a number"),
        ("value[1", "']'"),
        ("key in 'a'", "'('"),
        ("key in ()", "a number"),
        ("key == 'abc", "unterminated text at 8"),
        ("key == `a`", "'`' at 8"),
        ("key matches '('", "regular expression"),
        ("key matches 5", "a regular expression"),
        ("5", "a comparison"),
        ("__import__ == 1", "expected"),
        ("value.a == value()", "the end"),
        ("timestamp > 'yesterday'", "T"),
        ("(" * 60 + "key" + ")" * 60, "nested more than"),
        ("not " * 60 + "key", "nested more than"),
        ("value" + ".a" * 60, "steps"),
        ("key == '" + "a" * 3000 + "'", "characters"),
    ],
)
def test_syntax_errors_are_reported(text, error):
    with pytest.raises(BadExpression, match=error.replace("(", "\\(").replace(")", "\\)")):
        compile_expression(text)


@given(st.text(max_size=60))
def test_arbitrary_text_compiles_or_is_rejected(text):
    try:
        test = compile_expression(text)
    except BadExpression:
        return
    assert test(message()) in (True, False)


_TOKENS = ["value", ".a", "[0]", "[*]", "==", "<", "(", ")", "and", "or", "not", "in", "'x'", "1", "null", "contains"]


@given(st.lists(st.sampled_from(_TOKENS), max_size=12))
def test_arbitrary_tokens_compile_or_are_rejected(tokens):
    test_arbitrary_text_compiles_or_is_rejected.hypothesis.inner_test(" ".join(tokens))
