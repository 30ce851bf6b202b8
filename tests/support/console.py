"""The console as a process of its own, and a small HTTP client that can be as rude as a test needs."""

from __future__ import annotations

import http.client
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlencode

from tests.support.processes import ManagedProcess, free_port, wait_until

PATIENCE_S = 60.0


class Answer:
    def __init__(self, status: int, headers: http.client.HTTPMessage, body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.text = body.decode("utf-8", "replace")

    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def error(self) -> str:
        return str(self.json().get("error", ""))


class ConsoleProcess:
    """`kavka console` on a free port of localhost; its data in `folder`."""

    def __init__(
        self, folder: Path, servers: str, *, options: Sequence[str] = (), host: str = "localhost", start: bool = True
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.host = host
        self.port = free_port()
        self.options = ["--bootstrap-server", servers] if servers else []
        self.options += ["--host", host, "--port", str(self.port), "--data", str(folder / "data"), *options]
        self.process: ManagedProcess | None = None
        if start:
            self.start()

    @property
    def origin(self) -> str:
        return f"http://localhost:{self.port}"

    def start(self) -> None:
        process = self.process = ManagedProcess(
            [sys.executable, "-m", "kavka.cli.main", "console", *self.options], log=self.folder / "console.out"
        )

        def up() -> bool:
            if not process.running():
                raise RuntimeError(f"the console ended: {process.log_tail()}")
            try:
                return self.get("/healthz").status == 200
            except OSError:
                return False

        wait_until(up, timeout=PATIENCE_S, what="the console answers", interval=0.1)

    def stop(self) -> int:
        assert self.process is not None
        return self.process.stop()

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.request(method, path, body, dict(headers or {}))
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})

    def post(self, path: str, values: object = None, **headers: str) -> Answer:
        """JSON, as a program sends it."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.request(
            "POST", path, json.dumps(values or {}).encode(), {"Content-Type": "application/json", **given}
        )

    def form(self, path: str, values: Mapping[str, str], **headers: str) -> Answer:
        """As a browser sends it."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        kind = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "text/html"}
        return self.request("POST", path, urlencode(values).encode(), {**kind, **given})

    def api(self, path: str) -> str:
        return f"/api/clusters/default{path}"

    def __enter__(self) -> ConsoleProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process is not None and self.process.running():
            self.stop()
