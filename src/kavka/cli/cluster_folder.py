"""A cluster in a folder: who belongs to it, on which ports, and which processes they are.

    cluster.json            the members, as this file writes them
    lock                    held by a command that changes something
    zookeeper/              zookeeper.properties, data/, zookeeper.log
    broker-N/               server.properties, data/, broker.log

`cluster.json` is replaced as a whole, after each process that was started: a command that dies in the middle leaves at
most a process that is not in it, and that one still holds its ports. A process is known by its id and the moment it
began, so that another with the same id is never touched.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kavka.cli import running, zookeeper_jars, zookeeper_server
from kavka.cli.daemon import BrokerDaemon, Daemon
from kavka.cli.tool import ToolError

HOST = "localhost"
STOP_TIMEOUT_S = 60.0
KNOWN_TIMEOUT_S = 60.0
GROUPS_TIMEOUT_S = 20.0
ZOOKEEPER_TICK_MS = 1000


@dataclass(slots=True)
class Member:
    """A broker, or the ZooKeeper (which has no id). `pid` and `started` are of its last life."""

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
    def alive(self) -> bool:
        return self._process.alive

    @property
    def _process(self) -> running.Running:
        return running.Running(self.pid, self.started, "")

    def kill(self) -> None:
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            running.stop([self._process], STOP_TIMEOUT_S)

    def is_now(self, daemon: Daemon) -> None:
        self.pid, self.started = daemon.pid, running.start_time(daemon.pid)


class ClusterFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.members: list[Member] = []
        # What every broker was given with --override, those that come later too.
        self.overrides: dict[str, str] = {}
        self._read()

    @property
    def brokers(self) -> list[Member]:
        return [member for member in self.members if member.id is not None]

    @property
    def zookeeper(self) -> Member:
        return next(member for member in self.members if member.id is None)

    # --- what is on disk

    @contextlib.contextmanager
    def locked(self, *, make: bool = False) -> Iterator[None]:
        """One command at a time; what another has changed meanwhile is read."""
        if make:
            self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ToolError(f"another command is at work on {self.path}") from None
            self._read()
            yield

    def _read(self) -> None:
        try:
            text = (self.path / "cluster.json").read_text()
        except FileNotFoundError:
            return
        try:
            found = json.loads(text)
            self.members = [Member(self.path, **member) for member in found["members"]]
            self.overrides = dict(found.get("overrides", {}))
            assert self.zookeeper and self.brokers
        except (ValueError, KeyError, TypeError, StopIteration, AssertionError):
            raise ToolError(f"{self.path / 'cluster.json'} is not readable; remove {self.path} to begin anew") from None

    def _write(self) -> None:
        temporary = self.path / "cluster.json.tmp"
        members = [
            {"id": member.id, "port": member.port, "pid": member.pid, "started": member.started}
            for member in self.members
        ]
        temporary.write_text(json.dumps({"members": members, "overrides": self.overrides}, indent=2) + "\n")
        temporary.replace(self.path / "cluster.json")

    # --- who belongs to it

    def plan_zookeeper(self, port: int) -> None:
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
        """So many in all. Those that were there before keep their ports; `overrides` count for all of them."""
        given: dict[str, str] = {}
        for text in overrides:
            name, equals, value = text.partition("=")
            if not equals or not name.strip():
                raise ToolError(f"--override {text}: expected name=value")
            given[name.strip()] = value
        self.overrides |= given
        factor = min(3, count)
        for number in range(len(self.brokers), count):
            taken = [member.port for member in self.members]
            port = _free_port(first_port + number, taken)
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
                # When the whole cluster stops, the last broker has nobody to hand over to.
                "controlled.shutdown.retry.backoff.ms": 200,
            }
            settings |= self._kept(broker) or self.overrides
            settings |= given
            broker.folder.mkdir(parents=True, exist_ok=True)
            _write_properties(broker.config, settings)
        self._write()

    def _kept(self, broker: Member) -> dict[str, object]:
        """The file of an earlier life, which somebody may have edited."""
        from kavka.common.properties import parse_properties

        return dict(parse_properties(broker.config.read_text())) if broker.config.exists() else {}

    # --- their lives

    def start(self, members: Sequence[Member]) -> None:
        """Those of them that do not run, the ZooKeeper first and the brokers at the same time."""
        if self.zookeeper in members and not self.zookeeper.alive:
            self._start_zookeeper()
        starting: list[tuple[Member, BrokerDaemon]] = []
        failed: list[str] = []
        for broker in members:
            if broker.id is not None and not broker.alive:
                daemon = BrokerDaemon([str(broker.config)], broker.log_file)
                broker.is_now(daemon)
                self._write()
                starting.append((broker, daemon))
        for broker, daemon in starting:
            if daemon.wait_until_ready():
                daemon.let_go()
            else:
                failed.append(f"broker {broker.id}: {daemon.why_it_ended()}")
        if failed:
            raise ToolError("; ".join(failed))
        self._wait_until_all_know()

    def _start_zookeeper(self) -> None:
        member = self.zookeeper
        config = zookeeper_server.ServerConfig.read(member.config)
        try:
            argv = zookeeper_jars.server_command(config.path)
        except zookeeper_jars.NoZooKeeper as error:
            raise ToolError(str(error)) from None
        server = zookeeper_server.launch(config, argv, member.log_file)
        member.is_now(server)
        server.let_go()
        self._write()

    def _wait_until_all_know(self) -> None:
        """Until the controller, which makes topics, has heard of every broker that runs."""
        from kavka.client.admin import Admin
        from kavka.common.errors import KafkaError

        wanted = {broker.id for broker in self.brokers if broker.alive}
        servers = ",".join(broker.address for broker in self.brokers if broker.alive)
        deadline = time.monotonic() + KNOWN_TIMEOUT_S
        with Admin({"bootstrap.servers": servers}) as admin:
            while True:
                found = admin.describe_cluster(timeout=KNOWN_TIMEOUT_S)
                if found.controller is not None and wanted <= {node.id for node in found.nodes}:
                    break
                if time.monotonic() > deadline:
                    raise ToolError(f"the brokers do not all know of each other after {KNOWN_TIMEOUT_S:g} s")
                time.sleep(0.05)
            if len(wanted) == len(self.brokers):
                # Whoever asks for a group first has the topic of all groups made, with a replica on each broker. Were
                # it asked for when one has been killed already, no group could work until that is back.
                with contextlib.suppress(KafkaError):
                    admin.describe_consumer_groups(["none"], timeout=GROUPS_TIMEOUT_S)

    def stop(self, members: Sequence[Member]) -> None:
        """All at once, and wait. Who does not end in time is killed."""
        living = [member for member in members if member.alive]
        running.stop([member._process for member in living], STOP_TIMEOUT_S)
        for member in living:
            member.kill()

    def controller(self) -> int | None:
        """The id of the broker that is the controller now; None when nobody can tell."""
        if not self.zookeeper.alive:
            return None
        from kavka.cli.zookeeper_brokers import controller_in_zookeeper

        return controller_in_zookeeper(self.zookeeper.address)


def _free_port(wanted: int, taken: Sequence[int]) -> int:
    """That one, or the next that nobody listens at."""
    for port in range(wanted, min(wanted + 1000, 65536)):
        if port in taken:
            continue
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
    raise ToolError(f"no port is free from {wanted} on")


def _write_properties(path: Path, values: dict[str, object]) -> None:
    path.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
