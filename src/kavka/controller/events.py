"""The controller's events and their queue.

All code that reads or changes the controller's context runs as an event. Events are processed one
at a time, so no locks are needed. Watches, responses and requests only enqueue an event.
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
    """A broker registered, or its registration expired."""


@dataclass(frozen=True, slots=True)
class BrokerModification:
    """The content of a broker's registration changed, for example its listeners."""

    broker_id: int


@dataclass(frozen=True, slots=True, eq=False)
class ReachabilityChange:
    """The connection to a registered broker failed, or was opened again."""

    term: Term
    broker_id: int
    broker_epoch: int
    is_reachable: bool


@dataclass(frozen=True, slots=True)
class ControllerFailed:
    """The broker that created /controller, with this czxid, refuses connections."""

    czxid: int


@dataclass(frozen=True, slots=True)
class TopicChange:
    """A topic's node was created or deleted."""


@dataclass(frozen=True, slots=True)
class TopicModification:
    """Nodes of topics changed, because partitions were added. `TopicChanges` has their names."""


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
    """The interval of the leader balance check has elapsed."""


@dataclass(frozen=True, slots=True)
class UncleanEnabled:
    """Unclean elections may have been enabled for a topic, or for all topics (None)."""

    topic: str | None


@dataclass(frozen=True, slots=True)
class RetryFailedDisks:
    """Send LeaderAndIsr again for replicas on failed disks: a full disk may have space again."""


@dataclass(frozen=True, slots=True, eq=False)
class IsrChanged:
    """AlterPartition changed ISRs. Reassignments that waited for these ISRs may continue."""

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
    """A call of a `Controller` method, which waits for the result of `work`."""

    name: str
    work: Callable[[Term], Awaitable[Any]]
    future: asyncio.Future[Any]


Event = (
    Startup
    | ControllerChange
    | BrokerChange
    | BrokerModification
    | ReachabilityChange
    | ControllerFailed
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
    """Owns the pending events. Passes them to `process` one at a time, in order, and logs
    failures."""

    def __init__(self, process: Callable[[Event], Awaitable[Any]]) -> None:
        self._process = process
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="controller")

    def put(self, event: Event) -> None:
        self._events.put_nowait(event)

    async def wait_until_drained(self) -> None:
        """Wait until all events so far, and the events that they enqueue, are processed."""
        await self._events.join()

    async def stop(self) -> list[Event]:
        """Cancel the current event. Returns the events that were not started."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        unprocessed: list[Event] = []
        while not self._events.empty():
            unprocessed.append(self._events.get_nowait())
            self._events.task_done()
        return unprocessed

    async def _run(self) -> None:
        while True:
            event = await self._events.get()
            try:
                await self._process(event)
            except Exception:
                logger.exception("The controller failed to process %s", type(event).__name__)
            finally:
                self._events.task_done()
