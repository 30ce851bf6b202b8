"""Handles the controller's requests: LeaderAndIsr, StopReplica, UpdateMetadata.

The controller calls these methods directly if it is in this process. Otherwise the requests arrive
over the network. The epochs in a request fence a controller that was replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.metadata.dynamic_config import DynamicConfig
from kavka.protocol.messages.leader_and_isr import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
)
from kavka.protocol.messages.stop_replica import StopReplicaPartitionError, StopReplicaRequest, StopReplicaResponse
from kavka.protocol.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse
from kavka.replication.metadata_cache import BrokerInfo, Endpoint, MetadataCache, PartitionInfo, TopicUpdate
from kavka.replication.partition_state import LeaderAndIsr, PartitionOrder, ReplicaStop
from kavka.replication.replica_manager import ReplicaManager

UNKNOWN_EPOCH = -1


@dataclass(eq=False, repr=False)
class ControllerRequests:
    """Passes the controller's requests to the replica manager and the metadata cache. A request
    with an older epoch than the current registration (`broker_epoch`) is rejected."""

    _replicas: ReplicaManager
    _cache: MetadataCache
    _configs: DynamicConfig
    _broker_epoch: Callable[[], int]
    _on_topics_deleted: Callable[[Iterable[str]], Any]

    def _is_stale(self, request: Any) -> bool:
        """Whether the request is for an earlier registration. A higher epoch is not stale, because
        the controller can learn of a new registration before this broker does."""
        return bool(UNKNOWN_EPOCH < request.broker_epoch < self._broker_epoch())

    async def leader_and_isr(self, request: LeaderAndIsrRequest) -> LeaderAndIsrResponse:
        if self._is_stale(request):
            return LeaderAndIsrResponse(error_code=int(ErrorCode.STALE_BROKER_EPOCH))
        # A new log needs its topic's settings.
        await self._configs.load_topics(topic.topic_name for topic in request.topic_states)
        orders = [
            PartitionOrder(
                TopicPartition(topic.topic_name, state.partition_index), topic.topic_id, leader_and_isr(state)
            )
            for topic in request.topic_states
            for state in topic.partition_states
        ]
        try:
            codes = iter(await self._replicas.become_leader_or_follower(request.controller_epoch, orders))
        except KafkaError as error:
            return LeaderAndIsrResponse(error_code=int(error.code))
        return LeaderAndIsrResponse(
            topics=[
                LeaderAndIsrTopicError(
                    topic_id=topic.topic_id,
                    partition_errors=[
                        LeaderAndIsrPartitionError(
                            topic_name=topic.topic_name,
                            partition_index=state.partition_index,
                            error_code=int(next(codes)),
                        )
                        for state in topic.partition_states
                    ],
                )
                for topic in request.topic_states
            ]
        )

    async def stop_replicas(self, request: StopReplicaRequest) -> StopReplicaResponse:
        if self._is_stale(request):
            return StopReplicaResponse(error_code=int(ErrorCode.STALE_BROKER_EPOCH))
        stops = [
            ReplicaStop(
                TopicPartition(topic.topic_name, state.partition_index), state.leader_epoch, state.delete_partition
            )
            for topic in request.topic_states
            for state in topic.partition_states
        ]
        try:
            codes = await self._replicas.stop_replicas(request.controller_epoch, stops)
        except KafkaError as error:
            return StopReplicaResponse(error_code=int(error.code))
        return StopReplicaResponse(
            partition_errors=[
                StopReplicaPartitionError(topic_name=tp.topic, partition_index=tp.partition, error_code=int(code))
                for (tp, _, _), code in zip(stops, codes, strict=True)
            ]
        )

    def update_metadata(self, request: UpdateMetadataRequest) -> UpdateMetadataResponse:
        if self._is_stale(request):
            return UpdateMetadataResponse(error_code=int(ErrorCode.STALE_BROKER_EPOCH))
        if request.controller_epoch < self._replicas.controller_epoch:
            return UpdateMetadataResponse(error_code=int(ErrorCode.STALE_CONTROLLER_EPOCH))
        self._replicas.controller_epoch = request.controller_epoch
        brokers_before = self._cache.brokers.keys()
        deleted = update_cache(self._cache, request)
        if brokers_before - self._cache.brokers.keys():
            self._replicas.on_brokers_removed()
        for topic in deleted:
            self._configs.forget_topic(topic)
        self._on_topics_deleted(deleted)
        return UpdateMetadataResponse()


def leader_and_isr(state: LeaderAndIsrPartitionState) -> LeaderAndIsr:
    return LeaderAndIsr(
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        isr=frozenset(state.isr),
        replicas=tuple(state.replicas),
        partition_epoch=state.partition_epoch,
        adding_replicas=tuple(state.adding_replicas),
        is_new=state.is_new,
    )


def update_cache(cache: MetadataCache, request: UpdateMetadataRequest) -> list[str]:
    """Apply UpdateMetadata to the cache. Returns the names of the deleted topics."""
    brokers = [
        BrokerInfo(
            broker.id,
            broker.rack,
            {endpoint.listener: Endpoint(endpoint.host, endpoint.port) for endpoint in broker.endpoints},
        )
        for broker in request.live_brokers
    ]
    topics = [
        TopicUpdate(
            topic.topic_name,
            topic.topic_id,
            [
                PartitionInfo(
                    state.partition_index,
                    state.leader,
                    state.leader_epoch,
                    state.replicas,
                    state.isr,
                    state.offline_replicas,
                )
                for state in topic.partition_states
            ],
        )
        for topic in request.topic_states
    ]
    return cache.update(brokers, topics, request.controller_id)
