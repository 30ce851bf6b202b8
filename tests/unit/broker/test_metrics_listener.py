"""The `/metrics` listener."""

from __future__ import annotations

import asyncio
import errno
import http.client
import socket
import threading
import time

import pytest

from kavka.broker.metrics_listener import MetricsListener
from kavka.common.metrics import CONTENT_TYPE, Registry
from kavka.web import connections
from tests.support.half_open import check_half_open


def with_listener(body, host: str = "127.0.0.1", registry: Registry | None = None, limit_s: float = 10) -> None:
    async def scenario() -> None:
        listener = MetricsListener(host, 0, registry or sample_registry())
        try:
            await asyncio.wait_for(body(listener), limit_s)
        finally:
            listener.close()

    asyncio.run(scenario())


def sample_registry() -> Registry:
    registry = Registry()
    registry.counter("kavka_things_total", "Things").labels().value += 3
    return registry


def get(port: int, path: str = "/metrics", method: str = "GET", host: str = "127.0.0.1") -> tuple[int, str, bytes]:
    connection = http.client.HTTPConnection(host, port, timeout=5)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.headers.get("Content-Type", ""), response.read()
    finally:
        connection.close()


@pytest.mark.parametrize("path", ["/metrics", "/", "/metrics?name[]=x"])
def test_metrics_are_served(path):
    async def body(listener: MetricsListener) -> None:
        status, kind, text = await asyncio.to_thread(get, listener.port, path)
        assert (status, kind) == (200, CONTENT_TYPE)
        assert b"kavka_things_total 3.0" in text

    with_listener(body)


def test_other_paths_and_methods_are_rejected():
    async def body(listener: MetricsListener) -> None:
        assert (await asyncio.to_thread(get, listener.port, "/etc/passwd"))[0] == 404
        assert (await asyncio.to_thread(get, listener.port, "/metrics", "POST"))[0] == 501
        assert (await asyncio.to_thread(get, listener.port, "/metrics", "HEAD"))[2] == b""

    with_listener(body)


@pytest.mark.parametrize(("host", "addresses"), [("::1", ["::1"]), ("", ["127.0.0.1", "::1"])])
def test_listener_binds_ipv6_and_every_interface(host, addresses):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")

    async def body(listener: MetricsListener) -> None:
        for address in addresses:
            assert (await asyncio.to_thread(get, listener.port, host=address))[0] == 200

    with_listener(body, host)


def test_half_open_requests_do_not_block_scrapes(monkeypatch):
    monkeypatch.setattr(connections, "HEADER_TIMEOUT_S", 2.0)

    async def body(listener: MetricsListener) -> None:
        await asyncio.to_thread(check_half_open, listener.port, "/metrics")

    with_listener(body, limit_s=60)


def test_failing_registry_returns_500():
    class Broken(Registry):
        def render(self) -> bytes:
            raise ZeroDivisionError

    async def body(listener: MetricsListener) -> None:
        for _ in range(2):
            assert (await asyncio.to_thread(get, listener.port))[0] == 500

    with_listener(body, registry=Broken())


def test_port_in_use_raises_error_and_leaves_no_thread():
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as holder:
            threads = threading.active_count()
            with pytest.raises(OSError) as refused:
                MetricsListener("127.0.0.1", holder.getsockname()[1], sample_registry())
            assert refused.value.errno == errno.EADDRINUSE
            assert threading.active_count() == threads

    asyncio.run(scenario())


def test_close_stops_listening():
    async def scenario() -> None:
        listener = MetricsListener("127.0.0.1", 0, sample_registry())
        began = time.monotonic()
        listener.close()
        assert time.monotonic() - began < 10
        with pytest.raises(ConnectionRefusedError):
            await asyncio.to_thread(get, listener.port)

    asyncio.run(scenario())
