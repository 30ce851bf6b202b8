"""A client of Kafka Connect's REST interface, for the configured workers of a cluster.

Requests run in threads. Responses are limited in size, and redirects are not followed.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from kavka.client.security_config import tls_values
from kavka.common.config import ConfigError
from kavka.console.errors import Refused

TIMEOUT_S = 10.0
MAX_RESPONSE_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A task of a connector. `trace` is a summary of its stack trace."""

    id: int
    state: str
    worker: str
    trace: str


@dataclass(frozen=True, slots=True)
class ConnectorRow:
    """A connector. `error` summarizes the first trace of the connector and its tasks."""

    workers: str
    """The URL of the Connect cluster."""
    name: str
    type: str
    connector_class: str
    state: str
    worker: str
    error: str
    tasks: list[TaskRow]


class ConnectCluster:
    """A Connect cluster, accessed through the worker at `address`. `settings` has the user of
    basic authentication (`username`, `password`) and the `ssl.…` settings for HTTPS. The methods
    raise Refused if the worker does not respond or returns an error."""

    def __init__(self, address: str, settings: Mapping[str, str] | None = None) -> None:
        parts = urlsplit(address if "//" in address else f"//{address}", "http")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Refused(
                f"'{address}' is not the address of a Connect worker; expected a URL such as http://host:8083", 500
            )
        self.address = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        self._scheme, self._netloc, self._path = parts.scheme, parts.netloc, parts.path.rstrip("/")
        self._settings = settings or {}
        self._headers = {"Accept": "application/json"}
        if "username" in self._settings:
            credentials = f"{self._settings['username']}:{self._settings.get('password', '')}"
            self._headers["Authorization"] = f"Basic {base64.b64encode(credentials.encode()).decode()}"

    async def connectors(self) -> list[ConnectorRow]:
        """Return the connectors, sorted by name."""
        connectors = await self._send("GET", "/connectors?" + urlencode([("expand", "status"), ("expand", "info")]))
        if not isinstance(connectors, dict):
            raise Refused(f"{self.address} returned an unexpected response; it may not be a Connect worker", 502)
        return [_row(self.address, name, info) for name, info in sorted(connectors.items()) if isinstance(info, dict)]

    async def control(self, connector: str, command: str) -> None:
        """Pause, resume or stop a connector, or restart it with its tasks."""
        path = f"/connectors/{quote(connector, safe='')}/{command}"
        if command == "restart":
            await self._send("POST", f"{path}?includeTasks=true&onlyFailed=false")
        else:
            await self._send("PUT", path)

    async def _send(self, method: str, path: str) -> Any:
        status, body = await asyncio.to_thread(self._request, method, self._path + path)
        try:
            content = json.loads(body) if body else None
        except (ValueError, RecursionError):
            content = None
        if status >= 300:
            message = content.get("message") if isinstance(content, dict) else None
            line = f"{self.address}: {str(message or f'HTTP status {status}')[:300]}"
            raise Refused(line, 404 if status == 404 else 502)
        return content

    def _request(self, method: str, path: str) -> tuple[int, bytes]:
        try:
            connection = self._connection()
            try:
                connection.request(method, path, headers=self._headers)
                response = connection.getresponse()
                body = response.read(MAX_RESPONSE_BYTES + 1)
            finally:
                connection.close()
        except ConfigError as error:
            raise Refused(f"console.connect.{error.name}: {error.reason}", 500) from None
        except (OSError, HTTPException, ValueError) as error:
            raise Refused(f"no Connect worker responds at {self.address}: {error}", 502) from None
        if len(body) > MAX_RESPONSE_BYTES:
            raise Refused(f"the response of {self.address} has more than {MAX_RESPONSE_BYTES} bytes", 502)
        return response.status, body

    def _connection(self) -> HTTPConnection:
        """Reads the files of certificates, so it runs in a thread. Raises ConfigError."""
        if self._scheme == "http":
            return HTTPConnection(self._netloc, timeout=TIMEOUT_S)
        from kavka.security.tls import TlsSettings, client_context

        context = client_context(TlsSettings.from_values(tls_values(self._settings)))
        return HTTPSConnection(self._netloc, timeout=TIMEOUT_S, context=context)


def _row(address: str, name: str, expanded: dict[str, Any]) -> ConnectorRow:
    status, info = (part if isinstance(part, dict) else {} for part in (expanded.get("status"), expanded.get("info")))
    connector = status.get("connector") or {}
    tasks = [
        TaskRow(int(t.get("id", 0)), str(t.get("state", "")), str(t.get("worker_id", "")), _summary(t.get("trace")))
        for t in status.get("tasks") or ()
        if isinstance(t, dict)
    ]
    errors = [_summary(connector.get("trace")), *(task.trace for task in tasks)]
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


def _summary(trace: Any) -> str:
    """Return the first line of a stack trace and its causes, at most 500 characters."""
    lines = [line.strip() for line in str(trace or "").splitlines()]
    summary = [line for line in lines[:1] + [line for line in lines if line.startswith("Caused by:")] if line]
    return " — ".join(summary)[:500]
