"""The controller: one broker, elected by making /controller, that decides who leads and sees topics come and go.

Every broker has one of these; those that are not elected only watch /controller. All that it does is done by events
(`events.py`), so the context is never seen half changed. It decides from the tree and writes to the tree first; only
then are brokers told. So a controller that dies at any point leaves a tree from which the next one goes on; and one
whose store fails in the middle of an event goes on the same way, by reading the tree anew (`term.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from kavka.common.clock import Clock, SystemClock
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.controller import events
from kavka.controller.channel import BrokerChannel
from kavka.controller.context import ControllerContext
from kavka.controller.elections import Elected
from kavka.controller.events import Event, EventQueue
from kavka.controller.features import FeatureUpdate, Updated
from kavka.controller.term import ControllerSettings, Term
from kavka.controller.tree import ControllerMoved
from kavka.metadata import paths
from kavka.metadata.cluster import take_producer_ids
from kavka.metadata.paths import (
    BrokerRegistration,
    ControllerNode,
    MalformedNode,
    ProducerIdBlock,
    ReplicaAssignment,
)
from kavka.metadata.store import (
    BadVersion,
    Create,
    MetadataStore,
    NodeExists,
    NoNode,
    SetData,
    StoreUnavailable,
    WatchEvent,
)
from kavka.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse

log = logging.getLogger(__name__)

NO_CONTROLLER = -1
RETRY_AFTER_S = 1.0
# How long a broker that hands over waits at most for those who take over to know of it.
HAND_OVER_S = 5.0

Answer = TypeVar("Answer")


class Controller:
    def __init__(
        self,
        broker_id: int,
        store: MetadataStore,
        channel_to: Callable[[BrokerRegistration], BrokerChannel],
        *,
        unclean_election: Callable[[str], bool] = lambda topic: False,
        deletion_enabled: Callable[[], bool] = lambda: True,
        auto_rebalance: Callable[[], bool] = lambda: True,
        imbalance_check_s: Callable[[], float] = lambda: 300.0,
        imbalance_percent: Callable[[], float] = lambda: 10.0,
        clock: Clock | None = None,
    ) -> None:
        self.broker_id = broker_id
        # Who the controller is, as far as this broker knows.
        self.active_id = NO_CONTROLLER
        self._store = store
        self._channel_to = channel_to
        self._settings = ControllerSettings(
            unclean_election, deletion_enabled, auto_rebalance, imbalance_check_s, imbalance_percent
        )
        self._clock = clock or SystemClock()
        self._queue = EventQueue(self._process)
        self._term: Term | None = None
        self._beginning: Term | None = None
        self._no_context = ControllerContext()
        self._ending: set[asyncio.Task[None]] = set()
        self._waiting: dict[asyncio.Future[None], Callable[[], bool]] = {}

    # ---- from outside

    @property
    def is_active(self) -> bool:
        """Whether this broker is the controller, and has read the tree."""
        return self._term is not None and self.active_id == self.broker_id

    @property
    def context(self) -> ControllerContext:
        """What the controller knows: nothing while it is not active."""
        term = self._term or self._beginning
        return term.context if term is not None else self._no_context

    def start(self) -> None:
        """The broker is signed in: stand for election, and work from then on. Again after a session was lost."""
        self._queue.start()
        self._queue.put(events.Startup())

    def session_lost(self) -> None:
        """All ephemeral nodes of this broker are gone, /controller too: its term is over, if it has one.

        It stands again as soon as the store answers.
        """
        self._end_term()
        self.active_id = NO_CONTROLLER
        self._queue.put(events.ControllerChange())

    async def settled(self) -> None:
        """Wait until all that was asked of the controller so far is decided, and its own broker was told."""
        await self._queue.drained()
        if self._term is not None:
            await self._term.told(self.broker_id)
            await self._queue.drained()

    async def stop(self) -> None:
        left = await self._queue.stop()
        self._end_term()
        self.active_id = NO_CONTROLLER
        for event in left:
            if isinstance(event, events.Call):
                _fail(event, not_controller())
        await asyncio.gather(*self._ending, return_exceptions=True)

    async def wait_until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait for something that this broker learns from the controller; False when the time was up first."""
        if condition():
            return True
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[waiting] = condition
        try:
            await asyncio.wait_for(waiting, timeout_s)
        except TimeoutError:
            return False
        finally:
            self._waiting.pop(waiting, None)
        return True

    def check_waiting(self) -> None:
        """What this broker knows has changed: see who waited for it."""
        for waiting, condition in list(self._waiting.items()):
            if not waiting.done() and condition():
                waiting.set_result(None)

    async def alter_partition(self, request: AlterPartitionRequest, version: int) -> AlterPartitionResponse:
        return await self._call("AlterPartition", lambda term: term.isr.alter(request, version))

    async def controlled_shutdown(self, broker_id: int, broker_epoch: int) -> list[TopicPartition]:
        """Hand over what a broker leads; returns what it has to go on leading."""

        async def work(term: Term) -> tuple[list[TopicPartition], list[Awaitable[None]]]:
            remaining, leaders = await term.shutdowns.hand_over(broker_id, broker_epoch)
            return remaining, [term.told(leader) for leader in leaders]

        remaining, told = await self._call("ControlledShutdown", work)
        # The broker that goes on serving until it is answered leaves no gap when the others know that they lead.
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*told), HAND_OVER_S)
        return remaining

    async def elect_leaders(self, kind: int, partitions: Iterable[TopicPartition] | None) -> Elected:
        return await self._call("ElectLeaders", lambda term: term.elections.elect(kind, partitions))

    async def alter_reassignments(
        self, asked: Mapping[TopicPartition, Sequence[int] | None], *, same_factor: bool
    ) -> dict[TopicPartition, KafkaError | None]:
        return await self._call(
            "AlterPartitionReassignments", lambda term: term.reassignments.request(asked, same_factor=same_factor)
        )

    async def list_reassignments(
        self, partitions: Iterable[TopicPartition] | None
    ) -> dict[TopicPartition, ReplicaAssignment]:
        async def work(term: Term) -> dict[TopicPartition, ReplicaAssignment]:
            return term.reassignments.under_way(partitions)

        return await self._call("ListPartitionReassignments", work)

    async def update_features(
        self, updates: Sequence[FeatureUpdate], *, validate_only: bool, all_or_none: bool
    ) -> Updated:
        return await self._call(
            "UpdateFeatures",
            lambda term: term.features.update(updates, validate_only=validate_only, all_or_none=all_or_none),
        )

    async def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> ProducerIdBlock:
        """A block of producer ids that nobody else gets."""

        async def work(term: Term) -> ProducerIdBlock:
            epoch = term.context.broker_epochs.get(broker_id)
            if epoch is None:
                raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker {broker_id} is not signed in.")
            if epoch != broker_epoch:
                raise KafkaError(ErrorCode.STALE_BROKER_EPOCH, f"Broker {broker_id} has signed in again since.")
            return await take_producer_ids(self._store, broker_id)

        return await self._call("AllocateProducerIds", work)

    def unclean_election_enabled(self, topic: str | None = None) -> None:
        """The settings of a topic, or (None) of all brokers, may allow now to lose records rather than availability."""
        if self._term is not None:
            self._queue.put(events.UncleanEnabled(topic))

    async def _call(self, name: str, work: Callable[[Term], Awaitable[Answer]]) -> Answer:
        """Have it done as an event. NOT_CONTROLLER when this broker is not, or not any more when its turn comes."""
        if self._term is None:
            raise not_controller()
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._queue.put(events.Call(name, work, answer))
        return await answer

    # ---- events

    async def _process(self, event: Event) -> None:
        term = self._term
        try:
            if _is_about_election(event):
                await self._follow_election()
            elif term is not None:
                await self._process_in(term, event)
            elif isinstance(event, events.Call):
                _fail(event, not_controller())
        except ControllerMoved:
            if self._term is term:
                log.warning("Another broker has become the controller")
                self._end_term()
                self.active_id = NO_CONTROLLER
                self._queue.put(events.ControllerChange())
            _fail(event, not_controller())
        except StoreUnavailable as error:
            # Where the session was lost meanwhile, the event belonged to a term that is over already.
            in_office = self._term is term
            _fail(event, KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) if in_office else not_controller())
            if in_office or _is_about_election(event):
                self._read_again(str(error))
        except asyncio.CancelledError:
            _fail(event, not_controller())
            raise
        except Exception as error:
            if isinstance(event, events.Call) and isinstance(error, KafkaError):
                _fail(event, error)  # a refusal is an answer
                return
            if _is_about_election(event):
                self._read_again(f"The controller could not begin: {error!r}")
            _fail(event, error)
            raise
        self.check_waiting()

    async def _process_in(self, term: Term, event: Event) -> None:
        match event:
            case events.Call():
                answer = await event.work(term)
                if not event.answer.done():
                    event.answer.set_result(answer)
            case events.BrokerChange():
                await term.brokers.changed()
            case events.BrokerModification(broker_id):
                await term.brokers.modified(broker_id)
            case events.TopicChange():
                await term.topics.changed()
            case events.TopicModification():
                await term.topics.modified()
            case events.TopicDeletion():
                await term.topics.marked()
            case events.LogDirFailure():
                await term.brokers.log_dirs_failed()
            case events.IsrNotification():
                await term.isr.notified()
            case events.IsrChanged():
                await term.reassignments.isr_changed(event.partitions if event.term is term else ())
            case events.PreferredElection():
                await term.elections.asked_by_node()
            case events.ReassignmentNode():
                await term.reassignments.asked_by_node()
            case events.AutoRebalance():
                await term.elections.rebalance()
            case events.UncleanEnabled(topic):
                await term.elections.unclean_enabled(topic)
            case events.LeaderAndIsrAnswered():
                await term.brokers.leader_and_isr_answered(event)
            case events.StopReplicaAnswered():
                await term.brokers.stop_replica_answered(event)
            case events.RetryFailedDisks():
                term.brokers.retry_failed_disks()

    def _read_again(self, why: str) -> None:
        """What became of the last writes is unknown: the term is over; another begins soon, with what is there."""
        log.warning("%s; the controller reads the metadata again in %g s", why, RETRY_AFTER_S)
        self._end_term()
        asyncio.get_running_loop().call_later(RETRY_AFTER_S, self._queue.put, events.ControllerChange())

    def _watch_controller(self, _: WatchEvent) -> None:
        self._queue.put(events.ControllerChange())

    # ---- election

    async def _follow_election(self) -> None:
        """Whatever happened to /controller: know who it is; if it is nobody, stand for it."""
        while True:
            try:
                data, stat = await self._store.get(paths.CONTROLLER, self._watch_controller)
            except NoNode:
                self._end_term()
                self.active_id = NO_CONTROLLER
                await self._stand()
                continue
            is_ours = stat.ephemeral_owner == self._store.session_id
            if not is_ours:
                self._end_term()
            try:
                self.active_id = ControllerNode.decode(data).broker_id
            except MalformedNode as error:
                log.error("Nobody knows who the controller is: %s", error)
                self.active_id = NO_CONTROLLER
            if is_ours and self._term is None:
                await self._begin_term()
            return

    async def _stand(self) -> None:
        """Make /controller and raise the epoch in one step, if nobody else did."""
        with suppress(NodeExists):
            await self._store.create(paths.CONTROLLER_EPOCH, paths.encode_epoch(0))
        data, stat = await self._store.get(paths.CONTROLLER_EPOCH)
        node = ControllerNode(self.broker_id, self._clock.now_ms())
        with suppress(NodeExists, BadVersion):
            await self._store.multi(
                [
                    Create(paths.CONTROLLER, node.encode(), ephemeral=True),
                    SetData(paths.CONTROLLER_EPOCH, paths.encode_epoch(paths.decode_epoch(data) + 1), stat.version),
                ]
            )

    async def _begin_term(self) -> None:
        term = self._beginning = Term(
            self.broker_id, self._store, self._channel_to, self._settings, self._queue.put, self.check_waiting
        )
        try:
            await term.begin()
            if not term.is_over:
                self._term, self._beginning = term, None
        finally:
            if self._term is not term:
                self._end_term()

    def _end_term(self) -> None:
        terms = [term for term in (self._term, self._beginning) if term is not None]
        self._term = self._beginning = None
        for term in terms:
            log.info("This broker is the controller no more")
            for task in term.end():
                self._ending.add(task)
                task.add_done_callback(self._ending.discard)


def not_controller() -> KafkaError:
    return KafkaError(ErrorCode.NOT_CONTROLLER, "This broker is not the controller.")


def _is_about_election(event: Event) -> bool:
    return isinstance(event, (events.Startup, events.ControllerChange))


def _fail(event: Event, error: Exception) -> None:
    if isinstance(event, events.Call) and not event.answer.done():
        event.answer.set_exception(error)
