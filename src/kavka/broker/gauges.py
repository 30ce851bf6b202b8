"""Gauges of a broker's logs and partitions, computed when they are scraped."""

from __future__ import annotations

from collections.abc import Callable

from kavka.common.metrics import Registry
from kavka.controller.context import ControllerContext
from kavka.controller.controller import Controller
from kavka.controller.partition_states import PartitionState
from kavka.replication.partition import Partition
from kavka.replication.replica_manager import ReplicaManager
from kavka.storage.log import Log
from kavka.storage.log_manager import LogManager


def add_gauges(metrics: Registry, replicas: ReplicaManager, logs: LogManager) -> None:
    gauge = metrics.gauge
    gauge("kavka_partitions", "Partitions on this broker", read=lambda: float(len(replicas.partitions)))
    gauge(
        "kavka_offline_partitions",
        "Partitions without a usable log",
        read=lambda: float(sum(p.log is None for p in list(replicas.partitions.values()))),
    )

    def per_log(name: str, help: str, value: Callable[[Log], int]) -> None:
        gauge(
            name,
            help,
            ("topic", "partition"),
            read=lambda: [(labels(log), float(value(log))) for log in list(logs.logs())],
        )

    def labels(log: Log) -> tuple[str, str]:
        return log.topic_partition.topic, str(log.topic_partition.partition)

    per_log("kavka_log_size_bytes", "Size of a partition's log in bytes", lambda log: log.size)
    per_log("kavka_log_end_offset", "Log end offset of a partition", lambda log: log.end_offset)
    gauge(
        "kavka_offline_log_directories",
        "Log directories that have failed",
        read=lambda: float(len(logs.dirs) - len(logs.online_dirs)),
    )
    _add_replication(metrics, replicas)


def add_controller_gauges(metrics: Registry, controller: Controller) -> None:
    """Add the gauges of the controller. They are 0 on a broker that is not the controller."""

    def gauge(name: str, help: str, count: Callable[[ControllerContext], int]) -> None:
        metrics.gauge(name, help, read=lambda: float(count(controller.context)) if controller.is_active else 0.0)

    gauge("kavka_controller_active", "1 on the broker that is the controller", lambda context: 1)
    gauge(
        "kavka_controller_unreachable_brokers",
        "Registered brokers to which the controller cannot connect",
        lambda context: len(context.unreachable),
    )
    gauge("kavka_controller_topics", "Topics of the cluster", lambda context: len(context.topics))
    gauge("kavka_controller_partitions", "Partitions of the cluster", lambda context: len(context.partition_states))
    gauge(
        "kavka_controller_offline_partitions",
        "Partitions of the cluster without a leader",
        lambda context: sum(s is not PartitionState.ONLINE for s in list(context.partition_states.values())),
    )
    gauge(
        "kavka_controller_preferred_replica_imbalance",
        "Partitions of the cluster that are not led by their first replica",
        lambda context: sum(
            leadership.state.leader not in context.replicas_of(tp)[:1]
            for tp, leadership in list(context.leaderships.items())
        ),
    )
    gauge("kavka_controller_topics_to_delete", "Topics being deleted", lambda context: len(context.topics_to_delete))
    gauge(
        "kavka_controller_reassigning_partitions",
        "Partitions being reassigned",
        lambda context: len(context.reassigning),
    )


def _add_replication(metrics: Registry, replicas: ReplicaManager) -> None:
    gauge, shared = metrics.gauge, replicas.shared
    shared.isr_shrinks = metrics.counter("kavka_isr_shrinks_total", "ISR shrinks").labels()
    shared.isr_expands = metrics.counter("kavka_isr_expands_total", "ISR expansions").labels()
    shared.bytes_in = metrics.counter("kavka_replication_bytes_in_total", "Bytes fetched from leaders").labels()
    shared.bytes_out = metrics.counter("kavka_replication_bytes_out_total", "Bytes sent to followers").labels()

    def count(name: str, help: str, is_counted: Callable[[Partition], bool]) -> None:
        gauge(name, help, read=lambda: float(sum(map(is_counted, list(replicas.partitions.values())))))

    count("kavka_leaders", "Partitions that this broker leads", lambda p: p.is_leader and p.log is not None)
    count(
        "kavka_under_replicated_partitions",
        "Partitions led by this broker with replicas that are not in sync",
        lambda p: p.is_under_replicated,
    )
    count(
        "kavka_under_min_isr_partitions",
        "Partitions led by this broker with fewer in-sync replicas than min.insync.replicas",
        lambda p: p.is_under_min_isr,
    )
    gauge(
        "kavka_replica_lag",
        "Lag of a follower behind its leader's high watermark in records; -1 while it is unknown",
        ("topic", "partition"),
        read=lambda: [
            ((follower.topic, str(follower.index)), float(follower.lag))
            for fetcher in list(replicas.fetchers.values())
            for follower in list(fetcher.followed.by_partition.values())
        ],
    )
    gauge(
        "kavka_replica_max_lag",
        "The maximum of kavka_replica_lag",
        read=lambda: float(max((fetcher.max_lag for fetcher in list(replicas.fetchers.values())), default=0)),
    )
