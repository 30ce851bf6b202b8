"""What Arrow makes of a column of texts is what the function makes of each."""

from __future__ import annotations

import sys

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kavka.pipeline.streams import texts
from kavka.streams import col


def with_local_names(line):
    small = line.lower()
    return small.split(" ")


FUNCTIONS = [
    lambda line: line.lower().split(" "),
    lambda line: line.split(),
    lambda line: line.upper().split("ab"),
    lambda line: line.replace(",", " ").split(),
    lambda key, line: line.strip().split(" "),
    with_local_names,
    str.split,
    lambda line: line.lower(),
    lambda line: line.casefold().strip(),
    lambda line: line.replace("aa", ""),
    lambda line: line,
    str.upper,
]
# All of ASCII, the letters and separators of the functions more often.
LINES = st.lists(st.text(st.sampled_from("abAB ,\t\n\r\v\f\x1b\x00\x7f") | st.characters(max_codepoint=127)))


@given(lines=LINES, start=st.integers(0, 3), wide=st.booleans())
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_column_gives_what_its_texts_give(function, lines, start, wide):
    column = pa.array([one.encode() for one in lines], pa.large_binary() if wide else pa.binary())[start:]
    lines = lines[start:]
    known, found = texts.understood(function), texts.plain(column)
    assert known is not None
    odd = any("\x1c" <= one <= "\x1f" for line in lines for one in line)
    assert (found is None) == (odd or not lines)
    if found is None:
        return
    expected = [function("key", line) if takes_a_key(function) else function(line) for line in lines]
    if known.splits:
        pieces, parents = known.pieces(found)
        assert pieces.to_pylist() == [one for some in expected for one in some]
        assert parents.tolist() == [number for number, some in enumerate(expected) for _ in some]
    else:
        assert known(found).to_pylist() == expected


def takes_a_key(function):
    return hasattr(function, "__code__") and function.__code__.co_argcount == 2


@given(lines=LINES)
def test_expressions_are_understood_too(lines):
    found = texts.plain(pa.array([one.encode() for one in lines], pa.binary()))
    if found is None:
        return
    pieces, _ = texts.understood(col("value").lower().split(" ")).pieces(found)
    assert pieces.to_pylist() == [one for line in lines for one in line.lower().split(" ")]
    assert texts.understood(col("value").upper())(found).to_pylist() == [line.upper() for line in lines]
    assert texts.understood(col("key").upper()) is None
    assert texts.understood(col("value").trim()) is None


@pytest.mark.parametrize("value", [None, "ü".encode(), b"\xff", b"\x1d", "İ".encode()])
def test_a_column_that_is_not_plain_is_left_to_python(value):
    assert texts.plain(pa.array([b"plain", value], pa.binary())) is None
    assert texts.plain(pa.array([], pa.binary())) is None
    assert texts.plain(pa.array([1], pa.int64())) is None


outside = []


def writes_outside(line):
    outside.append(line)
    return line.lower()


def with_a_default(line, separator=" "):
    return line.split(separator)


def with_a_closure():
    separator = " "
    return lambda line: line.split(separator)


@pytest.mark.parametrize(
    "function",
    [
        writes_outside,
        with_a_default,
        with_a_closure(),
        lambda line: len(line),
        lambda line: line.lower,
        lambda line: line.split(" ")[0],
        lambda line: line.split(" ", 1),
        lambda line: line.split(""),
        lambda line: line.split("ß"),
        lambda line: line.strip("x"),
        lambda line: line.title(),
        lambda line: line.operations,
        lambda line: line.split(" ").operations,
        lambda line: line.lower().split(" ").lower(),
        lambda line: "constant",
        lambda line: (word for word in line),
        lambda line: line if line else "",
        lambda key, line: key,
        lambda key, line: key.lower(),
        lambda key, line, more: line,
        lambda *lines: lines,
        print,
        str.title,
        "no function",
    ],
)
def test_what_is_not_known_is_left_to_python_and_not_called(function):
    assert texts.understood(function) is None
    assert outside == []


def test_what_a_function_may_do_is_named_as_this_python_names_it():
    """A Python with other instructions is slower, and says so here."""
    assert texts._touches_its_arguments_alone(FUNCTIONS[0]), sys.version


def test_a_grouping_by_the_value_itself_is_recognised():
    def value(key, value):
        return value

    assert texts.is_value(lambda key, word: word)
    assert texts.is_value(value)
    assert not texts.is_value(lambda key, word: key)
    assert not texts.is_value(lambda key, word: word[0])
    assert not texts.is_value(lambda key, word=None, other=1: word)
    assert not texts.is_value(lambda *words: words)
    assert not texts.is_value(str)
