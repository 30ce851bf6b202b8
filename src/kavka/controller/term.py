"""One time in office: what a controller knows and works with from the moment it has read the tree.

A term ends when another broker is elected, when the session with the store is lost, or when the store fails in the
middle of something: what was written is unknown then, and the same broker begins a new term by reading the tree again.
Answers and timers of a term that ended are never looked at.
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
from kavka.controller.elections import FIRST_CHECK_S, LeaderElections
from kavka.controller.events import Event
from kavka.controller.features import FeatureUpdates
from kavka.controller.isr import IsrChanges
from kavka.controller.machines import StateMachines
from kavka.controller.partition_states import PartitionState
from kavka.controller.reassignment import Reassignments
from kavka.controller.replica_states import ReplicaState
from kavka.controller.requests import RequestBatch
from kavka.controller.shutdown import ControlledShutdowns
from kavka.controller.topic_changes import TopicChanges
from kavka.controller.tree import FencedTree
from kavka.metadata import paths
from kavka.metadata.paths import BrokerRegistration
from kavka.metadata.store import Create, MetadataStore, Watch, WatchEvent
from kavka.protocol.messages.leader_and_isr import LeaderAndIsrResponse
from kavka.protocol.messages.stop_replica import StopReplicaRequest, StopReplicaResponse

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """What a controller asks of the configuration, each time anew."""

    unclean_election: Callable[[str], bool]
    deletion_enabled: Callable[[], bool]
    auto_rebalance: Callable[[], bool]
    imbalance_check_s: Callable[[], float]
    imbalance_percent: Callable[[], float]


class Term:
    def __init__(
        self,
        broker_id: int,
        store: MetadataStore,
        channel_to: Callable[[BrokerRegistration], BrokerChannel],
        settings: ControllerSettings,
        put: Callable[[Event], Any],
        on_told: Callable[[], Any],
    ) -> None:
        self.broker_id = broker_id
        self.settings = settings
        self.put = put
        self.context = ControllerContext()
        self.tree = FencedTree(store, self.context)
        self.machines = StateMachines(self.context, self.tree, self.new_batch, settings.unclean_election)
        self.deletions = TopicDeletions(
            self.context, self.machines, self.tree, self.tell_metadata_to_all, self._topic_deleted
        )
        self.brokers = Brokers(self)
        self.topics = TopicChanges(self)
        self.isr = IsrChanges(self)
        self.elections = LeaderElections(self)
        self.reassignments = Reassignments(self)
        self.shutdowns = ControlledShutdowns(self)
        self.features = FeatureUpdates(self)
        self._channel_to = channel_to
        self._on_told = on_told
        self._senders: dict[int, BrokerSender] = {}
        self._timers: dict[Event, asyncio.TimerHandle] = {}
        self._watches: dict[Event | str, Watch] = {}
        self.is_over = False

    async def begin(self) -> None:
        """Read the tree, tell every broker about the others and about its partitions, finish what was begun."""
        context, store = self.context, self.tree.store
        data, stat = await store.get(paths.CONTROLLER_EPOCH)
        context.epoch, context.epoch_version = paths.decode_epoch(data), stat.version
        log.info("This broker is the controller, with epoch %d", context.epoch)
        if await store.exists(paths.FEATURE) is None:
            await self.tree.write([Create(paths.FEATURE, paths.encode_features({}))])
        await self.brokers.load()
        await self.topics.load()
        for broker_id in context.brokers:
            self.connect(broker_id)
        # All of it in the first word: a broker that has just started answers its clients by what it has heard.
        self.tell_metadata_to_all(context.all_partitions())
        online, offline = self._first_states()
        found = dict(context.leaderships)
        await self.brokers.restarted()
        await self.machines.bring_online()
        await self.machines.replicas_to(offline, ReplicaState.OFFLINE)
        # Of what has changed, every replica's broker was told just now.
        untold = [r for r in online if context.leaderships.get(r.partition) is found.get(r.partition)]
        await self.machines.replicas_to(untold, ReplicaState.ONLINE)
        await self.isr.notified()
        await self.reassignments.asked_by_node()
        await self.reassignments.resume()
        self.topics.hold_up_deletions()
        await self.deletions.resume()
        await self.brokers.log_dirs_failed()
        await self.elections.asked_by_node()
        self.later(FIRST_CHECK_S, events.AutoRebalance())

    def _first_states(self) -> tuple[list[Replica], list[Replica]]:
        """What the tree says of each partition and replica; returns the replicas that can be told, and the others."""
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
        """Nothing is sent and nothing is put from now on; returns the tasks that are ending."""
        self.is_over = True
        for timer in self._timers.values():
            timer.cancel()
        return [sender.stop() for sender in self._senders.values()]

    def watch(self, event: Event) -> Watch:
        """A watch that puts `event`; the same one for the same event, so that a node never has it twice."""
        return self._watch(event, lambda term: term.put(event))

    def watch_topic(self, name: str) -> Watch:
        """One on a topic's node. When very many fire at once, as after a reconnect, they become one event."""
        return self._watch(name, lambda term: term.topics.note_modified(name))

    def _watch(self, key: Event | str, on_fire: Callable[[Term], Any]) -> Watch:
        watch = self._watches.get(key)
        if watch is None:
            # A watch may stay in the store for long: it must not keep a term that is over.
            term = weakref.ref(self)

            def fired(_: WatchEvent) -> None:
                alive = term()
                if alive is not None and not alive.is_over:
                    on_fire(alive)

            watch = self._watches[key] = fired
        return watch

    def _topic_deleted(self, topic: str) -> None:
        self._watches.pop(topic, None)

    def later(self, delay_s: float, event: Event) -> None:
        """Put an event after a while, unless it is on its way already or the term ends before."""
        if self.is_over or event in self._timers:
            return

        def put() -> None:
            del self._timers[event]
            self.put(event)

        self._timers[event] = asyncio.get_running_loop().call_later(delay_s, put)

    # ---- brokers are told, and answer

    def connect(self, broker_id: int) -> None:
        self._senders[broker_id] = BrokerSender(broker_id, self._channel_to(self.context.brokers[broker_id]))

    def disconnect(self, broker_id: int) -> None:
        sender = self._senders.pop(broker_id, None)
        if sender is not None:
            sender.stop()

    async def told(self, broker_id: int) -> None:
        """Wait until the broker has answered all that it was told so far."""
        sender = self._senders.get(broker_id)
        if sender is not None:
            await sender.drained()

    def new_batch(self) -> RequestBatch:
        return RequestBatch(self.broker_id, self.context, self._send)

    def tell_metadata_to_all(self, partitions: Iterable[TopicPartition]) -> None:
        batch = self.new_batch()
        batch.tell_metadata(self.context.brokers, partitions)
        batch.send()

    def _send(self, broker_id: int, request: ControlRequest) -> None:
        sender = self._senders.get(broker_id)
        if sender is not None and not self.is_over:
            sender.enqueue(request, lambda asked, answer: self._answered(broker_id, asked, answer))

    def _answered(self, broker_id: int, request: ControlRequest, response: ControlResponse) -> None:
        if self.is_over:
            return
        if response.error_code != ErrorCode.NONE:
            code = ErrorCode(response.error_code).name
            log.warning("Broker %d answered %s with %s", broker_id, type(request).__name__, code)
        if isinstance(response, LeaderAndIsrResponse):
            self.put(events.LeaderAndIsrAnswered(self, broker_id, request, response))  # type: ignore[arg-type]
        elif isinstance(request, StopReplicaRequest) and isinstance(response, StopReplicaResponse):
            self.put(events.StopReplicaAnswered(self, broker_id, request, response))
        elif broker_id == self.broker_id:
            self._on_told()

    def is_of_now(self, answered: events.LeaderAndIsrAnswered | events.StopReplicaAnswered) -> bool:
        """Whether it was asked in this term, and by the broker as it is signed in now, not by one of before."""
        epoch = self.context.broker_epochs.get(answered.broker_id)
        return answered.term is self and not self.is_over and answered.request.broker_epoch == epoch
