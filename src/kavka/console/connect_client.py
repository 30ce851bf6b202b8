"""A client of Kafka Connect's REST interface, for the configured workers of a cluster.

Requests run in threads. Responses are limited in size, and redirects are not followed.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from kavka.client.security_config import tls_values
from kavka.common.config import ConfigError
from kavka.common.secret_settings import HIDDEN, secret_values
from kavka.console.errors import Refused

CLASS = "connector.class"
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
class Plugin:
    """A connector that the workers can run. `type` is source or sink."""

    class_name: str
    type: str
    version: str

    @property
    def short_name(self) -> str:
        return self.class_name.rpartition(".")[2]


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
        entries = sorted(self._object(connectors).items())
        return [_row(self.address, name, info) for name, info in entries if isinstance(info, dict)]

    async def control(self, connector: str, command: str) -> None:
        """Pause, resume or stop a connector."""
        await self._send("PUT", f"{_path(connector)}/{command}")

    async def restart(self, connector: str, *, tasks: bool, only_failed: bool = False) -> None:
        """Restart a connector, or with `tasks` also its tasks. `only_failed` limits it to failed
        instances."""
        query = urlencode({"includeTasks": str(tasks).lower(), "onlyFailed": str(only_failed).lower()})
        await self._send("POST", f"{_path(connector)}/restart?{query}")

    async def restart_task(self, connector: str, task: int) -> None:
        await self._send("POST", f"{_path(connector)}/tasks/{task}/restart")

    async def plugins(self) -> list[Plugin]:
        """Return the connectors that the workers can run, sorted by class."""
        plugins = await self._send("GET", "/connector-plugins")
        if not isinstance(plugins, list):
            raise self._unexpected()
        connectors = [
            Plugin(str(p.get("class", "")), str(p.get("type", "")), str(p.get("version") or ""))
            for p in plugins
            if isinstance(p, dict) and p.get("type") in ("source", "sink")
        ]
        return sorted(connectors, key=lambda plugin: (plugin.short_name, plugin.class_name))

    async def validate(self, config: Mapping[str, str]) -> dict[str, Any]:
        """Return the definitions, values and errors of the settings of a configuration."""
        plugin = quote(config.get(CLASS, "").rpartition(".")[2], safe="")
        return self._object(
            await self._send("PUT", f"/connector-plugins/{plugin}/config/validate", dict(config), config)
        )

    async def config(self, connector: str) -> dict[str, str]:
        """Return the configuration, with its passwords."""
        config = self._object(await self._send("GET", f"{_path(connector)}/config"))
        return {name: str(value) for name, value in config.items() if value is not None}

    async def status(self, connector: str) -> dict[str, Any]:
        """Return the state of the connector and its tasks, with stack traces."""
        return self._object(await self._send("GET", f"{_path(connector)}/status"))

    async def create(self, connector: str, config: Mapping[str, str]) -> None:
        await self._send("POST", "/connectors", {"name": connector, "config": dict(config)}, config)

    async def change(self, connector: str, config: Mapping[str, str]) -> None:
        await self._send("PUT", f"{_path(connector)}/config", dict(config), config)

    async def delete(self, connector: str) -> None:
        await self._send("DELETE", _path(connector))

    async def offsets(self, connector: str) -> list[dict[str, Any]]:
        """Return the offsets: objects with `partition` and `offset`, whose form depends on the
        connector."""
        offsets = self._object(await self._send("GET", f"{_path(connector)}/offsets")).get("offsets")
        return [entry for entry in offsets if isinstance(entry, dict)] if isinstance(offsets, list) else []

    async def alter_offsets(self, connector: str, offsets: list[dict[str, Any]]) -> str:
        """Set offsets of a stopped connector. Returns the message of the worker."""
        response = await self._send("PATCH", f"{_path(connector)}/offsets", {"offsets": offsets})
        return str(self._object(response).get("message", ""))[:300]

    async def reset_offsets(self, connector: str) -> str:
        """Delete the offsets of a stopped connector. Returns the message of the worker."""
        return str(self._object(await self._send("DELETE", f"{_path(connector)}/offsets")).get("message", ""))[:300]

    def _object(self, content: Any) -> dict[str, Any]:
        if not isinstance(content, dict):
            raise self._unexpected()
        return content

    def _unexpected(self) -> Refused:
        return Refused(f"{self.address} returned an unexpected response; it may not be a Connect worker", 502)

    async def _send(
        self, method: str, path: str, content: object = None, config: Mapping[str, str] | None = None
    ) -> Any:
        """Send a request. An error is shown without the passwords of `config`."""
        status, body = await asyncio.to_thread(self._request, method, self._path + path, content)
        try:
            content = json.loads(body) if body else None
        except (ValueError, RecursionError):
            content = None
        if status >= 300:
            message = content.get("message") if isinstance(content, dict) else None
            text = without_secrets(str(message or f"HTTP status {status}"), config or {})
            line = f"{self.address}: {text[:300]}"
            raise Refused(line, status if status in (400, 404, 409) else 502)
        return content

    def _request(self, method: str, path: str, content: object) -> tuple[int, bytes]:
        headers = self._headers if content is None else {**self._headers, "Content-Type": "application/json"}
        try:
            connection = self._connection()
            try:
                connection.request(method, path, None if content is None else json.dumps(content), headers)
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


def _path(connector: str) -> str:
    return f"/connectors/{quote(connector, safe='')}"


def _row(address: str, name: str, expanded: dict[str, Any]) -> ConnectorRow:
    status, info = (part if isinstance(part, dict) else {} for part in (expanded.get("status"), expanded.get("info")))
    connector = status.get("connector") or {}
    config: dict[str, Any] = info["config"] if isinstance(info.get("config"), dict) else {}
    tasks = task_rows(status, config)
    errors = [summary(connector.get("trace"), config), *(task.trace for task in tasks)]
    return ConnectorRow(
        address,
        name,
        str(info.get("type") or status.get("type") or ""),
        str(config.get(CLASS, "")),
        str(connector.get("state", "")),
        str(connector.get("worker_id", "")),
        next((error for error in errors if error), ""),
        tasks,
    )


def task_rows(
    status: Mapping[str, Any], config: Mapping[str, Any], secret_names: Collection[str] = ()
) -> list[TaskRow]:
    """Return the tasks of a status, sorted by number."""
    rows = []
    for task in status.get("tasks") or ():
        if isinstance(task, dict):
            trace = summary(task.get("trace"), config, secret_names)
            rows.append(
                TaskRow(int(task.get("id", 0)), str(task.get("state", "")), str(task.get("worker_id", "")), trace)
            )
    return sorted(rows, key=lambda row: row.id)


def summary(trace: Any, config: Mapping[str, Any], secret_names: Collection[str] = ()) -> str:
    """Return the first line of a stack trace and its causes, at most 500 characters, without the
    passwords of the configuration."""
    lines = [line.strip() for line in without_secrets(str(trace or ""), config, secret_names).splitlines()]
    causes = [line for line in lines[:1] + [line for line in lines if line.startswith("Caused by:")] if line]
    return " — ".join(causes)[:500]


def without_secrets(text: str, config: Mapping[str, Any], secret_names: Collection[str] = ()) -> str:
    """Return the text without the passwords of a configuration: a worker may quote them in errors
    and stack traces."""
    for value in sorted(set(secret_values(config, secret_names)), key=len, reverse=True):
        if len(value) > 2:
            text = text.replace(value, HIDDEN)
    return text
