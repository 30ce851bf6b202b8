"""Checks that an HTTP listener closes connections with incomplete requests."""

from __future__ import annotations

import contextlib
import http.client
import selectors
import socket
import time

INCOMPLETE_REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\nX: "
TIMEOUT_S = 30.0


def check_half_open(port: int, path: str, number: int = 300) -> None:
    """Open connections that send half of a request and then single bytes. Check that other requests
    are served meanwhile, and that the listener closes all of these connections."""
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        for _ in range(number):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S))
            client.sendall(INCOMPLETE_REQUEST)
            client.setblocking(False)
            selector.register(client, selectors.EVENT_READ)
        assert get(port, path) == 200
        deadline = time.monotonic() + TIMEOUT_S
        while selector.get_map() and time.monotonic() < deadline:
            for key, _ in selector.select(0.1):
                with contextlib.suppress(ConnectionError):
                    assert key.fileobj.recv(1) == b"", "an incomplete request got a response"  # type: ignore[union-attr]
                selector.unregister(key.fileobj)
            for key in list(selector.get_map().values()):
                with contextlib.suppress(OSError):
                    key.fileobj.send(b"x")  # type: ignore[union-attr]
        assert not selector.get_map(), f"{len(selector.get_map())} of {number} connections are still open"
        assert get(port, path) == 200


def get(port: int, path: str, host: str = "127.0.0.1") -> int:
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    with contextlib.closing(connection):
        connection.request("GET", path)
        return connection.getresponse().status
