"""Calls to Connect's REST interface without a server, a broker or Spark."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from kavka.pipeline.connect.herder import Herder
from kavka.pipeline.connect.loading import Declared
from kavka.pipeline.connect.rest import Api
from kavka.pipeline.connect.stores import ConfigStore, MemoryTable, OffsetStore, StatusStore
from kavka.pipeline.connect.tasks import Worker

SOURCE = {"connector.class": "FileStreamSource", "file": "f", "topic": "t"}
FILES = Declared(file_connectors=True)
JSON = "application/json"


def no_spark() -> Any:
    raise AssertionError("this test must not use Spark")


def idle_herder(declared: Declared = FILES, **settings: Any) -> Herder:
    """Create a herder whose thread is not started. It stores configurations and runs nothing."""
    converters = {"key.converter": "StringConverter", "value.converter": "StringConverter"}
    offsets = OffsetStore(MemoryTable())
    worker = Worker("w:1", converters, no_spark, "points", offsets, declared=declared, **settings)
    return Herder(worker, ConfigStore(MemoryTable()), StatusStore(MemoryTable()))


class ApiClient:
    """Calls the ASGI application of the REST interface."""

    def __init__(self, herder: Herder, **api: Any) -> None:
        self._app = Api(herder, **api).app()
        self.headers: dict[str, str] = {}
        """The headers of the last response."""

    @property
    def location(self) -> str | None:
        return self.headers.get("location")

    def __call__(
        self,
        method: str,
        path: str,
        body: bytes | Any = b"",
        query: str = "",
        headers: Mapping[str, str | None] | None = None,
    ) -> tuple[int, Any]:
        """Return the status and the JSON of the response, or its text. A body that is not bytes is
        sent as JSON. A header that is None is omitted."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent_headers: dict[str, str | None] = {"host": "localhost:8083"}
        if data:
            sent_headers["content-type"] = JSON
        sent_headers |= headers or {}
        pairs = [
            (name.lower().encode(), value.encode("latin-1"))
            for name, value in sent_headers.items()
            if value is not None
        ]
        scope = {
            "type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": query.encode(),
            "headers": pairs, "http_version": "1.1", "scheme": "http", "root_path": "",
            "server": ("localhost", 8083), "client": ("127.0.0.1", 1), "asgi": {"version": "3.0"},
        }  # fmt: skip
        messages: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": data, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            messages.append(message)

        asyncio.run(self._app(scope, receive, send))  # type: ignore[arg-type]
        response = b"".join(message.get("body", b"") for message in messages[1:])
        self.headers = {name.decode(): value.decode() for name, value in messages[0]["headers"]}
        if not self.headers.get("content-type", JSON).startswith(JSON):
            return messages[0]["status"], response.decode()
        return messages[0]["status"], json.loads(response) if response else None
