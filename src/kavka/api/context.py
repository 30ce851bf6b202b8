"""What a request handler is given: who asks, in which version, and the broker's services."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from kavka.api.fetch_session import FetchSessionCache
    from kavka.common.clock import Clock
    from kavka.common.metrics import Registry
    from kavka.controller.controller import Controller
    from kavka.controller.topics import Topics
    from kavka.coordinator.group.service import GroupCoordinator
    from kavka.coordinator.transaction.service import TransactionCoordinator
    from kavka.metadata.cluster import ProducerIds
    from kavka.metadata.dynamic_config import DynamicConfig
    from kavka.metadata.features import Features
    from kavka.metadata.store import MetadataStore
    from kavka.replication.metadata_cache import MetadataCache
    from kavka.replication.replica_manager import ReplicaManager
    from kavka.storage.log_manager import LogManager


class BrokerServices(Protocol):
    """The parts of a broker that handlers may use. `broker/app.py` makes the one instance."""

    broker_id: int
    cluster_id: str
    settings: Any
    clock: Clock
    metrics: Registry
    log_manager: LogManager
    replica_manager: ReplicaManager
    metadata_cache: MetadataCache
    controller: Controller
    topics: Topics
    store: MetadataStore
    configs: DynamicConfig
    producer_ids: ProducerIds
    fetch_sessions: FetchSessionCache
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    features: Features

    async def run_in_worker(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run what blocks in a worker thread; the loop goes on meanwhile."""
        ...


class RequestContext:
    """One request as its handler sees it. Valid until the answer is sent."""

    __slots__ = ("broker", "client_host", "client_id", "correlation_id", "listener", "principal", "version")

    def __init__(
        self,
        broker: BrokerServices,
        version: int,
        correlation_id: int,
        client_id: str | None,
        listener: str,
        client_host: str,
        principal: str,
    ) -> None:
        self.broker = broker
        self.version = version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.listener = listener
        self.client_host = client_host
        self.principal = principal
