"""Many partitions: kill and restart of the controller, and a clean restart of a broker."""

from __future__ import annotations

import time

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from bench.cluster_sides import ClusterRow, ClusterSide
from bench.measure import Options, Row, in_pairs, paired
from tests.support.processes import wait_until

TOPICS = 10
PREFIX = "many-"


def run(sides: dict[str, ClusterSide], options: Options) -> list[Row]:
    partitions = max(options.cluster_partitions // TOPICS, 1)
    total = partitions * TOPICS
    values: dict[str, dict[tuple[str, int], float]] = {name: {} for name in ("rejoin", "stop", "start", "rss")}
    for side in sides.values():
        started = time.monotonic()
        for number in range(TOPICS):
            side.new_topic(f"{PREFIX}{number}", partitions)
        side.wait_in_sync(PREFIX, total)
        print(f"  {side.title}: {total} partitions created in {time.monotonic() - started:.1f} s", flush=True)

    def once(side: ClusterSide, index: int) -> float:
        victim, ready = _kill_controller(side, total)
        values["rss"][side.name, index] = side.rss_mib() / 2 * 3
        values["rejoin"][side.name, index] = _start(side, victim, total)
        other = next(number for number in side.cluster.alive() if number not in (victim, side.controller()))
        started = time.monotonic()
        side.cluster.stop(other)
        values["stop"][side.name, index] = time.monotonic() - started
        values["start"][side.name, index] = _start(side, other, total)
        return ready

    ready = in_pairs(sides, options.pairs, once, title="SIGKILL of the controller to leaders for all partitions, s")

    def pairs(name: str) -> list[tuple[float, float]]:
        return paired(values[name], options.pairs)

    title = f"{total:,} partitions × 3 replicas"
    return [
        ClusterRow(
            f"{title}: SIGKILL of the controller to leaders for all partitions",
            "s",
            ready,
            "≤ 1.0 ×",
            at_most=1.0,
        ),
        ClusterRow(
            "restart of that broker to the last partition in sync", "s", pairs("rejoin"), "≤ 1.0 ×", at_most=1.0
        ),
        ClusterRow("controlled shutdown of another broker", "s", pairs("stop")),
        ClusterRow(
            "restart of that broker after the controlled shutdown to the last partition in sync",
            "s",
            pairs("start"),
            "≤ 1.0 ×",
            at_most=1.0,
        ),
        ClusterRow(
            "memory of the three brokers with these partitions (RSS)", "MiB", pairs("rss"), "≤ 0.3 ×", at_most=0.3
        ),
    ]


def _kill_controller(side: ClusterSide, total: int) -> tuple[int, float]:
    """Kill the controller. Return its id, and the seconds until the metadata of all live brokers
    has a live leader for every partition."""
    victim = side.controller()
    if victim is None:
        raise RuntimeError(f"{side.title} has no controller")
    killed_at = time.monotonic()
    side.cluster.kill(victim)
    admins = [
        AdminClient({"bootstrap.servers": side.cluster.brokers[number].bootstrap_servers, "log_level": 0})
        for number in side.cluster.alive()
    ]

    def has_all_leaders(admin: AdminClient) -> bool:
        try:
            topics = admin.list_topics(timeout=10).topics
        except KafkaException:
            return False
        metadata = [topic for name, topic in topics.items() if name.startswith(PREFIX)]
        leaders = [partition.leader for topic in metadata for partition in topic.partitions.values()]
        return len(leaders) == total and all(leader >= 0 and leader != victim for leader in leaders)

    wait_until(lambda: all(map(has_all_leaders, admins)), timeout=300, what="leaders of all partitions", interval=0.01)
    return victim, time.monotonic() - killed_at


def _start(side: ClusterSide, broker_id: int, total: int) -> float:
    """Start a broker. Return the seconds until all replicas are in sync."""
    started = time.monotonic()
    side.cluster.start(broker_id, timeout=300)
    side.wait_in_sync(PREFIX, total)
    return time.monotonic() - started
