"""Reassignment of partitions to other brokers.

A reassignment is stored in the topic's node, so that it survives the controller. `replicas`
contains the target replicas first, then the replicas to remove. `adding` and `removing` list the
replicas that change.

    started      the node is written; the added replicas start to copy
    copied       all target replicas are in the ISR; one of them is elected, removed replicas are
                 deleted
    completed    the node has only the target replicas

A crash between two steps leaves the node unchanged, and the next controller repeats the step: it
elects leaders with a higher epoch and sends the deletions again. Cancelling a reassignment is a
reassignment to the original replicas.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.turns import over_turns
from kavka.common.types import TopicPartition
from kavka.controller import election, events
from kavka.controller.context import Replica
from kavka.controller.partition_states import PartitionState
from kavka.controller.replica_states import ReplicaState
from kavka.controller.tree import MAX_WRITE_ATTEMPTS
from kavka.metadata import paths
from kavka.metadata.paths import MalformedNode, PartitionStateNode, ReplicaAssignment, TopicNode
from kavka.metadata.store import Delete, NoNode, Op, SetData, StoreError

if TYPE_CHECKING:
    from kavka.controller.term import Term

logger = logging.getLogger(__name__)

Moves = dict[TopicPartition, ReplicaAssignment]


class Reassignments:
    """Starts, continues and cancels reassignments. Only the controller's events call it."""

    def __init__(self, term: Term) -> None:
        self._term = term
        self._context = term.context

    # ---- requests

    async def request(
        self, targets: Mapping[TopicPartition, Sequence[int] | None], *, same_factor: bool = False
    ) -> dict[TopicPartition, KafkaError | None]:
        """Handle AlterPartitionReassignments. The target None cancels a reassignment. Returns the
        error of each partition, or None."""
        results: dict[TopicPartition, KafkaError | None] = {}
        moves: Moves = {}
        async for tp, target in over_turns(targets.items()):
            try:
                moves[tp] = self._checked_assignment(tp, target, same_factor)
                results[tp] = None
            except KafkaError as error:
                results[tp] = error
        # This request replaces earlier ones in /admin/reassign_partitions, the znode of old tools.
        await self._remove_from_node(moves)
        return results | await self._begin(moves)

    def _checked_assignment(
        self, tp: TopicPartition, target: Sequence[int] | None, same_factor: bool
    ) -> ReplicaAssignment:
        context = self._context
        current = context.assignment(tp)
        if not current.replicas or tp.topic in context.topics_to_delete:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")
        if target is None:
            if not current.is_being_reassigned:
                raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, f"{tp} is not being reassigned.")
            target = current.origin
        elif not target:
            raise _invalid("A partition needs at least one replica.")
        elif len(set(target)) != len(target):
            raise _invalid(f"The replicas contain a broker twice: {list(target)}.")
        elif any(broker_id < 0 for broker_id in target):
            raise _invalid(f"The replicas contain a negative broker id: {list(target)}.")
        assignment = current.moving_to(target)
        dead = [broker_id for broker_id in assignment.adding if not context.is_live(broker_id)]
        if dead:
            raise _invalid(f"The replicas contain brokers that are not alive: {dead}.")
        if same_factor and len(target) != len(current.origin):
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"The replication factor of {tp} would change from {len(current.origin)} to {len(target)}.",
            )
        self._check_no_loss(tp, current, assignment)
        return assignment

    def _check_no_loss(self, tp: TopicPartition, current: ReplicaAssignment, assignment: ReplicaAssignment) -> None:
        """Raise KafkaError if every in-sync replica would be removed at once."""
        leadership = self._context.leaderships.get(tp)
        dropped = set(current.replicas) - set(assignment.replicas)
        if leadership is not None and dropped and set(leadership.state.isr) <= dropped:
            raise _invalid(f"All in-sync replicas of {tp} would be removed: {sorted(leadership.state.isr)}.")

    async def process_node(self) -> None:
        """Start the reassignments in /admin/reassign_partitions that are not in progress. Removes
        invalid reassignments from the node."""
        term, store = self._term, self._term.tree.store
        path = paths.REASSIGN_PARTITIONS
        if await store.exists(path, term.watch(events.ReassignmentNode())) is None:
            return
        try:
            targets = paths.decode_reassignment((await store.get(path))[0])
        except NoNode:
            return
        except MalformedNode as error:
            logger.error("Removing the malformed node %s: %s", path, error)
            await term.tree.delete_all([path])
            return
        moves: Moves = {}
        invalid: list[TopicPartition] = []
        for tp, target in targets.items():
            try:
                assignment = self._checked_assignment(tp, target, same_factor=False)
            except KafkaError as error:
                logger.warning("Cannot reassign %s: %s", tp, error.message)
                invalid.append(tp)
                continue
            if assignment != self._context.assignment(tp) or tp not in self._context.reassigning:
                moves[tp] = assignment
        invalid += (tp for tp, error in (await self._begin(moves)).items() if error is not None)
        await self._remove_from_node(invalid)

    async def _remove_from_node(self, partitions: Iterable[TopicPartition]) -> None:
        """Remove partitions from /admin/reassign_partitions. An empty node is deleted."""
        removed, path = set(partitions), paths.REASSIGN_PARTITIONS
        if not removed:
            return
        try:
            data, stat = await self._term.tree.store.get(path, self._term.watch(events.ReassignmentNode()))
            targets = paths.decode_reassignment(data)
        except (NoNode, MalformedNode):
            return
        remaining = {tp: target for tp, target in targets.items() if tp not in removed}
        if len(remaining) == len(targets):
            return
        op: Op = Delete(path, stat.version)
        if remaining:
            op = SetData(path, paths.encode_reassignment(remaining), stat.version)
        await self._term.tree.write([op])

    async def in_progress(self, partitions: Iterable[TopicPartition] | None) -> Moves:
        """Handle ListPartitionReassignments. None means all partitions."""
        moving = self._context.reassigning
        listed = sorted(moving) if partitions is None else [tp for tp in dict.fromkeys(partitions) if tp in moving]
        return {tp: self._context.assignment(tp) for tp in listed}

    # ---- execution

    async def resume(self, condition: Callable[[ReplicaAssignment], bool] = lambda assignment: True) -> None:
        """Continue the reassignments that satisfy `condition`: all at the start of a term, or those
        that wait for a broker."""
        moves = {tp: self._context.assignment(tp) for tp in sorted(self._context.reassigning)}
        await self._begin(
            {
                tp: assignment
                for tp, assignment in moves.items()
                if tp.topic not in self._context.topics_being_deleted and condition(assignment)
            }
        )

    async def on_isr_changed(self, partitions: Iterable[TopicPartition]) -> None:
        """Complete reassignments whose replicas have caught up."""
        moves = {tp: self._context.assignment(tp) for tp in partitions if tp in self._context.reassigning}
        await self._complete({tp: assignment for tp, assignment in moves.items() if self._is_copied(tp, assignment)})

    async def _begin(self, moves: Moves) -> dict[TopicPartition, KafkaError | None]:
        context = self._context
        previous = {tp: context.assignment(tp) for tp in moves}
        written = await self._write_assignments(
            {tp: assignment for tp, assignment in moves.items() if assignment != previous[tp]}
        )
        results: dict[TopicPartition, KafkaError | None] = {}
        removed_replicas: list[Replica] = []
        for tp, assignment in moves.items():
            if assignment != previous[tp] and tp not in written:
                results[tp] = KafkaError(
                    ErrorCode.UNKNOWN_SERVER_ERROR, f"The assignment of {tp} could not be written."
                )
                continue
            results[tp] = None
            context.set_assignment(tp, assignment)
            context.reassigning.add(tp)
            removed_replicas += (Replica(tp, b) for b in previous[tp].replicas if b not in assignment.replicas)
        started = {tp: assignment for tp, assignment in moves.items() if results[tp] is None}
        if removed_replicas:
            await self._move_leaders({r.partition: started[r.partition] for r in removed_replicas})
            await self._remove(removed_replicas)
        copied = {tp: assignment for tp, assignment in started.items() if self._is_copied(tp, assignment)}
        await self._start_copying({tp: assignment for tp, assignment in started.items() if tp not in copied})
        await self._complete(copied)
        return results

    def _is_copied(self, tp: TopicPartition, assignment: ReplicaAssignment) -> bool:
        if not assignment.is_being_reassigned:
            return True
        leadership = self._context.leaderships.get(tp)
        return leadership is not None and set(assignment.target) <= set(leadership.state.isr)

    async def _start_copying(self, moves: Moves) -> None:
        if not moves:
            return
        logger.info("Reassigning: %s", ", ".join(f"{tp} to {list(a.target)}" for tp, a in moves.items()))
        await self._send_with_next_epoch(moves)
        added = [Replica(tp, b) for tp, assignment in moves.items() for b in assignment.adding]
        await self._term.machines.move_replicas(
            [r for r in added if self._context.replica_state(r) is ReplicaState.NON_EXISTENT], ReplicaState.NEW
        )

    async def _send_with_next_epoch(self, moves: Moves) -> None:
        """Increment the leader epoch without an election, so that all replicas accept the new
        replica list."""
        context = self._context
        changed = await self._term.tree.change_states(
            moves,
            lambda tp, state: replace(state, leader_epoch=state.leader_epoch + 1, controller_epoch=context.epoch),
        )
        batch = self._term.new_batch()
        for tp, leadership in changed.items():
            batch.add_leader_and_isr(context.replicas_of(tp), tp, leadership)
        batch.send()

    async def _complete(self, moves: Moves) -> None:
        context, machines = self._context, self._term.machines
        if not moves:
            return
        added = [Replica(tp, b) for tp, assignment in moves.items() for b in assignment.adding]
        await machines.move_replicas(
            [r for r in added if context.replica_state(r) is ReplicaState.NEW], ReplicaState.ONLINE
        )
        targets = {tp: ReplicaAssignment(assignment.target) for tp, assignment in moves.items()}
        for tp, target in targets.items():
            context.set_assignment(tp, target)
        with_leader = await self._move_leaders(targets)
        for tp in targets.keys() - with_leader:
            # No target replica can lead now. The reassignment continues when a target replica is
            # online again.
            context.set_assignment(tp, moves[tp])
        completed = {tp: target for tp, target in targets.items() if tp in with_leader}
        await self._remove([Replica(tp, b) for tp in completed for b in moves[tp].removing])
        written = await self._write_assignments(completed)
        context.reassigning -= written
        await self._remove_from_node(written)
        logger.info("Reassigned: %s", ", ".join(map(str, sorted(written))))
        self._term.send_metadata_to_all(written)
        await self._term.deletions.resume_for({tp.topic for tp in written})

    async def _move_leaders(self, targets: Moves) -> set[TopicPartition]:
        """Elect leaders among the target replicas, unless the leader is one of them. Sends the
        replica lists to all replicas. Returns the partitions that have a leader."""
        context = self._context
        to_elect: list[TopicPartition] = []
        unchanged: Moves = {}
        for tp, assignment in targets.items():
            leadership = context.leaderships.get(tp)
            leader = leadership.state.leader if leadership is not None else None
            if leader is not None and leader in assignment.replicas and context.is_online(Replica(tp, leader)):
                unchanged[tp] = assignment
            else:
                to_elect.append(tp)
        await self._send_with_next_epoch(unchanged)
        return unchanged.keys() | await self._term.machines.move_partitions(
            to_elect, PartitionState.ONLINE, self._elect
        )

    def _elect(self, tp: TopicPartition, state: PartitionStateNode) -> PartitionStateNode | None:
        context = self._context
        return election.reassigned(
            state, context.replicas_of(tp), context.online_brokers(tp), controller_epoch=context.epoch
        )

    async def _remove(self, replicas: Sequence[Replica]) -> None:
        """Remove replicas from the ISR, stop and delete them. Does not wait for the responses,
        because a dead broker must not block the reassignment."""
        existing = [r for r in replicas if self._context.replica_state(r) is not ReplicaState.NON_EXISTENT]
        for state in (
            ReplicaState.OFFLINE,
            ReplicaState.DELETION_STARTED,
            ReplicaState.DELETION_SUCCESSFUL,
            ReplicaState.NON_EXISTENT,
        ):
            await self._term.machines.move_replicas(existing, state)

    async def _write_assignments(self, moves: Moves) -> set[TopicPartition]:
        """Write the assignments to the topics' nodes. Returns the partitions that were written."""
        by_topic: dict[str, Moves] = {}
        for tp, assignment in moves.items():
            by_topic.setdefault(tp.topic, {})[tp] = assignment
        written: set[TopicPartition] = set()
        for _ in range(MAX_WRITE_ATTEMPTS):
            names = [name for name, of_topic in by_topic.items() if not written >= of_topic.keys()]
            if not names:
                break
            ops: dict[str, SetData] = {}
            nodes = await self._term.tree.get_all([paths.topic(name) for name in names])
            for name, node in zip(names, nodes, strict=True):
                if node is None:
                    continue
                topic = TopicNode.decode(name, node[0])
                partitions = {**topic.partitions, **{tp.partition: a for tp, a in by_topic[name].items()}}
                data = TopicNode(self._context.topics[name].topic_id, partitions).encode()
                ops[name] = SetData(paths.topic(name), data, node[1].version)
            for name, outcome in zip(ops, await self._term.tree.write(ops.values()), strict=True):
                if isinstance(outcome, StoreError):
                    logger.warning("Cannot write the replicas of %s: %s", name, outcome)
                else:
                    written |= by_topic[name].keys()
        return written


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
