"""Messages as pages, the API and downloads have them. Texts are data: whoever puts them into a page escapes them."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from kavka.common.times import text_of
from kavka.console.decoders import Decoded
from kavka.console.filters import Message, clean
from kavka.console.messages import Search

ROW_TEXT = 400
"""Characters of a key or value in a row of a page."""
LIST_TEXT = 10_000
"""The same in a list of the API."""
MOST_TEXT = 200_000
"""Characters of a key or value on the page of one message."""

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
    return Part(found.kind, visible(text[:most] if cut else text), size, cut, found.problem)


def row(message: Message, most: int = ROW_TEXT) -> MessageRow:
    record = message.record
    return MessageRow(
        record.partition,
        record.offset,
        record.timestamp,
        time_text(record.timestamp),
        {0: "CreateTime", 1: "LogAppendTime"}.get(record.timestamp_type, ""),
        record.leader_epoch,
        part(message.key, record.key, most),
        part(message.value, record.value, most),
        [
            HeaderRow(visible(name[:most]), part(found, data, most))
            for (name, found), (_, data) in zip(message.headers, record.headers, strict=True)
        ],
    )


def time_text(milliseconds: int) -> str:
    try:
        return "" if milliseconds < 0 else text_of(milliseconds)
    except (ValueError, OverflowError, OSError):
        return ""


def pretty(found: Decoded) -> str:
    """For a page of its own: JSON with line breaks."""
    if found.kind in ("json", "avro", "internal") and len(found.text) <= MOST_TEXT:
        try:
            return json.dumps(found.data, indent=2, ensure_ascii=False, allow_nan=False)
        except (ValueError, RecursionError):
            pass
    return found.text


# --- downloads


async def as_json(search: Search) -> AsyncIterator[bytes]:
    """A list, streamed. Keys and values are texts; what is not UTF-8 is in base64 beside it."""
    yield b"["
    first = True
    async for message in _found(search):
        yield (b"\n" if first else b",\n") + _json_text(message).encode()
        first = False
    yield b"\n]\n"


def _json_text(message: Message) -> str:
    try:
        return json.dumps(_object(message), allow_nan=False)
    except (ValueError, RecursionError):
        # A number that JSON has no name for (NaN, or too large for a float): everything of it as text.
        return json.dumps(_object(message, as_text=True))


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
            {"name": clean(name), **_fields("value", found, data, as_text)}
            for (_, found), (name, data) in zip(message.headers, record.headers, strict=True)
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
    Headers are a list of pairs, as JSON: a name may be there more than once."""
    yield (",".join(COLUMNS) + "\r\n").encode()
    async for message in _found(search):
        record = message.record
        headers = json.dumps([(name, None if found.kind == "null" else found.text) for name, found in message.headers])
        line = io.StringIO()
        csv.writer(line).writerow(
            (
                record.partition,
                record.offset,
                record.timestamp,
                time_text(record.timestamp),
                "" if record.key is None else cell(message.key.text),
                "" if record.value is None else cell(message.value.text),
                cell(headers) if record.headers else "",
            )
        )
        yield line.getvalue().encode("utf-8", "replace")


def cell(text: str) -> str:
    """A NUL, which no spreadsheet takes, is shown as a picture of it."""
    shown = text.replace("\0", "\u2400")
    return f"'{shown}" if _FORMULA.match(shown) else shown


async def _found(search: Search) -> AsyncIterator[Message]:
    events = search.events()
    async with aclosing(events):
        async for event in events:
            if event.kind == "hits":
                for message in event.data:
                    yield message
