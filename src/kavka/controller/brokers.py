"""Brokers that come, go, come back and lose disks: who leads what then, and what each is told.

A broker's epoch (the czxid of its registration) tells one life from the next. One whose epoch has changed was away,
however shortly: it lost its leaderships and its place in every ISR before it is welcomed again, because what it had in
memory is gone and its peers may have counted on it.

A new controller does not know the epochs that the last one knew. But a state node that names a broker was written after
that broker had signed in: a broker whose epoch is above the zxid of the write has restarted since (`restarted`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from kavka.common.errors import ErrorCode
from kavka.common.types import TopicPartition
from kavka.controller import election, events
from kavka.controller.context import Replica
from kavka.controller.partition_states import PartitionState
from kavka.controller.replica_states import ReplicaState
from kavka.metadata import paths
from kavka.metadata.paths import BrokerRegistration, MalformedNode, PartitionStateNode

if TYPE_CHECKING:
    from kavka.controller.term import Term

log = logging.getLogger(__name__)

# Replicas on a failed disk are asked about again after this long, then after twice as long, and so on.
FIRST_DISK_RETRY_S = 5.0
LAST_DISK_RETRY_S = 600.0


class Brokers:
    def __init__(self, term: Term) -> None:
        self._term = term
        self._context = term.context
        self._disk_retry_s = FIRST_DISK_RETRY_S

    # ---- registrations

    async def load(self) -> None:
        for broker, epoch in (await self._read()).values():
            self._context.add_broker(broker, epoch)

    async def _read(self) -> dict[int, tuple[BrokerRegistration, int]]:
        """Who is signed in, with its epoch. A node that is no broker's is left alone."""
        term = self._term
        names = await term.tree.store.children(paths.BROKER_IDS, term.watch(events.BrokerChange()))
        ids = sorted(int(name) for name in names if name.isdecimal() and str(int(name)) == name)
        return await self._registrations(ids)

    async def _registrations(self, ids: Iterable[int]) -> dict[int, tuple[BrokerRegistration, int]]:
        by_path = {paths.broker(broker_id): broker_id for broker_id in ids}
        nodes = await self._term.tree.get_all(
            list(by_path), lambda path: self._term.watch(events.BrokerModification(by_path[path]))
        )
        found: dict[int, tuple[BrokerRegistration, int]] = {}
        for broker_id, node in zip(by_path.values(), nodes, strict=True):
            if node is None:
                continue
            try:
                found[broker_id] = BrokerRegistration.decode(broker_id, node[0]), node[1].czxid
            except MalformedNode as error:
                log.error("Broker %d is left out: %s", broker_id, error)
        return found

    async def changed(self) -> None:
        """Somebody signed in or is gone."""
        term, known = self._term, dict(self._context.broker_epochs)
        found = await self._read()
        come = [b for b in found if b not in known]
        gone = [b for b in known if b not in found]
        back = [b for b in found if b in known and found[b][1] != known[b]]
        if come:
            self._welcome(come, found)
            await self._started(come)
        if back:
            log.info("Brokers were away for a moment: %s", back)
            for broker_id in back:
                term.disconnect(broker_id)
            await self._failed(back)
            self._welcome(back, found)
            await self._started(back)
        if gone:
            for broker_id in gone:
                term.disconnect(broker_id)
            await self._failed(gone)

    async def restarted(self) -> None:
        """At the beginning of a term: brokers that were away while there was no controller, or before the last one had
        dealt with it, lose their leaderships and their places in ISRs now, as those in `changed` do.

        With one replica there is nobody to lead in its place, and no follower to truncate.
        """
        context = self._context
        partitions = [
            tp
            for tp, leadership in context.leaderships.items()
            if len(context.replicas_of(tp)) > 1
            and tp.topic not in context.topics_to_delete
            and not context.signed_in_since(tp).isdisjoint(leadership.state.isr)
            and not context.online_brokers(tp).isdisjoint(leadership.state.isr)
        ]
        if partitions:
            log.info("Brokers have restarted since the state of %d partitions was written", len(partitions))
            await self._term.machines.partitions_to(partitions, PartitionState.ONLINE, self._elect_restarted)

    def _elect_restarted(self, tp: TopicPartition, state: PartitionStateNode) -> PartitionStateNode | None:
        context = self._context
        return election.restarted(
            state,
            context.replicas_of(tp),
            context.online_brokers(tp),
            context.signed_in_since(tp),
            controller_epoch=context.epoch,
        )

    async def modified(self, broker_id: int) -> None:
        """A registration was written again. One that was made anew is another life, and comes as a broker's change."""
        before = self._context.brokers.get(broker_id)
        found = (await self._registrations([broker_id])).get(broker_id)
        if before is None or found is None or found[1] != self._context.broker_epochs[broker_id]:
            return
        self._context.add_broker(*found)
        if (found[0].end_points, found[0].features) != (before.end_points, before.features):
            self._term.tell_metadata_to_all([])

    def _welcome(self, ids: Iterable[int], found: dict[int, tuple[BrokerRegistration, int]]) -> None:
        for broker_id in ids:
            self._context.add_broker(*found[broker_id])
            self._term.connect(broker_id)

    async def _started(self, ids: list[int]) -> None:
        log.info("Brokers have come: %s", ids)
        batch = self._term.new_batch()
        batch.tell_metadata([b for b in self._context.brokers if b not in ids], [])
        batch.send()
        batch.tell_metadata(ids, self._context.all_partitions())
        batch.send()
        await self._replicas_back(self._context.replicas_on(ids))
        await self._term.reassignments.resume(lambda assignment: not set(ids).isdisjoint(assignment.target))

    async def _failed(self, ids: list[int]) -> None:
        log.info("Brokers are gone: %s", ids)
        for broker_id in ids:
            self._context.forget_broker(broker_id)
        await self._replicas_offline(self._context.replicas_on(ids))

    # ---- their replicas

    async def _replicas_offline(self, replicas: Iterable[Replica]) -> None:
        """Their broker or disk is gone: new leaders for what they led, and out of the ISR with them."""
        machines, context = self._term.machines, self._context
        replicas = list(replicas)
        going = [r for r in replicas if r.partition.topic in context.topics_to_delete]
        staying = [r for r in replicas if r.partition.topic not in context.topics_to_delete]
        leaderless = [
            tp
            for tp in dict.fromkeys(r.partition for r in staying)
            if (leadership := context.leaderships.get(tp)) is not None
            and not context.is_online(Replica(tp, leadership.state.leader))
        ]
        await machines.partitions_to(leaderless, PartitionState.OFFLINE)
        await machines.bring_online(leaderless)
        await machines.replicas_to(staying, ReplicaState.OFFLINE)
        if going:
            await self._term.deletions.replicas_not_deleted(going)
        if not leaderless:
            self._term.tell_metadata_to_all([])

    async def _replicas_back(self, replicas: list[Replica]) -> None:
        await self._term.machines.replicas_to(replicas, ReplicaState.ONLINE)
        await self._term.machines.bring_online()
        await self._term.deletions.replicas_back(replicas)

    # ---- their disks

    async def log_dirs_failed(self) -> None:
        """Brokers announced that a disk failed: asked about all their replicas, they say which are gone."""
        term, tree = self._term, self._term.tree
        names = await tree.store.children(paths.LOG_DIR_EVENTS, term.watch(events.LogDirFailure()))
        nodes = [f"{paths.LOG_DIR_EVENTS}/{name}" for name in names]
        broker_ids: set[int] = set()
        for path, node in zip(nodes, await tree.get_all(nodes), strict=True):
            try:
                if node is not None:
                    broker_ids.add(paths.decode_log_dir_event(node[0]))
            except MalformedNode as error:
                log.warning("%s is left out: %s", path, error)
        known = (ReplicaState.ONLINE, ReplicaState.OFFLINE)
        asked = [r for r in self._context.replicas_on(broker_ids) if self._context.replica_state(r) in known]
        await term.machines.replicas_to(asked, ReplicaState.ONLINE)
        # Last: a controller that dies before it asked leaves them to the next.
        await tree.delete_all(nodes)

    async def leader_and_isr_answered(self, answered: events.LeaderAndIsrAnswered) -> None:
        context, broker_id = self._context, answered.broker_id
        if not self._term.is_of_now(answered):
            return
        failed: set[Replica] = set()
        back: list[Replica] = []
        for tp, code in _codes(answered):
            replica = Replica(tp, broker_id)
            if code == ErrorCode.KAFKA_STORAGE_ERROR:
                failed.add(replica)
            elif code == ErrorCode.NONE and replica in context.replicas_on_failed_disks:
                back.append(replica)
        if failed:
            self._term.later(self._disk_retry_s, events.RetryFailedDisks())
        newly_failed = failed - context.replicas_on_failed_disks
        context.replicas_on_failed_disks |= failed
        if newly_failed:
            await self._replicas_offline(sorted(newly_failed))
        if back:
            self._disk_retry_s = FIRST_DISK_RETRY_S
            context.replicas_on_failed_disks -= set(back)
            await self._replicas_back(back)

    def retry_failed_disks(self) -> None:
        self._disk_retry_s = min(self._disk_retry_s * 2, LAST_DISK_RETRY_S)
        batch = self._term.new_batch()
        for replica in sorted(self._context.replicas_on_failed_disks):
            leadership = self._context.leaderships.get(replica.partition)
            if leadership is not None:
                batch.tell_leadership([replica.broker_id], replica.partition, leadership)
        batch.send()

    async def stop_replica_answered(self, answered: events.StopReplicaAnswered) -> None:
        broker_id, response = answered.broker_id, answered.response
        if not self._term.is_of_now(answered):
            return
        asked = [
            TopicPartition(topic.topic_name, partition.partition_index)
            for topic in answered.request.topic_states
            for partition in topic.partition_states
            if partition.delete_partition
        ]
        if not asked:
            return
        codes = {TopicPartition(e.topic_name, e.partition_index): e.error_code for e in response.partition_errors}
        deleted: list[Replica] = []
        failed: list[Replica] = []
        for tp in asked:
            is_deleted = codes.get(tp, response.error_code) == ErrorCode.NONE
            (deleted if is_deleted else failed).append(Replica(tp, broker_id))
        if failed:
            await self._term.deletions.replicas_not_deleted(failed)
        if deleted:
            await self._term.deletions.replicas_deleted(deleted)


def _codes(answered: events.LeaderAndIsrAnswered) -> Collection[tuple[TopicPartition, int]]:
    """The code of each partition. From version 5 on topics are named by their id only."""
    names = {topic.topic_id: topic.topic_name for topic in answered.request.topic_states}
    response = answered.response
    by_name = [(TopicPartition(e.topic_name, e.partition_index), e.error_code) for e in response.partition_errors]
    return by_name + [
        (TopicPartition(names[topic.topic_id], e.partition_index), e.error_code)
        for topic in response.topics
        if topic.topic_id in names
        for e in topic.partition_errors
    ]
