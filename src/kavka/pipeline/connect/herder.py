"""Manages the connectors of a worker: accepts configurations, runs the connectors assigned to this
worker, and publishes their states.

One thread, `connect-herder`, starts and stops tasks. Requests run in other threads: they change the
stored configurations and wake this thread. The thread compares the connectors that should run
(configurations, target states, assignments) with the running tasks. A missed or duplicate event is
therefore corrected in the next pass.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kavka import __version__
from kavka.common.config import ConfigType
from kavka.common.secret_settings import HIDDEN, shown_value
from kavka.pipeline.connect import loggers, plugins
from kavka.pipeline.connect.api import Connector
from kavka.pipeline.connect.errors import ConfigErrors, ConnectError
from kavka.pipeline.connect.loading import CONVERTERS, PREDICATES, TRANSFORMS, load, shortened
from kavka.pipeline.connect.offsets import alter_offsets, offset_entries, read_offsets, reset_offsets
from kavka.pipeline.connect.options import config_infos, describe
from kavka.pipeline.connect.providers import ProviderError, Secrets
from kavka.pipeline.connect.settings import check_connector, options_of
from kavka.pipeline.connect.stores import PAUSED, STARTED, STOPPED, ConfigStore, Status, StatusStore
from kavka.pipeline.connect.tasks import DONE, FAILED, Outcome, Task, Worker, describe_failure

logger = logging.getLogger(__name__)

RUNNING, UNASSIGNED, RESTARTING = "RUNNING", "UNASSIGNED", "RESTARTING"
FAILED_STATE = "FAILED"
_RECONCILE_INTERVAL = 1.0
_STOP_TIMEOUT = 60.0
_INVALID = (
    "\nYou can also find the above list of errors at the endpoint `/connector-plugins/{connectorType}/config/validate`"
)
_STANDALONE = "Kafka Connect in standalone mode does not support externally setting task configurations."
_OTHER_PLUGINS = {"converter": CONVERTERS, "transformation": TRANSFORMS, "predicate": PREDICATES}


class RestError(Exception):
    """An error response of the REST interface: status code and message."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class WrongWorker(Exception):
    """Another worker, at `url`, must handle the request. `url` is None if the leader or owner is
    unknown."""

    def __init__(self, url: str | None) -> None:
        super().__init__(url or "no worker")
        self.url = url


class Herder:
    """Owns the tasks of a standalone worker and their outcomes. `DistributedHerder` overrides the
    methods that differ in a group. Any thread may call the public methods. Only the thread
    `connect-herder` starts and stops tasks."""

    def __init__(self, worker: Worker, configs: ConfigStore, statuses: StatusStore) -> None:
        self.worker = worker
        self.configs = configs
        self.statuses = statuses
        self._tasks: dict[str, Task] = {}
        self._outcomes: dict[str, Outcome] = {}
        self._broken: dict[str, dict[str, str]] = {}
        """Configurations of connectors whose class cannot be loaded."""
        self._restarts: set[str] = set()
        self._wake = threading.Event()
        self._passed = threading.Event()
        self._closing = False
        self._lock = threading.RLock()
        self._thread = threading.Thread(target=self._run, name="connect-herder", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stops all tasks and sets their states to UNASSIGNED."""
        self._closing = True
        self.wake()
        if self._thread.is_alive():
            self._thread.join(_STOP_TIMEOUT)
        for task in list(self._tasks.values()):
            threading.Thread(target=task.stop, args=(self.worker.shutdown_timeout,), daemon=True).start()
        for name, task in list(self._tasks.items()):
            if task.stop(_STOP_TIMEOUT):
                self._unassign(name)
        self._tasks.clear()

    def wake(self) -> None:
        self._wake.set()

    def local_tasks(self) -> list[Task]:
        """Returns the tasks of this worker, also those that have ended."""
        return list(self._tasks.values())

    def task_states(self, name: str) -> list[str]:
        try:
            return [task["state"] for task in self.status(name)["tasks"]]
        except RestError:
            return []

    # --- overridden by DistributedHerder

    @property
    def is_ready(self) -> bool:
        """Whether the worker has completed its start."""
        return True

    def health(self, timeout_s: float) -> str | None:
        """Returns why the worker cannot handle requests; None if it can. Waits for a pass of the
        herder's thread."""
        self._passed.clear()
        self.wake()
        return None if self._passed.wait(timeout_s) else "Its herder does not respond."

    def set_cluster_level(self, name: str, level: str) -> None:
        """Sets the level of a logger on all workers."""
        loggers.set_level(name, level)

    def owns(self, name: str) -> bool:
        return True

    def may_start(self, name: str) -> bool:
        """Whether no other worker still runs the connector."""
        return True

    def require_leader(self) -> None:
        """Raises WrongWorker if only another worker may change configurations."""

    def require_owner(self, name: str) -> None:
        """Raises WrongWorker if another worker runs this connector."""

    def verify(self, body: bytes, headers: Mapping[str, str]) -> None:
        """Raises RestError unless another worker has signed the request."""
        raise RestError(500, _STANDALONE)

    def put_task_configs(self, name: str, body: Any) -> None:
        """Stores the configuration of a task, which the worker that runs it has sent."""
        raise RestError(500, _STANDALONE)

    @property
    def generation(self) -> int:
        return 0

    # --- the thread

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait(_RECONCILE_INTERVAL)
            self._wake.clear()
            try:
                self._reconcile()
            except Exception:
                logger.exception("The worker failed to start or stop connectors and will retry")
            self._passed.set()

    def _reconcile(self) -> None:
        for name, task in list(self._tasks.items()):
            if self._closing:
                return
            if self.configs.config(name) is None:
                self._stop(name)
                self._outcomes.pop(name, None)
            elif (task.stopping.is_set() or not self.owns(name)) and self._stop(name):
                self._outcomes.pop(name, None)
                if not self.owns(name):
                    self._unassign(name)
        for name in self.configs.names():
            if self._closing:
                return
            if self.owns(name) and self.may_start(name):
                try:
                    self._reconcile_connector(name)
                except ConnectError as error:
                    # Continue with the other connectors.
                    logger.error("Connector %s failed to start or stop and is retried later: %s", name, error)
        for name in self.statuses.names():
            if self.configs.config(name) is None and name not in self._tasks and self._deletes_statuses():
                self.statuses.delete(name)

    def _deletes_statuses(self) -> bool:
        """Whether this worker deletes the states of deleted connectors."""
        return True

    def _reconcile_connector(self, name: str) -> None:
        config, target = self.configs.config(name), self.configs.target(name)
        if config is None:
            return
        task = self._tasks.get(name)
        if target != STARTED:
            if not self._stop(name):
                return
            self._outcomes.pop(name, None)
            self._put_inactive(name, target)
            return
        with self._lock:
            is_restart = name in self._restarts
            self._restarts.discard(name)
        if not is_restart and config == (task.originals if task is not None else self._broken.get(name)):
            return
        if task is not None and not self._stop(name):
            raise ConnectError(f"{name} did not stop within {_STOP_TIMEOUT:.0f} s")
        self._start(name, config)

    def _put_inactive(self, name: str, target: str) -> None:
        """Publishes the states of a paused or stopped connector."""
        status = self.statuses.connector(name)
        if status is None or (status.state, status.worker_id) != (target, self.worker.id):
            self._put(name, connector=Status(target, self.worker.id, None, self.generation))
            if target == PAUSED:
                self._put_tasks(name, PAUSED, max(1, len(self.statuses.tasks(name))))
            else:
                self._put(name, tasks={})

    def _start(self, name: str, config: Mapping[str, str]) -> None:
        logger.info("Starting connector %s", name)
        try:
            cls = plugins.load(self._class_name(config), self.worker.declared)
        except Exception as error:
            trace = self.worker.providers.hide(describe_failure(error))
            self._put(name, connector=Status(FAILED_STATE, self.worker.id, trace, self.generation))
            self._broken[name] = dict(config)
            return
        self._broken.pop(name, None)
        task = Task(
            self.worker,
            name,
            cls,
            config,
            self._on_task_end,
            lambda topics: self.statuses.add_topics(name, topics),
            self._on_task_count,
            self._expected_tasks(name, config),
        )
        self._outcomes.pop(name, None)
        self._tasks[name] = task
        running = Status(RUNNING, self.worker.id, None, self.generation)
        self._put(name, running, dict.fromkeys(range(task.count), running))
        task.start()

    def _expected_tasks(self, name: str, config: Mapping[str, str]) -> int:
        """Returns the number of tasks when the connector ran last, at most `tasks.max`. A connector
        determines the number after its start."""
        limit = config.get("tasks.max", "1").strip()
        return max(1, min(len(self.statuses.tasks(name)), int(limit) if limit.isdecimal() else 1))

    def _stop(self, name: str) -> bool:
        task = self._tasks.get(name)
        if task is None:
            return True
        logger.info("Stopping connector %s", name)
        if not task.stop(_STOP_TIMEOUT):
            logger.error("Connector %s did not stop within %.0f s", name, _STOP_TIMEOUT)
            return False
        del self._tasks[name]
        return True

    def _on_task_end(self, task: Task, outcome: Outcome) -> None:
        """Called by the task's thread."""
        if self._tasks.get(task.name) is not task:
            return
        self._outcomes[task.name] = outcome
        if outcome.kind == DONE:
            self._put_tasks(task.name, STOPPED, task.count)
        elif outcome.kind == FAILED:
            others = f"The task ended because task {task.name}-{outcome.task} failed: the tasks share a query"
            other = Status(FAILED_STATE, self.worker.id, others, self.generation)
            failed = replace(other, trace=outcome.trace)
            self._put(task.name, tasks={**dict.fromkeys(range(task.count), other), outcome.task: failed})

    def _on_task_count(self, task: Task) -> None:
        """Called by the task's thread, while it runs."""
        if self._tasks.get(task.name) is task and not task.stopping.is_set():
            self._put_tasks(task.name, RUNNING, task.count)

    def _put_tasks(self, name: str, state: str, count: int) -> None:
        status = Status(state, self.worker.id, None, self.generation)
        self._put(name, tasks=dict.fromkeys(range(count), status))

    def _put(self, name: str, connector: Status | None = None, tasks: Mapping[int, Status] | None = None) -> None:
        try:
            self.statuses.put(name, connector, tasks)
        except ConnectError as error:
            logger.warning("Cannot store the state of %s: %s", name, error)

    def _unassign(self, name: str) -> None:
        status = self.statuses.connector(name)
        if status is not None and status.worker_id == self.worker.id and status.state != UNASSIGNED:
            unassigned = Status(UNASSIGNED, self.worker.id, None, self.generation)
            self._put(name, unassigned, dict.fromkeys(self.statuses.tasks(name), unassigned))

    def outcomes(self) -> dict[str, Outcome] | None:
        """Returns the outcome of each connector; None while any connector runs."""
        names = self.configs.names()
        outcomes = {name: self._outcomes[name] for name in names if name in self._outcomes}
        for name in names:
            status = self.statuses.connector(name)
            if name not in outcomes and status is not None and status.state == FAILED_STATE:
                outcomes[name] = Outcome(FAILED, status.trace)
        return outcomes if len(outcomes) == len(names) else None

    # --- plugins

    def list_plugins(self, connectors_only: bool) -> list[dict[str, Any]]:
        entries = [
            {"class": (plugin.java_names or (plugin.name,))[0], "type": cls.kind, "version": cls.version}
            for plugin, cls in plugins.load_all(self.worker.declared)
        ]
        if not connectors_only:
            for kind, classes in _OTHER_PLUGINS.items():
                entries += [{"class": name, "type": kind, "version": __version__} for name in classes]
        return entries

    def plugin_options(self, name: str) -> list[dict[str, Any]]:
        try:
            cls = plugins.load(name, self.worker.declared)
        except ConfigErrors as error:
            for kind, classes in _OTHER_PLUGINS.items():
                with contextlib.suppress(ConfigErrors):
                    return describe(load("", name, classes, kind, self.worker.declared)[0].options)
            reason = error.errors[plugins.CLASS][0]
            raise RestError(404, f"Unknown plugin {shortened(name)}. {reason}") from None
        return describe((*cls.options, *(option for option in options_of(cls) if option not in cls.options)))

    def validate(self, plugin: str, originals: Mapping[str, str | None]) -> dict[str, Any]:
        class_name = originals.get(plugins.CLASS)
        if not class_name:
            raise RestError(400, _no_type(originals))
        is_same = class_name == plugin or class_name.endswith(f".{plugin}")
        if not is_same and (plugins.find(class_name) is None or plugins.find(class_name) != plugins.find(plugin)):
            message = f"Included connector type {shortened(class_name)} does not match request type {shortened(plugin)}"
            raise RestError(400, message)
        return self._check(originals)

    def _check(self, originals: Mapping[str, str | None]) -> dict[str, Any]:
        """Returns the response to `PUT …/config/validate` for a configuration with a class. Raises
        RestError if the class is invalid or a provider cannot read its values."""
        providers, declared = self.worker.providers, self.worker.declared
        plain = {name: value for name, value in originals.items() if value is not None}
        try:
            resolved = providers.resolve(plain)
            cls = plugins.load(resolved.get(plugins.CLASS, ""), declared)
        except ProviderError as error:
            raise RestError(500, str(error)) from None
        except ConfigErrors as error:
            raise RestError(400, providers.hide(error.errors[plugins.CLASS][0])) from None
        _, errors = check_connector(cls, resolved, self.worker.properties, self.worker.exactly_once, declared)
        from kavka.pipeline.connect.transforms.chain import options_of_steps

        options = (*options_of(cls), *options_of_steps(resolved, declared))
        passwords = {option.name for option in options if option.type is ConfigType.PASSWORD}
        secrets = Secrets.of(plain, passwords)
        errors = {
            name: [secrets.hide(message) for message in messages]
            for name, messages in providers.hidden_errors(errors, originals, resolved).items()
        }
        visible = {name: shown_value(name, value) for name, value in plain.items()}
        return config_infos(originals.get(plugins.CLASS) or "", options, visible, errors)

    # --- connectors

    def names(self) -> list[str]:
        return self.configs.names()

    def config(self, name: str) -> dict[str, str]:
        config = self.configs.config(name)
        if config is None:
            raise RestError(404, f"Connector {name} not found")
        return config

    def info(self, name: str) -> dict[str, Any]:
        config = self.config(name)
        return {"name": name, "config": config, "tasks": self._task_ids(name), "type": self._kind(config)}

    def _task_ids(self, name: str) -> list[dict[str, Any]]:
        return [{"connector": name, "task": number} for number in self.statuses.tasks(name)]

    def _kind(self, config: Mapping[str, str]) -> str:
        try:
            return plugins.load(self._class_name(config), self.worker.declared).kind
        except (ConfigErrors, ProviderError):
            return "unknown"

    def _class_name(self, config: Mapping[str, str]) -> str:
        return self.worker.providers.resolve({plugins.CLASS: config.get(plugins.CLASS, "")})[plugins.CLASS]

    def status(self, name: str) -> dict[str, Any]:
        config, status = self.configs.config(name), self.statuses.connector(name)
        if config is None or status is None:
            raise RestError(404, f"No status found for connector {name}")
        tasks = self.statuses.tasks(name)
        return {
            "name": name,
            "connector": _status_json(status),
            "tasks": [{"id": number, **_status_json(task)} for number, task in tasks.items()],
            "type": self._kind(config),
        }

    def create(self, name: str, config: Mapping[str, str | None], state: str | None) -> dict[str, Any]:
        self.require_leader()
        if self.configs.config(name) is not None:
            raise RestError(409, f"Connector {name} already exists")
        initial = (state or "RUNNING").upper()
        targets = {"RUNNING": STARTED, "PAUSED": PAUSED, "STOPPED": STOPPED}
        if initial not in targets:
            raise RestError(400, f"Invalid value {state} for initial_state: RUNNING, PAUSED or STOPPED")
        self.configs.put(name, self._accepted(name, config), targets[initial])
        self.wake()
        return {**self.info(name), "tasks": []}

    def put_config(self, name: str, config: Mapping[str, str | None]) -> tuple[bool, dict[str, Any]]:
        """Creates or updates a connector. Returns (whether it was created, its info)."""
        self.require_leader()
        is_created = self.configs.config(name) is None
        accepted = self._accepted(name, config)
        if is_created or self.configs.config(name) != accepted:
            self.configs.put(name, accepted, STARTED if is_created else None)
        else:
            self.request_restart(name)
        self.wake()
        return is_created, self.info(name)

    def patch_config(self, name: str, patch: Mapping[str, str | None]) -> dict[str, Any]:
        self.require_leader()
        merged: dict[str, str | None] = {**self.config(name), **patch}
        return self.put_config(name, {key: value for key, value in merged.items() if value is not None})[1]

    def _accepted(self, name: str, config: Mapping[str, str | None]) -> dict[str, str]:
        """Returns the configuration without null values. Raises RestError if it is invalid."""
        settings = {key: value for key, value in config.items() if value is not None}
        if settings.setdefault("name", name) != name:
            raise RestError(
                400,
                f"Connector name configuration ({settings['name']}) doesn't match connector name in the URL ({name})",
            )
        if not settings.get(plugins.CLASS):
            raise RestError(400, _no_type(settings))
        result = self._check(settings)
        if result["error_count"]:
            values = [config_info["value"] for config_info in result["configs"]]
            errors = ConfigErrors({value["name"]: value["errors"] for value in values})
            raise RestError(400, str(errors) + _INVALID)
        return settings

    def delete(self, name: str) -> None:
        self.require_leader()
        self.config(name)
        self.configs.delete(name)
        self.wake()

    def set_target(self, name: str, target: str) -> None:
        self.require_leader()
        if self.configs.config(name) is None:
            raise RestError(404, f"Unknown connector {name}")
        self.configs.put_target(name, target)
        self.wake()

    # --- restarts

    def request_restart(self, name: str) -> None:
        with self._lock:
            self._restarts.add(name)
        self.wake()

    def restart(self, name: str, include_tasks: bool, only_failed: bool) -> dict[str, Any] | None:
        """Requests a restart, which the herder's thread performs. Returns the restart plan if
        `include_tasks` is set, otherwise None."""
        self.config(name)
        self.require_owner(name)
        connector, tasks = self.statuses.connector(name), self.statuses.tasks(name)
        if connector is None:
            raise RestError(404, f"Status for connector {name} not found")
        states = [connector.state, *(task.state for task in tasks.values() if include_tasks)]
        has_failed = FAILED_STATE in states
        if only_failed and not has_failed:
            return self.status(name) if include_tasks else None
        is_active = connector.state in (RUNNING, FAILED_STATE)
        plan = self.status(name)
        if is_active and (include_tasks or connector.state == FAILED_STATE):
            self.request_restart(name)
            for entry in (plan["connector"], *plan["tasks"]):
                if not only_failed or entry["state"] == FAILED_STATE:
                    entry.update(state=RESTARTING)
                    entry.pop("trace", None)
        return plan if include_tasks else None

    def restart_task(self, name: str, number: int) -> None:
        """Requests a restart of all tasks of the connector, since they share a query."""
        self._task(name, number)
        self.require_owner(name)
        if self.configs.target(name) == STARTED:
            self.request_restart(name)

    def _task(self, name: str, number: int) -> Status:
        self.config(name)
        status = self.statuses.tasks(name).get(number)
        if status is None:
            raise RestError(404, f"No status found for task {name}-{number}")
        return status

    def task_status(self, name: str, number: int) -> dict[str, Any]:
        return {"id": number, **_status_json(self._task(name, number))}

    def tasks(self, name: str) -> list[dict[str, Any]]:
        task_config = task_config_of(self.config(name))
        return [{"id": task_id, "config": task_config} for task_id in self._task_ids(name)]

    # --- topics and offsets

    def topics(self, name: str) -> list[str]:
        self.config(name)
        return self.statuses.topics(name)

    def reset_topics(self, name: str) -> None:
        self.config(name)
        self.statuses.reset_topics(name)

    def _class(self, name: str) -> type[Connector]:
        try:
            return plugins.load(self._class_name(self.config(name)), self.worker.declared)
        except (ConfigErrors, ProviderError) as error:
            raise RestError(500, self.worker.providers.hide(str(error))) from None

    def offsets(self, name: str) -> dict[str, Any]:
        return read_offsets(self.worker, name, self._class(name))

    def _class_of_stopped(self, name: str) -> type[Connector]:
        """Returns the class of a stopped connector. Raises RestError unless the connector is
        stopped."""
        cls = self._class(name)
        status, tasks = self.statuses.connector(name), self.statuses.tasks(name)
        if self.configs.target(name) != STOPPED or status is None or status.state != STOPPED or tasks:
            raise RestError(
                400,
                "Connectors must be in the STOPPED state before their offsets can be modified. This can be done for "
                f"the specified connector by issuing a 'PUT' request to the '/connectors/{name}/stop' endpoint",
            )
        return cls

    def alter(self, name: str, body: Any) -> str:
        self.require_leader()
        try:
            entries = offset_entries(body)
            alter_offsets(self.worker, name, self._class_of_stopped(name), entries)
        except ConnectError as error:
            raise RestError(400, str(error)) from None
        return "The offsets for this connector have been altered successfully"

    def reset(self, name: str) -> str:
        self.require_leader()
        reset_offsets(self.worker, name, self._class_of_stopped(name))
        return "The offsets for this connector have been reset successfully"


def task_config_of(config: Mapping[str, str]) -> dict[str, str]:
    """Returns the configuration of each of a connector's tasks."""
    return {**config, "task.class": config[plugins.CLASS]}


def _no_type(config: Mapping[str, str | None]) -> str:
    """Returns Kafka Connect's message without the values, any of which may be a secret."""
    settings = ", ".join(f"{name}={value if name == 'name' else HIDDEN}" for name, value in config.items())
    return f"Connector config {{{settings}}} contains no connector type"


def _status_json(status: Status) -> dict[str, Any]:
    entry = {"state": status.state, "worker_id": status.worker_id}
    return entry if status.trace is None else {**entry, "trace": status.trace}
