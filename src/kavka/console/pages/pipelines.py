"""Pipelines: the Streams jobs of this machine, and the connectors of the Connect workers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any

from starlette.responses import Response

from kavka import jobs
from kavka.console.auth import Role
from kavka.console.connect_client import ConnectCluster, ConnectorRow
from kavka.console.context import Context
from kavka.console.errors import Refused
from kavka.console.registry import Done, action, query
from kavka.console.views import View, page


@dataclass(frozen=True, slots=True)
class JobRow:
    """A Streams job. `state` is the state that the job reports, FAILED with `error`, or GONE if its
    process was killed."""

    name: str
    state: str
    running: bool
    pid: int
    job: str
    started: float | None
    batch: int | None
    rows_per_second: float | None
    lag: int | None
    state_rows: int | None
    error: str


@dataclass(frozen=True, slots=True)
class ConnectorsFound:
    """The connectors of all workers. `problems` has a line per worker that did not respond."""

    connectors: list[ConnectorRow]
    lags: dict[str, int] = field(default_factory=dict)
    """By sink connector: the lag of its consumer group."""
    problems: list[str] = field(default_factory=list)


class Command(Enum):
    PAUSE = "pause"
    RESUME = "resume"
    RESTART = "restart"
    STOP = "stop"


_MESSAGES = {
    Command.PAUSE: "is being paused",
    Command.RESUME: "is being resumed",
    Command.RESTART: "is being restarted, with its tasks",
    Command.STOP: "is being stopped",
}


@query("/pipelines", "List the running and failed Streams jobs of the console's machine")
async def list_pipelines(context: Context) -> list[JobRow]:
    try:
        all_jobs = await asyncio.to_thread(jobs.all_jobs)
    except (jobs.JobError, OSError) as error:
        raise Refused(str(error), 500) from None
    return [_job_row(job) for job in all_jobs]


def _job_row(job: dict[str, Any]) -> JobRow:
    def number(name: str) -> Any:
        value = job.get(name)
        return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    started = number("started")
    error = str(job.get("error") or "")
    if job["state"] == jobs.GONE:
        error = "the process ended without reporting an error: it was killed, or the machine was restarted"
    return JobRow(
        job["application.id"],
        str(job["state"]),
        job["running"],
        int(job["pid"]),
        str(job.get("job", "")),
        started / 1000 if started else None,
        number("batch"),
        number("rows_per_second") if job["running"] else None,
        number("lag") if job["running"] else None,
        number("state_rows"),
        error,
    )


@action("/pipelines/stop", "Stop a Streams job. Its next start completes an unfinished batch")
async def stop_pipeline(context: Context, name: str) -> Done:
    await _call(jobs.stop, name)
    return Done(f"{name} was stopped", _address(context))


@action("/pipelines/restart", "Restart a Streams job with the same command line", role=Role.ADMIN)
async def restart_pipeline(context: Context, name: str) -> Done:
    pid = await _call(jobs.restart, name)
    return Done(f"{name} was started as process {pid}; it is listed once it runs", _address(context))


@action("/pipelines/forget", "Remove a failed Streams job from the list")
async def forget_pipeline(context: Context, name: str) -> Done:
    job = await _call(jobs.read, name)
    if job is None:
        raise Refused(f"there is no job '{name}'", 404)
    if job["running"]:
        raise Refused(f"{name} is running: stop it first", 409)
    await _call(jobs.remove, name)
    return Done(f"{name} was removed", _address(context))


def _address(context: Context) -> str:
    return f"/c/{context.cluster.name}/pipelines"


async def _call(function: Callable[[str], Any], name: str) -> Any:
    try:
        return await asyncio.to_thread(function, name)
    except jobs.JobError as error:
        raise Refused(str(error), 409) from None
    except OSError as error:
        raise Refused(f"{name}: {error.strerror or error}", 500) from None


# --- connectors


def connect_clusters(context: Context) -> list[ConnectCluster]:
    own = context.cluster.settings.own
    settings = {name.removeprefix("connect."): value for name, value in own.items() if name.startswith("connect.")}
    addresses = settings.pop("url", "")
    return [ConnectCluster(address, settings) for address in addresses.replace(",", " ").split()]


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


@action("/connectors/do", "Pause, resume, restart or stop a connector")
async def control_connector(
    context: Context,
    connector: str,
    what: Command,
    at: Annotated[str, "The address of the workers, if there are several clusters of workers"] = "",
) -> Done:
    matching = [cluster for cluster in connect_clusters(context) if not at or cluster.address == at]
    if not matching:
        raise Refused("no such Connect workers are configured (console.connect.url)", 404)
    await matching[0].control(connector, what.value)
    return Done(f"{connector} {_MESSAGES[what]}", _address(context))


@page("/pipelines", "Pipelines", nav="Pipelines", icon="workflow", section="Pipelines")
async def pipelines_page(view: View) -> Response:
    context = view.context
    await context.cluster.state()
    return view.render(
        "pipelines.html",
        jobs=await list_pipelines(context),
        connect=bool(connect_clusters(context)),
        found=await list_connectors(context),
        may_operate=context.user.role >= Role.OPERATE,
        may_restart=context.user.role >= Role.ADMIN,
    )
