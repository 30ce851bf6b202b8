"""Messages: found, looked at, downloaded, produced, copied."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Annotated, Any
from urllib.parse import quote

from starlette.responses import RedirectResponse, Response, StreamingResponse

from kavka.client.consumer._decode import ConsumerRecord
from kavka.common.times import milliseconds_of
from kavka.console import showing, writing
from kavka.console.auth import Role
from kavka.console.avro import BadSchema
from kavka.console.cluster import CLIENT_DEFAULTS
from kavka.console.context import Context
from kavka.console.decoders import DECODERS
from kavka.console.errors import Refused, explained
from kavka.console.expressions import BadExpression
from kavka.console.filters import Filter, Message
from kavka.console.live import CHECK_S, EventStream, event
from kavka.console.messages import Query, Search, Start, read_one
from kavka.console.registry import Bounds, Done, action, query
from kavka.console.showing import MessageRow
from kavka.console.state import Topic
from kavka.console.views import View, page

MOST_AT_ONCE = 8
"""Searches that may run in this console at a time."""
MOST_ROWS, MOST_DOWNLOADED = 1000, 1_000_000
DEFAULT_ROWS, DEFAULT_DOWNLOADED = 50, 10_000
LONGEST_S = 60.0
MOST_SCHEMA_IN_AN_ADDRESS = 20_000

_running = 0


@dataclass(frozen=True, slots=True)
class Found:
    """`cursor` leads on from here; `done` says that there is nothing more."""

    messages: list[MessageRow]
    scanned: int
    cursor: str
    done: bool
    notices: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a request asks for, by the names of its inputs."""

    topic: str
    start: str = Start.NEWEST
    at: str = ""
    partition: str = ""
    limit: int = DEFAULT_ROWS
    key: str = ""
    text: str = ""
    header: str = ""
    path: str = ""
    expression: str = ""
    key_format: str = "auto"
    value_format: str = "auto"
    key_schema: str = ""
    value_schema: str = ""
    cursor: str = ""
    committed: bool = False

    async def begun(self, context: Context) -> Search:
        """The same for a topic that is there."""
        if await _topic(context, self.topic) is None:
            raise Refused(f"there is no topic '{self.topic[:250]}'", 404, "topic")
        return self.search(context)

    def search(self, context: Context) -> Search:
        """Raises Refused, with the input that is wrong."""
        if self.start not in Start.ALL:
            raise Refused(f"start must be one of {', '.join(Start.ALL)}", field="start")
        for name in ("key_format", "value_format"):
            if getattr(self, name) not in DECODERS:
                raise Refused(f"{name} must be one of {', '.join(DECODERS)}", field=name)
        at = 0
        if self.start == Start.OFFSET:
            at = _number("at", self.at, "an offset")
        elif self.start == Start.TIME:
            at = _moment(self.at)
        filters: dict[str, Any] = {}
        for name in ("key", "text", "header", "path", "expression"):
            filters[name] = getattr(self, name)
            if name in ("header", "path", "expression") and filters[name]:
                _checked(name, lambda name=name: Filter(self.topic, **{name: getattr(self, name)}))
        for name in ("key_schema", "value_schema"):
            schema, decoder = getattr(self, name), getattr(self, name.replace("schema", "format"))
            if schema.strip() and decoder == "avro":
                _checked(name, lambda name=name, schema=schema: Filter(
                    self.topic, **{name: schema, name.replace("schema", "decoder"): "avro"}
                ))  # fmt: skip
        found = Filter(
            self.topic,
            **filters,
            key_decoder=self.key_format,
            value_decoder=self.value_format,
            key_schema=self.key_schema,
            value_schema=self.value_schema,
        )
        asked = Query(
            self.topic, found, self.start, at, _partitions(self.partition), self.limit, self.cursor, self.committed
        )
        return Search(asked, client_of(context))


def client_of(context: Context) -> dict[str, Any]:
    return {**CLIENT_DEFAULTS, **context.cluster.settings.client}


def _checked(name: str, make: Any) -> None:
    try:
        make()
    except (BadExpression, BadSchema) as error:
        raise Refused(f"{name}: {error}", field=name) from None


def _number(name: str, text: str, what: str) -> int:
    if not re.fullmatch(r"\d{1,19}", text.strip()):
        raise Refused(f"{what} is expected, not '{text[:60]}'", field=name)
    return int(text)


def _moment(text: str) -> int:
    """Milliseconds since 1970, or a time as text."""
    text = text.strip()
    if re.fullmatch(r"\d{1,15}", text):
        return int(text)
    try:
        return milliseconds_of(text)
    except (ValueError, OverflowError):
        raise Refused(
            f"a time is expected: 2026-01-31T12:00:00Z, or milliseconds since 1970, not '{text[:60]}'", field="at"
        ) from None


def _partitions(text: str) -> tuple[int, ...]:
    """`0, 2, 5-7`; none for all."""
    found: set[int] = set()
    for piece in text.replace(",", " ").split():
        match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", piece)
        if match is None or (match[2] and int(match[2]) - int(match[1]) > 10_000):
            raise Refused(f"partitions are numbers, as in 0, 2, 5-7; not '{piece[:60]}'", field="partition")
        found.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(sorted(found))


class _Running:
    """One of the searches that may run at a time."""

    async def __aenter__(self) -> None:
        global _running
        if _running >= MOST_AT_ONCE:
            raise Refused(f"{MOST_AT_ONCE} searches are running in this console: stop one, or wait", 429)
        _running += 1

    async def __aexit__(self, *exc: object) -> None:
        global _running
        _running -= 1


# --- operations


@query("/messages", "Messages of a topic that fit")
async def find_messages(
    context: Context,
    topic: str,
    start: Annotated[str, "newest, oldest, offset or time"] = Start.NEWEST,
    at: Annotated[str, "The offset, or the time (ISO 8601, or milliseconds)"] = "",
    partition: Annotated[str, "As in 0, 2, 5-7; all if empty"] = "",
    limit: Annotated[int, "How many at most", Bounds(1, MOST_ROWS)] = DEFAULT_ROWS,
    key: Annotated[str, "A part of the key"] = "",
    text: Annotated[str, "A part of the key, the value or a header"] = "",
    header: Annotated[str, "The name of a header, or name=part of its value"] = "",
    path: Annotated[str, "A JSON path into the value, alone or compared: $.user.id == 42"] = "",
    expression: Annotated[str, "See docs/console.md"] = "",
    key_format: Annotated[str, "auto, text, json, avro, number, double or hex"] = "auto",
    value_format: Annotated[str, "The same for values"] = "auto",
    key_schema: Annotated[str, "Of Avro", Bounds(0, MOST_SCHEMA_IN_AN_ADDRESS)] = "",
    value_schema: Annotated[str, "Of Avro", Bounds(0, MOST_SCHEMA_IN_AN_ADDRESS)] = "",
    cursor: Annotated[str, "Of the last answer: go on behind it"] = "",
    committed: Annotated[bool, "Leave out what transactions have not committed"] = False,
    seconds: Annotated[float, "How long to look at most", Bounds(0.1, LONGEST_S)] = 10.0,
) -> Found:
    """Newest first, or in order from an offset or a time on. `cursor` goes on where an answer ended; one that ended
    because its time was up has fewer messages than `limit`."""
    wanted = Wanted(
        topic, start, at, partition, limit, key, text, header, path, expression, key_format, value_format, key_schema,
        value_schema, cursor, committed,
    )  # fmt: skip
    if start == Start.TAIL:
        raise Refused("a tail has no end: it is for the page", field="start")
    search = await wanted.begun(context)
    rows: list[MessageRow] = []
    notices: list[str] = []
    until = time.monotonic() + seconds
    async with _Running(), aclosing(search.events()) as events:
        async for found in events:
            if found.kind == "hits":
                rows += await showing.rows(found.data, showing.LIST_TEXT)
            elif found.kind == "notice":
                notices.append(found.data)
            elif found.kind == "progress" and time.monotonic() > until:
                notices.append(f"the time of {seconds:g} s was up")
                break
    progress = search.progress
    return Found(rows, progress.scanned, progress.cursor, progress.done, notices)


@query("/searches", "How many searches run in this console now", everywhere=True)
async def count_searches(context: Context) -> dict[str, int]:
    return {"running": _running, "most": MOST_AT_ONCE}


@query("/messages/one", "One message, whole")
async def get_message(
    context: Context,
    topic: str,
    partition: Annotated[int, Bounds(0)],
    offset: Annotated[int, Bounds(0)],
    key_format: str = "auto",
    value_format: str = "auto",
    key_schema: Annotated[str, Bounds(0, MOST_SCHEMA_IN_AN_ADDRESS)] = "",
    value_schema: Annotated[str, Bounds(0, MOST_SCHEMA_IN_AN_ADDRESS)] = "",
) -> MessageRow:
    found = await _one(context, topic, partition, offset, key_format, value_format, key_schema, value_schema)
    return (await showing.rows([found], showing.MOST_TEXT))[0]


async def _one(
    context: Context,
    topic: str,
    partition: int,
    offset: int,
    key_format: str = "auto",
    value_format: str = "auto",
    key_schema: str = "",
    value_schema: str = "",
) -> Message:
    wanted = Wanted(
        topic, key_format=key_format, value_format=value_format, key_schema=key_schema, value_schema=value_schema
    )
    search = await wanted.begun(context)
    return Message(await _record(context, topic, partition, offset), search.query.filter)


async def _record(context: Context, topic: str, partition: int, offset: int) -> ConsumerRecord:
    record = await read_one(client_of(context), topic, partition, offset)
    if record is None:
        raise Refused(f"{topic} has no message at offset {offset} of partition {partition} (any more)", 404)
    return record


@action("/messages/produce", "Produce a message")
async def produce_message(
    context: Context,
    topic: str,
    value: Annotated[str, "As its format says"] = "",
    key: str = "",
    value_format: Annotated[str, ", ".join(writing.FORMATS)] = "text",
    key_format: Annotated[str, "The same for the key; null: no key"] = "null",
    headers: Annotated[str, "A line for each: name: value"] = "",
    partition: Annotated[int | None, "Chosen by the key if empty", Bounds(0)] = None,
    value_schema: Annotated[str, "Of Avro"] = "",
    key_schema: Annotated[str, "Of Avro"] = "",
) -> Done:
    await _check_topic(context, topic, partition, "topic", "partition")
    if key and key_format == "null":
        key_format = "text"
    sent = await writing.send(
        client_of(context),
        topic,
        partition,
        writing.encoded("key", key, key_format, key_schema),
        writing.encoded("value", value, value_format, value_schema),
        writing.headers_of(headers),
    )
    context.cluster.changed()
    return Done(f"produced to {topic}, partition {sent.partition}, offset {sent.offset}")


@action("/messages/copy", "Copy a message: the same bytes and headers, once more")
async def copy_message(
    context: Context,
    topic: str,
    partition: Annotated[int, Bounds(0)],
    offset: Annotated[int, Bounds(0)],
    to_topic: str,
    to_partition: Annotated[int | None, "Chosen by the key if empty", Bounds(0)] = None,
) -> Done:
    await _check_topic(context, to_topic, to_partition, "to_topic", "to_partition")
    record = await _record(context, topic, partition, offset)
    sent = await writing.copy(client_of(context), record, to_topic, to_partition)
    context.cluster.changed()
    return Done(f"copied to {to_topic}, partition {sent.partition}, offset {sent.offset}")


async def _check_topic(context: Context, topic: str, partition: int | None, topic_field: str, field: str) -> None:
    """Nothing is made by writing to it, and what Kafka keeps for itself is not written to by hand."""
    found = await _topic(context, topic)
    if found is None:
        raise Refused(f"there is no topic '{topic[:250]}'; nothing was sent", 404, topic_field)
    if found.internal:
        raise Refused(f"{topic} is internal: nothing is written to it by hand", field=topic_field)
    if partition is not None and partition >= len(found.partitions):
        raise Refused(f"{topic} has {len(found.partitions)} partitions, from 0 on; nothing was sent", field=field)


async def _topic(context: Context, name: str) -> Topic | None:
    """One that was made a moment ago is not in the last sample."""
    found = (await context.cluster.state()).topics.get(name)
    if found is None and name:
        context.cluster.changed()
        found = (await context.cluster.state()).topics.get(name)
    return found


# --- pages


def _wanted(view: View, most: int = MOST_ROWS, rows: int = DEFAULT_ROWS) -> Wanted:
    names = {
        "topic": "", "start": Start.NEWEST, "at": "", "partition": "", "key": "", "text": "", "header": "", "path": "",
        "expression": "", "key_format": "auto", "value_format": "auto", "key_schema": "", "value_schema": "",
        "cursor": "",
    }  # fmt: skip
    values: dict[str, Any] = {name: view.text(name, default) for name, default in names.items()}
    return Wanted(**values, limit=view.number("limit", rows, 1, most), committed=view.flag("committed"))


@page("/messages", "Messages", nav="Messages")
async def messages_page(view: View) -> Response:
    sample = await view.context.cluster.state()
    wanted = _wanted(view)
    error = ""
    topic = await _topic(view.context, wanted.topic)
    if wanted.topic:
        if topic is None:
            error = f"there is no topic '{wanted.topic}'"
        else:
            try:
                wanted.search(view.context)
            except Refused as refused:
                error = str(refused)
    return view.render(
        "messages.html",
        wanted=wanted,
        topic=topic,
        error=error,
        topics=[t.name for t in sample.topics.values()],
        starts=Start.ALL,
        decoders=DECODERS,
        formats=writing.FORMATS,
        query=view.request.url.query,
        may_produce=view.context.user.role >= Role.OPERATE,
        copied=view.text("produce"),
    )


@page("/topics/{topic}/messages", "Messages", tab="Messages")
async def topic_messages_page(view: View) -> Response:
    """The tab of a topic."""
    topic = quote(view.path("topic"), safe="")
    return RedirectResponse(f"/c/{view.context.cluster.name}/messages?topic={topic}", 302)


@page("/messages/stream", "Messages")
async def stream_page(view: View) -> Response:
    search = await _wanted(view).begun(view.context)
    return EventStream(_events(search), view.context.is_current)


async def _events(search: Search) -> AsyncIterator[str]:
    try:
        async with _Running(), aclosing(search.events()) as events:
            async for found in events:
                yield event(found.kind, await showing.rows(found.data) if found.kind == "hits" else found.data)
    except asyncio.CancelledError:
        raise
    except Exception as error:
        known = explained(error)
        if known is None:
            raise
        yield event("failed", known[1])


@page("/messages/download", "Messages")
async def download_page(view: View) -> Response:
    kind = view.text("format", "json")
    if kind not in ("json", "csv"):
        raise Refused("format must be json or csv", field="format")
    wanted = _wanted(view, MOST_DOWNLOADED, DEFAULT_DOWNLOADED)
    if wanted.start == Start.TAIL:
        raise Refused("a tail has no end: choose another start to download", field="start")
    search = await wanted.begun(view.context)
    body = showing.as_json(search) if kind == "json" else showing.as_csv(search)
    return StreamingResponse(
        _counted(body, view.context.is_current),
        media_type="application/json" if kind == "json" else "text/csv; charset=utf-8",
        headers=_attachment(f"{wanted.topic}.{kind}"),
    )


async def _counted(body: AsyncIterator[bytes], is_allowed: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Nothing more is sent to a user who may read no longer: the connection ends, and the file is not whole."""
    checked = time.monotonic()
    async with _Running(), aclosing(body):  # type: ignore[type-var]
        async for piece in body:
            if time.monotonic() - checked >= CHECK_S:
                checked = time.monotonic()
                if not is_allowed():
                    raise Refused("log in first", 401)
            yield piece


def _attachment(name: str) -> Mapping[str, str]:
    return {
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}",
        "Cache-Control": "no-store",
    }


@page("/messages/raw", "Messages")
async def raw_page(view: View) -> Response:
    """The bytes of a key or a value, as a file: never as something that a browser would show."""
    topic, partition, offset = view.text("topic"), view.number("partition"), view.number("offset")
    which = view.text("part", "value")
    record = await _record(view.context, topic, partition, offset)
    data = record.key if which == "key" else record.value
    if data is None:
        raise Refused(f"the {which} is null", 404)
    return Response(
        data,
        media_type="application/octet-stream",
        headers=dict(_attachment(f"{topic}-{partition}-{offset}.{'key' if which == 'key' else 'value'}")),
    )


@page("/messages/one", "Message")
async def message_page(view: View) -> Response:
    wanted = _wanted(view)
    partition, offset = view.number("partition"), view.number("offset")
    message = await _one(
        view.context, wanted.topic, partition, offset, wanted.key_format, wanted.value_format, wanted.key_schema,
        wanted.value_schema,
    )  # fmt: skip
    (shown,) = await showing.rows([message], showing.MOST_TEXT)
    key_text, value_text = await showing.pretty_parts(message)
    return view.render(
        "message.html",
        wanted=wanted,
        message=shown,
        key_text=key_text,
        value_text=value_text,
        decoders=DECODERS,
        may_produce=view.context.user.role >= Role.OPERATE,
    )
