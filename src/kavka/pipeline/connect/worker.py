"""A worker process: settings, Spark session, stores and REST interface, from start to stop."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kavka.common.secret_settings import HIDDEN, secret_values
from kavka.pipeline.connect import loggers
from kavka.pipeline.connect.errors import ConfigErrors, ConnectError
from kavka.pipeline.connect.herder import Herder
from kavka.pipeline.connect.listeners import Listeners
from kavka.pipeline.connect.loading import Declared, items_of
from kavka.pipeline.connect.options import Option, parsed, warn_of_options_without_effect
from kavka.pipeline.connect.providers import NAMES, Providers
from kavka.pipeline.connect.session_keys import KeySettings
from kavka.pipeline.connect.settings import AVAILABLE_NOW, DISTRIBUTED, STANDALONE, client_settings
from kavka.pipeline.connect.stores import ConfigStore, FileTable, MemoryTable, OffsetStore, StatusStore, Table
from kavka.pipeline.connect.tasks import FAILED, Worker
from kavka.pipeline.spark import activate
from kavka.pipeline.spark.session import build_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

_WATCH_INTERVAL = 0.5
# Kafka Connect's words for the content of its topics.
_PURPOSES = {
    "config": "connector configurations",
    "offset": "source connector offsets",
    "status": "connector and task statuses",
}
_NEEDS_CONNECT = "Connect's REST interface needs: pip install 'kavka[connect]'"
_SPARK_DEFAULTS = {
    "spark.sql.shuffle.partitions": "4",
    "spark.scheduler.mode": "FAIR",
    "spark.sql.session.timeZone": "UTC",
}


class SharedSession:
    """Owns the worker's Spark session, which all tasks share. The first call starts Spark. Any
    thread may call it: each task calls it from its own thread."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._properties = properties
        self._lock = threading.Lock()
        self._session: SparkSession | None = None

    def __call__(self) -> SparkSession:
        from kavka.pipeline.spark import register

        with self._lock:
            if self._session is None:
                self._session = register(self._start())
            session = self._session
        # Spark resolves `format("kavka")` with the session that is active in the calling thread. A
        # new thread has no active session.
        activate(session)
        return session

    def _start(self) -> SparkSession:
        settings = {name: value for name, value in self._properties.items() if name.startswith("spark.")}
        master = settings.pop("spark.master", None)
        # The log filter that hides values of configuration providers does not apply to the output
        # of Spark's process. The worker's own log reports the failures of tasks.
        level = "OFF" if self._properties.get(NAMES) else "ERROR"
        return build_session(
            "kavka-connect", {**_SPARK_DEFAULTS, **settings}, master, log_level=level, error=ConnectError
        )

    def has_crashed(self) -> bool:
        """Whether Spark's process ended unexpectedly: it was killed, or ran out of memory or
        stack."""
        from pyspark import SparkContext

        process = getattr(SparkContext._gateway, "proc", None) if self._session is not None else None
        if process is None or process.poll() is None:
            return False
        logger.error(
            "Spark's process ended with code %s. The worker shuts down: it cannot run connectors", process.returncode
        )
        return True

    def close(self) -> None:
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            try:
                session.stop()
            except Exception as error:
                logger.debug("Cannot stop Spark: %s", error)


def _add_to_python_path(folders: Iterable[str]) -> None:
    for folder in folders:
        if folder and folder not in sys.path:
            sys.path.insert(0, folder)
            # Spark's Python workers also load plugin classes.
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))


def _prepare(properties: Mapping[str, str], options: Sequence[Option], providers: Providers) -> dict[str, Any]:
    """Prepares Python's path and modules, and returns the parsed settings of the worker. Raises
    ConfigErrors if they are invalid."""
    try:
        settings = parsed(options, properties)
    except ConfigErrors as error:
        raise ConfigErrors(providers.hidden_errors(error.errors, {}, {})) from None
    warn_of_options_without_effect(options, properties)
    # PySpark's modules have circular imports. If two threads import them concurrently, one may see
    # partially initialized modules: import them before any thread starts.
    with contextlib.suppress(ImportError):
        import pyspark.sql  # noqa: F401
    _add_to_python_path(settings["plugin.path"])
    return settings


@contextlib.contextmanager
def _resolved(properties: Mapping[str, str]) -> Iterator[tuple[dict[str, str], Providers]]:
    """Yields (the worker's settings with resolved placeholders, its providers). The log hides the
    resolved values inside this context."""
    # A provider may be a plugin.
    _add_to_python_path(items_of(properties.get("plugin.path", "")))
    providers = Providers.of(properties, Declared.of(properties))
    for value in secret_values(properties):
        providers.secrets.add(value, HIDDEN)
    handlers = list(logging.getLogger().handlers)
    for handler in handlers:
        handler.addFilter(providers.secrets)
    try:
        yield providers.resolve(properties, "The worker's settings"), providers
    finally:
        for handler in handlers:
            handler.removeFilter(providers.secrets)


def _worker(
    properties: Mapping[str, str],
    settings: Mapping[str, Any],
    name: str,
    session: SharedSession,
    offsets: Table,
    providers: Providers,
) -> Worker:
    folder = settings["checkpoint.dir"]
    if "://" not in folder:
        folder = str(Path(folder).resolve())
    return Worker(
        id=name,
        properties=properties,
        spark=session,
        checkpoints=folder,
        offsets=OffsetStore(offsets),
        exactly_once=settings["exactly.once.source.support"].lower() == "enabled",
        shutdown_timeout=settings["task.shutdown.graceful.timeout.ms"] / 1000,
        providers=providers,
        declared=Declared.of(properties),
    )


def run_standalone(
    properties: Mapping[str, str],
    connectors: Sequence[Mapping[str, str]],
    ready: Callable[[str], None] = lambda url: None,
) -> int:
    """Runs until a signal stops the worker. If all connectors have `trigger=available-now`, runs
    until they end. Returns 1 if a connector or Spark's process failed, otherwise 0."""
    with _resolved(properties) as (resolved, providers):
        return _standalone(resolved, connectors, ready, providers)


def _standalone(
    properties: Mapping[str, str],
    connectors: Sequence[Mapping[str, str]],
    ready: Callable[[str], None],
    providers: Providers,
) -> int:
    settings = _prepare(properties, STANDALONE, providers)
    server = Server(settings, properties)
    session = SharedSession(properties)
    offsets = FileTable(Path(settings["offset.storage.file.filename"]))
    worker = _worker(properties, settings, server.name, session, offsets, providers)
    herder = Herder(worker, ConfigStore(MemoryTable()), StatusStore(MemoryTable()))
    for config in connectors:
        name = config.get("name", "")
        if not name:
            raise ConfigErrors({"name": ['Missing required configuration "name" which has no default value.']})
        herder.create(name, dict(config), None)
    triggers = [providers.resolve(config).get("trigger") for config in connectors]
    ends_when_done = bool(triggers) and all(trigger == AVAILABLE_NOW for trigger in triggers)
    has_failed = False

    def has_ended() -> bool:
        nonlocal has_failed
        if session.has_crashed():
            has_failed = True
            return True
        outcomes = herder.outcomes() if ends_when_done else None
        if outcomes is None:
            return False
        for name, outcome in outcomes.items():
            if outcome.kind == FAILED:
                has_failed = True
                print(f"kavka: connector {name} failed: {outcome.trace}", file=sys.stderr)
        return True

    herder.start()
    try:
        server.run(herder, has_ended, ready)
    finally:
        herder.close()
        session.close()
    return 1 if has_failed else 0


def run_distributed(properties: Mapping[str, str], ready: Callable[[str], None] = lambda url: None) -> int:
    """Runs until a signal stops the worker. Returns 1 if Spark's process ended unexpectedly,
    otherwise 0."""
    with _resolved(properties) as (resolved, providers):
        return _distributed(resolved, ready, providers)


def _distributed(properties: Mapping[str, str], ready: Callable[[str], None], providers: Providers) -> int:
    from kavka.pipeline.connect.distributed import DistributedHerder
    from kavka.pipeline.connect.topic_table import TopicTable

    settings = _prepare(properties, DISTRIBUTED, providers)
    keys = KeySettings.of(settings)
    server = Server(settings, properties)
    session = SharedSession(properties)
    client = client_settings(properties)
    herder: DistributedHerder | None = None

    def on_change(key: str, value: str | None) -> None:
        if herder is not None:
            herder.wake()

    def on_config(key: str, value: str | None) -> None:
        if herder is not None:
            loggers.apply_record(key, value)
        on_change(key, value)

    def table(kind: str, partitions: int) -> TopicTable:
        name, replication_factor = f"{kind}.storage.topic", settings[f"{kind}.storage.replication.factor"]
        on_record = on_config if kind == "config" else on_change
        return TopicTable(client, settings[name], partitions, replication_factor, on_record, (name, _PURPOSES[kind]))

    tables = [table("config", 1)]
    try:
        tables.append(table("offset", settings["offset.storage.partitions"]))
        tables.append(table("status", settings["status.storage.partitions"]))
        worker = _worker(properties, settings, server.name, session, tables[1], providers)
        configs, statuses = ConfigStore(tables[0]), StatusStore(tables[2])
        herder = DistributedHerder(worker, configs, statuses, settings, server.url, keys, server.peers)
        herder.start()
        try:
            server.run(herder, session.has_crashed, ready)
            has_failed = session.has_crashed()
        finally:
            herder.close()
            session.close()
    finally:
        for open_table in tables:
            open_table.close()
    return 1 if has_failed else 0


class Server:
    """Owns the listeners and the users of the REST interface. Raises ConnectError for a bad
    setting, and OSError."""

    def __init__(self, settings: Mapping[str, Any], properties: Mapping[str, str]) -> None:
        try:
            from kavka.pipeline.connect.basic_auth import Users
        except ImportError as error:
            raise ConnectError(_NEEDS_CONNECT) from error
        self._settings = settings
        self._users = Users.of(settings)
        self.listeners = Listeners(settings, properties)
        self.name, self.url, self.peers = self.listeners.name, self.listeners.url, self.listeners.peers

    def run(self, herder: Herder, has_ended: Callable[[], bool], ready: Callable[[str], None]) -> None:
        """Serves requests until a signal arrives or `has_ended` returns True. Calls `ready` with
        the URL when the server accepts requests."""
        try:
            import uvicorn

            from kavka.pipeline.connect.access import Access
            from kavka.pipeline.connect.rest import Api
            from kavka.web import server as web
        except ImportError as error:
            raise ConnectError(_NEEDS_CONNECT) from error
        listeners = self.listeners
        access = Access.of(self._settings, listeners.host_names, listeners.are_loopback)
        # Uvicorn's log lines go to the worker's handlers, which hide secrets.
        logging.getLogger("uvicorn").setLevel(logging.WARNING)
        config = uvicorn.Config(
            Api(herder, access, self._users, self.peers).app(), log_config=None, access_log=False, http="h11",
            ws="none", lifespan="off", timeout_graceful_shutdown=5,
        )  # fmt: skip
        server = web.Server(config, listeners.sockets, tls=listeners.tls)
        # Uvicorn raises a captured signal again after it stops listening. That would end the
        # process before the tasks are stopped.
        server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda *_: setattr(server, "should_exit", True))

        def watch() -> None:
            while not server.should_exit:
                if server.started:
                    ready(self.url)
                    break
                time.sleep(0.05)
            while not server.should_exit:
                if has_ended():
                    server.should_exit = True
                time.sleep(_WATCH_INTERVAL)

        threading.Thread(target=watch, name="connect-watch", daemon=True).start()
        server.run(sockets=listeners.sockets)
