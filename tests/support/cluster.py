"""Clusters of broker processes on one ZooKeeper: Kavka's, and Apache Kafka 3.9.1's with the same
face.

All of it from the main thread of the test: a process ends with the thread that started it.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType

from tests.support import wire
from tests.support.apache import LAST_WITH_ZOOKEEPER, ApacheKafka
from tests.support.kavka_process import KavkaProcess
from tests.support.processes import wait_until
from tests.support.zookeeper import ZooKeeper

HEAP = ("-Xmx256m", "-Xms64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")

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
    """Brokers 0, 1, … of one kind, each with its folder, port and log file; `kill`, `stop` and
    `pause` by number.

    `log_dirs`: the log folders of each broker, where they are not to be new ones in `folder`.
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
        """Start these brokers, or all, concurrently; return when every live broker knows every
        other.

        A killed broker waits until its old session expires. Apache's broker may give up and is
        started again, as a supervisor would do."""
        chosen = numbers or tuple(self.brokers)
        for number in chosen:
            self.brokers[number].launch()
        for number in chosen:
            self._see_ready(self.brokers[number], timeout)
        self.wait_until_known(timeout=timeout)

    def _see_ready(self, broker: Broker, timeout: float) -> None:
        for again in (True, True, False):
            try:
                broker.wait_until_ready(timeout)
                return
            except RuntimeError:
                if not again or "NodeExists" not in broker.process.log_tail(10_000):
                    raise
                broker.launch()

    def wait_until_known(self, expected: Iterable[int] | None = None, timeout: float = 60.0) -> None:
        """Until the metadata of every living broker is of these brokers, or of those that live."""
        expected_ids = sorted(self.alive() if expected is None else expected)

        def is_visible() -> bool:
            return all(wire.known_brokers(self.brokers[number].address) == expected_ids for number in self.alive())

        wait_until(is_visible, timeout=timeout, what=f"brokers {expected_ids} in everyone's metadata", interval=0.1)

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _kavka(number: int, folder: Path, settings: Mapping[str, object], log_dirs: tuple[Path, ...]) -> KavkaProcess:
    return KavkaProcess(folder, overrides=settings, log_dirs=log_dirs, broker_id=number, start=False)


def _apache(
    zookeeper: ZooKeeper, number: int, folder: Path, settings: Mapping[str, object], log_dirs: tuple[Path, ...]
) -> ApacheKafka:
    return ApacheKafka(
        folder,
        version=LAST_WITH_ZOOKEEPER,
        overrides=settings,
        jvm=HEAP,
        log_dirs=log_dirs,
        zookeeper=zookeeper,
        broker_id=number,
        start=False,
    )


class KavkaCluster(Cluster):
    def _make(self, number: int, folder: Path, settings: Mapping[str, object], log_dirs: tuple[Path, ...]) -> Broker:
        return _kavka(number, folder, settings, log_dirs)


class ApacheCluster(Cluster):
    def _make(self, number: int, folder: Path, settings: Mapping[str, object], log_dirs: tuple[Path, ...]) -> Broker:
        return _apache(self.zookeeper, number, folder, settings, log_dirs)


class MixedCluster(Cluster):
    """The last broker is Apache's, the others are ours."""

    LAST = 2

    def _make(self, number: int, folder: Path, settings: Mapping[str, object], log_dirs: tuple[Path, ...]) -> Broker:
        if number == self.LAST:
            return _apache(self.zookeeper, number, folder, settings, log_dirs)
        return _kavka(number, folder, settings, log_dirs)
