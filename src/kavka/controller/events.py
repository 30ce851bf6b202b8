"""What can happen to a controller, and the one queue in which it happens.

Everything that reads or changes the controller's context runs as an event, one after the other, so nothing in it
needs a lock: watches, answers and requests only put an event here and return.
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

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Startup:
    """The broker is signed in: stand for election."""


@dataclass(frozen=True, slots=True)
class ControllerChange:
    """/controller was made, changed or deleted."""


@dataclass(frozen=True, slots=True)
class BrokerChange:
    """A broker signed in or is gone."""


@dataclass(frozen=True, slots=True)
class BrokerModification:
    """A broker's registration changed: its listeners."""

    broker_id: int


@dataclass(frozen=True, slots=True)
class TopicChange:
    """A topic's node was made or deleted."""


@dataclass(frozen=True, slots=True)
class TopicModification:
    """Nodes of topics were changed: partitions were added. Which ones, the term has noted."""


@dataclass(frozen=True, slots=True)
class TopicDeletion:
    """A topic was marked for deletion."""


@dataclass(frozen=True, slots=True)
class LogDirFailure:
    """A broker lost one of its log directories."""


@dataclass(frozen=True, slots=True)
class IsrNotification:
    """A broker changed an ISR in the tree by itself, and says so, as those of before AlterPartition did."""


@dataclass(frozen=True, slots=True)
class PreferredElection:
    """/admin/preferred_replica_election was made: an old tool asks for elections."""


@dataclass(frozen=True, slots=True)
class ReassignmentNode:
    """/admin/reassign_partitions was made or changed: an old tool asks for moves."""


@dataclass(frozen=True, slots=True)
class AutoRebalance:
    """It is time to look whether brokers lead what they should."""


@dataclass(frozen=True, slots=True)
class UncleanEnabled:
    """Losing records rather than availability may be allowed now: for a topic, or (None) for all."""

    topic: str | None


@dataclass(frozen=True, slots=True)
class RetryFailedDisks:
    """Ask brokers again about the replicas that they had no disk for: it may have been full, and have room now."""


@dataclass(frozen=True, slots=True, eq=False)
class IsrChanged:
    """A leader had its ISR changed, and was answered: moves that waited for it may go on."""

    term: Term
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, eq=False)
class LeaderAndIsrAnswered:
    term: Term
    broker_id: int
    request: LeaderAndIsrRequest
    response: LeaderAndIsrResponse


@dataclass(frozen=True, slots=True, eq=False)
class StopReplicaAnswered:
    term: Term
    broker_id: int
    request: StopReplicaRequest
    response: StopReplicaResponse


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """Somebody waits for an answer of the controller."""

    name: str
    work: Callable[[Term], Awaitable[Any]]
    answer: asyncio.Future[Any]


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
    | LeaderAndIsrAnswered
    | StopReplicaAnswered
    | Call
)


class EventQueue:
    """Hands events to `process`, one at a time, in the order they came. An event that fails is logged, no more."""

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
        """Wait until everything that was put so far, and what it put itself, is done."""
        await self._events.join()

    async def stop(self) -> list[Event]:
        """The event under way is broken off; returns those that were not begun."""
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
                log.exception("The controller failed to process %s", type(event).__name__)
            finally:
                self._events.task_done()
