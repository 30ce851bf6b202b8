"""The console as a process, an HTTP client that can send invalid requests, and helpers for its
pages."""

from __future__ import annotations

import http.client
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

from tests.support.browser import expect
from tests.support.processes import ManagedProcess, wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

READY = re.compile(r"The console is at (https?://\S+)")
TIMEOUT_S = 60.0


class Response:
    def __init__(self, status: int, headers: http.client.HTTPMessage, body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.text = body.decode("utf-8", "replace")

    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def error(self) -> str:
        return str(self.json().get("error", ""))


class ConsoleClient:
    """Sends requests to a console. Keyword arguments are headers (`Sec_Fetch_Site="none"`)."""

    def __init__(self, port: int) -> None:
        self.port = port

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Response:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        try:
            connection.request(method, path, body, dict(headers or {}))
            response = connection.getresponse()
            return Response(response.status, response.headers, response.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Response:
        return self.request("GET", path, headers=_header_names(headers))

    def post(self, path: str, values: object = None, **headers: str) -> Response:
        """Send JSON, as a program does."""
        all_headers = {"Content-Type": "application/json", **_header_names(headers)}
        return self.request("POST", path, json.dumps(values or {}).encode(), all_headers)

    def form(self, path: str, values: Mapping[str, str], **headers: str) -> Response:
        """Send a form, as a browser does."""
        form_headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "text/html"}
        return self.request("POST", path, urlencode(values).encode(), {**form_headers, **_header_names(headers)})

    def api(self, path: str) -> Any:
        """Return the JSON at a path below /api/clusters/default."""
        response = self.get(of_default(path))
        assert response.status == 200, response.text
        return response.json()

    def responds(self, path: str = "/healthz") -> bool:
        try:
            return self.get(path).status == 200
        except OSError:
            return False


def _header_names(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


def of_default(path: str) -> str:
    return f"/api/clusters/default{path}"


class ConsoleProcess(ConsoleClient):
    """A `kavka console` process. A restart uses the same port."""

    def __init__(self, folder: Path, servers: str, *options: str, env: Mapping[str, str] | None = None) -> None:
        super().__init__(0)
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.log = folder / "console.log"
        self.options = [*(["--bootstrap-server", servers] if servers else []), "--data", str(folder / "data"), *options]
        self.env = env
        self.start()

    def start(self) -> None:
        starts = len(READY.findall(self.log.read_text())) if self.log.exists() else 0
        self.process = ManagedProcess(
            [sys.executable, "-m", "kavka.cli.main", "console", *self.options, "--port", str(self.port)],
            log=self.log,
            env=self.env,
        )

        def is_ready() -> bool:
            if not self.process.running():
                raise RuntimeError(f"the console has ended: {self.log.read_text()}")
            return len(READY.findall(self.log.read_text())) > starts

        try:
            wait_until(is_ready, timeout=TIMEOUT_S, what="the console", interval=0.05)
        except BaseException:
            self.close()
            raise
        self.origin = READY.findall(self.log.read_text())[-1]
        self.port = urlsplit(self.origin).port or 0

    def searches(self) -> int:
        return int(self.get("/api/searches").json()["running"])

    def stop(self) -> int:
        return self.process.stop()

    def close(self) -> None:
        self.process.kill()

    def __enter__(self) -> ConsoleProcess:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


# --- helpers for pages in a browser


def open_details(page: Page, identity: str) -> Locator:
    """Open a dialog by its button, or a details element, and return it."""
    details = page.locator(f"#{identity}")
    if details.get_attribute("open") is None:
        if details.evaluate("element => element.localName") == "dialog":
            page.locator(f"button[commandfor='{identity}']").click()
        else:
            details.locator("> summary").click()
    return details


def send(form: Locator, button: str, message: str) -> None:
    """Press a form's button and wait for the message, which may be shown on the next page."""
    page = form.page
    form.get_by_role("button", name=button, exact=True).first.click()
    expect(page.locator(".toast.good", has_text=re.compile(message)).last).to_be_visible()


def submit_expecting_error(form: Locator, button: str, message: str) -> None:
    """Press a form's button and expect an error message in the form."""
    form.get_by_role("button", name=button, exact=True).first.click()
    expect(form.locator(".outcome.bad")).to_contain_text(re.compile(message))
