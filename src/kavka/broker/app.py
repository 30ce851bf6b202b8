"""A broker from its start to its end: which parts there are, who is given what, and in which order they come and go.

Start: lock the log directories, open the metadata, know the configuration, load the logs, bind the ports, sign in,
let the controller bring the partitions online, then accept connections. Stop goes the other way, and what it
leaves is marked as clean. A kill at any point leaves what the next start can recover.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import resource
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from kavka.api.fetch_session import FetchSessionCache
from kavka.broker.metrics_listener import MetricsListener
from kavka.broker.schedule import Schedule
from kavka.broker.settings import Listener, Settings
from kavka.broker.workers import Workers
from kavka.common.clock import Clock, SystemClock
from kavka.common.config import ConfigError
from kavka.common.errors import ErrorCode
from kavka.common.metrics import Registry
from kavka.common.types import TopicPartition
from kavka.controller.channel import LocalChannel
from kavka.controller.controller import Controller
from kavka.controller.topics import NewTopic, Topics
from kavka.coordinator.group.service import GroupCoordinator
from kavka.coordinator.transaction.service import TransactionCoordinator
from kavka.metadata.cluster import (
    ProducerIds,
    agree_on_cluster_id,
    announce_log_dir_failure,
    lay_out,
    register_broker,
)
from kavka.metadata.dynamic_config import DynamicConfig
from kavka.metadata.embedded import EmbeddedStore
from kavka.metadata.features import TRANSACTION_VERSION, Features
from kavka.metadata.paths import BrokerRegistration, EndPoint
from kavka.network.server import Server
from kavka.protocol.messages.leader_and_isr import LeaderAndIsrRequest, LeaderAndIsrResponse
from kavka.protocol.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse
from kavka.replication.metadata_cache import MetadataCache
from kavka.replication.replica_manager import ReplicaManager
from kavka.replication.topic_metrics import TopicMetrics
from kavka.storage.log_dir import LogDir, LogDirError
from kavka.storage.log_manager import LogManager
from kavka.storage.settings import StorageSettings

log = logging.getLogger(__name__)

METADATA_FILE = "metadata.db"
INTERNAL_TOPIC_TIMEOUT_MS = 30_000
Ready = Callable[[Sequence[Listener]], None]


class Broker:
    """One broker on the running loop: `await start()`, later `await stop()`. Handlers get their services from it."""

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        self.settings = settings
        self.clock: Clock = clock or SystemClock()
        self.broker_id: int = settings.broker_id
        self.cluster_id = ""
        self.metrics = Registry()
        self.metadata_cache = MetadataCache()
        self.features = Features()
        self.workers = Workers(_worker_threads(settings))
        self.run_in_worker = self.workers.run
        self.fetch_sessions = FetchSessionCache(
            settings.max_incremental_fetch_session_cache_slots,
            120.0,
            self.clock.monotonic,
        )
        self.log_manager = LogManager(
            settings.log_dirs,
            lambda topic: self.configs.log_config(topic),
            StorageSettings.from_values(settings.configs.values),
            self.clock,
            on_dir_failure=self._dir_failed,
            on_moved=lambda partition, moved: self.replica_manager.on_moved(partition, moved),
        )
        self.replica_manager = ReplicaManager(
            self.broker_id, self.log_manager, self.metadata_cache, self.workers.post, TopicMetrics(self.metrics)
        )
        self.listeners: list[Listener] = []
        # Set when the broker is of no more use: no log directory is left.
        self.failed = asyncio.Event()
        self._announcing: set[asyncio.Future[None]] = set()
        self._closing = contextlib.AsyncExitStack()

    async def start(self) -> None:
        """Whatever ends it early, a cancellation too, leaves no thread, lock or port behind."""
        try:
            await self._start()
        except BaseException:
            await self._closing.aclose()
            raise

    async def stop(self) -> None:
        await self._closing.aclose()

    async def _start(self) -> None:
        settings = self.settings
        closing = self._closing
        closing.callback(self.workers.close)
        await self._open_metadata()

        self.configs = DynamicConfig(self.store, self.broker_id, settings, self.clock)
        await self.configs.start()
        closing.push_async_callback(self.configs.stop)
        self.log_manager.settings_changed(StorageSettings.from_values(settings.configs.values))
        await self._load_logs()
        closing.push_async_callback(self.run_in_worker, self.log_manager.shutdown)

        self.producer_ids = ProducerIds(self.store, self.broker_id)
        self.server = Server(self)
        closing.callback(self.server.close)
        for listener in settings.listeners:
            with _naming("listeners", str(listener)):
                port = self.server.listen(listener.name, listener.host, listener.port)
            self.listeners.append(listener._replace(port=port))
        self.configs.on_topic.append(self._topic_changed)
        self.configs.on_broker.append(self._settings_changed)
        registration = self._registration()
        self.features.set_brokers([registration], await register_broker(self.store, registration))
        self.controller = Controller(
            self.broker_id,
            self.store,
            lambda _broker: self._local_channel(),
            unclean_election=lambda topic: self.configs.log_config(topic).unclean_leader_election_enable,
            deletion_enabled=lambda: bool(settings.delete_topic_enable),
            clock=self.clock,
        )
        self.topics = Topics(self.controller, self.store, self.configs, self.metadata_cache)
        self._start_coordinators()
        self.controller.start()
        closing.push_async_callback(self.controller.stop)
        await self.controller.settled()

        schedule = Schedule(self.log_manager.jobs(), self.workers)
        schedule.start()
        closing.push_async_callback(schedule.stop)
        closing.callback(self.log_manager.stop_jobs)
        self._add_gauges()
        if settings.metrics_listener is not None:
            with _naming("metrics.listener", settings["metrics.listener"]):
                metrics = MetricsListener(*settings.metrics_listener, self.metrics)
            closing.callback(metrics.close)
        self.server.start()
        closing.push_async_callback(self.server.stop)

    async def _open_metadata(self) -> None:
        settings = self.settings
        await self.run_in_worker(self.log_manager.open_dirs)
        self._closing.callback(self.log_manager.abandon)
        _, known_cluster = self.log_manager.claim(self.broker_id, None)
        settings.metadata_dir.mkdir(parents=True, exist_ok=True)
        path = Path(settings.metadata_dir, METADATA_FILE)
        self.store = await self.run_in_worker(EmbeddedStore.open, path, self.clock)
        self._closing.push_async_callback(self.store.close)
        await lay_out(self.store)
        self.cluster_id = await agree_on_cluster_id(self.store, known_cluster)
        self.log_manager.claim(self.broker_id, self.cluster_id)
        self.log_manager.mark(self.broker_id, self.cluster_id)

    async def _load_logs(self) -> None:
        """Recovery may take long. A cancellation waits for the logs under way, as nobody else may touch them yet."""
        cancelled = False

        def progress(done: int, total: int, now: Sequence[str]) -> None:
            log.info("Loaded %d of %d logs%s", done, total, f", now at {', '.join(now)}" if now else "")
            if cancelled:
                raise LogDirError("the start was cancelled")

        loading = asyncio.ensure_future(self.run_in_worker(self.log_manager.load, progress))
        try:
            await asyncio.shield(loading)
        except asyncio.CancelledError:
            cancelled = True
            with contextlib.suppress(Exception):
                await loading
            raise

    def _registration(self) -> BrokerRegistration:
        bound = {listener.name: listener.port for listener in self.listeners}
        return BrokerRegistration(
            self.broker_id,
            tuple(
                EndPoint(told.name, told.protocol, told.host, told.port or bound[told.name])
                for told in self.settings.advertised_listeners
            ),
            self.clock.now_ms(),
            self.settings.broker_rack,
            features=self.features.registered(),
        )

    def _start_coordinators(self) -> None:
        """Before the controller speaks: they load what is theirs when their partitions come online."""
        self.groups = GroupCoordinator(
            self.settings,
            clock=self.clock,
            metadata_cache=self.metadata_cache,
            run_in_worker=self.workers.post,
            create_topic=self._create_internal_topic,
            metrics=self.metrics,
        )
        self.transactions = TransactionCoordinator(
            self.settings,
            broker_id=self.broker_id,
            clock=self.clock,
            metadata_cache=self.metadata_cache,
            replica_manager=self.replica_manager,
            producer_ids=self.producer_ids,
            run_in_worker=self.workers.post,
            create_topic=self._create_internal_topic,
            offsets=self.groups.runtime,
            version=lambda: self.features.level(TRANSACTION_VERSION),
            metrics=self.metrics,
        )
        for coordinator in (self.groups, self.transactions):
            self.replica_manager.on_leadership.append(coordinator.on_leadership)
            coordinator.start()
            self._closing.callback(coordinator.stop)

    async def _create_internal_topic(
        self, name: str, partitions: int, replication_factor: int, configs: Mapping[str, str]
    ) -> None:
        topic = NewTopic(name, partitions, replication_factor, configs=configs)
        for outcome in await self.topics.create_topics([topic], timeout_ms=INTERNAL_TOPIC_TIMEOUT_MS):
            if outcome.error is not None and outcome.error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise outcome.error

    def _local_channel(self) -> LocalChannel:
        """How the controller in this process reaches this broker."""
        return LocalChannel(self._lead_or_follow, self._update_metadata, self.replica_manager.stop_replicas)

    async def _lead_or_follow(self, request: LeaderAndIsrRequest) -> LeaderAndIsrResponse:
        # A log is made with its topic's own settings, so they have to be known first.
        await self.configs.load_topics(topic.topic_name for topic in request.topic_states)
        return await self.replica_manager.become_leader_or_follower(request)

    def _update_metadata(self, request: UpdateMetadataRequest) -> UpdateMetadataResponse:
        gone = self.metadata_cache.update(request)
        for topic in gone:
            self.configs.forget_topic(topic)
        self.groups.on_topics_deleted(gone)
        return UpdateMetadataResponse()

    def _dir_failed(self, directory: LogDir, gone: list[TopicPartition]) -> None:
        self.replica_manager.on_dir_failure(directory, gone)
        if not self.log_manager.online_dirs:
            log.critical("No log directory is left: the broker stops")
            self.failed.set()
            return
        announcing = asyncio.ensure_future(announce_log_dir_failure(self.store, self.broker_id))
        self._announcing.add(announcing)
        announcing.add_done_callback(self._announcing.discard)

    def _topic_changed(self, topic: str) -> None:
        self.log_manager.update_config(topic, self.configs.log_config(topic))
        self.replica_manager.settings_changed(topic)

    def _settings_changed(self, _names: frozenset[str]) -> None:
        """What the parts keep of the settings; the rest they look up each time."""
        self.workers.resize(_worker_threads(self.settings))
        self.log_manager.settings_changed(StorageSettings.from_values(self.settings.configs.values))
        self.server.settings_changed()

    def _add_gauges(self) -> None:
        gauge = self.metrics.gauge
        logs = self.log_manager
        gauge("kavka_partitions", "Partitions on this broker", read=lambda: float(len(self.replica_manager.partitions)))
        gauge(
            "kavka_offline_partitions",
            "Partitions whose log cannot be used",
            read=lambda: float(sum(p.log is None for p in list(self.replica_manager.partitions.values()))),
        )
        gauge(
            "kavka_log_size_bytes",
            "Bytes of a partition's log",
            ("topic", "partition"),
            read=lambda: [
                ((tp.topic, str(tp.partition)), float(one.size))
                for tp, one in [(one.topic_partition, one) for one in list(logs.logs())]
            ],
        )
        gauge(
            "kavka_log_end_offset",
            "The offset that a partition's next record gets",
            ("topic", "partition"),
            read=lambda: [
                ((one.topic_partition.topic, str(one.topic_partition.partition)), float(one.end_offset))
                for one in list(logs.logs())
            ],
        )
        gauge(
            "kavka_offline_log_directories",
            "Log directories that have failed",
            read=lambda: float(len(logs.dirs) - len(logs.online_dirs)),
        )


def _worker_threads(settings: Settings) -> int:
    return max(2, int(settings.num_io_threads))


@contextlib.contextmanager
def _naming(name: str, address: str) -> Iterator[None]:
    """An address that cannot be bound is an error of the setting that names it."""
    try:
        yield
    except OSError as error:
        reasons = {errno.EADDRINUSE: "is in use by another process", errno.EACCES: "may not be used by this user"}
        reason = reasons.get(error.errno or 0, f"cannot be listened at: {error.strerror or error}")
        raise ConfigError(name, f"{address} {reason}") from error


async def serve(settings: Settings, ready: Ready | None = None) -> None:
    """Run a broker until SIGINT or SIGTERM. LogDirError when it lost all its log directories."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signal_number, stop.set)
    broker = Broker(settings)
    stopping = asyncio.ensure_future(stop.wait())
    failing = asyncio.ensure_future(broker.failed.wait())
    starting = asyncio.ensure_future(broker.start())
    try:
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            log.info("Asked to stop while starting")
            starting.cancel()
            await asyncio.wait((starting,))
        if starting.cancelled():
            return
        await starting
        try:
            # What is there now stays: the collector need not look at it again and again.
            gc.collect()
            gc.freeze()
            if ready is not None and not stop.is_set():
                ready(broker.listeners)
            await asyncio.wait((stopping, failing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            await broker.stop()
    finally:
        stopping.cancel()
        failing.cancel()
    if broker.failed.is_set():
        raise LogDirError("all log directories have failed")


def run(settings: Settings, ready: Ready | None = None) -> int:
    """A broker as the whole process. What can go wrong at the start is raised: OSError, ConfigError, KafkaError,
    LogDirError, StoreError."""
    _allow_many_files()
    try:
        import uvloop
    except ImportError:
        asyncio.run(serve(settings, ready))
    else:
        uvloop.run(serve(settings, ready))
    return 0


def _allow_many_files() -> None:
    """Every connection and every segment is a file: take as many as the system lets us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
