"""All replicas of this broker: lookup for request handlers, and the controller's orders.

Creating and deleting logs accesses the disk, so the two orders (`LeaderAndIsr`, `StopReplica`) are
coroutines that are divided over turns of the loop. Orders are applied one at a
time, in the order of their arrival. All other methods return at once.

In a cluster `start` is called before the first order. From then on fetchers copy the partitions
that other brokers lead, and this broker periodically checks the ISRs of the partitions it leads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from uuid import UUID

from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.turns import over_turns
from kavka.common.types import TopicPartition
from kavka.protocol.primitives import ZERO_UUID
from kavka.replication.fetcher import ReplicaFetcher
from kavka.replication.isr_changes import IsrChanges
from kavka.replication.metadata_cache import MetadataCache
from kavka.replication.partition import Partition, RunInWorker
from kavka.replication.partition_state import PartitionOrder, ReplicaStop
from kavka.replication.peers import Peers
from kavka.replication.settings import ReplicationSettings
from kavka.replication.shared import Shared
from kavka.replication.topic_metrics import TopicMetrics
from kavka.storage.log import Log
from kavka.storage.log_dir import LogDir
from kavka.storage.log_manager import LogManager

logger = logging.getLogger(__name__)

# A StopReplica with one of these leader epochs is not fenced.
NO_EPOCH = -1
EPOCH_DURING_DELETE = -2


class ReplicaManager:
    """Owns the partitions, the fetchers and the appends of the current turn. Only the loop thread
    uses it."""

    def __init__(
        self,
        broker_id: int,
        log_manager: LogManager,
        metadata_cache: MetadataCache,
        run_in_worker: RunInWorker,
        metrics: TopicMetrics,
        settings: ReplicationSettings | None = None,
    ) -> None:
        self.broker_id = broker_id
        self.partitions: dict[tuple[str, int], Partition] = {}
        self.controller_epoch = -1
        self.metrics = metrics
        self._log_manager = log_manager
        self._metadata_cache = metadata_cache
        self._run_in_worker = run_in_worker
        # Bounds the memory of batches that worker threads decompress.
        self.decompressions = asyncio.Semaphore(2)
        self.shared = Shared(settings or ReplicationSettings())
        self.staged_appends = self.shared.staged_appends
        self.shared.live_brokers = lambda: metadata_cache.brokers
        self.fetchers: dict[int, ReplicaFetcher] = {}
        self._peers: Peers | None = None
        self._broker_epoch: Callable[[], int] = lambda: -1
        self._order_lock = asyncio.Lock()
        self._isr_timer: asyncio.TimerHandle | None = None
        # Each listener is called with a partition and whether this broker leads it, after an order
        # for the partition and when its log directory fails.
        self.on_leadership: list[Callable[[Partition, bool], None]] = []

    # ---- in a cluster

    def start(self, peers: Peers, isr_changes: IsrChanges, broker_epoch: Callable[[], int]) -> None:
        """Start to copy from other brokers and to check the ISRs."""
        self._peers = peers
        self._broker_epoch = broker_epoch
        self.shared.isr_changes = isr_changes
        self._check_isrs()

    async def stop(self) -> None:
        """Stop copying and checking the ISRs."""
        if self._isr_timer is not None:
            self._isr_timer.cancel()
        self.shared.isr_changes = None
        self._peers = None
        fetchers, self.fetchers = self.fetchers, {}
        for fetcher in fetchers.values():
            await fetcher.close()

    def use_settings(self, settings: ReplicationSettings) -> None:
        self.shared.use_settings(settings)

    @property
    def is_rack_aware(self) -> bool:
        """Whether consumers are sent to a follower in their rack."""
        return self.shared.settings.rack_aware

    def _check_isrs(self) -> None:
        now = self.shared.monotonic()
        for partition in list(self.partitions.values()):
            try:
                if partition.leader_role is not None:
                    partition.leader_role.shrink_isr(now)
                    partition.recheck_high_watermark()
            except Exception:
                logger.exception("Cannot check the ISR of %s", partition.topic_partition)
        period = max(0.01, self.shared.settings.lag_time_max_s / 2)
        self._isr_timer = asyncio.get_running_loop().call_later(period, self._check_isrs)

    def on_brokers_removed(self) -> None:
        """Advance the high watermarks that removed brokers held back."""
        for partition in list(self.partitions.values()):
            partition.recheck_high_watermark()

    def _follow(self, partition: Partition) -> None:
        """Copy the partition from its current leader only."""
        self._stop_following(partition.topic_partition)
        leader, peers = partition.leader_id, self._peers
        if peers is None or leader < 0:
            return
        fetcher = self.fetchers.get(leader)
        if fetcher is None:
            report, epoch = self._on_storage_failure, self._broker_epoch
            fetcher = ReplicaFetcher(self.broker_id, leader, peers, self._log_manager, self.shared, epoch, report)
            self.fetchers[leader] = fetcher
        fetcher.add(partition)

    def _stop_following(self, tp: TopicPartition) -> None:
        for fetcher in self.fetchers.values():
            fetcher.followed.remove(tp)

    def _drop_idle_fetchers(self) -> None:
        for leader_id in [
            leader_id for leader_id, fetcher in self.fetchers.items() if not fetcher.followed.by_partition
        ]:
            self.fetchers.pop(leader_id).start_close()

    # ---- lookup

    def leader(self, topic: str, partition: int) -> Partition:
        """Return the partition if this broker leads it and its log directory is online. Otherwise
        raises KafkaError with the code for the client."""
        replica = self.partitions.get((topic, partition))
        if replica is None:
            raise self._no_replica(topic, partition)
        if replica.log is None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
        if replica.leader_role is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return replica

    def replica(self, topic: str, partition: int) -> Partition:
        """Like `leader`, but also returns a partition that this broker follows."""
        replica = self.partitions.get((topic, partition))
        if replica is None:
            raise self._no_replica(topic, partition)
        if replica.log is None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
        return replica

    def _no_replica(self, topic: str, partition: int) -> KafkaError:
        if self._metadata_cache.partition_state(topic, partition) is not None:
            return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def count_failed_produce(self, topic: str, partition: int) -> None:
        replica = self.partitions.get((topic, partition))
        if replica is not None:
            replica.metrics.failed_produces.value += 1

    def count_failed_fetch(self, topic: str, partition: int) -> None:
        replica = self.partitions.get((topic, partition))
        if replica is not None:
            replica.metrics.failed_fetches.value += 1

    def topic_name(self, topic_id: UUID) -> str:
        """Raises UNKNOWN_TOPIC_ID for an unknown id."""
        name = self._metadata_cache.topic_name(topic_id)
        if name is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        return name

    # ---- the controller's orders

    async def become_leader_or_follower(
        self, controller_epoch: int, orders: Sequence[PartitionOrder]
    ) -> list[ErrorCode]:
        """Apply LeaderAndIsr orders. Returns an error code for each order. Raises
        STALE_CONTROLLER_EPOCH if a newer controller has sent an order."""
        async with self._order_lock:
            self._check_controller_epoch(controller_epoch)
            await self._create_folders(orders)
            codes = []
            async for order in over_turns(orders):
                codes.append(self._apply(order))
            self._drop_idle_fetchers()
            return codes

    def _check_controller_epoch(self, controller_epoch: int) -> None:
        if controller_epoch < self.controller_epoch:
            raise KafkaError(ErrorCode.STALE_CONTROLLER_EPOCH)
        self.controller_epoch = controller_epoch

    async def _create_folders(self, orders: Sequence[PartitionOrder]) -> None:
        """Create the folders of all new partitions together, in a worker thread. An error is
        ignored: it occurs again when the log is created."""
        create = self._log_manager.place_new(
            (order.topic_partition, order.topic_id, order.state.is_new)
            for order in orders
            if self.broker_id in order.state.replicas and order.topic_partition not in self.partitions
        )
        if create is not None:
            created: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._run_in_worker(create, lambda _error: None if created.done() else created.set_result(None))
            await created

    def _apply(self, order: PartitionOrder) -> ErrorCode:
        tp, topic_id, state = order
        partition = self.partitions.get(tp)
        if self.broker_id not in state.replicas:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if partition is None:
            metrics, report = self.metrics.of_topic(tp.topic), self._on_storage_failure
            partition = Partition(tp, topic_id, self.broker_id, self._run_in_worker, metrics, self.shared, report)
        elif topic_id not in (partition.topic_id, ZERO_UUID) and partition.topic_id != ZERO_UUID:
            return ErrorCode.INCONSISTENT_TOPIC_ID
        elif state.leader_epoch < partition.leader_epoch:
            return ErrorCode.STALE_CONTROLLER_EPOCH
        elif state.leader_epoch == partition.leader_epoch and state.partition_epoch < partition.partition_epoch:
            return ErrorCode.NONE  # this order is older than an accepted ISR change
        self.partitions[tp] = partition
        code = self._change_role(partition, order)
        self._notify_leadership(partition)
        return code

    def _change_role(self, partition: Partition, order: PartitionOrder) -> ErrorCode:
        tp, topic_id, state = order
        log: Log | None = None
        try:
            log = self._log_manager.get_or_create(tp, None, topic_id, is_new=state.is_new)
            if state.leader == self.broker_id:
                self._stop_following(tp)
                partition.make_leader(state, log)
            elif partition.make_follower(state, log):
                self._follow(partition)
        except (KafkaError, OSError) as error:
            logger.error("Cannot become leader or follower of %s: %s", tp, error)
            self._stop_following(tp)
            if log is not None:
                self._log_manager.report_failure(log, error)
            partition.go_offline()
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NONE

    def _notify_leadership(self, partition: Partition) -> None:
        for listener in self.on_leadership:
            listener(partition, partition.is_leader and partition.log is not None)

    async def stop_replicas(self, controller_epoch: int, stops: Sequence[ReplicaStop]) -> list[ErrorCode]:
        """Apply StopReplica orders. Returns an error code for each replica. Raises
        STALE_CONTROLLER_EPOCH if a newer controller has sent an order."""
        async with self._order_lock:
            self._check_controller_epoch(controller_epoch)
            codes = []
            for stop in stops:
                codes.append(self._stop_replica(stop))
                await asyncio.sleep(0)
            remaining = {topic for topic, _ in self.partitions}
            for topic in {stop.topic_partition.topic for stop in stops} - remaining:
                self.metrics.remove(topic)
            self._drop_idle_fetchers()
            return codes

    def _stop_replica(self, stop: ReplicaStop) -> ErrorCode:
        tp, leader_epoch, delete = stop
        if self._log_manager.is_in_failed_dir(tp):
            return ErrorCode.KAFKA_STORAGE_ERROR  # the partition stays offline until a restart
        partition = self.partitions.get(tp)
        if partition is not None:
            if leader_epoch not in (NO_EPOCH, EPOCH_DURING_DELETE) and leader_epoch < partition.leader_epoch:
                return ErrorCode.FENCED_LEADER_EPOCH
            del self.partitions[tp]
            self._stop_following(tp)
            partition.stop()
            self._notify_leadership(partition)
        if delete:
            try:
                self._log_manager.delete(tp)
            except (KafkaError, OSError) as error:
                logger.error("Cannot delete the log of %s: %s", tp, error)
                return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NONE

    # ---- failed log directories, moved logs

    def on_read_error(self, topic: str, index: int, error: OSError) -> KafkaError:
        """Report the disk error of a read to the log manager. Returns the error for the
        response."""
        partition = self.partitions.get((topic, index))
        if partition is not None:
            logger.error("Cannot read the log of %s: %s", partition.topic_partition, error)
            self._on_storage_failure(partition, error)
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)

    def _on_storage_failure(self, partition: Partition, error: BaseException) -> None:
        if partition.log is not None:
            self._log_manager.report_failure(partition.log, error.__cause__ or error)

    def on_dir_failure(self, _directory: LogDir, offline: list[TopicPartition]) -> None:
        """Take the partitions offline whose log directory has failed."""
        for tp in offline:
            partition = self.partitions.get(tp)
            if partition is not None:
                self._stop_following(tp)
                partition.go_offline()
                self._notify_leadership(partition)

    def on_moved(self, tp: TopicPartition, log: Log) -> None:
        """Use `log`: the log manager has moved the partition to another directory."""
        partition = self.partitions.get(tp)
        if partition is not None and partition.log is not None:
            log.producer_states.admitted_producer_id = partition.log.producer_states.admitted_producer_id
            partition.log = log
            partition.advance()

    def online(self) -> Iterable[Partition]:
        return (partition for partition in self.partitions.values() if partition.log is not None)

    def on_topic_config_changed(self, topic: str) -> None:
        """Advance the high watermarks, because the flush settings may have changed."""
        for (name, _), partition in list(self.partitions.items()):
            if name == topic:
                partition.advance()
