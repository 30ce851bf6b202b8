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
RETRY_INTERVAL_S = 0.05


@dataclass(eq=False, repr=False)
class ControllerLink:
    """Sends requests to the current controller, and retries after a controller change.
    `controller_id` returns -1 while there is no controller. `handle_locally` handles a request if
    this broker is the controller."""

    _broker_id: int
    _controller_id: Callable[[], int]
    _handle_locally: Callable[[TopMessage, int], Awaitable[Any]]
    _peers: Peers

    async def send(self, request: TopMessage, *, timeout_s: float, max_version: int | None = None) -> Any:
        """Returns the controller's response. Retries while the controller is unreachable or has
        changed. After the timeout, raises the last error or KafkaTimeout. Any other KafkaError is
        raised at once."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        error: KafkaError | None = None
        while (remaining_s := deadline - loop.time()) > 0:
            controller = self._controller_id()
            try:
                if controller == self._broker_id:
                    api_version = request.MAX_VERSION if max_version is None else max_version
                    response = await asyncio.wait_for(self._handle_locally(request, api_version), remaining_s)
                elif controller < 0:
                    raise Disconnected("there is no controller")
                else:
                    response = await self._peers.send(
                        controller, request, channel=CHANNEL, timeout=remaining_s, max_version=max_version
                    )
            except KafkaError as failure:
                if not isinstance(failure, (Disconnected, KafkaTimeout)) and failure.code != ErrorCode.NOT_CONTROLLER:
                    raise
                error = failure
            except TimeoutError:
                break
            else:
                if not _is_not_controller(response):
                    return response
                error = KafkaError(ErrorCode.NOT_CONTROLLER)
            await asyncio.sleep(RETRY_INTERVAL_S)
        raise error or KafkaTimeout("the controller did not respond in time")


def _is_not_controller(response: Any) -> bool:
    """Whether the top-level error is NOT_CONTROLLER. A response without a top-level error must have
    this error for every topic."""
    codes = [response.error_code] if hasattr(response, "error_code") else [t.error_code for t in response.topics]
    return bool(codes) and all(code == ErrorCode.NOT_CONTROLLER for code in codes)
