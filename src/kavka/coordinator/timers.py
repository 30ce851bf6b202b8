"""The timers of a shard on the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from typing import Any

from kavka.coordinator.operations import Outcome, TimerOperation

logger = logging.getLogger(__name__)


class LoopTimers:
    """The running timers of one shard, by key. The outcome of a timer's operation goes to
    `submit`."""

    __slots__ = ("_handles", "_loop", "_submit")

    def __init__(self, loop: asyncio.AbstractEventLoop, submit: Callable[[Outcome], Any]) -> None:
        self._loop = loop
        self._submit = submit
        self._handles: dict[Hashable, asyncio.TimerHandle] = {}

    def schedule(self, key: Hashable, delay_ms: float, operation: TimerOperation) -> None:
        old = self._handles.get(key)
        if old is not None:
            old.cancel()
        self._handles[key] = self._loop.call_later(max(delay_ms, 0) / 1000, self._fire, key, operation)

    def cancel(self, key: Hashable) -> None:
        handle = self._handles.pop(key, None)
        if handle is not None:
            handle.cancel()

    def cancel_all(self) -> None:
        for handle in self._handles.values():
            handle.cancel()
        self._handles.clear()

    def _fire(self, key: Hashable, operation: TimerOperation) -> None:
        self._handles.pop(key, None)
        try:
            self._submit(operation())
        except Exception:
            logger.exception("Timer %s failed", key)
