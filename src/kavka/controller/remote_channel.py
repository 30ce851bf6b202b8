"""The controller's connection to a broker in another process."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from kavka.client.errors import UnsupportedVersion
from kavka.common.errors import KafkaError
from kavka.controller.channel import BrokerChannel, ControlRequest, ControlResponse, OnReachability
from kavka.controller.connection_watch import ConnectionWatch, FlapBackoff
from kavka.replication.peers import Peers

logger = logging.getLogger(__name__)

CHANNEL = "controller"
RETRY_INTERVAL_S = 0.1


class RemoteChannel(BrokerChannel):
    """Sends requests over the network. Requests can be sent again, because a broker ignores a state
    with an epoch that it already has. With `failure_timeout_s`, the connection is kept open and
    its failures are reported."""

    def __init__(
        self, broker_id: int, peers: Peers, request_timeout_s: float, failure_timeout_s: float | None = None
    ) -> None:
        self._broker_id = broker_id
        self._peers = peers
        self._timeout_s = request_timeout_s
        self._failure_timeout_s = failure_timeout_s
        self._is_closed = False

    async def send(self, request: ControlRequest) -> ControlResponse:
        has_warned = False
        while True:
            try:
                response: ControlResponse = await self._peers.send(
                    self._broker_id, request, channel=CHANNEL, timeout=self._timeout_s
                )
                return response
            except UnsupportedVersion:
                raise
            except KafkaError as error:
                if self._is_closed:
                    # The sender cancelled its task, but this error replaced the cancellation.
                    raise asyncio.CancelledError from error
                if not has_warned:
                    logger.warning(
                        "Cannot send %s to broker %d, retrying: %s", type(request).__name__, self._broker_id, error
                    )
                    has_warned = True
                await asyncio.sleep(RETRY_INTERVAL_S)

    async def watch(self, on_change: OnReachability, *, is_starting: bool) -> None:
        if self._failure_timeout_s is None:
            return
        watch = ConnectionWatch(self._peers, self._broker_id, CHANNEL)
        flaps = FlapBackoff()
        if is_starting:
            # Not `wait_for`, which ignores a cancellation in the turn in which its task completes.
            with suppress(TimeoutError):
                async with asyncio.timeout(self._failure_timeout_s):
                    await watch.wait_until_connected()
        while True:
            await watch.wait_until_failed(refused_s=flaps.delay(), timeout_s=self._failure_timeout_s)
            flaps.record()
            on_change(False)
            await watch.wait_until_connected()
            on_change(True)

    def close(self) -> None:
        self._is_closed = True
        self._peers.close_channel(self._broker_id, CHANNEL)
