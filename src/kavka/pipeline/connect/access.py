"""Access control of the REST interface: rejects requests that a browser sends for pages of other
web sites.

Without authentication (`basic_auth.py`, client certificates), any client that can reach the
listener may use the interface. A page of another site must not be able to use it through the
browser of a client. `kavka.common.web` has the rules. Responses to allowed origins have the
headers of Kafka Connect (Jetty's CrossOriginFilter).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kavka.common.web import host_name, is_address, is_foreign

_METHODS = ("GET", "POST", "HEAD")
_HEADERS = "X-Requested-With,Content-Type,Accept,Origin"
_MAX_AGE_S = "1800"


@dataclass(frozen=True)
class Access:
    """The host names and origins that requests may have."""

    names: frozenset[str] = frozenset({"localhost"})
    """Lower-case host names of the worker. IP addresses are always allowed."""
    is_loopback: bool = True
    """Whether only programs on this machine can reach the listeners. Then no other names are
    allowed."""
    origins: tuple[str, ...] = ()
    """`access.control.allow.origin`: `*` matches any text."""
    methods: tuple[str, ...] = _METHODS
    """`access.control.allow.methods`."""

    @classmethod
    def of(cls, settings: Mapping[str, Any], names: Iterable[str], is_loopback: bool) -> Access:
        """Returns the access rules of a worker."""
        return cls(
            frozenset(name.lower() for name in names),
            is_loopback,
            tuple(origin.lower() for origin in settings["access.control.allow.origin"]),
            tuple(method.upper() for method in settings["access.control.allow.methods"]) or _METHODS,
        )

    def allows(self, origin: str | None) -> bool:
        """Whether `access.control.allow.origin` allows the origin. False without an origin."""
        if origin is None:
            return False
        patterns = (re.escape(allowed).replace(r"\*", ".*") for allowed in self.origins)
        return any(re.fullmatch(pattern, origin.lower()) for pattern in patterns)

    def refusal(self, headers: Mapping[str, str]) -> tuple[int, str] | None:
        """Returns (status, message) for a request that must be rejected, None if it is allowed."""
        host, origin = headers.get("host", ""), headers.get("origin")
        name = host_name(host)
        is_known = not host or name in self.names or is_address(name)
        if self.is_loopback and not is_known:
            return 421, "Host is not a name of this worker (rest.advertised.host.name sets one)"
        if self.allows(origin):
            return None
        if is_foreign(origin, headers.get("sec-fetch-site"), host) or (origin is not None and not is_known):
            return 403, "The request comes from a page of another site (access.control.allow.origin allows sites)"
        return None

    def headers(self, origin: str | None) -> dict[str, str]:
        """Returns the additional headers of a response to a page of this origin."""
        if origin is None or not self.allows(origin):
            return {}
        return {
            "Access-Control-Allow-Origin": origin,
            "Access-Control-Allow-Credentials": "true",
            "Vary": "Origin",
        }

    def preflight_headers(self, origin: str | None, method: str) -> dict[str, str]:
        """Returns the headers of a response to a preflight request. They are empty if the method is
        not allowed, so that the browser does not send the request."""
        allowed = self.headers(origin)
        if not allowed or method.upper() not in self.methods:
            return {}
        return {
            **allowed,
            "Access-Control-Allow-Methods": ",".join(self.methods),
            "Access-Control-Allow-Headers": _HEADERS,
            "Access-Control-Max-Age": _MAX_AGE_S,
        }


class Guard:
    """ASGI middleware that responds to rejected requests and to preflight requests."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app = app
        self.access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = self.access.refusal(headers)
        if refusal is not None:
            status, message = refusal
            response = JSONResponse({"error_code": status, "message": message}, status)
            await response(scope, receive, self._with_headers(send, {}))
            return
        method = headers.get("access-control-request-method")
        if scope["method"] == "OPTIONS" and method is not None:
            added = self.access.preflight_headers(headers.get("origin"), method)
            await Response(status_code=200)(scope, receive, self._with_headers(send, added))
            return
        await self.app(scope, receive, self._with_headers(send, self.access.headers(headers.get("origin"))))

    def _with_headers(self, send: Send, added: Mapping[str, str]) -> Send:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["X-Content-Type-Options"] = "nosniff"
                for name, value in added.items():
                    headers[name] = value
            await send(message)

        return send_with_headers
