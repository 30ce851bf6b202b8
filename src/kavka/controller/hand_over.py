"""Hands over the partitions of a broker that is registered but about to stop, or unreachable.

The broker loses its leaderships and leaves every ISR, unless it is the last live member: then it
keeps both. Until its registration expires, the broker receives all requests but is not elected.
This state is only in the controller's memory. If another controller is elected meanwhile, the
broker repeats its request for a controlled shutdown, and the new controller finds out which brokers
are unreachable.
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

logger = logging.getLogger(__name__)

UNKNOWN_EPOCH = -1


class HandOvers:
    """Moves the leaderships of brokers that stop or have failed. Only the controller's events call
    it."""

    def __init__(self, term: Term) -> None:
        self._term = term
        self._context = term.context

    async def shut_down(self, broker_id: int, broker_epoch: int) -> tuple[list[TopicPartition], set[int]]:
        """Handle ControlledShutdown. Returns the result of `hand_over`. Raises KafkaError if the
        broker is not registered with this epoch."""
        context = self._context
        epoch = context.broker_epochs.get(broker_id)
        if epoch is None:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"Broker {broker_id} is not registered.")
        if UNKNOWN_EPOCH != broker_epoch < epoch:
            raise KafkaError(
                ErrorCode.STALE_BROKER_EPOCH, f"Broker {broker_id} has registered again with a newer epoch."
            )
        logger.info("Broker %d is shutting down", broker_id)
        context.shutting_down.add(broker_id)
        return await self.hand_over(broker_id)

    async def hand_over(self, broker_id: int) -> tuple[list[TopicPartition], set[int]]:
        """Elect other leaders and remove the broker, which is no longer live, from ISRs. Returns
        the partitions that no other replica can lead, and the ids of the new leaders."""
        context, machines = self._context, self._term.machines
        replicated = [tp for tp, _ in context.replicas_on([broker_id]) if self._has_other_replica(tp)]
        led_partitions = [tp for tp in replicated if context.leaderships[tp].state.leader == broker_id]
        followed_partitions = [tp for tp in replicated if context.leaderships[tp].state.leader != broker_id]
        elected = await machines.move_partitions(led_partitions, PartitionState.ONLINE, self._elect)
        await machines.move_replicas([Replica(tp, broker_id) for tp in followed_partitions], ReplicaState.OFFLINE)
        remaining = [tp for tp in led_partitions if context.leaderships[tp].state.leader == broker_id]
        return remaining, {context.leaderships[tp].state.leader for tp in elected}

    def _has_other_replica(self, tp: TopicPartition) -> bool:
        """Whether another broker has a replica and the topic is not being deleted."""
        context = self._context
        return (
            len(context.replicas_of(tp)) > 1 and tp in context.leaderships and tp.topic not in context.topics_to_delete
        )

    def _elect(self, tp: TopicPartition, state: PartitionStateNode) -> PartitionStateNode | None:
        context = self._context
        return election.hand_over(
            state,
            context.replicas_of(tp),
            context.online_brokers(tp),
            context.shutting_down | context.unreachable,
            controller_epoch=context.epoch,
        )
