"""One term of a controller: its state and its components.

A term ends when another broker is elected, when the session with the store is lost, or when the
store fails during an event. In the last case the result of the writes is unknown, and the same
broker starts a new term by reading the tree again. Responses and timers of an ended term are
ignored.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from kavka.common.errors import ErrorCode
from kavka.common.types import TopicPartition
from kavka.controller import events
from kavka.controller.brokers import Brokers
from kavka.controller.channel import BrokerChannel, BrokerSender, ControlRequest, ControlResponse
from kavka.controller.context import ControllerContext, Replica
from kavka.controller.deletion import TopicDeletions
from kavka.controller.elections import FIRST_CHECK_DELAY_S, LeaderElections
from kavka.controller.events import Event
from kavka.controller.features import FeatureUpdates
from kavka.controller.hand_over import HandOvers
from kavka.controller.isr import IsrChanges
from kavka.controller.machines import StateMachines
from kavka.controller.partition_states import PartitionState
from kavka.controller.reassignment import Reassignments
from kavka.controller.replica_states import ReplicaState
from kavka.controller.requests import RequestBatch
from kavka.controller.topic_changes import TopicChanges
from kavka.controller.tree import ControllerMoved, FencedTree
from kavka.metadata import paths
from kavka.metadata.paths import BrokerRegistration
from kavka.metadata.store import Create, MetadataStore, Watch, WatchEvent
from kavka.protocol.messages.leader_and_isr import LeaderAndIsrResponse
from kavka.protocol.messages.stop_replica import StopReplicaRequest, StopReplicaResponse

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """The settings of the controller. They are functions, because settings can change at run
    time."""

    unclean_election: Callable[[str], bool] = lambda topic: False
    deletion_enabled: Callable[[], bool] = lambda: True
    auto_rebalance: Callable[[], bool] = lambda: True
    imbalance_check_s: Callable[[], float] = lambda: 300.0
    imbalance_percent: Callable[[], float] = lambda: 10.0


class Term:
    """Owns the controller context, the components that change it (brokers, topics, ISRs, elections,
    ...), the senders to brokers, and the timers. Call it only on the event loop."""

    def __init__(
        self,
        broker_id: int,
        store: MetadataStore,
        channel_to: Callable[[BrokerRegistration], BrokerChannel],
        settings: ControllerSettings,
        put: Callable[[Event], Any],
        on_local_metadata_applied: Callable[[], Any],
    ) -> None:
        self.broker_id = broker_id
        self.settings = settings
        self.put = put
        self.context = ControllerContext()
        self.tree = FencedTree(store, self.context)
        self.machines = StateMachines(self.context, self.tree, self.new_batch, settings.unclean_election)
        self._watches: dict[Event | str, Watch] = {}
        self.deletions = TopicDeletions(
            self.context,
            self.machines,
            self.tree,
            self.send_metadata_to_all,
            lambda topic: self._watches.pop(topic, None),
        )
        self.brokers = Brokers(self)
        self.topics = TopicChanges(self)
        self.isr = IsrChanges(self)
        self.elections = LeaderElections(self)
        self.reassignments = Reassignments(self)
        self.hand_overs = HandOvers(self)
        self.features = FeatureUpdates(self)
        self._channel_to = channel_to
        self._on_local_metadata_applied = on_local_metadata_applied
        self._senders: dict[int, BrokerSender] = {}
        self._timers: dict[Event, asyncio.TimerHandle] = {}
        self.has_ended = False

    async def begin(self, czxid: int) -> None:
        """Read the tree, send every broker its state, and complete the operations that the last
        controller started. `czxid` is the zxid of the election. Raises ControllerMoved if another
        broker has been elected since."""
        context, store = self.context, self.tree.store
        data, stat = await store.get(paths.CONTROLLER_EPOCH)
        context.epoch, context.epoch_version = paths.decode_epoch(data), stat.version
        # The epoch of another broker's election would not fence this term.
        elected = await store.exists(paths.CONTROLLER)
        if elected is None or elected.czxid != czxid:
            raise ControllerMoved
        logger.info("This broker is the controller with epoch %d", context.epoch)
        if await store.exists(paths.FEATURE) is None:
            await self.tree.write([Create(paths.FEATURE, paths.encode_features({}))])
        await self.brokers.load()
        await self.topics.load()
        for broker_id in context.brokers:
            self.connect(broker_id)
        # The first request has all partitions: a broker that has just started needs it to respond
        # to clients.
        self.send_metadata_to_all(context.all_partitions())
        online, offline = self._initialize_states()
        loaded = dict(context.leaderships)
        await self.brokers.handle_restarts()
        await self.machines.bring_online()
        await self.machines.move_replicas(offline, ReplicaState.OFFLINE)
        # The new state of changed partitions has already been enqueued to their brokers.
        unsent = [r for r in online if context.leaderships.get(r.partition) is loaded.get(r.partition)]
        await self.machines.move_replicas(unsent, ReplicaState.ONLINE)
        await self.isr.process_notifications()
        await self.reassignments.process_node()
        await self.reassignments.resume()
        self.topics.block_deletions()
        await self.deletions.resume()
        await self.brokers.process_log_dir_failures()
        await self.elections.process_node()
        self.enqueue_after(FIRST_CHECK_DELAY_S, events.AutoRebalance())

    def _initialize_states(self) -> tuple[list[Replica], list[Replica]]:
        """Set the states of all partitions and replicas from the tree. Returns the online and the
        offline replicas."""
        context = self.context
        for tp in context.all_partitions():
            leadership = context.leaderships.get(tp)
            if leadership is None:
                context.partition_states[tp] = PartitionState.NEW
            elif context.is_online(Replica(tp, leadership.state.leader)):
                context.partition_states[tp] = PartitionState.ONLINE
            else:
                context.partition_states[tp] = PartitionState.OFFLINE
        online: list[Replica] = []
        offline: list[Replica] = []
        for replica in context.replicas(context.all_partitions()):
            is_online = context.is_online(replica)
            (online if is_online else offline).append(replica)
            context.replica_states[replica] = ReplicaState.ONLINE if is_online else ReplicaState.DELETION_INELIGIBLE
        return online, offline

    def end(self) -> list[asyncio.Task[None]]:
        """Stop the senders and timers. Returns the cancelled tasks of the senders."""
        self.has_ended = True
        for timer in self._timers.values():
            timer.cancel()
        return [task for sender in self._senders.values() for task in sender.stop()]

    def watch(self, event: Event) -> Watch:
        """Return a watch that enqueues `event`. Equal events share a watch, so that a znode is
        never watched twice for the same event."""
        return self._watch(event, lambda term: term.put(event))

    def watch_topic(self, name: str) -> Watch:
        """Return a watch on a topic's node. Watches that fire together, for example after a
        reconnect, enqueue one event."""
        return self._watch(name, lambda term: term.topics.record_modified(name))

    def _watch(self, key: Event | str, on_fire: Callable[[Term], Any]) -> Watch:
        watch = self._watches.get(key)
        if watch is None:
            # The store may keep a watch for a long time: it must not keep an ended term alive.
            term_ref = weakref.ref(self)

            def on_watch_fired(_: WatchEvent) -> None:
                term = term_ref()
                if term is not None and not term.has_ended:
                    on_fire(term)

            watch = self._watches[key] = on_watch_fired
        return watch

    def enqueue_after(self, delay_s: float, event: Event) -> None:
        """Enqueue an event after a delay, unless the event is already scheduled. The end of the
        term cancels the timer."""
        if self.has_ended or event in self._timers:
            return

        def put() -> None:
            del self._timers[event]
            self.put(event)

        self._timers[event] = asyncio.get_running_loop().call_later(delay_s, put)

    # ---- requests to brokers, and their responses

    def connect(self, broker_id: int, *, is_starting: bool = False) -> None:
        epoch = self.context.broker_epochs[broker_id]
        self._senders[broker_id] = BrokerSender(
            broker_id,
            self._channel_to(self.context.brokers[broker_id]),
            lambda is_reachable: self.put(events.ReachabilityChange(self, broker_id, epoch, is_reachable)),
            is_starting=is_starting,
        )

    def disconnect(self, broker_id: int) -> None:
        sender = self._senders.pop(broker_id, None)
        if sender is not None:
            sender.stop()

    async def wait_until_acknowledged(self, broker_id: int) -> None:
        """Wait until the broker has responded to all requests so far."""
        sender = self._senders.get(broker_id)
        if sender is not None:
            await sender.wait_until_drained()

    def new_batch(self) -> RequestBatch:
        return RequestBatch(self.broker_id, self.context, self._send)

    def send_metadata_to_all(self, partitions: Iterable[TopicPartition]) -> None:
        batch = self.new_batch()
        batch.add_update_metadata(self.context.brokers, partitions)
        batch.send()

    def _send(self, broker_id: int, request: ControlRequest) -> None:
        sender = self._senders.get(broker_id)
        if sender is not None and not self.has_ended:
            sender.enqueue(request, lambda sent, response: self._on_response(broker_id, sent, response))

    def _on_response(self, broker_id: int, request: ControlRequest, response: ControlResponse) -> None:
        if self.has_ended:
            return
        if response.error_code != ErrorCode.NONE:
            code = ErrorCode(response.error_code).name
            logger.warning("Broker %d responded to %s with %s", broker_id, type(request).__name__, code)
        if isinstance(response, LeaderAndIsrResponse):
            self.put(events.LeaderAndIsrResponseReceived(self, broker_id, request, response))  # type: ignore[arg-type]
        elif isinstance(request, StopReplicaRequest) and isinstance(response, StopReplicaResponse):
            self.put(events.StopReplicaResponseReceived(self, broker_id, request, response))
        elif broker_id == self.broker_id:
            self._on_local_metadata_applied()

    def is_current(self, received: events.LeaderAndIsrResponseReceived | events.StopReplicaResponseReceived) -> bool:
        """Whether the request belongs to this term and to the broker's current registration."""
        epoch = self.context.broker_epochs.get(received.broker_id)
        return received.term is self and not self.has_ended and received.request.broker_epoch == epoch
