"""The time from SIGKILL of a leader to the next acknowledged record."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient  # type: ignore[attr-defined]

from bench.cluster_sides import SESSION_TIMEOUT_MS, ClusterRow, ClusterSide
from bench.measure import Options, Row, in_pairs, paired

TOPIC = "failover"
REPEATS = 3
"""Failovers per measured value; the value is their mean. The time since the broker's last heartbeat
is random, up to a third of the session timeout."""


class FailoverTimes(NamedTuple):
    """The times of a failover, in seconds.

    `total` is the time from the kill to the first acknowledgement of a record that was sent after
    the kill. `after_session` and `propagated` start at the end of the broker's session:
    `after_session` ends at that acknowledgement, `propagated` when the metadata of all live brokers
    has the new leader.
    """

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
        after_session[side.name, index] = statistics.mean(times.after_session for times in failovers)
        propagated[side.name, index] = statistics.mean(times.propagated for times in failovers)
        return statistics.mean(times.total for times in failovers)

    for side in sides.values():
        _failover(side)
    total = in_pairs(sides, options.pairs, once, title="SIGKILL of the leader to the next acknowledged record, s")
    what = f"SIGKILL of the leader to the next acknowledged record, session timeout {SESSION_TIMEOUT_MS // 1000} s"
    return [
        ClusterRow(what, "s", total, "≤ 1.0 ×", at_most=1.0),
        ClusterRow("end of the broker's session to that acknowledgement", "s", paired(after_session, options.pairs)),
        ClusterRow(
            "end of the broker's session to the new leader in every broker's metadata",
            "s",
            paired(propagated, options.pairs),
        ),
    ]


def _failover(side: ClusterSide) -> FailoverTimes:
    """Kill the leader and restart it. Raise RuntimeError if there is no acknowledgement in 60 s."""
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

    def on_delivery_report(sent: float, error: Any) -> None:
        if error is None:
            acked.append((sent, time.monotonic()))

    def send() -> None:
        sent = time.monotonic()
        producer.produce(TOPIC, b"x" * 100, on_delivery=lambda error, message: on_delivery_report(sent, error))
        producer.poll(0.01)

    while len(acked) < 50:
        send()
    victim = side.leader(TOPIC)
    wait_until_deleted = side.watch_deletion(f"/brokers/ids/{victim}")
    wait_until_propagated = _watch_new_leader(side, victim, wait_until_deleted)
    kill_start = time.monotonic()
    side.cluster.kill(victim)
    kill_end = time.monotonic()
    deadline = kill_end + 60
    while not any(sent > kill_end for sent, _ in acked):
        if time.monotonic() > deadline:
            raise RuntimeError(f"{side.title}: no record was acknowledged for 60 s after broker {victim} was killed")
        send()
    acknowledged = next(ack_time for sent, ack_time in acked if sent > kill_end)
    session_end = wait_until_deleted()
    times = FailoverTimes(acknowledged - kill_start, acknowledged - session_end, wait_until_propagated() - session_end)
    producer.flush(30)
    side.cluster.start(victim)
    side.wait_in_sync(TOPIC, 1)
    return times


def _watch_new_leader(side: ClusterSide, victim: int, wait_until_deleted: Callable[[], float]) -> Callable[[], float]:
    """Return a function that waits until every other broker's metadata has a new leader, and
    returns the time. The metadata is queried after the victim's registration is deleted."""
    times: list[float] = []

    def poll(client: AdminClient) -> None:
        wait_until_deleted()
        while True:
            try:
                leader = client.list_topics(TOPIC, timeout=5).topics[TOPIC].partitions[0].leader
            except KafkaException:
                leader = -1
            if leader not in (-1, victim):
                times.append(time.monotonic())
                return
            time.sleep(0.005)

    other_brokers = [broker for broker_id, broker in side.cluster.brokers.items() if broker_id != victim]
    clients = [AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0}) for broker in other_brokers]
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
            raise RuntimeError(
                f"{side.title}: not every broker learned the new leader within 60 s after broker {victim} was killed"
            )
        return max(times)

    return wait
