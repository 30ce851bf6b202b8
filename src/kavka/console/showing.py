"""Messages as pages, the API and downloads have them. Texts are data: whoever puts them into a page escapes them."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from kavka.common.times import text_of
from kavka.console.decoders import Decoded
from kavka.console.filters import Header, Message
from kavka.console.messages import Search
from kavka.console.workers import mapped

ROW_TEXT = 400
"""Characters of a key or value in a row of a page."""
LIST_TEXT = 10_000
"""The same in a list of the API."""
MOST_TEXT = 200_000
"""Characters of a key or value on the page of one message."""
HEADERS_TEXT = 20_000
"""Characters of all headers in a row, a few more for each; twice as many as of a value where that is more."""
HEADER_COST = 100

_CONTROLS = {c: chr(0x2400 + c) for c in range(32) if chr(c) not in "\t\n"} | {0x7F: "\u2421"}
# What turns the direction of text around could show a message as another one.
_TURNS = {c: f"⟨U+{c:04X}⟩" for c in (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C)}
_VISIBLE = _CONTROLS | _TURNS
# A spreadsheet takes a cell that begins like this for a formula, and runs it.
_FORMULA = re.compile(r"[=+\-@\t\r\n|%\uff1d\uff0b\uff0d\uff20]")


@dataclass(frozen=True, slots=True)
class Part:
    """A key, a value or the value of a header. `size` is None for null; `cut` says that there is more text."""

    kind: str
    text: str
    size: int | None
    cut: bool = False
    problem: str = ""


@dataclass(frozen=True, slots=True)
class HeaderRow:
    name: str
    value: Part


@dataclass(frozen=True, slots=True)
class MessageRow:
    """`timestamp` is in milliseconds, -1 where there is none; `time` is the same as text."""

    partition: int
    offset: int
    timestamp: int
    time: str
    timestamp_type: str
    leader_epoch: int
    key: Part
    value: Part
    headers: list[HeaderRow]


def visible(text: str) -> str:
    """With characters that are not seen, or that turn others around, as ones that are seen."""
    return text.translate(_VISIBLE).encode("utf-8", "replace").decode()


def part(found: Decoded, data: bytes | None, most: int) -> Part:
    text = found.text
    cut = len(text) > most
    size = None if data is None else len(data)
    return Part(found.kind, visible(text[:most] if cut else text), size, cut, visible(found.problem))


def row(message: Message, most: int = ROW_TEXT) -> MessageRow:
    """Lets go of what was decoded for it: a page has many rows."""
    record = message.record
    shown = MessageRow(
        record.partition,
        record.offset,
        record.timestamp,
        time_text(record.timestamp),
        {0: "CreateTime", 1: "LogAppendTime"}.get(record.timestamp_type, ""),
        record.leader_epoch,
        part(message.key, record.key, most),
        part(message.value, record.value, most),
        header_rows(message.headers, most),
    )
    message.forget()
    return shown


def header_rows(headers: list[Header], most: int) -> list[HeaderRow]:
    """As many as fit into a row. A small header may be decoded to a long text, and a page has many rows."""
    room = max(HEADERS_TEXT, 2 * most)
    shown: list[HeaderRow] = []
    for header in headers:
        if room <= 0:
            problem = f"{len(headers) - len(shown)} more headers are not shown"
            shown.append(HeaderRow("…", Part("hex", "", 0, False, problem)))
            break
        row = HeaderRow(visible(header.name[: min(most, room)]), part(header.value, header.data, min(most, room)))
        room -= HEADER_COST + len(row.name) + len(row.value.text)
        shown.append(row)
    return shown


def time_text(milliseconds: int) -> str:
    try:
        return "" if milliseconds < 0 else text_of(milliseconds)
    except (ValueError, OverflowError, OSError):
        return ""


def pretty(found: Decoded) -> str:
    """For a page of its own: JSON with line breaks, up to MOST_TEXT characters. Indentation may multiply a deep value,
    so it is written piece by piece until the limit."""
    if found.kind in ("json", "avro", "internal") and len(found.text) <= MOST_TEXT:
        pieces: list[str] = []
        size = 0
        try:
            for piece in json.JSONEncoder(indent=2, ensure_ascii=False, allow_nan=False).iterencode(found.data):
                pieces.append(piece)
                size += len(piece)
                if size > MOST_TEXT:
                    break
            return "".join(pieces)
        except (ValueError, RecursionError):
            pass
    return found.text


async def pretty_parts(message: Message) -> tuple[str, str]:
    """Key and value for a page of their own, decoded by a worker thread."""
    async for parts in mapped(
        lambda shown: (visible(pretty(shown.key)[:MOST_TEXT]), visible(pretty(shown.value)[:MOST_TEXT])), [message]
    ):
        return parts[0]
    raise AssertionError


# --- downloads


async def as_json(search: Search) -> AsyncIterator[bytes]:
    """A list, streamed. Keys and values are texts; what is not UTF-8 is in base64 beside it. What could not be read is
    an object with a `notice`."""
    yield b"["
    first = True
    async for pieces in _written(search, _json_text, lambda notice: json.dumps({"notice": notice})):
        yield ("\n" if first else ",\n").encode() + ",\n".join(pieces).encode()
        first = False
    yield b"\n]\n"


def _json_text(message: Message) -> str:
    try:
        return json.dumps(_object(message), allow_nan=False)
    except (ValueError, RecursionError):
        # A number that JSON has no name for (NaN, or too large for a float): everything of it as text.
        return json.dumps(_object(message, as_text=True))
    finally:
        message.forget()


def _object(message: Message, as_text: bool = False) -> dict[str, Any]:
    record = message.record
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "time": time_text(record.timestamp),
        **_fields("key", message.key, record.key, as_text),
        **_fields("value", message.value, record.value, as_text),
        "headers": [
            {"name": header.name, **_fields("value", header.value, header.data, as_text)} for header in message.headers
        ],
    }


def _fields(name: str, found: Decoded, data: bytes | None, as_text: bool) -> dict[str, Any]:
    if data is None:
        return {name: None}
    structured = found.kind in ("json", "avro", "internal", "number", "double") and not as_text
    value = found.data if structured else found.text
    try:
        data.decode()
    except UnicodeDecodeError:
        return {name: value, f"{name}Base64": base64.b64encode(data).decode()}
    return {name: value}


COLUMNS = ("partition", "offset", "timestamp", "time", "key", "value", "headers")


async def as_csv(search: Search) -> AsyncIterator[bytes]:
    """With a line of names first. A text that a spreadsheet would take for a formula gets an apostrophe in front.
    Headers are a list of pairs, as JSON: a name may be there more than once. What could not be read is a line without
    a partition and an offset."""
    yield (",".join(COLUMNS) + "\r\n").encode()
    async for lines in _written(search, _csv_line, lambda notice: _csv("", "", "", "", "", cell(notice), "")):
        yield "".join(lines).encode("utf-8", "replace")


def _csv_line(message: Message) -> str:
    record = message.record
    headers = [(header.name, None if header.value.kind == "null" else header.value.text) for header in message.headers]
    line = _csv(
        record.partition,
        record.offset,
        record.timestamp,
        time_text(record.timestamp),
        "" if record.key is None else cell(message.key.text),
        "" if record.value is None else cell(message.value.text),
        cell(json.dumps(headers)) if headers else "",
    )
    message.forget()
    return line


def _csv(*cells: Any) -> str:
    line = io.StringIO()
    csv.writer(line).writerow(cells)
    return line.getvalue()


def cell(text: str) -> str:
    """A NUL, which no spreadsheet takes, is shown as a picture of it."""
    shown = text.replace("\0", "\u2400")
    return f"'{shown}" if _FORMULA.match(shown) else shown


async def rows(messages: list[Message], most: int = ROW_TEXT) -> list[MessageRow]:
    """Decoded by a worker thread: a page of hostile messages takes longer than the event loop may be held."""
    shown: list[MessageRow] = []
    async for some in mapped(lambda message: row(message, most), messages):
        shown += some
    return shown


async def _written(
    search: Search, write: Callable[[Message], str], write_notice: Callable[[str], str]
) -> AsyncIterator[list[str]]:
    async with aclosing(search.events()) as events:
        async for event in events:
            if event.kind == "hits":
                async for texts in mapped(write, event.data):
                    yield texts
            elif event.kind == "notice":
                yield [write_notice(event.data)]
