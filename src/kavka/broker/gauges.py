"""What is measured when somebody looks: the gauges over a broker's logs and partitions."""

from __future__ import annotations

from kavka.common.metrics import Registry
from kavka.replication.replica_manager import ReplicaManager
from kavka.storage.log_manager import LogManager


def add_gauges(metrics: Registry, replicas: ReplicaManager, logs: LogManager) -> None:
    gauge = metrics.gauge
    gauge("kavka_partitions", "Partitions on this broker", read=lambda: float(len(replicas.partitions)))
    gauge(
        "kavka_offline_partitions",
        "Partitions whose log cannot be used",
        read=lambda: float(sum(p.log is None for p in list(replicas.partitions.values()))),
    )
    gauge(
        "kavka_log_size_bytes",
        "Bytes of a partition's log",
        ("topic", "partition"),
        read=lambda: [
            ((one.topic_partition.topic, str(one.topic_partition.partition)), float(one.size))
            for one in list(logs.logs())
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
