"""What a worker does with connectors: takes configurations, runs what is its own, tells states.

One thread, `_steps`, starts and stops tasks; requests come from other threads, change what is stored, and wake it. It
compares what should run (configurations, target states, what is assigned to this worker) with what does, so that
whatever was missed or came twice is put right with the next look.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Mapping
from typing import Any

from kavka import __version__
from kavka.common.config import ConfigType
from kavka.pipeline.connect import plugins
from kavka.pipeline.connect.api import Connector
from kavka.pipeline.connect.errors import ConfigErrors, ConnectError
from kavka.pipeline.connect.loading import CONVERTERS, PREDICATES, TRANSFORMS, load, shown
from kavka.pipeline.connect.offsets import alter_offsets, offset_entries, read_offsets, reset_offsets
from kavka.pipeline.connect.options import config_infos, describe
from kavka.pipeline.connect.providers import HIDDEN, ProviderError, Secrets, shown_value
from kavka.pipeline.connect.settings import check_connector, options_of
from kavka.pipeline.connect.stores import PAUSED, STARTED, STOPPED, ConfigStore, Status, StatusStore
from kavka.pipeline.connect.tasks import DONE, FAILED, Outcome, Task, Worker, told

log = logging.getLogger(__name__)

RUNNING, UNASSIGNED, RESTARTING = "RUNNING", "UNASSIGNED", "RESTARTING"
FAILED_STATE = "FAILED"
_LOOK = 1.0
_STOP = 60.0
_INVALID = (
    "\nYou can also find the above list of errors at the endpoint `/connector-plugins/{connectorType}/config/validate`"
)


_OTHER_PLUGINS = {"converter": CONVERTERS, "transformation": TRANSFORMS, "predicate": PREDICATES}


class RestError(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class NotLeader(Exception):
    """Another worker has to answer: the one at `url`; without one, nobody knows yet."""

    def __init__(self, url: str | None) -> None:
        super().__init__(url or "nobody leads")
        self.url = url


class Herder:
    """A standalone worker. `DistributedHerder` has what is different in a group."""

    def __init__(self, worker: Worker, configs: ConfigStore, statuses: StatusStore) -> None:
        self.worker = worker
        self.configs = configs
        self.statuses = statuses
        self._tasks: dict[str, Task] = {}
        self._outcomes: dict[str, Outcome] = {}
        self._broken: dict[str, dict[str, str]] = {}
        """Configurations of connectors whose class cannot be loaded here."""
        self._restarts: set[str] = set()
        self._wake = threading.Event()
        self._closing = False
        self._lock = threading.RLock()
        self._thread = threading.Thread(target=self._steps, name="connect-herder", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop all tasks; their states are UNASSIGNED then."""
        self._closing = True
        self.wake()
        if self._thread.is_alive():
            self._thread.join(_STOP)
        for task in list(self._tasks.values()):
            threading.Thread(target=task.stop, args=(self.worker.shutdown,), daemon=True).start()
        for name, task in list(self._tasks.items()):
            if task.stop(_STOP):
                self._unassign(name)
        self._tasks.clear()

    def wake(self) -> None:
        self._wake.set()

    # --- what a group does differently

    def owns(self, name: str) -> bool:
        return True

    def may_start(self, name: str) -> bool:
        """Whether nobody else runs it any more."""
        return True

    def lead(self) -> None:
        """NotLeader where another worker changes configurations."""

    def own(self, name: str) -> None:
        """NotLeader where another worker runs this connector."""

    @property
    def generation(self) -> int:
        return 0

    # --- the thread

    def _steps(self) -> None:
        while not self._closing:
            self._wake.wait(_LOOK)
            self._wake.clear()
            try:
                self._step()
            except Exception:
                log.exception("The worker will look again at what should run")

    def _step(self) -> None:
        for name in list(self._tasks):
            if self._closing:
                return
            if self.configs.config(name) is None:
                self._stop(name)
                self._outcomes.pop(name, None)
            elif not self.owns(name) and self._stop(name):
                self._outcomes.pop(name, None)
                self._unassign(name)
        for name in self.configs.names():
            if self._closing:
                return
            if self.owns(name) and self.may_start(name):
                try:
                    self._look_after(name)
                except ConnectError as error:
                    # The others do not wait for it.
                    log.error("Connector %s is looked at again later: %s", name, error)
        for name in self.statuses.names():
            if self.configs.config(name) is None and name not in self._tasks and self._cleans_up():
                self.statuses.delete(name)

    def _cleans_up(self) -> bool:
        return True

    def _look_after(self, name: str) -> None:
        config, target = self.configs.config(name), self.configs.target(name)
        if config is None:
            return
        task = self._tasks.get(name)
        if target != STARTED:
            if not self._stop(name):
                return
            self._outcomes.pop(name, None)
            self._rest(name, target)
            return
        with self._lock:
            again = name in self._restarts
            self._restarts.discard(name)
        if not again and config == (task.given if task is not None else self._broken.get(name)):
            return
        if task is not None and not self._stop(name):
            raise ConnectError(f"{name} has not stopped within {_STOP:.0f} s")
        self._start(name, config)

    def _rest(self, name: str, target: str) -> None:
        """Its states are those of a connector that does not run."""
        now = self.statuses.connector(name)
        if now is None or (now.state, now.worker_id) != (target, self.worker.id):
            self._put(name, connector=Status(target, self.worker.id, None, self.generation))
            if target == PAUSED:
                self._put(name, task=Status(PAUSED, self.worker.id, None, self.generation))
            else:
                self.statuses.forget_task(name)

    def _start(self, name: str, config: Mapping[str, str]) -> None:
        log.info("Connector %s starts", name)
        try:
            cls = plugins.load(self._class_name(config), self.worker.declared)
        except Exception as error:
            trace = self.worker.providers.hidden(told(error))
            self._put(name, connector=Status(FAILED_STATE, self.worker.id, trace, self.generation))
            self._broken[name] = dict(config)
            return
        self._broken.pop(name, None)
        task = Task(self.worker, name, cls, config, self._ended, lambda topics: self.statuses.add_topics(name, topics))
        self._outcomes.pop(name, None)
        self._tasks[name] = task
        running = Status(RUNNING, self.worker.id, None, self.generation)
        self._put(name, connector=running, task=running)
        task.start()

    def _stop(self, name: str) -> bool:
        task = self._tasks.get(name)
        if task is None:
            return True
        log.info("Connector %s stops", name)
        if not task.stop(_STOP):
            log.error("Connector %s has not stopped within %.0f s", name, _STOP)
            return False
        del self._tasks[name]
        return True

    def _ended(self, task: Task, outcome: Outcome) -> None:
        """By the task's own thread."""
        if self._tasks.get(task.name) is not task:
            return
        self._outcomes[task.name] = outcome
        if outcome.kind in (DONE, FAILED):
            state = STOPPED if outcome.kind == DONE else FAILED_STATE
            self._put(task.name, task=Status(state, self.worker.id, outcome.trace, self.generation))

    def _put(self, name: str, connector: Status | None = None, task: Status | None = None) -> None:
        try:
            self.statuses.put(name, connector, task)
        except ConnectError as error:
            log.warning("The state of %s is not told: %s", name, error)

    def _unassign(self, name: str) -> None:
        now = self.statuses.connector(name)
        if now is not None and now.worker_id == self.worker.id and now.state != UNASSIGNED:
            gone = Status(UNASSIGNED, self.worker.id, None, self.generation)
            self._put(name, connector=gone, task=gone if self.statuses.task(name) is not None else None)

    def all_done(self) -> dict[str, Outcome] | None:
        """What became of each connector, when none runs any more."""
        names = self.configs.names()
        found = {name: self._outcomes[name] for name in names if name in self._outcomes}
        for name in names:
            status = self.statuses.connector(name)
            if name not in found and status is not None and status.state == FAILED_STATE:
                found[name] = Outcome(FAILED, status.trace)
        return found if len(found) == len(names) else None

    # --- plugins

    def list_plugins(self, connectors_only: bool) -> list[dict[str, Any]]:
        found = [
            {"class": where, "type": cls.kind, "version": cls.version}
            for plugin, cls in plugins.load_all(self.worker.declared)
            for where in (plugin.java_names[:1] or (plugin.name,))
        ]
        if not connectors_only:
            for kind, known in _OTHER_PLUGINS.items():
                found += [{"class": name, "type": kind, "version": __version__} for name in known]
        return found

    def plugin_options(self, name: str) -> list[dict[str, Any]]:
        try:
            cls = plugins.load(name, self.worker.declared)
        except ConfigErrors as error:
            for what, known in _OTHER_PLUGINS.items():
                with contextlib.suppress(ConfigErrors):
                    return describe(load("", name, known, what, self.worker.declared)[0].options)
            reason = error.errors[plugins.CLASS][0]
            raise RestError(404, f"Unknown plugin {shown(name)}. {reason}") from None
        return describe((*cls.options, *(one for one in options_of(cls) if one not in cls.options)))

    def validate(self, plugin: str, given: Mapping[str, str | None]) -> dict[str, Any]:
        named = given.get("connector.class")
        if not named:
            raise RestError(400, _no_type(given))
        is_same = named == plugin or named.endswith(f".{plugin}")
        if not is_same and (plugins.find(named) is None or plugins.find(named) != plugins.find(plugin)):
            wrong = f"Included connector type {shown(named)} does not match request type {shown(plugin)}"
            raise RestError(400, wrong)
        return self.checked(given)

    def checked(self, given: Mapping[str, str | None]) -> dict[str, Any]:
        """The answer of validate, for a configuration with a class; RestError where that is none."""
        providers, declared = self.worker.providers, self.worker.declared
        plain = {name: value for name, value in given.items() if value is not None}
        try:
            resolved = providers.resolved(plain)
            cls = plugins.load(resolved.get(plugins.CLASS, ""), declared)
        except ProviderError as error:
            raise RestError(500, str(error)) from None
        except ConfigErrors as error:
            raise RestError(400, providers.hidden(error.errors[plugins.CLASS][0])) from None
        _, errors = check_connector(cls, resolved, self.worker.properties, self.worker.exactly_once, declared)
        from kavka.pipeline.connect.transforms.chain import options_of_steps

        options = (*options_of(cls), *options_of_steps(resolved, declared))
        passwords = {option.name for option in options if option.type is ConfigType.PASSWORD}
        secrets = Secrets.of(plain, passwords)
        errors = {
            name: [secrets.hidden(message) for message in messages]
            for name, messages in providers.hidden_errors(errors, given, resolved).items()
        }
        visible = {name: shown_value(name, value) for name, value in plain.items()}
        return config_infos(given.get(plugins.CLASS) or "", options, visible, errors)

    # --- connectors

    def names(self) -> list[str]:
        return self.configs.names()

    def config(self, name: str) -> dict[str, str]:
        found = self.configs.config(name)
        if found is None:
            raise RestError(404, f"Connector {name} not found")
        return found

    def info(self, name: str) -> dict[str, Any]:
        config = self.config(name)
        return {"name": name, "config": config, "tasks": self._task_ids(name), "type": self._kind(config)}

    def _task_ids(self, name: str) -> list[dict[str, Any]]:
        return [{"connector": name, "task": 0}] if self.statuses.task(name) is not None else []

    def _kind(self, config: Mapping[str, str]) -> str:
        try:
            return plugins.load(self._class_name(config), self.worker.declared).kind
        except (ConfigErrors, ProviderError):
            return "unknown"

    def _class_name(self, config: Mapping[str, str]) -> str:
        return self.worker.providers.resolved({plugins.CLASS: config.get(plugins.CLASS, "")})[plugins.CLASS]

    def status(self, name: str) -> dict[str, Any]:
        config, now = self.configs.config(name), self.statuses.connector(name)
        if config is None or now is None:
            raise RestError(404, f"No status found for connector {name}")
        task = self.statuses.task(name)
        return {
            "name": name,
            "connector": _shown(now),
            "tasks": [{"id": 0, **_shown(task)}] if task is not None else [],
            "type": self._kind(config),
        }

    def create(self, name: str, config: Mapping[str, str | None], state: str | None) -> dict[str, Any]:
        self.lead()
        if self.configs.config(name) is not None:
            raise RestError(409, f"Connector {name} already exists")
        wanted = (state or "RUNNING").upper()
        targets = {"RUNNING": STARTED, "PAUSED": PAUSED, "STOPPED": STOPPED}
        if wanted not in targets:
            raise RestError(400, f"Invalid value {state} for initial_state: RUNNING, PAUSED or STOPPED")
        self.configs.put(name, self._accepted(name, config), targets[wanted])
        self.wake()
        return {**self.info(name), "tasks": []}

    def put_config(self, name: str, config: Mapping[str, str | None]) -> tuple[bool, dict[str, Any]]:
        """(whether it was made, what it is now)."""
        self.lead()
        made = self.configs.config(name) is None
        accepted = self._accepted(name, config)
        if made or self.configs.config(name) != accepted:
            self.configs.put(name, accepted, STARTED if made else None)
        else:
            self.request_restart(name)
        self.wake()
        return made, self.info(name)

    def patch_config(self, name: str, patch: Mapping[str, str | None]) -> dict[str, Any]:
        self.lead()
        merged: dict[str, str | None] = {**self.config(name), **patch}
        return self.put_config(name, {key: value for key, value in merged.items() if value is not None})[1]

    def _accepted(self, name: str, config: Mapping[str, str | None]) -> dict[str, str]:
        full = {key: value for key, value in config.items() if value is not None}
        if full.setdefault("name", name) != name:
            raise RestError(400, f"Connector name configuration ({full['name']}) doesn't match connector name in the "
                            f"URL ({name})")  # fmt: skip
        if not full.get("connector.class"):
            raise RestError(400, _no_type(full))
        answer = self.checked(full)
        errors = {one["value"]["name"]: one["value"]["errors"] for one in answer["configs"]}
        if answer["error_count"]:
            raise RestError(400, str(ConfigErrors(errors)) + _INVALID)
        return full

    def delete(self, name: str) -> None:
        self.lead()
        self.config(name)
        self.configs.delete(name)
        self.wake()

    def set_target(self, name: str, target: str) -> None:
        self.lead()
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
        """None: it was told to the thread; with `include_tasks` what it is restarted from."""
        self.config(name)
        self.own(name)
        connector, task = self.statuses.connector(name), self.statuses.task(name)
        if connector is None:
            raise RestError(404, f"Status for connector {name} not found")
        failed = FAILED_STATE in (connector.state, task.state if include_tasks and task is not None else "")
        if only_failed and not failed:
            return self.status(name) if include_tasks else None
        running = connector.state in (RUNNING, FAILED_STATE)
        plan = self.status(name)
        if running and (include_tasks or connector.state == FAILED_STATE):
            self.request_restart(name)
            for one in (plan["connector"], *plan["tasks"]):
                if not only_failed or one["state"] == FAILED_STATE:
                    one.update(state=RESTARTING)
                    one.pop("trace", None)
        return plan if include_tasks else None

    def restart_task(self, name: str, number: int) -> None:
        self._task(name, number)
        self.own(name)
        if self.configs.target(name) == STARTED:
            self.request_restart(name)

    def _task(self, name: str, number: int) -> Status:
        self.config(name)
        found = self.statuses.task(name)
        if found is None or number != 0:
            raise RestError(404, f"No status found for task {name}-{number}")
        return found

    def task_status(self, name: str, number: int) -> dict[str, Any]:
        return {"id": number, **_shown(self._task(name, number))}

    def tasks(self, name: str) -> list[dict[str, Any]]:
        config = self.config(name)
        full = {**config, "task.class": config["connector.class"]}
        return [{"id": one, "config": full} for one in self._task_ids(name)]

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
            raise RestError(500, self.worker.providers.hidden(str(error))) from None

    def offsets(self, name: str) -> dict[str, Any]:
        return read_offsets(self.worker, name, self._class(name))

    def _stopped(self, name: str) -> type[Connector]:
        cls = self._class(name)
        now, task = self.statuses.connector(name), self.statuses.task(name)
        if self.configs.target(name) != STOPPED or now is None or now.state != STOPPED or task is not None:
            raise RestError(
                400,
                "Connectors must be in the STOPPED state before their offsets can be modified. This can be done for "
                f"the specified connector by issuing a 'PUT' request to the '/connectors/{name}/stop' endpoint",
            )
        return cls

    def alter(self, name: str, body: Any) -> str:
        self.lead()
        try:
            entries = offset_entries(body)
            alter_offsets(self.worker, name, self._stopped(name), entries)
        except ConnectError as error:
            raise RestError(400, str(error)) from None
        return "The offsets for this connector have been altered successfully"

    def reset(self, name: str) -> str:
        self.lead()
        cls = self._stopped(name)
        reset_offsets(self.worker, name, cls)
        return "The offsets for this connector have been reset successfully"


def _no_type(config: Mapping[str, str | None]) -> str:
    """As Kafka Connect says it, but without values, of which nobody knows whether they are secrets."""
    settings = ", ".join(f"{name}={value if name == 'name' else HIDDEN}" for name, value in config.items())
    return f"Connector config {{{settings}}} contains no connector type"


def _shown(status: Status) -> dict[str, Any]:
    found = {"state": status.state, "worker_id": status.worker_id}
    return found if status.trace is None else {**found, "trace": status.trace}
