"""How the controller reaches a broker: three requests, each answered, in the order they were given."""

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

log = logging.getLogger(__name__)

ControlRequest = LeaderAndIsrRequest | UpdateMetadataRequest | StopReplicaRequest
ControlResponse = LeaderAndIsrResponse | UpdateMetadataResponse | StopReplicaResponse
Answered = Callable[[ControlRequest, ControlResponse], Any]


class BrokerChannel(ABC):
    @abstractmethod
    async def send(self, request: ControlRequest) -> ControlResponse:
        """Deliver it and wait for the answer. A broker that cannot be reached is tried again, for as long as it takes:
        only the end of its registration (`close`) ends the trying."""

    def close(self) -> None:
        """The broker is gone, or this controller resigned."""
        return


class LocalChannel(BrokerChannel):
    """To the broker in the same process: plain calls, which may be coroutines."""

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
        answer = self._calls[type(request)](request)
        response: ControlResponse = await answer if isawaitable(answer) else answer
        return response


class BrokerSender:
    """The requests on their way to one broker: one at a time, in order."""

    def __init__(self, broker_id: int, channel: BrokerChannel) -> None:
        self.broker_id = broker_id
        self._channel = channel
        self._queue: asyncio.Queue[tuple[ControlRequest, Answered]] = asyncio.Queue()
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"controller-to-broker-{broker_id}")

    def enqueue(self, request: ControlRequest, answered: Answered) -> None:
        self._queue.put_nowait((request, answered))

    async def drained(self) -> None:
        """Wait until all that was given so far is answered."""
        await self._queue.join()

    def stop(self) -> asyncio.Task[None]:
        """Nothing more is sent from now on; the task that sent is done a little later."""
        self._channel.close()
        self._task.cancel()
        return self._task

    async def _run(self) -> None:
        while True:
            request, answered = await self._queue.get()
            try:
                answered(request, await self._channel.send(request))
            except Exception:
                log.exception("Broker %d failed to take a %s", self.broker_id, type(request).__name__)
            finally:
                self._queue.task_done()
