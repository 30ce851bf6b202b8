from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kavka.common.properties import PropertiesError, parse_properties


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("a=b", {"a": "b"}),
        ("a:b", {"a": "b"}),
        ("a b", {"a": "b"}),
        ("  a  =  b  ", {"a": "b  "}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("a==b", {"a": "=b"}),
        ("a=b=c:d", {"a": "b=c:d"}),
        ("# c\n! c\n\n   # c\na=b", {"a": "b"}),
        ("a=#b", {"a": "#b"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=b,\\\n    c,\\\n    d", {"a": "b,c,d"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("a=b\\", {"a": "b"}),
        ("a\\=b=c", {"a=b": "c"}),
        ("a\\ b c", {"a b": "c"}),
        ("a=\\t\\n\\x\\u00e9", {"a": "\t\nxé"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("listeners=PLAINTEXT://:9092", {"listeners": "PLAINTEXT://:9092"}),
        ("a=1\\\n# not a comment", {"a": "1# not a comment"}),
        ("", {}),
    ],
)
def test_properties_are_parsed_as_in_java(text, pairs):
    assert parse_properties(text) == pairs


def test_error_of_broken_escape_contains_line_number():
    with pytest.raises(PropertiesError, match=r"^line 3: "):
        parse_properties("a=1\n# x\nb=\\u12\n")


@given(st.text())
def test_arbitrary_text_parses_or_raises_properties_error(text):
    with contextlib.suppress(PropertiesError):
        assert isinstance(parse_properties(text), dict)


def escape(text: str) -> str:
    return "".join(f"\\u{ord(c):04x}" for c in text)


@given(
    st.dictionaries(
        st.text(st.characters(max_codepoint=0xFFFF), min_size=1), st.text(st.characters(max_codepoint=0xFFFF))
    )
)
def test_escaped_pairs_round_trip(pairs):
    text = "\n".join(f"{escape(k)}={escape(v)}" for k, v in pairs.items())
    assert parse_properties(text) == pairs
