"""Connectors of the configured Connect workers: list, create, change, control, delete, offsets."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any
from urllib.parse import urlencode

from starlette.responses import Response

from kavka.console import connector_forms
from kavka.console.auth import Role
from kavka.console.connect_client import (
    CLASS,
    ConnectCluster,
    ConnectorRow,
    Plugin,
    TaskRow,
    summary,
    task_rows,
    without_secrets,
)  # fmt: skip
from kavka.console.connector_forms import NAME
from kavka.console.context import Context, check_confirmation, check_seen, fingerprint
from kavka.console.errors import Refused
from kavka.console.registry import SECRET, Bounds, Done, action, query
from kavka.console.views import View, page

MAX_TRACE = 20_000

At = Annotated[str, "The address of the workers, if several clusters of workers are configured"]
Config = Annotated[dict[str, str], "The settings. In a form also one field with JSON", SECRET]
More = Annotated[str, "Further settings as lines name=value", SECRET]


@dataclass(frozen=True, slots=True)
class ConnectorsFound:
    """The connectors of all workers. `problems` has a line per worker that did not respond."""

    connectors: list[ConnectorRow]
    lags: dict[str, int] = field(default_factory=dict)
    """By sink connector: the lag of its consumer group."""
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ConnectorDetails:
    """A connector. `config` has no passwords. `traces` has the stack traces by task, that of the
    connector itself under "connector". `seen` is for changes and deletion."""

    connector: ConnectorRow
    config: dict[str, str]
    traces: dict[str, str]
    seen: str


@dataclass(frozen=True, slots=True)
class Offsets:
    """The offsets of a connector: objects with `partition` and `offset`."""

    offsets: list[dict[str, Any]]
    seen: str


class Command(Enum):
    PAUSE = "pause"
    RESUME = "resume"
    STOP = "stop"
    RESTART = "restart"
    RESTART_CONNECTOR = "restart-connector"
    RESTART_FAILED = "restart-failed"


_MESSAGES = {
    Command.PAUSE: "is being paused",
    Command.RESUME: "is being resumed",
    Command.STOP: "is being stopped",
    Command.RESTART: "is being restarted, with its tasks",
    Command.RESTART_CONNECTOR: "is being restarted, without its tasks",
    Command.RESTART_FAILED: "and its failed tasks are being restarted if they failed",
}


def connect_clusters(context: Context) -> list[ConnectCluster]:
    own = context.cluster.settings.own
    settings = {name.removeprefix("connect."): value for name, value in own.items() if name.startswith("connect.")}
    addresses = settings.pop("url", "")
    return [ConnectCluster(address, settings) for address in addresses.replace(",", " ").split()]


def _workers(context: Context, at: str) -> ConnectCluster:
    """Return the workers at a configured address: requests go to no other address."""
    configured = connect_clusters(context)
    matching = [cluster for cluster in configured if not at or cluster.address == at]
    if not matching:
        raise Refused("no such Connect workers are configured (console.connect.url)", 404, "at")
    if len(matching) > 1:
        addresses = ", ".join(cluster.address for cluster in matching)
        raise Refused(f"several clusters of workers are configured; choose one of {addresses}", field="at")
    return matching[0]


def _location(context: Context, connector: str = "", at: str = "") -> str:
    base = f"/c/{context.cluster.name}/pipelines"
    return f"{base}/connector?{urlencode({'connector': connector, 'at': at})}" if connector else base


# --- queries


@query("/connectors", "List the connectors of the configured Connect workers")
async def list_connectors(context: Context) -> ConnectorsFound:
    connectors: list[ConnectorRow] = []
    problems: list[str] = []
    for result in await asyncio.gather(
        *(cluster.connectors() for cluster in connect_clusters(context)), return_exceptions=True
    ):
        if isinstance(result, Refused):
            problems.append(str(result))
        elif isinstance(result, BaseException):
            raise result
        else:
            connectors += result
    groups = (await context.cluster.state(groups=True)).groups
    lags = {}
    for row in connectors:
        group = groups.get(f"connect-{row.name}")
        if row.type == "sink" and group is not None and group.lag is not None:
            lags[row.name] = group.lag
    return ConnectorsFound(connectors, lags, problems)


@query("/connectors/plugins", "List the connectors that the workers can run")
async def list_connector_plugins(context: Context, at: At = "") -> list[Plugin]:
    return await _workers(context, at).plugins()


@query("/connectors/one", "Describe a connector, its tasks and its configuration without passwords")
async def describe_connector(context: Context, connector: str, at: At = "") -> ConnectorDetails:
    workers = _workers(context, at)
    config = await workers.config(connector)
    status, passwords = await asyncio.gather(_status(workers, connector), _passwords(workers, config))
    state = status.get("connector")
    instance: dict[str, Any] = state if isinstance(state, dict) else {}
    tasks = status.get("tasks")
    traces = {
        name: without_secrets(str(trace), config, passwords)[:MAX_TRACE]
        for name, trace in [
            ("connector", instance.get("trace")),
            *((str(t.get("id")), t.get("trace")) for t in (tasks or ()) if isinstance(t, dict)),
        ]
        if trace
    }
    rows: list[TaskRow] = task_rows(status, config, passwords)
    error = summary(instance.get("trace"), config, passwords) or next((task.trace for task in rows if task.trace), "")
    row = ConnectorRow(
        workers.address,
        connector,
        str(status.get("type") or ""),
        config.get(CLASS, ""),
        str(instance.get("state") or ""),
        str(instance.get("worker_id") or ""),
        error,
        rows,
    )
    return ConnectorDetails(row, connector_forms.hidden(config, passwords), traces, _seen(config))


async def _status(workers: ConnectCluster, connector: str) -> dict[str, Any]:
    """Return the status, {} if a new connector has none yet."""
    try:
        return await workers.status(connector)
    except Refused as error:
        if error.status != 404:
            raise
        return {}


async def _passwords(workers: ConnectCluster, config: dict[str, str]) -> set[str]:
    """Return the settings of the type password. Without the plugin of the connector, every setting
    is treated as one, except those that all connectors have."""
    try:
        return connector_forms.password_names(await workers.validate(config))
    except Refused:
        return set(config) - {NAME, CLASS, "tasks.max", "topics", "topics.regex"}


def _seen(config: dict[str, str]) -> str:
    return fingerprint(sorted(config.items()))


@query("/connectors/offsets", "Show the offsets of a connector")
async def connector_offsets(context: Context, connector: str, at: At = "") -> Offsets:
    offsets = await _workers(context, at).offsets(connector)
    return Offsets(offsets, fingerprint(offsets))


# --- actions


@action("/connectors/check", "Check the configuration of a connector, without a change", role=Role.ADMIN)
async def check_connector(
    context: Context, config: Config, connector: str = "", more: More = "", at: At = "", seen: str = ""
) -> Done:
    """`connector` is the name of an existing connector: hidden values are its current ones."""
    workers = _workers(context, at)
    current = await workers.config(connector) if connector else {}
    check_seen(seen, _seen(current))
    await _checked(workers, config, more, current)
    return Done("The configuration is valid")


async def _checked(
    workers: ConnectCluster, config: dict[str, str], more: str, current: dict[str, str]
) -> dict[str, str]:
    """Return the configuration with its hidden values. Raises Refused with the errors of every
    setting."""
    settings = connector_forms.submitted(config, more)
    if not settings.get(CLASS):
        raise Refused(f"{CLASS} is missing", field=f"config.{CLASS}")
    passwords = await _passwords(workers, current) if current else set()
    settings = connector_forms.restored(settings, current, passwords)
    connector_forms.check(await workers.validate(settings), settings)
    return settings


@action("/connectors/create", "Create a connector", role=Role.ADMIN)
async def create_connector(context: Context, config: Config, more: More = "", at: At = "") -> Done:
    """The setting `name` is the name of the connector."""
    workers = _workers(context, at)
    settings = await _checked(workers, config, more, {})
    name = settings.get(NAME, "").strip()
    if not name:
        raise Refused("the connector needs a name", field="config.name")
    await workers.create(name, settings)
    return Done(f"{name} was created", _location(context, name, workers.address))


@action("/connectors/change", "Change the configuration of a connector", role=Role.ADMIN)
async def change_connector(
    context: Context, connector: str, config: Config, more: More = "", at: At = "", seen: str = ""
) -> Done:
    """The configuration replaces the current one. A hidden value stays as it is."""
    workers = _workers(context, at)
    current = await workers.config(connector)
    check_seen(seen, _seen(current))
    settings = await _checked(workers, config, more, current)
    if settings.get(NAME, connector) != connector:
        raise Refused("a connector cannot be renamed", field="config.name")
    await workers.change(connector, settings)
    return Done(f"{connector} was changed and is being restarted", _location(context, connector, workers.address))


@action("/connectors/do", "Pause, resume, stop or restart a connector")
async def control_connector(context: Context, connector: str, what: Command, at: At = "") -> Done:
    workers = _workers(context, at)
    match what:
        case Command.RESTART | Command.RESTART_CONNECTOR:
            await workers.restart(connector, tasks=what is Command.RESTART)
        case Command.RESTART_FAILED:
            await workers.restart(connector, tasks=True, only_failed=True)
        case _:
            await workers.control(connector, what.value)
    return Done(f"{connector} {_MESSAGES[what]}")


@action("/connectors/restart-task", "Restart a task of a connector")
async def restart_task(context: Context, connector: str, task: Annotated[int, Bounds(0)], at: At = "") -> Done:
    await _workers(context, at).restart_task(connector, task)
    return Done(f"task {task} of {connector} is being restarted")


@action("/connectors/delete", "Delete a connector", role=Role.ADMIN)
async def delete_connector(context: Context, connector: str, confirm: str, at: At = "", seen: str = "") -> Done:
    """The offsets of a source, and the consumer group of a sink, stay."""
    workers = _workers(context, at)
    check_confirmation(typed=confirm, name=connector, seen=seen, current=_seen(await workers.config(connector)))
    await workers.delete(connector)
    return Done(f"{connector} was deleted", _location(context))


@action("/connectors/offsets/alter", "Set offsets of a stopped connector", role=Role.ADMIN)
async def alter_connector_offsets(
    context: Context,
    connector: str,
    offsets: Annotated[str, "A JSON list of objects with `partition` and `offset`; the offset null deletes it"],
    at: At = "",
    seen: str = "",
) -> Done:
    workers = _workers(context, at)
    entries = _offset_entries(offsets)
    check_seen(seen, fingerprint(await workers.offsets(connector)))
    message = await workers.alter_offsets(connector, entries)
    return Done(message or f"the offsets of {connector} were set", _location(context, connector, workers.address))


def _offset_entries(text: str) -> list[dict[str, Any]]:
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, ValueError) else "it is too deep"
        raise Refused(f"the offsets are not JSON: {reason}", field="offsets") from None
    if not isinstance(entries, list) or not entries:
        raise Refused("the offsets must be a list of objects with partition and offset", field="offsets")
    for entry in entries:
        if not isinstance(entry, dict) or set(entry) != {"partition", "offset"}:
            raise Refused(f"not an object with partition and offset: {json.dumps(entry)[:100]}", field="offsets")
    return entries


@action("/connectors/offsets/reset", "Delete the offsets of a stopped connector", role=Role.ADMIN)
async def reset_connector_offsets(context: Context, connector: str, confirm: str, at: At = "", seen: str = "") -> Done:
    """The connector then starts from the beginning."""
    workers = _workers(context, at)
    check_confirmation(typed=confirm, name=connector, seen=seen, current=fingerprint(await workers.offsets(connector)))
    message = await workers.reset_offsets(connector)
    return Done(message or f"the offsets of {connector} were deleted", _location(context, connector, workers.address))


# --- pages


@page("/pipelines/connector", "Connector")
async def connector_page(view: View) -> Response:
    context = view.context
    name, at = view.text("connector"), view.text("at")
    details = await describe_connector(context, name, at)
    try:
        offsets, problem = await connector_offsets(context, name, at), ""
    except Refused as error:
        offsets, problem = Offsets([], ""), str(error)
    group = f"connect-{name}" if details.connector.type == "sink" else ""
    state = (await context.cluster.state(groups=True)).groups.get(group)
    return view.render(
        "connector.html",
        details=details,
        row=details.connector,
        group=group if state is not None else "",
        lag=state.lag if state is not None else None,
        offsets=offsets,
        offsets_json=json.dumps(offsets.offsets, indent=2, ensure_ascii=False),
        offsets_problem=problem,
        as_json=lambda value: json.dumps(value, ensure_ascii=False),
        may_operate=context.user.role >= Role.OPERATE,
        may_change=context.user.role >= Role.ADMIN,
    )


@page("/pipelines/connector/new", "New connector", role=Role.ADMIN)
async def new_connector_page(view: View) -> Response:
    """Without `plugin`, the page lists the connectors to choose from."""
    context, plugin = view.context, view.text("plugin")
    if not plugin:
        clusters = []
        problems = []
        for workers in connect_clusters(context):
            try:
                clusters.append((workers.address, await workers.plugins()))
            except Refused as error:
                problems.append(str(error))
        return view.render("connector_plugins.html", plugins_by_cluster=clusters, problems=problems)
    workers = _workers(context, view.text("at"))
    config = {CLASS: plugin}
    return await _form_page(view, workers, "", config, "")


@page("/pipelines/connector/edit", "Edit a connector", role=Role.ADMIN)
async def edit_connector_page(view: View) -> Response:
    workers = _workers(view.context, view.text("at"))
    name = view.text("connector")
    config = await workers.config(name)
    return await _form_page(view, workers, name, config, _seen(config))


async def _form_page(view: View, workers: ConnectCluster, name: str, config: dict[str, str], seen: str) -> Response:
    validated = await workers.validate(config)
    shown = connector_forms.hidden(config, connector_forms.password_names(validated))
    return view.render(
        "connector_form.html",
        name=name,
        at=workers.address,
        plugin=config.get(CLASS, ""),
        form_fields=connector_forms.form_of(validated, config),
        is_raw=view.flag("raw"),
        raw=json.dumps(shown if name else {NAME: "", **shown}, indent=2, ensure_ascii=False),
        seen=seen,
    )
