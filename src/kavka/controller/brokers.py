"""Handles brokers that join, leave, restart, become unreachable and lose disks.

A broker's epoch (the czxid of its registration) identifies one run of the broker. A broker with a
new epoch has restarted, even if the controller never saw it unregistered. It first loses its
leaderships and its place in every ISR, because it may have lost the unflushed end of its logs.

A new controller does not have the broker epochs of its predecessor. But a state node with a broker
in its ISR was written after that broker had registered. A broker whose epoch is above the zxid of
the write has restarted since then (`handle_restarts`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from kavka.common.backoff import Backoff
from kavka.common.errors import ErrorCode
from kavka.common.turns import over_turns
from kavka.common.types import TopicPartition
from kavka.controller import election, events
from kavka.controller.context import Replica
from kavka.controller.partition_states import PartitionState
from kavka.controller.replica_states import ReplicaState
from kavka.metadata import paths
from kavka.metadata.paths import BrokerRegistration, MalformedNode, PartitionStateNode

if TYPE_CHECKING:
    from kavka.controller.term import Term

logger = logging.getLogger(__name__)

# Delays before LeaderAndIsr is sent again for replicas on failed disks.
DISK_BACKOFF = Backoff(5_000, 600_000, jitter=0)


class Brokers:
    """Handles changes of the registered brokers and of their disks. Only the controller's events
    call it."""

    def __init__(self, term: Term) -> None:
        self._term = term
        self._context = term.context
        self._disk_retries = 0
        # Brokers whose connection failed, also those that this broker does not act upon.
        self._disconnected: set[int] = set()

    # ---- registrations

    async def load(self) -> None:
        for broker, epoch in (await self._read()).values():
            self._context.add_broker(broker, epoch)

    async def _read(self) -> dict[int, tuple[BrokerRegistration, int]]:
        """Return the registered brokers with their epochs. Nodes whose name is not a broker id are
        ignored."""
        term = self._term
        names = await term.tree.store.children(paths.BROKER_IDS, term.watch(events.BrokerChange()))
        ids = sorted(int(name) for name in names if name.isdecimal() and str(int(name)) == name)
        return await self._registrations(ids)

    async def _registrations(self, ids: Iterable[int]) -> dict[int, tuple[BrokerRegistration, int]]:
        by_path = {paths.broker(broker_id): broker_id for broker_id in ids}
        nodes = await self._term.tree.get_all(
            list(by_path), lambda path: self._term.watch(events.BrokerModification(by_path[path]))
        )
        registrations: dict[int, tuple[BrokerRegistration, int]] = {}
        for broker_id, node in zip(by_path.values(), nodes, strict=True):
            if node is None:
                continue
            try:
                registrations[broker_id] = BrokerRegistration.decode(broker_id, node[0]), node[1].czxid
            except MalformedNode as error:
                logger.error("Ignoring broker %d: %s", broker_id, error)
        return registrations

    async def process_changes(self) -> None:
        """Handle new, expired and recreated registrations."""
        term, known_epochs = self._term, dict(self._context.broker_epochs)
        registered = await self._read()
        joined_ids = [b for b in registered if b not in known_epochs]
        lost_ids = [b for b in known_epochs if b not in registered]
        restarted_ids = [b for b in registered if b in known_epochs and registered[b][1] != known_epochs[b]]
        if joined_ids:
            self._register(joined_ids, registered)
            await self._on_started(joined_ids)
        if restarted_ids:
            logger.info("Restarted brokers: %s", restarted_ids)
            for broker_id in restarted_ids:
                term.disconnect(broker_id)
            await self._on_failed(restarted_ids)
            self._register(restarted_ids, registered)
            await self._on_started(restarted_ids)
        if lost_ids:
            for broker_id in lost_ids:
                term.disconnect(broker_id)
            await self._on_failed(lost_ids)

    async def handle_restarts(self) -> None:
        """At the start of a term, remove brokers that restarted while there was no controller from
        leaderships and ISRs, as `process_changes` does.

        Partitions with one replica are skipped: no other replica can lead, and no follower must
        truncate its log.
        """
        context = self._context
        partitions = [
            tp
            for tp, leadership in context.leaderships.items()
            if len(context.replicas_of(tp)) > 1
            and tp.topic not in context.topics_to_delete
            and not context.registered_since(tp).isdisjoint(leadership.state.isr)
            and not context.online_brokers(tp).isdisjoint(leadership.state.isr)
        ]
        if partitions:
            logger.info("Brokers have restarted since the state of %d partitions was written", len(partitions))
            await self._term.machines.move_partitions(partitions, PartitionState.ONLINE, self._elect_restarted)

    def _elect_restarted(self, tp: TopicPartition, state: PartitionStateNode) -> PartitionStateNode | None:
        context = self._context
        return election.restarted(
            state,
            context.replicas_of(tp),
            context.online_brokers(tp),
            context.registered_since(tp),
            controller_epoch=context.epoch,
        )

    async def process_modification(self, broker_id: int) -> None:
        """Handle a changed registration. A recreated registration is a restart, which
        `process_changes` handles."""
        previous = self._context.brokers.get(broker_id)
        registered = (await self._registrations([broker_id])).get(broker_id)
        if previous is None or registered is None or registered[1] != self._context.broker_epochs[broker_id]:
            return
        self._context.add_broker(*registered)
        if (registered[0].end_points, registered[0].features) != (previous.end_points, previous.features):
            self._term.send_metadata_to_all([])

    def _register(self, ids: Iterable[int], registered: dict[int, tuple[BrokerRegistration, int]]) -> None:
        for broker_id in ids:
            self._context.add_broker(*registered[broker_id])
            self._disconnected.discard(broker_id)
            self._term.connect(broker_id, is_starting=True)

    async def _on_started(self, ids: list[int]) -> None:
        logger.info("New brokers: %s", ids)
        batch = self._term.new_batch()
        batch.add_update_metadata([b for b in self._context.brokers if b not in ids], [])
        batch.send()
        batch.add_update_metadata(ids, [])
        async for tp in over_turns(self._context.all_partitions()):
            batch.add_update_metadata(ids, [tp])
        batch.send()
        await self._on_replicas_online(self._context.replicas_on(ids))
        await self._term.reassignments.resume(lambda assignment: not set(ids).isdisjoint(assignment.target))

    async def _on_failed(self, ids: list[int]) -> None:
        logger.info("Lost brokers: %s", ids)
        for broker_id in ids:
            self._context.forget_broker(broker_id)
            self._disconnected.discard(broker_id)
        await self._on_replicas_offline(self._context.replicas_on(ids))

    # ---- connections

    async def process_reachability(self, change: events.ReachabilityChange) -> None:
        """Handle a registered broker whose connection failed or was opened again
        (docs/decisions/0016). An unreachable broker is not live. A broker that is reachable again
        has left every ISR with another live member, so it rejoins like a broker that has just
        started."""
        context, broker_id = self._context, change.broker_id
        if change.term is not self._term or context.broker_epochs.get(broker_id) != change.broker_epoch:
            return
        if change.is_reachable:
            self._disconnected.discard(broker_id)
            if broker_id in context.unreachable:
                logger.info("Broker %d is reachable again", broker_id)
                context.unreachable.discard(broker_id)
                await self._on_started([broker_id])
        else:
            self._disconnected.add(broker_id)
        reachable = len(context.brokers) - len(self._disconnected)
        if 2 * reachable < len(context.brokers):
            logger.warning(
                "Only %d of %d brokers are reachable: waiting for the sessions of brokers %s",
                reachable,
                len(context.brokers),
                sorted(self._disconnected - context.unreachable),
            )
            return
        for failed_id in sorted(self._disconnected - context.unreachable):
            await self._on_unreachable(failed_id)

    async def _on_unreachable(self, broker_id: int) -> None:
        context = self._context
        logger.warning("Broker %d is unreachable: its partitions get other leaders", broker_id)
        context.unreachable.add(broker_id)
        await self._term.hand_overs.hand_over(broker_id)
        replicas = context.replicas_on([broker_id])
        replicas_to_delete = [r for r in replicas if r.partition.topic in context.topics_to_delete]
        if replicas_to_delete:
            await self._term.deletions.on_replicas_not_deleted(replicas_to_delete)

    # ---- replicas

    async def _on_replicas_offline(self, replicas: Iterable[Replica]) -> None:
        """Elect new leaders for replicas whose brokers or disks have failed, and remove the
        replicas from ISRs."""
        machines, context = self._term.machines, self._context
        replicas = list(replicas)
        replicas_to_delete = [r for r in replicas if r.partition.topic in context.topics_to_delete]
        other_replicas = [r for r in replicas if r.partition.topic not in context.topics_to_delete]
        leaderless = [
            tp
            for tp in dict.fromkeys(r.partition for r in other_replicas)
            if (leadership := context.leaderships.get(tp)) is not None
            and not context.has_host(Replica(tp, leadership.state.leader))
        ]
        await machines.move_partitions(leaderless, PartitionState.OFFLINE)
        await machines.bring_online(leaderless)
        await machines.move_replicas(other_replicas, ReplicaState.OFFLINE)
        if replicas_to_delete:
            await self._term.deletions.on_replicas_not_deleted(replicas_to_delete)
        if not leaderless:
            self._term.send_metadata_to_all([])

    async def _on_replicas_online(self, replicas: list[Replica]) -> None:
        await self._term.machines.move_replicas(replicas, ReplicaState.ONLINE)
        await self._term.machines.bring_online()
        await self._term.deletions.on_replicas_online(replicas)

    # ---- disks

    async def process_log_dir_failures(self) -> None:
        """Send LeaderAndIsr for all replicas of brokers that reported a failed disk. The responses
        contain the replicas that failed."""
        term, tree = self._term, self._term.tree
        names = await tree.store.children(paths.LOG_DIR_EVENTS, term.watch(events.LogDirFailure()))
        nodes = [f"{paths.LOG_DIR_EVENTS}/{name}" for name in names]
        broker_ids: set[int] = set()
        for path, node in zip(nodes, await tree.get_all(nodes), strict=True):
            try:
                if node is not None:
                    broker_ids.add(paths.decode_log_dir_event(node[0]))
            except MalformedNode as error:
                logger.warning("Ignoring %s: %s", path, error)
        placed_states = (ReplicaState.ONLINE, ReplicaState.OFFLINE)
        replicas = [r for r in self._context.replicas_on(broker_ids) if self._context.replica_state(r) in placed_states]
        await term.machines.move_replicas(replicas, ReplicaState.ONLINE)
        # The nodes are deleted last, so that the next controller finds them if this controller
        # fails.
        await tree.delete_all(nodes)

    async def on_leader_and_isr_response(self, received: events.LeaderAndIsrResponseReceived) -> None:
        context, broker_id = self._context, received.broker_id
        if not self._term.is_current(received):
            return
        failed_replicas: set[Replica] = set()
        recovered_replicas: list[Replica] = []
        for tp, code in _codes(received):
            replica = Replica(tp, broker_id)
            if code == ErrorCode.KAFKA_STORAGE_ERROR:
                failed_replicas.add(replica)
            elif code == ErrorCode.NONE and replica in context.replicas_on_failed_disks:
                recovered_replicas.append(replica)
        if failed_replicas:
            self._term.enqueue_after(DISK_BACKOFF.delay(self._disk_retries + 1), events.RetryFailedDisks())
        newly_failed = failed_replicas - context.replicas_on_failed_disks
        context.replicas_on_failed_disks |= failed_replicas
        if newly_failed:
            await self._on_replicas_offline(sorted(newly_failed))
        if recovered_replicas:
            self._disk_retries = 0
            context.replicas_on_failed_disks -= set(recovered_replicas)
            await self._on_replicas_online(recovered_replicas)

    def retry_failed_disks(self) -> None:
        self._disk_retries += 1
        batch = self._term.new_batch()
        for replica in sorted(self._context.replicas_on_failed_disks):
            leadership = self._context.leaderships.get(replica.partition)
            if leadership is not None:
                batch.add_leader_and_isr([replica.broker_id], replica.partition, leadership)
        batch.send()

    async def on_stop_replica_response(self, received: events.StopReplicaResponseReceived) -> None:
        broker_id, response = received.broker_id, received.response
        if not self._term.is_current(received):
            return
        deletions = [
            TopicPartition(topic.topic_name, partition.partition_index)
            for topic in received.request.topic_states
            for partition in topic.partition_states
            if partition.delete_partition
        ]
        codes = {TopicPartition(e.topic_name, e.partition_index): e.error_code for e in response.partition_errors}
        deleted_replicas: list[Replica] = []
        failed_replicas: list[Replica] = []
        for tp in deletions:
            is_deleted = codes.get(tp, response.error_code) == ErrorCode.NONE
            (deleted_replicas if is_deleted else failed_replicas).append(Replica(tp, broker_id))
        if failed_replicas:
            await self._term.deletions.on_replicas_not_deleted(failed_replicas)
        if deleted_replicas:
            await self._term.deletions.on_replicas_deleted(deleted_replicas)


def _codes(received: events.LeaderAndIsrResponseReceived) -> Collection[tuple[TopicPartition, int]]:
    """Return the error code of each partition. From v5 on, the response has topic ids instead of
    names."""
    names = {topic.topic_id: topic.topic_name for topic in received.request.topic_states}
    response = received.response
    by_name = [(TopicPartition(e.topic_name, e.partition_index), e.error_code) for e in response.partition_errors]
    return by_name + [
        (TopicPartition(names[topic.topic_id], e.partition_index), e.error_code)
        for topic in response.topics
        if topic.topic_id in names
        for e in topic.partition_errors
    ]
