"""[pure] Parts shared by the HTTP listeners: checks of the origin of requests, and the network of a
peer.

A page of another site can make a browser send requests to a server on localhost or in a private
network. The browser sends the headers Origin and Sec-Fetch-Site with such a request. After DNS
rebinding the browser considers the page same-origin, and only the Host header shows the name of the
other site.
"""

from __future__ import annotations

import ipaddress
import re

_HOST = re.compile(r"(?:\[([^\[\]]*)\]|([^:\[\]]*))(?::[0-9]*)?")


def host_name(host: str) -> str:
    """Return the name in a Host header, without the port and the brackets of IPv6, or "" for a
    malformed header such as `[::1].evil.example`."""
    match = _HOST.fullmatch(host.lower())
    return (match[1] or match[2] or "") if match is not None else ""


def is_address(name: str) -> bool:
    """Return whether `name` is an IP address, which DNS rebinding cannot use."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_foreign(origin: str | None, site: str | None, host: str) -> bool:
    """Return whether Origin or Sec-Fetch-Site (`site`) show that a page of another origin than
    `host` sent the request. Clients other than browsers send neither header."""
    if site is not None and site.lower() not in ("same-origin", "none"):
        return True
    if origin is None:
        return False
    return origin == "null" or origin.partition("://")[2].lower() != host.lower()


def network_of(address: str) -> str:
    """Return the key of a peer for limits per client: its IPv4 address or its /64 network of IPv6,
    because one machine can use all addresses of such a network."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address[:64]
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)
