"""Carries out what the two tables of transitions say: writes the state nodes, and gathers what brokers must be told.

Every write is fenced: it is one transaction with a check that /controller_epoch is still the one this controller was
elected with. When it is not, `ControllerMoved` is raised and nothing was written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from kavka.common.types import TopicPartition
from kavka.controller import election
from kavka.controller.context import ControllerContext, Leadership, Replica
from kavka.controller.partition_states import PARTITION_TRANSITIONS, PartitionAction, PartitionState
from kavka.controller.replica_states import REPLICA_TRANSITIONS, ReplicaAction, ReplicaState
from kavka.controller.requests import RequestBatch
from kavka.controller.states import IllegalTransition
from kavka.metadata import paths
from kavka.metadata.paths import PartitionStateNode
from kavka.metadata.store import (
    BadVersion,
    Check,
    Create,
    Delete,
    MetadataStore,
    NoNode,
    Op,
    OpResult,
    SetData,
    Stat,
    StoreError,
    StoreUnavailable,
)

log = logging.getLogger(__name__)

# Gives a partition's next leader and ISR, or None when nobody may lead it.
Elect = Callable[[TopicPartition, PartitionStateNode], PartitionStateNode | None]


class ControllerMoved(Exception):
    """Another broker is the controller now."""


class StateMachines:
    def __init__(
        self,
        context: ControllerContext,
        store: MetadataStore,
        new_batch: Callable[[], RequestBatch],
        unclean_election: Callable[[str], bool],
    ) -> None:
        self._context = context
        self._store = store
        self._new_batch = new_batch
        self._unclean_election = unclean_election

    # ---- partitions

    async def partitions_to(
        self, partitions: Iterable[TopicPartition], target: PartitionState, elect: Elect | None = None
    ) -> None:
        """Bring them into a state; what may not or cannot go there stays where it is, and is logged."""
        batch = self._new_batch()
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
                await self._initialise(new, batch)
            if leaderless := by_action.get(PartitionAction.ELECT):
                await self._elect(leaderless, elect or self._offline_election, batch)
        finally:
            batch.send()

    async def bring_online(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Try to find a leader for all that have none, or for some of these."""
        candidates = self._context.all_partitions() if partitions is None else partitions
        waiting = (PartitionState.NEW, PartitionState.OFFLINE)
        await self.partitions_to(
            [
                tp
                for tp in candidates
                if self._context.state_of(tp) in waiting and tp.topic not in self._context.topics_to_delete
            ],
            PartitionState.ONLINE,
        )

    def _offline_election(self, tp: TopicPartition, state: PartitionStateNode) -> PartitionStateNode | None:
        return election.offline(
            state,
            self._context.replicas_of(tp),
            self._context.online_brokers(tp),
            unclean=self._unclean_election(tp.topic),
            controller_epoch=self._context.epoch,
        )

    async def _initialise(self, partitions: list[TopicPartition], batch: RequestBatch) -> None:
        chosen: dict[TopicPartition, PartitionStateNode] = {}
        for tp in partitions:
            state = election.initial(
                self._context.replicas_of(tp), self._context.online_brokers(tp), self._context.epoch
            )
            if state is None:
                log.error("%s stays without a leader: none of its replicas lives", tp)
            else:
                chosen[tp] = state
        parents = [paths.partitions(name) for name in {tp.topic: None for tp in chosen}]
        parents += [paths.partition(tp) for tp in chosen]
        states = [Create(paths.partition_state(tp), state.encode()) for tp, state in chosen.items()]
        outcomes = await self.write([Create(path) for path in parents] + states)
        for (tp, state), outcome in zip(chosen.items(), outcomes[len(parents) :], strict=True):
            if isinstance(outcome, StoreError):
                log.error("The state of %s could not be written: %s", tp, outcome)
                continue
            self._lead(tp, Leadership(state, 0), batch, is_new=True)
        _raise_if_unavailable(outcomes)

    async def _elect(self, partitions: list[TopicPartition], elect: Elect, batch: RequestBatch) -> None:
        chosen: dict[TopicPartition, PartitionStateNode] = {}
        for tp in partitions:
            state = elect(tp, self._context.leaderships[tp].state)
            if state is None:
                log.error("%s finds no leader: no replica that may lead lives", tp)
            else:
                chosen[tp] = state
        for tp, leadership in (await self._write_states(chosen)).items():
            self._lead(tp, leadership, batch)

    def _lead(self, tp: TopicPartition, leadership: Leadership, batch: RequestBatch, *, is_new: bool = False) -> None:
        self._context.leaderships[tp] = leadership
        self._context.partition_states[tp] = PartitionState.ONLINE
        batch.tell_leadership(self._context.replicas_of(tp), tp, leadership, is_new=is_new)

    # ---- replicas

    async def replicas_to(self, replicas: Iterable[Replica], target: ReplicaState) -> None:
        batch = self._new_batch()
        stopped: list[Replica] = []
        for replica in replicas:
            try:
                action = REPLICA_TRANSITIONS.action(replica, self._context.replica_state(replica), target)
            except IllegalTransition as error:
                log.error("%s", error)
                continue
            if action is ReplicaAction.STOP:
                batch.tell_stop(replica.broker_id, replica.partition, delete=False)
                stopped.append(replica)
            elif self._change_replica(replica, action, batch):
                self._context.replica_states[replica] = target
        try:
            for broker_id in dict.fromkeys(replica.broker_id for replica in stopped):
                await self._leave_isr(broker_id, [r.partition for r in stopped if r.broker_id == broker_id], batch)
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
                    joined = replace(assignment, replicas=(*assignment.replicas, broker_id))
                    self._context.topics[tp.topic].partitions[tp.partition] = joined
            case ReplicaAction.DELETE:
                batch.tell_stop(broker_id, tp, delete=True)
            case ReplicaAction.FORGET:
                self._context.replica_states.pop(replica, None)
                return False
        return True

    async def _leave_isr(self, broker_id: int, partitions: list[TopicPartition], batch: RequestBatch) -> None:
        changed: dict[TopicPartition, PartitionStateNode] = {}
        for tp in partitions:
            leadership = self._context.leaderships.get(tp)
            if leadership is not None:
                state = election.without_replica(leadership.state, broker_id, self._context.epoch)
                if state is not None:
                    changed[tp] = state
        self._context.leaderships.update(await self._write_states(changed))
        for tp in partitions:
            self._context.replica_states[Replica(tp, broker_id)] = ReplicaState.OFFLINE
            leadership = self._context.leaderships.get(tp)
            if leadership is None:
                batch.tell_metadata(self._context.brokers, [tp])
            elif tp.topic not in self._context.topics_to_delete:
                others = [b for b in self._context.replicas_of(tp) if b != broker_id]
                batch.tell_leadership(others, tp, leadership)

    # ---- the tree

    async def _write_states(
        self, states: Mapping[TopicPartition, PartitionStateNode]
    ) -> dict[TopicPartition, Leadership]:
        """Replace state nodes, each only if it is the one this controller knows; returns those that were."""
        ops = [
            SetData(paths.partition_state(tp), state.encode(), self._context.leaderships[tp].partition_epoch)
            for tp, state in states.items()
        ]
        outcomes = await self.write(ops)
        written: dict[TopicPartition, Leadership] = {}
        for (tp, state), outcome in zip(states.items(), outcomes, strict=True):
            if isinstance(outcome, Stat):
                written[tp] = Leadership(state, outcome.version)
            else:
                log.error("The state of %s could not be written: %s", tp, outcome)
        _raise_if_unavailable(outcomes)
        return written

    async def write(self, ops: Iterable[Op]) -> list[OpResult | StoreError]:
        """Each op on its own, fenced; the result of each, or its error."""
        fence = Check(paths.CONTROLLER_EPOCH, self._context.epoch_version)
        outcomes = await asyncio.gather(*(self._store.multi((fence, op)) for op in ops), return_exceptions=True)
        results: list[OpResult | StoreError] = []
        for outcome in outcomes:
            if isinstance(outcome, list):
                results.append(outcome[1])
            elif isinstance(outcome, StoreError):
                if isinstance(outcome, (BadVersion, NoNode)) and outcome.path == paths.CONTROLLER_EPOCH:
                    raise ControllerMoved from outcome
                results.append(outcome)
            elif isinstance(outcome, BaseException):
                raise outcome
        return results

    async def delete_tree(self, path: str) -> None:
        """Remove a node with all below it; what is gone already is fine."""
        _raise_if_unavailable(await self.write([Delete(found) for found in await self._store.subtree(path)]))


def _raise_if_unavailable(outcomes: Iterable[object]) -> None:
    for outcome in outcomes:
        if isinstance(outcome, StoreUnavailable):
            raise outcome
