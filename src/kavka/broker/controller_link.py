"""The way from any broker to the one that is the controller now."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from kavka.client.errors import Disconnected, KafkaTimeout
from kavka.common.errors import ErrorCode, KafkaError
from kavka.protocol.primitives import TopMessage
from kavka.replication.peers import Peers

CHANNEL = "to-controller"
RETRY_S = 0.05


class ControllerLink:
    """`who` gives the controller's id, -1 while there is none; `local` answers when it is this broker."""

    def __init__(
        self,
        broker_id: int,
        who: Callable[[], int],
        local: Callable[[TopMessage, int], Awaitable[Any]],
        peers: Peers,
    ) -> None:
        self._broker_id = broker_id
        self._who = who
        self._local = local
        self._peers = peers

    async def ask(self, request: TopMessage, *, timeout_s: float, max_version: int | None = None) -> Any:
        """The answer of whoever is the controller. One that turns out not to be it any more, or is gone, is looked up
        again until the time is up: then KafkaTimeout, or what was wrong last."""
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_s
        error: KafkaError | None = None
        while (left := end - loop.time()) > 0:
            controller = self._who()
            try:
                if controller == self._broker_id:
                    version = request.MAX_VERSION if max_version is None else max_version
                    response = await asyncio.wait_for(self._local(request, version), left)
                elif controller < 0:
                    raise Disconnected("there is no controller now")
                else:
                    response = await self._peers.ask(
                        controller, request, channel=CHANNEL, timeout=left, max_version=max_version
                    )
            except KafkaError as failed:
                if not isinstance(failed, (Disconnected, KafkaTimeout)) and failed.code != ErrorCode.NOT_CONTROLLER:
                    raise
                error = failed
            except TimeoutError:
                break
            else:
                if not _is_refusal(response):
                    return response
                error = KafkaError(ErrorCode.NOT_CONTROLLER)
            await asyncio.sleep(RETRY_S)
        raise error or KafkaTimeout("the controller did not answer in time")


def _is_refusal(response: Any) -> bool:
    """NOT_CONTROLLER above all, or, where the answer has no place for it there, with every topic."""
    codes = [response.error_code] if hasattr(response, "error_code") else [t.error_code for t in response.topics]
    return bool(codes) and all(code == ErrorCode.NOT_CONTROLLER for code in codes)
