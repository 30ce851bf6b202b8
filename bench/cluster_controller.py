"""Many partitions: the controller killed, its broker started again, and a broker stopped and started cleanly."""

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
    each = max(options.cluster_partitions // TOPICS, 1)
    total = each * TOPICS
    found: dict[str, dict[tuple[str, int], float]] = {name: {} for name in ("rejoin", "stop", "start", "rss")}
    for side in sides.values():
        began = time.monotonic()
        for number in range(TOPICS):
            side.new_topic(f"{PREFIX}{number}", each)
        side.wait_in_sync(PREFIX, total)
        print(f"  {side.title}: {total} partitions made in {time.monotonic() - began:.1f} s", flush=True)

    def once(side: ClusterSide, index: int) -> float:
        victim, ready = _controller_killed(side, total)
        found["rss"][side.name, index] = side.rss_mib() / 2 * 3
        found["rejoin"][side.name, index] = _start(side, victim, total)
        other = next(number for number in side.cluster.alive() if number not in (victim, side.controller()))
        began = time.monotonic()
        side.cluster.stop(other)
        found["stop"][side.name, index] = time.monotonic() - began
        found["start"][side.name, index] = _start(side, other, total)
        return ready

    ready = in_pairs(sides, options.pairs, once, say="new controller ready, s after the old one's session")

    def pairs(name: str) -> list[tuple[float, float]]:
        return paired(found[name], options.pairs)

    many = f"{total:,} partitions × 3 replicas"
    return [
        ClusterRow(f"{many}: controller killed, all led again, after its session", "s", ready, "≤ 1.0 ×", at_most=1.0),
        ClusterRow("that broker started again, to the last in sync", "s", pairs("rejoin"), "≤ 1.0 ×", at_most=1.0),
        ClusterRow("another broker stopped cleanly", "s", pairs("stop")),
        ClusterRow("and started, to the last in sync", "s", pairs("start"), "≤ 1.0 ×", at_most=1.0),
        ClusterRow("memory of three brokers with them (RSS)", "MiB", pairs("rss"), "≤ 0.3 ×", at_most=0.3),
    ]


def _controller_killed(side: ClusterSide, total: int) -> tuple[int, float]:
    """Who it was, and the seconds from when ZooKeeper dropped it until each broker left says that all partitions are
    led by one that lives."""
    victim = side.controller()
    if victim is None:
        raise RuntimeError(f"{side.title} has no controller")
    gone = side.when_gone("/controller")
    side.cluster.kill(victim)
    dropped = gone()
    admins = [
        AdminClient({"bootstrap.servers": side.cluster.brokers[number].bootstrap_servers, "log_level": 0})
        for number in side.cluster.alive()
    ]

    def led(admin: AdminClient) -> bool:
        try:
            topics = admin.list_topics(timeout=10).topics
        except KafkaException:
            return False
        many = [about for name, about in topics.items() if name.startswith(PREFIX)]
        leaders = [partition.leader for about in many for partition in about.partitions.values()]
        return len(leaders) == total and all(leader >= 0 and leader != victim for leader in leaders)

    wait_until(lambda: all(map(led, admins)), timeout=300, what="every partition led again", interval=0.01)
    return victim, time.monotonic() - dropped


def _start(side: ClusterSide, number: int, total: int) -> float:
    began = time.monotonic()
    side.cluster.start(number, timeout=300)
    side.wait_in_sync(PREFIX, total)
    return time.monotonic() - began
