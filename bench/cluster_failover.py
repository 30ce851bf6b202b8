"""A leader killed with -9: how long until a record is acknowledged again."""

from __future__ import annotations

import statistics
import time
from typing import Any

from confluent_kafka import Producer

from bench.cluster_sides import SESSION_MS, ClusterRow, ClusterSide
from bench.measure import Options, Row, in_pairs, paired

TOPIC = "failover"
REPEATS = 3
"""Of which the mean is taken: how long ago a broker's last heartbeat was when it is killed is chance, up to a third of
the session's timeout."""


def run(sides: dict[str, ClusterSide], options: Options) -> list[Row]:
    after_session: dict[tuple[str, int], float] = {}
    for side in sides.values():
        side.new_topic(TOPIC, 1)

    def once(side: ClusterSide, index: int) -> float:
        found = [_failover(side) for _ in range(REPEATS)]
        after_session[side.name, index] = statistics.mean(after for _, after in found)
        return statistics.mean(whole for whole, _ in found)

    for side in sides.values():
        _failover(side)
    whole = in_pairs(sides, options.pairs, once, say="leader killed to the next acknowledgement, s")
    after = paired(after_session, options.pairs)
    what = f"leader killed -9 to the first record acknowledged again, session timeout {SESSION_MS // 1000} s"
    return [
        ClusterRow(what, "s", whole, "≤ 1.0 ×", at_most=1.0),
        ClusterRow("of that, after ZooKeeper has dropped the broker", "s", after),
    ]


def _failover(side: ClusterSide) -> tuple[float, float]:
    """Seconds from the kill, and from when ZooKeeper dropped the broker, to the first acknowledgement of a record that
    was sent after the kill."""
    producer = Producer(
        {
            "bootstrap.servers": side.bootstrap,
            "enable.idempotence": True,
            "linger.ms": 0,
            "topic.metadata.refresh.fast.interval.ms": 50,
            "retry.backoff.ms": 20,
            "retry.backoff.max.ms": 100,
            "reconnect.backoff.max.ms": 100,
            "log_level": 0,
        }
    )
    acked: list[tuple[float, float]] = []

    def delivered(sent: float, error: Any) -> None:
        if error is None:
            acked.append((sent, time.monotonic()))

    def send() -> None:
        sent = time.monotonic()
        producer.produce(TOPIC, b"x" * 100, on_delivery=lambda error, message: delivered(sent, error))
        producer.poll(0.01)

    while len(acked) < 50:
        send()
    victim = side.leader(TOPIC)
    gone = side.when_gone(f"/brokers/ids/{victim}")
    killed = time.monotonic()
    side.cluster.kill(victim)
    down = time.monotonic()
    deadline = down + 60
    while not any(sent > down for sent, _ in acked):
        if time.monotonic() > deadline:
            raise RuntimeError(f"{side.title}: nothing was acknowledged for 60 s after broker {victim} was killed")
        send()
    back = next(when for sent, when in acked if sent > down)
    dropped = gone()
    producer.flush(30)
    side.cluster.start(victim)
    side.wait_in_sync(TOPIC, 1)
    return back - killed, back - dropped
