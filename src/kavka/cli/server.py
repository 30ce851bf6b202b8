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
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kavka import __version__
from kavka.broker.settings import Listener, Settings, SettingsError
from kavka.cli import running
from kavka.cli.console_child import ConsoleChild
from kavka.cli.daemon import BrokerDaemon
from kavka.cli.options import Arguments, Command, Option, Positional
from kavka.cli.output import Progress
from kavka.cli.tool import run
from kavka.common.config import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("kavka")

STOP_TIMEOUT_S = 60.0
PATIENCE_AFTER_EOF_S = 5.0
PROGRESS_LOGGER = "kavka.progress"
CONSOLE_PORT = 9080


_OVERRIDE = Option("override", "A setting that counts more than the file's.", "name=value", repeated=True)

COMMAND = Command(
    "server",
    "Start a broker. Without a file: one node on localhost:9092 with its data in ./kavka-data.",
    (
        Option("daemon", "In the background; returns once it is ready."),
        _OVERRIDE,
        Option(
            "console",
            "Start the console beside it: a process of its own, at this port, that ends with the broker.",
            "port",
            int,
            optional=True,
            default_text=str(CONSOLE_PORT),
        ),
        Option("no-console", "Start no console, whatever else is said: for make run."),
        # For whoever starts a broker as a child: the listeners are written to this descriptor, one per line, when it
        # is ready; and with the other the broker ends when its standard input does, that is when its parent is gone.
        Option("ready-fd", "The listeners are written here.", "descriptor", int, hidden=True),
        Option("stop-on-eof", "End with the standard input.", hidden=True),
    ),
    positionals=(Positional("server.properties", "Settings, by Kafka's names.", required=False),),
    examples=("kavka server -daemon config/standalone.properties --override num.partitions=3",),
)

STOP_COMMAND = Command(
    "server-stop",
    "Stop the brokers that were started with this installation of Kavka, and wait until they are gone. "
    "No other process is ever touched.",
    (
        _OVERRIDE,
        Option("timeout", "How long to wait, in seconds.", "seconds", float, STOP_TIMEOUT_S, default_text="60"),
    ),
    positionals=(
        Positional("server.properties", "Stop only the broker with the log directories of this file.", required=False),
    ),
)


def main(argv: list[str]) -> int:
    return run(COMMAND, argv, lambda args: _start(argv, args))


def stop_main(argv: list[str]) -> int:
    return run(STOP_COMMAND, argv, _stop)


def _start(argv: list[str], args: Arguments) -> int:
    try:
        settings = Settings.load(_file(args), args["override"])
    except (ConfigError, SettingsError) as error:
        return _fail(str(error))
    if args["daemon"]:
        return _start_daemon(argv, settings)
    _set_up_logging()
    for warning in settings.warnings:
        log.warning("%s", warning)
    if args["stop-on-eof"]:
        threading.Thread(target=_stop_on_eof, daemon=True, name="kavka-parent-watch").start()
    console = None
    if "console" in args and not args["no-console"]:
        data = settings.log_dirs[0].absolute().parent / "kavka-console"
        console = ConsoleChild(args["console"] or CONSOLE_PORT, data)
    return _serve(settings, args["ready-fd"], console)


def _stop(args: Arguments) -> int:
    entries = running.brokers()
    if args.positionals or "override" in args:
        try:
            wanted = {str(path) for path in Settings.load(_file(args), args["override"]).log_dirs}
        except (ConfigError, SettingsError) as error:
            return _fail(str(error))
        entries = [entry for entry in entries if wanted & set(entry.log_dirs)]
    if not entries:
        return _fail("no Kavka broker to stop")
    left = running.stop(entries, args["timeout"])
    for entry in entries:
        if entry not in left:
            print(f"stopped broker {entry.broker_id} (process {entry.pid})")
    if left:
        pids = ", ".join(str(entry.pid) for entry in left)
        return _fail(f"still running after {args['timeout']:g} s: process {pids}")
    return 0


def _file(args: Arguments) -> str | None:
    return args.positionals[0] if args.positionals else None


def _serve(settings: Settings, ready_fd: int | None, console: ConsoleChild | None = None) -> int:
    from kavka.broker import app
    from kavka.common.errors import KafkaError
    from kavka.metadata.store import StoreError
    from kavka.storage.log_dir import LogDirError

    try:
        with running.registered(settings.broker_id, settings.log_dirs):
            return app.run(settings, _announcer(settings, ready_fd, console))
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
    def announce(listeners: Sequence[Listener]) -> None:
        """Called once the broker answers, with the ports it really has."""
        _clear_progress()
        where = ", ".join(map(str, listeners))
        data = ", ".join(map(str, settings.log_dirs))
        if sys.stdout.isatty():
            print(_welcome(settings, listeners), flush=True)
        else:
            log.info("Kavka %s is ready: broker %d at %s, data in %s", __version__, settings.broker_id, where, data)
        if ready_fd is not None:
            with contextlib.suppress(OSError):
                os.write(ready_fd, "".join(f"{listener}\n" for listener in listeners).encode())
                os.close(ready_fd)
        if console is not None:
            console.start(f"{listeners[0].host or 'localhost'}:{listeners[0].port}")

    return announce


def _welcome(settings: Settings, listeners: Sequence[Listener]) -> str:
    """What a person at a terminal sees: where it is, and something to try that works as it stands."""
    host, port = listeners[0].host or "localhost", listeners[0].port
    server, kavka = f"{host}:{port}", _command_name()
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


def _command_name() -> str:
    """How `kavka` is called from here: the script of a checkout, the installed command, or by the interpreter."""
    script = Path(__file__).resolve().parents[3] / "bin" / "kavka"
    if script.exists():
        return _from_here(script)
    return "kavka" if shutil.which("kavka") else f"{_from_here(Path(sys.executable))} -m kavka.cli.main"


def _from_here(path: Path) -> str:
    with contextlib.suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)


def _set_up_logging() -> None:
    """To standard error: everything into a file, at a terminal only what needs a look; or as KAVKA_LOG_LEVEL says."""
    level = os.environ.get("KAVKA_LOG_LEVEL", "").upper()
    if level not in logging.getLevelNamesMapping():
        level = "WARNING" if sys.stderr.isatty() else "INFO"
    logging.basicConfig(level=level, format="[%(asctime)s] %(levelname)s %(message)s (%(name)s)", stream=sys.stderr)
    if level == "WARNING" and sys.stderr.isatty():
        progress = logging.getLogger(PROGRESS_LOGGER)
        progress.setLevel(logging.INFO)
        progress.propagate = False
        progress.handlers = [_ProgressLine()]


class _ProgressLine(logging.Handler):
    """At a terminal: how far a recovery is, as one line that changes."""

    def __init__(self) -> None:
        super().__init__()
        self.line = Progress()

    def emit(self, record: logging.LogRecord) -> None:
        self.line.show(record.getMessage(), now=True)


def _clear_progress() -> None:
    for handler in logging.getLogger(PROGRESS_LOGGER).handlers:
        if isinstance(handler, _ProgressLine):
            handler.line.clear()


def _stop_on_eof() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(PATIENCE_AFTER_EOF_S)
    os._exit(1)


def _start_daemon(argv: list[str], settings: Settings) -> int:
    """The same command as a process of its own, with its output in a file. Returns when that is ready or has failed."""
    output = Path(os.environ.get("LOG_DIR") or "kavka-logs") / f"server-{settings.broker_id}.out"
    broker = BrokerDaemon([argument for argument in argv if argument not in ("-daemon", "--daemon")], output)
    listeners = broker.wait_until_ready()
    if not listeners:
        print(broker.why_it_ended(), file=sys.stderr)
        return 1
    print(
        f"broker {settings.broker_id} runs as process {broker.pid} at {', '.join(listeners)}, its output is in {output}"
    )
    broker.let_go()
    return 0


def _explain(error: OSError) -> str:
    if error.errno is None or error.strerror is None:
        return str(error)
    return f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror


def _fail(message: str) -> int:
    _clear_progress()
    print(f"kavka: {message}", file=sys.stderr)
    return 1
