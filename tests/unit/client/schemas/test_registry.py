"""The client of a registry, with a small HTTP server in its place."""

from __future__ import annotations

import json
import pickle
import ssl
import threading
from base64 import b64encode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from kavka import (
    ConfigError,
    Schema,
    SchemaReference,
    SchemaRegistry,
    SchemaRegistryError,
    SchemaRegistryUnavailable,
    SerializationError,
)
from kavka.client.schemas.registry import MAX_REFERENCES, shared_registry
from kavka.security.authority import Authority
from kavka.security.tls import TlsSettings, server_context

TEXT = '{"type":"string"}'


class Server:
    """Responses by path, and the requests that arrived."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.responses: dict[str, tuple[int, Any]] = {}
        self.requests: list[tuple[str, str, dict[str, str], Any]] = []
        self.blocked: dict[str, threading.Event] = {}
        """By path: the response waits for the event."""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                body = json.loads(self.rfile.read(length)) if length else None
                outer.requests.append((self.command, self.path, dict(self.headers), body))
                if self.path in outer.blocked:
                    outer.blocked[self.path].wait(30.0)
                status, response = outer.responses.get(self.path, (404, {"error_code": 40401, "message": "Not\nfound"}))
                data = response if isinstance(response, bytes) else json.dumps(response).encode()
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", "http://elsewhere.test/")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_POST = do_PUT = do_GET

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        self.url = f"http{'s' if tls else ''}://localhost:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


def by_id(schema_id: int) -> str:
    return f"/schemas/ids/{schema_id}?format=serialized"


def registered(subject: str, version: int, schema_id: int, **fields: Any) -> dict[str, Any]:
    return {"subject": subject, "version": version, "id": schema_id, "schema": TEXT, **fields}


def test_a_schema_is_requested_once(server: Server) -> None:
    server.responses[by_id(5)] = 200, {"schema": TEXT}
    registry = SchemaRegistry(server.url + "/")
    assert registry.schema(5) == registry.schema(5) == Schema(TEXT)
    assert len(server.requests) == 1
    copy = pickle.loads(pickle.dumps(registry))
    assert copy.schema(5) == Schema(TEXT)
    assert len(server.requests) == 2


def test_a_missing_schema_is_requested_again_after_some_seconds(server: Server) -> None:
    now_s = 0.0
    registry = SchemaRegistry(server.url, now_s=lambda: now_s)
    for _ in range(2):
        with pytest.raises(SchemaRegistryError, match=r"GET /schemas/ids/5: Not found \(40401\)") as error:
            registry.schema(5)
        assert (error.value.status, error.value.error_code) == (404, 40401)
    assert len(server.requests) == 1
    now_s = 60.0
    server.responses[by_id(5)] = 200, {"schema": TEXT}
    assert registry.schema(5).text == TEXT


def test_the_error_of_a_missing_schema_collects_no_tracebacks(server: Server) -> None:
    registry = SchemaRegistry(server.url)
    lengths = []
    for _ in range(3):
        with pytest.raises(SchemaRegistryError) as error:
            registry.schema(5)
        lengths.append(len(error.traceback))
    assert lengths[1] == lengths[2]


def test_the_latest_version_is_requested_again_after_its_ttl(server: Server) -> None:
    now_s = 0.0
    registry = SchemaRegistry(server.url, now_s=lambda: now_s)
    path = "/subjects/a%2Fb/versions/latest?format=serialized"
    for version in (1, 2):
        server.responses[path] = 200, registered("a/b", version, version)
        assert registry.latest("a/b").version == version
        assert registry.latest("a/b").version == version
        now_s += 61.0
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    "body",
    [{}, [], None, 5, {"schema": TEXT, "references": [{"name": "a"}]}, {"schema": TEXT, "references": 5},
     {"schema": TEXT, "references": [{"name": "a", "subject": "b", "version": "x"}]}],
)  # fmt: skip
def test_incomplete_responses_are_errors_of_the_registry(server: Server, body: Any) -> None:
    server.responses[by_id(5)] = 200, body
    server.responses["/subjects/s/versions/1?format=serialized"] = 200, body
    # `register` sends POST to this path.
    server.responses["/subjects/s/versions"] = 200, {} if isinstance(body, dict) else body
    registry = SchemaRegistry(server.url)
    requests = [
        lambda: registry.schema(5), lambda: registry.version("s", 1), lambda: registry.register("s", Schema(TEXT)),
    ]  # fmt: skip
    for request in requests:
        with pytest.raises(SchemaRegistryError, match="incomplete"):
            request()


def test_a_slow_request_does_not_block_other_threads(server: Server) -> None:
    server.responses |= {by_id(number): (200, {"schema": TEXT}) for number in (5, 6)}
    server.blocked[by_id(5)] = threading.Event()
    registry = SchemaRegistry(server.url)
    results: list[Schema] = []
    slow = threading.Thread(target=lambda: results.append(registry.schema(5)))
    slow.start()
    try:
        while not server.requests:
            slow.join(0.01)
        other = threading.Thread(target=lambda: results.append(registry.schema(6)))
        other.start()
        other.join(20.0)
        assert results == [Schema(TEXT)]
    finally:
        server.blocked[by_id(5)].set()
        slow.join()
    assert results == [Schema(TEXT)] * 2


def test_schemas_are_sent_with_type_and_references(server: Server) -> None:
    server.responses["/subjects/s/versions"] = 200, {"id": 3}
    schema = Schema("syntax", "PROTOBUF", (SchemaReference("a.proto", "a", 2),))
    registry = SchemaRegistry(server.url)
    assert registry.register("s", schema) == registry.register("s", schema) == 3
    ((method, _, headers, body),) = server.requests
    assert (method, headers["Content-Type"]) == ("POST", "application/vnd.schemaregistry.v1+json")
    references = [{"name": "a.proto", "subject": "a", "version": 2}]
    assert body == {"schema": "syntax", "schemaType": "PROTOBUF", "references": references}


def test_dependencies_come_before_the_schemas_that_need_them(server: Server) -> None:
    reference = {"name": "B", "subject": "b", "version": 1}
    # The references of B and C are a circle.
    for subject, needed in (("a", "B"), ("b", "C"), ("c", "B")):
        path = f"/subjects/{subject}/versions/1?format=serialized"
        references = [{**reference, "name": needed, "subject": needed.lower()}]
        server.responses[path] = 200, registered(subject, 1, 1, references=references)
    registry = SchemaRegistry(server.url)
    schema = Schema(TEXT, references=(SchemaReference("A", "a", 1), SchemaReference("B", "b", 1)))
    assert list(registry.dependencies(schema)) == ["C", "B", "A"]


def test_long_chains_of_references_are_refused(server: Server) -> None:
    for version in range(1, MAX_REFERENCES + 3):
        path = f"/subjects/s/versions/{version}?format=serialized"
        references = [{"name": f"R{version + 1}", "subject": "s", "version": version + 1}]
        server.responses[path] = 200, registered("s", version, version, references=references)
    with pytest.raises(SchemaRegistryError, match=f"more than {MAX_REFERENCES} references"):
        SchemaRegistry(server.url).dependencies(Schema(TEXT, references=(SchemaReference("R1", "s", 1),)))
    assert len(server.requests) == MAX_REFERENCES


def test_references_that_are_nested_too_deeply_fail_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    def dependencies(schema: Schema) -> dict[str, Schema]:
        return dependencies(schema)

    registry = SchemaRegistry("http://localhost:1")
    monkeypatch.setattr(registry, "schema", lambda schema_id: Schema(TEXT))
    monkeypatch.setattr(registry, "dependencies", dependencies)
    with pytest.raises(SerializationError, match="references of schema 5 are nested too deeply"):
        registry.written_with(5)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"basic.auth.user.info": "me:secret"}, f"Basic {b64encode(b'me:secret').decode()}"),
        ({"schema.registry.basic.auth.user.info": "me:s:t"}, f"Basic {b64encode(b'me:s:t').decode()}"),
        ({"bearer.auth.credentials.source": "STATIC_TOKEN", "bearer.auth.token": "t0ken"}, "Bearer t0ken"),
        ({}, None),
    ],
)
def test_credentials_are_sent(server: Server, settings: dict[str, str], expected: str | None) -> None:
    server.responses["/subjects"] = 200, ["s"]
    assert shared_registry({"schema.registry.url": server.url, **settings, "acks": "all"}).subjects() == ["s"]
    assert server.requests[0][2].get("Authorization") == expected


def test_credentials_in_the_url_are_not_printed(server: Server) -> None:
    registry = SchemaRegistry(f"http://me:p%40ss@127.0.0.1:{server.port}")
    with pytest.raises(SchemaRegistryError) as error:
        registry.subjects()
    assert server.requests[0][2]["Authorization"] == f"Basic {b64encode(b'me:p@ss').decode()}"
    assert "ss" not in registry.url.replace("127", "")
    assert "me:" not in str(error.value)


@pytest.mark.parametrize(
    ("response", "message"),
    [
        ((401, {}), r"denies access \(401\): check basic.auth.user.info or bearer.auth.token"),
        ((302, {}), "redirects to another URL"),
        ((200, b"<html>"), "is not JSON; check the path of the URL"),
        ((200, b"[" * 100_000), "is not JSON; check the path of the URL"),
        ((422, b"[" * 60_000), r"GET /subjects: Unprocessable \w+ \(422\)"),
        ((422, {"error_code": 42201, "message": "Invalid\nschema"}), r"GET /subjects: Invalid schema \(42201\)"),
    ],
)
def test_rejections_are_one_line_and_not_repeated(server: Server, response: Any, message: str) -> None:
    server.responses["/subjects"] = response
    with pytest.raises(SchemaRegistryError, match=message) as error:
        SchemaRegistry(server.url).subjects()
    assert "\n" not in str(error.value)
    assert not isinstance(error.value, SchemaRegistryUnavailable)
    assert len(server.requests) == 1


def test_temporary_errors_are_repeated_and_other_servers_are_tried(server: Server) -> None:
    server.responses["/subjects"] = 503, {"error_code": 50301, "message": "starting"}
    settings = {"max.retries": "2", "retries.wait.ms": "1"}
    with pytest.raises(SchemaRegistryUnavailable, match=r"is not available: starting \(50301\)"):
        SchemaRegistry(server.url, settings=settings).subjects()
    assert len(server.requests) == 3
    second = Server()
    try:
        second.responses["/subjects"] = 200, []
        assert SchemaRegistry(f"{server.url},{second.url}", settings=settings).subjects() == []
    finally:
        second.close()
    with pytest.raises(SchemaRegistryUnavailable, match="is not available: Connection refused"):
        SchemaRegistry(second.url, settings=settings).subjects()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"schema.registry.url": "localhost:8081"},
        {"schema.registry.url": "file:///etc/passwd"},
        {"schema.registry.url": "http://a:b"},
        {"schema.registry.url": "http://a", "max.retries": "many"},
        {"schema.registry.url": "http://a", "latest.cache.ttl.sec": "-1"},
        {"schema.registry.url": "http://a", "basic.auth.credentials.source": "SASL_INHERIT"},
        {"schema.registry.url": "http://a", "basic.auth.user.info": "a:b", "bearer.auth.token": "c"},
        {"schema.registry.url": "https://a", "schema.registry.ssl.truststore.location": "/missing"},
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as error:
        SchemaRegistry(settings=settings)
    assert error.value.name in (*settings, "schema.registry.url", "basic.auth.credentials.source")


def test_tls_with_client_certificates() -> None:
    authority = Authority()
    trust = {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": authority.pem}

    def key_of(name: str) -> dict[str, str]:
        certificate = authority.certificate_of(name, hosts=("localhost",))
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.key": certificate.key_pem,
            "ssl.keystore.certificate.chain": certificate.chain_pem,
        }

    context = server_context(TlsSettings.from_values({**trust, **key_of("registry"), "ssl.client.auth": "required"}))
    server = Server(context)
    try:
        server.responses["/subjects"] = 200, []
        with pytest.raises(SchemaRegistryError, match=r"is not trusted: .*schema.registry.ssl.truststore") as error:
            SchemaRegistry(server.url).subjects()
        assert not isinstance(error.value, SchemaRegistryUnavailable)
        settings = {f"schema.registry.{name}": value for name, value in {**trust, **key_of("me")}.items()}
        assert SchemaRegistry(server.url, settings=settings).subjects() == []
    finally:
        server.close()
