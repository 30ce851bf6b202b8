"""The network addresses of a host name, in the order in which to try them."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

logger = logging.getLogger(__name__)


class Address(NamedTuple):
    family: int
    sockaddr: tuple[Any, ...]

    def __str__(self) -> str:
        host, port = self.sockaddr[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Addresses:
    """Resolves host names. Owns the addresses of each host and port to which the last connection
    failed. They are tried last, the least recent failure first."""

    def __init__(self) -> None:
        self._failures: dict[tuple[str, int], dict[Address, float]] = {}

    async def resolve(self, host: str, port: int) -> list[Address]:
        """Return the addresses of the host name, at least one, in the order in which to try them.
        Raises OSError, or UnicodeError for an invalid host name."""
        addresses = await _lookup(host, port)
        failures = self._failures.get((host, port))
        if not failures:
            return addresses
        for address in failures.keys() - set(addresses):
            del failures[address]
        return sorted(addresses, key=lambda address: failures.get(address, 0.0))

    def mark_failed(self, host: str, port: int, address: Address) -> None:
        self._failures.setdefault((host, port), {})[address] = time.monotonic()

    def mark_reached(self, host: str, port: int, address: Address) -> None:
        failures = self._failures.get((host, port))
        if failures is not None:
            failures.pop(address, None)
            if not failures:
                del self._failures[host, port]


async def canonical_servers(servers: Iterable[tuple[str, int]], timeout: float) -> list[tuple[str, int]]:
    """Replace every server with the canonical names of its addresses. An address without a name is
    kept as an address. A server that cannot be resolved is kept: connecting to it reports the
    error."""
    canonical: dict[tuple[str, int], None] = {}
    for host, port in servers:
        try:
            async with asyncio.timeout(timeout):
                for address in await _lookup(host, port):
                    canonical[await _canonical_name(address), port] = None
        except (OSError, UnicodeError) as error:
            logger.warning("Cannot resolve %s in bootstrap.servers: %s", host, str(error) or "timeout")
            canonical[host, port] = None
    return list(canonical)


async def _lookup(host: str, port: int) -> list[Address]:
    infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    # A hosts file may list an address more than once.
    addresses = dict.fromkeys(Address(family, _with_scope(sockaddr)) for family, _, _, _, sockaddr in infos)
    if not addresses:
        raise OSError(f"{host} has no address")
    return list(addresses)


def _with_scope(sockaddr: tuple[Any, ...]) -> tuple[Any, ...]:
    """Append the interface of a link-local IPv6 address to the host, because uvloop uses only the
    host and the port."""
    if len(sockaddr) == 4 and sockaddr[3] and "%" not in sockaddr[0]:
        return (f"{sockaddr[0]}%{sockaddr[3]}", *sockaddr[1:])
    return sockaddr


async def _canonical_name(address: Address) -> str:
    try:
        name, _ = await asyncio.get_running_loop().getnameinfo(address.sockaddr, socket.NI_NAMEREQD)
    except OSError:
        return str(address.sockaddr[0])
    return name
