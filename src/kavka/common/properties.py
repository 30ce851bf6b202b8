"""Java's properties format: `name=value` lines, as in Kafka's configuration files."""

from __future__ import annotations

from collections.abc import Iterator

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_BLANKS = " \t\f"


class PropertiesError(ValueError):
    """A malformed line. `str()` contains the line number."""


def parse_properties(text: str) -> dict[str, str]:
    """Return all pairs of a file. The last value of a repeated name wins. Raises PropertiesError.

    A line that ends in an odd number of backslashes continues on the next line. `=`, `:` or a blank
    ends the name. `#` or `!` starts a comment line. A backslash escapes the next character.
    """
    pairs: dict[str, str] = {}
    for line_number, line in _logical_lines(text):
        end, value_start = _split(line)
        try:
            pairs[_unescape(line[:end])] = _unescape(line[value_start:])
        except ValueError as error:
            raise PropertiesError(f"line {line_number}: {error}") from None
    return pairs


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield each logical line with the number of its first line in the file."""
    pending: str | None = None
    first_line_number = 0
    for line_number, raw_line in enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), start=1):
        line = raw_line.lstrip(_BLANKS)
        if pending is None:
            if not line or line[0] in "#!":
                continue
            first_line_number = line_number
        else:
            line = pending + line
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            pending = line[:-1]
        else:
            pending = None
            yield first_line_number, line
    if pending:
        yield first_line_number, pending


def _split(line: str) -> tuple[int, int]:
    """Return the end of the name and the start of the value."""
    end = 0
    while end < len(line) and line[end] not in "=:" and line[end] not in _BLANKS:
        end += 2 if line[end] == "\\" else 1
    end = min(end, len(line))
    start = end
    while start < len(line) and line[start] in _BLANKS:
        start += 1
    if start < len(line) and line[start] in "=:":
        start += 1
        while start < len(line) and line[start] in _BLANKS:
            start += 1
    return end, start


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    position = 0
    while position < len(text):
        char = text[position]
        position += 1
        if char != "\\":
            out.append(char)
            continue
        if position == len(text):
            break
        escaped = text[position]
        position += 1
        if escaped == "u":
            digits = text[position : position + 4]
            if len(digits) != 4 or not all(c in "0123456789abcdefABCDEF" for c in digits):
                raise ValueError(f"\\u{digits} is not a character: four hexadecimal digits are expected")
            out.append(chr(int(digits, 16)))
            position += 4
        else:
            out.append(_ESCAPES.get(escaped, escaped))
    return "".join(out)
