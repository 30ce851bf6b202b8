"""The audit log."""

from __future__ import annotations

from typing import Annotated

from starlette.responses import Response

from kavka.console.auth import Role
from kavka.console.context import Context
from kavka.console.registry import Bounds, query
from kavka.console.store import AuditLine
from kavka.console.views import Pager, View, page

MAX_LINES = 10_000


@query("/audit", "List all attempted changes and their outcomes, newest first", role=Role.ADMIN)
async def audit(
    context: Context, limit: Annotated[int, "Maximum number of entries", Bounds(1, MAX_LINES)] = 200
) -> list[AuditLine]:
    return await context.console.store.audit_lines(context.cluster.name, limit)


@page("/audit", "Audit log", nav="Audit log", icon="scroll-text", section="Administration", role=Role.ADMIN)
async def audit_page(view: View) -> Response:
    return view.render("audit.html", pager=Pager(view, await audit(view.context, MAX_LINES)))
