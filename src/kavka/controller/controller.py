"""The controller: one broker, elected by creating /controller, that elects leaders and manages
topics.

Every broker has a `Controller`; one that is not elected only watches /controller. All work is done
by events (`events.py`), one at a time. The controller writes to the znode tree before it sends
requests to brokers, so the next controller can continue from the tree after any failure. If the
store fails during an event, the same broker starts a new term and reads the tree again (`term.py`).
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
from kavka.controller.controller_watch import ControllerWatch, WaitUntilFailed
from kavka.controller.elections import ElectionResults
from kavka.controller.events import Event, EventQueue
from kavka.controller.features import FeatureUpdate, FeatureUpdateResult
from kavka.controller.term import ControllerSettings, Term
from kavka.controller.tree import ControllerMoved
from kavka.metadata import paths
from kavka.metadata.cluster import allocate_producer_ids
from kavka.metadata.paths import BrokerRegistration, ControllerNode, MalformedNode, ProducerIdBlock, ReplicaAssignment
from kavka.metadata.store import (
    BadVersion,
    Create,
    Delete,
    MetadataStore,
    NodeExists,
    NoNode,
    Op,
    SetData,
    Stat,
    StoreUnavailable,
    WatchEvent,
)
from kavka.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse

logger = logging.getLogger(__name__)

NO_CONTROLLER = -1
RETRY_AFTER_S = 1.0
# How long a controlled shutdown waits until the new leaders have acknowledged their requests.
HAND_OVER_TIMEOUT_S = 5.0

Result = TypeVar("Result")


class Controller:
    """Takes part in the controller election, and owns the current term and the event queue. All
    methods must be called on the event loop; a crash leaves only the znode tree."""

    def __init__(
        self,
        broker_id: int,
        store: MetadataStore,
        channel_to: Callable[[BrokerRegistration], BrokerChannel],
        settings: ControllerSettings,
        clock: Clock | None = None,
        *,
        wait_until_failed: WaitUntilFailed | None = None,
    ) -> None:
        """`wait_until_failed` detects that the process of another controller has ended; without it,
        a controller is replaced when its session expires."""
        self.broker_id = broker_id
        # The last known id of the active controller.
        self.active_id = NO_CONTROLLER
        self._store = store
        self._channel_to = channel_to
        self._settings = settings
        self._clock = clock or SystemClock()
        self._queue = EventQueue(self._process)
        self._term: Term | None = None
        self._starting_term: Term | None = None
        self._empty_context = ControllerContext()
        self._ending_tasks: set[asyncio.Task[None]] = set()
        self._rival_watch = ControllerWatch(
            wait_until_failed, lambda czxid: self._queue.put(events.ControllerFailed(czxid))
        )
        self._waiters: dict[asyncio.Future[None], Callable[[], bool]] = {}

    # ---- interface for other parts of the broker

    @property
    def is_active(self) -> bool:
        """Whether this broker is the controller and has read the tree."""
        return self._term is not None and self.active_id == self.broker_id

    @property
    def context(self) -> ControllerContext:
        """The controller's state; empty while this broker is not the controller."""
        term = self._term or self._starting_term
        return term.context if term is not None else self._empty_context

    def start(self) -> None:
        """Take part in elections. Called when the broker has registered, also in a new session."""
        self._queue.start()
        self._queue.put(events.Startup())

    def on_session_lost(self) -> None:
        """End the term, because all ephemeral nodes of this broker have expired. The broker takes
        part in the next election as soon as the store is reachable."""
        self._rival_watch.stop()
        self._end_term()
        self.active_id = NO_CONTROLLER
        self._queue.put(events.ControllerChange())

    async def wait_until_idle(self) -> None:
        """Wait until all events so far are processed and this broker has responded to their
        requests."""
        await self._queue.wait_until_drained()
        if self._term is not None:
            await self._term.wait_until_acknowledged(self.broker_id)
            await self._queue.wait_until_drained()

    async def stop(self) -> None:
        self._rival_watch.stop()
        unprocessed = await self._queue.stop()
        self._end_term()
        self.active_id = NO_CONTROLLER
        for event in unprocessed:
            _fail(event, not_controller())
        await asyncio.gather(*self._ending_tasks, return_exceptions=True)

    async def wait_until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until the condition on this broker's metadata is true. Returns False after the
        timeout."""
        if condition():
            return True
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = condition
        try:
            await asyncio.wait_for(waiter, timeout_s)
        except TimeoutError:
            return False
        finally:
            self._waiters.pop(waiter, None)
        return True

    def check_waiters(self) -> None:
        """Check the conditions of `wait_until`. Called when this broker's metadata has changed."""
        for waiter, condition in list(self._waiters.items()):
            if not waiter.done() and condition():
                waiter.set_result(None)

    async def alter_partition(self, request: AlterPartitionRequest, api_version: int) -> AlterPartitionResponse:
        return await self._call("AlterPartition", lambda term: term.isr.alter(request, api_version))

    async def controlled_shutdown(self, broker_id: int, broker_epoch: int) -> list[TopicPartition]:
        """Move the leaderships of a broker to other brokers. Returns the partitions that no other
        replica can lead. Raises KafkaError if the broker epoch is stale."""

        async def work(term: Term) -> tuple[list[TopicPartition], list[Awaitable[None]]]:
            remaining, leaders = await term.hand_overs.shut_down(broker_id, broker_epoch)
            return remaining, [term.wait_until_acknowledged(leader) for leader in leaders]

        remaining, acknowledgements = await self._call("ControlledShutdown", work)
        # The broker serves its partitions until it gets the response, so that there is no gap.
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*acknowledgements), HAND_OVER_TIMEOUT_S)
        return remaining

    async def elect_leaders(self, election_type: int, partitions: Iterable[TopicPartition] | None) -> ElectionResults:
        return await self._call("ElectLeaders", lambda term: term.elections.elect(election_type, partitions))

    async def alter_reassignments(
        self, targets: Mapping[TopicPartition, Sequence[int] | None], *, same_factor: bool
    ) -> dict[TopicPartition, KafkaError | None]:
        return await self._call(
            "AlterPartitionReassignments", lambda term: term.reassignments.request(targets, same_factor=same_factor)
        )

    async def list_reassignments(
        self, partitions: Iterable[TopicPartition] | None
    ) -> dict[TopicPartition, ReplicaAssignment]:
        return await self._call("ListPartitionReassignments", lambda term: term.reassignments.in_progress(partitions))

    async def update_features(
        self, updates: Sequence[FeatureUpdate], *, validate_only: bool, all_or_none: bool
    ) -> FeatureUpdateResult:
        return await self._call(
            "UpdateFeatures",
            lambda term: term.features.update(updates, validate_only=validate_only, all_or_none=all_or_none),
        )

    async def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> ProducerIdBlock:
        """Allocate a block of producer ids to a broker. Raises KafkaError if the broker is not
        registered with this epoch."""

        async def work(term: Term) -> ProducerIdBlock:
            epoch = term.context.broker_epochs.get(broker_id)
            if epoch is None:
                raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker {broker_id} is not registered.")
            if epoch != broker_epoch:
                raise KafkaError(
                    ErrorCode.STALE_BROKER_EPOCH, f"Broker {broker_id} has registered again with a newer epoch."
                )
            return await allocate_producer_ids(self._store, broker_id)

        return await self._call("AllocateProducerIds", work)

    def on_unclean_election_enabled(self, topic: str | None = None) -> None:
        """Elect leaders, because the settings of a topic, or of all topics (None), may now allow
        unclean elections."""
        if self._term is not None:
            self._queue.put(events.UncleanEnabled(topic))

    async def _call(self, name: str, work: Callable[[Term], Awaitable[Result]]) -> Result:
        """Run `work` as an event and return its result. Raises NOT_CONTROLLER if this broker is not
        the controller when the event is processed."""
        if self._term is None:
            raise not_controller()
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._queue.put(events.Call(name, work, future))
        return await future

    # ---- events

    async def _process(self, event: Event) -> None:
        term = self._term
        try:
            if isinstance(event, events.ControllerFailed):
                await self._replace_controller(event.czxid)
            elif _is_about_election(event):
                await self._follow_election()
            elif term is not None:
                await self._process_in(term, event)
            elif isinstance(event, events.Call):
                _fail(event, not_controller())
        except ControllerMoved:
            if self._term is term:
                logger.warning("Another broker has become the controller")
                self._end_term()
                self.active_id = NO_CONTROLLER
                self._queue.put(events.ControllerChange())
            _fail(event, not_controller())
        except StoreUnavailable as error:
            # If the session was lost meanwhile, the event belongs to an ended term.
            is_current_term = self._term is term
            _fail(event, KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) if is_current_term else not_controller())
            if is_current_term or _is_about_election(event):
                self._restart_term(str(error))
        except asyncio.CancelledError:
            _fail(event, not_controller())
            raise
        except Exception as error:
            if isinstance(event, events.Call) and isinstance(error, KafkaError):
                _fail(event, error)  # an expected error of a request
                return
            if _is_about_election(event):
                self._restart_term(f"The controller could not start its term: {error!r}")
            _fail(event, error)
            raise
        self.check_waiters()

    async def _process_in(self, term: Term, event: Event) -> None:
        match event:
            case events.Call():
                result = await event.work(term)
                if not event.future.done():
                    event.future.set_result(result)
            case events.BrokerChange():
                await term.brokers.process_changes()
            case events.BrokerModification(broker_id):
                await term.brokers.process_modification(broker_id)
            case events.ReachabilityChange():
                await term.brokers.process_reachability(event)
            case events.TopicChange():
                await term.topics.process_changes()
            case events.TopicModification():
                await term.topics.process_modifications()
            case events.TopicDeletion():
                await term.topics.process_deletion_marks()
            case events.LogDirFailure():
                await term.brokers.process_log_dir_failures()
            case events.IsrNotification():
                await term.isr.process_notifications()
            case events.IsrChanged():
                await term.reassignments.on_isr_changed(event.partitions if event.term is term else ())
            case events.PreferredElection():
                await term.elections.process_node()
            case events.ReassignmentNode():
                await term.reassignments.process_node()
            case events.AutoRebalance():
                await term.elections.rebalance()
            case events.UncleanEnabled(topic):
                await term.elections.on_unclean_enabled(topic)
            case events.LeaderAndIsrResponseReceived():
                await term.brokers.on_leader_and_isr_response(event)
            case events.StopReplicaResponseReceived():
                await term.brokers.on_stop_replica_response(event)
            case events.RetryFailedDisks():
                term.brokers.retry_failed_disks()

    def _restart_term(self, reason: str) -> None:
        """End the term and schedule a new term, because the result of the last writes is
        unknown."""
        logger.warning("%s; the controller reloads the metadata in %g s", reason, RETRY_AFTER_S)
        self._end_term()
        asyncio.get_running_loop().call_later(RETRY_AFTER_S, self._queue.put, events.ControllerChange())

    def _watch_controller(self, _: WatchEvent) -> None:
        self._queue.put(events.ControllerChange())

    # ---- election

    async def _follow_election(self) -> None:
        """Handle a change of /controller: read the id of the controller, or take part in the
        election."""
        while True:
            try:
                data, stat = await self._store.get(paths.CONTROLLER, self._watch_controller)
            except NoNode:
                self._end_term()
                self.active_id = NO_CONTROLLER
                await self._run_for_election()
                continue
            is_elected = stat.ephemeral_owner == self._store.session_id
            if not is_elected:
                self._end_term()
            try:
                self.active_id = ControllerNode.decode(data).broker_id
            except MalformedNode as error:
                logger.error("Cannot read the id of the controller: %s", error)
                self.active_id = NO_CONTROLLER
            if is_elected or self.active_id == NO_CONTROLLER:
                self._rival_watch.stop()
            else:
                self._rival_watch.watch(self.active_id, stat.czxid)
            if is_elected and self._term is None:
                await self._begin_term(stat.czxid)
            return

    async def _run_for_election(self) -> None:
        """Create /controller and increment the controller epoch in one transaction. The transaction
        fails if another broker was elected first."""
        with suppress(NodeExists):
            await self._store.create(paths.CONTROLLER_EPOCH, paths.encode_epoch(0))
        data, stat = await self._store.get(paths.CONTROLLER_EPOCH)
        with suppress(NodeExists, BadVersion):
            await self._store.multi(self._election(data, stat))

    def _election(self, epoch: bytes | None, epoch_stat: Stat) -> list[Op]:
        node = ControllerNode(self.broker_id, self._clock.now_ms())
        return [
            Create(paths.CONTROLLER, node.encode(), ephemeral=True),
            SetData(paths.CONTROLLER_EPOCH, paths.encode_epoch(paths.decode_epoch(epoch) + 1), epoch_stat.version),
        ]

    async def _replace_controller(self, czxid: int) -> None:
        """Replace a controller whose process has probably ended. The transaction fails if another
        broker has been elected, because every election changes /controller_epoch. If the process is
        alive, its next write fails at the fence (docs/decisions/0016)."""
        data, epoch_stat = await self._store.get(paths.CONTROLLER_EPOCH)
        # /controller is read after the epoch: if it is still the watched znode, the epoch is that
        # controller's.
        stat = await self._store.exists(paths.CONTROLLER)
        if stat is None or stat.czxid != czxid or stat.ephemeral_owner == self._store.session_id:
            return
        logger.warning("Controller %d refuses connections: replacing it", self.active_id)
        with suppress(NoNode, NodeExists, BadVersion):
            await self._store.multi([Delete(paths.CONTROLLER, stat.version), *self._election(data, epoch_stat)])
        await self._follow_election()

    async def _begin_term(self, czxid: int) -> None:
        term = self._starting_term = Term(
            self.broker_id, self._store, self._channel_to, self._settings, self._queue.put, self.check_waiters
        )
        try:
            await term.begin(czxid)
            if not term.has_ended:
                self._term, self._starting_term = term, None
        finally:
            if self._term is not term:
                self._end_term()

    def _end_term(self) -> None:
        terms = [term for term in (self._term, self._starting_term) if term is not None]
        self._term = self._starting_term = None
        for term in terms:
            logger.info("This broker is no longer the controller")
            for task in term.end():
                self._ending_tasks.add(task)
                task.add_done_callback(self._ending_tasks.discard)


def not_controller() -> KafkaError:
    return KafkaError(ErrorCode.NOT_CONTROLLER, "This broker is not the controller.")


def _is_about_election(event: Event) -> bool:
    return isinstance(event, (events.Startup, events.ControllerChange, events.ControllerFailed))


def _fail(event: Event, error: Exception) -> None:
    if isinstance(event, events.Call) and not event.future.done():
        event.future.set_exception(error)
