"""The folder of a local cluster: its members, their ports and their processes.

    cluster.json            the members
    lock                    locked by the command that changes the cluster
    zookeeper/              zookeeper.properties, data/, zookeeper.log
    broker-N/               server.properties, data/, broker.log

`cluster.json` is replaced atomically after each process start. A command that is killed leaves at
most one process that is not recorded. That process still occupies its port. A process is identified
by its pid and its start time, so that a process that reuses the pid is never signalled.

The processes of `kavka cluster up` outlive the command. `kavka cluster run` supervises them: its
brokers stop if it is killed, and ZooKeeper continues.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kavka.cli import running, zookeeper_jars, zookeeper_server
from kavka.cli.daemon import STOP_TIMEOUT_S, BrokerDaemon, Daemon
from kavka.cli.supervisor import Process, Supervisor, broker_metrics
from kavka.cli.tool import ToolError

HOST = "localhost"
REGISTRATION_TIMEOUT_S = 60.0
GROUPS_TIMEOUT_S = 20.0
ZOOKEEPER_TICK_MS = 1000


@dataclass(slots=True)
class Member:
    """A broker, or the ZooKeeper server, which has no id. `pid` and `started` identify its last
    process."""

    cluster: Path
    port: int
    id: int | None = None
    pid: int = 0
    started: str = ""

    @property
    def folder(self) -> Path:
        return self.cluster / ("zookeeper" if self.id is None else f"broker-{self.id}")

    @property
    def name(self) -> str:
        return "zookeeper" if self.id is None else f"broker {self.id}"

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def config(self) -> Path:
        return self.folder / ("zookeeper.properties" if self.id is None else "server.properties")

    @property
    def log_file(self) -> Path:
        return self.folder / ("zookeeper.log" if self.id is None else "broker.log")

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive

    @property
    def _process(self) -> running.RunningProcess:
        return running.RunningProcess(self.pid, self.started, "")

    def kill(self) -> None:
        if self.is_alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            running.stop([self._process], STOP_TIMEOUT_S)

    def set_process(self, daemon: Daemon) -> None:
        self.pid, self.started = daemon.pid, running.start_time(daemon.pid)


class ClusterFolder:
    """The members of a cluster and their files. Every change is made inside `locked`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.members: list[Member] = []
        # Settings from --override. They apply to every broker, including brokers added later.
        self.overrides: dict[str, str] = {}
        self._read()

    @property
    def brokers(self) -> list[Member]:
        return [member for member in self.members if member.id is not None]

    @property
    def zookeeper(self) -> Member:
        return next(member for member in self.members if member.id is None)

    # --- files

    @contextlib.contextmanager
    def locked(self, *, create: bool = False, timeout_s: float = 0.0) -> Iterator[None]:
        """Lock the folder inside the block. Read the members again, since another command may have
        changed them. Raise ToolError if the folder does not exist, or if another command holds the
        lock for longer than `timeout_s`."""
        if create:
            self.path.mkdir(parents=True, exist_ok=True)
        elif not self.path.exists():
            raise ToolError(f"there is no cluster in {self.path}")
        deadline = time.monotonic() + timeout_s
        with (self.path / "lock").open("w") as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= deadline:
                        raise ToolError(f"another command holds the lock of {self.path}") from None
                time.sleep(0.05)
            self._read()
            yield

    def _read(self) -> None:
        try:
            text = (self.path / "cluster.json").read_text()
        except FileNotFoundError:
            return
        try:
            content = json.loads(text)
            self.members = [Member(self.path, **member) for member in content["members"]]
            self.overrides = dict(content.get("overrides", {}))
            assert self.zookeeper and self.brokers
        except (ValueError, KeyError, TypeError, StopIteration, AssertionError):
            raise ToolError(f"{self.path / 'cluster.json'} is corrupt; delete {self.path} to start over") from None

    def _write(self) -> None:
        temporary = self.path / "cluster.json.tmp"
        members = [
            {"id": member.id, "port": member.port, "pid": member.pid, "started": member.started}
            for member in self.members
        ]
        temporary.write_text(json.dumps({"members": members, "overrides": self.overrides}, indent=2) + "\n")
        temporary.replace(self.path / "cluster.json")

    # --- members

    def plan_zookeeper(self, port: int) -> None:
        """Add the ZooKeeper server and write its configuration. `port` is the first port to try."""
        member = Member(self.path, _free_port(port, ()))
        data = member.folder.absolute() / "data"
        data.mkdir(parents=True, exist_ok=True)
        _write_properties(
            member.config,
            {
                "dataDir": data,
                "clientPort": member.port,
                "clientPortAddress": HOST,
                "maxClientCnxns": 0,
                "admin.enableServer": "false",
                "tickTime": ZOOKEEPER_TICK_MS,
                "maxSessionTimeout": 60_000,
            },
        )
        self.members.append(member)

    def plan_brokers(self, count: int, first_port: int, overrides: Sequence[str]) -> None:
        """Add brokers up to `count` in total and write the configuration of every broker.

        Existing brokers keep their ports. `overrides` apply to all brokers. Raises ToolError for an
        invalid override.
        """
        new_overrides: dict[str, str] = {}
        for text in overrides:
            name, equals, value = text.partition("=")
            if not equals or not name.strip():
                raise ToolError(f"--override {text}: expected name=value")
            new_overrides[name.strip()] = value
        self.overrides |= new_overrides
        factor = min(3, count)
        for number in range(len(self.brokers), count):
            port = _free_port(first_port + number, [member.port for member in self.members])
            self.members.append(Member(self.path, port, number))
        for broker in self.brokers:
            settings: dict[str, object] = {
                "broker.id": broker.id,
                "listeners": f"PLAINTEXT://{HOST}:{broker.port}",
                "log.dirs": broker.folder.absolute() / "data",
                "zookeeper.connect": self.zookeeper.address,
                "zookeeper.session.timeout.ms": 6000,
                "zookeeper.connection.timeout.ms": 18_000,
                "default.replication.factor": factor,
                "offsets.topic.replication.factor": factor,
                "transaction.state.log.replication.factor": factor,
                "transaction.state.log.min.isr": min(2, factor),
                "group.initial.rebalance.delay.ms": 0,
                # The last broker of a cluster that stops cannot hand over its partitions.
                "controlled.shutdown.retry.backoff.ms": 200,
            }
            settings |= self._existing_settings(broker) or self.overrides
            settings |= new_overrides
            broker.folder.mkdir(parents=True, exist_ok=True)
            _write_properties(broker.config, settings)
        self._write()

    def _existing_settings(self, broker: Member) -> dict[str, object]:
        """Return the settings in the broker's existing file, which the user may have edited."""
        from kavka.common.properties import parse_properties

        return dict(parse_properties(broker.config.read_text())) if broker.config.exists() else {}

    # --- processes

    def start(self, members: Sequence[Member]) -> None:
        """Start those members that are not running: ZooKeeper first, then all brokers in parallel.
        Raise ToolError if a member does not start."""
        if self.zookeeper in members and not self.zookeeper.is_alive:
            self._launch_zookeeper().detach()
        brokers = [member.id for member in members if member.id is not None and not member.is_alive]
        supervisor = Supervisor([Process(f"broker {id}", self._broker_launcher(id)) for id in brokers])
        errors = supervisor.start()
        supervisor.detach()
        if errors:
            raise ToolError("; ".join(errors))
        self._wait_until_registered()

    def run(self, on_ready: Callable[[], None], metrics_port: int | None = None) -> None:
        """Start all members, call `on_ready`, and supervise the brokers until a signal or until all
        were stopped. Then stop all members. Raise ToolError if a member does not start.

        The folder is locked only while a process starts, so that other commands can be used.
        """
        from kavka.cli.metrics_page import serving_metrics

        with self.locked():
            if running_members := [member.name for member in self.members if member.is_alive and member.id is not None]:
                raise ToolError(f"already running: {', '.join(running_members)}; kavka cluster down stops all servers")
            if not self.zookeeper.is_alive:
                self._launch_zookeeper().detach()

        def launcher(broker_id: int) -> Callable[[], Daemon]:
            arguments: list[str] = []
            if metrics_port is not None:
                host, port = broker_metrics(metrics_port, broker_id)
                arguments = ["--override", f"metrics.listener=http://{host}:{port}"]
            launch = self._broker_launcher(broker_id, arguments, stops_with_parent=True)

            def locked_launch() -> Daemon:
                with self.locked():
                    if not self.zookeeper.is_alive:
                        raise ToolError("the ZooKeeper server is not running")
                    return launch()

            return locked_launch

        def ready() -> None:
            self._wait_until_registered()
            on_ready()

        processes = {
            broker.id: Process(broker.name, launcher(broker.id)) for broker in self.brokers if broker.id is not None
        }
        port = metrics_port or 0
        sources = {str(id): (process, broker_metrics(port, id)) for id, process in processes.items()}
        try:
            with serving_metrics((HOST, port) if port else None, sources):
                Supervisor(list(processes.values())).run(ready)
        finally:
            self._stop_all()

    def _stop_all(self) -> None:
        """Stop the members that are alive, unless `kavka cluster down` has just done so. Also
        brokers that `kavka cluster start` has started."""
        if self.path.exists():
            with self.locked(timeout_s=STOP_TIMEOUT_S):
                self.stop(self.brokers)
                self.stop([self.zookeeper])

    def _broker_launcher(
        self, broker_id: int, arguments: Sequence[str] = (), *, stops_with_parent: bool = False
    ) -> Callable[[], BrokerDaemon]:
        def launch() -> BrokerDaemon:
            # Another command may have replaced the list of members.
            broker = next(member for member in self.brokers if member.id == broker_id)
            daemon = BrokerDaemon(
                [str(broker.config), *arguments], broker.log_file, stops_with_parent=stops_with_parent
            )
            broker.set_process(daemon)
            self._write()
            return daemon

        return launch

    def _launch_zookeeper(self) -> Daemon:
        member = self.zookeeper
        config = zookeeper_server.ServerConfig.read(member.config)
        try:
            argv = zookeeper_jars.server_command(config.path)
        except zookeeper_jars.NoZooKeeper as error:
            raise ToolError(str(error)) from None
        server = zookeeper_server.launch(config, argv, member.log_file)
        member.set_process(server)
        self._write()
        return server

    def _wait_until_registered(self) -> None:
        """Wait until all running brokers are registered, so that new topics can use all of them."""
        from kavka.client.admin import Admin
        from kavka.common.errors import KafkaError

        expected = {broker.id for broker in self.brokers if broker.is_alive}
        servers = ",".join(broker.address for broker in self.brokers if broker.is_alive)
        deadline = time.monotonic() + REGISTRATION_TIMEOUT_S
        with Admin({"bootstrap.servers": servers}) as admin:
            while True:
                description = admin.describe_cluster(timeout=REGISTRATION_TIMEOUT_S)
                if description.controller is not None and expected <= {node.id for node in description.nodes}:
                    break
                if time.monotonic() > deadline:
                    raise ToolError(f"not all brokers are registered after {REGISTRATION_TIMEOUT_S:g} s")
                time.sleep(0.05)
            if len(expected) == len(self.brokers):
                # The first request for a group creates __consumer_offsets. Send one now: after a
                # broker is killed, there are too few brokers for the replication factor.
                with contextlib.suppress(KafkaError):
                    admin.describe_consumer_groups(["none"], timeout=GROUPS_TIMEOUT_S)

    def stop(self, members: Sequence[Member]) -> None:
        """Stop the members in parallel, and kill those that do not stop in time."""
        alive = [member for member in members if member.is_alive]
        running.stop([member._process for member in alive], STOP_TIMEOUT_S)
        for member in alive:
            member.kill()

    def controller(self) -> int | None:
        """Return the broker id of the controller; None if it is unknown."""
        if not self.zookeeper.is_alive:
            return None
        from kavka.cli.zookeeper_brokers import controller_in_zookeeper

        return controller_in_zookeeper(self.zookeeper.address)


def _free_port(first: int, reserved: Sequence[int]) -> int:
    """Return the first free port from `first` on that is not reserved. Raise ToolError if there is
    none."""
    for port in range(first, min(first + 1000, 65536)):
        if port in reserved:
            continue
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
    raise ToolError(f"no port from {first} on is free")


def _write_properties(path: Path, values: dict[str, object]) -> None:
    path.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
