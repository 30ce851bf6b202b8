"""A worker process: settings, Spark session, stores and REST interface, from start to stop."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from kavka.pipeline.connect.errors import ConfigErrors, ConnectError
from kavka.pipeline.connect.herder import Herder
from kavka.pipeline.connect.loading import Declared, items_of
from kavka.pipeline.connect.options import parsed, warn_of_options_without_effect
from kavka.pipeline.connect.providers import HIDDEN, NAMES, Providers, secret_values
from kavka.pipeline.connect.settings import AVAILABLE_NOW, DISTRIBUTED, STANDALONE, client_settings
from kavka.pipeline.connect.stores import ConfigStore, FileTable, MemoryTable, OffsetStore, StatusStore, Table
from kavka.pipeline.connect.tasks import FAILED, Worker
from kavka.pipeline.spark import activate
from kavka.pipeline.spark.session import build_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

_WATCH = 0.5
_SPARK = {
    "spark.sql.shuffle.partitions": "4",
    "spark.scheduler.mode": "FAIR",
    "spark.sql.session.timeZone": "UTC",
}


class Sessions:
    """Owns the worker's Spark session, which all tasks share and which uses UTC. The first call
    starts Spark. Each task calls it from its own thread."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._properties = properties
        self._lock = threading.Lock()
        self._base: SparkSession | None = None

    def __call__(self) -> SparkSession:
        from kavka.pipeline.spark import register

        with self._lock:
            if self._base is None:
                self._base = register(self._start())
            base = self._base
        # Spark resolves `format("kavka")` with the session that is active in the calling thread. A
        # new thread has none.
        activate(base)
        return base

    def _start(self) -> SparkSession:
        settings = {name: value for name, value in self._properties.items() if name.startswith("spark.")}
        master = settings.pop("spark.master", None)
        # The log filter that hides values of configuration providers does not see the output of
        # Spark's process. Our own log reports the failures of tasks.
        level = "OFF" if self._properties.get(NAMES) else "ERROR"
        return build_session("kavka-connect", {**_SPARK, **settings}, master, log_level=level, error=ConnectError)

    def has_crashed(self) -> bool:
        """Whether Spark's process ended unexpectedly: it was killed, or ran out of memory or
        stack."""
        from pyspark import SparkContext

        process = getattr(SparkContext._gateway, "proc", None) if self._base is not None else None
        if process is None or process.poll() is None:
            return False
        logger.error(
            "Spark's process ended with code %s. The worker shuts down: it cannot run connectors", process.returncode
        )
        return True

    def close(self) -> None:
        with self._lock:
            base, self._base = self._base, None
        if base is not None:
            try:
                base.stop()
            except Exception as error:
                logger.debug("Stopping Spark: %s", error)


def _find_plugins(folders: Iterable[str]) -> None:
    for folder in folders:
        if folder and folder not in sys.path:
            sys.path.insert(0, folder)
            # Spark's Python workers also load plugin classes.
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))


def _prepare(properties: Mapping[str, str], options: Any, providers: Providers) -> dict[str, Any]:
    try:
        settings = parsed(options, properties)
    except ConfigErrors as error:
        raise ConfigErrors(providers.hidden_errors(error.errors, {}, {})) from None
    warn_of_options_without_effect(options, properties)
    # PySpark's modules import one another. Import them before threads start: two threads that
    # import them for the first time see incomplete modules.
    with contextlib.suppress(ImportError):
        import pyspark.sql  # noqa: F401
    _find_plugins(settings["plugin.path"])
    return settings


@contextlib.contextmanager
def _resolved(properties: Mapping[str, str]) -> Iterator[tuple[dict[str, str], Providers]]:
    """(the worker's settings with resolved placeholders, its providers). The log hides the resolved
    values inside this context."""
    # A provider may be a plugin.
    _find_plugins(items_of(properties.get("plugin.path", "")))
    providers = Providers.of(properties, Declared.of(properties))
    for value in secret_values(properties):
        providers.secrets.add(value, HIDDEN)
    handlers = list(logging.getLogger().handlers)
    for handler in handlers:
        handler.addFilter(providers.secrets)
    try:
        yield providers.resolved(properties, "The worker's settings"), providers
    finally:
        for handler in handlers:
            handler.removeFilter(providers.secrets)


def _worker(
    properties: Mapping[str, str],
    settings: Mapping[str, Any],
    name: str,
    sessions: Sessions,
    offsets: Table,
    providers: Providers,
) -> Worker:
    folder = settings["checkpoint.dir"]
    if "://" not in folder:
        folder = str(Path(folder).resolve())
    return Worker(
        id=name,
        properties=properties,
        spark=sessions,
        checkpoints=folder,
        offsets=OffsetStore(offsets),
        exactly_once=settings["exactly.once.source.support"].lower() == "enabled",
        shutdown=settings["task.shutdown.graceful.timeout.ms"] / 1000,
        providers=providers,
        declared=Declared.of(properties),
    )


def run_standalone(
    properties: Mapping[str, str],
    connectors: Sequence[Mapping[str, str]],
    ready: Callable[[str], None] = lambda url: None,
) -> int:
    """Run until stopped, or, if all connectors have `trigger=available-now`, until they are done.
    Returns 1 if one of them failed."""
    with _resolved(properties) as (resolved, providers):
        return _standalone(resolved, connectors, ready, providers)


def _standalone(
    properties: Mapping[str, str],
    connectors: Sequence[Mapping[str, str]],
    ready: Callable[[str], None],
    providers: Providers,
) -> int:
    settings = _prepare(properties, STANDALONE, providers)
    server = Server(settings)
    sessions = Sessions(properties)
    offsets = FileTable(Path(settings["offset.storage.file.filename"]))
    worker = _worker(properties, settings, server.name, sessions, offsets, providers)
    herder = Herder(worker, ConfigStore(MemoryTable()), StatusStore(MemoryTable()))
    for config in connectors:
        name = config.get("name", "")
        if not name:
            raise ConfigErrors({"name": ['Missing required configuration "name" which has no default value.']})
        herder.create(name, dict(config), None)
    triggers = [providers.resolved(config).get("trigger") for config in connectors]
    until_done = bool(triggers) and all(trigger == AVAILABLE_NOW for trigger in triggers)
    failed = False

    def watch() -> bool:
        nonlocal failed
        if sessions.has_crashed():
            failed = True
            return True
        outcomes = herder.all_done() if until_done else None
        if outcomes is None:
            return False
        for name, outcome in outcomes.items():
            if outcome.kind == FAILED:
                failed = True
                print(f"kavka: connector {name} failed: {outcome.trace}", file=sys.stderr)
        return True

    herder.start()
    try:
        server.run(herder, watch, ready)
    finally:
        herder.close()
        sessions.close()
    return 1 if failed else 0


def run_distributed(properties: Mapping[str, str], ready: Callable[[str], None] = lambda url: None) -> int:
    """Run until stopped. Returns 0, or 1 if the worker's Spark process ended."""
    with _resolved(properties) as (resolved, providers):
        return _distributed(resolved, ready, providers)


def _distributed(properties: Mapping[str, str], ready: Callable[[str], None], providers: Providers) -> int:
    from kavka.pipeline.connect.distributed import DistributedHerder
    from kavka.pipeline.connect.topic_table import TopicTable

    settings = _prepare(properties, DISTRIBUTED, providers)
    server = Server(settings)
    sessions = Sessions(properties)
    client = client_settings(properties)
    herder: DistributedHerder | None = None

    def on_change(key: str, value: str | None) -> None:
        if herder is not None:
            herder.on_change(key)

    def table(kind: str, partitions: int) -> TopicTable:
        replicas = settings[f"{kind}.storage.replication.factor"]
        return TopicTable(client, settings[f"{kind}.storage.topic"], partitions, replicas, on_change)

    tables = [table("config", 1)]
    try:
        tables.append(table("offset", settings["offset.storage.partitions"]))
        tables.append(table("status", settings["status.storage.partitions"]))
        worker = _worker(properties, settings, server.name, sessions, tables[1], providers)
        herder = DistributedHerder(worker, ConfigStore(tables[0]), StatusStore(tables[2]), settings, server.url)
        herder.start()
        try:
            server.run(herder, sessions.has_crashed, ready)
            failed = sessions.has_crashed()
        finally:
            herder.close()
            sessions.close()
    finally:
        for store in tables:
            store.close()
    return 1 if failed else 0


class Server:
    """Owns the socket of the REST interface. The constructor binds it, so that the port is known
    early."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        listener = (settings["listeners"] or ("http://localhost:8083",))[0]
        parts = urlsplit(listener)
        if parts.scheme.lower() != "http":
            raise ConfigErrors({"listeners": [f"Invalid value {listener} for configuration listeners: only http://"]})
        host = parts.hostname or ""
        port = 8083 if parts.port is None else parts.port
        self.socket = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind((host, port))
        self.socket.listen(100)
        address, bound = self.socket.getsockname()[:2]
        self._settings, self._host, self._address = settings, host, address
        advertised = settings["rest.advertised.host.name"] or (
            host if host not in ("", "0.0.0.0", "::") else _own_address()
        )
        self.name = f"{advertised}:{settings['rest.advertised.port'] or bound}"
        self.url = f"http://{self.name}"

    def run(self, herder: Herder, ended: Callable[[], bool], ready: Callable[[str], None]) -> None:
        try:
            import uvicorn

            from kavka.pipeline.connect.access import Access
            from kavka.pipeline.connect.rest import Api
            from kavka.web import server as web
        except ImportError as error:
            raise ConnectError("Connect's REST interface needs: pip install 'kavka[connect]'") from error
        access = Access.of(self._settings, self._host, self._address)
        # Uvicorn's log lines go to the worker's handlers, which hide secrets.
        logging.getLogger("uvicorn").setLevel(logging.WARNING)
        config = uvicorn.Config(
            Api(herder, access).app(), log_config=None, access_log=False, http="h11", ws="none", lifespan="off",
            timeout_graceful_shutdown=5,
        )  # fmt: skip
        server = web.Server(config, self.socket)
        # Uvicorn would end the process with the signal after it stops listening. The worker has
        # more to stop.
        server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda *_: setattr(server, "should_exit", True))

        def watch() -> None:
            while not server.should_exit:
                if server.started:
                    ready(self.url)
                    break
                threading.Event().wait(0.05)
            while not server.should_exit:
                if ended():
                    server.should_exit = True
                threading.Event().wait(_WATCH)

        threading.Thread(target=watch, name="connect-watch", daemon=True).start()
        server.run(sockets=[self.socket])


def _own_address() -> str:
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"
