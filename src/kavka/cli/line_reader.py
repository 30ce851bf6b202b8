"""From standard input to records: what console-producer reads, as Kafka's LineMessageReader does.

    parse.headers and parse.key   h1:v1,h2:v2<TAB>key<TAB>value
    parse.key                     key<TAB>value
    parse.headers                 h1:v1,h2:v2<TAB>value

A line ends with \\n, \\r\\n or \\r. Bytes that are no UTF-8 become the replacement character, as in Kafka.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from kavka.common.config import ConfigError

CHUNK = 256 * 1024


class BadLine(Exception):
    """A line that cannot be read as the properties say; `str()` says which."""


class Line(NamedTuple):
    value: bytes | None
    key: bytes | None = None
    headers: list[tuple[str, bytes | None]] | None = None


def read_lines(descriptor: int) -> Iterator[list[bytes]]:
    """The lines of each piece that was read, without their ends; what is typed comes line by line."""
    pieces: list[bytes] = []
    while True:
        chunk = os.read(descriptor, CHUNK)
        if not chunk:
            break
        if b"\n" not in chunk and b"\r" not in chunk:
            pieces.append(chunk)
            continue
        data = b"".join([*pieces, chunk])
        pieces.clear()
        if b"\r" in data:
            data, held = _with_newlines(data)
        else:
            held = b""
        end = data.rfind(b"\n") + 1
        if rest := data[end:] + held:
            pieces.append(rest)
        if end:
            yield _utf8(data[: end - 1]).split(b"\n")
    if pieces:
        yield _utf8(_with_newlines(b"".join(pieces))[0]).split(b"\n")


def _with_newlines(data: bytes) -> tuple[bytes, bytes]:
    """Every line end as \\n. A \\r at the end may be half of one: it is held back."""
    held = b"\r" if data.endswith(b"\r") else b""
    if held:
        data = data[:-1]
    return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n"), held


def _utf8(data: bytes) -> bytes:
    if data.isascii():
        return data
    try:
        data.decode()
    except UnicodeDecodeError:
        return data.decode(errors="replace").encode()
    return data


class LineReader:
    """Splits lines by the properties. `plain`: every line is a value, as it is."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._parse_key = _flag(properties, "parse.key")
        self._parse_headers = _flag(properties, "parse.headers")
        self._ignore_error = _flag(properties, "ignore.error")
        self._key_separator = properties.get("key.separator", "\t").encode()
        self._delimiter = properties.get("headers.delimiter", "\t").encode()
        self._separator = properties.get("headers.separator", ",").encode()
        self._header_key_separator = properties.get("headers.key.separator", ":").encode()
        marker = properties.get("null.marker")
        self._null = None if marker is None else marker.encode()
        self.plain = not (self._parse_key or self._parse_headers or self._null is not None)
        self.number = 0
        self._check()

    def _check(self) -> None:
        named = {
            "headers.delimiter": self._delimiter,
            "headers.separator": self._separator,
            "headers.key.separator": self._header_key_separator,
        }
        names = list(named)
        for i, first in enumerate(names):
            for second in names[i + 1 :]:
                if named[first] == named[second]:
                    raise ConfigError(first, f"{first} and {second} may not be equal")
        for name, value in {"key.separator": self._key_separator, **named}.items():
            if value == self._null:
                raise ConfigError("null.marker", f"null.marker and {name} may not be equal")
            if not value:
                raise ConfigError(name, "it may not be empty")

    def parse(self, line: bytes) -> Line:
        """The record of the next line; BadLine where a separator is missing, unless `ignore.error` is set."""
        self.number += 1
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
        raise BadLine(f"No {name} found on line number {self.number}: '{_shown(line)}'")

    def _headers(self, text: bytes) -> list[tuple[str, bytes | None]]:
        pairs = text.split(self._separator)
        while len(pairs) > 1 and not pairs[-1]:
            pairs.pop()
        return [self._header(pair) for pair in pairs]

    def _header(self, pair: bytes) -> tuple[str, bytes | None]:
        key, found, value = pair.partition(self._header_key_separator)
        if not found:
            if self._ignore_error:
                return pair.decode(), None
            raise BadLine(f"No header key separator found in pair '{_shown(pair)}' on line number {self.number}")
        if key == self._null:
            shown = _shown(key)
            raise BadLine(f"Header keys should not be equal to the null marker '{shown}' as they can't be null")
        return key.decode(), None if value == self._null else value


def _shown(data: bytes) -> str:
    return data.decode(errors="replace")


def _flag(properties: Mapping[str, str], name: str) -> bool:
    return properties.get(name, "false").strip().lower() == "true"
