"""Watches the connection to another broker.

The kernel closes the connections of a process that ends, and refuses new ones, long before the
ZooKeeper session of the process expires. A failed connection does not prove that the process has
ended, so an action upon it must be safe if the broker is alive (docs/decisions/0016).
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from kavka.client.errors import ConnectionRefused
from kavka.common.backoff import Backoff
from kavka.common.errors import KafkaError
from kavka.replication.peers import Peers

RETRY_INTERVAL_S = 0.1
# Repeated failures within this time make the next failure wait.
FLAP_WINDOW_S = 60.0
FREE_FAILURES = 2
FLAP_DELAY = Backoff(250, 18_000, jitter=0)


class FlapBackoff:
    """Delays the reaction to repeated failures. The first two in a minute have no delay."""

    def __init__(self) -> None:
        self._times: deque[float] = deque()

    def record(self) -> None:
        self._times.append(asyncio.get_running_loop().time())

    def delay(self) -> float:
        """Return how long the next failure must last, in seconds."""
        oldest = asyncio.get_running_loop().time() - FLAP_WINDOW_S
        while self._times and self._times[0] < oldest:
            self._times.popleft()
        return FLAP_DELAY.delay(len(self._times) - FREE_FAILURES + 1)


@dataclass(frozen=True, slots=True)
class ConnectionWatch:
    """Keeps the connection to a broker open, on a channel of `Peers` that other code may use. Each
    method runs until its condition is true or its task is cancelled. Owns no state."""

    _peers: Peers
    _broker_id: int
    _channel: str

    async def wait_until_failed(self, *, refused_s: float, timeout_s: float | None) -> None:
        """Wait until there is no connection, and either new connections have been refused for
        `refused_s`, or none could be opened for `timeout_s` (None: no limit)."""
        while True:
            if not await self._reconnect(refused_s, timeout_s):
                return
            await self._wait_until_closed()

    async def wait_until_connected(self) -> None:
        await self._reconnect(float("inf"), None)

    async def _wait_until_closed(self) -> None:
        connection = self._peers.open_connection(self._broker_id, self._channel)
        if connection is not None:
            await self._peers.wait_until_closed(connection)

    async def _reconnect(self, refused_s: float, timeout_s: float | None) -> bool:
        """Return True when there is a connection, and False when the broker has failed."""
        loop = asyncio.get_running_loop()
        deadline = None if timeout_s is None else loop.time() + timeout_s
        refused_at: float | None = None
        while deadline is None or loop.time() < deadline:
            try:
                async with asyncio.timeout_at(deadline):
                    await self._peers.connection(self._broker_id, self._channel)
                return True
            except ConnectionRefused:
                refused_at = loop.time() if refused_at is None else refused_at
                if loop.time() - refused_at >= refused_s:
                    return False
            except (KafkaError, TimeoutError):
                refused_at = None
            await asyncio.sleep(RETRY_INTERVAL_S)
        return False
