"""A leader killed with -9: how long until a record is acknowledged again."""

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
"""Of which the mean is taken: how long ago a broker's last heartbeat was when it is killed is chance, up to a third of
the session's timeout."""


class Seconds(NamedTuple):
    """From the kill to the first acknowledgement of a record that was sent after it; and from when ZooKeeper dropped
    the broker, to that, and until every living broker names the new leader."""

    whole: float
    after_session: float
    known: float


def run(sides: dict[str, ClusterSide], options: Options) -> list[Row]:
    after_session: dict[tuple[str, int], float] = {}
    known: dict[tuple[str, int], float] = {}
    for side in sides.values():
        side.new_topic(TOPIC, 1)

    def once(side: ClusterSide, index: int) -> float:
        found = [_failover(side) for _ in range(REPEATS)]
        after_session[side.name, index] = statistics.mean(one.after_session for one in found)
        known[side.name, index] = statistics.mean(one.known for one in found)
        return statistics.mean(one.whole for one in found)

    for side in sides.values():
        _failover(side)
    whole = in_pairs(sides, options.pairs, once, say="leader killed to the next acknowledgement, s")
    what = f"leader killed -9 to the first record acknowledged again, session timeout {SESSION_MS // 1000} s"
    return [
        ClusterRow(what, "s", whole, "≤ 1.0 ×", at_most=1.0),
        ClusterRow("of that, after ZooKeeper has dropped the broker", "s", paired(after_session, options.pairs)),
        ClusterRow("of that, until every broker names the new leader", "s", paired(known, options.pairs)),
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
    gone = side.when_gone(f"/brokers/ids/{victim}")
    led = _when_led_by_another(side, victim, gone)
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
    found = Seconds(back - killed, back - dropped, led() - dropped)
    producer.flush(30)
    side.cluster.start(victim)
    side.wait_in_sync(TOPIC, 1)
    return found


def _when_led_by_another(side: ClusterSide, victim: int, gone: Callable[[], float]) -> Callable[[], float]:
    """A function that waits until every broker but the victim names another leader, and says when that was. They are
    asked from when the victim is gone."""
    times: list[float] = []

    def ask(broker: AdminClient) -> None:
        gone()
        while True:
            try:
                leader = broker.list_topics(TOPIC, timeout=5).topics[TOPIC].partitions[0].leader
            except KafkaException:
                leader = -1
            if leader not in (-1, victim):
                times.append(time.monotonic())
                return
            time.sleep(0.005)

    living = [broker for number, broker in side.cluster.brokers.items() if number != victim]
    clients = [AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0}) for broker in living]
    for client in clients:
        # So that they are connected.
        client.list_topics(TOPIC, timeout=5)
    threads = [threading.Thread(target=ask, args=(client,), daemon=True) for client in clients]
    for thread in threads:
        thread.start()

    def wait() -> float:
        for thread in threads:
            thread.join(60)
        if len(times) < len(threads):
            raise RuntimeError(f"{side.title}: no new leader was named for 60 s after broker {victim} was killed")
        return max(times)

    return wait
