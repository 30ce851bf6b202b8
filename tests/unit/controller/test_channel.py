from __future__ import annotations

import asyncio
from typing import Any

from kavka.client.errors import Disconnected
from kavka.controller.channel import BrokerSender
from kavka.controller.remote_channel import RemoteChannel
from kavka.protocol.messages.update_metadata import UpdateMetadataRequest


class SilentPeers:
    """A broker that never responds; closing the channel fails pending requests."""

    def __init__(self) -> None:
        self.requested = 0
        self._response: asyncio.Future[Any] | None = None

    async def send(self, broker_id: int, request: Any, *, channel: str, timeout: float) -> Any:
        self.requested += 1
        self._response = asyncio.get_running_loop().create_future()
        return await asyncio.wait_for(self._response, timeout)

    def close_channel(self, broker_id: int, channel: str) -> None:
        assert self._response is not None
        self._response.set_exception(Disconnected("closed"))


def test_a_stopped_sender_sends_nothing_even_if_the_connection_breaks_at_that_moment() -> None:
    async def body() -> None:
        peers = SilentPeers()
        sender = BrokerSender(1, RemoteChannel(1, peers, 60.0))  # type: ignore[arg-type]
        for _ in range(3):
            sender.enqueue(UpdateMetadataRequest(), lambda request, response: None)
        while not peers.requested:
            await asyncio.sleep(0)
        tasks = set(sender.stop())
        done, _ = await asyncio.wait(tasks, timeout=5)
        for task in tasks:
            task.cancel()
        assert done == tasks
        assert peers.requested == 1

    asyncio.run(body())
