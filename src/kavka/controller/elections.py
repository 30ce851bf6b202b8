"""Elections that a client, the znode of an old tool, a timer or a changed setting triggers."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.turns import over_turns
from kavka.common.types import TopicPartition
from kavka.controller import election, events
from kavka.controller.context import Replica
from kavka.controller.partition_states import PartitionState
from kavka.metadata import paths
from kavka.metadata.paths import MalformedNode, PartitionStateNode
from kavka.metadata.store import NoNode

if TYPE_CHECKING:
    from kavka.controller.term import Term

logger = logging.getLogger(__name__)

PREFERRED, UNCLEAN = 0, 1
# Delay before a new controller checks the leader balance: brokers may still be starting.
FIRST_CHECK_DELAY_S = 5.0

# The new leader of each partition, or the error.
ElectionResults = dict[TopicPartition, int | KafkaError]


class LeaderElections:
    """Elects preferred and unclean leaders. Only the controller's events call it."""

    def __init__(self, term: Term) -> None:
        self._term = term
        self._context = term.context

    async def elect(self, election_type: int, partitions: Iterable[TopicPartition] | None) -> ElectionResults:
        """Handle ElectLeaders for these partitions, or for all partitions (None). Raises
        INVALID_REQUEST for an unknown election type."""
        if election_type not in (PREFERRED, UNCLEAN):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown election type {election_type}.")
        context = self._context
        results: ElectionResults = {}
        electable: list[TopicPartition] = []
        async for tp in over_turns(dict.fromkeys(context.all_partitions() if partitions is None else partitions)):
            if not context.replicas_of(tp):
                results[tp] = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")
            elif tp.topic in context.topics_to_delete:
                results[tp] = KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic is being deleted.")
            elif not self._is_needed(election_type, tp):
                results[tp] = KafkaError(
                    ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition."
                )
            else:
                electable.append(tp)
        elect = self._preferred if election_type == PREFERRED else self._term.machines.offline_election(unclean=True)
        elected = await self._term.machines.move_partitions(electable, PartitionState.ONLINE, elect)
        for tp in electable:
            if tp in elected:
                results[tp] = context.leaderships[tp].state.leader
            elif election_type == PREFERRED:
                results[tp] = KafkaError(
                    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
                    f"The preferred leader of {tp} is not alive or not in sync.",
                )
            else:
                results[tp] = KafkaError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, f"No replica of {tp} is alive.")
        return results

    def _is_needed(self, election_type: int, tp: TopicPartition) -> bool:
        leadership = self._context.leaderships.get(tp)
        if leadership is None:
            return True
        leader = leadership.state.leader
        if election_type == PREFERRED:
            return leader != self._context.replicas_of(tp)[0]
        return not self._context.is_online(Replica(tp, leader))

    def _preferred(self, tp: TopicPartition, state: PartitionStateNode) -> PartitionStateNode | None:
        context = self._context
        return election.preferred(
            state, context.replicas_of(tp), context.online_brokers(tp), controller_epoch=context.epoch
        )

    # ---- the znode of old tools

    async def process_node(self) -> None:
        """Elect the preferred leaders of the partitions in /admin/preferred_replica_election, then
        remove the node. After a crash the next controller repeats the elections."""
        term, store = self._term, self._term.tree.store
        path = paths.PREFERRED_REPLICA_ELECTION
        if await store.exists(path, term.watch(events.PreferredElection())) is None:
            return
        try:
            partitions = paths.decode_partitions((await store.get(path))[0])
        except NoNode:
            return
        except MalformedNode as error:
            logger.error("Removing the malformed node %s: %s", path, error)
            partitions = []
        for tp, result in (await self.elect(PREFERRED, partitions)).items():
            if isinstance(result, KafkaError) and result.code != ErrorCode.ELECTION_NOT_NEEDED:
                logger.warning("%s keeps its leader: %s", tp, result.message)
        await term.tree.delete_all([path])

    # ---- automatic elections

    async def rebalance(self) -> None:
        """Move leaderships back to brokers that lead too few of their preferred partitions.
        Schedules the next check."""
        settings = self._term.settings
        try:
            if settings.auto_rebalance() and not self._context.reassigning:
                await self._rebalance(settings.imbalance_percent())
        finally:
            self._term.enqueue_after(settings.imbalance_check_s(), events.AutoRebalance())

    async def _rebalance(self, allowed_percent: float) -> None:
        context = self._context
        by_preferred_leader: dict[int, list[TopicPartition]] = {}
        for tp in context.all_partitions():
            if tp.topic not in context.topics_to_delete and context.replicas_of(tp):
                by_preferred_leader.setdefault(context.replicas_of(tp)[0], []).append(tp)
        for broker_id, partitions in sorted(by_preferred_leader.items()):
            imbalanced = [
                tp
                for tp in partitions
                if (leadership := context.leaderships.get(tp)) is not None and leadership.state.leader != broker_id
            ]
            if len(imbalanced) * 100 <= allowed_percent * len(partitions):
                continue
            electable = [tp for tp in imbalanced if self._preferred(tp, context.leaderships[tp].state) is not None]
            if electable:
                logger.info("Moving %d leaderships back to broker %d", len(electable), broker_id)
                await self._term.machines.move_partitions(electable, PartitionState.ONLINE, self._preferred)

    async def on_unclean_enabled(self, topic: str | None) -> None:
        """Elect leaders for leaderless partitions of one topic, or of all topics (None), after
        unclean elections may have been enabled."""
        context = self._context
        partitions = context.partitions_in(PartitionState.OFFLINE) if topic is None else context.partitions_of([topic])
        await self._term.machines.bring_online(partitions)
