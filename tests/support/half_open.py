"""Clients of an HTTP listener that send half of a request, and then a byte now and then."""

from __future__ import annotations

import contextlib
import http.client
import selectors
import socket
import time

HALF = b"GET / HTTP/1.1\r\nHost: localhost\r\nX: "
PATIENCE_S = 30.0


def check_half_open(port: int, path: str, number: int = 300) -> None:
    """Half-open connections do not keep a request from its response, and the listener closes all of
    them."""
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        for _ in range(number):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S))
            client.sendall(HALF)
            client.setblocking(False)
            selector.register(client, selectors.EVENT_READ)
        assert get(port, path) == 200
        until = time.monotonic() + PATIENCE_S
        while selector.get_map() and time.monotonic() < until:
            for key, _ in selector.select(0.1):
                with contextlib.suppress(ConnectionError):
                    assert key.fileobj.recv(1) == b"", "half of a request has no response"  # type: ignore[union-attr]
                selector.unregister(key.fileobj)
            for key in list(selector.get_map().values()):
                with contextlib.suppress(OSError):
                    key.fileobj.send(b"x")  # type: ignore[union-attr]
        assert not selector.get_map(), f"{len(selector.get_map())} of {number} connections are still open"
        assert get(port, path) == 200


def get(port: int, path: str, host: str = "127.0.0.1") -> int:
    connection = http.client.HTTPConnection(host, port, timeout=PATIENCE_S)
    with contextlib.closing(connection):
        connection.request("GET", path)
        return connection.getresponse().status
