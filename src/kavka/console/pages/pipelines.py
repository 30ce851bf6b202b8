"""Pipelines: the Streams jobs of this machine, with the list of connectors (`connectors.py`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from kavka import jobs
from kavka.console.auth import Role
from kavka.console.context import Context
from kavka.console.errors import Refused
from kavka.console.pages.connectors import connect_clusters, list_connectors
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
        may_change=context.user.role >= Role.ADMIN,
    )
