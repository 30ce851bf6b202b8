"""The controller's connection to a broker, for LeaderAndIsr, UpdateMetadata and StopReplica."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any

from kavka.protocol.messages.leader_and_isr import LeaderAndIsrRequest, LeaderAndIsrResponse
from kavka.protocol.messages.stop_replica import StopReplicaRequest, StopReplicaResponse
from kavka.protocol.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse

logger = logging.getLogger(__name__)

ControlRequest = LeaderAndIsrRequest | UpdateMetadataRequest | StopReplicaRequest
ControlResponse = LeaderAndIsrResponse | UpdateMetadataResponse | StopReplicaResponse
OnResponse = Callable[[ControlRequest, ControlResponse], Any]
# Receives whether the broker is reachable, whenever that changes. At first it is.
OnReachability = Callable[[bool], Any]


class BrokerChannel(ABC):
    """Delivers requests to one registration of a broker."""

    @abstractmethod
    async def send(self, request: ControlRequest) -> ControlResponse:
        """Deliver the request and return the response. Retries until the broker responds or
        `close` is called."""

    async def watch(self, on_change: OnReachability, *, is_starting: bool) -> None:
        """Report failures of the connection until cancelled. By default there are none. A broker
        that is starting may have registered before it accepts connections, as Apache's does."""
        return

    def close(self) -> None:
        """Called when the broker is no longer registered or this controller has resigned."""
        return


class LocalChannel(BrokerChannel):
    """Calls the broker in the same process."""

    def __init__(
        self,
        leader_and_isr: Callable[[LeaderAndIsrRequest], LeaderAndIsrResponse | Awaitable[LeaderAndIsrResponse]],
        update_metadata: Callable[[UpdateMetadataRequest], UpdateMetadataResponse | Awaitable[UpdateMetadataResponse]],
        stop_replica: Callable[[StopReplicaRequest], StopReplicaResponse | Awaitable[StopReplicaResponse]],
    ) -> None:
        self._calls: dict[type, Callable[[Any], Any]] = {
            LeaderAndIsrRequest: leader_and_isr,
            UpdateMetadataRequest: update_metadata,
            StopReplicaRequest: stop_replica,
        }

    async def send(self, request: ControlRequest) -> ControlResponse:
        result = self._calls[type(request)](request)
        response: ControlResponse = await result if isawaitable(result) else result
        return response


class BrokerSender:
    """Owns the queue of requests to one broker, and the channel. Sends one request at a time, in
    order."""

    def __init__(
        self,
        broker_id: int,
        channel: BrokerChannel,
        on_reachability: OnReachability = lambda is_reachable: None,
        *,
        is_starting: bool = False,
    ) -> None:
        self.broker_id = broker_id
        self._channel = channel
        self._queue: asyncio.Queue[tuple[ControlRequest, OnResponse]] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._run(), name=f"controller-to-broker-{broker_id}"),
            loop.create_task(
                channel.watch(on_reachability, is_starting=is_starting), name=f"controller-watches-broker-{broker_id}"
            ),
        ]

    def enqueue(self, request: ControlRequest, on_response: OnResponse) -> None:
        self._queue.put_nowait((request, on_response))

    async def wait_until_drained(self) -> None:
        """Wait until all requests so far have a response."""
        await self._queue.join()

    def stop(self) -> list[asyncio.Task[None]]:
        """Stop sending. Returns the cancelled tasks."""
        self._channel.close()
        for task in self._tasks:
            task.cancel()
        return self._tasks

    async def _run(self) -> None:
        while True:
            request, on_response = await self._queue.get()
            try:
                on_response(request, await self._channel.send(request))
            except Exception:
                logger.exception("Broker %d failed to process %s", self.broker_id, type(request).__name__)
            finally:
                self._queue.task_done()
