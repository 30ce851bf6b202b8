"""The time from SIGKILL of a leader to the next acknowledged record."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient  # type: ignore[attr-defined]

from bench.cluster_sides import SESSION_MS, ClusterRow, ClusterSide
from bench.measure import Options, Row, in_pairs, paired

TOPIC = "failover"
REPEATS = 3
"""Failovers per value, which is their mean. The time since the broker's last heartbeat is random,
up to a third of the session timeout."""


class Seconds(NamedTuple):
    """`total` is the time from the kill to the first acknowledgement of a record that was sent
    after it. `after_session` is the time from the end of the broker's session to that
    acknowledgement, and `propagated` the time from there until the metadata of all live brokers has
    the new leader."""

    total: float
    after_session: float
    propagated: float


def run(sides: dict[str, ClusterSide], options: Options) -> list[Row]:
    after_session: dict[tuple[str, int], float] = {}
    propagated: dict[tuple[str, int], float] = {}
    for side in sides.values():
        side.new_topic(TOPIC, 1)

    def once(side: ClusterSide, index: int) -> float:
        failovers = [_failover(side) for _ in range(REPEATS)]
        after_session[side.name, index] = statistics.mean(seconds.after_session for seconds in failovers)
        propagated[side.name, index] = statistics.mean(seconds.propagated for seconds in failovers)
        return statistics.mean(seconds.total for seconds in failovers)

    for side in sides.values():
        _failover(side)
    total = in_pairs(sides, options.pairs, once, title="leader killed to the next acknowledgement, s")
    what = f"leader killed -9 to the first record acknowledged again, session timeout {SESSION_MS // 1000} s"
    return [
        ClusterRow(what, "s", total, "≤ 1.0 ×", at_most=1.0),
        ClusterRow("of that, after the end of the broker's session", "s", paired(after_session, options.pairs)),
        ClusterRow("of that, until every broker has the new leader", "s", paired(propagated, options.pairs)),
    ]


def _failover(side: ClusterSide) -> Seconds:
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
    wait_until_deleted = side.watch_deletion(f"/brokers/ids/{victim}")
    wait_until_propagated = _watch_new_leader(side, victim, wait_until_deleted)
    killed = time.monotonic()
    side.cluster.kill(victim)
    down = time.monotonic()
    deadline = down + 60
    while not any(sent > down for sent, _ in acked):
        if time.monotonic() > deadline:
            raise RuntimeError(f"{side.title}: no record was acknowledged for 60 s after broker {victim} was killed")
        send()
    acknowledged = next(ack_time for sent, ack_time in acked if sent > down)
    session_end = wait_until_deleted()
    seconds = Seconds(acknowledged - killed, acknowledged - session_end, wait_until_propagated() - session_end)
    producer.flush(30)
    side.cluster.start(victim)
    side.wait_in_sync(TOPIC, 1)
    return seconds


def _watch_new_leader(side: ClusterSide, victim: int, wait_until_deleted: Callable[[], float]) -> Callable[[], float]:
    """Return a function that waits until every other broker's metadata has a new leader, and
    returns the time. The metadata is queried after the victim's registration is deleted."""
    times: list[float] = []

    def poll(broker: AdminClient) -> None:
        wait_until_deleted()
        while True:
            try:
                leader = broker.list_topics(TOPIC, timeout=5).topics[TOPIC].partitions[0].leader
            except KafkaException:
                leader = -1
            if leader not in (-1, victim):
                times.append(time.monotonic())
                return
            time.sleep(0.005)

    others = [broker for number, broker in side.cluster.brokers.items() if number != victim]
    clients = [AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0}) for broker in others]
    for client in clients:
        # Connect before the measurement.
        client.list_topics(TOPIC, timeout=5)
    threads = [threading.Thread(target=poll, args=(client,), daemon=True) for client in clients]
    for thread in threads:
        thread.start()

    def wait() -> float:
        for thread in threads:
            thread.join(60)
        if len(times) < len(threads):
            raise RuntimeError(f"{side.title}: no new leader for 60 s after broker {victim} was killed")
        return max(times)

    return wait
