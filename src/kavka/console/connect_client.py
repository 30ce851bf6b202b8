"""Kafka Connect's REST interface, as far as the console uses it: the workers of a cluster, by their configured address.

Requests run in threads; an answer is read up to a limit, redirects are not followed.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from kavka.console.errors import Refused

PATIENCE_S = 10.0
MOST_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class TaskRow:
    id: int
    state: str
    worker: str
    trace: str


@dataclass(frozen=True, slots=True)
class ConnectorRow:
    """`error` is the last lines of what a failed connector or task has said."""

    workers: str
    """The address that was asked."""
    name: str
    type: str
    connector_class: str
    state: str
    worker: str
    error: str
    tasks: list[TaskRow]


class Workers:
    """A cluster of Connect workers; any of them can be asked."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address if "//" in address else f"//{address}", "http")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Refused(f"'{address}' is not the address of a Connect worker: http://host:8083", 500)
        self.address = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        self._scheme, self._netloc, self._path = parts.scheme, parts.netloc, parts.path.rstrip("/")

    async def connectors(self) -> list[ConnectorRow]:
        found = await self._ask("GET", "/connectors?" + urlencode([("expand", "status"), ("expand", "info")]))
        if not isinstance(found, dict):
            raise Refused(f"{self.address} did not answer as Kafka Connect does", 502)
        return [_row(self.address, name, one) for name, one in sorted(found.items()) if isinstance(one, dict)]

    async def do(self, connector: str, what: str) -> None:
        """pause, resume, stop, or restart with its tasks."""
        path = f"/connectors/{quote(connector, safe='')}/{what}"
        if what == "restart":
            await self._ask("POST", f"{path}?includeTasks=true&onlyFailed=false")
        else:
            await self._ask("PUT", path)

    async def _ask(self, method: str, path: str) -> Any:
        status, body = await asyncio.to_thread(self._request, method, self._path + path)
        try:
            found = json.loads(body) if body else None
        except (ValueError, RecursionError):
            found = None
        if status >= 300:
            said = found.get("message") if isinstance(found, dict) else None
            raise Refused(f"{self.address}: {str(said or f'answered {status}')[:300]}", 404 if status == 404 else 502)
        return found

    def _request(self, method: str, path: str) -> tuple[int, bytes]:
        kind = HTTPSConnection if self._scheme == "https" else HTTPConnection
        try:
            connection = kind(self._netloc, timeout=PATIENCE_S)
            try:
                connection.request(method, path, headers={"Accept": "application/json"})
                response = connection.getresponse()
                body = response.read(MOST_BYTES + 1)
            finally:
                connection.close()
        except (OSError, HTTPException, ValueError) as error:
            raise Refused(f"no Connect worker answers at {self.address}: {error}", 502) from None
        if len(body) > MOST_BYTES:
            raise Refused(f"{self.address} answered with more than {MOST_BYTES} bytes", 502)
        return response.status, body


def _row(address: str, name: str, one: dict[str, Any]) -> ConnectorRow:
    status = one.get("status") if isinstance(one.get("status"), dict) else {}
    info = one.get("info") if isinstance(one.get("info"), dict) else {}
    assert isinstance(status, dict)
    assert isinstance(info, dict)
    connector = status.get("connector") or {}
    tasks = [
        TaskRow(int(t.get("id", 0)), str(t.get("state", "")), str(t.get("worker_id", "")), _last(t.get("trace")))
        for t in status.get("tasks") or ()
        if isinstance(t, dict)
    ]
    errors = [_last(connector.get("trace")), *(task.trace for task in tasks)]
    return ConnectorRow(
        address,
        name,
        str(info.get("type") or status.get("type") or ""),
        str((info.get("config") or {}).get("connector.class", "")),
        str(connector.get("state", "")),
        str(connector.get("worker_id", "")),
        next((error for error in errors if error), ""),
        tasks,
    )


def _last(trace: Any) -> str:
    """The first line of a trace says what, its causes why."""
    lines = [line.strip() for line in str(trace or "").splitlines()]
    told = [line for line in lines[:1] + [line for line in lines if line.startswith("Caused by:")] if line]
    return " — ".join(told)[:500]
