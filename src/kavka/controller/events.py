"""The controller's events and their queue.

All code that reads or changes the controller's context runs as an event, one after the other, so no
locks are needed. Watches, responses and requests only enqueue an event.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kavka.common.types import TopicPartition
from kavka.protocol.messages.leader_and_isr import LeaderAndIsrRequest, LeaderAndIsrResponse
from kavka.protocol.messages.stop_replica import StopReplicaRequest, StopReplicaResponse

if TYPE_CHECKING:
    from kavka.controller.term import Term

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Startup:
    """The broker has registered: take part in the election."""


@dataclass(frozen=True, slots=True)
class ControllerChange:
    """/controller was created, changed or deleted."""


@dataclass(frozen=True, slots=True)
class BrokerChange:
    """A broker registered or was lost."""


@dataclass(frozen=True, slots=True)
class BrokerModification:
    """A broker's registration changed: its listeners."""

    broker_id: int


@dataclass(frozen=True, slots=True)
class TopicChange:
    """A topic's node was created or deleted."""


@dataclass(frozen=True, slots=True)
class TopicModification:
    """Nodes of topics changed: partitions were added. The term has the names."""


@dataclass(frozen=True, slots=True)
class TopicDeletion:
    """A topic was marked for deletion."""


@dataclass(frozen=True, slots=True)
class LogDirFailure:
    """A log directory of a broker failed."""


@dataclass(frozen=True, slots=True)
class IsrNotification:
    """A broker without AlterPartition changed an ISR in the tree."""


@dataclass(frozen=True, slots=True)
class PreferredElection:
    """/admin/preferred_replica_election was created by an old tool."""


@dataclass(frozen=True, slots=True)
class ReassignmentNode:
    """/admin/reassign_partitions was created or changed by an old tool."""


@dataclass(frozen=True, slots=True)
class AutoRebalance:
    """Check the leader balance."""


@dataclass(frozen=True, slots=True)
class UncleanEnabled:
    """Unclean elections may now be allowed: for a topic, or for all (None)."""

    topic: str | None


@dataclass(frozen=True, slots=True)
class RetryFailedDisks:
    """Ask brokers again about replicas on failed disks: a full disk may have space now."""


@dataclass(frozen=True, slots=True, eq=False)
class IsrChanged:
    """AlterPartition changed ISRs: reassignments that waited for them may continue."""

    term: Term
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, eq=False)
class LeaderAndIsrResponseReceived:
    term: Term
    broker_id: int
    request: LeaderAndIsrRequest
    response: LeaderAndIsrResponse


@dataclass(frozen=True, slots=True, eq=False)
class StopReplicaResponseReceived:
    term: Term
    broker_id: int
    request: StopReplicaRequest
    response: StopReplicaResponse


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A caller waits for the result."""

    name: str
    work: Callable[[Term], Awaitable[Any]]
    future: asyncio.Future[Any]


Event = (
    Startup
    | ControllerChange
    | BrokerChange
    | BrokerModification
    | TopicChange
    | TopicModification
    | TopicDeletion
    | LogDirFailure
    | IsrNotification
    | PreferredElection
    | ReassignmentNode
    | AutoRebalance
    | UncleanEnabled
    | RetryFailedDisks
    | IsrChanged
    | LeaderAndIsrResponseReceived
    | StopReplicaResponseReceived
    | Call
)


class EventQueue:
    """Passes events to `process` one at a time, in order. Logs failures."""

    def __init__(self, process: Callable[[Event], Awaitable[Any]]) -> None:
        self._process = process
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="controller")

    def put(self, event: Event) -> None:
        self._events.put_nowait(event)

    async def drained(self) -> None:
        """Wait until all events so far, and the events that they enqueue, are processed."""
        await self._events.join()

    async def stop(self) -> list[Event]:
        """Cancel the current event; returns the events that were not started."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        left: list[Event] = []
        while not self._events.empty():
            left.append(self._events.get_nowait())
            self._events.task_done()
        return left

    async def _run(self) -> None:
        while True:
            event = await self._events.get()
            try:
                await self._process(event)
            except Exception:
                logger.exception("The controller failed to process %s", type(event).__name__)
            finally:
                self._events.task_done()
