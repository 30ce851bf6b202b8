"""The context of a request: its client, its version, and the broker's services."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from kavka.api.fetch_session import FetchSessionCache
    from kavka.common.clock import Clock
    from kavka.common.errors import KafkaError
    from kavka.common.metrics import Registry
    from kavka.controller.controller import Controller
    from kavka.controller.topics import Topics
    from kavka.coordinator.group.service import GroupCoordinator
    from kavka.coordinator.transaction.service import TransactionCoordinator
    from kavka.metadata.acls import StoredAcls
    from kavka.metadata.delegation_tokens import DelegationTokens
    from kavka.metadata.dynamic_config import DynamicConfig
    from kavka.metadata.features import Features
    from kavka.metadata.scram_credentials import ScramCredentials
    from kavka.metadata.store import MetadataStore
    from kavka.protocol.messages.leader_and_isr import LeaderAndIsrRequest, LeaderAndIsrResponse
    from kavka.protocol.messages.stop_replica import StopReplicaRequest, StopReplicaResponse
    from kavka.protocol.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse
    from kavka.replication.metadata_cache import MetadataCache
    from kavka.replication.replica_manager import ReplicaManager
    from kavka.security.authorizer import Authorizer, ClientAuthorizer
    from kavka.security.quotas import ConnectionQuota
    from kavka.storage.log_manager import LogManager


class ControllerRequests(Protocol):
    """Applies the controller's requests. `broker/controller_requests.py` implements it."""

    async def leader_and_isr(self, request: LeaderAndIsrRequest) -> LeaderAndIsrResponse: ...

    async def stop_replicas(self, request: StopReplicaRequest) -> StopReplicaResponse: ...

    def update_metadata(self, request: UpdateMetadataRequest) -> UpdateMetadataResponse: ...


class TopicCreation(Protocol):
    """Creates topics on demand. `broker/topic_creation.py` implements it."""

    async def auto_create(self, names: Sequence[str], timeout_s: float) -> dict[str, KafkaError | None]: ...


class BrokerServices(Protocol):
    """The parts of a broker that handlers may use. `broker/app.py` implements it."""

    broker_id: int
    cluster_id: str
    in_cluster: bool
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
    fetch_sessions: FetchSessionCache
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    features: Features
    scram_credentials: ScramCredentials
    # None without `delegation.token.secret.key`.
    delegation_tokens: DelegationTokens | None
    # None without `authorizer.class.name`.
    authorizer: Authorizer | None
    acls: StoredAcls | None

    def now_ms(self) -> int:
        """Monotonic time for quotas."""

    @property
    def controller_requests(self) -> ControllerRequests: ...

    @property
    def topic_creation(self) -> TopicCreation: ...

    async def check_security(self, values: Mapping[str, Any]) -> None:
        """Raise ConfigError if the listeners could not use these values of all settings."""

    async def run_in_worker(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run a blocking function in a worker thread and return its result."""


@dataclass(slots=True, eq=False, repr=False)
class RequestContext:
    """The context of one request. Valid until the response is sent."""

    broker: BrokerServices
    version: int
    correlation_id: int
    client_id: str | None
    listener: str
    client_host: str
    principal: str
    # The quota of the connection. None for a request of this broker to itself.
    quota: ConnectionQuota | None = None
    # The decisions for this connection. None if the client may do everything: there is no
    # authorizer, or this broker sends the request to itself.
    authorizer: ClientAuthorizer | None = None
    api_name: str = ""
