"""`kavka server` (`kafka-server-start`) and `kavka server-stop` (`kafka-server-stop`)."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from kavka import __version__
from kavka.broker.settings import Listener, Settings, SettingsError
from kavka.cli import running, shards
from kavka.cli.console_child import ConsoleChild
from kavka.cli.daemon import STOP_TIMEOUT_S, BrokerDaemon
from kavka.cli.options import Arguments, Command, Option, Positional
from kavka.cli.output import Progress
from kavka.cli.supervisor import parse_count
from kavka.cli.tool import ToolError, log_to_stderr, run
from kavka.common.config import ConfigError
from kavka.security.credentials import NewUser, parse_new_user

logger = logging.getLogger("kavka")

EXIT_DELAY_AFTER_EOF_S = 5.0
PROGRESS_LOGGER = "kavka.progress"
DEFAULT_CONSOLE_PORT = 9080

_ADD_SCRAM = Option(
    "add-scram",
    "Create a SCRAM user at the start, unless it exists: SCRAM-SHA-256=[name=alice,password=secret]; or @ and a file "
    "with a user per line, which other users of the machine cannot see.",
    "user",
    repeated=True,
)
_OVERRIDE = Option("override", "A setting that overrides the file.", "name=value", repeated=True)

COMMAND = Command(
    "server",
    "Start a broker. Without a file: a single node on localhost:9092 with its data in ./kavka-data.",
    (
        Option("daemon", "Run in the background. Returns when the broker is ready."),
        _OVERRIDE,
        Option(
            "shards",
            "Run this number of brokers of a cluster as one unit, with consecutive ids and ports and a folder for each "
            "in log.dirs; auto means one per core. A broker that dies is restarted. Requires zookeeper.connect.",
            "number",
        ),
        _ADD_SCRAM,
        Option(
            "console",
            "Also start the console on this port, in a separate process that stops with the broker.",
            "port",
            int,
            optional=True,
            default_text=str(DEFAULT_CONSOLE_PORT),
        ),
        Option("no-console", "Do not start the console. Overrides --console."),
        # For parent processes. A ready broker writes its listeners to `ready-fd`, one per line. The
        # end of standard input means that the parent has ended; the broker is killed if it has not
        # stopped some seconds later.
        Option("ready-fd", "The descriptor to write the listeners to.", "descriptor", int, hidden=True),
        Option("stop-on-eof", "Stop at the end of standard input.", "seconds", int, optional=True, hidden=True),
    ),
    positionals=(Positional("server.properties", "Broker settings with Kafka's names.", required=False),),
    examples=(
        "kavka server -daemon config/standalone.properties --override num.partitions=3",
        "kavka server config/server.properties --shards auto",
    ),
)

STOP_COMMAND = Command(
    "server-stop",
    "Stop the brokers of this Kavka installation and wait until they have stopped. The brokers of a unit (--shards) "
    "stop one after another.",
    (
        _OVERRIDE,
        Option("timeout", "Maximum time to wait, in seconds.", "seconds", float, STOP_TIMEOUT_S),
    ),
    positionals=(
        Positional("server.properties", "Stop only the broker or unit with the log.dirs in this file.", required=False),
    ),
)


def main(argv: list[str]) -> int:
    return run(COMMAND, argv, lambda args: _start(argv, args))


def stop_main(argv: list[str]) -> int:
    return run(STOP_COMMAND, argv, _stop)


def _start(argv: list[str], args: Arguments) -> int:
    try:
        settings = Settings.load(_config_file(args), args["override"])
    except (ConfigError, SettingsError) as error:
        return _fail(str(error))
    try:
        new_users = _new_users(args["add-scram"])
    except (OSError, ValueError) as error:
        return _fail(f"--add-scram: {error}")
    unit: list[shards.Shard] = []
    try:
        if args["shards"] is None:
            shards.check_unsharded(settings)
        else:
            unit = _plan_unit(settings, args)
    except (ConfigError, SettingsError) as error:
        return _fail(str(error))
    if args["daemon"]:
        return _start_daemon(argv, settings, len(unit))
    _set_up_logging()
    for warning in settings.warnings:
        logger.warning("%s", warning)
    if "stop-on-eof" in args:
        delay_s = float(args["stop-on-eof"] or EXIT_DELAY_AFTER_EOF_S)
        threading.Thread(target=_stop_on_eof, args=(delay_s,), daemon=True, name="kavka-parent-watch").start()
    console = None
    if "console" in args and not args["no-console"]:
        data = settings.log_dirs[0].absolute().parent / "kavka-console"
        console = ConsoleChild(args["console"] or DEFAULT_CONSOLE_PORT, data)
    if unit:
        return _serve_unit(settings, unit, args, console)
    return _serve(settings, args["ready-fd"], console, new_users)


def _plan_unit(settings: Settings, args: Arguments) -> list[shards.Shard]:
    """Return the brokers of `--shards`. Raises ConfigError or SettingsError if one cannot start."""
    unit = shards.plan(settings, parse_count("--shards", args["shards"]))
    shards.check_folders(settings, unit)
    for shard in unit:
        Settings.load(_config_file(args), [*args["override"], *shard.overrides])
    return unit


def _serve_unit(settings: Settings, unit: Sequence[shards.Shard], args: Arguments, console: ConsoleChild | None) -> int:
    arguments = [*args.positionals[:1], *(word for text in args["override"] for word in ("--override", text))]
    users = [word for text in args["add-scram"] for word in ("--add-scram", text)]

    def announce(listeners: list[str]) -> None:
        brokers = f"brokers {unit[0].broker_id} to {unit[-1].broker_id}"
        if sys.stdout.isatty():
            print(f"Kavka {__version__} is ready: {brokers} at {', '.join(listeners)}. Ctrl-C stops them.", flush=True)
        else:
            logger.info("Kavka %s is ready: %s at %s", __version__, brokers, ", ".join(listeners))
        _write_ready(args["ready-fd"], listeners)
        if console is not None:
            console.start(",".join(listener.partition("://")[2] for listener in listeners))

    try:
        with running.registered_supervisor(settings.log_dirs):
            shards.Unit(settings, unit, arguments, users, _output_folder()).run(announce)
    except (ConfigError, ToolError) as error:
        return _fail(str(error))
    finally:
        if console is not None:
            console.stop()
    return 0


def _stop(args: Arguments) -> int:
    brokers, supervisors = running.brokers(), running.supervisors()
    if args.positionals or "override" in args:
        try:
            log_dirs = {str(path) for path in Settings.load(_config_file(args), args["override"]).log_dirs}
        except (ConfigError, SettingsError) as error:
            return _fail(str(error))
        supervisors = [entry for entry in supervisors if log_dirs & set(entry.log_dirs)]
        brokers = [
            entry
            for entry in brokers
            if log_dirs & set(entry.log_dirs) or any(supervisor.has_broker(entry) for supervisor in supervisors)
        ]
    if not brokers and not supervisors:
        return _fail("no Kavka broker to stop")
    # A supervisor stops its brokers in order.
    others = [entry for entry in brokers if not any(supervisor.has_broker(entry) for supervisor in supervisors)]
    alive = running.stop([*supervisors, *others], args["timeout"])
    for entry in brokers:
        if not entry.is_alive:
            print(f"stopped broker {entry.broker_id} (process {entry.pid})")
    for supervisor in supervisors:
        if not supervisor.is_alive:
            print(f"stopped supervisor (process {supervisor.pid})")
    if alive:
        pids = ", ".join(str(entry.pid) for entry in alive)
        return _fail(f"still running after {args['timeout']:g} s: process {pids}")
    return 0


def _config_file(args: Arguments) -> str | None:
    return args.positionals[0] if args.positionals else None


def _new_users(texts: Sequence[str]) -> list[NewUser]:
    """Return the users of `--add-scram`. Raises ValueError or OSError."""
    users: list[NewUser] = []
    for text in texts:
        lines = Path(text[1:]).read_text().splitlines() if text.startswith("@") else [text]
        users += [parse_new_user(line) for line in lines if line.strip()]
    return users


def _serve(
    settings: Settings,
    ready_fd: int | None,
    console: ConsoleChild | None = None,
    new_users: Sequence[NewUser] = (),
) -> int:
    from kavka.broker import app
    from kavka.common.errors import KafkaError
    from kavka.metadata.store import StoreError
    from kavka.storage.log_dir import LogDirError

    try:
        with running.registered(settings.broker_id, settings.log_dirs):
            return app.run(settings, _announcer(settings, ready_fd, console), new_users)
    except KeyboardInterrupt:
        return 0
    except OSError as error:
        return _fail(_explain(error))
    except (ConfigError, KafkaError, LogDirError, StoreError) as error:
        return _fail(str(error))
    finally:
        if console is not None:
            console.stop()


def _announcer(
    settings: Settings, ready_fd: int | None, console: ConsoleChild | None
) -> Callable[[Sequence[Listener]], None]:
    """Return the function that the broker calls with its listeners when it is ready."""

    def announce(listeners: Sequence[Listener]) -> None:
        """Announce that the broker is ready, and start the console. The listeners have their actual
        ports."""
        _clear_progress()
        addresses = ", ".join(map(str, listeners))
        data = ", ".join(map(str, settings.log_dirs))
        if sys.stdout.isatty():
            print(_welcome(settings, listeners), flush=True)
        else:
            broker_id = settings.broker_id
            logger.info("Kavka %s is ready: broker %d at %s, data in %s", __version__, broker_id, addresses, data)
        _write_ready(ready_fd, listeners)
        if console is not None:
            console.start(f"{listeners[0].host or 'localhost'}:{listeners[0].port}")

    return announce


def _write_ready(ready_fd: int | None, listeners: Sequence[object]) -> None:
    if ready_fd is not None:
        with contextlib.suppress(OSError):
            os.write(ready_fd, "".join(f"{listener}\n" for listener in listeners).encode())
            os.close(ready_fd)


def _welcome(settings: Settings, listeners: Sequence[Listener]) -> str:
    """Return the welcome text for a terminal, with commands to try."""
    host, port = listeners[0].host or "localhost", listeners[0].port
    server, kavka = f"{host}:{port}", command_name()
    return "\n".join(
        [
            f"Kavka {__version__} is ready: broker {settings.broker_id} at {', '.join(map(str, listeners))}",
            f"Data in {', '.join(map(str, settings.log_dirs))}. Ctrl-C stops it.",
            "",
            f"Any Kafka client can use it at {server}. From a second terminal, for example:",
            f"  echo hello | {kavka} console-producer --bootstrap-server {server} --topic greetings",
            f"  {kavka} console-consumer --bootstrap-server {server} --topic greetings --from-beginning",
            f"  {kavka} --help",
            "",
        ]
    )


def command_name() -> str:
    """Return the command that runs `kavka`: the script of a checkout, the installed command, or the
    interpreter."""
    script = Path(__file__).resolve().parents[3] / "bin" / "kavka"
    if script.exists():
        return _relative(script)
    return "kavka" if shutil.which("kavka") else f"{_relative(Path(sys.executable))} -m kavka.cli.main"


def _relative(path: Path) -> str:
    with contextlib.suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)


def _set_up_logging() -> None:
    """Log to standard error. On a terminal, only warnings and the progress of a recovery are shown
    by default."""
    level = log_to_stderr("WARNING" if sys.stderr.isatty() else "INFO")
    if level == "WARNING" and sys.stderr.isatty():
        progress = logging.getLogger(PROGRESS_LOGGER)
        progress.setLevel(logging.INFO)
        progress.propagate = False
        progress.handlers = [_ProgressLine()]


class _ProgressLine(logging.Handler):
    """Shows the progress of a recovery as a live line on a terminal."""

    def __init__(self) -> None:
        super().__init__()
        self.line = Progress()

    def emit(self, record: logging.LogRecord) -> None:
        self.line.show(record.getMessage(), force=True)


def _clear_progress() -> None:
    for handler in logging.getLogger(PROGRESS_LOGGER).handlers:
        if isinstance(handler, _ProgressLine):
            handler.line.clear()


def _stop_on_eof(exit_delay_s: float) -> None:
    """At the end of standard input, send SIGTERM to this process. Exit if it still runs after a
    delay."""
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(exit_delay_s)
    os._exit(1)


def _output_folder() -> Path:
    return Path(os.environ.get("LOG_DIR") or "kavka-logs")


def _start_daemon(argv: list[str], settings: Settings, shard_count: int) -> int:
    """Run the same command in the background, with its output in a file. Return when the broker is
    ready or has failed. Return the exit code."""
    first = settings.broker_id
    output = _output_folder() / (f"unit-{first}.out" if shard_count else f"server-{first}.out")
    broker = BrokerDaemon([argument for argument in argv if argument not in ("-daemon", "--daemon")], output)
    listeners = broker.wait_until_ready()
    if not listeners:
        print(broker.exit_reason(), file=sys.stderr)
        return 1
    name = f"unit of brokers {first} to {first + shard_count - 1}" if shard_count else f"broker {first}"
    print(f"{name} is running as process {broker.pid} at {', '.join(listeners)}, output in {output}")
    broker.detach()
    return 0


def _explain(error: OSError) -> str:
    if error.errno is None or error.strerror is None:
        return str(error)
    return f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror


def _fail(message: str) -> int:
    _clear_progress()
    print(f"kavka: {message}", file=sys.stderr)
    return 1
