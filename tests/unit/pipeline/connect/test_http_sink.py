"""What the HTTP sink sends, what it tries again, and what it gives back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from kavka.pipeline.connect.connectors.http_sink import Client, HttpSink, Record, Target, deliver
from kavka.pipeline.connect.options import parse, parsed


class Service:
    """Answers as it is told: by the body, a list of status codes, one for each time it comes; then 200."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, str, dict[str, str]]] = []
        self.answers: dict[str, list[int]] = {}
        self.judge: Callable[[str], int] | None = None
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
                service.requests.append((self.command, self.path, body, dict(self.headers)))
                waiting = service.answers.get(body)
                status = waiting.pop(0) if waiting else (service.judge(body) if service.judge else 200)
                said = b"because" if status >= 300 else b""
                self.send_response(status)
                self.send_header("Content-Length", str(len(said)))
                self.end_headers()
                self.wfile.write(said)

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
    found = Service()
    yield found
    found.close()


def send(
    url: str, records: list[Record], waits: list[float] | None = None, **settings: str
) -> list[tuple[str, int, int, str, bool]]:
    given = {"http.api.url": url, **{name.replace("_", "."): value for name, value in settings.items()}}
    target = Target.of(parsed(HttpSink.options, given))
    client = Client(target, wait=(waits if waits is not None else []).append)
    try:
        return list(deliver(target, iter(records), client))
    finally:
        client.close()


def records(*values: str | None, topic: str = "t") -> list[Record]:
    return [(topic, 0, offset, f"k{offset}", value) for offset, value in enumerate(values)]


def test_each_record_is_a_request_of_its_own_by_default(service: Service) -> None:
    assert send(service.url, records("a", "b", None)) == []
    assert service.bodies == ["a", "b"]
    assert {method for method, *_ in service.requests} == {"POST"}
    assert service.requests[0][3]["Content-Type"] == "application/json"


def test_several_records_make_one_body_and_those_of_two_topics_do_not_share_one(service: Service) -> None:
    given = [*records("1", "2", "3"), *records("4", topic="u")]
    url = service.url + "/${topic}"
    assert send(url, given, batch_max_size="2") == []
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


def test_an_error_of_the_service_is_tried_again_after_a_pause(service: Service) -> None:
    service.answers = {"a": [503, 429]}
    waits: list[float] = []
    assert send(service.url, records("a", "b"), waits, retry_backoff_ms="70") == []
    assert service.bodies == ["a", "a", "a", "b"]
    assert waits == [0.07, 0.07]


def test_a_service_that_stays_away_is_fatal_and_nothing_more_is_sent(service: Service) -> None:
    service.answers = {"b": [500] * 9}
    (found,) = send(service.url, records("a", "b", "c"), max_retries="2")
    assert found[:3] == ("t", 0, 1)
    assert found[4]
    assert "500" in found[3]
    assert "2 retries" in found[3]
    assert service.bodies == ["a", "b", "b", "b"]


def test_a_service_that_is_not_there_is_fatal(service: Service) -> None:
    service.close()
    (found,) = send(service.url, records("a"), max_retries="1")
    assert found[4]
    assert "ConnectionRefusedError" in found[3]


def test_a_refused_record_is_given_back_and_the_rest_goes_on(service: Service) -> None:
    service.answers = {"b": [422]}
    (found,) = send(service.url, records("a", "b", "c"))
    assert found[:3] == ("t", 0, 1)
    assert not found[4]
    assert "422" in found[3]
    assert "because" in found[3]
    assert service.bodies == ["a", "b", "c"]


def test_of_a_refused_batch_the_records_are_tried_alone(service: Service) -> None:
    service.judge = lambda body: 400 if "bad" in body else 200
    (found,) = send(service.url, records("1", "bad", "3"), batch_max_size="3")
    assert found[2] == 1
    assert service.bodies == ["[1,bad,3]", "[1]", "[bad]", "[3]"]


def test_a_record_without_a_value_deletes_where_it_is_asked_for(service: Service) -> None:
    given = [("t", 0, 0, "a/b", "x"), ("t", 0, 1, "a/b", None)]
    assert send(service.url + "/${key}", given, behavior_on_null_values="delete", request_method="put") == []
    assert [request[:3] for request in service.requests] == [("PUT", "/in/a%2Fb", "x"), ("DELETE", "/in/a%2Fb", "")]
    (found,) = send(service.url, records(None), behavior_on_null_values="fail")
    assert found[3:] == ("the record has no value", False)


@pytest.mark.parametrize(
    ("given", "name"),
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
def test_what_cannot_be_is_told_at_its_option(given: dict[str, str], name: str) -> None:
    values, errors = parse(HttpSink.options, {"http.api.url": "http://localhost/x", **given})
    assert name in errors or name in HttpSink.check(values, given)
