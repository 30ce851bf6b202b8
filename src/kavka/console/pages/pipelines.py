"""Pipelines: the streams jobs of this machine, and the connectors of the Connect workers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any

from starlette.responses import Response

from kavka import jobs
from kavka.console.auth import Role
from kavka.console.connect_client import ConnectorRow, Workers
from kavka.console.context import Context
from kavka.console.errors import Refused
from kavka.console.registry import Done, action, query
from kavka.console.views import View, page


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job. `state` is the state that it reports, FAILED with `error`, or GONE if its process was
    killed."""

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
    """The connectors of all workers; `problems` has a line per worker that did not respond."""

    connectors: list[ConnectorRow]
    lags: dict[str, int] = field(default_factory=dict)
    """The lag of the groups of sinks."""
    problems: list[str] = field(default_factory=list)


class What(Enum):
    PAUSE = "pause"
    RESUME = "resume"
    RESTART = "restart"
    STOP = "stop"


_DONE = {
    What.PAUSE: "is told to pause",
    What.RESUME: "is told to go on",
    What.RESTART: "is told to restart, with its tasks",
    What.STOP: "is told to stop",
}


@query("/pipelines", "The streams jobs that run on the console's machine, or ended badly there")
async def list_pipelines(context: Context) -> list[JobRow]:
    try:
        all_jobs = await asyncio.to_thread(jobs.all_jobs)
    except (jobs.JobError, OSError) as error:
        raise Refused(str(error), 500) from None
    return [_job(job) for job in all_jobs]


def _job(job: dict[str, Any]) -> JobRow:
    def number(name: str) -> Any:
        value = job.get(name)
        return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    started = number("started")
    error = str(job.get("error") or "")
    if job["state"] == jobs.GONE:
        error = "its process is gone without having said why: it was killed, or the machine was"
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


@action("/pipelines/stop", "Stop a streams job: what it has begun is finished by its next start")
async def stop_pipeline(context: Context, name: str) -> Done:
    await _do(jobs.stop, name)
    return Done(f"{name} has ended", _here(context))


@action("/pipelines/restart", "Start a streams job again as it was started before", role=Role.ADMIN)
async def restart_pipeline(context: Context, name: str) -> Done:
    pid = await _do(jobs.restart, name)
    return Done(f"{name} is started, as process {pid}; it is shown here when it runs", _here(context))


@action("/pipelines/forget", "Forget a streams job that ended badly")
async def forget_pipeline(context: Context, name: str) -> Done:
    job = await _do(jobs.read, name)
    if job is None:
        raise Refused(f"nothing is known of {name}", 404)
    if job["running"]:
        raise Refused(f"{name} runs: stop it first", 409)
    await _do(jobs.remove, name)
    return Done(f"{name} is forgotten", _here(context))


def _here(context: Context) -> str:
    return f"/c/{context.cluster.name}/pipelines"


async def _do(work: Any, name: str) -> Any:
    try:
        return await asyncio.to_thread(work, name)
    except jobs.JobError as error:
        raise Refused(str(error), 409) from None
    except OSError as error:
        raise Refused(f"{name}: {error.strerror or error}", 500) from None


# --- connectors


def workers(context: Context) -> list[Workers]:
    configured = context.cluster.settings.own.get("connect.url", "")
    return [Workers(address) for address in configured.replace(",", " ").split()]


@query("/connectors", "The connectors of the Connect workers that the console was told of")
async def list_connectors(context: Context) -> ConnectorsFound:
    connectors: list[ConnectorRow] = []
    problems: list[str] = []
    for result in await asyncio.gather(*(cluster.connectors() for cluster in workers(context)), return_exceptions=True):
        if isinstance(result, Refused):
            problems.append(str(result))
        elif isinstance(result, BaseException):
            raise result
        else:
            connectors += result
    groups = (await context.cluster.state(groups=True)).groups
    lags = {}
    for row in connectors:
        # The group of a sink's consumers.
        group = groups.get(f"connect-{row.name}")
        if row.type == "sink" and group is not None and group.lag is not None:
            lags[row.name] = group.lag
    return ConnectorsFound(connectors, lags, problems)


@action("/connectors/do", "Pause, resume, restart or stop a connector")
async def control_connector(
    context: Context,
    connector: str,
    what: What,
    at: Annotated[str, "The workers' address, where there are several"] = "",
) -> Done:
    matching = [cluster for cluster in workers(context) if not at or cluster.address == at]
    if not matching:
        raise Refused("the console was told of no such Connect workers (console.connect.url)", 404)
    await matching[0].do(connector, what.value)
    return Done(f"{connector} {_DONE[what]}", _here(context))


@page("/pipelines", "Pipelines", nav="Pipelines")
async def pipelines_page(view: View) -> Response:
    context = view.context
    await context.cluster.state()
    return view.render(
        "pipelines.html",
        jobs=await list_pipelines(context),
        connect=bool(workers(context)),
        found=await list_connectors(context),
        may_operate=context.user.role >= Role.OPERATE,
        may_restart=context.user.role >= Role.ADMIN,
    )
