"""Connect's REST interface and bad input: an answer with a code and a message, whatever comes."""

from __future__ import annotations

import urllib.request
from http.client import HTTPConnection
from typing import Any
from urllib.parse import quote

import pytest

from kavka.pipeline.connect.herder import Herder, NotLeader
from tests.support.connect_app import SOURCE, Asked, idle_herder


@pytest.fixture
def herder() -> Herder:
    return idle_herder()


@pytest.fixture
def ask(herder: Herder) -> Asked:
    return Asked(herder)


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
def test_bad_input_is_answered_with_a_code_and_a_message(
    ask: Asked, method: str, path: str, body: Any, code: int
) -> None:
    status, found = ask(method, path, body)
    assert status == code, found
    assert found["error_code"] == code and found["message"]


def test_a_name_may_have_slashes_and_numbers_are_taken_as_texts(ask: Asked, herder: Herder) -> None:
    assert ask("PUT", "/connectors/a/b/config", {**SOURCE, "tasks.max": 2})[0] == 201
    assert herder.config("a/b")["tasks.max"] == "2"
    assert ask("GET", "/connectors/a/b")[1]["name"] == "a/b"
    assert ask("GET", "/connectors", query="expand=info&expand=nothing")[1]["a/b"]["info"]["type"] == "source"
    assert ask("DELETE", "/connectors/a/b") == (204, None)


def test_without_a_leader_a_change_is_a_conflict(ask: Asked, herder: Herder) -> None:
    def nobody() -> None:
        raise NotLeader(None)

    herder.lead = nobody  # type: ignore[method-assign]
    status, found = ask("POST", "/connectors", {"name": "x", "config": SOURCE})
    assert status == 409 and "conflicting operation" in found["message"]
    herder.lead = lambda: (_ for _ in ()).throw(NotLeader("http://127.0.0.1:1"))  # type: ignore[assignment, method-assign]
    assert ask("POST", "/connectors", {"name": "x", "config": SOURCE}, "forward=false")[0] == 409
    assert ask("POST", "/connectors", {"name": "x", "config": SOURCE})[0] == 500


NAMES = ["a b", "täglich", "日次", "50%", "what?", "x#y", "a/b"]


@pytest.mark.parametrize("name", NAMES)
def test_a_connector_of_any_name_is_made_and_found(ask: Asked, herder: Herder, name: str) -> None:
    status, found = ask("POST", "/connectors", {"name": name, "config": SOURCE})
    assert (status, found["name"]) == (201, name)
    assert ask.location == f"/connectors/{quote(name)}"
    assert ask("GET", f"/connectors/{name}")[0] == 200
    assert ask("PUT", f"/connectors/{name}/config", {**SOURCE, "topic": "u"})[0] == 200


@pytest.mark.parametrize("name", NAMES)
def test_what_another_worker_has_to_do_is_sent_on_whatever_the_connectors_name(
    ask: Asked, herder: Herder, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    herder.lead = lambda: (_ for _ in ()).throw(NotLeader("http://other:8083/"))  # type: ignore[assignment, method-assign]
    sent: list[str] = []

    def urlopen(request: urllib.request.Request, timeout: float) -> Any:
        sent.append(request.full_url)
        # As the library does when it connects: what is no proper URL is refused.
        HTTPConnection("other")._validate_path(request.selector)  # type: ignore[attr-defined]
        request.selector.encode("ascii")
        raise OSError("nobody is there")

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    status, found = ask("PUT", f"/connectors/{name}/stop")
    assert status == 500 and "nobody is there" in found["message"]
    assert sent == [f"http://other:8083/connectors/{quote(name)}/stop?forward=false"]
