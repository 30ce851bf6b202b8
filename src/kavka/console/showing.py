"""Formats messages for pages, the API and downloads. The texts are not escaped; pages must escape
them."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
import shlex
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from kavka.common.times import text_of
from kavka.console.decoders import Decoded
from kavka.console.filters import Header, Message
from kavka.console.messages import Search
from kavka.console.workers import mapped

MAX_ROW_TEXT = 400
"""The maximum length of a key or value in a row of a page."""
MAX_LIST_TEXT = 10_000
"""The maximum length of a key or value in a list of the API."""
MAX_TEXT = 200_000
"""The maximum length of a key or value on the page of a message."""
MAX_HEADERS_TEXT = 20_000
"""The maximum length of all headers in a row, or twice the maximum length of a value if that is
more."""
MAX_BRANCHES = 2000
"""The maximum number of values in the tree of a key or value."""
MAX_TREE_DEPTH = 60
HEADER_COST = 100
"""The length that is counted for each header, in addition to its name and value."""

_CONTROLS = {c: chr(0x2400 + c) for c in range(32) if chr(c) not in "\t\n"} | {0x7F: "\u2421"}
# Characters that change the text direction could disguise a message.
_DIRECTIONS = {c: f"⟨U+{c:04X}⟩" for c in (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C)}
_VISIBLE = _CONTROLS | _DIRECTIONS
# A spreadsheet evaluates a cell that starts with one of these characters as a formula.
_FORMULA = re.compile(r"[=+\-@\t\r\n|%\uff1d\uff0b\uff0d\uff20]")


@dataclass(frozen=True, slots=True)
class Part:
    """A key, a value or the value of a header. `size` is the number of bytes, None for null. `cut`
    means that the text is truncated."""

    kind: str
    text: str
    size: int | None
    cut: bool = False
    problem: str = ""


@dataclass(frozen=True, slots=True)
class HeaderRow:
    """A header of a message."""

    name: str
    value: Part


@dataclass(frozen=True, slots=True)
class MessageRow:
    """A message. `timestamp` is in milliseconds, -1 if the message has none. `time` is the
    timestamp as text."""

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
    """Replace control characters and characters that change the text direction by visible ones."""
    return text.translate(_VISIBLE).encode("utf-8", "replace").decode()


def part(decoded: Decoded, data: bytes | None, limit: int) -> Part:
    text = decoded.text
    size = None if data is None else len(data)
    return Part(decoded.kind, visible(text[:limit]), size, len(text) > limit, visible(decoded.problem))


def row_of(message: Message, limit: int = MAX_ROW_TEXT) -> MessageRow:
    """Return the row of a message. Drops the decoded values of the message, because a page has many
    rows."""
    record = message.record
    message_row = MessageRow(
        record.partition,
        record.offset,
        record.timestamp,
        time_text(record.timestamp),
        {0: "CreateTime", 1: "LogAppendTime"}.get(record.timestamp_type, ""),
        record.leader_epoch,
        part(message.key, message.key_data, limit),
        part(message.value, message.value_data, limit),
        header_rows(message.headers, limit),
    )
    message.drop_decoded()
    return message_row


def header_rows(headers: list[Header], limit: int) -> list[HeaderRow]:
    """Return the headers that fit into a row. The decoded text of a small header may be long, and a
    page has many rows."""
    remaining = max(MAX_HEADERS_TEXT, 2 * limit)
    rows: list[HeaderRow] = []
    for header in headers:
        if remaining <= 0:
            problem = f"{len(headers) - len(rows)} more headers are not shown"
            rows.append(HeaderRow("…", Part("hex", "", 0, False, problem)))
            break
        length = min(limit, remaining)
        row = HeaderRow(visible(header.name[:length]), part(header.value, header.data, length))
        remaining -= HEADER_COST + len(row.name) + len(row.value.text)
        rows.append(row)
    return rows


def time_text(milliseconds: int) -> str:
    """Return the time as text, "" if there is none or the date cannot be represented."""
    try:
        return "" if milliseconds < 0 else text_of(milliseconds)
    except (ValueError, OverflowError, OSError):
        return ""


def pretty(decoded: Decoded) -> str:
    """Return indented JSON for the page of a message, or the text if the value is not structured.
    Indentation can multiply the size of a deep value, so encoding stops at MAX_TEXT."""
    if decoded.kind in ("json", "avro", "internal") and len(decoded.text) <= MAX_TEXT:
        pieces: list[str] = []
        size = 0
        try:
            for piece in json.JSONEncoder(indent=2, ensure_ascii=False, allow_nan=False).iterencode(decoded.data):
                pieces.append(piece)
                size += len(piece)
                if size > MAX_TEXT:
                    break
            return "".join(pieces)
        except (ValueError, RecursionError):
            pass
    return decoded.text


@dataclass(frozen=True, slots=True)
class Branch:
    """A value in the tree of a structured key or value. `children` is None for a scalar, whose text
    is `text`; otherwise `text` is the size."""

    name: str
    text: str
    children: list[Branch] | None = None


class _TreeTooLarge(Exception):
    """A limit of the tree is exceeded."""


def tree(decoded: Decoded) -> Branch | None:
    """Return the tree of an object or list, None for other values and for those that exceed the
    limits: the complete text is shown anyway."""
    if decoded.kind not in ("json", "avro", "internal") or not isinstance(decoded.data, (dict, list)):
        return None
    remaining = MAX_BRANCHES

    def branch(name: str, value: Any, depth: int) -> Branch:
        nonlocal remaining
        remaining -= 1
        if remaining < 0 or depth > MAX_TREE_DEPTH:
            raise _TreeTooLarge
        name = visible(name[:MAX_ROW_TEXT])
        if isinstance(value, dict):
            children = [branch(str(key), item, depth + 1) for key, item in value.items()]
            return Branch(name, f"{{{len(value)}}}", children)
        if isinstance(value, list):
            return Branch(name, f"[{len(value)}]", [branch(str(i), item, depth + 1) for i, item in enumerate(value)])
        text = json.dumps(value, ensure_ascii=False)
        return Branch(name, visible(text[:MAX_ROW_TEXT]) + ("…" if len(text) > MAX_ROW_TEXT else ""))

    try:
        return branch("", decoded.data, 0)
    except (_TreeTooLarge, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class Pretty:
    """A key and a value for the page of a message."""

    key: str
    value: str
    key_tree: Branch | None
    value_tree: Branch | None


async def pretty_parts(message: Message) -> Pretty:
    """Return the key and the value for the page of a message, decoded in a worker thread."""

    def parts_of(item: Message) -> Pretty:
        key, value = item.key, item.value
        return Pretty(visible(pretty(key)[:MAX_TEXT]), visible(pretty(value)[:MAX_TEXT]), tree(key), tree(value))

    async for parts in mapped(parts_of, [message]):
        return parts[0]
    raise AssertionError


def command_of(servers: str, topic: str, partition: int, offset: int) -> str:
    """Return the command line that reads the message. Settings for a secured cluster are added with
    --consumer.config."""
    return (
        f"bin/kafka-console-consumer.sh --bootstrap-server {shlex.quote(servers)} --topic {shlex.quote(topic)} "
        f"--partition {partition} --offset {offset} --max-messages 1 "
        "--property print.key=true --property print.headers=true"
    )


def python_of(servers: str, topic: str, partition: int, offset: int) -> str:
    """Return the Python program that reads the message."""
    return f"""\
from kavka import Consumer, TopicPartition

partition = TopicPartition({topic!r}, {partition})
with Consumer(bootstrap_servers={servers!r}) as consumer:
    consumer.assign([partition])
    consumer.seek(partition, {offset})
    print(next(iter(consumer)))
"""


# --- downloads


async def as_json(search: Search) -> AsyncIterator[bytes]:
    """Stream a JSON list. A key or value that is not UTF-8 is also included in base64. A notice,
    for example about unreadable messages, is an object with the field `notice`."""
    yield b"["
    separator = b"\n"
    async for objects in _write_search(search, _json_text, lambda notice: json.dumps({"notice": notice})):
        yield separator + ",\n".join(objects).encode()
        separator = b",\n"
    yield b"\n]\n"


def _json_text(message: Message) -> str:
    try:
        return json.dumps(_object(message), allow_nan=False)
    except (ValueError, RecursionError):
        # JSON cannot represent a number (NaN, or too large): write key, value and headers as text.
        return json.dumps(_object(message, as_text=True))
    finally:
        message.drop_decoded()


def _object(message: Message, as_text: bool = False) -> dict[str, Any]:
    record = message.record
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "time": time_text(record.timestamp),
        **_fields("key", message.key, message.key_data, as_text),
        **_fields("value", message.value, message.value_data, as_text),
        "headers": [
            {"name": header.name, **_fields("value", header.value, header.data, as_text)} for header in message.headers
        ],
    }


def _fields(name: str, decoded: Decoded, data: bytes | None, as_text: bool) -> dict[str, Any]:
    if data is None:
        return {name: None}
    is_structured = decoded.kind in ("json", "avro", "internal", "number", "double") and not as_text
    value = decoded.data if is_structured else decoded.text
    try:
        data.decode()
    except UnicodeDecodeError:
        return {name: value, f"{name}Base64": base64.b64encode(data).decode()}
    return {name: value}


COLUMNS = ("partition", "offset", "timestamp", "time", "key", "value", "headers")


async def as_csv(search: Search) -> AsyncIterator[bytes]:
    """Stream CSV with a header line. A text that a spreadsheet would evaluate as a formula gets an
    apostrophe in front. Headers are a JSON list of pairs, because names can repeat. A notice, for
    example about unreadable messages, is a line without partition and offset."""
    yield (",".join(COLUMNS) + "\r\n").encode()
    async for lines in _write_search(search, _csv_line, lambda notice: csv_line("", "", "", "", "", cell(notice), "")):
        yield "".join(lines).encode("utf-8", "replace")


def _csv_line(message: Message) -> str:
    record = message.record
    headers = [(header.name, None if header.value.kind == "null" else header.value.text) for header in message.headers]
    line = csv_line(
        record.partition,
        record.offset,
        record.timestamp,
        time_text(record.timestamp),
        "" if record.key is None else cell(message.key.text),
        "" if record.value is None else cell(message.value.text),
        cell(json.dumps(headers)) if headers else "",
    )
    message.drop_decoded()
    return line


def csv_line(*cells: Any) -> str:
    line = io.StringIO()
    csv.writer(line).writerow(cells)
    return line.getvalue()


def cell(text: str) -> str:
    """Return the text of a CSV cell. NUL is replaced by its visible symbol, and a formula gets an
    apostrophe in front."""
    text = text.replace("\0", "\u2400")
    return f"'{text}" if _FORMULA.match(text) else text


async def rows(messages: list[Message], limit: int = MAX_ROW_TEXT) -> list[MessageRow]:
    """Return the rows of messages. A worker thread decodes them, so that hostile messages do not
    block the event loop."""
    return [row async for chunk in mapped(lambda message: row_of(message, limit), messages) for row in chunk]


async def _write_search(
    search: Search, write: Callable[[Message], str], write_notice: Callable[[str], str]
) -> AsyncIterator[list[str]]:
    """Yield the messages and notices of a search as texts."""
    async with aclosing(search.events()) as events:
        async for event in events:
            if event.kind == "hits":
                async for texts in mapped(write, event.data):
                    yield texts
            elif event.kind == "notice":
                yield [write_notice(event.data)]
