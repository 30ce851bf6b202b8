"""The time from SIGKILL of a leader to the next acknowledged record."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import confluent_kafka
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient  # type: ignore[attr-defined]

import kavka
from bench.cluster_sides import SESSION_TIMEOUT_MS, ClusterRow, ClusterSide
from bench.measure import Options, Row, in_pairs, paired

TOPIC = "failover"
REPEATS = 2
"""Failovers per client and measured value; the value is their mean. For a session, the time since
the broker's last heartbeat is random, up to a third of the session timeout."""


class OwnTime(ClusterRow):
    """A row whose bar applies to Kavka's time, not to the ratio."""

    def judged_value(self) -> float:
        return self.kavka


class FailoverTimes(NamedTuple):
    """The times of a failover, in seconds. `acknowledged` is the time from the kill to the first
    acknowledgement of a record that was sent after the kill, and `propagated` the time until the
    metadata of all live brokers has the new leader."""

    acknowledged: float
    propagated: float


class Acknowledgements:
    """The times of the first acknowledgements. The client's thread calls `record`."""

    def __init__(self) -> None:
        self.count = 0
        self.killed_at = float("inf")
        self.first: float | None = None

    def record(self, sent: float, error: Any) -> None:
        if error is None:
            self.count += 1
            if self.first is None and sent > self.killed_at:
                self.first = time.monotonic()


Send = Callable[[], None]


def run(sides: dict[str, ClusterSide], options: Options) -> list[Row]:
    for side in sides.values():
        side.new_topic(TOPIC, 1)
        _failover(side, librdkafka)
    rows: list[Row] = []
    bars = {"librdkafka": (librdkafka, 2.5), "Kavka's client": (our_client, 1.0)}
    for name, (client, bar) in bars.items():
        propagated: dict[tuple[str, int], float] = {}

        def once(side: ClusterSide, index: int, client: Any = client, propagated: Any = propagated) -> float:
            failovers = [_failover(side, client) for _ in range(REPEATS)]
            propagated[side.name, index] = statistics.mean(times.propagated for times in failovers)
            return statistics.mean(times.acknowledged for times in failovers)

        what = f"SIGKILL of the leader to the next acknowledged record, {name}"
        acknowledged = in_pairs(sides, options.pairs, once, title=f"{what}, s")
        what += f", session timeout {SESSION_TIMEOUT_MS // 1000} s"
        rows.append(OwnTime(what, "s", acknowledged, f"≤ {bar} s", at_most=bar))
        rows.append(
            ClusterRow(
                f"SIGKILL of the leader to the new leader in every broker's metadata ({name} connected)",
                "s",
                paired(propagated, options.pairs),
            )
        )
    return rows


@contextmanager
def librdkafka(bootstrap: str, acknowledgements: Acknowledgements) -> Iterator[Send]:
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 0,
            "topic.metadata.refresh.fast.interval.ms": 50,
            "retry.backoff.ms": 20,
            "retry.backoff.max.ms": 100,
            "reconnect.backoff.max.ms": 100,
            "log_level": 0,
        }
    )

    def send() -> None:
        sent = time.monotonic()
        producer.produce(TOPIC, b"x" * 100, on_delivery=lambda error, message: acknowledgements.record(sent, error))
        producer.poll(0.01)

    yield send
    producer.flush(30)


@contextmanager
def our_client(bootstrap: str, acknowledgements: Acknowledgements) -> Iterator[Send]:
    """Kavka's client with its default settings, except for `linger.ms`."""
    with kavka.Producer(bootstrap_servers=bootstrap, linger_ms=0) as producer:

        def send() -> None:
            sent = time.monotonic()
            producer.send(TOPIC, b"x" * 100, callback=lambda metadata, error: acknowledgements.record(sent, error))
            time.sleep(0.01)

        yield send


def _failover(side: ClusterSide, client: Any) -> FailoverTimes:
    """Kill the leader and restart it. Raise RuntimeError if there is no acknowledgement in 60 s."""
    acknowledgements = Acknowledgements()
    with client(side.bootstrap, acknowledgements) as send:
        while acknowledgements.count < 50:
            send()
        victim = side.leader(TOPIC)
        start_polling, wait_until_propagated = _watch_new_leader(side, victim)
        killed_at = time.monotonic()
        side.cluster.kill(victim)
        acknowledgements.killed_at = time.monotonic()
        start_polling()
        while acknowledgements.first is None:
            if time.monotonic() > killed_at + 60:
                raise RuntimeError(
                    f"{side.title}: no record was acknowledged for 60 s after broker {victim} was killed"
                )
            send()
        times = FailoverTimes(acknowledgements.first - killed_at, wait_until_propagated() - killed_at)
    side.cluster.start(victim)
    side.wait_in_sync(TOPIC, 1)
    return times


def _watch_new_leader(side: ClusterSide, victim: int) -> tuple[Callable[[], None], Callable[[], float]]:
    """Return a function that starts to query the metadata of every other broker, and a function
    that waits until all of them have a new leader and returns that time."""
    times: list[float] = []
    killed = threading.Event()

    def poll(client: AdminClient) -> None:
        killed.wait()
        while True:
            try:
                leader = client.list_topics(TOPIC, timeout=5).topics[TOPIC].partitions[0].leader
            except KafkaException:
                leader = -1
            if leader not in (-1, victim):
                times.append(time.monotonic())
                return
            time.sleep(0.02)

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

    return killed.set, wait
