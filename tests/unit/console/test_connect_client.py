"""The client of Connect's REST interface, with recorded responses of an Apache Kafka 3.9.1
worker."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from kavka.console.connect_client import ConnectCluster
from kavka.console.errors import Refused
from kavka.security.authority import Authority

GOLDEN = Path(__file__).parents[2] / "golden" / "connect-rest-3.9.1.json"


class Recorded(BaseHTTPRequestHandler):
    """Sends the recorded response to each request, and records the requests."""

    responses: dict[str, tuple[int, Any]] = {}
    requests: list[str] = []

    def _serve(self) -> None:
        request = f"{self.command} {self.path}"
        self.requests.append(request)
        status, content = self.responses.get(request, (404, {"error_code": 404, "message": "not recorded"}))
        body = content if isinstance(content, bytes) else b"" if content is None else json.dumps(content).encode()
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
def cluster() -> Iterator[ConnectCluster]:
    Recorded.responses = {request: (status, content) for request, status, content in json.loads(GOLDEN.read_text())}
    Recorded.requests = []
    server = HTTPServer(("127.0.0.1", 0), Recorded)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield ConnectCluster(f"http://127.0.0.1:{server.server_port}/")
    server.shutdown()
    server.server_close()


def test_connectors_of_apache_worker_are_parsed(cluster):
    (row,) = asyncio.run(cluster.connectors())
    assert (row.name, row.type, row.state) == ("probe", "source", "RUNNING")
    assert row.connector_class.endswith("FileStreamSourceConnector")
    assert [(task.id, task.state) for task in row.tasks] == [(0, "RUNNING")]
    assert row.error == ""


def test_commands_are_sent_to_connector(cluster):
    Recorded.responses["POST /connectors/a%20b%2Fc/restart?includeTasks=true&onlyFailed=false"] = (202, {})
    for command in ("pause", "resume", "stop"):
        Recorded.responses[f"PUT /connectors/probe/{command}"] = (202, None)
        asyncio.run(cluster.control("probe", command))
    asyncio.run(cluster.restart("a b/c", tasks=True))
    assert Recorded.requests[-1] == "POST /connectors/a%20b%2Fc/restart?includeTasks=true&onlyFailed=false"


def test_trace_is_summarized(cluster):
    trace = "ConnectException: it failed\n\tat here\nCaused by: IOException: no disk\n\tat there"
    status = {"connector": {"state": "RUNNING"}, "tasks": [{"id": 0, "state": "FAILED", "trace": trace}]}
    Recorded.responses["GET /connectors?expand=status&expand=info"] = (200, {"x": {"status": status}})
    (row,) = asyncio.run(cluster.connectors())
    assert row.error == "ConnectException: it failed — Caused by: IOException: no disk"


@pytest.mark.parametrize(
    ("response", "message"),
    [
        ((404, {"error_code": 404, "message": "Connector x not found"}), "Connector x not found"),
        ((500, b"<html>"), "HTTP status 500"),
        ((302, None), "HTTP status 302"),
        ((200, b"not json"), "returned an unexpected response"),
        ((200, [1, 2]), "returned an unexpected response"),
    ],
)
def test_unexpected_responses_are_reported(cluster, response, message):
    Recorded.responses["GET /connectors?expand=status&expand=info"] = response
    with pytest.raises(Refused, match=message):
        asyncio.run(cluster.connectors())


def test_unreachable_worker_and_invalid_address_are_rejected():
    with pytest.raises(Refused, match="no Connect worker responds"):
        asyncio.run(ConnectCluster("http://127.0.0.1:1").connectors())
    for address in ("file:///etc/passwd", "http://", "ftp://host"):
        with pytest.raises(Refused, match="not the address"):
            ConnectCluster(address)


def test_workers_with_https_and_users(tmp_path, monkeypatch):
    """A worker with a private authority, client certificates and basic authentication."""
    authority = Authority()
    authority.write_pem(tmp_path / "ca.pem")
    for name in ("server", "client"):
        authority.certificate_of(name, hosts=("localhost",)).write_pem(tmp_path / f"{name}.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem")
    context.load_verify_locations(tmp_path / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    credentials = []

    class Secured(Recorded):
        def _serve(self) -> None:
            credentials.append(self.headers["Authorization"])
            super()._serve()

        do_GET = _serve

    monkeypatch.setattr(Recorded, "responses", {"GET /connectors?expand=status&expand=info": (200, {"a": {}})})
    server = HTTPServer(("127.0.0.1", 0), Secured)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    settings = {
        "ssl.ca.location": str(tmp_path / "ca.pem"),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(tmp_path / "client.pem"),
        "username": "admin",
        "password": "s3cret",
    }
    address = f"https://localhost:{server.server_port}"
    try:
        (row,) = asyncio.run(ConnectCluster(address, settings).connectors())
        assert row.name == "a" and credentials == ["Basic YWRtaW46czNjcmV0"]
        with pytest.raises(Refused, match="CERTIFICATE_VERIFY_FAILED"):
            asyncio.run(ConnectCluster(address).connectors())
        bad = {**settings, "ssl.ca.location": "/none.pem"}
        with pytest.raises(Refused, match=r"^console.connect.ssl.truststore.location: ") as error:
            asyncio.run(ConnectCluster(address, bad).connectors())
        assert "s3cret" not in str(error.value)
    finally:
        server.shutdown()
        server.server_close()
