"""Runs the console with uvicorn. The socket is bound first, so that the error for a port in use is
one line."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import FrameType

import uvicorn

from kavka.console.app import create_app
from kavka.console.live import end_streams
from kavka.console.settings import ConsoleSettings, SettingsError
from kavka.web.server import Server

SHUTDOWN_TIMEOUT_S = 3
MAX_HEADER_BYTES = 64 * 1024
"""The maximum size of the request line and headers: a URL may contain two Avro schemas."""


class ConsoleServer(Server):
    """A server that ends the event streams when it stops. Otherwise the server would wait for their
    clients until SHUTDOWN_TIMEOUT_S."""

    _loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(end_streams)


def run(settings: ConsoleSettings, announce: Callable[[str], None], stop_on_eof: bool = False) -> int:
    """Run until a signal, or with `stop_on_eof` until the end of standard input. Returns the
    exit code 0. Calls `announce` with the URL of the console. Raises SettingsError, UsersError,
    OSError."""
    settings.check()
    listener = bind(settings.host, settings.port)
    with contextlib.closing(listener):
        app = create_app(replace(settings, port=listener.getsockname()[1]))
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            # X-Forwarded-For and -Proto are accepted only from these proxies.
            proxy_headers=bool(settings.trusted_proxies),
            forwarded_allow_ips=peer_addresses(settings.trusted_proxies),
            http="h11",
            ws="none",
            h11_max_incomplete_event_size=MAX_HEADER_BYTES,
            loop="uvloop",
            lifespan="on",
            timeout_graceful_shutdown=SHUTDOWN_TIMEOUT_S,
            ssl_certfile=settings.tls_certificate,
            ssl_keyfile=settings.tls_key,
        )
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
        server = ConsoleServer(config, [listener], settings.trusted_proxies)
        if stop_on_eof:
            threading.Thread(target=_stop_on_eof, daemon=True, name="console-parent-watch").start()
        announce(address(settings, listener))
        with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
            runner.run(server.serve([listener]))
    return 0


def peer_addresses(addresses: Iterable[str]) -> list[str]:
    """Return the addresses and networks as sockets report them: a listener on `::` maps IPv4 to
    IPv6."""
    networks = [ipaddress.ip_network(address) for address in addresses]
    mapped = [f"::ffff:{n.network_address}/{96 + n.prefixlen}" for n in networks if n.version == 4]
    return [str(network) for network in networks] + mapped


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises SettingsError if the address cannot be bound."""
    try:
        family, socket_type, protocol, _, socket_address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise SettingsError(f"cannot resolve {host}: {error.strerror}") from None
    listener = socket.socket(family, socket_type, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(socket_address)
        listener.listen(256)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise SettingsError(f"port {port} of {host} is in use (--port selects another)") from None
        raise SettingsError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    return listener


def address(settings: ConsoleSettings, listener: socket.socket) -> str:
    scheme = "https" if settings.tls_certificate else "http"
    host = settings.host if ":" not in settings.host else f"[{settings.host.strip('[]')}]"
    return f"{scheme}://{host}:{listener.getsockname()[1]}"


def _stop_on_eof() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
