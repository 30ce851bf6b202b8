"""`/metrics` for Prometheus, on a listener of its own (`metrics.listener`)."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import socketserver
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from kavka.common.metrics import CONTENT_TYPE, Registry

log = logging.getLogger(__name__)

PATHS = ("/", "/metrics")
# Whoever connects and does not ask is hung up on.
SILENCE_S = 10.0


class _Server(ThreadingHTTPServer):
    """One address. Connections are accepted on the loop, each is answered in a thread of its own."""

    daemon_threads = True
    timeout = 0.0

    def __init__(self, family: int, address: Any, handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = family
        super().__init__(address, handler)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        # Not HTTPServer's, which asks the name server for our name.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("A scrape from %s was not answered", client_address, exc_info=True)


class MetricsListener:
    """Made on the loop. A scrape reads the counters from its own thread; see common/metrics.py for why that is safe.

    OSError where an address cannot be bound.
    """

    def __init__(self, host: str, port: int, registry: Registry) -> None:
        self._loop = asyncio.get_running_loop()
        self._servers: list[_Server] = []
        self.port = port
        handler = _handler(registry)
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, address in dict.fromkeys(found):
            try:
                server = _Server(family, (address[0], self.port, *address[2:]), handler)
            except OSError as error:
                # "localhost" may have an IPv6 address that the machine has not.
                if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT) and len(found) > 1:
                    continue
                self.close()
                raise
            self.port = server.server_port
            self._servers.append(server)
            self._loop.add_reader(server.fileno(), server.handle_request)
        if not self._servers:
            raise OSError(errno.EADDRNOTAVAIL, f"{host!r} is not an address of this machine")

    def close(self) -> None:
        for server in self._servers:
            self._loop.remove_reader(server.fileno())
            server.server_close()
        self._servers.clear()


def _handler(registry: Registry) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = SILENCE_S

        def do_GET(self) -> None:
            if self.path.partition("?")[0] not in PATHS:
                self.send_error(404, "only /metrics is here")
                return
            try:
                body = registry.render()
            except Exception:
                log.exception("The metrics could not be read")
                self.send_error(500)
                return
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            """Scrapes are not worth a line."""

    return Handler
