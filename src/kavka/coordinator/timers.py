"""The timers of a shard on the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from kavka.coordinator.operations import Outcome, TimerOperation

logger = logging.getLogger(__name__)

LOADING_RETRY_MS = 100


@dataclass(slots=True, eq=False, repr=False)
class LoopTimers:
    """Owns the running timers of one shard, by key. When a timer fires, its operation runs, and
    `submit` gets the outcome. A timer that fires while the shard is loading is scheduled again,
    because `submit` accepts no outcome then."""

    _loop: asyncio.AbstractEventLoop
    _submit: Callable[[Outcome], Any]
    _is_loading: Callable[[], bool] = lambda: False
    _handles: dict[Hashable, asyncio.TimerHandle] = field(init=False, default_factory=dict)

    def schedule(self, key: Hashable, delay_ms: float, operation: TimerOperation) -> None:
        previous = self._handles.get(key)
        if previous is not None:
            previous.cancel()
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
        if self._is_loading():
            self.schedule(key, LOADING_RETRY_MS, operation)
            return
        self._handles.pop(key, None)
        try:
            self._submit(operation())
        except Exception:
            logger.exception("Timer %s failed", key)
