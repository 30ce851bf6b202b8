"""Clusters of broker processes with ZooKeeper: Kavka, Apache Kafka 3.9.1, or both.

Use them from the main thread only: the kernel kills a process when the thread that started it ends.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.support import wire
from tests.support.apache import LAST_WITH_ZOOKEEPER, ApacheKafka
from tests.support.kavka_process import KavkaProcess
from tests.support.processes import wait_until
from tests.support.zookeeper import ZooKeeper

SMALL_JVM = ("-Xmx256m", "-Xms64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")

SETTINGS: dict[str, object] = {
    "zookeeper.session.timeout.ms": 6000,
    "default.replication.factor": 1,
    "offsets.topic.replication.factor": 3,
    "offsets.topic.num.partitions": 6,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.num.partitions": 6,
    "transaction.state.log.min.isr": 2,
    "group.initial.rebalance.delay.ms": 0,
    "auto.leader.rebalance.enable": "false",
}

Broker = KavkaProcess | ApacheKafka


class Cluster:
    """Brokers with the ids 0, 1, …, each with its folder, port and log file.

    `log_dirs` are the log directories by broker id. The default is a new folder for each broker.
    """

    def __init__(
        self,
        folder: Path,
        zookeeper: ZooKeeper,
        *,
        brokers: int = 3,
        overrides: Mapping[str, object] | None = None,
        log_dirs: Mapping[int, tuple[Path, ...]] | None = None,
        start: bool = True,
    ) -> None:
        self.folder = folder
        self.zookeeper = zookeeper
        settings = SETTINGS | {"zookeeper.connect": zookeeper.connect} | dict(overrides or {})
        replicas = {
            name: min(int(str(settings[name])), brokers) for name in settings if name.endswith("replication.factor")
        }
        self.brokers: dict[int, Broker] = {
            number: self._make(
                number, folder / f"broker-{number}", settings | replicas, (log_dirs or {}).get(number, ())
            )
            for number in range(brokers)
        }
        if start:
            try:
                self.start()
            except BaseException:
                self.close()
                raise

    def _make(self, number: int, folder: Path, settings: Mapping[str, object], log_dirs: tuple[Path, ...]) -> Broker:
        raise NotImplementedError

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(broker.bootstrap_servers for broker in self.brokers.values())

    @property
    def addresses(self) -> dict[int, tuple[str, int]]:
        return {number: broker.address for number, broker in self.brokers.items()}

    @property
    def log_dirs(self) -> dict[int, tuple[Path, ...]]:
        return {number: broker.log_dirs for number, broker in self.brokers.items()}

    def log_file(self, number: int) -> Path:
        return self.brokers[number].process.log

    def alive(self) -> list[int]:
        return [number for number, broker in self.brokers.items() if broker._process and broker.process.running()]

    def start(self, *numbers: int, timeout: float = 120.0) -> None:
        """Start these brokers, by default all, in parallel. Return when the metadata of every
        running broker contains all running brokers.

        A killed broker waits until its previous session expires. Apache's broker may give up and is
        then started again, as a supervisor would do."""
        started = numbers or tuple(self.brokers)
        for number in started:
            self.brokers[number].launch()
        for number in started:
            self._wait_until_ready(self.brokers[number], timeout)
        self.wait_for_metadata(timeout=timeout)

    def _wait_until_ready(self, broker: Broker, timeout: float) -> None:
        for may_retry in (True, True, False):
            try:
                broker.wait_until_ready(timeout)
                return
            except RuntimeError:
                if not may_retry or "NodeExists" not in broker.process.log_tail(10_000):
                    raise
                broker.launch()

    def wait_for_metadata(self, expected: Iterable[int] | None = None, timeout: float = 60.0) -> None:
        """Wait until the metadata of every running broker contains exactly the expected brokers, by
        default the running ones."""
        expected_ids = sorted(self.alive() if expected is None else expected)

        def is_visible() -> bool:
            return all(
                wire.brokers_in_metadata(self.brokers[number].address) == expected_ids for number in self.alive()
            )

        wait_until(
            is_visible, timeout=timeout, what=f"brokers {expected_ids} in the metadata of all brokers", interval=0.1
        )

    def kill(self, number: int) -> None:
        self.brokers[number].kill()

    def stop(self, number: int) -> None:
        self.brokers[number].stop()

    def pause(self, number: int) -> None:
        self.brokers[number].process.signal(signal.SIGSTOP)

    def resume(self, number: int) -> None:
        self.brokers[number].process.signal(signal.SIGCONT)

    def stop_all(self) -> None:
        for number in self.alive():
            self.stop(number)

    def close(self) -> None:
        for broker in self.brokers.values():
            broker.kill()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _kavka(number: int, folder: Path, settings: Mapping[str, object], log_dirs: tuple[Path, ...]) -> KavkaProcess:
    return KavkaProcess(folder, overrides=settings, log_dirs=log_dirs, broker_id=number, start=False)


def _apache(
    zookeeper: ZooKeeper,
    number: int,
    folder: Path,
    settings: Mapping[str, object],
    log_dirs: tuple[Path, ...],
    jvm: tuple[str, ...] = SMALL_JVM,
) -> ApacheKafka:
    return ApacheKafka(
        folder,
        version=LAST_WITH_ZOOKEEPER,
        overrides=settings,
        jvm=jvm,
        log_dirs=log_dirs,
        zookeeper=zookeeper,
        broker_id=number,
        start=False,
    )


class KavkaCluster(Cluster):
    def _make(self, number: int, folder: Path, settings: Mapping[str, object], log_dirs: tuple[Path, ...]) -> Broker:
        return _kavka(number, folder, settings, log_dirs)


class ApacheCluster(Cluster):
    jvm: tuple[str, ...] = SMALL_JVM

    def _make(self, number: int, folder: Path, settings: Mapping[str, object], log_dirs: tuple[Path, ...]) -> Broker:
        return _apache(self.zookeeper, number, folder, settings, log_dirs, self.jvm)


class MixedCluster(Cluster):
    """A cluster whose last broker is Apache's. The other brokers are Kavka's."""

    LAST = 2

    def _make(self, number: int, folder: Path, settings: Mapping[str, object], log_dirs: tuple[Path, ...]) -> Broker:
        if number == self.LAST:
            return _apache(self.zookeeper, number, folder, settings, log_dirs)
        return _kavka(number, folder, settings, log_dirs)
