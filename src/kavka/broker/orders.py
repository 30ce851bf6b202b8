"""The controller's three orders, carried out: by a plain call when it is in this process, by a request when it is not.

While two brokers both take themselves for the controller, orders of both may come: the epochs in them say whose count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from kavka.common.errors import ErrorCode
from kavka.metadata.dynamic_config import DynamicConfig
from kavka.protocol.messages.leader_and_isr import LeaderAndIsrRequest, LeaderAndIsrResponse
from kavka.protocol.messages.stop_replica import StopReplicaRequest, StopReplicaResponse
from kavka.protocol.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse
from kavka.replication.metadata_cache import MetadataCache
from kavka.replication.replica_manager import ReplicaManager

UNKNOWN_EPOCH = -1


class Orders:
    """`broker_epoch` is that of this broker's registration: an order to an earlier life of it is not carried out."""

    def __init__(
        self,
        replica_manager: ReplicaManager,
        metadata_cache: MetadataCache,
        configs: DynamicConfig,
        broker_epoch: Callable[[], int],
        on_topics_gone: Callable[[Iterable[str]], Any],
    ) -> None:
        self._replicas = replica_manager
        self._cache = metadata_cache
        self._configs = configs
        self._broker_epoch = broker_epoch
        self._on_topics_gone = on_topics_gone

    def _is_stale(self, request: Any) -> bool:
        """An epoch above ours is fine: the controller can know of a new registration before this broker does."""
        return bool(UNKNOWN_EPOCH < request.broker_epoch < self._broker_epoch())

    async def lead_or_follow(self, request: LeaderAndIsrRequest) -> LeaderAndIsrResponse:
        if self._is_stale(request):
            return LeaderAndIsrResponse(error_code=int(ErrorCode.STALE_BROKER_EPOCH))
        # A log is made with its topic's own settings, so they have to be known first.
        await self._configs.load_topics(topic.topic_name for topic in request.topic_states)
        return await self._replicas.become_leader_or_follower(request)

    async def stop_replicas(self, request: StopReplicaRequest) -> StopReplicaResponse:
        if self._is_stale(request):
            return StopReplicaResponse(error_code=int(ErrorCode.STALE_BROKER_EPOCH))
        return await self._replicas.stop_replicas(request)

    def update_metadata(self, request: UpdateMetadataRequest) -> UpdateMetadataResponse:
        if self._is_stale(request):
            return UpdateMetadataResponse(error_code=int(ErrorCode.STALE_BROKER_EPOCH))
        if request.controller_epoch < self._replicas.controller_epoch:
            return UpdateMetadataResponse(error_code=int(ErrorCode.STALE_CONTROLLER_EPOCH))
        self._replicas.controller_epoch = request.controller_epoch
        before = self._cache.brokers.keys()
        gone = self._cache.update(request)
        if before - self._cache.brokers.keys():
            self._replicas.brokers_gone()
        for topic in gone:
            self._configs.forget_topic(topic)
        self._on_topics_gone(gone)
        return UpdateMetadataResponse()
