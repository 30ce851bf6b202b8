"""Sends requests to the current controller."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from kavka.client.errors import Disconnected, KafkaTimeout
from kavka.common.errors import ErrorCode, KafkaError
from kavka.protocol.primitives import TopMessage
from kavka.replication.peers import Peers

CHANNEL = "to-controller"
RETRY_S = 0.05


@dataclass(eq=False, repr=False)
class ControllerLink:
    """Finds the controller and retries when it moves. `controller_id` returns -1 while there is no
    controller; `handle_locally` handles a request when this broker is the controller."""

    _broker_id: int
    _controller_id: Callable[[], int]
    _handle_locally: Callable[[TopMessage, int], Awaitable[Any]]
    _peers: Peers

    async def send(self, request: TopMessage, *, timeout_s: float, max_version: int | None = None) -> Any:
        """The controller's response. While the controller cannot be reached or has moved, retry
        until the timeout, then raise the last error or KafkaTimeout."""
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_s
        error: KafkaError | None = None
        while (left := end - loop.time()) > 0:
            controller = self._controller_id()
            try:
                if controller == self._broker_id:
                    version = request.MAX_VERSION if max_version is None else max_version
                    response = await asyncio.wait_for(self._handle_locally(request, version), left)
                elif controller < 0:
                    raise Disconnected("there is no controller")
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
        raise error or KafkaTimeout("the controller did not respond in time")


def _is_refusal(response: Any) -> bool:
    """Whether the response is NOT_CONTROLLER, at the top level or, without such a field, for every
    topic."""
    codes = [response.error_code] if hasattr(response, "error_code") else [t.error_code for t in response.topics]
    return bool(codes) and all(code == ErrorCode.NOT_CONTROLLER for code in codes)
