"""`kavka zookeeper-server-start`, `zookeeper-server-stop` and `zkServer`: a ZooKeeper server, run by Java.

The server is ZooKeeper's own; where its classes come from is in `zookeeper_jars`. Only servers that were started from
this installation are ever stopped.
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
from kavka.cli.daemon import Daemon
from kavka.cli.options import Arguments, Command, Option, Positional, UsageError
from kavka.cli.tool import ToolError, run
from kavka.common.properties import PropertiesError, parse_properties

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
# As Kafka's own script gives it.
HEAP = ("-Xmx512M",)
DEFAULT_CONFIGS = ("conf/zoo.cfg", "config/zoo.cfg", "config/zookeeper.properties")

COMMAND = Command(
    "zookeeper-server-start",
    "Start a ZooKeeper server (it needs Java, and the jars that come with PySpark or with a ZooKeeper in "
    "ZOOKEEPER_HOME). KAFKA_HEAP_OPTS and KAFKA_OPTS are given to Java.",
    (Option("daemon", "In the background; returns once it is ready."),),
    positionals=(Positional("zookeeper.properties", "Settings, by ZooKeeper's names."),),
    examples=("kavka zookeeper-server-start -daemon config/zookeeper.properties",),
)

STOP_COMMAND = Command(
    "zookeeper-server-stop",
    "Stop the ZooKeeper servers that were started with this installation of Kavka, and wait until they are gone. "
    "No other process is ever touched.",
    (Option("timeout", "How long to wait, in seconds.", "seconds", float, STOP_TIMEOUT_S, default_text="30"),),
    positionals=(Positional("zookeeper.properties", "Stop only the server with this file.", required=False),),
)

ZKSERVER_COMMAND = Command(
    "zkServer",
    "Start and stop a ZooKeeper server as ZooKeeper's own script does: start, start-foreground, stop, restart, status, "
    "version or print-cmd.",
    (Option("config", "The directory of zoo.cfg.", "directory", completes="directory"),),
    positionals=(
        Positional("action", "start, start-foreground, stop, restart, status, version or print-cmd", completes=""),
        Positional(
            "zoo.cfg",
            "Settings; where it is not given: ZOOCFG in ZOOCFGDIR, else conf/zoo.cfg, config/zoo.cfg or "
            "config/zookeeper.properties, from here or from the installation",
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
    """What a command has to know of a server's file. Port 0: nobody can tell from the file where it listens."""

    path: Path
    host: str
    port: int
    standalone: bool

    @classmethod
    def read(cls, path: Path) -> ServerConfig:
        try:
            values = parse_properties(path.read_text())
        except OSError as error:
            raise ToolError(f"{path}: {error.strerror}") from None
        except (PropertiesError, UnicodeDecodeError) as error:
            raise ToolError(f"{path}: {error}") from None
        if not values.get("dataDir"):
            raise ToolError(f"{path}: dataDir is missing")
        port = values.get("clientPort", "0")
        if not port.isdigit() or int(port) > 65535:
            raise ToolError(f"{path}: clientPort={port} is not a port")
        host = values.get("clientPortAddress", "")
        alone = not any(name.startswith("server.") for name in values) and "dynamicConfigFile" not in values
        return cls(path.absolute(), "localhost" if host in ("", "0.0.0.0", "::") else host, int(port), alone)

    def ask(self, word: str, timeout: float = 2.0) -> str:
        """The answer to a four-letter word; empty when nobody answers."""
        try:
            with socket.create_connection((self.host, self.port), timeout) as connection:
                connection.sendall(word.encode())
                pieces = []
                while piece := connection.recv(4096):
                    pieces.append(piece)
        except OSError:
            return ""
        return b"".join(pieces).decode(errors="replace")

    def serves(self) -> bool:
        """A member of an ensemble is there as soon as it answers: whether it serves is up to the others too."""
        answer = self.ask("srvr")
        return bool(answer) and (not self.standalone or "not currently serving" not in answer)


def command(config: ServerConfig) -> list[str]:
    heap = shlex.split(os.environ.get("KAFKA_HEAP_OPTS", "")) or HEAP
    try:
        return zookeeper_jars.server_command(config.path, jvm=[*heap, *shlex.split(os.environ.get("KAFKA_OPTS", ""))])
    except zookeeper_jars.NoZooKeeper as error:
        raise ToolError(str(error)) from None


def launch(config: ServerConfig, argv: list[str], output: Path) -> Daemon:
    """A server in the background, once it serves."""
    if config.port and config.ask("srvr"):
        raise ToolError(f"a ZooKeeper serves at {config.host}:{config.port} already")
    server = Daemon(argv, output)
    running.register_zookeeper(server.pid, config.path)
    deadline = time.monotonic() + START_TIMEOUT_S
    while config.port and not config.serves():
        if not server.running:
            raise ToolError(_why(config, server))
        if time.monotonic() > deadline:
            server.kill()
            raise ToolError(f"it does not serve after {START_TIMEOUT_S:g} s, see {output}")
        time.sleep(0.02)
    return server


def _why(config: ServerConfig, server: Daemon) -> str:
    lines = server.written()
    if any("Address already in use" in line for line in lines):
        return f"port {config.port} of {config.path} is in use already"
    told = [line for line in lines if " ERROR " in line or "Exception" in line]
    return f"ZooKeeper did not start: {(told or lines or ['it said nothing'])[0].strip()} (see {server.output})"


def _start(args: Arguments) -> int:
    config = ServerConfig.read(Path(args.positionals[0]))
    if not args["daemon"]:
        return _become(config)
    _start_in_background(config)
    return 0


def _become(config: ServerConfig) -> int:
    argv = command(config)
    running.register_zookeeper(os.getpid(), config.path)
    sys.stdout.flush()
    os.execv(argv[0], argv)


def _start_in_background(config: ServerConfig) -> None:
    output = Path(os.environ.get("LOG_DIR") or "kavka-logs") / "zookeeper.out"
    server = launch(config, command(config), output)
    where = f" at {config.host}:{config.port}" if config.port else ""
    print(f"ZooKeeper runs as process {server.pid}{where}, its output is in {output}")
    server.let_go()


def _stop(args: Arguments) -> int:
    entries = running.zookeepers()
    if args.positionals:
        wanted = str(Path(args.positionals[0]).absolute())
        entries = [entry for entry in entries if entry.config == wanted]
    if not entries:
        raise ToolError("no ZooKeeper server to stop")
    left = running.stop(entries, args["timeout"])
    for entry in entries:
        if entry not in left:
            print(f"stopped ZooKeeper (process {entry.pid})")
    if left:
        pids = ", ".join(str(entry.pid) for entry in left)
        raise ToolError(f"still running after {args['timeout']:g} s: process {pids}")
    return 0


# --- zkServer


def _zkserver(args: Arguments) -> int:
    action = args.positionals[0]
    if action == "version":
        return _version()
    config = ServerConfig.read(_default_config(args))
    found = [entry for entry in running.zookeepers() if entry.config == str(config.path)]
    print(f"Using config: {config.path}", file=sys.stderr)
    match action:
        case "start":
            return _zkserver_start(config, found)
        case "start-foreground":
            return _become(config)
        case "stop":
            return _zkserver_stop(found)
        case "restart":
            _zkserver_stop(found)
            return _zkserver_start(config, [])
        case "status":
            return _status(config)
        case "print-cmd":
            print(shlex.join(command(config)))
            return 0
    raise UsageError(f"there is no '{action}': start, start-foreground, stop, restart, status, version, print-cmd")


def _zkserver_start(config: ServerConfig, found: list[running.RunningZooKeeper]) -> int:
    if found:
        print(f"Starting zookeeper ... already running as process {found[0].pid}.")
        return 1
    output = Path(os.environ.get("ZOO_LOG_DIR") or os.environ.get("LOG_DIR") or "kavka-logs") / "zookeeper.out"
    argv = command(config)
    try:
        server = launch(config, argv, output)
    except ToolError:
        print("Starting zookeeper ... FAILED TO START")
        raise
    server.let_go()
    print("Starting zookeeper ... STARTED")
    return 0


def _zkserver_stop(found: list[running.RunningZooKeeper]) -> int:
    if not found:
        print("Stopping zookeeper ... no zookeeper to stop (none was started from here with this file)")
        return 1
    if running.stop(found, STOP_TIMEOUT_S):
        raise ToolError(f"process {found[0].pid} still runs after {STOP_TIMEOUT_S:g} s")
    print("Stopping zookeeper ... STOPPED")
    return 0


def _status(config: ServerConfig) -> int:
    if not config.port:
        raise ToolError(f"{config.path}: there is no clientPort to ask at")
    print(f"Client port found: {config.port}. Client address: {config.host}. Client SSL: false.")
    mode = next((line for line in config.ask("srvr").splitlines() if line.startswith("Mode: ")), None)
    print(mode or "Error contacting service. It is probably not running.")
    return 0 if mode else 1


def _version() -> int:
    try:
        jars = zookeeper_jars.find_jars()
    except zookeeper_jars.NoZooKeeper as error:
        raise ToolError(str(error)) from None
    names = [jar.stem.removeprefix("zookeeper-") for jar in jars if jar.name.startswith("zookeeper-")]
    print(f"Apache ZooKeeper, version {next(name for name in names if name[:1].isdigit())}")
    return 0


def _default_config(args: Arguments) -> Path:
    folder = args["config"] or os.environ.get("ZOOCFGDIR")
    if len(args.positionals) > 1:
        given = Path(args.positionals[1])
        return given if given.exists() or folder is None else Path(folder) / given
    name = os.environ.get("ZOOCFG", "zoo.cfg")
    if folder is not None:
        return Path(folder) / name
    for base in (Path.cwd(), Path(running.home()).parents[1]):
        for candidate in DEFAULT_CONFIGS:
            if (base / candidate).exists():
                return base / candidate
    raise ToolError(f"no {' or '.join(DEFAULT_CONFIGS)} is here: name the file")
