"""Executes the transitions of partitions and replicas: writes state nodes and sends requests to
brokers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from kavka.common.turns import over_turns
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

logger = logging.getLogger(__name__)


@dataclass(eq=False, repr=False)
class StateMachines:
    """The state machines of partitions and replicas. A method writes to the tree first, then sends
    the requests to brokers, also if a write fails. Only the controller's events call it.

    A broker can have thousands of partitions, so the work is divided over turns of the loop. No
    other event runs in between, and the requests are sent when all partitions are done.
    """

    _context: ControllerContext
    _tree: FencedTree
    _new_batch: Callable[[], RequestBatch]
    _unclean_election: Callable[[str], bool]

    # ---- partitions

    async def move_partitions(
        self, partitions: Iterable[TopicPartition], target: PartitionState, elect: ChangeState | None = None
    ) -> set[TopicPartition]:
        """Move partitions to a state. A partition without such a transition is logged and keeps its
        state.

        Returns the partitions that got a leader. `elect` chooses the leader; the default is the
        election after a leader failure.
        """
        batch = self._new_batch()
        with_leader: set[TopicPartition] = set()
        by_action: dict[PartitionAction, list[TopicPartition]] = {}
        async for tp in over_turns(partitions):
            try:
                action = PARTITION_TRANSITIONS.action(tp, self._context.state_of(tp), target)
            except IllegalTransition as error:
                logger.error("%s", error)
                continue
            by_action.setdefault(action, []).append(tp)
        for tp in by_action.get(PartitionAction.NOTE, ()):
            if target is PartitionState.NON_EXISTENT:
                self._context.partition_states.pop(tp, None)
            else:
                self._context.partition_states[tp] = target
        try:
            if new_partitions := by_action.get(PartitionAction.INITIALISE):
                with_leader |= await self._initialise(new_partitions, batch)
            if leaderless := by_action.get(PartitionAction.ELECT):
                with_leader |= await self._elect(leaderless, elect or self.offline_election(), batch)
        finally:
            batch.send()
        return with_leader

    async def bring_online(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Elect leaders for all leaderless partitions, or for those in `partitions`."""
        leaderless_states = (PartitionState.NEW, PartitionState.OFFLINE)
        if partitions is None:
            partitions = self._context.partitions_in(*leaderless_states)
        leaderless = [
            tp
            for tp in partitions
            if self._context.state_of(tp) in leaderless_states and tp.topic not in self._context.topics_to_delete
        ]
        await self.move_partitions(leaderless, PartitionState.ONLINE)

    def offline_election(self, *, unclean: bool = False) -> ChangeState:
        """The election after a leader failure. `unclean` overrides the topic's setting."""
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
                logger.error("%s has no leader: no replica is alive", tp)
            else:
                chosen[tp] = state
        existing_topics = {tp.topic for tp in self._context.leaderships}
        parents = [paths.partitions(name) for name in {tp.topic: None for tp in chosen} if name not in existing_topics]
        parents += [paths.partition(tp) for tp in chosen]
        states = [Create(paths.partition_state(tp), state.encode()) for tp, state in chosen.items()]
        outcomes = await self._tree.write([Create(path) for path in parents] + states)
        with_leader: set[TopicPartition] = set()
        for (tp, state), outcome in zip(chosen.items(), outcomes[len(parents) :], strict=True):
            if isinstance(outcome, StoreError):
                logger.error("Cannot write the state of %s: %s", tp, outcome)
                continue
            self._set_leadership(tp, Leadership(state, 0), batch, is_new=True)
            with_leader.add(tp)
        return with_leader

    async def _elect(
        self, partitions: list[TopicPartition], elect: ChangeState, batch: RequestBatch
    ) -> set[TopicPartition]:
        elected = await self._tree.change_states(partitions, elect)
        async for tp, leadership in over_turns(elected.items()):
            self._set_leadership(tp, leadership, batch)
        failed = [tp for tp in partitions if tp not in elected]
        if failed:
            logger.error("No live replica is eligible to lead %s", ", ".join(map(str, failed)))
        return set(elected)

    def _set_leadership(
        self, tp: TopicPartition, leadership: Leadership, batch: RequestBatch, *, is_new: bool = False
    ) -> None:
        self._context.leaderships[tp] = leadership
        self._context.partition_states[tp] = PartitionState.ONLINE
        batch.add_leader_and_isr(self._context.replicas_of(tp), tp, leadership, is_new=is_new)

    # ---- replicas

    async def move_replicas(self, replicas: Iterable[Replica], target: ReplicaState) -> None:
        """Move replicas to a state. A replica without such a transition is logged and keeps its
        state."""
        batch = self._new_batch()
        stopped: dict[int, list[TopicPartition]] = {}
        async for replica in over_turns(replicas):
            try:
                action = REPLICA_TRANSITIONS.action(replica, self._context.replica_state(replica), target)
            except IllegalTransition as error:
                logger.error("%s", error)
                continue
            if action is ReplicaAction.STOP:
                # An unreachable broker would receive it when it returns, in front of a LeaderAndIsr
                # that Apache Kafka ignores if the leader epoch has not changed.
                if replica.broker_id not in self._context.unreachable:
                    batch.add_stop_replica(replica.broker_id, replica.partition, delete=False)
                stopped.setdefault(replica.broker_id, []).append(replica.partition)
            elif self._change_replica(replica, action, batch):
                self._context.replica_states[replica] = target
        try:
            for broker_id, partitions in stopped.items():
                await self._leave_isr(broker_id, partitions, batch)
        finally:
            batch.send()

    def _change_replica(self, replica: Replica, action: ReplicaAction, batch: RequestBatch) -> bool:
        """Execute the action. Returns whether the replica's state changes to the target."""
        tp, broker_id = replica
        leadership = self._context.leaderships.get(tp)
        match action:
            case ReplicaAction.SEND_NEW if leadership is not None:
                if leadership.state.leader == broker_id:
                    logger.error("%s is already the leader and cannot be new", replica)
                    return False
                batch.add_leader_and_isr([broker_id], tp, leadership, is_new=True)
            case ReplicaAction.SEND if leadership is not None:
                batch.add_leader_and_isr([broker_id], tp, leadership)
            case ReplicaAction.JOIN:
                assignment = self._context.assignment(tp)
                if broker_id not in assignment.replicas:
                    self._context.set_assignment(tp, replace(assignment, replicas=(*assignment.replicas, broker_id)))
            case ReplicaAction.DELETE:
                batch.add_stop_replica(broker_id, tp, delete=True)
            case ReplicaAction.FORGET:
                self._context.set_assignment(tp, self._context.assignment(tp).without(broker_id))
                self._context.replica_states.pop(replica, None)
                return False
        return True

    async def _leave_isr(self, broker_id: int, partitions: list[TopicPartition], batch: RequestBatch) -> None:
        changed = await self._tree.change_states(
            partitions, lambda tp, state: election.without_replica(state, broker_id, self._context.epoch)
        )
        async for tp in over_turns(partitions):
            self._context.replica_states[Replica(tp, broker_id)] = ReplicaState.OFFLINE
            leadership = changed.get(tp)
            if tp.topic in self._context.topics_to_delete:
                continue
            if leadership is None:
                # Only UpdateMetadata is needed, for the offline replicas.
                batch.add_update_metadata(self._context.brokers, [tp])
            else:
                others = [b for b in self._context.replicas_of(tp) if b != broker_id]
                batch.add_leader_and_isr(others, tp, leadership)
