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

KEEP_ALIVE_INTERVAL_S = 5.0
MIN_CHECK_INTERVAL_S = 1.0
MAX_QUEUED = 4
"""The maximum number of queued events for a slow client. An event may contain the rows of a whole
page."""
MAX_STREAM_S = 600.0
"""The stream of samples ends after this time. The browser reconnects and authenticates again."""


def event(name: str, data: Any) -> str:
    """Return the text of an event. Its data is JSON without line breaks."""
    return f"event: {name}\ndata: {json.dumps(plain(data), separators=(',', ':'))}\n\n"


class EventStream(StreamingResponse):
    """A streaming response of `events` (see `event`), with keep-alive comments that detect a
    disconnected client. The stream closes the iterator when the client disconnects or loses access.
    Between events it calls `is_allowed`, at most every MIN_CHECK_INTERVAL_S and at least every
    KEEP_ALIVE_INTERVAL_S."""

    def __init__(self, events: AsyncIterator[str], is_allowed: Callable[[], bool]) -> None:
        super().__init__(
            _with_keep_alive(events, is_allowed),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )


_readers: set[asyncio.Task[None]] = set()
"""The task of each open stream that reads its events. Cancelling the task ends the stream."""


def end_streams() -> None:
    """End all streams when the console stops."""
    for reader in _readers:
        reader.cancel()


async def _with_keep_alive(events: AsyncIterator[str], is_allowed: Callable[[], bool]) -> AsyncIterator[str]:
    queue: asyncio.Queue[str | None] = asyncio.Queue(MAX_QUEUED)

    async def read_events() -> None:
        try:
            async with aclosing(events) as source:  # type: ignore[type-var]
                async for text in source:
                    await queue.put(text)
        finally:
            # If the queue is full, the loop below sends its events first and then checks the task.
            with contextlib.suppress(asyncio.QueueFull):
                queue.put_nowait(None)

    reader = asyncio.create_task(read_events())
    _readers.add(reader)
    try:
        yield ": the console\n\n"
        checked_at = time.monotonic()
        while True:
            if time.monotonic() - checked_at >= MIN_CHECK_INTERVAL_S:
                checked_at = time.monotonic()
                if not is_allowed():
                    yield event("failed", "log in first")
                    return
            try:
                async with asyncio.timeout(KEEP_ALIVE_INTERVAL_S):
                    text = await queue.get()
            except TimeoutError:
                if reader.done() and queue.empty():
                    return
                yield ":\n\n"
                continue
            if text is None:
                return
            yield text
    finally:
        _readers.discard(reader)
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)


async def samples(cluster: ClusterHandle) -> AsyncIterator[str]:
    """Yield an event after every sample of the cluster, for MAX_STREAM_S."""
    has_new_sample = asyncio.Event()
    remove_listener = cluster.on_sample(has_new_sample.set)
    deadline = time.monotonic() + MAX_STREAM_S
    try:
        while time.monotonic() < deadline:
            cluster.mark_viewed()
            try:
                async with asyncio.timeout(KEEP_ALIVE_INTERVAL_S):
                    await has_new_sample.wait()
            except TimeoutError:
                continue
            has_new_sample.clear()
            yield event("sample", {"at": cluster.sample.at if cluster.sample else None, "error": cluster.error})
    finally:
        remove_listener()
