"""What Prometheus asks, and what it gets."""

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


def listening(body, host: str = "127.0.0.1", registry: Registry | None = None, limit_s: float = 10) -> None:
    async def scenario() -> None:
        listener = MetricsListener(host, 0, registry or counted())
        try:
            await asyncio.wait_for(body(listener), limit_s)
        finally:
            listener.close()

    asyncio.run(scenario())


def counted() -> Registry:
    registry = Registry()
    registry.counter("kavka_things_total", "Things").labels().value += 3
    return registry


def ask(port: int, path: str = "/metrics", method: str = "GET", host: str = "127.0.0.1") -> tuple[int, str, bytes]:
    connection = http.client.HTTPConnection(host, port, timeout=5)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.headers.get("Content-Type", ""), answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize("path", ["/metrics", "/", "/metrics?name[]=x"])
def test_the_metrics_are_there(path):
    async def body(listener: MetricsListener) -> None:
        status, kind, text = await asyncio.to_thread(ask, listener.port, path)
        assert (status, kind) == (200, CONTENT_TYPE)
        assert b"kavka_things_total 3.0" in text

    listening(body)


def test_nothing_else_is_there():
    async def body(listener: MetricsListener) -> None:
        assert (await asyncio.to_thread(ask, listener.port, "/etc/passwd"))[0] == 404
        assert (await asyncio.to_thread(ask, listener.port, "/metrics", "POST"))[0] == 501
        assert (await asyncio.to_thread(ask, listener.port, "/metrics", "HEAD"))[2] == b""

    listening(body)


@pytest.mark.parametrize(("host", "reached_at"), [("::1", ["::1"]), ("", ["127.0.0.1", "::1"])])
def test_ipv6_addresses_and_every_interface_are_listened_at(host, reached_at):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")

    async def body(listener: MetricsListener) -> None:
        for address in reached_at:
            assert (await asyncio.to_thread(ask, listener.port, host=address))[0] == 200

    listening(body, host)


def test_half_open_requests_keep_no_scrape_out(monkeypatch):
    monkeypatch.setattr(connections, "HEADER_S", 2.0)

    async def body(listener: MetricsListener) -> None:
        await asyncio.to_thread(check_half_open, listener.port, "/metrics")

    listening(body, limit_s=60)


def test_metrics_that_cannot_be_read_are_an_error_of_that_scrape():
    class Broken(Registry):
        def render(self) -> bytes:
            raise ZeroDivisionError

    async def body(listener: MetricsListener) -> None:
        for _ in range(2):
            assert (await asyncio.to_thread(ask, listener.port))[0] == 500

    listening(body, registry=Broken())


def test_a_port_in_use_is_an_error_and_leaves_nothing_behind():
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as holder:
            threads = threading.active_count()
            with pytest.raises(OSError) as refused:
                MetricsListener("127.0.0.1", holder.getsockname()[1], counted())
            assert refused.value.errno == errno.EADDRINUSE
            assert threading.active_count() == threads

    asyncio.run(scenario())


def test_it_is_gone_at_once_when_it_is_closed():
    async def scenario() -> None:
        listener = MetricsListener("127.0.0.1", 0, counted())
        began = time.monotonic()
        listener.close()
        assert time.monotonic() - began < 10
        with pytest.raises(ConnectionRefusedError):
            await asyncio.to_thread(ask, listener.port)

    asyncio.run(scenario())
