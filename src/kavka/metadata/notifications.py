"""Follows the change notifications of the znode tree.

A broker that changes a znode also creates a sequential znode under a path of notifications. Every
broker watches that path and applies the notifications in the order of their numbers. Notifications
older than 15 minutes are removed, as in Kafka.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable

from kavka.common.clock import Clock
from kavka.metadata.paths import MalformedNode
from kavka.metadata.store import MetadataStore, NoNode, StoreUnavailable, WatchEvent

logger = logging.getLogger(__name__)

NOTIFICATION_LIFETIME_MS = 15 * 60 * 1000
RETRY_INTERVAL_S = 1.0
MAX_CATCH_UP_S = 5.0


class NotificationFollower:
    """Calls `apply` with the data of every new notification under `path`. `apply` may raise NoNode
    or MalformedNode; the notification is then ignored. Only the event loop may call the methods."""

    def __init__(
        self,
        store: MetadataStore,
        path: str,
        prefix: str,
        apply: Callable[[bytes | None], Awaitable[None]],
        clock: Clock,
    ) -> None:
        self._store = store
        self._path = path
        self._prefix = prefix
        self._apply = apply
        self._clock = clock
        self._last_applied = -1
        self._update_task: asyncio.Task[None] | None = None
        self._must_update_again = False

    async def start(self) -> None:
        """Watch for notifications. Earlier notifications are not applied: read the whole state
        after this call."""
        names = await self._store.children(self._path, self._on_change)
        self._last_applied = max(map(self._number, names), default=-1)

    async def catch_up(self) -> None:
        """Apply the notifications that exist now. Waits for at most `MAX_CATCH_UP_S` seconds, for
        example while the store is not connected."""
        self._on_change(None)
        assert self._update_task is not None
        await asyncio.wait((self._update_task,), timeout=MAX_CATCH_UP_S)

    async def stop(self) -> None:
        if self._update_task is not None:
            self._update_task.cancel()
            await asyncio.gather(self._update_task, return_exceptions=True)

    def _number(self, name: str) -> int:
        """Return the sequence number of a notification, or -1 if its name has none."""
        digits = name.removeprefix(self._prefix)
        return int(digits) if digits.isdecimal() else -1

    def _on_change(self, event: WatchEvent | None) -> None:
        if self._update_task is not None and not self._update_task.done():
            self._must_update_again = True
        else:
            self._update_task = asyncio.get_running_loop().create_task(self._update())

    async def _update(self) -> None:
        while True:
            self._must_update_again = False
            try:
                await self._apply_all()
            except StoreUnavailable as error:
                # The watch is set only by a successful read, so retry.
                logger.warning("Cannot read the notifications in %s, retrying: %s", self._path, error)
                await asyncio.sleep(RETRY_INTERVAL_S)
                continue
            if not self._must_update_again:
                return

    async def _apply_all(self) -> None:
        names = await self._store.children(self._path, self._on_change)
        new_names = [name for name in names if self._number(name) > self._last_applied]
        for name in sorted(new_names, key=self._number):
            try:
                await self._apply((await self._store.get(f"{self._path}/{name}"))[0])
            except (NoNode, MalformedNode) as error:
                logger.warning("Ignoring a change notification: %s", error)
            self._last_applied = self._number(name)
        # A purge also fires the watch, and must not cause another purge.
        if new_names:
            await self._purge(names)

    async def _purge(self, names: Iterable[str]) -> None:
        for name in names:
            path = f"{self._path}/{name}"
            stat = await self._store.exists(path)
            if stat is not None and self._clock.now_ms() - stat.ctime > NOTIFICATION_LIFETIME_MS:
                with contextlib.suppress(NoNode):
                    await self._store.delete(path)
