"""The pages for messages: the search, its event stream and downloads, and a single message."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from typing import Any
from urllib.parse import quote

from starlette.responses import RedirectResponse, Response, StreamingResponse

from kavka.console import showing, writing
from kavka.console.auth import Role
from kavka.console.decoders import DECODERS
from kavka.console.errors import Refused, explain
from kavka.console.live import MIN_CHECK_INTERVAL_S, EventStream, event
from kavka.console.messages import Search, Start
from kavka.console.pages.message_query import DEFAULT_ROWS, MAX_ROWS, MessageQuery, find_topic
from kavka.console.pages.messages import read_message, read_record
from kavka.console.searches import running_searches
from kavka.console.views import View, page

MAX_DOWNLOAD_MESSAGES, DEFAULT_DOWNLOAD_MESSAGES = 1_000_000, 10_000


def _inputs(view: View, max_rows: int = MAX_ROWS, rows: int = DEFAULT_ROWS) -> MessageQuery:
    defaults = {
        "topic": "", "start": Start.NEWEST, "at": "", "partition": "", "key": "", "text": "", "header": "", "path": "",
        "expression": "", "key_format": "auto", "value_format": "auto", "key_schema": "", "value_schema": "",
        "cursor": "",
    }  # fmt: skip
    values: dict[str, Any] = {name: view.text(name, default) for name, default in defaults.items()}
    return MessageQuery(**values, limit=view.number("limit", rows, 1, max_rows), committed=view.flag("committed"))


@page("/messages", "Messages", nav="Messages", icon="mail", section="Data", topics=("topic",))
async def messages_page(view: View) -> Response:
    inputs = _inputs(view)
    error = ""
    topic = await find_topic(view.context, inputs.topic)
    if inputs.topic:
        if topic is None:
            error = f"there is no topic '{inputs.topic}'"
        else:
            try:
                inputs.search(view.context)
            except Refused as rejection:
                error = str(rejection)
    return view.render(
        "messages.html",
        wanted=inputs,
        topic=topic,
        error=error,
        starts=Start.ALL,
        decoders=DECODERS,
        formats=writing.FORMATS,
        query=view.request.url.query,
        may_produce=view.context.user.role >= Role.OPERATE,
    )


@page("/topics/{topic}/messages", "Messages", tab="Messages", topics=("topic",))
async def topic_messages_page(view: View) -> Response:
    """Redirect the tab `Messages` of a topic to the search."""
    topic = quote(view.path("topic"), safe="")
    base = view.context.console.settings.base_path
    return RedirectResponse(f"{base}/c/{view.context.cluster.name}/messages?topic={topic}", 302)


@page("/messages/stream", "Messages", is_data=True, topics=("topic",))
async def stream_page(view: View) -> Response:
    search = await _inputs(view).start_search(view.context)
    return EventStream(_events(search), view.context.is_current)


async def _events(search: Search) -> AsyncIterator[str]:
    try:
        async with running_searches, aclosing(search.events()) as events:
            async for result in events:
                yield event(result.kind, await showing.rows(result.data) if result.kind == "hits" else result.data)
    except asyncio.CancelledError:
        raise
    except Exception as error:
        explanation = explain(error)
        if explanation is None:
            raise
        yield event("failed", explanation[1])


@page("/messages/download", "Messages", is_data=True, topics=("topic",))
async def download_page(view: View) -> Response:
    file_format = view.text("format", "json")
    if file_format not in ("json", "csv"):
        raise Refused("format must be json or csv", field="format")
    inputs = _inputs(view, MAX_DOWNLOAD_MESSAGES, DEFAULT_DOWNLOAD_MESSAGES)
    if inputs.start == Start.TAIL:
        raise Refused("a tail cannot be downloaded: select another start", field="start")
    search = await inputs.start_search(view.context)
    body = showing.as_json(search) if file_format == "json" else showing.as_csv(search)
    return StreamingResponse(
        _while_allowed(body, view.context.is_current),
        media_type="application/json" if file_format == "json" else "text/csv; charset=utf-8",
        headers=_attachment(f"{inputs.topic}.{file_format}"),
    )


async def _while_allowed(body: AsyncIterator[bytes], is_allowed: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Yield the chunks of a download. Raises Refused when the user loses access: the connection
    ends, and the file is incomplete."""
    checked_at = time.monotonic()
    async with running_searches, aclosing(body):  # type: ignore[type-var]
        async for chunk in body:
            if time.monotonic() - checked_at >= MIN_CHECK_INTERVAL_S:
                checked_at = time.monotonic()
                if not is_allowed():
                    raise Refused("log in first", 401)
            yield chunk


def _attachment(name: str) -> Mapping[str, str]:
    return {
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}",
        "Cache-Control": "no-store",
    }


@page("/messages/raw", "Messages", is_data=True, topics=("topic",))
async def raw_page(view: View) -> Response:
    """Return the bytes of a key or a value as an attachment, which a browser never renders."""
    topic, partition, offset = view.text("topic"), view.number("partition"), view.number("offset")
    part = "key" if view.text("part") == "key" else "value"
    masks = view.context.cluster.masks.of(topic)
    if masks.key if part == "key" else masks.of_value:
        raise Refused(f"the {part} is masked", 403)
    record = await read_record(view.context, topic, partition, offset)
    data = record.key if part == "key" else record.value
    if data is None:
        raise Refused(f"the {part} is null", 404)
    return Response(
        data,
        media_type="application/octet-stream",
        headers=dict(_attachment(f"{topic}-{partition}-{offset}.{part}")),
    )


@page("/messages/one", "Message", topics=("topic",))
async def message_page(view: View) -> Response:
    inputs = _inputs(view)
    partition, offset = view.number("partition"), view.number("offset")
    message = await read_message(view.context, inputs, partition, offset)
    (row,) = await showing.rows([message], showing.MAX_TEXT)
    parts = await showing.pretty_parts(message)
    servers = view.context.cluster.settings.servers
    return view.render(
        "message.html",
        wanted=inputs,
        message=row,
        parts=parts,
        command=showing.command_of(servers, inputs.topic, partition, row.offset),
        python=showing.python_of(servers, inputs.topic, partition, row.offset),
        decoders=DECODERS,
        may_produce=view.context.user.role >= Role.OPERATE,
    )
