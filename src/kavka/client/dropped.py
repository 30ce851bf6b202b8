"""Closing an asyncio client that the program dropped."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from typing import Any

logger = logging.getLogger(__name__)

# The loop refers to its tasks weakly.
_tasks: set[asyncio.Task[None]] = set()


def close_on_loop(loop: asyncio.AbstractEventLoop, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """For a finalizer, which may run in any thread: close the client while its loop runs. Does not wait."""
    with contextlib.suppress(RuntimeError):
        # A loop that has ended raises: nothing of the client runs any more.
        loop.call_soon_threadsafe(_start, close)


def _start(close: Callable[[], Coroutine[Any, Any, None]]) -> None:
    task = asyncio.create_task(close(), name="kavka-dropped")
    _tasks.add(task)
    task.add_done_callback(_ended)


def _ended(task: asyncio.Task[None]) -> None:
    _tasks.discard(task)
    if not task.cancelled() and task.exception() is not None:
        logger.info("A dropped client was not closed properly: %r", task.exception())
