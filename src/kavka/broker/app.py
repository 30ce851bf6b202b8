"""Startup and shutdown of a broker: creates its parts and connects them.

Startup locks the log directories, opens the metadata store, reads the configuration, loads the
logs, binds the ports, registers the broker, waits for the controller to bring the partitions
online, and accepts connections. Shutdown runs in the opposite order and marks the log directories
as clean. After a kill, the next startup recovers the logs.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import resource
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import isawaitable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kavka.api.context import RequestContext
from kavka.api.fetch_session import FetchSessionCache
from kavka.broker.controller_link import ControllerLink
from kavka.broker.controller_requests import ControllerRequests
from kavka.broker.failure_detection import ControllerFailures
from kavka.broker.garbage import collect_garbage, pause_collections
from kavka.broker.gauges import add_controller_gauges, add_gauges
from kavka.broker.listener_settings import warn_if_open
from kavka.broker.membership import Membership
from kavka.broker.metrics_listener import MetricsListener
from kavka.broker.quota_updates import QuotaUpdates
from kavka.broker.schedule import Schedule
from kavka.broker.settings import Listener, Settings
from kavka.broker.topic_creation import TopicCreation
from kavka.broker.transaction_channel import RemoteTransactions
from kavka.broker.watchdog import Watchdog
from kavka.broker.workers import Workers
from kavka.common.broker_config_security import parse_principals
from kavka.common.clock import Clock, SystemClock
from kavka.common.config import ConfigError
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.metrics import Registry
from kavka.common.types import TopicPartition
from kavka.controller.channel import BrokerChannel, LocalChannel
from kavka.controller.controller import Controller
from kavka.controller.remote_channel import RemoteChannel
from kavka.controller.term import ControllerSettings
from kavka.controller.topics import Topics
from kavka.coordinator.group.service import GroupCoordinator
from kavka.coordinator.transaction.service import TransactionCoordinator
from kavka.metadata.acls import StoredAcls
from kavka.metadata.cluster import (
    ProducerIds,
    announce_log_dir_failure,
    create_or_get_cluster_id,
    create_top_level_paths,
    next_broker_id,
)
from kavka.metadata.delegation_tokens import DelegationTokens
from kavka.metadata.dynamic_config import DynamicConfig
from kavka.metadata.embedded import EmbeddedStore
from kavka.metadata.features import TRANSACTION_VERSION, Features
from kavka.metadata.paths import BrokerRegistration, EndPoint
from kavka.metadata.scram_credentials import ScramCredentials
from kavka.metadata.store import MetadataStore
from kavka.network.server import Server
from kavka.protocol.messages.controlled_shutdown import ControlledShutdownRequest
from kavka.protocol.primitives import TopMessage
from kavka.replication.isr_changes import IsrChanges
from kavka.replication.metadata_cache import MetadataCache
from kavka.replication.peers import Peers
from kavka.replication.replica_manager import ReplicaManager
from kavka.replication.settings import ReplicationSettings
from kavka.replication.topic_metrics import TopicMetrics
from kavka.security.authorizer import Authorizer
from kavka.security.credentials import NewUser
from kavka.storage.log_dir import LogDir, LogDirError
from kavka.storage.log_manager import LogManager
from kavka.storage.settings import StorageSettings

if TYPE_CHECKING:
    from kavka.broker.security import BrokerSecurity
    from kavka.security.client_security import ClientSecurity

logger = logging.getLogger(__name__)
# Progress of long operations. A terminal program can show the messages as one changing line.
progress_log = logging.getLogger("kavka.progress")

METADATA_FILE = "metadata.db"
# How long a joining broker waits for the controller's first metadata before it reports ready.
JOIN_TIMEOUT_S = 30.0
CONTROLLED_SHUTDOWN_TIMEOUT_S = 10.0
# The eviction age of fetch sessions, as in Kafka.
MIN_SESSION_IDLE_S = 120.0
Ready = Callable[[Sequence[Listener]], None]


class Broker:
    """Owns all parts of one broker on the running event loop. Call `start` once, then `stop`.
    Request handlers use the broker as `BrokerServices`."""

    def __init__(self, settings: Settings, clock: Clock | None = None, new_users: Sequence[NewUser] = ()) -> None:
        """`new_users` are created at the start if they do not exist."""
        self.settings = settings
        self._new_users = new_users
        self.clock: Clock = clock or SystemClock()
        self.broker_id: int = settings.broker_id
        self.in_cluster = settings.in_cluster
        self.store: MetadataStore
        self.cluster_id = ""
        self.metrics = Registry()
        self.metadata_cache = MetadataCache()
        self.features = Features()
        self.workers = Workers(_worker_threads(settings))
        self.run_in_worker = self.workers.run
        max_sessions = settings.max_incremental_fetch_session_cache_slots
        self.fetch_sessions = FetchSessionCache(max_sessions, MIN_SESSION_IDLE_S, self.clock.monotonic)
        self.log_manager = LogManager(
            settings.log_dirs,
            lambda topic: self.configs.log_config(topic),
            StorageSettings.from_values(settings.configs.values),
            self.clock,
            on_dir_failure=self._on_dir_failure,
            on_moved=lambda partition, moved: self.replica_manager.on_moved(partition, moved),
        )
        # None without `delegation.token.secret.key`.
        self.delegation_tokens: DelegationTokens | None = None
        # None if all listeners have the protocol PLAINTEXT.
        self.security: BrokerSecurity | None = None
        self.authorizer: Authorizer | None = None
        self.acls: StoredAcls | None = None
        self.listeners: list[Listener] = []
        # Set when all log directories have failed.
        self.all_dirs_failed = asyncio.Event()
        self._announcements: set[asyncio.Future[None]] = set()
        self._closing = contextlib.AsyncExitStack()

    def now_ms(self) -> int:
        return int(self.clock.monotonic() * 1000)

    async def start(self) -> None:
        """Start all parts. A failed or cancelled start releases all threads, locks and ports."""
        try:
            await self._start()
        except BaseException:
            await self._closing.aclose()
            raise

    async def stop(self) -> None:
        await self._closing.aclose()

    async def _start(self) -> None:
        """The function is long, so that the order of the start is in one place."""
        settings = self.settings
        closing = self._closing
        closing.callback(self.workers.close)
        await self._open_metadata()
        self.replica_manager = ReplicaManager(
            self.broker_id,
            self.log_manager,
            self.metadata_cache,
            self.workers.post,
            TopicMetrics(self.metrics),
            ReplicationSettings.from_values(settings.configs.values),
        )
        self.configs = DynamicConfig(self.store, self.broker_id, settings, self.clock)
        self.quotas = QuotaUpdates(self.configs.entities, settings, self.run_in_worker)
        await self.configs.start()
        closing.push_async_callback(self.configs.stop)
        self.log_manager.update_settings(StorageSettings.from_values(settings.configs.values))
        self.scram_credentials = ScramCredentials(self.configs)
        for user in self._new_users:
            await self.scram_credentials.create(user)
        await self._start_security()
        await self._start_authorizer()
        await self._load_logs()
        closing.push_async_callback(self.run_in_worker, self.log_manager.shutdown)

        self.server = Server(self)
        closing.callback(self.server.close)
        self.quotas.attach(self.server)
        for listener in settings.listeners:
            with _bind_errors_of("listeners", str(listener)):
                security = None if self.security is None else self.security.listeners[listener.name]
                port = self.server.listen(listener.name, listener.host, listener.port, security)
            self.listeners.append(listener._replace(port=port))
        self.configs.on_topic.append(self._on_topic_changed)
        self.configs.on_broker.append(self._on_settings_changed)
        self._create_control_plane()
        watchdog = Watchdog(self.metrics)
        watchdog.start()
        closing.callback(watchdog.stop)
        if self.in_cluster:
            self._start_replication()
        self._start_coordinators()
        await self.membership.register()
        self._watch_session()
        self.controller.start()
        closing.push_async_callback(self.controller.stop)
        if self.in_cluster:
            await self._join()
        else:
            await self.controller.wait_until_idle()

        schedule = Schedule(self.log_manager.jobs(), self.workers)
        schedule.start()
        closing.push_async_callback(schedule.stop)
        closing.callback(self.log_manager.stop_jobs)
        add_gauges(self.metrics, self.replica_manager, self.log_manager)
        add_controller_gauges(self.metrics, self.controller)
        if settings.metrics_listener is not None:
            with _bind_errors_of("metrics.listener", settings["metrics.listener"]):
                metrics = MetricsListener(*settings.metrics_listener, self.metrics)
            closing.callback(metrics.close)
        if not self.in_cluster:
            self._start_accepting()

    async def _join(self) -> None:
        """Accept connections, because the controller may be another broker, and wait for its first
        UpdateMetadata."""
        self._start_accepting()
        try:
            await asyncio.wait_for(self.metadata_cache.initialized.wait(), JOIN_TIMEOUT_S)
        except TimeoutError:
            logger.warning("The controller sent no metadata within %g s; starting without it", JOIN_TIMEOUT_S)

    def _start_accepting(self) -> None:
        self.server.start()
        self._closing.push_async_callback(self.server.stop)
        if self.in_cluster:
            self._closing.push_async_callback(self._controlled_shutdown)

    def _create_control_plane(self) -> None:
        """Create the registration, the controller, and the channels between the brokers."""
        settings, closing = self.settings, self._closing
        self.producer_ids = ProducerIds(self.store, self.broker_id)
        self.membership = Membership(
            self.store,
            self.broker_id,
            self._registration,
            self.features,
            self.log_manager.online_dirs[0].path,
            2 * settings.zookeeper_session_timeout_ms / 1000,
        )
        closing.push_async_callback(self.membership.close)
        connect_s = settings.socket_connection_setup_timeout_ms / 1000
        security = self._inter_broker_security
        self.peers = Peers(self.broker_id, self._address, connect_timeout_s=connect_s, security=security)
        self._controller_peers = Peers(
            self.broker_id, self._address_for_controller, connect_timeout_s=connect_s, security=security
        )
        closing.push_async_callback(self.peers.close)
        closing.push_async_callback(self._controller_peers.close)
        self.controller_requests = ControllerRequests(
            self.replica_manager,
            self.metadata_cache,
            self.configs,
            lambda: self.membership.epoch,
            lambda topics: self.groups.on_topics_deleted(topics),
        )
        failures = ControllerFailures(self.broker_id, self.peers, lambda: self.metadata_cache.brokers)
        self.controller = Controller(
            self.broker_id,
            self.store,
            self._channel_to,
            ControllerSettings(
                lambda topic: self.configs.log_config(topic).unclean_leader_election_enable,
                lambda: bool(settings.delete_topic_enable),
                lambda: bool(settings.auto_leader_rebalance_enable),
                lambda: float(settings.leader_imbalance_check_interval_seconds),
                lambda: float(settings.leader_imbalance_per_broker_percentage),
            ),
            self.clock,
            wait_until_failed=failures.wait_until_failed if self._detects_failures else None,
        )
        self.features.on_change.append(self.controller.check_waiters)
        self.link = ControllerLink(self.broker_id, lambda: self.controller.active_id, self._handle_locally, self.peers)
        self.topic_creation = TopicCreation(self.link, self.metadata_cache)
        self.topics = Topics(self.controller, self.store, self.configs, self.metadata_cache)
        self._remote_transactions = RemoteTransactions(self.peers, settings.request_timeout_ms / 1000)
        closing.push_async_callback(self._remote_transactions.close)

    def _start_replication(self) -> None:
        """Start replication before the controller sends its first request."""
        timeout_s = self.settings.controller_socket_timeout_ms / 1000
        changes = IsrChanges(
            self.broker_id, lambda: self.membership.epoch, lambda request: self.link.send(request, timeout_s=timeout_s)
        )
        self._closing.push_async_callback(changes.close)
        self.replica_manager.start(self.peers, changes, lambda: self.membership.epoch)
        self._closing.push_async_callback(self.replica_manager.stop)

    async def _open_metadata(self) -> None:
        settings = self.settings
        await self.run_in_worker(self.log_manager.open_dirs)
        self._closing.callback(self.log_manager.abandon)
        stored_id, stored_cluster_id = self.log_manager.check_ids(None if self.broker_id < 0 else self.broker_id, None)
        if self.in_cluster:
            self.store = await self._connect_to_zookeeper()
        else:
            settings.metadata_dir.mkdir(parents=True, exist_ok=True)
            path = Path(settings.metadata_dir, METADATA_FILE)
            self.store = await self.run_in_worker(EmbeddedStore.open, path, self.clock)
        self._closing.push_async_callback(self.store.close)
        self._closing.callback(lambda: [announcement.cancel() for announcement in self._announcements])
        await create_top_level_paths(self.store)
        if self.broker_id < 0:
            reserved = settings.reserved_broker_max_id
            self.broker_id = await next_broker_id(self.store, reserved) if stored_id is None else stored_id
            settings.set_generated_id(self.broker_id)
        # A single node that lost its metadata keeps the cluster id of its logs. In a cluster, an
        # empty tree belongs to another cluster, which a broker with logs must not join.
        self.cluster_id = await create_or_get_cluster_id(self.store, None if self.in_cluster else stored_cluster_id)
        self.log_manager.check_ids(self.broker_id, self.cluster_id)
        self.log_manager.write_ids(self.broker_id, self.cluster_id)

    async def _start_security(self) -> None:
        settings = self.settings
        warn_if_open(settings)
        if secret := settings.delegation_token_secret_key or settings.delegation_token_master_key:
            self.delegation_tokens = DelegationTokens(
                self.store,
                secret,
                self.clock,
                settings.delegation_token_max_lifetime_ms,
                settings.delegation_token_expiry_time_ms,
                settings.delegation_token_expiry_check_interval_ms / 1000,
            )
            self._closing.push_async_callback(self.delegation_tokens.stop)
            await self.delegation_tokens.start()
        if all(listener.protocol == "PLAINTEXT" for listener in settings.listeners):
            return
        # A broker without TLS and SASL does not need the libraries for certificates.
        from kavka.broker.security import BrokerSecurity

        self.security = BrokerSecurity(
            settings, self.scram_credentials, self.metrics, self.run_in_worker, tokens=self.delegation_tokens
        )
        self._closing.push_async_callback(self.security.stop)
        await self.security.start()
        self.configs.on_broker.append(self.security.on_settings_changed)

    async def _start_authorizer(self) -> None:
        settings = self.settings
        if not settings.authorizer_class_name:
            return
        self.acls = StoredAcls(self.store, self.clock)
        await self.acls.start()
        self._closing.push_async_callback(self.acls.stop)
        super_users = parse_principals(settings.super_users)
        self.authorizer = Authorizer(
            self.acls.table, super_users, settings.allow_everyone_if_no_acl_found, self.metrics
        )

    async def _connect_to_zookeeper(self) -> MetadataStore:
        # A single node does not need kazoo.
        from kavka.broker.zookeeper_security import zookeeper_context, zookeeper_credentials
        from kavka.metadata.zookeeper import ZooKeeperStore

        settings = self.settings
        session_ms = settings.zookeeper_session_timeout_ms
        return await ZooKeeperStore.open(
            settings.zookeeper_connect,
            session_timeout_ms=session_ms,
            connection_timeout_ms=settings.zookeeper_connection_timeout_ms or session_ms,
            max_in_flight=settings.zookeeper_max_in_flight_requests,
            context=await self.run_in_worker(zookeeper_context, settings),
            sets_acls=settings.zookeeper_set_acl,
            credentials=zookeeper_credentials(settings),
        )

    def _watch_session(self) -> None:
        if self.in_cluster:
            store: Any = self.store
            store.on_session_lost.append(self._on_session_lost)
            store.on_new_session.append(self.membership.register_again)

    def _on_session_lost(self) -> None:
        logger.warning("The ZooKeeper session expired: the broker is not registered until it has a new session")
        self.controller.on_session_lost()

    async def _load_logs(self) -> None:
        """Load the logs in a worker thread. A cancellation waits for the logs in recovery, because
        no other process may open a log before its recovery ends."""
        is_cancelled = False

        def on_progress(loaded: int, total: int, loading: Sequence[str]) -> None:
            names = f", loading {', '.join(loading)}" if loading else ""
            progress_log.info("Loaded %d of %d logs%s", loaded, total, names)
            if is_cancelled:
                raise LogDirError("the start was cancelled")

        loading = asyncio.ensure_future(self.run_in_worker(self.log_manager.load, on_progress))
        try:
            await asyncio.shield(loading)
        except asyncio.CancelledError:
            is_cancelled = True
            with contextlib.suppress(Exception):
                await loading
            raise

    def _registration(self) -> BrokerRegistration:
        bound = {listener.name: listener.port for listener in self.listeners}
        return BrokerRegistration(
            self.broker_id,
            tuple(
                EndPoint(listener.name, listener.protocol, listener.host, listener.port or bound[listener.name])
                for listener in self.settings.advertised_listeners
            ),
            self.clock.now_ms(),
            self.settings.broker_rack,
            features=self.features.registration(),
        )

    def _start_coordinators(self) -> None:
        """Start the coordinators before the controller sends its first request: a coordinator loads
        its state when its partitions come online."""
        self.groups = GroupCoordinator(
            self.settings,
            clock=self.clock,
            metadata_cache=self.metadata_cache,
            run_in_worker=self.workers.post,
            create_topic=self.topic_creation.create_internal,
            group_values=self.configs.group_values,
            metrics=self.metrics,
        )
        self.configs.on_group.append(self.groups.on_group_settings)
        self.transactions = TransactionCoordinator(
            self.settings,
            broker_id=self.broker_id,
            clock=self.clock,
            metadata_cache=self.metadata_cache,
            replica_manager=self.replica_manager,
            producer_ids=self.producer_ids,
            run_in_worker=self.workers.post,
            create_topic=self.topic_creation.create_internal,
            offsets=self.groups.runtime,
            channel=self._remote_transactions,
            transaction_version=lambda: self.features.level(TRANSACTION_VERSION),
            metrics=self.metrics,
        )
        for coordinator in (self.groups, self.transactions):
            self.replica_manager.on_leadership.append(coordinator.on_leadership)
            coordinator.start()
            self._closing.callback(coordinator.stop)

    async def _handle_locally(self, request: TopMessage, version: int) -> Any:
        """Handle a request to the controller in this process."""
        assert request.API_KEY is not None
        api = self.server.apis[request.API_KEY]
        listener = self.settings.inter_broker_listener
        ctx = RequestContext(self, version, 0, f"broker-{self.broker_id}", listener, "", "User:ANONYMOUS")
        try:
            response = api.handle(ctx, request)
            return await response if isawaitable(response) else response
        except KafkaError as error:
            return api.on_error(request, version, error)

    def _channel_to(self, broker: BrokerRegistration) -> BrokerChannel:
        """The channel from the controller in this process to any broker."""
        if broker.id == self.broker_id:
            handler = self.controller_requests
            return LocalChannel(handler.leader_and_isr, handler.update_metadata, handler.stop_replicas)
        failure_timeout_s = self.settings.broker_failure_timeout_ms / 1000 if self._detects_failures else None
        return RemoteChannel(
            broker.id, self._controller_peers, self.settings.controller_socket_timeout_ms / 1000, failure_timeout_s
        )

    @property
    def _detects_failures(self) -> bool:
        """Whether connections show failures, or only ZooKeeper sessions."""
        return self.in_cluster and self.settings.broker_failure_detection == "connection"

    async def check_security(self, values: Mapping[str, Any]) -> None:
        """Raise ConfigError if the listeners could not use these values of all settings."""
        if self.security is not None:
            await self.security.check_dynamic(values)

    def _inter_broker_security(self) -> ClientSecurity | None:
        return None if self.security is None else self.security.inter_broker()

    def _address(self, broker_id: int) -> tuple[str, int] | None:
        return self.metadata_cache.endpoint(broker_id, self.settings.inter_broker_listener)

    def _address_for_controller(self, broker_id: int) -> tuple[str, int] | None:
        """The address of a broker for the controller, which learns of a broker before the metadata
        cache does."""
        broker = self.controller.context.brokers.get(broker_id)
        endpoints = () if broker is None else broker.end_points
        name = self.settings.inter_broker_listener
        return next(((endpoint.host, endpoint.port) for endpoint in endpoints if endpoint.listener == name), None)

    async def _controlled_shutdown(self) -> None:
        """Ask the controller to move the leaderships of this broker to other brokers."""
        settings = self.settings
        if not settings.controlled_shutdown_enable:
            return
        backoff_s = settings.controlled_shutdown_retry_backoff_ms / 1000
        for attempt in range(settings.controlled_shutdown_max_retries + 1):
            if attempt:
                await asyncio.sleep(backoff_s)
            request = ControlledShutdownRequest(broker_id=self.broker_id, broker_epoch=self.membership.epoch)
            try:
                response = await self.link.send(request, timeout_s=CONTROLLED_SHUTDOWN_TIMEOUT_S)
            except KafkaError as error:
                logger.warning("Cannot request a controlled shutdown from the controller: %s", error.message)
                return
            if response.error_code:
                logger.warning(
                    "The controller rejected the controlled shutdown: %s", ErrorCode(response.error_code).name
                )
            elif not response.remaining_partitions:
                return
            elif not self.metadata_cache.brokers.keys() - {self.broker_id}:
                logger.info("The last broker of the cluster stops: no other broker can lead its partitions")
                return
            else:
                logger.info("This broker still leads %d partitions", len(response.remaining_partitions))
        logger.warning("Stopping without a completed controlled shutdown: this broker still leads partitions")

    def _on_dir_failure(self, directory: LogDir, partitions: list[TopicPartition]) -> None:
        self.replica_manager.on_dir_failure(directory, partitions)
        if not self.log_manager.online_dirs:
            logger.critical("All log directories have failed: the broker stops")
            self.all_dirs_failed.set()
            return
        announcement = asyncio.ensure_future(announce_log_dir_failure(self.store, self.broker_id))
        self._announcements.add(announcement)
        announcement.add_done_callback(self._announcements.discard)

    def _on_topic_changed(self, topic: str) -> None:
        config = self.configs.log_config(topic)
        self.log_manager.update_config(topic, config)
        if config.unclean_leader_election_enable:
            self.controller.on_unclean_election_enabled(topic)
        self.replica_manager.on_topic_config_changed(topic)

    def _on_settings_changed(self, names: frozenset[str]) -> None:
        """Update the parts that cache settings. All other parts read a setting at each use."""
        if "unclean.leader.election.enable" in names:
            self.controller.on_unclean_election_enabled()
        self.workers.resize(_worker_threads(self.settings))
        self.replica_manager.use_settings(ReplicationSettings.from_values(self.settings.configs.values))
        self.log_manager.update_settings(StorageSettings.from_values(self.settings.configs.values))
        self.server.apply_settings()


def _worker_threads(settings: Settings) -> int:
    return max(2, int(settings.num_io_threads))


@contextlib.contextmanager
def _bind_errors_of(name: str, address: str) -> Iterator[None]:
    """Turn a failure to bind `address` into a ConfigError of the setting `name`."""
    try:
        yield
    except OSError as error:
        reasons = {
            errno.EADDRINUSE: "is in use by another process: stop it, or use another port",
            errno.EACCES: "requires privileges that this user does not have",
        }
        reason = reasons.get(error.errno or 0, f"cannot be bound: {error.strerror or error}")
        raise ConfigError(name, f"{address} {reason}") from error


async def serve(settings: Settings, ready: Ready | None = None, new_users: Sequence[NewUser] = ()) -> None:
    """Run a broker until SIGINT or SIGTERM. Raises LogDirError if all log directories fail."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signal_number, stop.set)
    pause_collections()
    broker = Broker(settings, new_users=new_users)
    stop_task = asyncio.ensure_future(stop.wait())
    failure_task = asyncio.ensure_future(broker.all_dirs_failed.wait())
    start_task = asyncio.ensure_future(broker.start())
    try:
        await asyncio.wait((start_task, stop_task), return_when=asyncio.FIRST_COMPLETED)
        if not start_task.done():
            logger.info("Received a signal during startup: stopping")
            start_task.cancel()
            await asyncio.wait((start_task,))
        if start_task.cancelled():
            return
        await start_task
        collector = asyncio.ensure_future(collect_garbage())
        try:
            if ready is not None and not stop.is_set():
                ready(broker.listeners)
            await asyncio.wait((stop_task, failure_task), return_when=asyncio.FIRST_COMPLETED)
        finally:
            collector.cancel()
            await broker.stop()
    finally:
        stop_task.cancel()
        failure_task.cancel()
    if broker.all_dirs_failed.is_set():
        raise LogDirError("all log directories have failed")


def run(settings: Settings, ready: Ready | None = None, new_users: Sequence[NewUser] = ()) -> int:
    """Run a broker until SIGINT or SIGTERM, then return 0. A failed startup raises OSError,
    ConfigError, KafkaError, LogDirError or StoreError. If all log directories fail, raises
    LogDirError."""
    _allow_many_files()
    try:
        import uvloop
    except ImportError:
        asyncio.run(serve(settings, ready, new_users))
    else:
        uvloop.run(serve(settings, ready, new_users))
    return 0


def _allow_many_files() -> None:
    """Raise the soft limit of open files: every connection and every segment needs a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
