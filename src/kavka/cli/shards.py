"""`kavka server --shards N`: N brokers of a cluster as one unit (decision 17).

    broker.id, listeners, advertised.listeners   broker i has the id and the ports plus i
    log.dirs                                     /data/a becomes /data/a/broker.ID
    metrics.listener                             of the unit; broker i has port + 1 + i on loopback
    broker.rack                                  the name of the machine, unless it is set

`broker.ID` is not a valid name of a partition's folder, so that a broker without `--shards` never
takes it for a log.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kavka.broker.settings import GENERATED_ID, Listener, Settings
from kavka.cli.daemon import BrokerDaemon
from kavka.cli.supervisor import Process, Supervisor, broker_metrics
from kavka.common.config import ConfigError
from kavka.storage.log_dir import META_FILE
from kavka.storage.partition_dir import parse_dir_name

_FOLDER = re.compile(r"broker\.([0-9]+)")


@dataclass(frozen=True, slots=True)
class Shard:
    """A broker of the unit. `overrides` are added to the settings of the unit."""

    broker_id: int
    overrides: tuple[str, ...]
    ports: tuple[int, ...]
    metrics: tuple[str, int] | None


def plan(settings: Settings, count: int) -> list[Shard]:
    """Return the brokers of a unit with these settings. Raises ConfigError."""
    if not settings.in_cluster:
        raise ConfigError(
            "zookeeper.connect", "must be set with --shards; kavka cluster run also starts a ZooKeeper server"
        )
    if settings.broker_id == GENERATED_ID:
        raise ConfigError("broker.id", "must be set with --shards: it is the id of the first broker")
    if settings.metrics_listener is not None and not settings.metrics_listener[1]:
        raise ConfigError("metrics.listener", "port 0 is not supported with --shards")
    shards = [_shard(settings, index) for index in range(count)]
    _check_ports(settings, shards)
    return shards


def _shard(settings: Settings, index: int) -> Shard:
    broker_id = settings.broker_id + index
    folders = ",".join(str(path / f"broker.{broker_id}") for path in settings.log_dirs)
    listeners = [_shifted(listener, index) for listener in settings.listeners]
    values: dict[str, object] = {
        "broker.id": broker_id,
        "node.id": broker_id,
        "log.dirs": folders,
        "listeners": _joined(listeners),
    }
    if settings.is_set("advertised.listeners"):
        values["advertised.listeners"] = _joined(_shifted(each, index) for each in settings.advertised_listeners)
    if not settings.broker_rack:
        values["broker.rack"] = socket.gethostname()
    ports = [listener.port for listener in listeners if listener.port]
    metrics = None
    if settings.metrics_listener is not None:
        metrics = broker_metrics(settings.metrics_listener[1], index)
        values["metrics.listener"] = f"http://{metrics[0]}:{metrics[1]}"
        ports.append(metrics[1])
    return Shard(broker_id, tuple(f"{name}={value}" for name, value in values.items()), tuple(ports), metrics)


def _shifted(listener: Listener, index: int) -> Listener:
    return listener._replace(port=listener.port + index if listener.port else 0)


def _joined(listeners: Iterable[Listener]) -> str:
    return ",".join(map(str, listeners))


def _check_ports(settings: Settings, shards: Sequence[Shard]) -> None:
    owners: dict[int, str] = {}
    if settings.metrics_listener is not None:
        owners[settings.metrics_listener[1]] = "the metrics of the unit"
    for shard in shards:
        for port in shard.ports:
            owner = owners.setdefault(port, f"broker {shard.broker_id}")
            if owner != f"broker {shard.broker_id}":
                raise ConfigError(
                    "listeners",
                    f"{owner} and broker {shard.broker_id} would both use port {port}; with --shards {len(shards)} "
                    f"leave {len(shards)} ports free after the port of each listener",
                )


def check_folders(settings: Settings, shards: Sequence[Shard]) -> None:
    """Raise ConfigError if `log.dirs` has data that no broker of the unit would serve: of a broker
    without `--shards`, or of a unit with other brokers. Folders without partitions are ignored."""
    ids = {shard.broker_id for shard in shards}
    for path in settings.log_dirs:
        if (path / META_FILE).exists():
            raise ConfigError(
                "log.dirs",
                f"{path} has the data of a broker without --shards; stop it and move all files of the folder to "
                f"{path / f'broker.{settings.broker_id}'}",
            )
        for broker_id, folder in _broker_folders(path):
            if broker_id not in ids and _has_partitions(folder):
                raise ConfigError(
                    "log.dirs",
                    f"{folder} has partitions of broker {broker_id}, but this unit has the brokers {min(ids)} to "
                    f"{max(ids)}; start it with this broker, move its partitions to other brokers with "
                    "kafka-reassign-partitions, and try again",
                )


def check_unsharded(settings: Settings) -> None:
    """Raise ConfigError if a broker without `--shards` would not serve the data below
    `log.dirs`."""
    for path in settings.log_dirs:
        for _, folder in _broker_folders(path):
            if (folder / META_FILE).exists():
                raise ConfigError("log.dirs", f"{path} has the data of a unit, for example {folder}; add --shards")


def _broker_folders(path: Path) -> list[tuple[int, Path]]:
    try:
        names = os.listdir(path)
    except OSError:
        return []
    return sorted((int(match[1]), path / name) for name in names if (match := _FOLDER.fullmatch(name)))


def _has_partitions(folder: Path) -> bool:
    return any(parse_dir_name(name) is not None for name in os.listdir(folder))


class Unit:
    """The brokers of a unit and their metrics. `arguments` are the words of the command line that
    every broker gets, `first_arguments` those of the first one."""

    def __init__(
        self,
        settings: Settings,
        shards: Sequence[Shard],
        arguments: Sequence[str],
        first_arguments: Sequence[str],
        output: Path,
    ) -> None:
        def launcher(shard: Shard, extra: Sequence[str]) -> Callable[[], BrokerDaemon]:
            words = [*arguments, *extra, *(word for text in shard.overrides for word in ("--override", text))]
            return lambda: BrokerDaemon(words, output / f"server-{shard.broker_id}.out", stops_with_parent=True)

        self.processes = [
            Process(f"broker {shard.broker_id}", launcher(shard, () if index else first_arguments))
            for index, shard in enumerate(shards)
        ]
        self._settings = settings
        self._shards = shards

    def run(self, on_ready: Callable[[list[str]], None]) -> None:
        """Run the unit until a signal. Calls `on_ready` with the listeners of all brokers. Raises
        ToolError if a broker does not start, and ConfigError if the metrics cannot be served."""
        from kavka.cli.metrics_page import serving_metrics

        sources = {
            str(shard.broker_id): (process, shard.metrics)
            for shard, process in zip(self._shards, self.processes, strict=True)
            if shard.metrics is not None
        }
        with serving_metrics(self._settings.metrics_listener, sources):
            Supervisor(self.processes).run(lambda: on_ready(self._listeners()))

    def _listeners(self) -> list[str]:
        return [
            listener
            for process in self.processes
            if isinstance(process.daemon, BrokerDaemon)
            for listener in process.daemon.listeners
        ]
