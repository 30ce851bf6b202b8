"""The audit log."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from enum import Enum
from typing import Annotated

from starlette.responses import Response, StreamingResponse

from kavka.common.times import text_of
from kavka.console.auth import Role
from kavka.console.context import Context
from kavka.console.errors import Refused
from kavka.console.registry import Bounds, query
from kavka.console.showing import cell, csv_line
from kavka.console.store import AuditLine
from kavka.console.views import Pager, View, page

MAX_LINES = 10_000


@query("/audit", "List all attempted changes and their outcomes, newest first", role=Role.ADMIN)
async def audit(
    context: Context, limit: Annotated[int, "Maximum number of entries", Bounds(1, MAX_LINES)] = 200
) -> list[AuditLine]:
    return await context.console.store.audit_lines(context.cluster.name, limit)


class ExportFormat(Enum):
    CSV = "csv"
    JSON_LINES = "jsonl"


COLUMNS = ("time", "user", "address", "cluster", "action", "arguments", "outcome")


@query("/audit/export", "Download the audit log, newest entries first", role=Role.ADMIN)
async def export_audit(
    context: Context, format: Annotated[ExportFormat, "csv or jsonl"] = ExportFormat.CSV
) -> Response:
    """An entry has the time in UTC. A CSV text that a spreadsheet would evaluate as a formula gets
    an apostrophe in front."""
    name = f"audit-{context.cluster.name}.{format.value}"
    media_type = "text/csv; charset=utf-8" if format is ExportFormat.CSV else "application/x-ndjson"
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
    return StreamingResponse(_export(context, format), media_type=media_type, headers=headers)


async def _export(context: Context, export_format: ExportFormat) -> AsyncIterator[bytes]:
    is_csv = export_format is ExportFormat.CSV
    if is_csv:
        yield (",".join(COLUMNS) + "\r\n").encode()
    async for lines in context.console.store.all_audit_lines(context.cluster.name):
        if not context.is_current():
            raise Refused("log in first", 401)
        yield "".join(map(_csv_line if is_csv else _json_line, lines)).encode("utf-8", "replace")


def _values(line: AuditLine) -> tuple[str, ...]:
    return text_of(int(line.at * 1000)), line.user, line.address, line.cluster, line.action


def _json_line(line: AuditLine) -> str:
    values = dict(zip(COLUMNS, (*_values(line), line.arguments, line.outcome), strict=True))
    return json.dumps(values, ensure_ascii=False) + "\n"


def _csv_line(line: AuditLine) -> str:
    arguments = json.dumps(line.arguments, ensure_ascii=False) if line.arguments else ""
    return csv_line(*map(cell, (*_values(line), arguments, line.outcome)))


@page("/audit", "Audit log", nav="Audit log", icon="scroll-text", section="Administration", role=Role.ADMIN)
async def audit_page(view: View) -> Response:
    store, cluster = view.context.console.store, view.context.cluster.name
    pager = Pager(view, range(await store.count_audit_lines(cluster)))
    pager.rows = await store.audit_lines(cluster, len(pager.rows), pager.first)
    return view.render("audit.html", pager=pager)
