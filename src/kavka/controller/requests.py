"""The requests of one event to the brokers: at most one of each type per broker.

LeaderAndIsr is sent before UpdateMetadata, so that a broker leads a partition before clients send
requests to it. StopReplica is sent last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from kavka.common.types import NO_LEADER_EPOCH, TopicPartition
from kavka.controller.channel import ControlRequest
from kavka.controller.context import ControllerContext, Leadership, Replica
from kavka.metadata.paths import ReplicaAssignment
from kavka.protocol.messages.leader_and_isr import (
    LeaderAndIsrLiveLeader,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from kavka.protocol.messages.stop_replica import StopReplicaPartitionState, StopReplicaRequest, StopReplicaTopicState
from kavka.protocol.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from kavka.replication.metadata_cache import LEADER_DURING_DELETION

EPOCH_DURING_DELETION = -2

# Kafka's ids of the security protocols.
SECURITY_PROTOCOLS = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}

Send = Callable[[int, ControlRequest], Any]
State = TypeVar("State")


class RequestBatch:
    """Collects the requests of one event. `send` sends them and clears the batch."""

    def __init__(self, controller_id: int, context: ControllerContext, send: Send) -> None:
        self._controller_id = controller_id
        self._context = context
        self._send = send
        self._leader_and_isr: dict[int, dict[TopicPartition, LeaderAndIsrPartitionState]] = {}
        self._stop_replica: dict[int, dict[TopicPartition, StopReplicaPartitionState]] = {}
        self._metadata_brokers: set[int] = set()
        self._metadata_partitions: dict[TopicPartition, UpdateMetadataPartitionState] = {}
        self._metadata_sources: dict[TopicPartition, tuple[Leadership, ReplicaAssignment]] = {}

    def add_leader_and_isr(
        self, broker_ids: Iterable[int], tp: TopicPartition, leadership: Leadership, *, is_new: bool = False
    ) -> None:
        """Add LeaderAndIsr of `tp` for these brokers, and UpdateMetadata for all brokers."""
        assignment = self._context.assignment(tp)
        state = leadership.state
        for broker_id in broker_ids:
            broker_states = self._leader_and_isr.setdefault(broker_id, {})
            previous = broker_states.get(tp)
            broker_states[tp] = LeaderAndIsrPartitionState(
                topic_name=tp.topic,
                partition_index=tp.partition,
                controller_epoch=state.controller_epoch,
                leader=state.leader,
                leader_epoch=state.leader_epoch,
                isr=list(state.isr),
                partition_epoch=leadership.partition_epoch,
                replicas=list(assignment.replicas),
                adding_replicas=list(assignment.adding),
                removing_replicas=list(assignment.removing),
                is_new=is_new or (previous is not None and previous.is_new),
                leader_recovery_state=state.leader_recovery_state,
            )
        self.add_update_metadata(self._context.brokers, [tp])

    def add_update_metadata(self, broker_ids: Iterable[int], partitions: Iterable[TopicPartition]) -> None:
        """Add UpdateMetadata with all live brokers and the states of `partitions`. Partitions
        without a state node are omitted."""
        self._metadata_brokers.update(broker_ids)
        for tp in partitions:
            leadership = self._context.leaderships.get(tp)
            if leadership is None:
                continue
            # The same state is added once per replica.
            source = (leadership, self._context.assignment(tp))
            if self._metadata_sources.get(tp) == source:
                continue
            self._metadata_sources[tp] = source
            state = leadership.state
            is_being_deleted = tp.topic in self._context.topics_to_delete
            replicas = self._context.replicas_of(tp)
            self._metadata_partitions[tp] = UpdateMetadataPartitionState(
                topic_name=tp.topic,
                partition_index=tp.partition,
                controller_epoch=state.controller_epoch,
                leader=LEADER_DURING_DELETION if is_being_deleted else state.leader,
                leader_epoch=state.leader_epoch,
                isr=list(state.isr),
                zk_version=leadership.partition_epoch,
                replicas=list(replicas),
                offline_replicas=[b for b in replicas if not self._context.is_online(Replica(tp, b))],
            )

    def add_stop_replica(self, broker_id: int, tp: TopicPartition, *, delete: bool) -> None:
        """Add StopReplica of `tp` for the broker. With `delete`, the broker also deletes the
        log."""
        leadership = self._context.leaderships.get(tp)
        if tp.topic in self._context.topics_to_delete:
            leader_epoch = EPOCH_DURING_DELETION
        else:
            leader_epoch = leadership.state.leader_epoch if leadership is not None else NO_LEADER_EPOCH
        broker_states = self._stop_replica.setdefault(broker_id, {})
        previous = broker_states.get(tp)
        broker_states[tp] = StopReplicaPartitionState(
            partition_index=tp.partition,
            leader_epoch=leader_epoch,
            delete_partition=delete or (previous is not None and previous.delete_partition),
        )

    def send(self) -> None:
        """Send all requests and clear the batch."""
        for broker_id, states in self._leader_and_isr.items():
            self._send_leader_and_isr(broker_id, states)
        self._send_update_metadata()
        for broker_id, stops in self._stop_replica.items():
            self._send_stop_replica(broker_id, stops)
        self._leader_and_isr, self._stop_replica = {}, {}
        self._metadata_brokers, self._metadata_partitions, self._metadata_sources = set(), {}, {}

    def _send_leader_and_isr(self, broker_id: int, states: dict[TopicPartition, LeaderAndIsrPartitionState]) -> None:
        if broker_id not in self._context.brokers:
            return
        leaders = sorted({state.leader for state in states.values()} & self._context.brokers.keys())
        request = LeaderAndIsrRequest(
            controller_id=self._controller_id,
            controller_epoch=self._context.epoch,
            broker_epoch=self._context.broker_epochs[broker_id],
            topic_states=[
                LeaderAndIsrTopicState(
                    topic_name=name, topic_id=self._context.topics[name].topic_id, partition_states=topic_states
                )
                for name, topic_states in _by_topic(states).items()
            ],
            live_leaders=[self._live_leader(leader) for leader in leaders],
        )
        self._send(broker_id, request)

    def _live_leader(self, broker_id: int) -> LeaderAndIsrLiveLeader:
        endpoint = self._context.brokers[broker_id].end_points[0]
        return LeaderAndIsrLiveLeader(broker_id=broker_id, host_name=endpoint.host, port=endpoint.port)

    def _send_update_metadata(self) -> None:
        topics = [
            UpdateMetadataTopicState(
                topic_name=name, topic_id=self._context.topics[name].topic_id, partition_states=topic_states
            )
            for name, topic_states in _by_topic(self._metadata_partitions).items()
        ]
        brokers = [
            UpdateMetadataBroker(
                id=broker.id,
                rack=broker.rack,
                endpoints=[
                    UpdateMetadataEndpoint(
                        listener=endpoint.listener,
                        host=endpoint.host,
                        port=endpoint.port,
                        security_protocol=SECURITY_PROTOCOLS.get(endpoint.security_protocol, 0),
                    )
                    for endpoint in broker.end_points
                ],
            )
            for broker in self._context.brokers.values()
        ]
        for broker_id in self._metadata_brokers & self._context.brokers.keys():
            request = UpdateMetadataRequest(
                controller_id=self._controller_id,
                controller_epoch=self._context.epoch,
                broker_epoch=self._context.broker_epochs[broker_id],
                topic_states=topics,
                live_brokers=brokers,
            )
            self._send(broker_id, request)

    def _send_stop_replica(self, broker_id: int, stops: dict[TopicPartition, StopReplicaPartitionState]) -> None:
        if broker_id not in self._context.brokers:
            return
        request = StopReplicaRequest(
            controller_id=self._controller_id,
            controller_epoch=self._context.epoch,
            broker_epoch=self._context.broker_epochs[broker_id],
            topic_states=[
                StopReplicaTopicState(topic_name=name, partition_states=topic_states)
                for name, topic_states in _by_topic(stops).items()
            ],
        )
        self._send(broker_id, request)


def _by_topic(states: Mapping[TopicPartition, State]) -> dict[str, list[State]]:
    by_topic: dict[str, list[State]] = {}
    for tp, state in states.items():
        by_topic.setdefault(tp.topic, []).append(state)
    return by_topic
