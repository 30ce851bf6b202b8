"""Carries out what the two tables of transitions say: writes the state nodes, and gathers what brokers must be told."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace

from kavka.common.types import TopicPartition
from kavka.controller import election
from kavka.controller.context import ControllerContext, Leadership, Replica
from kavka.controller.partition_states import PARTITION_TRANSITIONS, PartitionAction, PartitionState
from kavka.controller.replica_states import REPLICA_TRANSITIONS, ReplicaAction, ReplicaState
from kavka.controller.requests import RequestBatch
from kavka.controller.states import IllegalTransition
from kavka.controller.tree import ChangeState, FencedTree
from kavka.metadata import paths
from kavka.metadata.paths import PartitionStateNode
from kavka.metadata.store import Create, StoreError

log = logging.getLogger(__name__)


class StateMachines:
    def __init__(
        self,
        context: ControllerContext,
        tree: FencedTree,
        new_batch: Callable[[], RequestBatch],
        unclean_election: Callable[[str], bool],
    ) -> None:
        self._context = context
        self._tree = tree
        self._new_batch = new_batch
        self._unclean_election = unclean_election

    # ---- partitions

    async def partitions_to(
        self, partitions: Iterable[TopicPartition], target: PartitionState, elect: ChangeState | None = None
    ) -> set[TopicPartition]:
        """Bring them into a state; what may not or cannot go there stays where it is, and is logged.

        Returns those that were given a leader. `elect` decides who it is; by default, as when the leader is gone.
        """
        batch = self._new_batch()
        led: set[TopicPartition] = set()
        by_action: dict[PartitionAction, list[TopicPartition]] = {}
        for tp in partitions:
            try:
                action = PARTITION_TRANSITIONS.action(tp, self._context.state_of(tp), target)
            except IllegalTransition as error:
                log.error("%s", error)
                continue
            by_action.setdefault(action, []).append(tp)
        for tp in by_action.get(PartitionAction.NOTE, ()):
            if target is PartitionState.NON_EXISTENT:
                self._context.partition_states.pop(tp, None)
            else:
                self._context.partition_states[tp] = target
        try:
            if new := by_action.get(PartitionAction.INITIALISE):
                led |= await self._initialise(new, batch)
            if leaderless := by_action.get(PartitionAction.ELECT):
                led |= await self._elect(leaderless, elect or self.offline_election(), batch)
        finally:
            batch.send()
        return led

    async def bring_online(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Try to find a leader for all that have none, or for some of these."""
        waiting = (PartitionState.NEW, PartitionState.OFFLINE)
        if partitions is None:
            partitions = self._context.partitions_in(*waiting)
        await self.partitions_to(
            [
                tp
                for tp in partitions
                if self._context.state_of(tp) in waiting and tp.topic not in self._context.topics_to_delete
            ],
            PartitionState.ONLINE,
        )

    def offline_election(self, *, unclean: bool = False) -> ChangeState:
        """The rule for when the leader is gone; `unclean` allows for what the topic's settings do not."""
        return lambda tp, state: election.offline(
            state,
            self._context.replicas_of(tp),
            self._context.online_brokers(tp),
            unclean=unclean or self._unclean_election(tp.topic),
            controller_epoch=self._context.epoch,
        )

    async def _initialise(self, partitions: list[TopicPartition], batch: RequestBatch) -> set[TopicPartition]:
        chosen: dict[TopicPartition, PartitionStateNode] = {}
        for tp in partitions:
            state = election.initial(
                self._context.replicas_of(tp), self._context.online_brokers(tp), self._context.epoch
            )
            if state is None:
                log.error("%s stays without a leader: none of its replicas lives", tp)
            else:
                chosen[tp] = state
        grown = {tp.topic for tp in self._context.leaderships}
        parents = [paths.partitions(name) for name in {tp.topic: None for tp in chosen} if name not in grown]
        parents += [paths.partition(tp) for tp in chosen]
        states = [Create(paths.partition_state(tp), state.encode()) for tp, state in chosen.items()]
        outcomes = await self._tree.write([Create(path) for path in parents] + states)
        led: set[TopicPartition] = set()
        for (tp, state), outcome in zip(chosen.items(), outcomes[len(parents) :], strict=True):
            if isinstance(outcome, StoreError):
                log.error("The state of %s could not be written: %s", tp, outcome)
                continue
            self._lead(tp, Leadership(state, 0), batch, is_new=True)
            led.add(tp)
        return led

    async def _elect(
        self, partitions: list[TopicPartition], elect: ChangeState, batch: RequestBatch
    ) -> set[TopicPartition]:
        elected = await self._tree.change_states(partitions, elect)
        for tp, leadership in elected.items():
            self._lead(tp, leadership, batch)
        failed = [tp for tp in partitions if tp not in elected]
        if failed:
            log.error("No replica that may lead lives, of %s", ", ".join(map(str, failed)))
        return set(elected)

    def _lead(self, tp: TopicPartition, leadership: Leadership, batch: RequestBatch, *, is_new: bool = False) -> None:
        self._context.leaderships[tp] = leadership
        self._context.partition_states[tp] = PartitionState.ONLINE
        batch.tell_leadership(self._context.replicas_of(tp), tp, leadership, is_new=is_new)

    # ---- replicas

    async def replicas_to(self, replicas: Iterable[Replica], target: ReplicaState) -> None:
        batch = self._new_batch()
        stopped: dict[int, list[TopicPartition]] = {}
        for replica in replicas:
            try:
                action = REPLICA_TRANSITIONS.action(replica, self._context.replica_state(replica), target)
            except IllegalTransition as error:
                log.error("%s", error)
                continue
            if action is ReplicaAction.STOP:
                batch.tell_stop(replica.broker_id, replica.partition, delete=False)
                stopped.setdefault(replica.broker_id, []).append(replica.partition)
            elif self._change_replica(replica, action, batch):
                self._context.replica_states[replica] = target
        try:
            for broker_id, partitions in stopped.items():
                await self._leave_isr(broker_id, partitions, batch)
        finally:
            batch.send()

    def _change_replica(self, replica: Replica, action: ReplicaAction, batch: RequestBatch) -> bool:
        tp, broker_id = replica
        leadership = self._context.leaderships.get(tp)
        match action:
            case ReplicaAction.TELL_NEW if leadership is not None:
                if leadership.state.leader == broker_id:
                    log.error("%s leads already, it cannot be new", replica)
                    return False
                batch.tell_leadership([broker_id], tp, leadership, is_new=True)
            case ReplicaAction.TELL if leadership is not None:
                batch.tell_leadership([broker_id], tp, leadership)
            case ReplicaAction.JOIN:
                assignment = self._context.assignment(tp)
                if broker_id not in assignment.replicas:
                    self._context.set_assignment(tp, replace(assignment, replicas=(*assignment.replicas, broker_id)))
            case ReplicaAction.DELETE:
                batch.tell_stop(broker_id, tp, delete=True)
            case ReplicaAction.FORGET:
                self._context.set_assignment(tp, self._context.assignment(tp).without(broker_id))
                self._context.replica_states.pop(replica, None)
                return False
        return True

    async def _leave_isr(self, broker_id: int, partitions: list[TopicPartition], batch: RequestBatch) -> None:
        changed = await self._tree.change_states(
            partitions, lambda tp, state: election.without_replica(state, broker_id, self._context.epoch)
        )
        for tp in partitions:
            self._context.replica_states[Replica(tp, broker_id)] = ReplicaState.OFFLINE
            leadership = changed.get(tp)
            if tp.topic in self._context.topics_to_delete:
                continue
            if leadership is None:
                # Nobody has to lead or follow differently; but clients see one replica less.
                batch.tell_metadata(self._context.brokers, [tp])
            else:
                others = [b for b in self._context.replicas_of(tp) if b != broker_id]
                batch.tell_leadership(others, tp, leadership)
