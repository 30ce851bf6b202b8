"""`kavka zookeeper-server-start`, `zookeeper-server-stop` and `zkServer`: run an Apache ZooKeeper
server in Java.

`zookeeper_jars` locates the jars. Only servers of this installation are stopped.
"""

from __future__ import annotations

import os
import shlex
import socket
import sys
import time
from pathlib import Path
from typing import NamedTuple

from kavka.cli import running, zookeeper_jars
from kavka.cli.config_files import FOLDER as CONFIG_FILES
from kavka.cli.connecting import read_properties
from kavka.cli.daemon import Daemon
from kavka.cli.options import Arguments, Command, Option, Positional, UsageError
from kavka.cli.tool import ToolError, run

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
# The default of Kafka's script.
DEFAULT_HEAP = ("-Xmx512M",)
DEFAULT_CONFIGS = ("conf/zoo.cfg", "config/zoo.cfg", "config/zookeeper.properties")

COMMAND = Command(
    "zookeeper-server-start",
    "Start a ZooKeeper server. It requires Java, and the jars of PySpark or of a ZooKeeper distribution in "
    "ZOOKEEPER_HOME. KAFKA_HEAP_OPTS and KAFKA_OPTS are passed to Java.",
    (Option("daemon", "Run in the background. Returns when the server is ready."),),
    positionals=(Positional("zookeeper.properties", "ZooKeeper settings."),),
    examples=("kavka zookeeper-server-start -daemon config/zookeeper.properties",),
)

STOP_COMMAND = Command(
    "zookeeper-server-stop",
    "Stop the ZooKeeper servers of this Kavka installation and wait until they have stopped.",
    (Option("timeout", "Maximum time to wait, in seconds.", "seconds", float, STOP_TIMEOUT_S, default_text="30"),),
    positionals=(Positional("zookeeper.properties", "Stop only the server with this file.", required=False),),
)

ZKSERVER_COMMAND = Command(
    "zkServer",
    "Manage a ZooKeeper server like ZooKeeper's script of this name: start, start-foreground, stop, restart, status, "
    "version or print-cmd.",
    (Option("config", "The directory of zoo.cfg.", "directory", completes="directory"),),
    positionals=(
        Positional("action", "start, start-foreground, stop, restart, status, version or print-cmd"),
        Positional(
            "zoo.cfg",
            "ZooKeeper settings. By default ZOOCFG in ZOOCFGDIR, else conf/zoo.cfg, config/zoo.cfg or "
            "config/zookeeper.properties in the current folder or the installation",
            required=False,
        ),
    ),
    examples=("kavka zkServer start", "kavka zkServer status config/zookeeper.properties"),
)


def main(argv: list[str]) -> int:
    return run(COMMAND, argv, _start)


def stop_main(argv: list[str]) -> int:
    return run(STOP_COMMAND, argv, _stop)


def zkserver_main(argv: list[str]) -> int:
    return run(ZKSERVER_COMMAND, argv, _zkserver)


class ServerConfig(NamedTuple):
    """The settings of a server that the commands use. The port is 0 if the file has none."""

    path: Path
    host: str
    port: int
    is_standalone: bool

    @classmethod
    def read(cls, path: Path) -> ServerConfig:
        """Read a properties file. Raise ToolError if it is invalid."""
        values = read_properties(path)
        if not values.get("dataDir"):
            raise ToolError(f"{path}: dataDir is missing")
        port = values.get("clientPort", "0")
        if not port.isdigit() or int(port) > 65535:
            raise ToolError(f"{path}: clientPort={port} is not a port")
        host = values.get("clientPortAddress", "")
        is_standalone = not any(name.startswith("server.") for name in values) and "dynamicConfigFile" not in values
        return cls(path.absolute(), "localhost" if host in ("", "0.0.0.0", "::") else host, int(port), is_standalone)

    def query(self, word: str, timeout: float = 2.0) -> str:
        """Return the response to a four-letter word; empty if the server is not reachable."""
        try:
            with socket.create_connection((self.host, self.port), timeout) as connection:
                connection.sendall(word.encode())
                pieces = []
                while piece := connection.recv(4096):
                    pieces.append(piece)
        except OSError:
            return ""
        return b"".join(pieces).decode(errors="replace")

    def is_ready(self) -> bool:
        """Query the server and return whether it is ready. A member of an ensemble is ready when it
        responds, since it serves requests only with a quorum."""
        response = self.query("srvr")
        return bool(response) and (not self.is_standalone or "not currently serving" not in response)


def command(config: ServerConfig) -> list[str]:
    """Return the command of the server, with the Java options from the environment. Raise ToolError
    if Java or the jars are missing."""
    heap = shlex.split(os.environ.get("KAFKA_HEAP_OPTS", "")) or DEFAULT_HEAP
    try:
        return zookeeper_jars.server_command(config.path, jvm=[*heap, *shlex.split(os.environ.get("KAFKA_OPTS", ""))])
    except zookeeper_jars.NoZooKeeper as error:
        raise ToolError(str(error)) from None


def launch(config: ServerConfig, argv: list[str], output: Path) -> Daemon:
    """Start a server in the background and wait until it is ready. Raise ToolError if it does not
    start."""
    if config.port and config.query("srvr"):
        raise ToolError(f"a ZooKeeper server is already running at {config.host}:{config.port}")
    server = Daemon(argv, output)
    running.register_zookeeper(server.pid, config.path)
    deadline = time.monotonic() + START_TIMEOUT_S
    while config.port and not config.is_ready():
        if not server.is_running:
            raise ToolError(_start_error(config, server))
        if time.monotonic() > deadline:
            server.kill()
            raise ToolError(f"ZooKeeper is not ready after {START_TIMEOUT_S:g} s, see {output}")
        time.sleep(0.02)
    return server


def _start_error(config: ServerConfig, server: Daemon) -> str:
    lines = server.output_lines()
    if any("Address already in use" in line for line in lines):
        return f"port {config.port} in {config.path} is already in use"
    errors = [line for line in lines if " ERROR " in line or "Exception" in line]
    return f"ZooKeeper did not start: {(errors or lines or ['no output'])[0].strip()} (see {server.output})"


def _start(args: Arguments) -> int:
    config = ServerConfig.read(Path(args.positionals[0]))
    if not args["daemon"]:
        return _exec_server(config)
    _start_in_background(config)
    return 0


def _exec_server(config: ServerConfig) -> int:
    argv = command(config)
    running.register_zookeeper(os.getpid(), config.path)
    sys.stdout.flush()
    os.execv(argv[0], argv)


def _start_in_background(config: ServerConfig) -> None:
    output = Path(os.environ.get("LOG_DIR") or "kavka-logs") / "zookeeper.out"
    server = launch(config, command(config), output)
    address = f" at {config.host}:{config.port}" if config.port else ""
    print(f"ZooKeeper is running as process {server.pid}{address}, output in {output}")
    server.detach()


def _stop(args: Arguments) -> int:
    entries = running.zookeepers()
    if args.positionals:
        config = str(Path(args.positionals[0]).absolute())
        entries = [entry for entry in entries if entry.config == config]
    if not entries:
        raise ToolError("no ZooKeeper server to stop")
    alive = running.stop(entries, args["timeout"])
    for entry in entries:
        if entry not in alive:
            print(f"stopped ZooKeeper (process {entry.pid})")
    if alive:
        pids = ", ".join(str(entry.pid) for entry in alive)
        raise ToolError(f"still running after {args['timeout']:g} s: process {pids}")
    return 0


# --- zkServer


def _zkserver(args: Arguments) -> int:
    action = args.positionals[0]
    if action == "version":
        return _print_version()
    config = ServerConfig.read(_default_config(args))
    entries = [entry for entry in running.zookeepers() if entry.config == str(config.path)]
    print(f"Using config: {config.path}", file=sys.stderr)
    match action:
        case "start":
            return _zkserver_start(config, entries)
        case "start-foreground":
            return _exec_server(config)
        case "stop":
            return _zkserver_stop(entries)
        case "restart":
            _zkserver_stop(entries)
            return _zkserver_start(config, [])
        case "status":
            return _print_status(config)
        case "print-cmd":
            print(shlex.join(command(config)))
            return 0
    raise UsageError(
        f"unknown action '{action}'; it must be one of start, start-foreground, stop, restart, status, version, "
        "print-cmd"
    )


def _zkserver_start(config: ServerConfig, entries: list[running.RunningZooKeeper]) -> int:
    if entries:
        print(f"Starting zookeeper ... already running as process {entries[0].pid}.")
        return 1
    output = Path(os.environ.get("ZOO_LOG_DIR") or os.environ.get("LOG_DIR") or "kavka-logs") / "zookeeper.out"
    argv = command(config)
    try:
        server = launch(config, argv, output)
    except ToolError:
        print("Starting zookeeper ... FAILED TO START")
        raise
    server.detach()
    print("Starting zookeeper ... STARTED")
    return 0


def _zkserver_stop(entries: list[running.RunningZooKeeper]) -> int:
    if not entries:
        print("Stopping zookeeper ... no zookeeper to stop (this installation runs none with this file)")
        return 1
    if running.stop(entries, STOP_TIMEOUT_S):
        raise ToolError(f"still running after {STOP_TIMEOUT_S:g} s: process {entries[0].pid}")
    print("Stopping zookeeper ... STOPPED")
    return 0


def _print_status(config: ServerConfig) -> int:
    if not config.port:
        raise ToolError(f"{config.path}: clientPort is missing")
    print(f"Client port found: {config.port}. Client address: {config.host}. Client SSL: false.")
    mode = next((line for line in config.query("srvr").splitlines() if line.startswith("Mode: ")), None)
    print(mode or "Error contacting service. It is probably not running.")
    return 0 if mode else 1


def _print_version() -> int:
    try:
        jars = zookeeper_jars.find_jars()
    except zookeeper_jars.NoZooKeeper as error:
        raise ToolError(str(error)) from None
    names = [jar.stem.removeprefix("zookeeper-") for jar in jars if jar.name.startswith("zookeeper-")]
    print(f"Apache ZooKeeper, version {next(name for name in names if name[:1].isdigit())}")
    return 0


def _default_config(args: Arguments) -> Path:
    """Return the configuration file of zkServer."""
    folder = args["config"] or os.environ.get("ZOOCFGDIR")
    if len(args.positionals) > 1:
        path = Path(args.positionals[1])
        return path if path.exists() or folder is None else Path(folder) / path
    name = os.environ.get("ZOOCFG", "zoo.cfg")
    if folder is not None:
        return Path(folder) / name
    bases = (Path.cwd(), Path(running.home()).parents[1])
    candidates = [base / candidate for base in bases for candidate in DEFAULT_CONFIGS]
    return next((path for path in candidates if path.exists()), CONFIG_FILES / "zookeeper.properties")
