"""Converting lines of standard input to records for console-producer, like Kafka's
LineMessageReader.

    parse.headers and parse.key   h1:v1,h2:v2<TAB>key<TAB>value
    parse.key                     key<TAB>value
    parse.headers                 h1:v1,h2:v2<TAB>value

A line ends with \\n, \\r\\n or \\r. Invalid UTF-8 becomes the replacement character, as in Kafka.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from kavka.common.config import ConfigError

CHUNK_BYTES = 256 * 1024


class LineFormatError(Exception):
    """A line does not have the format that the properties require."""


class Line(NamedTuple):
    """The parts of a record that a line contains."""

    value: bytes | None
    key: bytes | None = None
    headers: list[tuple[str, bytes | None]] | None = None


def read_lines(descriptor: int) -> Iterator[list[bytes]]:
    """Yield the complete lines of each read as a list, without line ends. At a terminal, a read
    returns one line."""
    pieces: list[bytes] = []
    while True:
        chunk = os.read(descriptor, CHUNK_BYTES)
        if not chunk:
            break
        if b"\n" not in chunk and b"\r" not in chunk:
            pieces.append(chunk)
            continue
        data = b"".join([*pieces, chunk])
        pieces.clear()
        if b"\r" in data:
            data, final_cr = _with_newlines(data)
        else:
            final_cr = b""
        end = data.rfind(b"\n") + 1
        if incomplete_line := data[end:] + final_cr:
            pieces.append(incomplete_line)
        if end:
            yield _utf8(data[: end - 1]).split(b"\n")
    if pieces:
        yield _utf8(_with_newlines(b"".join(pieces))[0]).split(b"\n")


def _with_newlines(data: bytes) -> tuple[bytes, bytes]:
    """Normalize line ends to \\n. Return a final \\r separately, since it may be half of \\r\\n."""
    final_cr = b"\r" if data.endswith(b"\r") else b""
    if final_cr:
        data = data[:-1]
    return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n"), final_cr


def _utf8(data: bytes) -> bytes:
    if data.isascii():
        return data
    try:
        data.decode()
    except UnicodeDecodeError:
        return data.decode(errors="replace").encode()
    return data


class LineReader:
    """Splits lines as the properties require. With `is_plain`, every line is a value without a
    key."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._parse_key = is_true(properties, "parse.key")
        self._parse_headers = is_true(properties, "parse.headers")
        self._ignore_error = is_true(properties, "ignore.error")
        self._key_separator = properties.get("key.separator", "\t").encode()
        self._delimiter = properties.get("headers.delimiter", "\t").encode()
        self._separator = properties.get("headers.separator", ",").encode()
        self._header_key_separator = properties.get("headers.key.separator", ":").encode()
        marker = properties.get("null.marker")
        self._null = None if marker is None else marker.encode()
        self.is_plain = not (self._parse_key or self._parse_headers or self._null is not None)
        self.line_number = 0
        self._check_separators()

    def _check_separators(self) -> None:
        separators = {
            "headers.delimiter": self._delimiter,
            "headers.separator": self._separator,
            "headers.key.separator": self._header_key_separator,
        }
        names = list(separators)
        for i, first in enumerate(names):
            for second in names[i + 1 :]:
                if separators[first] == separators[second]:
                    raise ConfigError(first, f"{first} and {second} must not be equal")
        for name, value in {"key.separator": self._key_separator, **separators}.items():
            if value == self._null:
                raise ConfigError("null.marker", f"null.marker and {name} must not be equal")
            if not value:
                raise ConfigError(name, "must not be empty")

    def parse(self, line: bytes) -> Line:
        """Parse the next line. Raise LineFormatError if a separator is missing, unless
        `ignore.error` is set."""
        self.line_number += 1
        start = 0
        headers = key = None
        if self._parse_headers:
            headers = self._up_to(line, 0, self._delimiter, "headers delimiter")
            start = 0 if headers is None else len(headers) + len(self._delimiter)
        if self._parse_key:
            key = self._up_to(line, start, self._key_separator, "key separator")
            start += 0 if key is None else len(key) + len(self._key_separator)
        value: bytes | None = line[start:]
        null = self._null
        return Line(
            None if value == null else value,
            None if key == null else key,
            None if headers is None or headers == null else self._headers(headers),
        )

    def _up_to(self, line: bytes, start: int, separator: bytes, name: str) -> bytes | None:
        end = line.find(separator, start)
        if end >= 0:
            return line[start:end]
        if self._ignore_error:
            return None
        raise LineFormatError(f"No {name} found on line number {self.line_number}: '{_text(line)}'")

    def _headers(self, text: bytes) -> list[tuple[str, bytes | None]]:
        pairs = text.split(self._separator)
        while len(pairs) > 1 and not pairs[-1]:
            pairs.pop()
        return [self._header(pair) for pair in pairs]

    def _header(self, pair: bytes) -> tuple[str, bytes | None]:
        key, separator, value = pair.partition(self._header_key_separator)
        if not separator:
            if self._ignore_error:
                return pair.decode(), None
            raise LineFormatError(
                f"No header key separator found in pair '{_text(pair)}' on line number {self.line_number}"
            )
        if key == self._null:
            marker = _text(key)
            raise LineFormatError(
                f"Header keys should not be equal to the null marker '{marker}' as they can't be null"
            )
        return key.decode(), None if value == self._null else value


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


def is_true(properties: Mapping[str, str], name: str, default: str = "false") -> bool:
    return properties.get(name, default).strip().lower() == "true"
