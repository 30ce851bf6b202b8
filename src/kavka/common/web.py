"""[pure] Which web page and which network a request comes from: rules that the HTTP listeners share.

A page of another site can make a browser send requests to a server that only this machine or network reaches. The
browser says so with Origin and Sec-Fetch-Site. A page whose own host name points to the server (DNS rebinding) counts
as the same site for the browser: only the name in Host tells it apart.
"""

from __future__ import annotations

import ipaddress
import re

_HOST = re.compile(r"(?:\[([^\[\]]*)\]|([^:\[\]]*))(?::[0-9]*)?")


def host_name(host: str) -> str:
    """Of a Host header: without the port, without the brackets of IPv6. "" where it is malformed, such as
    `[::1].evil.example`."""
    match = _HOST.fullmatch(host.lower())
    return (match[1] or match[2] or "") if match is not None else ""


def is_address(name: str) -> bool:
    """Whether it is an IP address, which no DNS server can point elsewhere."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_foreign(origin: str | None, site: str | None, host: str) -> bool:
    """Whether the headers Origin or Sec-Fetch-Site say that a page of another origin than `host` sends the request.
    Programs that are no browsers send neither."""
    if site is not None and site.lower() not in ("same-origin", "none"):
        return True
    if origin is None:
        return False
    return origin == "null" or origin.partition("://")[2].lower() != host.lower()


def network_of(address: str) -> str:
    """What counts as the address of a peer. An IPv6 address counts as its /64 network: a machine can have all of it."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address[:64]
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)
