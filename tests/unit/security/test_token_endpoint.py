"""Tokens from an identity provider: a local HTTP server."""

from __future__ import annotations

import contextlib
import json
import threading
from base64 import b64decode
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import Any
from urllib.parse import parse_qs

import pytest

from kavka.common.config import ConfigError
from kavka.security.json_web_tokens import unsecured_token
from kavka.security.key_sets import KeySetError, load_key_set
from kavka.security.sasl import SaslError
from kavka.security.token_endpoint import TokenEndpoint
from tests.support.loops import run_in_loop

URL = "sasl.oauthbearer.token.endpoint.url"
OPTIONS = {"clientId": "app", "clientSecret": "s3cret", "scope": "kafka"}
FAST = {"sasl.login.retry.backoff.ms": 1, "sasl.login.retry.backoff.max.ms": 300}


class Provider:
    """`respond` returns the status and the body of the next response."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, list[str]]]] = []
        self.respond: Callable[[int], tuple[int, bytes]] = lambda number: (200, b"{}")
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                outer.requests.append((self.headers["Authorization"], form))
                status, body = outer.respond(len(outer.requests))
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}/token"


@pytest.fixture
def provider() -> Iterator[Provider]:
    provider = Provider()
    yield provider
    provider.server.shutdown()
    provider.server.server_close()


INVALID_HTTP = [
    b"SSH-2.0-OpenSSH_9.2\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
    b"HTTP/1.1 200 OK\r\n" + b"".join(b"h: %d\r\n" % number for number in range(200)) + b"\r\n",
]


@contextlib.contextmanager
def server_of(raw: bytes) -> Iterator[str]:
    """A server that sends these bytes to every client. Yields its URL."""

    class Handler(BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(65536)
            self.request.sendall(raw)

    with ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


def body(expires_at_s: float, name: str = "app") -> bytes:
    token = unsecured_token({"sub": name, "iat": 0, "exp": expires_at_s})
    return json.dumps({"access_token": token, "token_type": "Bearer"}).encode()


@run_in_loop
async def test_a_token_is_used_until_most_of_its_life_has_passed(provider: Provider) -> None:
    now = [1000.0]
    endpoint = TokenEndpoint({URL: provider.url}, OPTIONS, lambda: now[0])
    provider.respond = lambda number: (200, body(now[0] + 100, f"app{number}"))
    first = await endpoint.token()
    now[0] += 79
    assert await endpoint.token() == first
    now[0] += 2
    assert await endpoint.token() != first
    authorization, form = provider.requests[0]
    assert b64decode(authorization.removeprefix("Basic ")) == b"app:s3cret"
    assert form == {"grant_type": ["client_credentials"], "scope": ["kafka"]}
    assert len(provider.requests) == 2


@run_in_loop
async def test_a_valid_token_survives_an_unavailable_provider(provider: Provider) -> None:
    now = [1000.0]
    endpoint = TokenEndpoint({URL: provider.url, **FAST}, OPTIONS, lambda: now[0])
    provider.respond = lambda number: (200, body(1100.0)) if number == 1 else (503, b"")
    first = await endpoint.token()
    now[0] = 1090.0
    assert await endpoint.token() == first
    now[0] = 1101.0
    with pytest.raises(SaslError, match="responded 503"):
        await endpoint.token()


@run_in_loop
async def test_a_failure_is_retried_unless_the_credentials_are_wrong(provider: Provider) -> None:
    endpoint = TokenEndpoint({URL: provider.url, **FAST}, OPTIONS)
    provider.respond = lambda number: (500, b"") if number < 3 else (200, body(1e10))
    assert await endpoint.token()
    assert len(provider.requests) == 3
    provider.requests.clear()
    provider.respond = lambda number: (401, b'{"error":"invalid_client"}')
    with pytest.raises(SaslError, match="responded 401: invalid_client") as caught:
        await TokenEndpoint({URL: provider.url, **FAST}, OPTIONS).token()
    assert len(provider.requests) == 1 and "s3cret" not in str(caught.value)


@run_in_loop
async def test_a_redirect_is_not_followed(provider: Provider) -> None:
    provider.respond = lambda number: (302, b"")
    with pytest.raises(SaslError, match="responded 302"):
        await TokenEndpoint({URL: provider.url, **FAST}, OPTIONS).token()
    assert len({authorization for authorization, _ in provider.requests}) == 1


@pytest.mark.parametrize("raw", [b"", b"[]", b"{}", b'{"access_token": 5}', b"[" * 100_000, b"x" * (1024 * 1024 + 1)])
@run_in_loop
async def test_a_response_without_a_token(provider: Provider, raw: bytes) -> None:
    provider.respond = lambda number: (200, raw)
    with pytest.raises(SaslError, match=r"no access_token|too large"):
        await TokenEndpoint({URL: provider.url, **FAST}, OPTIONS).token()


@pytest.mark.parametrize("raw", INVALID_HTTP)
@run_in_loop
async def test_a_response_that_is_not_http(raw: bytes) -> None:
    with server_of(raw) as url, pytest.raises(SaslError, match="no token from"):
        await TokenEndpoint({URL: url, **FAST}, OPTIONS).token()


@pytest.mark.parametrize("raw", INVALID_HTTP)
def test_a_key_set_that_is_not_http(raw: bytes) -> None:
    with server_of(raw) as url, pytest.raises(KeySetError, match="cannot read"):
        load_key_set(url, timeout_s=5)


@run_in_loop
async def test_a_token_in_a_file_and_other_urls(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a.b.c\n")
    assert await TokenEndpoint({URL: (tmp_path / "token").as_uri()}, {}).token() == "a.b.c"
    with pytest.raises(ConfigError, match="must be a URL of http, https, file"):
        TokenEndpoint({URL: "ftp://localhost/token"}, OPTIONS)
    with pytest.raises(SaslError, match="no token from"):
        await TokenEndpoint({URL: "http://127.0.0.1:1/token", **FAST}, OPTIONS).token()
