"""Connect's REST interface: bad input, connector names, forwarded requests."""

from __future__ import annotations

import urllib.request
from http.client import HTTPConnection
from typing import Any
from urllib.parse import quote

import pytest

from kavka.pipeline.connect.herder import Herder, WrongWorker
from tests.support.connect_app import SOURCE, ApiClient, idle_herder


@pytest.fixture
def herder() -> Herder:
    return idle_herder()


@pytest.fixture
def api(herder: Herder) -> ApiClient:
    return ApiClient(herder)


@pytest.mark.parametrize(
    "method, path, body, code",
    [
        ("POST", "/connectors", b"{bad", 400),
        ("POST", "/connectors", b"\xff\xfe", 400),
        ("POST", "/connectors", [], 400),
        ("POST", "/connectors", {"name": "x"}, 400),
        ("POST", "/connectors", {"name": "x", "config": {"file": ["a"]}}, 400),
        ("POST", "/connectors", {"config": {"connector.class": "FileStreamSource"}}, 400),
        ("POST", "/connectors", {"name": "x", "config": SOURCE, "initial_state": "sideways"}, 400),
        ("POST", "/connectors", {"name": "line\nend", "config": SOURCE}, 400),
        ("POST", "/connectors", b"x" * (5 << 20), 413),
        ("PUT", "/connectors/x/config", b"", 400),
        ("PUT", "/connectors/x/config", 7, 400),
        ("PATCH", "/connectors/x/config", {}, 404),
        ("PATCH", "/connectors/x/offsets", {"offsets": 3}, 400),
        ("DELETE", "/connectors/x/offsets", b"", 404),
        ("GET", "/connectors/x/tasks/0/status", b"", 404),
        ("GET", "/connectors/x/tasks/none/status", b"", 404),
        ("PUT", "/connectors/x/stop", b"", 404),
        ("GET", "/connector-plugins/../config", b"", 404),
        ("PUT", "/connector-plugins/FileStreamSource/config/validate", b"[", 400),
        ("PUT", "/admin/loggers/root", {"level": "LOUD"}, 404),
        ("DELETE", "/connectors", b"", 405),
    ],
)
def test_the_response_to_bad_input_has_an_error_code_and_a_message(
    api: ApiClient, method: str, path: str, body: Any, code: int
) -> None:
    status, response = api(method, path, body)
    assert status == code, response
    assert response["error_code"] == code and response["message"]


def test_names_with_slashes_and_numeric_settings_are_accepted(api: ApiClient, herder: Herder) -> None:
    assert api("PUT", "/connectors/a/b/config", {**SOURCE, "tasks.max": 2})[0] == 201
    assert herder.config("a/b")["tasks.max"] == "2"
    assert api("GET", "/connectors/a/b")[1]["name"] == "a/b"
    assert api("GET", "/connectors", query="expand=info&expand=nothing")[1]["a/b"]["info"]["type"] == "source"
    assert api("DELETE", "/connectors/a/b") == (204, None)


def test_without_a_leader_a_change_is_a_conflict(api: ApiClient, herder: Herder) -> None:
    def no_leader() -> None:
        raise WrongWorker(None)

    herder.require_leader = no_leader  # type: ignore[method-assign]
    status, response = api("POST", "/connectors", {"name": "x", "config": SOURCE})
    assert status == 409 and "conflicting operation" in response["message"]
    herder.require_leader = lambda: (_ for _ in ()).throw(WrongWorker("http://127.0.0.1:1"))  # type: ignore[assignment, method-assign]
    assert api("POST", "/connectors", {"name": "x", "config": SOURCE}, "forward=false")[0] == 409
    assert api("POST", "/connectors", {"name": "x", "config": SOURCE})[0] == 500


NAMES = ["a b", "täglich", "日次", "50%", "what?", "x#y", "a/b"]


@pytest.mark.parametrize("name", NAMES)
def test_a_connector_may_have_any_name(api: ApiClient, herder: Herder, name: str) -> None:
    status, response = api("POST", "/connectors", {"name": name, "config": SOURCE})
    assert (status, response["name"]) == (201, name)
    assert api.location == f"/connectors/{quote(name)}"
    assert api("GET", f"/connectors/{name}")[0] == 200
    assert api("PUT", f"/connectors/{name}/config", {**SOURCE, "topic": "u"})[0] == 200


@pytest.mark.parametrize("name", NAMES)
def test_requests_are_forwarded_for_any_connector_name(
    api: ApiClient, herder: Herder, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    herder.require_leader = lambda: (_ for _ in ()).throw(WrongWorker("http://other:8083/"))  # type: ignore[assignment, method-assign]
    urls: list[str] = []

    def open_url(opener: Any, request: urllib.request.Request, timeout: float) -> Any:
        urls.append(request.full_url)
        # The standard library rejects an invalid URL with these checks.
        HTTPConnection("other")._validate_path(request.selector)  # type: ignore[attr-defined]
        request.selector.encode("ascii")
        raise OSError("connection refused")

    monkeypatch.setattr(urllib.request.OpenerDirector, "open", open_url)
    status, response = api("PUT", f"/connectors/{name}/stop")
    assert status == 500 and "connection refused" in response["message"]
    assert urls == [f"http://other:8083/connectors/{quote(name)}/stop?forward=false"]
