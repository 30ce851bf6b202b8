"""The HTTP sink: requests, retries and rejected records."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from kavka.pipeline.connect.connectors.http_sink import Client, HttpSink, Record, Target, deliver
from kavka.pipeline.connect.options import parse, parsed


class Service:
    """An HTTP service. `statuses` has, by body, the status codes of the next responses. Later
    responses have the result of `status_of`, or 200."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, str, dict[str, str]]] = []
        self.statuses: dict[str, list[int]] = {}
        self.status_of: Callable[[str], int] | None = None
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
                service.requests.append((self.command, self.path, body, dict(self.headers)))
                pending = service.statuses.get(body)
                status = pending.pop(0) if pending else (service.status_of(body) if service.status_of else 200)
                response_body = b"because" if status >= 300 else b""
                self.send_response(status)
                self.send_header("Content-Length", str(len(response_body)))
                self.end_headers()
                self.wfile.write(response_body)

            do_POST = do_PUT = do_DELETE = handle_any

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/in"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def bodies(self) -> list[str]:
        return [body for _, _, body, _ in self.requests]


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    yield service
    service.close()


def send(
    url: str, records: list[Record], waits: list[float] | None = None, **settings: str
) -> list[tuple[str, int, int, str, bool]]:
    originals = {"http.api.url": url, **{name.replace("_", "."): value for name, value in settings.items()}}
    target = Target.of(parsed(HttpSink.options, originals))
    client = Client(target, wait=(waits if waits is not None else []).append)
    try:
        return list(deliver(target, iter(records), client))
    finally:
        client.close()


def records(*values: str | None, topic: str = "t") -> list[Record]:
    return [(topic, 0, offset, f"k{offset}", value) for offset, value in enumerate(values)]


def test_each_record_is_a_separate_request_by_default(service: Service) -> None:
    assert send(service.url, records("a", "b", None)) == []
    assert service.bodies == ["a", "b"]
    assert {method for method, *_ in service.requests} == {"POST"}
    assert service.requests[0][3]["Content-Type"] == "application/json"


def test_a_batch_is_one_request_per_topic(service: Service) -> None:
    batch = [*records("1", "2", "3"), *records("4", topic="u")]
    url = service.url + "/${topic}"
    assert send(url, batch, batch_max_size="2") == []
    assert service.bodies == ["[1,2]", "[3]", "[4]"]
    assert [path for _, path, *_ in service.requests] == ["/in/t", "/in/t", "/in/u"]


def test_headers_and_credentials_are_sent(service: Service) -> None:
    send(
        service.url, records("a"), headers="X-One: 1|content-type:text/plain", auth_type="basic",
        connection_user="u", connection_password="p",
    )  # fmt: skip
    send(service.url, records("a"), auth_type="bearer", auth_bearer_token="secret")
    first, second = (headers for *_, headers in service.requests)
    assert (first["X-One"], first["content-type"], first["Authorization"]) == ("1", "text/plain", "Basic dTpw")
    assert second["Authorization"] == "Bearer secret"


def test_server_errors_are_retried_after_the_backoff(service: Service) -> None:
    service.statuses = {"a": [503, 429]}
    waits: list[float] = []
    assert send(service.url, records("a", "b"), waits, retry_backoff_ms="70") == []
    assert service.bodies == ["a", "a", "a", "b"]
    assert waits == [0.07, 0.07]


def test_exhausted_retries_are_fatal_and_stop_sending(service: Service) -> None:
    service.statuses = {"b": [500] * 9}
    (failure,) = send(service.url, records("a", "b", "c"), max_retries="2")
    assert failure[:3] == ("t", 0, 1)
    assert failure[4]
    assert "500" in failure[3]
    assert "2 retries" in failure[3]
    assert service.bodies == ["a", "b", "b", "b"]


def test_a_refused_connection_is_fatal(service: Service) -> None:
    service.close()
    (failure,) = send(service.url, records("a"), max_retries="1")
    assert failure[4]
    assert "ConnectionRefusedError" in failure[3]


def test_a_rejected_record_is_returned_and_the_others_are_sent(service: Service) -> None:
    service.statuses = {"b": [422]}
    (failure,) = send(service.url, records("a", "b", "c"))
    assert failure[:3] == ("t", 0, 1)
    assert not failure[4]
    assert "422" in failure[3]
    assert "because" in failure[3]
    assert service.bodies == ["a", "b", "c"]


def test_the_records_of_a_rejected_batch_are_sent_separately(service: Service) -> None:
    service.status_of = lambda body: 400 if "bad" in body else 200
    (failure,) = send(service.url, records("1", "bad", "3"), batch_max_size="3")
    assert failure[2] == 1
    assert service.bodies == ["[1,bad,3]", "[1]", "[bad]", "[3]"]


def test_nothing_is_sent_after_a_fatal_failure_of_a_separate_record(service: Service) -> None:
    service.statuses = {"[1,2,3]": [400], "[2]": [503]}
    (failure,) = send(service.url, records("1", "2", "3"), batch_max_size="3", max_retries="0")
    assert failure[2] == 1
    assert failure[4]
    assert service.bodies == ["[1,2,3]", "[1]", "[2]"]


def test_a_record_without_a_value_sends_a_delete_if_configured(service: Service) -> None:
    batch = [("t", 0, 0, "a/b", "x"), ("t", 0, 1, "a/b", None)]
    assert send(service.url + "/${key}", batch, behavior_on_null_values="delete", request_method="put") == []
    assert [request[:3] for request in service.requests] == [("PUT", "/in/a%2Fb", "x"), ("DELETE", "/in/a%2Fb", "")]
    (failure,) = send(service.url, records(None), behavior_on_null_values="fail")
    assert failure[3:] == ("the record has no value", False)


@pytest.mark.parametrize(
    ("originals", "name"),
    [
        ({"http.api.url": "ftp://x"}, "http.api.url"),
        ({"headers": "no colon"}, "headers"),
        ({"headers": "A: b\nC: d"}, "headers"),
        ({"auth.type": "basic"}, "connection.user"),
        ({"auth.type": "bearer"}, "auth.bearer.token"),
        ({"retry.on.status.codes": "5xx"}, "retry.on.status.codes"),
        ({"behavior.on.null.values": "delete"}, "behavior.on.null.values"),
    ],
)
def test_invalid_options_are_reported(originals: dict[str, str], name: str) -> None:
    values, errors = parse(HttpSink.options, {"http.api.url": "http://localhost/x", **originals})
    assert name in errors or name in HttpSink.check(values, originals)
