"""ISR changes: by AlterPartition, or by old brokers that write the state nodes themselves.

The controller checks a leader's request, writes the new ISR to the state node, and sends it to all
brokers with UpdateMetadata. The leader gets the new ISR in the response. The leader epoch does not
change.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.controller import events
from kavka.controller.context import Leadership
from kavka.metadata import paths
from kavka.metadata.paths import RECOVERED, RECOVERING, MalformedNode, PartitionStateNode
from kavka.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    AlterPartitionResponseTopicData,
)

if TYPE_CHECKING:
    from kavka.controller.term import Term

logger = logging.getLogger(__name__)

ANY_EPOCH = -1
# From this AlterPartition version on, topics have ids, and an ineligible replica has a separate
# error code.
MIN_TOPIC_ID_VERSION = 2
MIN_BROKER_EPOCH_VERSION = 3


class IsrChanges:
    """Applies ISR changes to the tree and the context. Only the controller's events call it."""

    def __init__(self, term: Term) -> None:
        self._term = term
        self._context = term.context

    async def alter(self, request: AlterPartitionRequest, api_version: int) -> AlterPartitionResponse:
        """Handle AlterPartition. Raises KafkaError if the broker epoch is stale."""
        context = self._context
        if context.broker_epochs.get(request.broker_id) != request.broker_epoch:
            raise KafkaError(
                ErrorCode.STALE_BROKER_EPOCH, f"Broker {request.broker_id} is not registered with this epoch."
            )
        changes: dict[TopicPartition, PartitionStateNode] = {}
        results: dict[TopicPartition, AlterPartitionResponsePartitionData] = {}
        response = AlterPartitionResponse()
        for topic in request.topics:
            topic_result = AlterPartitionResponseTopicData(topic_name=topic.topic_name, topic_id=topic.topic_id)
            response.topics.append(topic_result)
            name = context.topic_names.get(topic.topic_id) if api_version >= MIN_TOPIC_ID_VERSION else topic.topic_name
            for requested_partition in topic.partitions:
                partition = AlterPartitionResponsePartitionData(partition_index=requested_partition.partition_index)
                topic_result.partitions.append(partition)
                if name is None:
                    partition.error_code = int(ErrorCode.UNKNOWN_TOPIC_ID)
                    continue
                tp = TopicPartition(name, requested_partition.partition_index)
                leadership = context.leaderships.get(tp)
                if leadership is None:
                    partition.error_code = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                    continue
                state = self._requested_state(requested_partition, api_version, leadership)
                code = self._check(tp, request.broker_id, requested_partition, state, api_version, leadership)
                if code is None:
                    _fill_result(partition, leadership)
                elif code is ErrorCode.NONE:
                    changes[tp], results[tp] = state, partition
                else:
                    partition.error_code = int(code)
        await self._write(changes, results)
        return response

    def _requested_state(
        self, requested_partition: AlterPartitionRequestPartitionData, api_version: int, current: Leadership
    ) -> PartitionStateNode:
        isr = (
            [b.broker_id for b in requested_partition.new_isr_with_epochs]
            if api_version >= MIN_BROKER_EPOCH_VERSION
            else requested_partition.new_isr
        )
        return PartitionStateNode(
            current.state.leader,
            requested_partition.leader_epoch,
            tuple(isr),
            self._context.epoch,
            # Version 0 has no recovery state.
            requested_partition.leader_recovery_state if api_version >= 1 else RECOVERED,
        )

    def _check(
        self,
        tp: TopicPartition,
        broker_id: int,
        requested_partition: AlterPartitionRequestPartitionData,
        state: PartitionStateNode,
        api_version: int,
        current: Leadership,
    ) -> ErrorCode | None:
        """Returns NONE if the change can be written, None if there is no change, else the error."""
        current_state, context = current.state, self._context
        if (
            requested_partition.leader_epoch > current_state.leader_epoch
            or requested_partition.partition_epoch > current.partition_epoch
        ):
            # The leader has a newer state than this controller, so there is a newer controller.
            return ErrorCode.NOT_CONTROLLER
        if requested_partition.leader_epoch < current_state.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if broker_id != current_state.leader:
            return ErrorCode.INVALID_REQUEST
        if (
            set(state.isr) == set(current_state.isr)
            and state.leader_recovery_state == current_state.leader_recovery_state
        ):
            return None
        if requested_partition.partition_epoch < current.partition_epoch:
            return ErrorCode.INVALID_UPDATE_VERSION
        replicas = context.replicas_of(tp)
        if len(set(state.isr)) != len(state.isr) or broker_id not in state.isr or not set(state.isr) <= set(replicas):
            return ErrorCode.INVALID_REQUEST
        if state.leader_recovery_state not in (RECOVERED, RECOVERING):
            return ErrorCode.INVALID_REQUEST
        if state.leader_recovery_state == RECOVERING and (
            len(state.isr) > 1 or current_state.leader_recovery_state == RECOVERED
        ):
            return ErrorCode.INVALID_REQUEST
        members_with_epochs = requested_partition.new_isr_with_epochs if api_version >= MIN_BROKER_EPOCH_VERSION else []
        epochs = {b.broker_id: b.broker_epoch for b in members_with_epochs}
        for member in state.isr:
            epoch = epochs.get(member, ANY_EPOCH)
            # A leader that is shutting down may stay in the ISR: if it is the last member, only a
            # replica that it adds can replace it.
            is_eligible = context.is_live(member) or (member in current_state.isr and member in context.brokers)
            if not is_eligible or epoch not in (ANY_EPOCH, context.broker_epochs[member]):
                return (
                    ErrorCode.INELIGIBLE_REPLICA
                    if api_version >= MIN_TOPIC_ID_VERSION
                    else ErrorCode.OPERATION_NOT_ATTEMPTED
                )
        return ErrorCode.NONE

    async def _write(
        self,
        changes: dict[TopicPartition, PartitionStateNode],
        results: dict[TopicPartition, AlterPartitionResponsePartitionData],
    ) -> None:
        if not changes:
            return
        written = await self._term.tree.replace_states(changes)
        for tp, partition in results.items():
            leadership = written.get(tp)
            if leadership is None:
                partition.error_code = int(ErrorCode.INVALID_UPDATE_VERSION)
            else:
                _fill_result(partition, leadership)
        self._term.send_metadata_to_all(written)
        self._term.put(events.IsrChanged(self._term, tuple(written)))

    # ---- brokers that write the state nodes themselves

    async def process_notifications(self) -> None:
        """Read the state nodes that old brokers have changed."""
        term, tree = self._term, self._term.tree
        names = await tree.store.children(paths.ISR_CHANGES, term.watch(events.IsrNotification()))
        nodes = [f"{paths.ISR_CHANGES}/{name}" for name in names]
        changed: dict[TopicPartition, None] = {}
        for path, node in zip(nodes, await tree.get_all(nodes), strict=True):
            try:
                if node is not None:
                    changed |= dict.fromkeys(paths.decode_partitions(node[0]))
            except MalformedNode as error:
                logger.warning("Ignoring %s: %s", path, error)
        existing = [tp for tp in changed if tp in self._context.leaderships]
        if existing:
            await tree.refresh_states(existing)
            term.send_metadata_to_all(existing)
            await term.reassignments.on_isr_changed(existing)
        await tree.delete_all(nodes)


def _fill_result(partition: AlterPartitionResponsePartitionData, leadership: Leadership) -> None:
    state = leadership.state
    partition.leader_id = state.leader
    partition.leader_epoch = state.leader_epoch
    partition.isr = list(state.isr)
    partition.leader_recovery_state = state.leader_recovery_state
    partition.partition_epoch = leadership.partition_epoch
