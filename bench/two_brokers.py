"""Two brokers on one machine beside one broker with the same load: the brokers' CPU time per GB.

Both are clusters of Kavka with a ZooKeeper server. The topic has two partitions, one replica each.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from bench import saturation
from bench.cluster_sides import ClusterSide
from bench.measure import Options, Row, in_pairs, paired
from bench.python_clients import ClientRow
from bench.sides import APACHE, KAVKA

SIZE, BATCH = 1000, 16_384
TOPIC = "two-brokers"


def run(options: Options) -> list[Row]:
    gigabytes = options.records * SIZE / 1e9
    cpu: dict[tuple[str, int], float] = {}

    with tempfile.TemporaryDirectory(prefix="kavka-bench-") as folder:
        # The cluster with one broker takes the place of Apache Kafka.
        clusters = {
            name: ClusterSide(KAVKA, Path(folder) / name, brokers=brokers)
            for name, brokers in ((KAVKA, 2), (APACHE, 1))
        }
        names = {id(cluster): name for name, cluster in clusters.items()}

        def once(cluster: ClusterSide, index: int) -> float:
            cluster.new_topic(TOPIC, saturation.PROCESSES, replicas=1)
            start_cpu = cluster.cpu_seconds()
            seconds, _ = saturation.produce(cluster.bootstrap, TOPIC, options.records, SIZE, BATCH)
            cpu[names[id(cluster)], index] = (cluster.cpu_seconds() - start_cpu) / gigabytes
            cluster.drop_topic(TOPIC)
            return options.records / seconds

        try:
            for cluster in clusters.values():
                cluster.start()
                once(cluster, -1)
            rates = in_pairs(clusters, options.pairs, once, title="two brokers and one, records/s")
        finally:
            for cluster in clusters.values():
                cluster.close()
    shape = f"{saturation.PROCESSES} native producers, {SIZE}-byte records, batches of {BATCH // 1024} KB"
    return [
        ClientRow(f"two brokers on one machine, compared with one: {shape}", "records/s", rates),
        ClientRow("broker CPU time per GB", "s", paired(cpu, options.pairs), "≤ 1.1 ×", at_most=1.1),
    ]
