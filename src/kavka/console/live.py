"""Server-sent events, which notify pages of new data."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

from starlette.responses import StreamingResponse

from kavka.console.cluster import ClusterHandle
from kavka.console.jsons import plain

KEEP_ALIVE_S = 5.0
CHECK_S = 1.0
QUEUED = 4
"""Queued events for a slow client; an event may contain the rows of a whole page."""
LONGEST_S = 600.0
"""A stream ends after this time; the browser reconnects and authenticates again."""


def event(name: str, data: Any) -> str:
    """The text of an event; its data is JSON without line breaks."""
    return f"event: {name}\ndata: {json.dumps(plain(data), separators=(',', ':'))}\n\n"


class EventStream(StreamingResponse):
    """A streaming response of `events` (see `event`), with keep-alive comments that detect a
    disconnected client. The iterator is closed when the client disconnects or loses access, which
    `is_allowed` checks every CHECK_S."""

    def __init__(self, events: AsyncIterator[str], is_allowed: Callable[[], bool]) -> None:
        super().__init__(
            _with_comments(events, is_allowed),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )


_open: set[asyncio.Event] = set()
"""An event per open stream; setting it ends the stream."""


def end_streams() -> None:
    """End all streams when the console stops."""
    for ending in _open:
        ending.set()


async def _with_comments(events: AsyncIterator[str], is_allowed: Callable[[], bool]) -> AsyncIterator[str]:
    queue: asyncio.Queue[str | None] = asyncio.Queue(QUEUED)
    ending = asyncio.Event()
    _open.add(ending)

    async def pump() -> None:
        try:
            async with aclosing(events) as source:  # type: ignore[type-var]
                async for text in source:
                    await queue.put(text)
        finally:
            # If the queue is full, the client reads it first and then checks the task.
            with contextlib.suppress(asyncio.QueueFull):
                queue.put_nowait(None)

    async def end() -> None:
        await ending.wait()
        task.cancel()

    task = asyncio.create_task(pump())
    watcher = asyncio.create_task(end())
    try:
        yield ": the console\n\n"
        checked = time.monotonic()
        while True:
            if time.monotonic() - checked >= CHECK_S:
                checked = time.monotonic()
                if not is_allowed():
                    yield event("failed", "log in first")
                    return
            try:
                async with asyncio.timeout(KEEP_ALIVE_S):
                    text = await queue.get()
            except TimeoutError:
                if task.done() and queue.empty():
                    return
                yield ":\n\n"
                continue
            if text is None:
                return
            yield text
    finally:
        _open.discard(ending)
        watcher.cancel()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def samples(cluster: ClusterHandle) -> AsyncIterator[str]:
    """An event for every sample of the cluster, up to LONGEST_S."""
    new = asyncio.Event()
    stop = cluster.on_sample(new.set)
    end = time.monotonic() + LONGEST_S
    try:
        while time.monotonic() < end:
            cluster.look()
            try:
                async with asyncio.timeout(KEEP_ALIVE_S):
                    await new.wait()
            except TimeoutError:
                continue
            new.clear()
            yield event("sample", {"at": cluster.sample.at if cluster.sample else None, "error": cluster.error})
    finally:
        stop()
