"""What console-producer makes of its input."""

from __future__ import annotations

import os
from itertools import chain

import pytest

from kavka.cli.line_reader import BadLine, Line, LineReader, read_lines
from kavka.common.config import ConfigError


def lines_of(*chunks: bytes) -> list[bytes]:
    """Each chunk as a read of its own."""
    read_end, write_end = os.pipe()
    found = []
    try:
        reading = read_lines(read_end)
        for chunk in chunks:
            os.write(write_end, chunk)
            if b"\n" in chunk:
                found.append(next(reading))
        os.close(write_end)
        found.extend(reading)
    finally:
        os.close(read_end)
    return list(chain.from_iterable(found))


def test_every_kind_of_line_end_is_one() -> None:
    assert lines_of(b"a\nb\r\nc\rd\n\nlast") == [b"a", b"b", b"c", b"d", b"", b"last"]


def test_lines_that_are_cut_anywhere_are_put_together() -> None:
    assert lines_of(b"one\nt", b"w", b"o\r", b"\nthree\n") == [b"one", b"two", b"three"]


def test_no_input_is_no_line_and_a_last_line_needs_no_end() -> None:
    assert lines_of() == []
    assert lines_of(b"x\r") == [b"x"]


def test_bytes_that_are_no_utf8_become_the_replacement_character() -> None:
    assert lines_of(b"ok \xc3\xa9\nbad \xff\n") == ["ok é".encode(), "bad \ufffd".encode()]
    assert lines_of(b"cut \xc3", b"\xa9\n") == ["cut é".encode()]


def test_a_line_is_split_into_headers_key_and_value() -> None:
    reader = LineReader({"parse.key": "true", "parse.headers": "true", "null.marker": "NULL"})
    assert reader.parse(b"h1:v1,h2:NULL,\tk\tv\tw") == Line(b"v\tw", b"k", [("h1", b"v1"), ("h2", None)])
    assert reader.parse(b"NULL\tNULL\tNULL") == Line(None, None, None)
    assert not reader.plain


def test_without_properties_a_line_is_a_value() -> None:
    reader = LineReader({})
    assert reader.plain
    assert reader.parse(b"k\tv") == Line(b"k\tv")


@pytest.mark.parametrize(
    ("properties", "line", "said"),
    [
        ({"parse.key": "true"}, b"nokey", "No key separator found on line number 2: 'nokey'"),
        ({"parse.headers": "TRUE"}, b"x", "No headers delimiter found on line number 2: 'x'"),
        (
            {"parse.headers": "true"},
            b"h1\tv",
            "No header key separator found in pair 'h1' on line number 2",
        ),
        (
            {"parse.headers": "true", "null.marker": "N"},
            b"N:x\tv",
            "Header keys should not be equal to the null marker 'N' as they can't be null",
        ),
    ],
)
def test_a_missing_separator_is_told_with_the_line(properties: dict[str, str], line: bytes, said: str) -> None:
    reader = LineReader(properties)
    reader.number = 1
    with pytest.raises(BadLine) as error:
        reader.parse(line)
    assert str(error.value) == said


def test_ignore_error_takes_what_there_is() -> None:
    reader = LineReader({"parse.key": "true", "parse.headers": "true", "ignore.error": "true"})
    assert reader.parse(b"plain") == Line(b"plain", None, None)
    assert reader.parse(b"h\tplain") == Line(b"plain", None, [("h", None)])


@pytest.mark.parametrize(
    "properties",
    [{"headers.separator": ":"}, {"headers.delimiter": ","}, {"null.marker": "\t"}, {"key.separator": ""}],
)
def test_separators_that_cannot_be_told_apart_are_refused(properties: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        LineReader(properties)
