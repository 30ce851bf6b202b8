"""Connect's REST interface as the console asks it, with the answers that Apache Kafka 3.9.1's worker gave."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from kavka.console.connect_client import Workers
from kavka.console.errors import Refused

GOLDEN = Path(__file__).parents[2] / "golden" / "connect-rest-3.9.1.json"


class Recorded(BaseHTTPRequestHandler):
    answers: dict[str, tuple[int, Any]] = {}
    asked: list[str] = []

    def _serve(self) -> None:
        what = f"{self.command} {self.path}"
        self.asked.append(what)
        status, found = self.answers.get(what, (404, {"error_code": 404, "message": "there is no such thing"}))
        body = found if isinstance(found, bytes) else b"" if found is None else json.dumps(found).encode()
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "http://elsewhere.example/")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT = do_POST = _serve

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def workers() -> Iterator[Workers]:
    Recorded.answers = {what: (status, found) for what, status, found in json.loads(GOLDEN.read_text())}
    Recorded.asked = []
    server = HTTPServer(("127.0.0.1", 0), Recorded)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield Workers(f"http://127.0.0.1:{server.server_port}/")
    server.shutdown()
    server.server_close()


def test_connectors_are_read_as_apache_tells_them(workers):
    (row,) = asyncio.run(workers.connectors())
    assert (row.name, row.type, row.state) == ("probe", "source", "RUNNING")
    assert row.connector_class.endswith("FileStreamSourceConnector")
    assert [(task.id, task.state) for task in row.tasks] == [(0, "RUNNING")]
    assert row.error == ""


def test_what_is_done_to_a_connector(workers):
    Recorded.answers["POST /connectors/a%20b%2Fc/restart?includeTasks=true&onlyFailed=false"] = (202, {})
    for what in ("pause", "resume", "stop"):
        Recorded.answers[f"PUT /connectors/probe/{what}"] = (202, None)
        asyncio.run(workers.do("probe", what))
    asyncio.run(workers.do("a b/c", "restart"))
    assert Recorded.asked[-1] == "POST /connectors/a%20b%2Fc/restart?includeTasks=true&onlyFailed=false"


def test_the_first_line_and_the_causes_of_a_trace_are_told(workers):
    trace = "ConnectException: it failed\n\tat here\nCaused by: IOException: no disk\n\tat there"
    status = {"connector": {"state": "RUNNING"}, "tasks": [{"id": 0, "state": "FAILED", "trace": trace}]}
    Recorded.answers["GET /connectors?expand=status&expand=info"] = (200, {"x": {"status": status}})
    (row,) = asyncio.run(workers.connectors())
    assert row.error == "ConnectException: it failed — Caused by: IOException: no disk"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((404, {"error_code": 404, "message": "Connector x not found"}), "Connector x not found"),
        ((500, b"<html>"), "answered 500"),
        ((302, None), "answered 302"),
        ((200, b"not json"), "did not answer as Kafka Connect does"),
        ((200, [1, 2]), "did not answer as Kafka Connect does"),
    ],
)
def test_other_answers_are_a_line(workers, answer, said):
    Recorded.answers["GET /connectors?expand=status&expand=info"] = answer
    with pytest.raises(Refused, match=said):
        asyncio.run(workers.connectors())


def test_nobody_there_and_no_address():
    with pytest.raises(Refused, match="no Connect worker answers"):
        asyncio.run(Workers("http://127.0.0.1:1").connectors())
    for address in ("file:///etc/passwd", "http://", "ftp://host"):
        with pytest.raises(Refused, match="not the address"):
            Workers(address)
