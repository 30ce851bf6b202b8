"""A broker that is about to stop hands over first: what it leads gets other leaders, and it leaves every ISR.

Until its registration is gone it counts as shutting down: it is told everything, and elected for nothing. That is known
to this controller only. Should another be elected meanwhile, the broker's request, which it repeats, goes to that one.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.controller import election
from kavka.controller.context import Replica
from kavka.controller.partition_states import PartitionState
from kavka.controller.replica_states import ReplicaState
from kavka.metadata.paths import PartitionStateNode

if TYPE_CHECKING:
    from kavka.controller.term import Term

log = logging.getLogger(__name__)

UNKNOWN_EPOCH = -1


class ControlledShutdowns:
    def __init__(self, term: Term) -> None:
        self._term = term
        self._context = term.context

    async def hand_over(self, broker_id: int, broker_epoch: int) -> tuple[list[TopicPartition], set[int]]:
        """Returns what the broker still leads, because nobody else can; and who leads instead of it now."""
        context, machines = self._context, self._term.machines
        epoch = context.broker_epochs.get(broker_id)
        if epoch is None:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"Broker {broker_id} is not signed in.")
        if UNKNOWN_EPOCH != broker_epoch < epoch:
            raise KafkaError(ErrorCode.STALE_BROKER_EPOCH, f"Broker {broker_id} has signed in again since.")
        log.info("Broker %d is shutting down", broker_id)
        context.shutting_down.add(broker_id)
        held = [tp for tp, _ in context.replicas_on([broker_id]) if self._can_go_on(tp)]
        led = [tp for tp in held if context.leaderships[tp].state.leader == broker_id]
        followed = [tp for tp in held if context.leaderships[tp].state.leader != broker_id]
        elected = await machines.partitions_to(led, PartitionState.ONLINE, self._elect)
        await machines.replicas_to([Replica(tp, broker_id) for tp in followed], ReplicaState.OFFLINE)
        remaining = [tp for tp in led if context.leaderships[tp].state.leader == broker_id]
        return remaining, {context.leaderships[tp].state.leader for tp in elected}

    def _can_go_on(self, tp: TopicPartition) -> bool:
        """Somebody else holds it too. With one replica there is nothing to hand over."""
        context = self._context
        return (
            len(context.replicas_of(tp)) > 1 and tp in context.leaderships and tp.topic not in context.topics_to_delete
        )

    def _elect(self, tp: TopicPartition, state: PartitionStateNode) -> PartitionStateNode | None:
        context = self._context
        return election.controlled_shutdown(
            state,
            context.replicas_of(tp),
            context.online_brokers(tp),
            context.shutting_down,
            controller_epoch=context.epoch,
        )
