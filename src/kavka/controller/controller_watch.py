"""Watches the process of the controller, on brokers that are not the controller."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from kavka.controller.connection_watch import FlapBackoff

# Waits until the broker with this id refuses connections, for at least this number of seconds.
WaitUntilFailed = Callable[[int, float], Awaitable[None]]

NO_NODE = -1


class ControllerWatch:
    """Owns the task that waits for the failure of one controller. A controller is identified by the
    czxid of its /controller. Only the loop thread uses it.

    Two brokers that refuse each other's connections would replace each other forever. Therefore
    each change of the controller in the last minute makes the next failure wait longer.
    """

    def __init__(self, wait_until_failed: WaitUntilFailed | None, on_failed: Callable[[int], Any]) -> None:
        """`on_failed` receives the czxid. Without `wait_until_failed`, nothing is watched."""
        self._wait_until_failed = wait_until_failed
        self._on_failed = on_failed
        self._czxid = NO_NODE
        self._task: asyncio.Task[None] | None = None
        self._changes = FlapBackoff()

    def watch(self, controller_id: int, czxid: int) -> None:
        """Watch this controller, and no other. After `on_failed`, the same controller may be
        watched again."""
        if self._wait_until_failed is None or (self._task is not None and self._czxid == czxid):
            return
        if self._czxid != NO_NODE:
            self._changes.record()
        self.stop()
        self._czxid = czxid
        self._task = asyncio.get_running_loop().create_task(
            self._watch(self._wait_until_failed, controller_id, czxid), name="watch-controller"
        )

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _watch(self, wait_until_failed: WaitUntilFailed, controller_id: int, czxid: int) -> None:
        await wait_until_failed(controller_id, self._changes.delay())
        self._task = None
        self._on_failed(czxid)
