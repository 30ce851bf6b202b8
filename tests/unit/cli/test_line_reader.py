"""The records of console-producer from lines."""

from __future__ import annotations

import os
from itertools import chain

import pytest

from kavka.cli.line_reader import Line, LineFormatError, LineReader, read_lines
from kavka.common.config import ConfigError


def lines_of(*chunks: bytes) -> list[bytes]:
    """Read lines from a pipe, with a separate read for each chunk."""
    read_end, write_end = os.pipe()
    lines = []
    try:
        reading = read_lines(read_end)
        for chunk in chunks:
            os.write(write_end, chunk)
            if b"\n" in chunk:
                lines.append(next(reading))
        os.close(write_end)
        lines.extend(reading)
    finally:
        os.close(read_end)
    return list(chain.from_iterable(lines))


def test_all_line_ends_are_supported() -> None:
    assert lines_of(b"a\nb\r\nc\rd\n\nlast") == [b"a", b"b", b"c", b"d", b"", b"last"]


def test_lines_split_over_reads_are_joined() -> None:
    assert lines_of(b"one\nt", b"w", b"o\r", b"\nthree\n") == [b"one", b"two", b"three"]


def test_empty_input_has_no_line_and_the_last_line_needs_no_end() -> None:
    assert lines_of() == []
    assert lines_of(b"x\r") == [b"x"]


def test_invalid_utf8_becomes_the_replacement_character() -> None:
    assert lines_of(b"ok \xc3\xa9\nbad \xff\n") == ["ok é".encode(), "bad \ufffd".encode()]
    assert lines_of(b"cut \xc3", b"\xa9\n") == ["cut é".encode()]


def test_line_is_split_into_headers_key_and_value() -> None:
    reader = LineReader({"parse.key": "true", "parse.headers": "true", "null.marker": "NULL"})
    assert reader.parse(b"h1:v1,h2:NULL,\tk\tv\tw") == Line(b"v\tw", b"k", [("h1", b"v1"), ("h2", None)])
    assert reader.parse(b"NULL\tNULL\tNULL") == Line(None, None, None)
    assert not reader.is_plain


def test_line_is_a_value_without_properties() -> None:
    reader = LineReader({})
    assert reader.is_plain
    assert reader.parse(b"k\tv") == Line(b"k\tv")


@pytest.mark.parametrize(
    ("properties", "line", "message"),
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
def test_error_for_a_missing_separator_contains_the_line(properties: dict[str, str], line: bytes, message: str) -> None:
    reader = LineReader(properties)
    reader.line_number = 1
    with pytest.raises(LineFormatError) as error:
        reader.parse(line)
    assert str(error.value) == message


def test_ignore_error_accepts_missing_separators() -> None:
    reader = LineReader({"parse.key": "true", "parse.headers": "true", "ignore.error": "true"})
    assert reader.parse(b"plain") == Line(b"plain", None, None)
    assert reader.parse(b"h\tplain") == Line(b"plain", None, [("h", None)])


@pytest.mark.parametrize(
    "properties",
    [{"headers.separator": ":"}, {"headers.delimiter": ","}, {"null.marker": "\t"}, {"key.separator": ""}],
)
def test_equal_or_empty_separators_are_rejected(properties: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        LineReader(properties)
