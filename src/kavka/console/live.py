"""Server-sent events: how pages learn that there is something new."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from starlette.responses import StreamingResponse

from kavka.console.cluster import ClusterHandle
from kavka.console.jsons import plain

KEEP_ALIVE_S = 5.0


def event(name: str, data: Any) -> str:
    """One event; the data as JSON, which has no line breaks."""
    return f"event: {name}\ndata: {json.dumps(plain(data), separators=(',', ':'))}\n\n"


class EventStream(StreamingResponse):
    """An answer that goes on: whatever `events` yields (see `event`), with a comment now and then in between, so that a
    reader that is gone is noticed. The iterator is closed when the reader leaves."""

    def __init__(self, events: AsyncIterator[str]) -> None:
        super().__init__(
            _with_comments(events),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )


async def _with_comments(events: AsyncIterator[str]) -> AsyncIterator[str]:
    queue: asyncio.Queue[str | None] = asyncio.Queue(64)

    async def pump() -> None:
        try:
            async with aclosing(events) as source:  # type: ignore[type-var]
                async for text in source:
                    await queue.put(text)
        finally:
            await queue.put(None)

    task = asyncio.create_task(pump())
    try:
        yield ": the console\n\n"
        while True:
            try:
                async with asyncio.timeout(KEEP_ALIVE_S):
                    text = await queue.get()
            except TimeoutError:
                yield ":\n\n"
                continue
            if text is None:
                return
            yield text
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def samples(cluster: ClusterHandle) -> AsyncIterator[str]:
    """An event for every sample of the cluster, while somebody listens."""
    new = asyncio.Event()
    stop = cluster.on_sample(new.set)
    try:
        while True:
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
