"""Elections that somebody asks for: a request, an old tool's node, the clock, or a setting that allows for more."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.controller import election, events
from kavka.controller.context import Replica
from kavka.controller.partition_states import PartitionState
from kavka.metadata import paths
from kavka.metadata.paths import MalformedNode, PartitionStateNode
from kavka.metadata.store import NoNode

if TYPE_CHECKING:
    from kavka.controller.term import Term

log = logging.getLogger(__name__)

PREFERRED, UNCLEAN = 0, 1
# A new controller waits this long before it looks at the balance: brokers may still be coming.
FIRST_CHECK_S = 5.0

# Per partition: who leads it now, or why nobody was elected.
Elected = dict[TopicPartition, int | KafkaError]


class LeaderElections:
    def __init__(self, term: Term) -> None:
        self._term = term
        self._context = term.context

    async def elect(self, kind: int, partitions: Iterable[TopicPartition] | None) -> Elected:
        """ElectLeaders: of these partitions, or of all."""
        if kind not in (PREFERRED, UNCLEAN):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"There is no election of type {kind}.")
        context = self._context
        results: Elected = {}
        electable: list[TopicPartition] = []
        for tp in dict.fromkeys(context.all_partitions() if partitions is None else partitions):
            if not context.replicas_of(tp):
                results[tp] = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")
            elif tp.topic in context.topics_to_delete:
                results[tp] = KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic is being deleted.")
            elif not self._is_needed(kind, tp):
                results[tp] = KafkaError(
                    ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition."
                )
            else:
                electable.append(tp)
        rule = self._preferred if kind == PREFERRED else self._term.machines.offline_election(unclean=True)
        elected = await self._term.machines.partitions_to(electable, PartitionState.ONLINE, rule)
        for tp in electable:
            if tp in elected:
                results[tp] = context.leaderships[tp].state.leader
            elif kind == PREFERRED:
                results[tp] = KafkaError(
                    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
                    f"The preferred leader of {tp} is not alive, or not in sync.",
                )
            else:
                results[tp] = KafkaError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, f"No replica of {tp} is alive.")
        return results

    def _is_needed(self, kind: int, tp: TopicPartition) -> bool:
        leadership = self._context.leaderships.get(tp)
        if leadership is None:
            return True
        leader = leadership.state.leader
        if kind == PREFERRED:
            return leader != self._context.replicas_of(tp)[0]
        return not self._context.is_online(Replica(tp, leader))

    def _preferred(self, tp: TopicPartition, state: PartitionStateNode) -> PartitionStateNode | None:
        context = self._context
        return election.preferred(
            state, context.replicas_of(tp), context.online_brokers(tp), controller_epoch=context.epoch
        )

    # ---- the node of old tools

    async def asked_by_node(self) -> None:
        """/admin/preferred_replica_election: elect what it names, then remove it. A crash before that elects again."""
        term, store = self._term, self._term.tree.store
        path = paths.PREFERRED_REPLICA_ELECTION
        if await store.exists(path, term.watch(events.PreferredElection())) is None:
            return
        try:
            asked = paths.decode_partitions((await store.get(path))[0])
        except NoNode:
            return
        except MalformedNode as error:
            log.error("%s is removed: %s", path, error)
            asked = []
        for tp, result in (await self.elect(PREFERRED, asked)).items():
            if isinstance(result, KafkaError) and result.code != ErrorCode.ELECTION_NOT_NEEDED:
                log.warning("%s keeps its leader: %s", tp, result.message)
        await term.tree.delete_all([path])

    # ---- by itself

    async def rebalance(self) -> None:
        """Give back to brokers what they should lead, where they lead too little of it; then again after a while."""
        settings = self._term.settings
        try:
            if settings.auto_rebalance() and not self._context.reassigning:
                await self._rebalance(settings.imbalance_percent())
        finally:
            self._term.later(settings.imbalance_check_s(), events.AutoRebalance())

    async def _rebalance(self, allowed_percent: float) -> None:
        context = self._context
        of_broker: dict[int, list[TopicPartition]] = {}
        for tp in context.all_partitions():
            if tp.topic not in context.topics_to_delete and context.replicas_of(tp):
                of_broker.setdefault(context.replicas_of(tp)[0], []).append(tp)
        for broker_id, should_lead in sorted(of_broker.items()):
            elsewhere = [
                tp
                for tp in should_lead
                if (leadership := context.leaderships.get(tp)) is not None and leadership.state.leader != broker_id
            ]
            if len(elsewhere) * 100 <= allowed_percent * len(should_lead):
                continue
            possible = [tp for tp in elsewhere if self._preferred(tp, context.leaderships[tp].state) is not None]
            if possible:
                log.info("Broker %d gets back the lead of %d partitions", broker_id, len(possible))
                await self._term.machines.partitions_to(possible, PartitionState.ONLINE, self._preferred)

    async def unclean_enabled(self, topic: str | None) -> None:
        """Losing records may be allowed now, of one topic or of all: what has no leader may find one."""
        await self._term.machines.bring_online(
            self._context.partitions_in(PartitionState.OFFLINE)
            if topic is None
            else self._context.partitions_of([topic])
        )
