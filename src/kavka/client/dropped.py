"""Closes an asyncio client that the application dropped without `close`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from typing import Any

logger = logging.getLogger(__name__)

# Keeps the tasks alive, because an event loop has only weak references to its tasks.
_tasks: set[asyncio.Task[None]] = set()


def close_on_loop(loop: asyncio.AbstractEventLoop, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Close the client on its event loop without waiting. Called by finalizers, which may run in
    any thread."""
    with contextlib.suppress(RuntimeError):
        # A closed event loop raises RuntimeError. The client then has no running task.
        loop.call_soon_threadsafe(_start, close)


def _start(close: Callable[[], Coroutine[Any, Any, None]]) -> None:
    task = asyncio.create_task(close(), name="kavka-dropped")
    _tasks.add(task)
    task.add_done_callback(_on_task_end)


def _on_task_end(task: asyncio.Task[None]) -> None:
    _tasks.discard(task)
    if not task.cancelled() and task.exception() is not None:
        logger.info("Cannot close a dropped client: %r", task.exception())
