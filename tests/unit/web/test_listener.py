"""Read-only pages: the responses to requests, and the connections that are closed."""

from __future__ import annotations

import contextlib
import gc
import socket
import time
import warnings
from collections.abc import Iterator

import pytest

from kavka.web import connections
from kavka.web.listener import MAX_HEAD_BYTES, Listener
from tests.support.half_open import INCOMPLETE_REQUEST, TIMEOUT_S, get

LARGE = 40 << 20


@pytest.fixture
def port() -> Iterator[int]:
    pages = {"/": lambda: ("text/plain", b"page"), "/large": lambda: ("text/plain", bytes(LARGE))}
    with contextlib.closing(Listener("127.0.0.1", 0, pages)) as listener:
        yield listener.port


def exchange(port: int, request: bytes) -> bytes:
    """Return all bytes that the listener sends until it closes the connection."""
    response = bytearray()
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as client:
        client.sendall(request)
        with contextlib.suppress(ConnectionError):
            while data := client.recv(1 << 20):
                response += data
    return bytes(response)


@pytest.mark.parametrize(
    "request_bytes, status",
    [
        (b"GET / HTTP/1.1\r\n\r\n", b"200"),
        (b"GET /?x=1 HTTP/1.0\n\n", b"200"),
        (b"GET /other HTTP/1.1\r\n\r\n", b"404"),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\n\r\nx", b"501"),
        (b"\x16\x03\x01\n\n", b"400"),
        (b"GET /\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * MAX_HEAD_BYTES, b"431"),
        (b"GET /" + b"x" * MAX_HEAD_BYTES, b"431"),
    ],
)
def test_each_connection_has_one_response(port: int, request_bytes: bytes, status: bytes) -> None:
    response = exchange(port, request_bytes)
    assert response[9:12] == status and response.count(b"HTTP/1.1 ") == 1
    assert response.endswith(b"\r\n\r\npage" if status == b"200" else b"\r\n\r\n")


def test_a_peer_that_does_not_read_is_disconnected(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(exchange(port, b"GET /large HTTP/1.1\r\n\r\n")) > LARGE
    monkeypatch.setattr(connections, "STALL_TIMEOUT_S", 0.3)
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as deaf:
        deaf.sendall(b"GET /large HTTP/1.1\r\n\r\n")
        # An aborted connection makes the kernel report an error on the next write.
        with pytest.raises(ConnectionError):
            for _ in range(300):
                deaf.send(b"x")
                time.sleep(0.1)


def test_closing_ends_all_connections() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        listener = Listener("127.0.0.1", 0, {})
        with socket.create_connection(("127.0.0.1", listener.port), timeout=TIMEOUT_S) as half:
            half.sendall(INCOMPLETE_REQUEST)
            assert get(listener.port, "/") == 404
            listener.close()
            listener.close()
            with contextlib.suppress(ConnectionError):
                assert half.recv(1) == b""
        del listener
        gc.collect()
