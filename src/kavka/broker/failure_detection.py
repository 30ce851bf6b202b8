"""Detects that the process of the controller has ended, for the other brokers
(docs/decisions/0016)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass

from kavka.broker.controller_link import CHANNEL
from kavka.common.errors import KafkaError
from kavka.controller.connection_watch import RETRY_INTERVAL_S, ConnectionWatch
from kavka.replication.peers import Peers

PROBE_CHANNEL = "probe"
PROBE_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True)
class ControllerFailures:
    """Watches the connection on which this broker sends requests to the controller. `brokers`
    returns the ids of the registered brokers."""

    _broker_id: int
    _peers: Peers
    _brokers: Callable[[], Collection[int]]

    async def wait_until_failed(self, controller_id: int, refused_s: float) -> None:
        """Wait until the controller has refused connections for `refused_s` while this broker can
        connect to enough other brokers to be a controller."""
        watch = ConnectionWatch(self._peers, controller_id, CHANNEL)
        while True:
            await watch.wait_until_failed(refused_s=refused_s, timeout_s=None)
            if await self._reaches_half():
                return
            await asyncio.sleep(RETRY_INTERVAL_S)

    async def _reaches_half(self) -> bool:
        """Whether this broker can connect to half of the brokers, itself included."""
        brokers = set(self._brokers()) | {self._broker_id}
        results = await asyncio.gather(*(self._is_reachable(broker_id) for broker_id in brokers))
        return 2 * sum(results) >= len(brokers)

    async def _is_reachable(self, broker_id: int) -> bool:
        if broker_id == self._broker_id:
            return True
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                await self._peers.connection(broker_id, PROBE_CHANNEL)
            return True
        except (KafkaError, TimeoutError):
            return False
        finally:
            self._peers.close_channel(broker_id, PROBE_CHANNEL)
