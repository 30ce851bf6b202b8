"""The controller: one broker, elected by making /controller, that decides who leads and sees topics come and go.

Every broker has one of these; those that are not elected only watch /controller. All that it does is done by events
(`events.py`), so the context is never seen half changed. It decides from the tree and writes to the tree first; only
then are brokers told. So a controller that dies at any point leaves a tree from which the next one goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress

from kavka.common.clock import Clock, SystemClock
from kavka.common.errors import ErrorCode
from kavka.common.types import TopicPartition
from kavka.controller import events
from kavka.controller.channel import BrokerChannel, BrokerSender, ControlRequest, ControlResponse
from kavka.controller.context import ControllerContext, Leadership, Replica
from kavka.controller.deletion import TopicDeletions
from kavka.controller.events import Event, EventQueue
from kavka.controller.machines import ControllerMoved, StateMachines
from kavka.controller.partition_states import PartitionState
from kavka.controller.replica_states import ReplicaState
from kavka.controller.requests import RequestBatch
from kavka.metadata import paths
from kavka.metadata.paths import BrokerRegistration, ControllerNode, MalformedNode, PartitionStateNode, TopicNode
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
from kavka.protocol.messages.leader_and_isr import LeaderAndIsrResponse
from kavka.protocol.messages.stop_replica import StopReplicaRequest, StopReplicaResponse
from kavka.protocol.messages.update_metadata import UpdateMetadataRequest

log = logging.getLogger(__name__)

NO_CONTROLLER = -1
RETRY_AFTER_S = 5.0
# Replicas on a failed disk are asked about again after this long, then after twice as long, and so on.
FIRST_DISK_RETRY_S = 5.0
LAST_DISK_RETRY_S = 600.0


class Controller:
    def __init__(
        self,
        broker_id: int,
        store: MetadataStore,
        channel_to: Callable[[BrokerRegistration], BrokerChannel],
        *,
        unclean_election: Callable[[str], bool] = lambda topic: False,
        deletion_enabled: Callable[[], bool] = lambda: True,
        clock: Clock | None = None,
    ) -> None:
        self.broker_id = broker_id
        self.active_id = NO_CONTROLLER
        self.context = ControllerContext()
        self._in_office = False
        self._store = store
        self._channel_to = channel_to
        self._unclean_election = unclean_election
        self._deletion_enabled = deletion_enabled
        self._clock = clock or SystemClock()
        self._queue = EventQueue(self._process)
        self._senders: dict[int, BrokerSender] = {}
        self._waiting: dict[asyncio.Future[None], Callable[[], bool]] = {}
        self._watches: dict[Event, Callable[[WatchEvent], None]] = {}
        self._disk_retry: asyncio.TimerHandle | None = None
        self._disk_retry_s = FIRST_DISK_RETRY_S
        self._build_parts()

    def _build_parts(self) -> None:
        self._machines = StateMachines(self.context, self._store, self._new_batch, self._unclean_election)
        self._deletions = TopicDeletions(self.context, self._machines, self._tell_metadata_to_all, self._topic_deleted)

    # ---- from outside

    @property
    def is_active(self) -> bool:
        return self.active_id == self.broker_id

    def start(self) -> None:
        """The broker is signed in: stand for election, and work from then on."""
        self._queue.start()
        self._queue.put(events.Startup())

    async def settled(self) -> None:
        """Wait until all that was asked of the controller so far is decided, and its own broker was told."""
        await self._queue.drained()
        sender = self._senders.get(self.broker_id)
        if sender is not None:
            await sender.drained()
            await self._queue.drained()

    async def stop(self) -> None:
        await self._queue.stop()
        if self._disk_retry is not None:
            self._disk_retry.cancel()
        await self._stop_senders(list(self._senders))
        self._in_office = False
        self.active_id = NO_CONTROLLER

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

    def _check_waiting(self) -> None:
        for waiting, condition in list(self._waiting.items()):
            if not waiting.done() and condition():
                waiting.set_result(None)

    # ---- events

    async def _process(self, event: Event) -> None:
        try:
            match event:
                case events.Startup() | events.ControllerChange():
                    await self._follow_election()
                case _ if not self.is_active:
                    return
                case events.BrokerChange():
                    await self._broker_change()
                case events.BrokerModification(broker_id):
                    await self._broker_modification(broker_id)
                case events.TopicChange():
                    await self._topic_change()
                case events.TopicModification(topic):
                    await self._topic_modification(topic)
                case events.TopicDeletion():
                    await self._topic_deletion()
                case events.LogDirFailure():
                    await self._log_dir_failure()
                case events.LeaderAndIsrAnswered(broker_id, leader_and_isr):
                    await self._leader_and_isr_answered(broker_id, leader_and_isr)
                case events.StopReplicaAnswered(broker_id, request, stop_replica):
                    await self._stop_replica_answered(broker_id, request, stop_replica)
                case events.RetryFailedDisks():
                    self._retry_failed_disks()
                case events.RetryOffline():
                    await self._retry_offline()
        except ControllerMoved:
            log.warning("Another broker has become the controller")
            await self._resign()
            self._queue.put(events.ControllerChange())
        except StoreUnavailable as error:
            log.error("%s; trying again in %g s", error, RETRY_AFTER_S)
            again = event if isinstance(event, (events.Startup, events.ControllerChange)) else events.RetryOffline()
            asyncio.get_running_loop().call_later(RETRY_AFTER_S, self._queue.put, again)
        self._check_waiting()

    def _watch(self, event: Event) -> Callable[[WatchEvent], None]:
        """A watch that puts `event`; the same one for the same event, so that a node never has it twice."""
        watch = self._watches.get(event)
        if watch is None:
            watch = self._watches[event] = lambda _: self._queue.put(event)
        return watch

    # ---- election

    async def _follow_election(self) -> None:
        """Whatever happened to /controller: know who it is; if it is nobody, stand for it."""
        while True:
            try:
                data, stat = await self._store.get(paths.CONTROLLER, self._watch(events.ControllerChange()))
            except NoNode:
                await self._resign()
                await self._stand()
                continue
            if stat.ephemeral_owner != self._store.session_id:
                await self._resign()
            self.active_id = ControllerNode.decode(data).broker_id
            if stat.ephemeral_owner == self._store.session_id and not self._in_office:
                await self._take_over()
                self._in_office = True
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

    async def _resign(self) -> None:
        await self._stop_senders(list(self._senders))
        self._in_office = False
        self.active_id = NO_CONTROLLER
        self.context = ControllerContext()
        self._build_parts()

    async def _take_over(self) -> None:
        """Read the tree, tell every broker about the others and about its partitions, finish what was begun."""
        data, stat = await self._store.get(paths.CONTROLLER_EPOCH)
        self.context.epoch, self.context.epoch_version = paths.decode_epoch(data), stat.version
        log.info("This broker is the controller, with epoch %d", self.context.epoch)
        if await self._store.exists(paths.FEATURE) is None:
            await self._store.create(paths.FEATURE, paths.encode_features({}))
        await self._load_brokers()
        names = await self._store.children(paths.TOPICS, self._watch(events.TopicChange()))
        await self._load_topics(names)
        await self._store.children(paths.LOG_DIR_EVENTS, self._watch(events.LogDirFailure()))
        marked = await self._marked_for_deletion()
        self.context.topics_to_delete.update(marked)
        for broker in self.context.brokers.values():
            await self._stop_senders([broker.id])
            self._senders[broker.id] = BrokerSender(broker.id, self._channel_to(broker))
        self._tell_metadata_to_all([])

        for tp in self.context.all_partitions():
            leadership = self.context.leaderships.get(tp)
            if leadership is None:
                self.context.partition_states[tp] = PartitionState.NEW
            elif leadership.state.leader in self.context.online_brokers(tp):
                self.context.partition_states[tp] = PartitionState.ONLINE
            else:
                self.context.partition_states[tp] = PartitionState.OFFLINE
        online: list[Replica] = []
        offline: list[Replica] = []
        for replica in self.context.replicas(self.context.all_partitions()):
            is_online = self.context.is_online(replica)
            (online if is_online else offline).append(replica)
            self.context.replica_states[replica] = (
                ReplicaState.ONLINE if is_online else ReplicaState.DELETION_INELIGIBLE
            )
        await self._machines.replicas_to(online, ReplicaState.ONLINE)
        await self._machines.replicas_to(offline, ReplicaState.OFFLINE)
        await self._machines.bring_online()
        await self._deletions.resume()

    # ---- brokers

    async def _load_brokers(self) -> None:
        ids = await self._store.children(paths.BROKER_IDS, self._watch(events.BrokerChange()))
        self.context.brokers, self.context.broker_epochs = {}, {}
        for broker_id in sorted(int(name) for name in ids if name.isdecimal()):
            await self._load_broker(broker_id)

    async def _load_broker(self, broker_id: int) -> None:
        try:
            data, stat = await self._store.get(
                paths.broker(broker_id), self._watch(events.BrokerModification(broker_id))
            )
            self.context.brokers[broker_id] = BrokerRegistration.decode(broker_id, data)
            self.context.broker_epochs[broker_id] = stat.czxid
        except (NoNode, MalformedNode) as error:
            log.error("Broker %d is left out: %s", broker_id, error)

    async def _broker_change(self) -> None:
        before = dict(self.context.broker_epochs)
        await self._load_brokers()
        now = self.context.broker_epochs
        gone = [b for b in before if now.get(b) != before[b]]
        come = [b for b in now if before.get(b) != now[b]]
        await self._stop_senders(gone)
        for broker_id in come:
            self._senders[broker_id] = BrokerSender(broker_id, self._channel_to(self.context.brokers[broker_id]))
        if gone:
            log.info("Brokers are gone: %s", gone)
            self.context.replicas_on_failed_disks -= {
                r for r in self.context.replicas_on_failed_disks if r.broker_id in gone
            }
            await self._replicas_offline(self.context.replicas_on(gone))
        if come:
            log.info("Brokers have come: %s", come)
            batch = self._new_batch()
            batch.tell_metadata([b for b in now if b not in come], [])
            batch.send()
            batch.tell_metadata(come, self.context.all_partitions())
            batch.send()
            await self._replicas_back(self.context.replicas_on(come))

    async def _broker_modification(self, broker_id: int) -> None:
        before = self.context.brokers.get(broker_id)
        if before is None:
            return
        await self._load_broker(broker_id)
        if self.context.brokers[broker_id].end_points != before.end_points:
            self._tell_metadata_to_all([])

    async def _replicas_offline(self, replicas: Iterable[Replica]) -> None:
        """Their broker or disk is gone: new leaders for what they led, and out of the ISR with them."""
        replicas = list(replicas)
        going = [r for r in replicas if r.partition.topic in self.context.topics_to_delete]
        staying = [r for r in replicas if r.partition.topic not in self.context.topics_to_delete]
        leaderless = [
            tp
            for tp in dict.fromkeys(r.partition for r in staying)
            if (leadership := self.context.leaderships.get(tp)) is not None
            and not self.context.is_online(Replica(tp, leadership.state.leader))
        ]
        await self._machines.partitions_to(leaderless, PartitionState.OFFLINE)
        await self._machines.bring_online(leaderless)
        await self._machines.replicas_to(staying, ReplicaState.OFFLINE)
        if going:
            await self._deletions.replicas_not_deleted(going)
        if not leaderless:
            self._tell_metadata_to_all([])

    async def _replicas_back(self, replicas: list[Replica]) -> None:
        await self._machines.replicas_to(replicas, ReplicaState.ONLINE)
        await self._machines.bring_online()
        await self._deletions.replicas_back(replicas)

    async def _log_dir_failure(self) -> None:
        """A broker announced that a disk failed: asked about all its replicas, it says which are gone."""
        broker_ids: set[int] = set()
        for name in await self._store.children(paths.LOG_DIR_EVENTS, self._watch(events.LogDirFailure())):
            path = f"{paths.LOG_DIR_EVENTS}/{name}"
            try:
                broker_ids.add(paths.decode_log_dir_event((await self._store.get(path))[0]))
            except (NoNode, MalformedNode) as error:
                log.warning("A failed log directory is left out: %s", error)
            await self._machines.delete_tree(path)
        known = (ReplicaState.ONLINE, ReplicaState.OFFLINE)
        asked = [r for r in self.context.replicas_on(broker_ids) if self.context.replica_state(r) in known]
        await self._machines.replicas_to(asked, ReplicaState.ONLINE)

    # ---- topics

    async def _load_topics(self, names: Iterable[str]) -> None:
        for name in names:
            try:
                data, stat = await self._store.get(paths.topic(name), self._watch(events.TopicModification(name)))
                node = TopicNode.decode(name, data)
            except (NoNode, MalformedNode) as error:
                log.error("Topic %s is left out: %s", name, error)
                continue
            topic_id = node.topic_id
            if topic_id is None:
                topic_id = paths.random_id()
                await self._store.set(paths.topic(name), TopicNode(topic_id, node.partitions).encode(), stat.version)
                await self._store.exists(paths.topic(name), self._watch(events.TopicModification(name)))
            self.context.add_topic(name, topic_id, node.partitions)
            await self._load_leaderships(name)

    async def _load_leaderships(self, topic: str) -> None:
        for tp in self.context.partitions_of([topic]):
            try:
                data, stat = await self._store.get(paths.partition_state(tp))
                self.context.leaderships[tp] = Leadership(PartitionStateNode.decode(tp, data), stat.version)
            except NoNode:
                continue
            except MalformedNode as error:
                log.error("%s", error)

    async def _topic_change(self) -> None:
        names = set(await self._store.children(paths.TOPICS, self._watch(events.TopicChange())))
        for name in self.context.topics.keys() - names:
            self.context.forget_topic(name)
        new = sorted(names - self.context.topics.keys())
        await self._load_topics(new)
        await self._new_partitions(self.context.partitions_of(new))

    async def _topic_modification(self, name: str) -> None:
        try:
            data, _ = await self._store.get(paths.topic(name), self._watch(events.TopicModification(name)))
            node = TopicNode.decode(name, data)
        except NoNode:
            return
        except MalformedNode as error:
            log.error("A change of topic %s is ignored: %s", name, error)
            return
        topic = self.context.topics.get(name)
        if topic is None or name in self.context.topics_to_delete:
            return
        added = {p: assignment for p, assignment in node.partitions.items() if p not in topic.partitions}
        topic.partitions.update(added)
        await self._new_partitions([TopicPartition(name, p) for p in added])

    async def _new_partitions(self, partitions: list[TopicPartition]) -> None:
        if not partitions:
            return
        log.info("New partitions: %s", ", ".join(map(str, partitions)))
        replicas = list(self.context.replicas(partitions))
        await self._machines.partitions_to(partitions, PartitionState.NEW)
        await self._machines.replicas_to(replicas, ReplicaState.NEW)
        await self._machines.partitions_to(partitions, PartitionState.ONLINE)
        await self._machines.replicas_to(replicas, ReplicaState.ONLINE)

    async def _retry_offline(self) -> None:
        await self._machines.bring_online()
        joining = [
            replica
            for replica, state in self.context.replica_states.items()
            if state is ReplicaState.NEW and self.context.state_of(replica.partition) is PartitionState.ONLINE
        ]
        await self._machines.replicas_to(joining, ReplicaState.ONLINE)
        await self._deletions.resume()

    async def _marked_for_deletion(self) -> list[str]:
        """Topics with a mark. Marks on topics that are not there, or while deletion is switched off, are removed."""
        marked = await self._store.children(paths.DELETE_TOPICS, self._watch(events.TopicDeletion()))
        known = [name for name in marked if name in self.context.topics and self._deletion_enabled()]
        for name in marked:
            if name not in known:
                await self._machines.delete_tree(paths.delete_topic(name))
        return known

    def _topic_deleted(self, topic: str) -> None:
        self._watches.pop(events.TopicModification(topic), None)

    async def _topic_deletion(self) -> None:
        await self._deletions.begin(await self._marked_for_deletion())

    # ---- brokers are told, and answer

    def _new_batch(self) -> RequestBatch:
        return RequestBatch(self.broker_id, self.context, self._send)

    def _tell_metadata_to_all(self, partitions: Iterable[TopicPartition]) -> None:
        batch = self._new_batch()
        batch.tell_metadata(self.context.brokers, partitions)
        batch.send()

    def _send(self, broker_id: int, request: ControlRequest) -> None:
        sender = self._senders.get(broker_id)
        if sender is not None:
            sender.enqueue(request, lambda asked, answer: self._answered(broker_id, asked, answer))

    def _answered(self, broker_id: int, request: ControlRequest, response: ControlResponse) -> None:
        if response.error_code != ErrorCode.NONE:
            code = ErrorCode(response.error_code).name
            log.warning("Broker %d answered %s with %s", broker_id, type(request).__name__, code)
        if isinstance(response, LeaderAndIsrResponse):
            self._queue.put(events.LeaderAndIsrAnswered(broker_id, response))
        elif isinstance(request, StopReplicaRequest) and isinstance(response, StopReplicaResponse):
            self._queue.put(events.StopReplicaAnswered(broker_id, request, response))
        elif isinstance(request, UpdateMetadataRequest) and broker_id == self.broker_id:
            self._check_waiting()

    async def _leader_and_isr_answered(self, broker_id: int, response: LeaderAndIsrResponse) -> None:
        names = {topic.topic_id: name for name, topic in self.context.topics.items()}
        failed: set[Replica] = set()
        back: list[Replica] = []
        for topic in response.topics:
            name = names.get(topic.topic_id)
            if name is None:
                continue
            for partition in topic.partition_errors:
                replica = Replica(TopicPartition(name, partition.partition_index), broker_id)
                if partition.error_code == ErrorCode.KAFKA_STORAGE_ERROR:
                    failed.add(replica)
                elif partition.error_code == ErrorCode.NONE and replica in self.context.replicas_on_failed_disks:
                    back.append(replica)
        if failed:
            self._retry_failed_disks_later()
        newly_failed = failed - self.context.replicas_on_failed_disks
        self.context.replicas_on_failed_disks |= failed
        if newly_failed:
            await self._replicas_offline(sorted(newly_failed))
        if back:
            self._disk_retry_s = FIRST_DISK_RETRY_S
            self.context.replicas_on_failed_disks -= set(back)
            await self._replicas_back(back)

    def _retry_failed_disks_later(self) -> None:
        if self._disk_retry is None:
            loop = asyncio.get_running_loop()
            self._disk_retry = loop.call_later(self._disk_retry_s, self._queue.put, events.RetryFailedDisks())
            self._disk_retry_s = min(self._disk_retry_s * 2, LAST_DISK_RETRY_S)

    def _retry_failed_disks(self) -> None:
        self._disk_retry = None
        batch = self._new_batch()
        for replica in sorted(self.context.replicas_on_failed_disks):
            leadership = self.context.leaderships.get(replica.partition)
            if leadership is not None:
                batch.tell_leadership([replica.broker_id], replica.partition, leadership)
        batch.send()

    async def _stop_replica_answered(
        self, broker_id: int, request: StopReplicaRequest, response: StopReplicaResponse
    ) -> None:
        asked = [
            TopicPartition(topic.topic_name, partition.partition_index)
            for topic in request.topic_states
            for partition in topic.partition_states
            if partition.delete_partition
        ]
        if not asked:
            return
        codes = {TopicPartition(e.topic_name, e.partition_index): e.error_code for e in response.partition_errors}
        deleted = [Replica(tp, broker_id) for tp in asked if codes.get(tp, response.error_code) == ErrorCode.NONE]
        failed = [Replica(tp, broker_id) for tp in asked if Replica(tp, broker_id) not in set(deleted)]
        if failed:
            await self._deletions.replicas_not_deleted(failed)
        if deleted:
            await self._deletions.replicas_deleted(deleted)

    async def _stop_senders(self, broker_ids: Iterable[int]) -> None:
        for broker_id in broker_ids:
            sender = self._senders.pop(broker_id, None)
            if sender is not None:
                await sender.stop()
